"""Silence, leaving and coming back, and the line, on a real llama.cpp server with one slot."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import httpx
import pytest
from running import Running, events, serving, settings

from proxy.engine import Engine

pytestmark = pytest.mark.engine

QUESTION = {"role": "user", "content": "Name a colour."}
LONG = {"role": "user", "content": "Here are some words to be read before you answer. " * 60}
GRAMMAR = r'root ::= [a-z ]{200,200} "</think>\n\nBlue."'
"""A thought of some length, and one word."""


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """One slot, and small batches, so that it tells often how far it has read a prompt."""
    with Engine(parallel=1, context=4096) as running:
        yield running


@contextlib.asynccontextmanager
async def fronted(engine: Engine, server: dict[str, Any] | None = None, **backend: Any) -> AsyncIterator[Running]:
    """The proxy in front of it."""
    table = {"url": engine.url, "engine": "auto", "family": "generic", "slow": False, **backend}
    policy = {"min_completion_tokens": 0, "default_effort": "off"}
    given = settings(engine.url, backends={"local": table}, policy=policy, server=server or {})
    async with serving(given) as proxy:
        await proxy.http.get(f"{proxy.url}/models")  # the engine is known
        yield proxy


def said(text: str) -> tuple[str, str]:
    """(thought, text) of a stream that came to its end."""
    *chunks, done = events(text)
    assert done == "[DONE]"
    deltas = [choice["delta"] for chunk in map(json.loads, chunks) for choice in chunk["choices"]]
    thought = "".join(delta.get("reasoning_content") or "" for delta in deltas)
    assert [delta["role"] for delta in deltas if "role" in delta] == ["assistant"]
    return thought, "".join(delta.get("content") or "" for delta in deltas)


async def idle(engine: Engine) -> bool:
    """Whether its slot is free, within a second."""
    return await becomes(engine, lambda slot: not slot["is_processing"], tries=20)


async def works(engine: Engine) -> bool:
    """Whether its slot writes, after a while."""
    return await becomes(engine, lambda slot: slot["is_processing"] and slot["next_token"][0]["n_decoded"] > 3)


async def becomes(engine: Engine, wanted: Callable[[Any], bool], tries: int = 400) -> bool:
    """Whether its slot is as wanted, at one of the looks."""
    async with httpx.AsyncClient() as http:
        for _ in range(tries):
            (slot,) = (await http.get(engine.url.removesuffix("/v1") + "/slots")).json()
            if wanted(slot):
                return True
            await asyncio.sleep(0.05)
    return False


async def test_a_client_that_wants_it_sees_how_far_the_prompt_is_read(engine):
    """As comments before the first event, with a percentage that grows; the chunks that tell it are not its affair."""
    async with fronted(engine) as proxy:
        response = await proxy.chat(LONG, stream=True, max_tokens=30, headers={"x-proxy-progress": "1"})
        plain = await proxy.chat(QUESTION, stream=True, max_tokens=30)
    percents = [int(found) for found in re.findall(r"^: prompt read to (\d+) %", response.text, re.MULTILINE)]
    assert percents
    assert percents == sorted(percents)
    assert "prompt_progress" not in response.text
    assert "prompt read" not in plain.text
    said(response.text)


@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_outlives_its_client_and_is_found_again(engine, stream):
    """The engine works on; who asks the same gets all of one answer."""
    async with fronted(engine, detach=True, max_concurrency=1) as proxy:
        body = {"model": "m", "messages": [QUESTION], "stream": True, "grammar": GRAMMAR, "max_tokens": 400}
        got = ""
        async with proxy.http.stream("POST", f"{proxy.url}/chat/completions", json=body) as response:
            async for piece in response.aiter_text():
                got += piece
                if got.count("reasoning_content") > 10:
                    break
        (known,) = (await proxy.http.get(f"{proxy.url}/generations")).json()["data"]
        assert (known["state"], known["request_id"]) == ("detached", response.headers["x-request-id"])
        again = await proxy.http.post(f"{proxy.url}/chat/completions", json={**body, "stream": stream})
        if stream:
            thought, text = said(again.text)
        else:
            message = again.json()["choices"][0]["message"]
            thought, text = message["reasoning_content"], message["content"]
        rows = [row for row in await proxy.rows(4) if row["kind"] == "chat"]
    assert (len(thought), text) == (200, "Blue.")
    begun = "".join(
        choice["delta"].get("reasoning_content") or ""
        for chunk in map(json.loads, events(got.rpartition("\n\n")[0] + "\n\n"))
        for choice in chunk["choices"]
    )
    assert thought.startswith(begun)
    assert begun
    assert [row["flags"] for row in rows] == [["detached"], ["rejoined"]]
    assert [row["completion_tokens"] is None for row in rows] == [False, True]
    assert rows[0]["outcome"] == rows[1]["outcome"] == "ok"


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_frees_the_slot(engine, stream):
    """Within a second, streamed or not, and the row tells what was spent. The engine alone works on at a whole answer
    for up to seven seconds."""
    async with fronted(engine, detach=False) as proxy:
        asking = asyncio.create_task(proxy.chat(QUESTION, stream=stream, ignore_eos=True, max_tokens=3000))
        assert await works(engine)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        assert await idle(engine)
        (row,) = [row for row in await proxy.rows(2) if row["kind"] == "chat"]
    assert (row["outcome"], row["stream"]) == ("client_disconnected", stream)
    assert row["completion_tokens"] > 0


async def test_two_questions_share_the_slot_one_after_the_other(engine):
    """The second is told its place, and is answered all the same."""
    async with fronted(engine, {"keepalive_seconds": 0.1}, max_concurrency=1) as proxy:
        first = asyncio.create_task(proxy.chat(QUESTION, stream=True, grammar=GRAMMAR, max_tokens=400))
        await asyncio.sleep(0.3)
        second = await proxy.chat(QUESTION, stream=True, grammar=GRAMMAR, max_tokens=400)
        said((await first).text)
    assert second.text.startswith(": queued, position 1 of 1\n\n")
    assert second.headers["server-timing"].startswith('queue;desc="position 1"')
    assert said(second.text)[1] == "Blue."
