"""Visible texts that end before the engine ends them: at a stop string, or after as many tokens as a client allows."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pytest
from running import events, serving, settings

from proxy import tokens
from proxy.testing import FakeBackend, ToolCall, answer
from proxy.testing import events as script

USER = {"role": "user", "content": "hi"}
MORE = {"role": "user", "content": "more"}
USAGE = {"include_usage": True}
THOUGHT = "There may be STOP in it. "
LONG = "One two three STOP four five six."
ENGINES = ["llama-server", "vllm", "sglang", "kimi"]


class Said:
    """What a client was told, streamed or whole."""

    def __init__(self, body: str) -> None:
        self.body = body
        self.thought, self.text, self.finishes = "", "", list[str]()
        self.usages = list[dict[str, Any]]()
        self.roles = 0
        if body.startswith("data: "):
            *chunks, done = events(body)
            assert done == "[DONE]"
            found, name = [json.loads(chunk) for chunk in chunks], "delta"
        else:
            found, name = [json.loads(body)], "message"
        for chunk in found:
            if chunk.get("usage"):
                self.usages.append(chunk["usage"])
            for choice in chunk["choices"]:
                self.thought += choice[name].get("reasoning_content") or ""
                self.text += choice[name].get("content") or ""
                self.roles += "role" in choice[name]
                if choice["finish_reason"]:
                    self.finishes.append(choice["finish_reason"])
        if name == "delta" and self.usages:
            assert found[-1]["choices"] == [], "the usage comes last"
        self.ids = {chunk.get("id") for chunk in found}


def chunk(*choices: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A chunk of a scripted stream."""
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": list(choices), **more}


def delta(index: int = 0, finish: str | None = None, **fields: Any) -> dict[str, Any]:
    """What a chunk says of one choice."""
    return {"index": index, "delta": fields, "finish_reason": finish}


# Stop strings -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("engine", ENGINES)
async def test_a_stop_string_ends_the_text_and_not_the_thought(engine, stream):
    """The engine never hears of it, and is left where the text has it: the rest of its answer is not waited for."""
    never = asyncio.Event()
    reply = answer(LONG, reasoning=THOUGHT, split=5).hold(never, after=11)  # 1 or 2 before, 5 of thought, 4 of text
    async with FakeBackend(reply, style=engine) as backend:
        async with serving(settings(backend.url, engine=engine)) as proxy:
            response = await proxy.chat(USER, stream=stream, stop="STOP", stream_options=USAGE if stream else None)
            said = Said(response.text)
            assert await backend.requests[0].hung_up()
            row = (await proxy.rows())[0]
    assert (said.thought, said.text, said.finishes) == (THOUGHT, "One two three ", ["stop"])
    assert said.roles == 1
    assert "stop" in response.headers["x-proxy-decisions"].split(",")
    sent = backend.requests[0].body
    assert "stop" not in sent
    assert (sent["stream"], sent["stream_options"]["include_usage"]) == (True, True)
    assert (row["outcome"], row["finish_reason"], row["stream"], row["status"]) == ("ok", "stop", stream, 200)
    (usage,) = said.usages
    assert min(usage["prompt_tokens"], usage["completion_tokens"], row["prompt_tokens"], row["reasoning_tokens"]) > 0
    assert row["completion_tokens"] == row["reasoning_tokens"] + row["visible_tokens"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("engine", ["llama-server", "vllm", "sglang"])
async def test_where_the_engine_counts_as_it_goes_the_usage_is_its_own(engine, stream):
    """That of the last event that was read: llama-server's timings, and the usage of the two others."""
    never = asyncio.Event()
    reply = answer("one two STOP three", reasoning="a b c").hold(never, after=8 if engine == "vllm" else 7)
    async with FakeBackend(reply, style=engine) as backend:
        async with serving(settings(backend.url, engine=engine)) as proxy:
            response = await proxy.chat(USER, stream=stream, stop=["STOP"], stream_options=USAGE if stream else None)
            row = (await proxy.rows())[0]
    (usage,) = Said(response.text).usages
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (1, 6, 7)
    assert (row["prompt_tokens"], row["completion_tokens"]) == (1, 6)
    assert row["reasoning_tokens"] + row["visible_tokens"] == 6


async def test_a_client_that_asks_for_no_usage_gets_none():
    """Though the engine is asked for it."""
    async with FakeBackend(answer(LONG, reasoning=THOUGHT), style="llama-server") as backend:
        async with serving(settings(backend.url, engine="llama-server")) as proxy:
            said = Said((await proxy.chat(USER, stream=True, stop="STOP")).text)
    assert (said.text, said.finishes, said.usages) == ("One two three ", ["stop"], [])


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 100])
@pytest.mark.parametrize("stream", [True, False])
async def test_where_the_deltas_are_cut_changes_nothing(size, stream):
    """A stop string may lie across deltas, and what only begins like one leaves as it is."""
    async with FakeBackend(answer("STO, STOOP. STOP!", reasoning=THOUGHT, split=size), style="vllm") as backend:
        async with serving(settings(backend.url, engine="vllm")) as proxy:
            said = Said((await proxy.chat(USER, stream=stream, stop=["nothing", "STOP"])).text)
    assert (said.thought, said.text, said.finishes) == (THOUGHT, "STO, STOOP. ", ["stop"])


@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_without_the_string_is_whole(stream):
    """What might have become one leaves with the finish, and the usage is the engine's."""
    async with FakeBackend(answer("All of it. STO", reasoning=THOUGHT), style="vllm") as backend:
        async with serving(settings(backend.url, engine="vllm")) as proxy:
            response = await proxy.chat(USER, stream=stream, stop="STOP", stream_options=USAGE if stream else None)
            row = (await proxy.rows())[0]
    said = Said(response.text)
    assert (said.thought, said.text, said.finishes) == (THOUGHT, "All of it. STO", ["stop"])
    (usage,) = said.usages
    assert usage["completion_tokens"] == row["completion_tokens"] == 10
    assert not backend.requests[0].closed_by_peer


async def test_a_whole_answer_has_a_usage_though_the_stream_behind_it_had_none():
    """Agents read it without asking whether it is there."""
    lines = (chunk(delta(content="One two.")), chunk(delta(finish="stop")), "[DONE]")
    async with FakeBackend(script(*lines)) as backend, serving(settings(backend.url)) as proxy:
        said = Said((await proxy.chat(USER, stop="STOP")).text)
    assert said.usages[0]["completion_tokens"] == tokens.count("One two.")


@pytest.mark.parametrize("stream", [True, False])
async def test_the_engine_may_still_look_for_stop_strings(stream):
    """`policy.stop = "backend"`, and a model that does not think: `stop` goes on as it came."""
    for tables in ({"policy": {"stop": "backend"}}, {"family": "plain"}):
        async with FakeBackend(answer(LONG, reasoning=None), style="vllm") as backend:
            async with serving(settings(backend.url, engine="vllm", **tables)) as proxy:
                response = await proxy.chat(USER, stream=stream, stop=["STOP", "x"])
        assert Said(response.text).text == LONG
        assert backend.requests[0].body["stop"] == ["STOP", "x"]
        assert backend.requests[0].get("stream", False) == stream
        assert "stop" not in response.headers["x-proxy-decisions"].split(",")


@pytest.mark.parametrize("stream", [True, False])
async def test_each_choice_has_its_own_end(stream):
    """The engine is left when the last one has it, not before."""
    never = asyncio.Event()
    steps = [
        chunk(delta(0, role="assistant", content=""), delta(1, role="assistant", content="")),
        chunk(delta(0, reasoning_content="a"), delta(1, reasoning_content="b")),
        chunk(delta(0, content="zero STOP")),
        chunk(delta(0, content="not seen"), delta(1, content="one ")),
        chunk(delta(0, content="not seen")),
        chunk(delta(1, content="goes on STOP")),
        never,
        chunk(delta(0, finish="stop")),
    ]
    async with FakeBackend(script(*steps), style="vllm") as backend:
        async with serving(settings(backend.url, engine="vllm")) as proxy:
            body = (await proxy.chat(USER, stream=stream, n=2, stop="STOP")).text
            assert await backend.requests[0].hung_up()
    found: dict[int, list[str]] = {0: ["", ""], 1: ["", ""]}
    chunks = map(json.loads, events(body)[:-1] if stream else [body])
    for choice in (choice for each in chunks for choice in each["choices"]):
        told = choice["delta" if stream else "message"]
        found[choice["index"]][0] += told.get("content") or ""
        found[choice["index"]][1] += choice["finish_reason"] or ""
    assert found == {0: ["zero ", "stop"], 1: ["one goes on ", "stop"]}


async def test_a_choice_that_the_engine_ends_is_waited_for_like_the_others():
    """One choice is cut, the other comes to its own end: then the stream is over, without the engine's `[DONE]`."""
    never = asyncio.Event()
    steps = [
        chunk(delta(0, role="assistant", content="STOP"), delta(1, role="assistant", content="one")),
        chunk(delta(1, content=" ends", finish="stop")),
        never,
    ]
    async with FakeBackend(script(*steps), style="vllm") as backend:
        async with serving(settings(backend.url, engine="vllm")) as proxy:
            said = Said((await proxy.chat(USER, stream=True, n=2, stop="STOP")).text)
    assert (said.text, said.finishes) == ("one ends", ["stop", "stop"])


@pytest.mark.parametrize("stream", [True, False])
async def test_the_thought_of_a_text_that_was_cut_comes_back(stream):
    """The front end has the cut text, and that is what the turn is known by."""
    async with FakeBackend(answer(LONG, reasoning=THOUGHT), style="llama-server") as backend:
        async with serving(settings(backend.url, engine="llama-server")) as proxy:
            text = Said((await proxy.chat(USER, stream=stream, stop="STOP")).text).text
            second = await proxy.chat(USER, {"role": "assistant", "content": text}, MORE)
    assert second.headers["x-proxy-history"] == "present=0; restored=1; missing=0; filled=0; dropped=0"
    assert backend.requests[1].body["messages"][1]["reasoning_content"] == THOUGHT


@pytest.mark.parametrize("stream", [True, False])
async def test_calls_leave_where_no_text_was_cut(stream):
    """Arguments are no text: a stop string in them ends nothing."""
    call = ToolCall("ls", '{"path": "STOP"}', "functions.ls:0")
    tools = [{"type": "function", "function": {"name": "ls", "parameters": {"type": "object", "properties": {}}}}]
    async with FakeBackend(answer("Look: ", reasoning=THOUGHT, calls=[call]), style="vllm") as backend:
        async with serving(settings(backend.url, engine="vllm")) as proxy:
            async with openai.AsyncOpenAI(base_url=proxy.url, api_key="k", max_retries=0) as sdk:
                messages: Any = [USER]
                asked: Any = {"model": "m", "messages": messages, "extra_body": {"tools": tools}, "stop": "STOP"}
                if stream:
                    async with sdk.chat.completions.stream(**asked) as reading:
                        choice: Any = (await reading.get_final_completion()).choices[0]
                else:
                    choice = (await sdk.chat.completions.create(**asked)).choices[0]
    made = choice.message.tool_calls[0]
    assert (made.id, made.function.name, made.function.arguments) == ("functions.ls:0", "ls", call.arguments)
    assert (choice.message.content, choice.finish_reason) == ("Look: ", "tool_calls")


async def test_a_stop_string_that_the_client_keeps_is_the_last_thing_it_reads():
    """`include_stop_str_in_output`, as vLLM has it."""
    async with FakeBackend(answer(LONG, reasoning=THOUGHT, split=2), style="vllm") as backend:
        async with serving(settings(backend.url, engine="vllm")) as proxy:
            response = await proxy.chat(USER, stream=True, stop="STOP", include_stop_str_in_output=True)
    assert Said(response.text).text == "One two three STOP"


# A cap on the visible text ------------------------------------------------------------------------------------------

VISIBLE = {"completion_tokens_mode": "visible", "min_completion_tokens": 5000}
WORDS = "Several words of an answer that goes on, and on, and on. " * 12


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("engine", ENGINES)
async def test_a_cap_may_count_the_visible_text_alone(engine, stream):
    """The engine gets room for the thought on top; the text ends where the cap is met, and the engine is left."""
    never = asyncio.Event()
    reply = answer(WORDS, reasoning="long thought " * 60).hold(never, after=200)
    async with FakeBackend(reply, style=engine) as backend:
        async with serving(settings(backend.url, engine=engine, policy=VISIBLE)) as proxy:
            fields = {"max_tokens": 20, "stream": stream, "stream_options": USAGE if stream else None}
            response = await proxy.chat(USER, **fields)
            said = Said(response.text)
            assert await backend.requests[0].hung_up()
            row = (await proxy.rows())[0]
    assert tokens.count(said.text) == 20
    assert WORDS.startswith(said.text)
    assert (said.thought, said.finishes, said.roles) == ("long thought " * 60, ["length"], 1)
    sent = backend.requests[0].body
    assert [sent[name] for name in ("max_tokens", "max_completion_tokens") if name in sent] == [5020]
    assert response.headers["x-proxy-max-tokens"] == "5020; asked=20; reason=visible"
    assert (row["max_tokens_asked"], row["max_tokens_sent"]) == (20, 5020)
    assert (row["outcome"], row["finish_reason"]) == ("length", "length")
    (usage,) = said.usages
    assert min(usage["completion_tokens"], row["completion_tokens"]) > 20


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("text", ["Short.", tokens.first(WORDS, 20)], ids=["shorter", "just as long"])
async def test_a_text_that_the_cap_allows_is_not_touched(text, stream):
    """The finish, and the usage, are the engine's; the thought may be longer than the cap."""
    async with FakeBackend(answer(text, reasoning="long thought " * 60), style="vllm") as backend:
        async with serving(settings(backend.url, engine="vllm", policy=VISIBLE)) as proxy:
            fields = {"max_tokens": 20, "stream": stream, "stream_options": USAGE if stream else None}
            said = Said((await proxy.chat(USER, **fields)).text)
            row = (await proxy.rows())[0]
    assert (said.text, said.finishes, row["outcome"]) == (text, ["stop"], "ok")
    assert said.usages[0]["completion_tokens"] == 120 + len(text.split())
    assert not backend.requests[0].closed_by_peer


@pytest.mark.parametrize("stream", [True, False])
async def test_a_stop_string_behind_the_cap_is_none(stream):
    """Whichever comes first ends the text."""
    for text, kept, finish in ((WORDS + "STOP", 20, "length"), ("Four words and STOP" + WORDS, None, "stop")):
        async with FakeBackend(answer(text, reasoning="thought"), style="vllm") as backend:
            async with serving(settings(backend.url, engine="vllm", policy=VISIBLE)) as proxy:
                said = Said((await proxy.chat(USER, max_tokens=20, stream=stream, stop="STOP")).text)
        assert said.finishes == [finish]
        assert said.text == (tokens.first(text, kept) if kept else "Four words and ")


async def test_without_a_cap_nothing_is_capped():
    """The mode is about the client's cap, and there is none."""
    async with FakeBackend(answer(WORDS, reasoning="thought"), style="vllm") as backend:
        async with serving(settings(backend.url, engine="vllm", policy=VISIBLE)) as proxy:
            response = await proxy.chat(USER)
    assert Said(response.text).text == WORDS
    assert response.headers["x-proxy-max-tokens"] == "-"
    assert not backend.requests[0].get("stream")


# The SDK ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("fields", "finish"), [({"stop": "STOP"}, "stop"), ({"max_tokens": 3}, "length")])
async def test_the_sdks_accumulator_reads_a_cut_stream(engine, fields, finish):
    """Role, thought, text, finish and usage, once each."""
    never = asyncio.Event()
    reply = answer(LONG + " more" * 40, reasoning=THOUGHT).hold(never, after=30)
    policy = {**VISIBLE, "probe": {"max_tokens": 0}}
    async with FakeBackend(reply, style=engine) as backend:
        async with serving(settings(backend.url, engine=engine, policy=policy)) as proxy:
            async with openai.AsyncOpenAI(base_url=proxy.url, api_key="k", max_retries=0) as sdk:
                messages: Any = [USER]
                asked: Any = {"model": "m", "messages": messages, **fields, "stream_options": USAGE}
                async with sdk.chat.completions.stream(**asked) as stream:
                    await stream.until_done()
                    heard: Any = stream.current_completion_snapshot
    choice = heard.choices[0]
    assert (choice.message.role, choice.message.reasoning_content) == ("assistant", THOUGHT)
    assert choice.message.content == ("One two three " if finish == "stop" else "One two three")
    assert choice.finish_reason == finish
    assert heard.usage.completion_tokens > 0
    assert heard.usage.total_tokens == heard.usage.prompt_tokens + heard.usage.completion_tokens
