"""What the llama-server dialect says to a real llama.cpp server: that it is taken, and that it does what was meant.

What went upstream is kept in `Front.sent`; the engine's own `/apply-template` tells the prompt that it makes of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import httpx
import openai
import pytest
import real_engine
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletionChunk
from running import Running, events, serving, settings

from proxy.demo.server import free_port
from proxy.engine import end

pytestmark = pytest.mark.engine
engine = real_engine.engine

FREE = {"min_completion_tokens": 0, "thinking_budget": "off", "default_effort": "off", "probe": {"max_tokens": 0}}
"""A policy that decides nothing by itself."""
QUESTION = {"role": "user", "content": "Name a colour."}
SHORT = r'root ::= "a</think>\n\nHi"'
"""A thought and an answer in a handful of tokens."""
ENDLESS = r'root ::= [^<]* "</think>\n\nHi"'
"""A thought that only a budget ends, and an answer."""
SAID = 'root ::= "Hi"'
"""An answer without a thought, where the template has closed it already."""
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

STRICT = r"""{%- set effort = thinking_effort | default('max') %}
{%- if effort not in ['low', 'high', 'max'] %}
    {{- raise_exception('Unsupported thinking_effort=' ~ effort ~ '; supported values are low, high, and max.') }}
{%- endif %}
{{- '<|im_start|>system\neffort ' ~ effort ~ ', note ' ~ (note | default('none')) ~ '<|im_end|>\n' }}
{%- for message in messages %}
    {{- '<|im_start|>' ~ message.role ~ '\n' }}
    {%- if message.role == 'assistant' %}
        {{- '<think>' ~ (message.reasoning_content or '') ~ '</think>\n\n' }}
    {%- endif %}
    {{- message.content ~ '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n<think>' }}
    {%- if thinking is defined and thinking == false %}
        {{- '</think>\n\n' }}
    {%- elif enable_thinking is defined and enable_thinking == false %}
        {{- '\n</think>\n\n' }}
    {%- endif %}
{%- endif %}
"""
"""Like Kimi K3's: three words for the effort, an error for all others, and a switch of each of the two usual names."""
CHILD = "import sys, proxy.engine as engine; engine.__file__ = sys.argv.pop(1); engine.main()"
"""The engine with the template that lies beside the file named."""


@dataclass
class Front:
    """The proxy in front of the engine, and the bodies that it sent there."""

    proxy: Running
    address: str
    sent: list[dict[str, Any]] = field(default_factory=list)

    async def ask(self, **fields: Any) -> httpx.Response:
        """The answer to one question through the proxy, in a few forced tokens unless the fields say otherwise."""
        return await self.proxy.http.post(f"{self.proxy.url}/chat/completions", json=body(**fields))

    async def direct(self, **fields: Any) -> httpx.Response:
        """The engine's own answer to the same request."""
        return await self.proxy.http.post(f"{self.address}/v1/chat/completions", json=body(**fields))

    async def prompt(self) -> str:
        """The text that the model saw of the latest request."""
        answer = await self.proxy.http.post(f"{self.address}/apply-template", json=self.sent[-1])
        return str(answer.raise_for_status().json()["prompt"])

    async def count(self, text: str) -> int:
        """Tokens of a text, by the engine's own vocabulary."""
        asked = {"content": text, "parse_special": True}
        answer = await self.proxy.http.post(f"{self.address}/tokenize", json=asked)
        return len(answer.raise_for_status().json()["tokens"])


def body(**fields: Any) -> dict[str, Any]:
    """A request; a field that is None is left out."""
    base = {"model": "any", "messages": [QUESTION], "temperature": 0, "grammar": SHORT, "cache_prompt": True}
    return {name: value for name, value in {**base, **fields}.items() if value is not None}


def message(response: httpx.Response) -> dict[str, Any]:
    """The assistant's message of a good answer."""
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()["choices"][0]["message"]
    return found


@contextlib.asynccontextmanager
async def fronted(url: str, **tables: Any) -> AsyncIterator[Front]:
    """The proxy with the engine found by itself, and its policy free of decisions unless `tables` say otherwise."""
    table = {"url": url, "engine": "auto", "family": "auto", "models": []}
    given = {"backends": {"local": table}, "policy": FREE, **tables}
    async with serving(settings(url, **given)) as proxy:
        front = Front(proxy, url.removesuffix("/v1"))
        backend = proxy.pipeline.backends.by_name["local"]
        send = backend.send

        async def noted(method: str, path: str, headers: Any, raw: bytes, **more: Any) -> Any:
            if path == "/chat/completions":
                front.sent.append(json.loads(raw))
            return await send(method, path, headers, raw, **more)

        with mock.patch.object(backend, "send", noted):
            yield front


@contextlib.contextmanager
def with_template(folder: Path, template: str, *options: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """The bundled model under another template, while it still loads: its process, and its port."""
    (folder / "chat.jinja").write_text(template)
    port = free_port()
    command = [
        sys.executable,
        "-c",
        CHILD,
        str(folder / "engine.py"),
        "--port",
        str(port),
        "--parent",
        str(os.getpid()),
    ]
    with (folder / "log.txt").open("wb") as log:
        child = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=log, text=True)  # noqa: S603 - ours
    try:
        yield child, port
    finally:
        end(child, seconds=5)
        assert child.stdout
        child.stdout.close()


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of an engine whose template is STRICT, with two slots of 1024 tokens."""
    folder = tmp_path_factory.mktemp("strict")
    with with_template(folder, STRICT, "--context", "1024", "--parallel", "2") as (child, _):
        assert child.stdout
        line = child.stdout.readline()
        assert line, (folder / "log.txt").read_text()
        yield f"{json.loads(line)['address']}/v1"


# Effort -------------------------------------------------------------------------------------------------------------


async def test_an_effort_said_in_any_way_stands_in_the_prompt(engine):
    """The template reads `thinking_effort` alone; whatever a client calls it, that is where it arrives."""
    said: list[dict[str, Any]] = [
        {"reasoning_effort": "low"},
        {"reasoning": {"effort": "low"}},
        {"thinking": {"type": "enabled", "effort": "low"}},
        {"think": "low"},
        {"chat_template_kwargs": {"thinking_effort": "low"}},
        {"chat_template_kwargs": {"reasoning_effort": "low"}},
        {"model": "any-low"},
    ]
    models = {"any-low": {"effort": "low"}}
    async with fronted(engine.url, models=models) as front:
        for fields in said:
            answer = await front.ask(**fields, max_tokens=1)
            assert answer.status_code == 200, answer.text
            prompt = await front.prompt()
            assert "Thinking effort: low.\n" in prompt, fields
            assert answer.json()["usage"]["prompt_tokens"] == await front.count(prompt), fields
        await front.ask(reasoning_effort="high", chat_template_kwargs={"thinking_effort": "low"})
        assert "Thinking effort: low.\n" in await front.prompt(), "the template's own option wins, as in the engine"
        await front.ask(model="any-low", reasoning_effort="high")
        assert "Thinking effort: high.\n" in await front.prompt(), "the client's word wins over the name's"
        await front.ask()
        assert "Thinking effort: max.\n" in await front.prompt(), "none is sent where none is said"
        rows = await front.proxy.rows(len(said) + 3)
    assert [row["effort_sent"] for row in rows] == ["low"] * len(said) + ["low", "high", None]


async def test_straight_to_the_engine_the_usual_field_has_no_effect(engine):
    """Why the proxy says it in another place: the prompt of `reasoning_effort` alone is that of the highest effort."""
    async with httpx.AsyncClient() as http:
        asked = body(reasoning_effort="low")
        prompt = (await http.post(f"{engine.address}/apply-template", json=asked)).json()["prompt"]
    assert "Thinking effort: max.\n" in prompt


async def test_words_that_the_template_refuses_are_fitted(strict):
    """Such a template knows three words; the engine refuses all others, and takes each of them through the proxy."""
    words = {"minimal": "low", "low": "low", "medium": "high", "high": "high", "xhigh": "max", "max": "max"}
    async with fronted(strict, models={"k3": {"family": "kimi-k3"}}) as front:
        for word, fitted in words.items():
            direct = await front.direct(chat_template_kwargs={"thinking_effort": word}, max_tokens=1)
            assert (direct.status_code == 200) == (word == fitted), direct.text
            answer = await front.ask(model="k3", reasoning_effort=word, max_tokens=1)
            assert answer.status_code == 200, answer.text
            assert f"effort {fitted}, note" in await front.prompt()


async def test_a_template_option_that_the_client_names_itself_stays_and_so_does_the_templates_refusal(strict):
    """Whoever names an option knows its words: what the template says to a wrong one comes through.

    The status is 500 where the model has a parser of its own, as Kimi K3, and 400 where llama.cpp makes one (b11549).
    """
    wrong = {"chat_template_kwargs": {"thinking_effort": "medium"}}
    async with fronted(strict, models={"k3": {"family": "kimi-k3"}}) as front:
        direct, answer = await front.direct(**wrong), await front.ask(model="k3", **wrong)
    assert answer.status_code == direct.status_code >= 400
    assert answer.json()["error"]["message"] == direct.json()["error"]["message"]
    assert "Unsupported thinking_effort=medium; supported values are low, high, and max." in answer.text


async def test_a_slow_backends_low_effort_is_said_as_the_template_reads_it(strict):
    """The default of a slow box reaches the prompt, for a family with words of its own and for one without."""
    backends = {"local": {"url": strict, "engine": "auto", "family": "auto", "models": [], "slow": True}}
    policy = {**FREE, "default_effort": "auto"}
    async with fronted(strict, models={"k3": {"family": "kimi-k3"}}, policy=policy, backends=backends) as front:
        for model in ("k3", "any"):
            assert message(await front.ask(model=model))["content"] == "Hi"
            assert "effort low, note none" in await front.prompt(), model


async def test_template_options_are_merged_key_by_key_with_the_clients_own(strict):
    """An option that nobody here knows stands beside the effort and the switch, in the request and in the prompt."""
    async with fronted(strict, models={"k3": {"family": "kimi-k3"}}) as front:
        own = {"note": "mine"}
        await front.ask(model="k3", reasoning_effort="low", chat_template_kwargs=own)
        assert front.sent[-1]["chat_template_kwargs"] == {"note": "mine", "thinking_effort": "low"}
        assert "effort low, note mine" in await front.prompt()
        answer = await front.ask(model="k3", reasoning_effort="none", chat_template_kwargs=own, grammar=SAID)
        assert front.sent[-1]["chat_template_kwargs"] == {"note": "mine", "thinking": False}
        assert message(answer)["content"] == "Hi"


# No thinking --------------------------------------------------------------------------------------------------------

OFF: list[dict[str, Any]] = [
    {"reasoning_effort": "none"},
    {"reasoning": {"effort": "none"}},
    {"reasoning": {"enabled": False}},
    {"thinking": {"type": "disabled"}},
    {"enable_thinking": False},
    {"think": False},
    {"chat_template_kwargs": {"enable_thinking": False}},
    {"chat_template_kwargs": {"thinking": False}},
]


async def test_thinking_is_switched_off_in_any_spelling(strict):
    """The template's own switch is set, whichever of its names the family uses, and there is no thought."""
    closed, by_other_name = "<think></think>\n\n", "<think>\n</think>\n\n"
    families = {"kimi-k3": (closed,), "deepseek-v4": (closed,), "qwen3": (by_other_name, closed)}
    async with fronted(strict, models={name: {"family": name} for name in families}) as front:
        for family, ends in families.items():
            for fields in OFF:
                said = message(await front.ask(model=family, grammar=SAID, **fields))
                assert (await front.prompt()).endswith(ends), (family, fields)
                assert said["content"] == "Hi", (family, fields)
                assert not said.get("reasoning_content"), (family, fields)


async def test_where_the_template_has_no_switch_the_request_is_still_taken(engine):
    """The embedded model always thinks; each spelling leaves as something that the server accepts."""
    families = ("generic", "hunyuan", "gpt-oss", "plain")
    async with fronted(engine.url, models={name: {"family": name} for name in families}) as front:
        for family in families:
            for fields in OFF:
                answer = await front.ask(model=family, max_tokens=1, **fields)
                assert answer.status_code == 200, (family, fields, answer.text)


# Budgets and caps ---------------------------------------------------------------------------------------------------


async def test_a_thinking_budget_under_any_name_is_obeyed(engine):
    """A short thought and a whole answer, where without a budget the thought takes all of the cap."""
    said: list[dict[str, Any]] = [
        {"thinking_budget_tokens": 6},
        {"reasoning_budget_tokens": 6},
        {"thinking_token_budget": 6},
        {"thinking_budget": 6},
        {"reasoning": {"max_tokens": 6}},
        {"thinking": {"type": "enabled", "budget_tokens": 6}},
    ]
    async with fronted(engine.url) as front:
        for fields in said:
            answer = await front.ask(grammar=ENDLESS, max_tokens=24, **fields)
            found = message(answer)
            assert found["content"] == "Hi", fields
            assert 0 < await front.count(found["reasoning_content"]) <= 7, fields
            assert answer.json()["choices"][0]["finish_reason"] == "stop", fields


async def test_the_proxys_own_budget_makes_room_for_an_answer(engine):
    """Half of a small cap is thought and half is kept; switched off, the thought takes all of it."""
    async with fronted(engine.url) as front:
        lost = message(await front.ask(grammar=ENDLESS, max_tokens=24))
        assert "thinking_budget_tokens" not in front.sent[-1]
    async with fronted(engine.url, policy={**FREE, "thinking_budget": "auto"}) as front:
        answer = await front.ask(grammar=ENDLESS, max_tokens=24)
        assert front.sent[-1]["thinking_budget_tokens"] == 12
        (row,) = await front.proxy.rows()
    assert (lost["content"], message(answer)["content"]) == ("", "Hi")
    assert answer.headers["x-proxy-thinking-budget"] == "12; reason=reserve"
    assert (row["thinking_budget_sent"], row["outcome"]) == (12, "ok")


async def test_a_cap_reaches_the_engine_once_and_is_the_one_it_would_have_obeyed(engine):
    """The engine knows three names; of two values it takes one, and that one is sent alone."""
    names = {"max_tokens", "max_completion_tokens", "n_predict"}
    cases: list[tuple[dict[str, int], dict[str, int]]] = [
        ({"max_tokens": 6}, {"max_tokens": 6}),
        ({"max_completion_tokens": 6}, {"max_completion_tokens": 6}),
        ({"n_predict": 6}, {"n_predict": 6}),
        ({"max_tokens": 9, "max_completion_tokens": 6}, {"max_completion_tokens": 6}),
        ({"max_completion_tokens": 6, "max_tokens": 9}, {"max_completion_tokens": 6}),
    ]
    async with fronted(engine.url) as front:
        for caps, sent in cases:
            answers = [await front.direct(grammar=ENDLESS, **caps), await front.ask(grammar=ENDLESS, **caps)]
            assert {name: value for name, value in front.sent[-1].items() if name in names} == sent
            assert [answer.json()["usage"]["completion_tokens"] for answer in answers] == [6, 6], caps


async def test_no_limit_is_neither_a_cap_nor_raised(engine):
    """-1 is the engine's word for it; the floor of other caps does not touch it, and the engine takes it."""
    async with fronted(engine.url, policy={**FREE, "min_completion_tokens": 64}) as front:
        answer = await front.ask(max_tokens=-1)
        assert front.sent[-1]["max_tokens"] == -1
        assert message(answer)["content"] == "Hi"
        assert answer.headers["x-proxy-max-tokens"] == "-"
        assert message(await front.ask(max_tokens=8))["content"] == "Hi"
        assert front.sent[-1]["max_tokens"] == 64


# Tools and roles ----------------------------------------------------------------------------------------------------


async def test_a_streamed_call_is_strict_and_the_same_as_the_whole_one(engine):
    """A call begins with id, type and name and goes on by index, and the SDK makes the whole answer's calls of it."""
    asked: dict[str, Any] = {"messages": [{"role": "user", "content": "Show me a call."}], "tools": TOOLS}
    asked |= {"grammar": None, "tool_choice": "required", "max_tokens": 60, "thinking_budget_tokens": 8}
    asked |= {"logit_bias": [["response", -100]]}  # the model may not play the tool itself
    async with fronted(engine.url) as front:
        whole = message(await front.ask(**asked))
        streamed = await front.ask(**asked, stream=True)
    assert streamed.status_code == 200, streamed.text
    payloads = events(streamed.text)
    assert payloads.pop() == "[DONE]"
    chunks = [json.loads(payload) for payload in payloads]
    assert not any(chunk.get("usage") for chunk in chunks), "not asked for"
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    calls: dict[int, dict[str, str]] = {}
    for piece in [piece for delta in deltas for piece in delta.get("tool_calls", ())]:
        if piece["index"] not in calls:
            assert piece["type"] == "function"
            assert piece["id"]
            calls[piece["index"]] = {"name": piece["function"]["name"], "arguments": ""}
        else:
            assert piece.get("id") is None
        calls[piece["index"]]["arguments"] += piece["function"].get("arguments", "")
    assert [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]][-1] == "tool_calls"
    assert list(calls.values()) == [
        {"name": call["function"]["name"], "arguments": call["function"]["arguments"]} for call in whole["tool_calls"]
    ]
    assert all(json.loads(call["arguments"]).keys() == {"path"} for call in calls.values())
    state: ChatCompletionStreamState[None] = ChatCompletionStreamState()
    for chunk in chunks:
        state.handle_chunk(ChatCompletionChunk.model_validate(chunk))
    read: Any = state.get_final_completion().choices[0].message
    assert read.reasoning_content == whole["reasoning_content"]
    assert [call.function.model_dump(include={"name", "arguments"}) for call in read.tool_calls] == [*calls.values()]


async def test_a_history_with_calls_results_and_thoughts_is_accepted_under_every_name(engine):
    """`reasoning`, which the engine drops without a word, arrives as `reasoning_content`; results stay behind calls."""
    call = {"id": "a", "type": "function", "function": {"name": "list_dir", "arguments": '{"path": "/data"}'}}
    result = {"role": "tool", "tool_call_id": "a", "content": "a.txt"}
    prompts = []
    async with fronted(engine.url) as front:
        for name in ("reasoning_content", "reasoning"):
            turn = {"role": "assistant", "content": None, name: "\nI look.\n", "tool_calls": [call]}
            messages = [QUESTION, turn, result]
            answer = await front.ask(messages=messages, tools=TOOLS, grammar=None, tool_choice="none", max_tokens=2)
            assert answer.status_code == 200, answer.text
            prompts.append(await front.prompt())
            assert answer.json()["usage"]["prompt_tokens"] == await front.count(prompts[-1])
    assert prompts[0] == prompts[1]
    assert '<think>\nI look.\n</think>\n\n<tool_call>\n{"name": "list_dir"' in prompts[0]
    assert "<tool_response>\na.txt\n</tool_response>" in prompts[0]


async def test_the_developer_role_is_accepted_and_is_the_system_prompt(engine):
    """Its text stands in the first line of the prompt, where the model's template has it for `system` alone."""
    messages = [{"role": "developer", "content": "You are a pirate."}, QUESTION]
    async with fronted(engine.url) as front:
        assert message(await front.ask(messages=messages))["content"] == "Hi"
        assert front.sent[-1]["messages"][0]["role"] == "system"
        assert "Thinking effort: max.\nYou are a pirate.<|im_end|>" in await front.prompt()


# Probing ------------------------------------------------------------------------------------------------------------


async def test_the_engine_is_found_with_version_window_and_template_and_nothing_is_generated(strict):
    """Two slots of 1024 tokens are a window of 1024; the server's counters stand where they stood."""
    address = strict.removesuffix("/v1")
    async with httpx.AsyncClient() as http:
        await http.post(f"{strict}/chat/completions", json=body(max_tokens=2))
        before = await counters(http, address)
        async with fronted(strict) as front:
            backend = front.proxy.pipeline.backends.by_name["local"]
            await backend.known()
            found = backend.found
        assert await counters(http, address) == before
        build = (await http.get(f"{address}/props")).json()["build_info"]
    assert found is not None
    told = found.of("any")
    assert (found.engine, found.version, told.context_limit) == ("llama-server", build, 1024)
    assert told.template == STRICT.strip()
    assert [row["id"] for row in found.models] == ["smollm2-135m"]


async def counters(http: httpx.AsyncClient, address: str) -> dict[str, str]:
    """What the server has read, generated and run so far."""
    lines = (await http.get(f"{address}/metrics")).raise_for_status().text.splitlines()
    found = dict(line.split(" ") for line in lines if line.startswith("llamacpp:"))
    kept = ("prompt_tokens_total", "prompt_tokens_cached_total", "tokens_predicted_total", "n_decode_total")
    return {name: found[f"llamacpp:{name}"] for name in kept}


# Errors -------------------------------------------------------------------------------------------------------------

TURN = {"role": "assistant", "content": "b"}
BAD_CALL = {"id": "x", "type": "function", "function": {"name": "list_dir", "arguments": "{no json"}}
UNTYPED = {"id": "x", "function": {"name": "list_dir", "arguments": "{}"}}
WRONG: list[tuple[str, dict[str, Any], int]] = [
    ("grammar", {"grammar": "root ::= ("}, 400),
    ("grammar and tools", {"tools": TOOLS}, 400),
    ("reasoning_format", {"reasoning_format": "zzz"}, 500),
    ("enable_thinking", {"chat_template_kwargs": {"enable_thinking": "no"}}, 400),
    ("temperature", {"temperature": "hot"}, 400),
    ("tool_choice", {"tool_choice": "zzz"}, 400),
    ("response_format", {"response_format": {"type": "zzz"}, "grammar": None}, 400),
    ("choices", {"n": 2}, 400),
    ("tools", {"tools": "x", "grammar": None}, 500),
    ("untyped tools", {"tools": [{"type": "function"}], "grammar": None}, 500),
    (
        "picture",
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]},
        500,
    ),
    ("untyped call", {"messages": [QUESTION, {**TURN, "tool_calls": [UNTYPED]}, QUESTION]}, 500),
    ("bad arguments", {"messages": [QUESTION, {**TURN, "tool_calls": [BAD_CALL]}, QUESTION]}, 500),
]


@pytest.mark.parametrize("stream", [False, True])
async def test_every_refusal_of_the_engine_keeps_its_status_and_words(engine, stream):
    """Streamed or not: the engine's words in the body that OpenAI's SDKs read, and no retry of what it calls a 500."""
    async with fronted(engine.url) as front:
        for name, fields, status in WRONG:
            direct, answer = await front.direct(stream=stream, **fields), await front.ask(stream=stream, **fields)
            assert (direct.status_code, answer.status_code) == (status, status), (name, direct.text, answer.text)
            words, told = direct.json()["error"], answer.json()["error"]
            assert told.keys() == {"message", "type", "param", "code"}, name
            assert (told["message"], told["type"]) == (words["message"], words["type"]), name
            assert answer.headers.get("x-should-retry") == ("false" if status == 500 else None), name
            assert answer.headers["content-type"] == "application/json", name
            assert "x-proxy-error" not in answer.headers, name
        rows = await front.proxy.rows(len(WRONG))
    assert {row["outcome"] for row in rows} == {"upstream_error"}
    assert [row["status"] for row in rows] == [status for _, _, status in WRONG]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_beyond_the_window_has_the_code_that_agents_know(strict, stream):
    """The engine's words where it says so, ours where it is sure beforehand; `context_length_exceeded` both times."""
    async with fronted(strict) as front:
        words = [
            await front.ask(messages=[{"role": "user", "content": "word " * count}], stream=stream)
            for count in (1100, 2000)
        ]
        asked = len(front.sent)
    assert [answer.status_code for answer in words] == [400, 400]
    told = [answer.json()["error"] for answer in words]
    assert [error["code"] for error in told] == ["context_length_exceeded"] * 2
    assert "exceeds the available context size (1024 tokens)" in told[0]["message"]
    assert (told[0]["type"], told[1]["type"]) == ("exceed_context_size_error", "invalid_request_error")
    assert asked == 1, "the second one was not sent"


async def test_a_negative_cap_is_refused_with_its_name(engine):
    """As the engine does it; the proxy needs no request for that."""
    async with fronted(engine.url) as front:
        for name in ("max_tokens", "max_completion_tokens", "n_predict"):
            direct, answer = await front.direct(**{name: -5}), await front.ask(**{name: -5})
            assert (direct.status_code, answer.status_code) == (400, 400)
            told = answer.json()["error"]
            assert told["param"] == name
            assert "-5" in told["message"]
        assert not front.sent


async def test_what_the_engine_refuses_in_a_history_that_front_ends_make_is_put_right(engine):
    """A thought that is null is a 500, a message that says nothing a 400: neither reaches the engine like that."""
    nothing: list[tuple[dict[str, Any], int]] = [
        ({**TURN, "reasoning_content": None}, 500),
        ({"role": "assistant"}, 400),
        ({"role": "assistant", "reasoning_content": "I think."}, 400),
        ({"role": "assistant", "content": None, "reasoning_content": None}, 500),
    ]
    async with fronted(engine.url) as front:
        for turn, status in nothing:
            messages = [QUESTION, turn, QUESTION]
            direct = await front.direct(messages=messages, max_tokens=1)
            answer = await front.ask(messages=messages, max_tokens=1)
            assert (direct.status_code, answer.status_code) == (status, 200), (turn, answer.text)


async def test_other_paths_answer_as_the_engine_does(engine):
    """An unknown path is the engine's own 404, and an endpoint that it has not started with its own 501."""
    async with fronted(engine.url) as front:
        http = front.proxy.http
        for path in ("/nothing", "/embeddings"):
            asked = {"model": "any", "input": "x"}
            direct = await http.post(f"{engine.url}{path}", json=asked)
            answer = await http.post(f"{front.proxy.url}{path}", json=asked)
            assert (answer.status_code, answer.json()) == (direct.status_code, direct.json())
        async with openai.AsyncOpenAI(base_url=front.proxy.url, api_key="unused", max_retries=0) as sdk:
            with pytest.raises(openai.APIStatusError, match="does not support embeddings"):
                await sdk.embeddings.create(model="any", input="x")


async def test_a_model_that_still_loads_is_a_503_that_may_be_tried_again(tmp_path: Path):
    """Nobody listens, then the model loads, then it answers: in the engine's words, and nothing speaks against a retry.

    Where the model was there at once, only that it answers is proved.
    """
    backends = {"local": {"url": "", "engine": "llama-server", "family": "generic", "models": ["any"]}}
    with with_template(tmp_path, STRICT, "--context", "512") as (_, port):
        backends["local"]["url"] = f"http://127.0.0.1:{port}/v1"
        loading: list[httpx.Response] = []
        async with fronted(f"http://127.0.0.1:{port}/v1", backends=backends) as front:
            while (answer := await front.ask(max_tokens=1)).status_code != 200:
                await asyncio.sleep(0.02)  # the model needs the processor
                assert answer.status_code in (502, 503), answer.text
                if answer.status_code == 502:
                    assert answer.headers["x-proxy-error"] == "upstream_unreachable"
                else:
                    loading.append(answer)
    for answer in loading:
        told = answer.json()["error"]
        assert (told["message"], told["type"], told["param"]) == ("Loading model", "unavailable_error", None)
        assert "x-should-retry" not in answer.headers


# The SDK ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shown", ["reasoning_content", "reasoning"])
async def test_the_sdks_accumulator_reads_the_whole_answers_message(engine, shown):
    """Text, thought, finish and usage of a stream are those of the answer in one piece, under the client's name."""
    said: Any = [QUESTION]
    grammar = {"grammar": ENDLESS, "thinking_budget_tokens": 6}
    fields: Any = {"model": "any", "messages": said, "temperature": 0, "seed": 1, "extra_body": grammar}
    async with fronted(engine.url, defaults={"client_reasoning": shown}) as front:
        async with openai.AsyncOpenAI(base_url=front.proxy.url, api_key="unused", max_retries=0) as sdk:
            whole: Any = await sdk.chat.completions.create(**fields)
            async with sdk.chat.completions.stream(**fields, stream_options={"include_usage": True}) as stream:
                streamed: Any = await stream.get_final_completion()
    one, other = whole.choices[0], streamed.choices[0]
    assert one.message.content == other.message.content == "Hi"
    assert getattr(one.message, shown) == getattr(other.message, shown)
    assert getattr(one.message, shown).strip()
    assert one.finish_reason == other.finish_reason == "stop"
    counted = [(usage.prompt_tokens, usage.completion_tokens) for usage in (whole.usage, streamed.usage)]
    assert counted[0] == counted[1]
