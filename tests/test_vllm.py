"""The product in front of a real vLLM server: see `vllm_engine.py` for the one that is needed."""

from __future__ import annotations

import json
import sys
import uuid
from typing import Any

import httpx
import openai
import pytest
import vllm_engine
from running import events
from vllm_engine import ANSWER, FREE, QUESTION, SHORT, THINKS, Front, fronted, message

pytestmark = vllm_engine.needed
vllm = vllm_engine.vllm

MORE = {"role": "user", "content": "And another one?"}
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "list_dir",
            "description": "List a directory",
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
        },
    }
]
CALLS: dict[str, Any] = {
    "tools": TOOLS,
    "max_tokens": 60,
    "structured_outputs": {
        "regex": r'<tool_call>\n\{"name": "list_dir", "arguments": \{"path": "/data"\}\}\n</tool_call>'
    },
}
"""The model thinks and calls, in the words of the Hermes parser."""
NAMES = ("reasoning_content", "reasoning")


def dropped(said: dict[str, Any]) -> dict[str, Any]:
    """An assistant message as a front end sends it back: without the thought."""
    return {name: said[name] for name in ("role", "content", "tool_calls") if said.get(name)}


def usage(response: httpx.Response) -> dict[str, Any]:
    """The usage of a good answer."""
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()["usage"]
    return found


# Who is there -------------------------------------------------------------------------------------------------------


async def test_the_engine_is_found_with_version_and_window_and_nothing_is_generated(vllm):
    """By its own `/v1/models` and `/version`; the server's counters stand where they stood."""
    counters = ("prompt_tokens_total", "generation_tokens_total")
    async with fronted(vllm) as front:
        await front.direct(max_tokens=1, min_tokens=1)
        before = [await front.metric(name) for name in counters]
    async with fronted(vllm) as front:
        backend = front.proxy.pipeline.backends.by_name["local"]
        await backend.known()
        found = backend.found
        assert [await front.metric(name) for name in counters] == before
    assert found is not None
    assert (found.engine, found.version) == ("vllm", vllm.version)
    assert found.of(vllm.model).context_limit == vllm.window


# Thoughts on their way out ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_a_thought_is_shown_under_the_name_that_the_client_wants(vllm, stream):
    """vLLM writes `reasoning` alone; five clients get the same thought and text in five ways, streamed or not."""
    ways = ("reasoning_content", "reasoning", "both", "think_tags", "hidden")
    clients = {way.replace("_", "-"): {"api_key": f"key-{way}", "reasoning": way} for way in ways}
    async with fronted(vllm, clients=clients) as front:
        thought = message(await front.direct())["reasoning"]
        assert thought.strip()
        for way in ways:
            answer = await front.ask(key=f"key-{way}", stream=stream)
            said = folded(answer) if stream else message(answer)
            names = {"both": set(NAMES), "think_tags": set(), "hidden": set()}.get(way, {way})
            shown = {name: said[name] for name in NAMES if name in said}
            assert shown == dict.fromkeys(names, thought), way
            tagged = f"<think>\n{thought}\n</think>\n\n{ANSWER}"
            assert said["content"] == (tagged if way == "think_tags" else ANSWER), way


def folded(response: httpx.Response) -> dict[str, str]:
    """The texts of a stream by the names of their fields; a thought's name counts also where it says nothing."""
    found: dict[str, str] = {}
    for payload in stream_of(response):
        for choice in payload["choices"]:
            for name, text in choice["delta"].items():
                if isinstance(text, str) and (text or name in NAMES):
                    found[name] = found.get(name, "") + text
    return found


def stream_of(response: httpx.Response) -> list[dict[str, Any]]:
    """The chunks of a stream that came to its end."""
    assert response.status_code == 200, response.text
    payloads = events(response.text)
    assert payloads.pop() == "[DONE]"
    return [json.loads(payload) for payload in payloads]


async def test_zero_reasoning_tokens_beside_a_thought_are_not_believed(vllm):
    """This parser reports 0; the ledger keeps that figure, and splits the completion by an estimate that says so."""
    async with fronted(vllm) as front:
        reported = usage(await front.ask())["completion_tokens_details"]["reasoning_tokens"]
        (row,) = await front.proxy.rows()
    if reported:
        pytest.skip("this server counts its thoughts")
    assert (row["reported_reasoning_tokens"], row["reasoning_source"]) == (0, "estimated")
    assert 0 < row["reasoning_tokens"] < row["completion_tokens"]
    assert row["reasoning_tokens"] + row["visible_tokens"] == row["completion_tokens"]
    assert (row["engine"], row["outcome"]) == ("vllm", "ok")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_thought_that_takes_all_is_an_answer_lost(vllm, stream):
    """vLLM writes `content: null` and `length`; the client is told so, and the ledger counts it."""
    cut = {**THINKS, "max_tokens": 8, "min_tokens": 8, "thinking_token_budget": None}
    async with fronted(vllm) as front:
        answer = await front.ask(stream=stream, **cut)
        said = folded(answer) if stream else message(answer)
        (row,) = await front.proxy.rows()
    assert said["reasoning_content"].strip()
    assert not said.get("content")
    assert (row["outcome"], row["finish_reason"], row["visible_tokens"]) == ("answer_lost", "length", 0)


async def test_usage_comes_in_a_stream_only_for_whom_asks(vllm):
    """One chunk without choices at the end, on every chunk, or nowhere; the ledger has it every time."""
    async with fronted(vllm) as front:
        whole = usage(await front.ask())
        silent = stream_of(await front.ask(stream=True))
        once = stream_of(await front.ask(stream=True, stream_options={"include_usage": True}))
        always = {"include_usage": True, "continuous_usage_stats": True}
        each = stream_of(await front.ask(stream=True, stream_options=always))
        rows = await front.proxy.rows(4)
    assert not any(chunk.get("usage") for chunk in silent)
    assert [bool(chunk.get("usage")) for chunk in once] == [False] * (len(once) - 1) + [True]
    assert once[-1]["choices"] == []
    assert all(chunk["usage"] for chunk in each)
    counts = ("prompt_tokens", "completion_tokens")
    assert [once[-1]["usage"][name] for name in counts] == [whole[name] for name in counts]
    assert len({tuple(row[name] for name in counts) for row in rows}) == 1


# Thoughts on their way back -----------------------------------------------------------------------------------------


async def test_both_names_of_a_past_thought_count(vllm):
    """The prompt is the same under either name, and longer than without; one name alone goes to the server."""
    said = {"role": "assistant", "content": "Red.", "reasoning_content": "I think of fire, of blood, and of roses."}
    other = {**{name: value for name, value in said.items() if name != NAMES[0]}, NAMES[1]: said[NAMES[0]]}
    async with fronted(vllm) as front:
        short = {"max_tokens": 1, "min_tokens": 1}
        prompts = {}
        for name, turn in (("none", dropped(said)), (NAMES[0], said), (NAMES[1], other)):
            prompts[name] = usage(await front.ask(QUESTION, turn, MORE, **short))["prompt_tokens"]
            assert len(set(NAMES) & front.sent[-1]["messages"][1].keys()) == (name != "none")
        straight = usage(await front.direct(QUESTION, other, MORE, **short))["prompt_tokens"]
        assert said[NAMES[0]] in await front.prompt(front.sent[-1])
    assert prompts[NAMES[0]] == prompts[NAMES[1]] == straight
    assert prompts[NAMES[0]] - prompts["none"] >= 8, prompts


async def test_a_thought_that_the_front_end_dropped_is_in_the_next_prompt(vllm):
    """Through the proxy the prompt is as long as that of a client that keeps everything; without it, shorter."""
    async with fronted(vllm) as front:
        said = message(await front.ask())
        short = {"max_tokens": 1, "min_tokens": 1}
        answer = await front.ask(QUESTION, dropped(said), MORE, **short)
        assert said["reasoning_content"] in await front.prompt(front.sent[-1])
        kept = usage(await front.direct(QUESTION, said, MORE, **short))["prompt_tokens"]
        lost = usage(await front.direct(QUESTION, dropped(said), MORE, **short))["prompt_tokens"]
        thought = await front.count(said["reasoning_content"])
    assert "restored=1" in answer.headers["x-proxy-history"]
    assert usage(answer)["prompt_tokens"] == kept
    assert kept - lost >= thought - 1 > 0, (kept, lost, thought)


async def test_the_prefix_cache_holds_through_the_proxy_where_it_breaks_without(vllm):
    """The blocks that the thought lies in are found again only where the thought comes back.

    vLLM caches whole blocks, so the question ends shortly before the end of one.
    """
    async with fronted(vllm) as front:
        size = int(await front.metric("cache_config_info", "block_size"))
        runs = []
        for through in (True, False):
            question = await almost_a_block(front, uuid.uuid4().hex, size)
            ask = front.ask if through else front.direct
            room = {"max_tokens": 60, "min_tokens": 48, "thinking_token_budget": 40}
            first = await ask(question, **room)
            second = await ask(question, dropped(message(first)), MORE, max_tokens=1, min_tokens=1)
            runs.append((usage(first), usage(second)))
        rows = await front.proxy.rows(2)
    sys.stdout.write(f"\nthrough the proxy, and straight to the server (first turn, second turn):\n{runs}\n")
    blocks = [(one["prompt_tokens"] // size, two["prompt_tokens_details"]["cached_tokens"] / size) for one, two in runs]
    (asked, found), (asked_direct, found_direct) = blocks
    assert found > asked, runs
    assert found_direct == asked_direct, runs
    assert rows[1]["cached_tokens"] == found * size


async def almost_a_block(front: Front, mark: str, size: int) -> dict[str, Any]:
    """A question whose prompt ends a few tokens before the end of a block; with the mark it is a new one."""
    text = mark
    for _ in range(4 * size):
        question = {"role": "user", "content": text}
        count = len(await front.tokens(front.body(question)))
        if count > size and 4 <= -count % size <= 12:
            return question
        text += " sea" * max(1, -count % size - 12) if count > size else " sea" * (size - count + 1)
    raise AssertionError("no text fits")


# Effort and budget --------------------------------------------------------------------------------------------------


async def test_every_effort_word_is_taken_and_stands_where_vllm_reads_it(vllm):
    """Words in any spelling arrive as `reasoning_effort`; a template's own option stays the client's."""
    said: list[tuple[dict[str, Any], str]] = [
        *(({"reasoning_effort": word}, word) for word in ("none", "minimal", "low", "medium", "high", "xhigh", "max")),
        ({"reasoning": {"effort": "low"}}, "low"),
        ({"thinking": {"type": "enabled", "effort": "high"}}, "high"),
        ({"thinking": {"type": "disabled"}}, "none"),
        ({"enable_thinking": False}, "none"),
        ({"think": False}, "none"),
    ]
    short = {"max_tokens": 1, "min_tokens": 1}
    async with fronted(vllm) as front:
        for fields, word in said:
            assert (await front.ask(**fields, **short)).status_code == 200, fields
            assert front.sent[-1]["reasoning_effort"] == word, fields
        own = {"thinking_effort": "low", "note": "mine"}
        assert (await front.ask(chat_template_kwargs=own, **short)).status_code == 200
        assert front.sent[-1]["chat_template_kwargs"] == own
        assert "reasoning_effort" not in front.sent[-1]


@pytest.mark.parametrize(
    ("family", "fields"),
    [
        ("kimi-k3", {"chat_template_kwargs": {"thinking": False}}),
        ("deepseek-v4", {"chat_template_kwargs": {"thinking": False}}),
        ("qwen3", {"reasoning_effort": "none"}),
        ("hunyuan", {"chat_template_kwargs": {"reasoning_effort": "no_think"}}),
    ],
)
async def test_a_familys_own_switch_is_taken(vllm, family, fields):
    """What switches thinking off goes as the option of the family's template, and the server accepts it."""
    async with fronted(vllm, family=family, policy={**FREE, "sampling": "client"}) as front:
        answer = await front.ask(reasoning_effort="none", max_tokens=1, min_tokens=1)
        assert answer.status_code == 200, answer.text
        places = ("reasoning_effort", "chat_template_kwargs")
        assert {name: front.sent[-1][name] for name in places if name in front.sent[-1]} == fields


async def test_words_are_fitted_to_the_family(vllm):
    """Kimi K3 has no `medium`, and vLLM's renderer for it answers 400; what goes out is a word that it knows."""
    async with fronted(vllm, family="kimi-k3") as front:
        for word, fitted in (("minimal", "low"), ("medium", "high"), ("xhigh", "max")):
            assert (await front.ask(reasoning_effort=word, max_tokens=1, min_tokens=1)).status_code == 200
            assert front.sent[-1]["reasoning_effort"] == fitted


async def test_a_clients_budget_is_obeyed_under_any_name(vllm):
    """vLLM's own name at once, the others as soon as the server has shown that it tells thoughts from texts."""
    said: list[dict[str, Any]] = [
        {"thinking_token_budget": 6},
        {"thinking_budget_tokens": 6},
        {"thinking_budget": 6},
        {"reasoning": {"max_tokens": 6}},
        {"thinking": {"type": "enabled", "budget_tokens": 6}},
    ]
    base = {"thinking_token_budget": None, "max_tokens": 24}
    async with fronted(vllm) as front:
        for fields in said:
            found = message(await front.ask(**{**base, **fields}))
            assert front.sent[-1]["thinking_token_budget"] == 6, fields
            assert found["content"] == ANSWER, fields
            assert 0 < await front.count(found["reasoning_content"]) <= 7, fields


async def test_the_proxys_budget_makes_room_for_an_answer_from_the_second_request_on(vllm):
    """A server without a parser refuses a budget, so the first answer has to show a thought; the second one fits."""
    policy = {**FREE, "thinking_budget": "auto"}
    tight = {"thinking_token_budget": None, "max_tokens": 30, "min_tokens": 30}
    async with fronted(vllm, policy=policy) as front:
        lost, answer = await front.ask(**tight), await front.ask(**tight)
        rows = await front.proxy.rows(2)
    assert (message(lost)["content"], message(answer)["content"]) == (None, ANSWER)
    assert [body.get("thinking_token_budget") for body in front.sent] == [None, 15]
    assert [row["thinking_budget_sent"] for row in rows] == [None, 15]
    assert [row["outcome"] for row in rows] == ["answer_lost", "ok"]
    assert answer.headers["x-proxy-thinking-budget"] == "15; reason=reserve"


LOOSE: dict[str, Any] = {
    "thinking_token_budget": None,
    "structured_outputs": None,
    "min_tokens": None,
    "bad_words": None,
    "ignore_eos": True,
    "temperature": 1,
}
"""The model writes on without an end: thought to the budget, then text to the cap."""
MEASURED = {"min_completion_tokens": 0, "probe": {"max_tokens": 0}}


@pytest.mark.parametrize("stream", [False, True])
async def test_small_caps_have_an_answer_from_the_first_request_on(vllm, stream):
    """The few tokens that tell the speed tell too that a parser is there, and so a budget goes with every request."""
    async with fronted(vllm, policy=MEASURED) as front:
        measuring = front.proxy.pipeline.backends.first.measuring
        assert measuring is not None
        await measuring
        front.sent.clear()
        for cap in range(6, 65, 2):
            answer = await front.ask(
                {"role": "user", "content": f"Tell {cap} of it."}, **LOOSE, max_tokens=cap, stream=stream
            )
            text = folded(answer)["content"] if stream else message(answer)["content"]
            assert text.strip(), (cap, front.sent[-1])
            assert front.sent[-1]["thinking_token_budget"] < cap


@pytest.mark.parametrize("stream", [False, True])
async def test_a_text_that_ends_here_is_counted_by_the_server(vllm, stream):
    """At a stop string, or at a visible cap: the server is left, and its running counts are the usage."""
    policy = {**MEASURED, "min_completion_tokens": 60, "completion_tokens_mode": "visible", "thinking_budget": 20}
    async with fronted(vllm, policy=policy) as front:
        await front.ask()  # shows that thoughts come apart
        more = {"stream": stream, **({"stream_options": {"include_usage": True}} if stream else {})}
        answer = await front.ask(**LOOSE, max_tokens=8, **more)
        (row, *_) = (await front.proxy.rows(2))[1:]
        assert (row["outcome"], row["finish_reason"]) == ("length", "length")
        assert 8 < row["completion_tokens"] < 45, "20 of thought, its mark, 8 of text and little more"
        spent = stream_of(answer)[-1]["usage"] if stream else usage(answer)
        assert (spent["prompt_tokens"], spent["completion_tokens"]) == (row["prompt_tokens"], row["completion_tokens"])


# Caps and refusals --------------------------------------------------------------------------------------------------


async def test_a_raised_cap_is_clamped_to_the_window(vllm):
    """vLLM refuses a cap above its window, so the floor goes only about as far as there is room."""
    policy = {**FREE, "min_completion_tokens": 2 * vllm.window}
    async with fronted(vllm, policy=policy) as front:
        direct = await front.direct(max_tokens=2 * vllm.window)
        answer = await front.ask(max_tokens=16)
        sent = front.sent[-1]["max_tokens"]
    assert direct.status_code == 400
    assert message(answer)["content"] == ANSWER
    assert answer.headers["x-proxy-max-tokens"] == f"{sent}; asked=16; reason=clamp"
    assert vllm.window // 2 < sent < vllm.window


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
async def test_a_cap_goes_once_under_the_clients_name(vllm, name):
    """vLLM obeys it under either name; of two it takes `max_completion_tokens`, and so does the proxy."""
    caps: dict[str, Any] = {"max_tokens": None, name: 3}
    async with fronted(vllm) as front:
        assert usage(await front.ask(**caps, min_tokens=3))["completion_tokens"] == 3
        assert {field: front.sent[-1].get(field) for field in caps if caps[field]} == {name: 3}
        both = {"max_tokens": 9, "max_completion_tokens": 3, "min_tokens": 3}
        counted = [usage(await ask(**both))["completion_tokens"] for ask in (front.direct, front.ask)]
        assert counted == [3, 3]
        assert "max_tokens" not in front.sent[-1]


@pytest.mark.parametrize("stream", [False, True])
async def test_every_refusal_keeps_its_status_and_words(vllm, stream):
    """Streamed or not: vLLM's words in the body that OpenAI's SDKs read, and nothing said about a retry."""
    wrong: list[tuple[str, dict[str, Any], int]] = [
        ("effort", {"reasoning_effort": "bogus"}, 400),
        ("cap", {"max_tokens": vllm.window + 904}, 400),
        ("temperature", {"temperature": "hot"}, 400),
        ("choices", {"n": 2}, 400),
        ("constraints", {**CALLS, "tool_choice": {"type": "function", "function": {"name": "list_dir"}}}, 400),
        ("model", {"model": "no-such-model"}, 404),
    ]
    async with fronted(vllm) as front:
        for name, fields, status in wrong:
            direct, answer = await front.direct(**fields, stream=stream), await front.ask(**fields, stream=stream)
            assert (direct.status_code, answer.status_code) == (status, status), (name, direct.text, answer.text)
            assert answer.json()["error"] == direct.json()["error"], name
            assert answer.json()["error"].keys() == {"message", "type", "param", "code"}, name
            assert "x-should-retry" not in answer.headers, name
        rows = await front.proxy.rows(len(wrong))
    assert {row["outcome"] for row in rows} == {"upstream_error"}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_beyond_the_window_has_the_code_that_agents_know(vllm, stream):
    """vLLM's words where it says so, ours where it is sure beforehand; `context_length_exceeded` both times."""
    async with fronted(vllm) as front:
        told = []
        for words in (vllm.window + 100, 2 * vllm.window):
            answer = await front.ask({"role": "user", "content": "word " * words}, stream=stream)
            assert answer.status_code == 400, answer.text
            told.append(answer.json()["error"])
        asked = len(front.sent)
    assert [error["code"] for error in told] == ["context_length_exceeded"] * 2
    assert f"maximum context length is {vllm.window} tokens" in told[0]["message"]
    assert (told[0]["param"], told[1]["param"], asked) == ("input_tokens", "messages", 1)


async def test_an_unknown_path_answers_as_the_server_does(vllm):
    """Its 404 and its words, in OpenAI's shape, which vLLM's own `detail` is not."""
    async with fronted(vllm) as front:
        direct = await front.proxy.http.post(f"{vllm_engine.URL}/nothing", json={})
        answer = await front.proxy.http.post(f"{front.proxy.url}/nothing", json={})
    assert (direct.status_code, direct.json()) == (404, {"detail": "Not Found"})
    assert (answer.status_code, answer.json()["error"]["message"]) == (404, "Not Found")


# Tools and roles ----------------------------------------------------------------------------------------------------


async def test_a_call_keeps_its_thought_over_the_tool_loop(vllm):
    """The call of a stream is the whole one's, and with the result behind it the thought stands in the prompt."""
    async with fronted(vllm) as front:
        whole = message(await front.ask(**CALLS))
        chunks = stream_of(await front.ask(**CALLS, stream=True))
        pieces = [piece for chunk in chunks for one in chunk["choices"] for piece in one["delta"].get("tool_calls", ())]
        first, *rest = pieces
        assert (first["type"], first["function"]["name"], bool(first["id"])) == ("function", "list_dir", True)
        assert not any(piece.get("id") or piece["function"].get("name") for piece in rest)
        arguments = "".join(piece["function"].get("arguments", "") for piece in pieces)
        assert arguments == whole["tool_calls"][0]["function"]["arguments"] == '{"path": "/data"}'
        assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"

        result = {"role": "tool", "tool_call_id": whole["tool_calls"][0]["id"], "content": "a.txt"}
        short = {"tools": TOOLS, "max_tokens": 1, "min_tokens": 1}
        answer = await front.ask(QUESTION, dropped(whole), result, **short)
        kept = usage(await front.direct(QUESTION, whole, result, **short))["prompt_tokens"]
        assert whole["reasoning_content"] in await front.prompt(front.sent[-1])
    assert "restored=1" in answer.headers["x-proxy-history"]
    assert usage(answer)["prompt_tokens"] == kept


@pytest.mark.parametrize("choice", ["auto", "none", "required", {"type": "function", "function": {"name": "list_dir"}}])
async def test_a_tool_choice_goes_as_it_came_and_is_taken(vllm, choice):
    """Also the forced ones: vLLM takes them, so nothing is put in their place."""
    async with fronted(vllm, policy={**FREE, "forced_tool_choice": "auto"}, family="qwen3") as front:
        fields = {"tools": TOOLS, "tool_choice": choice, "structured_outputs": None, "max_tokens": 9, "min_tokens": 9}
        answer = await front.ask(**fields)
        assert answer.status_code == 200, answer.text
        assert front.sent[-1]["tool_choice"] == choice


async def test_the_developer_role_is_sent_as_system(vllm):
    """Its text stands in the prompt under the role that templates know."""
    async with fronted(vllm) as front:
        developer = {"role": "developer", "content": "You are a pirate."}
        assert (await front.ask(developer, QUESTION, max_tokens=1, min_tokens=1)).status_code == 200
        assert [each["role"] for each in front.sent[-1]["messages"]] == ["system", "user"]
        assert "You are a pirate." in await front.prompt(front.sent[-1])


# The SDK ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("asked", "shown"), [(SHORT, NAMES[0]), (SHORT, NAMES[1]), ({**SHORT, **CALLS}, NAMES[0])])
async def test_the_sdks_accumulator_reads_the_whole_answers_message(vllm, asked, shown):
    """Text, thought, calls, finish and usage of a stream are those of the answer in one piece."""
    own = {name: asked[name] for name in ("temperature", "max_tokens", "tools") if name in asked}
    fields: Any = {"model": vllm.model, "messages": [QUESTION], **own}
    fields["extra_body"] = {name: value for name, value in asked.items() if name not in own}
    async with fronted(vllm, defaults={"client_reasoning": shown}) as front:
        async with openai.AsyncOpenAI(base_url=front.proxy.url, api_key="unused", max_retries=0) as sdk:
            whole: Any = await sdk.chat.completions.create(**fields)
            async with sdk.chat.completions.stream(**fields, stream_options={"include_usage": True}) as stream:
                streamed: Any = await stream.get_final_completion()
    one, other = whole.choices[0], streamed.choices[0]
    assert (one.message.content or "") == (other.message.content or "") == ("" if "tools" in asked else ANSWER)
    assert getattr(one.message, shown) == getattr(other.message, shown)
    assert getattr(one.message, shown).strip()
    assert one.finish_reason == other.finish_reason
    assert [(call.function.name, call.function.arguments) for call in one.message.tool_calls or ()] == [
        (call.function.name, call.function.arguments) for call in other.message.tool_calls or ()
    ]
    counted = [(usage.prompt_tokens, usage.completion_tokens) for usage in (whole.usage, streamed.usage)]
    assert counted[0] == counted[1]
