"""The product in front of a real llama.cpp server, spoken to through the real SDK."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
import real_engine
from running import process, serving, settings

pytestmark = pytest.mark.engine
engine = real_engine.engine

TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "list_dir",
            "description": "List a directory",
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
        },
    }
]

BRIEF = {"thinking_budget_tokens": 24}
"""A client's own budget, where a long thought would prove no more."""


@contextlib.asynccontextmanager
async def proxied(url: str, **tables: Any) -> AsyncIterator[tuple[openai.AsyncOpenAI, Any]]:
    """The SDK with the proxy in front of the engine, small budgets, and the engine found by itself."""
    given = {
        "backends": {"local": {"url": url, "engine": "auto", "family": "auto", "models": [], "slow": True}},
        "policy": {"min_completion_tokens": 256, "answer_reserve_tokens": 160},
    }
    async with serving(settings(url, **(given | tables))) as proxy:
        async with openai.AsyncOpenAI(base_url=proxy.url, api_key="unused", max_retries=0) as sdk:
            yield sdk, proxy


async def say(sdk: openai.AsyncOpenAI, messages: list[Any], **fields: Any) -> Any:
    """One whole answer."""
    return await sdk.chat.completions.create(model="any", messages=messages, **fields)


def dropped(message: Any) -> dict[str, Any]:
    """An assistant message as a front end sends it back: without the thought."""
    kept: dict[str, Any] = {"role": "assistant", "content": message.content}
    if message.tool_calls:
        kept["tool_calls"] = [call.model_dump() for call in message.tool_calls]
    return kept


async def two_turns(sdk: openai.AsyncOpenAI, question: str) -> tuple[Any, Any]:
    """A front end that drops the thought holds a conversation of two turns."""
    said: list[Any] = [{"role": "user", "content": question}]
    first = await say(sdk, said, max_tokens=256, extra_body=BRIEF)
    said += [dropped(first.choices[0].message), {"role": "user", "content": "And why is that?"}]
    return first, await say(sdk, said, max_tokens=256, extra_body=BRIEF)


async def test_the_prompt_cache_holds_though_the_front_end_drops_the_thought(engine):
    """Turn 2 evaluates only what is new through the proxy, and the whole last answer again without it."""
    question = "Why is the sky blue?"
    async with openai.AsyncOpenAI(base_url=engine.url, api_key="unused") as direct:
        _, without = await two_turns(direct, question)
    async with proxied(engine.url) as (sdk, proxy):
        first, restored = await two_turns(sdk, "Why do birds sing?")
        rows = await proxy.rows(2)
    assert first.choices[0].message.reasoning_content
    assert [row["turns_restored"] for row in rows] == [0, 1]
    whole = first.usage.prompt_tokens + first.usage.completion_tokens
    assert restored.usage.prompt_tokens_details.cached_tokens >= whole - 4
    assert without.usage.prompt_tokens_details.cached_tokens < first.usage.prompt_tokens + 4
    assert rows[1]["cached_tokens"] == restored.usage.prompt_tokens_details.cached_tokens


async def test_a_small_cap_still_gets_an_answer(engine):
    """Straight to the engine thinking takes all sixteen tokens; through the proxy the answer comes."""
    said = [{"role": "user", "content": "What is the capital of France?"}]
    async with openai.AsyncOpenAI(base_url=engine.url, api_key="unused") as direct:
        lost = await say(direct, said, max_tokens=16)
    assert (lost.choices[0].message.content, lost.choices[0].finish_reason) == ("", "length")
    async with proxied(engine.url) as (sdk, proxy):
        found = await say(sdk, said, max_tokens=16)
        (row,) = await proxy.rows()
    assert found.choices[0].message.content.strip()
    assert (row["engine"], row["max_tokens_asked"], row["max_tokens_sent"]) == ("llama-server", 16, 256)
    assert (row["thinking_budget_sent"], row["effort_sent"], row["outcome"]) == (128, "low", "ok")
    assert row["reasoning_tokens"] + row["visible_tokens"] == row["completion_tokens"] == found.usage.completion_tokens
    assert row["reasoning_source"] == "tokenized"
    assert row["decode_tokens_per_second"] > 0


async def test_streamed_and_whole_answers_are_the_same_message(engine):
    """The SDK's own accumulator reads the stream to what the whole answer says."""
    said: Any = [{"role": "user", "content": "Name a colour."}]
    async with proxied(engine.url) as (sdk, _):
        whole = (await say(sdk, said, max_tokens=256, extra_body=BRIEF)).choices[0].message
        async with sdk.chat.completions.stream(model="any", messages=said, max_tokens=256, extra_body=BRIEF) as stream:
            thought = [
                getattr(event.chunk.choices[0].delta, "reasoning_content", None) or ""
                async for event in stream
                if event.type == "chunk" and event.chunk.choices
            ]
            streamed = (await stream.get_final_completion()).choices[0].message
    assert streamed.content == whole.content
    assert "".join(thought) == whole.reasoning_content


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_that_the_model_made_keeps_its_thought_over_the_tool_loop(engine, stream):
    """Call, result, answer, further question: every turn gets its thought back, and the cache holds."""
    async with proxied(engine.url, policy={"default_effort": "off", "min_completion_tokens": 256}) as (sdk, proxy):
        said: list[Any] = [{"role": "user", "content": f"List the directory /data{int(stream)}."}]
        if stream:
            async with sdk.chat.completions.stream(model="any", messages=said, tools=TOOLS) as running:
                asked = (await running.get_final_completion()).choices[0]
        else:
            asked = (await say(sdk, said, tools=TOOLS)).choices[0]
        assert asked.finish_reason == "tool_calls"
        call = asked.message.tool_calls[0]
        assert call.function.name == "list_dir"
        said += [dropped(asked.message), {"role": "tool", "tool_call_id": call.id, "content": "a.txt b.txt"}]
        answered = await say(sdk, said, tools=TOOLS, tool_choice="none", max_tokens=256)
        said += [dropped(answered.choices[0].message), {"role": "user", "content": "Thank you."}]
        last = await say(sdk, said, tools=TOOLS, tool_choice="none", max_tokens=256)
        rows = await proxy.rows(3)
    assert [row["turns_restored"] for row in rows] == [0, 1, 2]
    assert [row["turns_missing"] for row in rows] == [0, 0, 0]
    cached = [row["cached_tokens"] for row in rows]
    assert cached[0] < cached[1] < cached[2]
    assert last.usage.prompt_tokens - cached[2] < 40


async def test_turns_outlive_the_proxy(engine, tmp_path: Path):
    """The second turn goes through a new process, and is restored from the file."""
    toml = f"""
[backends.local]
url = "{engine.url}"
[policy]
min_completion_tokens = 256
answer_reserve_tokens = 160
[store]
url = "sqlite:///{tmp_path / "proxy.db"}"
"""
    said: list[Any] = [{"role": "user", "content": "What is water made of?"}]
    with process(tmp_path, toml) as url:
        async with openai.AsyncOpenAI(base_url=url, api_key="unused", max_retries=0) as sdk:
            first = await say(sdk, said, max_tokens=16)
    said += [dropped(first.choices[0].message), {"role": "user", "content": "And ice?"}]
    with process(tmp_path, toml) as url:
        async with openai.AsyncOpenAI(base_url=url, api_key="unused", max_retries=0) as sdk:
            second = await sdk.chat.completions.with_raw_response.create(model="any", messages=said, max_tokens=16)
    assert "restored=1" in second.headers["x-proxy-history"]
    usage = second.parse().usage
    assert usage.prompt_tokens_details.cached_tokens >= first.usage.prompt_tokens + first.usage.completion_tokens - 4


async def test_the_engines_own_errors_come_through_with_their_words(engine):
    """A prompt beyond the window, and a bad tool: the SDK raises what it raises without the proxy.

    The code of the first is OpenAI's, by which agents know what to do. Far beyond the window it is the proxy's answer.
    """
    async with proxied(engine.url) as (sdk, _):
        for words, message in ((4500, "exceeds the available context size"), (6000, "shorten `messages`")):
            with pytest.raises(openai.BadRequestError, match=message) as caught:
                await say(sdk, [{"role": "user", "content": "word " * words}])
            assert caught.value.code == "context_length_exceeded"
        with pytest.raises(openai.APIStatusError):
            await say(sdk, [{"role": "user", "content": "x"}], tools=[{"type": "function"}])


async def test_back_to_back_streams_never_meet_a_closed_connection(engine):
    """llama-server closes connections behind a stream without notice; none is used again."""
    async with proxied(engine.url, policy={"min_completion_tokens": 0, "thinking_budget": "off"}) as (sdk, proxy):
        for number in range(12):
            said: Any = [{"role": "user", "content": f"{number}"}]
            async for _ in await sdk.chat.completions.create(model="any", messages=said, stream=True, max_tokens=2):
                pass
        rows = await proxy.rows(12)
    assert {row["outcome"] for row in rows} <= {"ok", "length", "answer_lost"}
