"""What is decided, on a real llama.cpp server: any cap has an answer, and thoughts and texts end where they shall."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any
from unittest import mock

import httpx
import pytest
from running import Running, events, serving, settings

from proxy import tokens
from proxy.cut import Cut
from proxy.engine import Engine

pytestmark = pytest.mark.engine

QUESTION = {"role": "user", "content": "Name a colour."}
SLOTS = 4
CAPS = [*range(6, 65), *itertools.islice(itertools.cycle(range(6, 17)), 41)]
"""A hundred, each from 6 on, and the smallest ones several times: six tokens hold the marks and the first of a text."""
TERSE = r'root ::= [ -;=-~\n]* "</think>\n\n" [A-Z] [a-z]{1,8} "."'
"""A free thought and one word. No bytes of other characters in it: the engine ends no thought at a token that is a part
of a character, and goes on where such tokens follow one another (llama.cpp, build 11549)."""
LONG = r'root ::= [ -;=-~\n]{80,84} "</think>\n\n" [A-Z] [a-z]{1,8} "."'
"""A thought that takes more tokens than a tiny cap has, and no more than twice as many."""


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """Several slots: they are computed at once, and a hundred answers take half the time."""
    with Engine(parallel=SLOTS, context=1024) as running:
        yield running


@contextlib.asynccontextmanager
async def fronted(engine: Engine, **policy: Any) -> AsyncIterator[tuple[Running, list[bytes]]]:
    """The proxy in front, with the raw bodies that it sends; the policy decides nothing but what is said."""
    table = {"url": engine.url, "engine": "llama-server", "family": "generic", "models": ["m"], "slow": False}
    free = {"min_completion_tokens": 0, "default_effort": "off", "probe": {"max_tokens": 0}}
    async with serving(settings(engine.url, backends={"local": table}, policy={**free, **policy})) as proxy:
        backend, sent = proxy.pipeline.backends.by_name["local"], list[bytes]()
        send = backend.send

        async def noted(method: str, path: str, headers: Any, raw: bytes, **more: Any) -> Any:
            if path == "/chat/completions":
                sent.append(raw)
            return await send(method, path, headers, raw, **more)

        with mock.patch.object(backend, "send", noted):
            yield proxy, sent


def said(response: httpx.Response) -> tuple[str, str, str]:
    """(thought, text, finish) of an answer, streamed or whole."""
    assert response.status_code == 200, response.text
    if response.headers["content-type"] == "application/json":
        choice = response.json()["choices"][0]
        message = choice["message"]
        return message.get("reasoning_content") or "", message["content"] or "", choice["finish_reason"]
    thought, text, finish = "", "", ""
    for choice in (choice for chunk in chunks(response) for choice in chunk["choices"]):
        thought += choice["delta"].get("reasoning_content") or ""
        text += choice["delta"].get("content") or ""
        finish = choice["finish_reason"] or finish
    return thought, text, finish


def chunks(response: httpx.Response) -> list[dict[str, Any]]:
    """The chunks of a complete stream."""
    *found, done = events(response.text)
    assert done == "[DONE]"
    return [json.loads(chunk) for chunk in found]


def usage_of(response: httpx.Response, *, stream: bool) -> dict[str, Any]:
    """What the client was told that it spent."""
    usage: dict[str, Any] = chunks(response)[-1]["usage"] if stream else response.json()["usage"]
    return usage


# An answer under any cap --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
async def test_under_any_cap_there_is_an_answer(engine, stream):
    """The proxy has the engine end the thought early enough: half of a hundred requests each, and all have a text."""
    queue = asyncio.Semaphore(SLOTS)
    async with fronted(engine) as (proxy, _):

        async def ask(seed: int, cap: int):
            async with queue:
                fields = {"max_tokens": cap, "seed": seed, "temperature": 1.0, "grammar": TERSE, "stream": stream}
                return await proxy.chat(QUESTION, **fields)

        mine = list(enumerate(CAPS))[stream::2]
        answers = await asyncio.gather(*itertools.starmap(ask, mine))
        rows = await proxy.rows(len(mine))
    lost = [(cap, said(answer)) for (_, cap), answer in zip(mine, answers, strict=True) if not said(answer)[1].strip()]
    assert lost == []
    assert len(mine) == 50
    assert {row["outcome"] for row in rows} <= {"ok", "length"}
    assert all(row["completion_tokens"] <= row["max_tokens_sent"] for row in rows)


@pytest.mark.parametrize("stream", [True, False])
async def test_without_a_budget_a_tiny_cap_is_lost_to_the_thought_and_that_is_said(engine, stream):
    """Why there is one: each of these has `answer_lost` in the ledger, and in the header where one can tell it."""
    caps = [6, 8, 11, 16]
    async with fronted(engine, thinking_budget="off") as (proxy, sent):
        answers = [
            await proxy.chat(QUESTION, max_tokens=cap, temperature=0, grammar=LONG, stream=stream) for cap in caps
        ]
        rows = await proxy.rows(len(caps))
    assert not any(b"thinking_budget_tokens" in raw for raw in sent)
    for answer in answers:
        thought, text, finish = said(answer)
        assert (bool(thought), text, finish) == (True, "", "length")
        assert answer.headers.get("x-proxy-outcome") == (None if stream else "answer_lost")
    assert [row["outcome"] for row in rows] == ["answer_lost"] * len(caps)


async def test_a_lost_answer_is_rescued(engine):
    """The second try has twice the cap, and with it a text."""
    async with fronted(engine, thinking_budget="off", rescue="retry") as (proxy, sent):
        fields = {"temperature": 0, "grammar": LONG, "stream_options": {"include_usage": True}}
        response = await proxy.chat(QUESTION, max_tokens=16, stream=True, **fields)
        row = (await proxy.rows())[0]
    thought, text, _ = said(response)
    caps = [json.loads(raw)["max_tokens"] for raw in sent]
    assert caps == [16, 32]
    assert (row["attempts"], row["flags"]) == (2, ["rescued"])
    assert usage_of(response, stream=True)["completion_tokens"] == row["completion_tokens"] > 16
    assert len({chunk["id"] for chunk in chunks(response)}) == 1
    assert (bool(thought), bool(text), row["outcome"] == "answer_lost") == (True, True, False)


# Thoughts that are ended --------------------------------------------------------------------------------------------

ENDLESS = {"grammar": TERSE, "thinking_budget_tokens": 600, "max_tokens": 900, "temperature": 0}


async def test_the_answer_comes_when_it_is_asked_for(engine):
    """The engine ends the thought within a few tokens, and the text follows."""
    body = {"model": "m", "messages": [QUESTION], "stream": True, **ENDLESS}
    async with fronted(engine) as (proxy, _):
        async with proxy.http.stream("POST", f"{proxy.url}/chat/completions", json=body) as response:
            text, pieces = "", response.aiter_text()
            while "reasoning_content" not in text:
                text += await anext(pieces)
            asked = await proxy.http.post(f"{proxy.url}/chat/completions/{response.headers['x-request-id']}/answer-now")
            text += "".join([piece async for piece in pieces])
        rows = await proxy.rows(2)
        late = await proxy.http.post(f"{proxy.url}/chat/completions/{response.headers['x-request-id']}/answer-now")
    assert (asked.status_code, asked.json()["status"]) == (200, "answering")
    assert late.status_code == 404
    chat = next(row for row in rows if row["kind"] == "chat")
    assert (chat["flags"], chat["outcome"]) == (["answer_now"], "ok")
    assert chat["completion_tokens"] < 600
    thought, said_text, finish = said(httpx.Response(200, headers={"content-type": "text/event-stream"}, text=text))
    assert (bool(thought), bool(said_text), finish) == (True, True, "stop")


@pytest.mark.parametrize("stream", [True, False])
async def test_a_thought_has_so_many_seconds(engine, stream):
    """After `policy.thinking_seconds` the engine is told to end it, whether the client reads a stream or not."""
    async with fronted(engine, thinking_seconds=0.3) as (proxy, sent):
        response = await proxy.chat(QUESTION, stream=stream, **ENDLESS)
        row = (await proxy.rows())[0]
    thought, text, finish = said(response)
    assert (bool(thought), bool(text), finish) == (True, True, "stop")
    assert (row["flags"], row["outcome"]) == (["answer_now"], "ok")
    assert row["completion_tokens"] < 600
    assert json.loads(sent[0])["reasoning_control"] is True


# Texts that are ended -----------------------------------------------------------------------------------------------


async def own_count(engine: Engine, sent: bytes, cut: Cut) -> tuple[int, int, str]:
    """(prompt, completion, text) by the engine's own count, when the same request has said so much."""
    async with httpx.AsyncClient(timeout=60) as http:
        response = await http.post(f"{engine.url}/chat/completions", content=sent)
    text = ""
    for chunk in chunks(response):
        text += cut.feed((chunk["choices"][0]["delta"].get("content") if chunk["choices"] else "") or "")
        if cut.ended:
            timings = chunk["timings"]
            return timings["cache_n"] + timings["prompt_n"], timings["predicted_n"], text
    raise AssertionError("the engine's own answer has no such place")


@pytest.mark.parametrize("stream", [True, False])
async def test_a_text_ends_at_a_stop_string_and_costs_what_the_engine_counted(engine, stream):
    """A word of the answer; the thought may have it too. The usage is llama-server's own count at that place."""
    fields = {"max_tokens": 200, "temperature": 0, "thinking_budget_tokens": 20}
    options = {"include_usage": True} if stream else None
    async with fronted(engine) as (proxy, sent):
        thought, whole, _ = said(await proxy.chat(QUESTION, **fields))
        word = whole.split()[3]
        response = await proxy.chat(QUESTION, **fields, stop=word, stream=stream, stream_options=options)
        rows = await proxy.rows(2)
        prompt, completion, text = await own_count(engine, sent[1], Cut([word]))
    assert said(response) == (thought, whole[: whole.index(word)], "stop")
    assert said(response)[1] == text
    usage = usage_of(response, stream=stream)
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (prompt, completion)
    assert (rows[1]["prompt_tokens"], rows[1]["completion_tokens"]) == (prompt, completion)
    assert (rows[1]["outcome"], rows[1]["finish_reason"], rows[1]["stream"]) == ("ok", "stop", stream)
    assert rows[1]["completion_tokens"] < rows[0]["completion_tokens"]
    assert b'"stop"' not in sent[1]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_cap_may_count_the_visible_text_alone(engine, stream):
    """Eight tokens of text behind a thought of any length."""
    options = {"include_usage": True} if stream else None
    async with fronted(engine, completion_tokens_mode="visible", min_completion_tokens=300) as (proxy, sent):
        fields = {"max_tokens": 8, "temperature": 0, "thinking_budget_tokens": 20}
        response = await proxy.chat(QUESTION, **fields, stream=stream, stream_options=options)
        row = (await proxy.rows())[0]
        prompt, completion, text = await own_count(engine, sent[0], Cut(most_tokens=8))
    thought, shown, finish = said(response)
    assert (tokens.count(shown), finish, shown) == (8, "length", text)
    assert tokens.count(thought) > 8
    usage = usage_of(response, stream=stream)
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (prompt, completion)
    assert (row["completion_tokens"], row["max_tokens_sent"], row["outcome"]) == (completion, 308, "length")


async def test_an_engine_that_is_left_is_free_at_once(engine):
    """No slot computes on what nobody reads."""
    async with fronted(engine) as (proxy, _):
        fields = {"max_tokens": 200, "temperature": 0, "thinking_budget_tokens": 20}
        whole = said(await proxy.chat(QUESTION, **fields))[1]
        await proxy.chat(QUESTION, **fields, stop=whole.split()[1])
        for _ in range(200):
            slots = (await proxy.http.get(f"{engine.address}/slots")).json()
            if not any(slot["is_processing"] for slot in slots):
                break
            await asyncio.sleep(0.02)
    assert not any(slot["is_processing"] for slot in slots)
