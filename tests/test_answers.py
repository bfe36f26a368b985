"""Answers that were lost to thinking and are asked for once more, and what front ends ask on their own account."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pytest
from running import events, serving, settings

from proxy.testing import FakeBackend, Reply, Request, ToolCall, answer, document, error, wire
from proxy.testing import events as script

USER = {"role": "user", "content": "hi there"}
MORE = {"role": "user", "content": "more"}
USAGE = {"include_usage": True}
LOST = answer(reasoning="All of it was thought. ", finish="length")
FOUND = answer("Here it is.", reasoning="Now short.")
RETRY = {"rescue": "retry"}
ENGINES = ["llama-server", "vllm", "sglang", "ollama", "kimi"]
CAP = 6000


def chunks_of(body: str) -> list[dict[str, Any]]:
    """The chunks of a complete stream."""
    *chunks, done = events(body)
    assert done == "[DONE]"
    return [json.loads(chunk) for chunk in chunks]


def told(chunks: list[dict[str, Any]]) -> tuple[str, str, list[str]]:
    """(thought, text, finishes) of chunks."""
    thought, text, finishes = "", "", list[str]()
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        thought += choice["delta"].get("reasoning_content") or ""
        text += choice["delta"].get("content") or ""
        finishes += [choice["finish_reason"]] if choice["finish_reason"] else []
    return thought, text, finishes


def cap_of(request: Request) -> int | None:
    """The cap that a backend was sent."""
    caps = [request.get(name) for name in ("max_tokens", "max_completion_tokens")]
    return next((cap for cap in caps if cap is not None), None)


# Rescue -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
async def test_a_lost_answer_is_asked_for_once_more_in_the_same_stream(engine):
    """One id, one role, both thoughts, one finish, the usage of both, and one row; the second try has the lowest effort
    and twice the cap."""
    async with FakeBackend(LOST, FOUND, style=engine) as backend:
        async with serving(settings(backend.url, engine=engine, policy=RETRY)) as proxy:
            response = await proxy.chat(USER, stream=True, stream_options=USAGE, max_tokens=CAP)
            row = (await proxy.rows())[0]
    chunks = chunks_of(response.text)
    assert told(chunks) == ("All of it was thought. Now short.", "Here it is.", ["stop"])
    assert {chunk["id"] for chunk in chunks} == {"chatcmpl-0"}
    assert sum("role" in choice["delta"] for chunk in chunks for choice in chunk["choices"]) == 1
    (usage,) = [chunk["usage"] for chunk in chunks if chunk.get("usage")]
    assert (chunks[-1]["usage"], chunks[-1]["choices"]) == (usage, [])
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (4, 10, 14)
    assert (row["prompt_tokens"], row["completion_tokens"]) == (4, 10)
    assert (row["reasoning_tokens"], row["visible_tokens"]) == (7, 3)
    assert (row["attempts"], row["flags"], row["outcome"], row["finish_reason"]) == (2, ["rescued"], "ok", "stop")
    assert "rescue" in row["decisions"]
    assert (row["effort_sent"], row["effort_reason"], row["max_tokens_sent"]) == ("low", "rescue", 2 * CAP)
    first, second = backend.requests
    assert (cap_of(first), cap_of(second)) == (CAP, 2 * CAP)
    assert first.body["messages"] == second.body["messages"]
    options = second.body.get("chat_template_kwargs") or {}
    assert (options.get("thinking_effort") or second.body.get("reasoning_effort")) == "low"
    assert not any("low" in str(first.body.get(name)) for name in ("chat_template_kwargs", "reasoning_effort"))


@pytest.mark.parametrize("engine", ENGINES)
async def test_a_lost_answer_in_one_piece_is_the_second_one(engine):
    """With the usage of both, and headers that tell of the plan that was sent last."""
    async with FakeBackend(LOST, FOUND, style=engine) as backend:
        async with serving(settings(backend.url, engine=engine, policy=RETRY)) as proxy:
            response = await proxy.chat(USER, max_tokens=CAP)
            row = (await proxy.rows())[0]
    choice, usage = response.json()["choices"][0], response.json()["usage"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("Here it is.", "stop")
    assert choice["message"]["reasoning_content"] == "Now short."
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (4, 10, 14)
    assert "rescue" in response.headers["x-proxy-decisions"].split(",")
    assert response.headers["x-proxy-outcome"] == "ok"
    assert response.headers["x-proxy-effort"] == "low; reason=rescue"
    assert response.headers["x-proxy-max-tokens"] == f"{2 * CAP}; asked={CAP}; reason=rescue"
    assert (row["attempts"], row["flags"], row["outcome"]) == (2, ["rescued"], "ok")
    assert (row["prompt_tokens"], row["completion_tokens"], row["reasoning_tokens"]) == (4, 10, 7)


async def test_a_budget_of_thoughts_grows_with_the_cap():
    """The engine's own limit would end the second thought where it ended the first."""
    async with FakeBackend(LOST, FOUND, style="llama-server") as backend:
        async with serving(settings(backend.url, engine="llama-server", policy=RETRY)) as proxy:
            await proxy.chat(USER, max_tokens=CAP)
            await proxy.rows()
    assert [request.body["thinking_budget_tokens"] for request in backend.requests] == [CAP - 1024, 2 * CAP - 1024]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("broken", ["500", "429", "cut", "refused"])
async def test_where_there_is_no_second_answer_the_first_one_stands(broken, stream):
    """As it was: its thought, its finish, its usage, and `answer_lost`."""
    seconds = {"500": error(500, "no"), "429": error(429, "slow"), "cut": wire(), "refused": FOUND}

    def rules(request: Request) -> Reply:
        if request.number:
            return seconds[broken]
        if broken == "refused":
            backend._server.close()
        return LOST

    # An engine whose connections are not used again: another one is needed for the second try.
    async with FakeBackend(rules=rules, style="llama-server") as backend:
        async with serving(settings(backend.url, engine="llama-server", policy=RETRY)) as proxy:
            response = await proxy.chat(USER, max_tokens=CAP, stream=stream, stream_options=USAGE if stream else None)
            row = (await proxy.rows())[0]
    assert response.status_code == 200
    if stream:
        chunks = chunks_of(response.text)
        assert told(chunks) == ("All of it was thought. ", "", ["length"])
        (usage,) = [chunk["usage"] for chunk in chunks if chunk.get("usage")]
    else:
        (choice,), usage = response.json()["choices"], response.json()["usage"]
        assert choice["message"]["reasoning_content"] == "All of it was thought. "
        assert choice["finish_reason"] == "length"
        assert response.headers["x-proxy-outcome"] == "answer_lost"
        assert "rescue" not in response.headers["x-proxy-decisions"].split(",")
    assert usage["completion_tokens"] == 5
    assert (row["outcome"], row["finish_reason"], row["flags"]) == ("answer_lost", "length", [])
    assert (row["completion_tokens"], row["max_tokens_sent"], row["status"]) == (5, CAP, 200)
    assert len(backend.requests) == (1 if broken == "refused" else 2)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    "reply",
    [
        document("<html>", headers={"content-type": "text/html"}),
        document(None, status=204),
        document({"error": {"message": "no"}}),
        document({"choices": []}),
    ],
    ids=["a page", "nothing", "an error", "no choice"],
)
async def test_a_second_answer_that_is_none_leaves_the_first_one(reply, stream):
    """A page of some gateway in its place is no reason to fail what was answered."""
    async with FakeBackend(LOST, reply, style="llama-server") as backend:
        async with serving(settings(backend.url, engine="llama-server", policy=RETRY)) as proxy:
            response = await proxy.chat(USER, max_tokens=CAP, stream=stream)
            row = (await proxy.rows())[0]
    assert response.status_code == 200
    if stream:
        assert told(chunks_of(response.text)) == ("All of it was thought. ", "", ["length"])
    else:
        assert response.json()["choices"][0]["finish_reason"] == "length"
    assert (row["outcome"], row["completion_tokens"], row["flags"]) == ("answer_lost", 5, [])


@pytest.mark.parametrize("second", [script("[DONE]"), script({"error": {"message": "no"}}), script()])
async def test_a_second_stream_without_a_choice_leaves_the_first_one(second):
    """Its finish, its usage and its account stand; that there was a second request is told."""
    async with FakeBackend(LOST, second, style="llama-server") as backend:
        async with serving(settings(backend.url, engine="llama-server", policy=RETRY)) as proxy:
            response = await proxy.chat(USER, max_tokens=CAP, stream=True, stream_options=USAGE)
            row = (await proxy.rows())[0]
    chunks = chunks_of(response.text)
    assert told(chunks) == ("All of it was thought. ", "", ["length"])
    assert chunks[-1]["usage"]["completion_tokens"] == 5
    assert (row["outcome"], row["finish_reason"], row["completion_tokens"]) == ("answer_lost", "length", 5)
    assert (row["attempts"], row["flags"]) == (2, [])


def showing(finish: str = "stop", **said: Any) -> Reply:
    """An answer of a thought and something that is neither text nor call."""
    head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    deltas = ({"reasoning_content": "All of it. "}, said)
    chunks = [{**head, "choices": [{"index": 0, "delta": each, "finish_reason": None}]} for each in deltas]
    return script(*chunks, {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}, "[DONE]")


@pytest.mark.parametrize(
    ("reply", "fields"),
    [
        (showing(refusal="No."), {}),
        (showing(images=[{"type": "image_url", "image_url": {"url": "data:,"}}]), {}),
        (showing(audio={"id": "a"}), {}),
        (showing(function_call={"name": "f", "arguments": "{}"}), {}),
        (showing(finish="content_filter"), {}),
        (showing(content="END of it"), {"stop": "END"}),
    ],
    ids=["refusal", "images", "audio", "function_call", "content_filter", "stop"],
)
async def test_an_answer_without_text_is_not_lost_for_another_reason(reply, fields):
    """It shows something else, was refused, or was ended by the client's own stop string: nothing is paid twice."""
    async with FakeBackend(reply, style="llama-server") as backend:
        async with serving(settings(backend.url, engine="llama-server", policy=RETRY)) as proxy:
            await proxy.chat(USER, max_tokens=CAP, stream=True, **fields)
            row = (await proxy.rows())[0]
    assert (row["outcome"], row["attempts"], len(backend.requests)) == ("ok", 1, 1)


async def test_a_second_stream_that_breaks_is_told_as_such():
    """Its thought was shown already: the error ends the stream, and no finish is invented."""
    async with FakeBackend(LOST, FOUND.first(2).then_abort(), style="vllm") as backend:
        async with serving(settings(backend.url, engine="vllm", policy=RETRY)) as proxy:
            response = await proxy.chat(USER, max_tokens=CAP, stream=True)
            row = (await proxy.rows())[0]
    *chunks, failed, done = events(response.text)
    assert done == "[DONE]"
    assert json.loads(failed)["error"]["message"]
    assert told([json.loads(chunk) for chunk in chunks])[2] == []
    assert (row["outcome"], row["attempts"], row["flags"]) == ("upstream_error", 2, ["rescued"])


@pytest.mark.parametrize("stream", [True, False])
async def test_there_is_no_third_try(stream):
    """The second one may be lost as well: that is what the client gets then."""
    async with FakeBackend(LOST, LOST, FOUND, style="vllm") as backend:
        async with serving(settings(backend.url, engine="vllm", policy=RETRY)) as proxy:
            response = await proxy.chat(USER, max_tokens=CAP, stream=stream)
            row = (await proxy.rows())[0]
    assert len(backend.requests) == 2
    if stream:
        assert told(chunks_of(response.text)) == ("All of it was thought. " * 2, "", ["length"])
    else:
        assert response.json()["usage"]["completion_tokens"] == 10
    assert (row["outcome"], row["flags"], row["completion_tokens"]) == ("answer_lost", ["rescued"], 10)


NOT_LOST: dict[str, tuple[Reply, dict[str, Any], dict[str, Any]]] = {
    "off": (LOST, {"rescue": "off"}, {}),
    "a probe": (LOST, RETRY, {"max_tokens": 1}),
    "an answer": (FOUND, RETRY, {}),
    "a cut answer": (answer("Half of", reasoning="Hm.", finish="length"), RETRY, {}),
    "a call": (answer(reasoning="I call.", calls=[ToolCall("ls", "{}", "functions.ls:0")]), RETRY, {}),
    "an empty turn": (answer(), RETRY, {}),
    "the same again": (LOST, RETRY, {"reasoning_effort": "low", "max_tokens": None}),
}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("name", NOT_LOST)
async def test_only_what_is_lost_is_asked_for_again(name, stream):
    """Never a probe, never what has text or a call, and never the same request as it was."""
    reply, policy, fields = NOT_LOST[name]
    async with FakeBackend(reply, FOUND, style="vllm") as backend:
        async with serving(settings(backend.url, engine="vllm", policy=policy)) as proxy:
            response = await proxy.chat(USER, stream=stream, **{"max_tokens": CAP, **fields})
            row = (await proxy.rows())[0]
    assert response.status_code == 200
    assert (len(backend.requests), row["attempts"], row["flags"] in ([], ["empty_turn"])) == (1, 1, True)
    assert "rescue" not in row["decisions"]


async def test_of_two_choices_one_that_shows_something_is_enough():
    """Both finishes leave, though the first one looked like that of a lost answer."""

    def chunk(*choices: dict[str, Any]) -> dict[str, Any]:
        return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": list(choices)}

    def delta(index: int, finish: str | None = None, **fields: Any) -> dict[str, Any]:
        return {"index": index, "delta": fields, "finish_reason": finish}

    steps = [
        chunk(delta(0, reasoning_content="a"), delta(1, reasoning_content="b")),
        chunk(delta(0, finish="length")),
        chunk(delta(1, content="text")),
        chunk(delta(1, finish="stop")),
        "[DONE]",
    ]
    async with FakeBackend(script(*steps), FOUND, style="vllm") as backend:
        async with serving(settings(backend.url, engine="vllm", policy=RETRY)) as proxy:
            response = await proxy.chat(USER, stream=True, n=2, max_tokens=CAP)
    assert told(chunks_of(response.text)) == ("ab", "text", ["length", "stop"])
    assert len(backend.requests) == 1


async def test_a_client_that_shows_thoughts_in_tags_sees_one_block():
    """Both thoughts are in it: the text comes after the second one."""
    defaults = {"client_reasoning": "think_tags"}
    async with FakeBackend(LOST, FOUND, style="vllm") as backend:
        async with serving(settings(backend.url, engine="vllm", policy=RETRY, defaults=defaults)) as proxy:
            response = await proxy.chat(USER, stream=True, max_tokens=CAP)
    text = told(chunks_of(response.text))[1]
    assert text == "<think>\nAll of it was thought. Now short.\n</think>\n\nHere it is."


@pytest.mark.parametrize("stream", [True, False])
async def test_the_second_answers_thought_is_the_one_that_goes_back(stream):
    """It is the one that led to the text."""
    async with FakeBackend(LOST, FOUND, style="llama-server") as backend:
        async with serving(settings(backend.url, engine="llama-server", policy=RETRY)) as proxy:
            await proxy.chat(USER, stream=stream, max_tokens=CAP)
            await proxy.chat(USER, {"role": "assistant", "content": "Here it is."}, MORE)
    assert backend.requests[2].body["messages"][1]["reasoning_content"] == "Now short."


@pytest.mark.parametrize("stream", [True, False])
async def test_a_second_answer_has_its_stop_string_too(stream):
    """An answer that is watched for its end is streamed from the engine, both times."""
    never = asyncio.Event()
    second = answer("Here STOP it is.", reasoning="Short.").hold(never, after=4)
    async with FakeBackend(LOST, second, style="llama-server") as backend:
        async with serving(settings(backend.url, engine="llama-server", policy=RETRY)) as proxy:
            options = USAGE if stream else None
            response = await proxy.chat(USER, stream=stream, stream_options=options, max_tokens=CAP, stop="STOP")
            assert await backend.requests[1].hung_up()
            row = (await proxy.rows())[0]
    if stream:
        chunks = chunks_of(response.text)
        assert told(chunks) == ("All of it was thought. Short.", "Here ", ["stop"])
        (usage,) = [chunk["usage"] for chunk in chunks if chunk.get("usage")]
    else:
        choice, usage = response.json()["choices"][0], response.json()["usage"]
        assert (choice["message"]["content"], choice["finish_reason"]) == ("Here ", "stop")
    assert usage["completion_tokens"] == row["completion_tokens"] == 5 + 3
    assert (row["outcome"], row["flags"], row["attempts"]) == ("ok", ["rescued"], 2)
    assert not any("stop" in request.body for request in backend.requests)


async def test_a_second_answer_in_one_piece_joins_the_stream():
    """Some servers answer a request for a stream whole."""
    whole = {
        "id": "w",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Here it is.", "reasoning": "Now short."},
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 2, "completion_tokens": 5, "total_tokens": 7},
    }
    async with FakeBackend(LOST, document(whole), style="vllm") as backend:
        async with serving(settings(backend.url, engine="vllm", policy=RETRY)) as proxy:
            response = await proxy.chat(USER, stream=True, max_tokens=CAP, stream_options=USAGE)
    chunks = chunks_of(response.text)
    assert told(chunks) == ("All of it was thought. Now short.", "Here it is.", ["stop"])
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert chunks[-1]["usage"]["completion_tokens"] == 10


@pytest.mark.parametrize("engine", ENGINES)
async def test_the_sdks_accumulator_reads_two_tries_as_one_answer(engine):
    """One message, under the first id, with a finish and the usage of both."""
    async with FakeBackend(LOST, FOUND, style=engine) as backend:
        async with serving(settings(backend.url, engine=engine, policy=RETRY)) as proxy:
            async with openai.AsyncOpenAI(base_url=proxy.url, api_key="k", max_retries=0) as sdk:
                messages: Any = [USER]
                asked: Any = {"model": "m", "messages": messages, "max_tokens": CAP}
                async with sdk.chat.completions.stream(**asked, stream_options=USAGE) as stream:
                    heard: Any = await stream.get_final_completion()
    choice = heard.choices[0]
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", "Here it is.", "stop")
    assert choice.message.reasoning_content == "All of it was thought. Now short."
    assert (heard.id, heard.usage.completion_tokens, heard.usage.total_tokens) == ("chatcmpl-0", 10, 14)


async def test_a_client_that_leaves_gets_no_second_try():
    """Nobody would read it."""
    go = asyncio.Event()
    async with FakeBackend(LOST.hold(go, after=3), FOUND, style="vllm") as backend:
        async with serving(settings(backend.url, engine="vllm", policy=RETRY)) as proxy:
            body = {"model": "m", "messages": [USER], "stream": True, "max_tokens": CAP}
            async with proxy.http.stream("POST", f"{proxy.url}/chat/completions", json=body) as response:
                assert await anext(response.aiter_bytes())
            assert await backend.requests[0].hung_up()
            go.set()
            row = (await proxy.rows())[0]
    assert (row["outcome"], row["attempts"], len(backend.requests)) == ("client_disconnected", 1, 1)


# Side requests ------------------------------------------------------------------------------------------------------

TITLE = {
    "role": "user",
    "content": "### Task:\nGenerate a concise, 3-5 word title with an emoji summarizing the chat history.\n"
    "### Output:\nJSON format\n### Chat History:\n<chat_history>\nUSER: hi\n</chat_history>",
}
TITLED = answer('{"title": "Greeting"}', reasoning="A title.")


SWITCHED_OFF: dict[str, Any] = {"chat_template_kwargs": {"thinking": False}}
SIDE: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-server": ("low", {"chat_template_kwargs": {"thinking_effort": "low"}}),  # its template reads no switch
    "vllm": ("none", SWITCHED_OFF),
    "sglang": ("none", SWITCHED_OFF),
    "kimi": ("low", {"reasoning_effort": "low"}),  # always thinks there
}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("engine", SIDE)
async def test_a_side_request_has_the_lowest_effort_and_a_small_cap(engine, stream):
    """None at all where the template has a switch; the cap is for one that brings none; the ledger has its kind."""
    effort, fields = SIDE[engine]
    async with FakeBackend(TITLED, style=engine) as backend:
        async with serving(settings(backend.url, engine=engine)) as proxy:
            response = await proxy.chat(TITLE, stream=stream)
            row = (await proxy.rows())[0]
    assert response.headers["x-proxy-effort"] == f"{effort}; reason=side"
    assert response.headers["x-proxy-max-tokens"].startswith("2048; ")
    assert response.headers["x-proxy-max-tokens"].endswith("; reason=side")
    assert "side" in response.headers["x-proxy-decisions"].split(",")
    assert (row["kind"], row["effort_sent"], row["max_tokens_sent"], row["outcome"]) == ("side", effort, 2048, "ok")
    sent = backend.requests[0].body
    assert (cap_of(backend.requests[0]), {name: sent[name] for name in fields}) == (2048, fields)


async def test_where_the_template_has_a_switch_a_side_request_does_not_think():
    """llama-server tells its template: one that reads `enable_thinking` is told not to."""
    props = {
        "default_generation_settings": {"n_ctx": 8192},
        "chat_template": "{% if enable_thinking %}<think>{% endif %}",
    }
    paths = {"/props": document(props)}
    async with FakeBackend(TITLED, style="llama-server", paths=paths) as backend:
        async with serving(settings(backend.url, engine="llama-server", family="qwen3")) as proxy:
            response = await proxy.chat(TITLE)
            row = (await proxy.rows())[0]
    assert backend.requests[0].body["chat_template_kwargs"] == {"enable_thinking": False}
    assert (response.headers["x-proxy-effort"], row["kind"]) == ("none; reason=side", "side")


async def test_a_side_requests_own_cap_stands_where_it_leaves_room():
    """A small one is raised, as a thought would use it up, but no further than a side request without a cap has."""
    caps = []
    async with FakeBackend(TITLED, style="llama-server") as backend:
        async with serving(settings(backend.url, engine="llama-server")) as proxy:
            for asked in (50, 4000):
                await proxy.chat(TITLE, max_tokens=asked)
                caps.append(cap_of(backend.requests[-1]))
    assert caps == [2048, 4000]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_side_request_is_no_turn_of_the_chat(stream):
    """Its thought is not kept: the same words in a chat later on have none."""
    async with FakeBackend(TITLED, answer("ok", reasoning="Hm."), style="llama-server") as backend:
        async with serving(settings(backend.url, engine="llama-server")) as proxy:
            await proxy.chat(TITLE, stream=stream)
            said = {"role": "assistant", "content": '{"title": "Greeting"}'}
            later = await proxy.chat(TITLE, said, MORE)
            rows = await proxy.rows(2)
    assert [row["kind"] for row in rows] == ["side", "chat"]
    assert backend.requests[1].body["messages"][1] == said
    assert later.headers["x-proxy-history"] == "present=0; restored=0; missing=1; filled=0; dropped=0"


async def test_a_side_request_leaves_the_chat_its_effort():
    """What it was given is not what the conversation keeps."""
    async with FakeBackend(FOUND, TITLED, FOUND, style="vllm") as backend:
        async with serving(settings(backend.url, engine="vllm", policy={"default_effort": "high"})) as proxy:
            await proxy.chat(USER)
            await proxy.chat(TITLE)
            await proxy.chat(USER, {"role": "assistant", "content": "Here it is."}, MORE)
            rows = await proxy.rows(3)
    assert [(row["kind"], row["effort_sent"], row["effort_reason"]) for row in rows] == [
        ("chat", "high", "default"),
        ("side", "none", "side"),
        ("chat", "high", "conversation"),
    ]
