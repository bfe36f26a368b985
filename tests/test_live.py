"""Thoughts that are ended before their time: because a client wants the answer now, or because they took too long."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from running import Running, events, serving, settings

from proxy.testing import FakeBackend, answer, error
from proxy.testing import events as script

USER = {"role": "user", "content": "hi"}
TEXT, THOUGHT = "So it is.", "one two three four five six"
CONTROL = "/v1/chat/completions/control"


class Reading:
    """A streamed answer of the proxy that is being read."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self.id = response.headers["x-request-id"]
        self.text = ""
        self._pieces = response.aiter_text()

    async def until(self, words: str) -> None:
        """Read on until these words have come."""
        while words not in self.text:
            self.text += await anext(self._pieces)

    async def rest(self) -> tuple[str, str, str | None]:
        """Read all: (thought, text, finish)."""
        async for piece in self._pieces:
            self.text += piece
        return said(self.text)


def said(body: str) -> tuple[str, str, str | None]:
    """The thought, the text and the finish of a complete stream."""
    *chunks, done = events(body)
    assert done == "[DONE]"
    thought, text, finish = "", "", None
    for choice in (choice for chunk in map(json.loads, chunks) for choice in chunk["choices"]):
        thought += choice["delta"].get("reasoning_content") or ""
        text += choice["delta"].get("content") or ""
        finish = finish or choice["finish_reason"]
    return thought, text, finish


@contextlib.asynccontextmanager
async def asking(proxy: Running, headers: dict[str, str] | None = None, **fields: Any) -> AsyncIterator[Reading]:
    """A streamed request, as soon as its answer has begun."""
    body = {"model": "m", "messages": [USER], "stream": True, **fields}
    async with proxy.http.stream("POST", f"{proxy.url}/chat/completions", json=body, headers=headers) as response:
        assert response.status_code == 200
        yield Reading(response)


async def answer_now(proxy: Running, request_id: str, *, root: str = "", **headers: str) -> httpx.Response:
    """Ask for the answer of a running request."""
    return await proxy.http.post(f"{root or proxy.url}/chat/completions/{request_id}/answer-now", headers=headers)


def refusal(response: httpx.Response, status: int, code: str) -> str:
    """The message of a refusal, which has OpenAI's shape and says that the proxy is its origin."""
    told = response.json()["error"]
    assert (response.status_code, told["code"]) == (status, code), response.text
    assert told.keys() == {"message", "type", "param", "code"}
    assert response.headers["x-proxy-error"] == code
    assert response.headers["content-type"] == "application/json"
    return str(told["message"])


def controls(backend: FakeBackend) -> list[Any]:
    """What was sent to the engine's control."""
    return [request.body for request in backend.others if request.path == CONTROL]


# Answer now ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["/v1", ""])
async def test_the_answer_comes_when_it_is_asked_for(prefix):
    """200 while the model thinks, then its text; the ledger says so. The path is there with and without `/v1`."""
    go = asyncio.Event()
    reply = answer(TEXT, reasoning=THOUGHT).hold(go, after=3)
    async with FakeBackend(reply, style="llama-server") as backend:
        async with serving(settings(backend.url, engine="llama-server")) as proxy, asking(proxy) as reading:
            await reading.until("two")
            told = await answer_now(proxy, reading.id, root=proxy.url.removesuffix("/v1") + prefix)
            go.set()
            assert (told.status_code, told.json()) == (200, {"request_id": reading.id, "status": "answering"})
            assert "x-proxy-error" not in told.headers
            assert await reading.rest() == ("one two three ", TEXT, "stop")
            rows = await proxy.rows(2)
    assert controls(backend) == [{"id": "chatcmpl-0", "action": "reasoning_end"}]
    assert backend.requests[0].body["reasoning_control"] is True
    by_kind = {row["kind"]: row for row in rows}
    assert (by_kind["chat"]["flags"], by_kind["chat"]["outcome"]) == (["answer_now"], "ok")
    asked = by_kind["passthrough"]
    assert (asked["endpoint"].endswith("/answer-now"), asked["status"], asked["outcome"]) == (True, 200, "ok")


async def test_asked_before_the_engine_has_begun_it_is_done_as_soon_as_it_has():
    """Its id is not known before the first event: the caller is told `pending`, and need not ask again."""
    go = asyncio.Event()
    reply = answer(TEXT, reasoning=THOUGHT, gap=0.02).hold(go)
    async with FakeBackend(reply, style="llama-server") as backend:
        async with serving(settings(backend.url, engine="llama-server")) as proxy, asking(proxy) as reading:
            told = [await answer_now(proxy, reading.id) for _ in range(2)]
            go.set()
            assert [each.json()["status"] for each in told] == ["pending"] * 2
            thought, text, _ = await reading.rest()
            rows = await proxy.rows(3)
    assert len(thought) < len(THOUGHT)
    assert text == TEXT
    assert len(controls(backend)) == 1
    assert [row["flags"] for row in rows if row["kind"] == "chat"] == [["answer_now"]]


async def test_nobody_ends_the_thought_of_a_request_that_is_not_theirs():
    """404 for an id that nobody has, for another client's, for another end user's, and after the end."""
    go = asyncio.Event()
    reply = answer(TEXT, reasoning=THOUGHT).hold(go, after=3)
    clients = {name: {"api_key": f"key-of-{name}"} for name in ("anna", "ben")}
    anna, ben = ({"authorization": f"Bearer key-of-{name}"} for name in clients)
    async with FakeBackend(reply, style="llama-server") as backend:
        async with serving(settings(backend.url, engine="llama-server", clients=clients)) as proxy:
            async with asking(proxy, anna) as reading:
                await reading.until("two")
                refused = [
                    await answer_now(proxy, "req_0123456789abcdef01234567", **anna),
                    await answer_now(proxy, reading.id, **ben),
                    await answer_now(proxy, reading.id, **anna, **{"x-openwebui-user-id": "7"}),
                ]
                keyless = await answer_now(proxy, reading.id)
                go.set()
                assert await reading.rest() == (THOUGHT, TEXT, "stop")
                refused.append(await answer_now(proxy, reading.id, **anna))
    for response in refused:
        assert "no generation" in refusal(response, 404, "not_found")
    refusal(keyless, 401, "invalid_api_key")
    assert not controls(backend)


async def test_a_text_that_has_begun_cannot_be_asked_for():
    """409, and the engine hears nothing of it."""
    go = asyncio.Event()
    reply = answer(TEXT, reasoning="one").hold(go, after=3)
    async with FakeBackend(reply, style="llama-server") as backend:
        async with serving(settings(backend.url, engine="llama-server")) as proxy, asking(proxy) as reading:
            await reading.until("So")
            told = await answer_now(proxy, reading.id)
            go.set()
            assert await reading.rest() == ("one", TEXT, "stop")
    assert "has begun" in refusal(told, 409, "already_answering")
    assert not controls(backend)


async def test_where_nothing_is_thought_there_is_nothing_to_end():
    """409 for a model that does not think, and for a request that asked it not to, before any text is there."""
    asked: list[tuple[str, dict[str, Any]]] = [("plain", {}), ("generic", {"reasoning_effort": "none"})]
    paths = {"/props": error(404, "not here")}  # a template that reads nothing would say that it always thinks
    for family, fields in asked:
        go = asyncio.Event()
        async with FakeBackend(answer(TEXT).hold(go), style="llama-server", paths=paths) as backend:
            given = settings(backend.url, engine="llama-server", family=family)
            async with serving(given) as proxy, asking(proxy, **fields) as reading:
                told = await answer_now(proxy, reading.id)
                go.set()
                await reading.rest()
        refusal(told, 409, "already_answering")
        assert "reasoning_control" not in backend.requests[0].body


@pytest.mark.parametrize("engine", ["kimi", "vllm"])
async def test_an_engine_that_cannot_end_a_thought_is_named(engine):
    """501, and nothing is sent to it that it does not know."""
    go = asyncio.Event()
    reply = answer(TEXT, reasoning=THOUGHT).hold(go, after=3)
    async with FakeBackend(reply, style=engine) as backend:
        async with serving(settings(backend.url, engine=engine)) as proxy, asking(proxy) as reading:
            told = await answer_now(proxy, reading.id)
            go.set()
            assert await reading.rest() == (THOUGHT, TEXT, "stop")
    assert f"{engine} on backend local cannot end a thought" in refusal(told, 501, "not_supported")
    assert "reasoning_control" not in backend.requests[0].body
    assert not controls(backend)


async def test_what_an_engine_says_against_it_is_told():
    """409 in its own words where it ends none, 501 where it is too old to know the path, 502 where it breaks."""
    answers = [
        ({"success": False, "message": "no active completion for this id"}, 200, 409, "no active completion"),
        ({"success": False}, 200, 409, "does not say why"),
        ({"error": {"message": "File Not Found"}}, 404, 501, "answers 404"),
        (["odd"], 200, 409, "ends no thought"),
    ]
    for body, status, ours, words in answers:
        go = asyncio.Event()
        reply, paths = (
            answer(TEXT, reasoning=THOUGHT).hold(go, after=3),
            {CONTROL: error(status, json.dumps(body).encode())},
        )
        async with FakeBackend(reply, style="llama-server", paths=paths) as backend:
            async with serving(settings(backend.url, engine="llama-server")) as proxy, asking(proxy) as reading:
                await reading.until("two")
                told = await answer_now(proxy, reading.id)
                go.set()
                assert await reading.rest() == (THOUGHT, TEXT, "stop")
                chat = next(row for row in await proxy.rows(2) if row["kind"] == "chat")
        assert told.status_code == ours
        assert words in told.json()["error"]["message"]
        assert chat["flags"] == []


async def test_only_a_post_ends_a_thought():
    """A GET of the path is another path of the API, as ever."""
    async with FakeBackend(style="llama-server") as backend:
        async with serving(settings(backend.url, engine="llama-server")) as proxy:
            got = await proxy.http.get(f"{proxy.url}/chat/completions/req_1/answer-now")
    assert got.status_code == 404
    assert "x-proxy-error" not in got.headers  # the engine's own


async def test_the_second_try_of_a_lost_answer_can_be_ended_too():
    """The engine knows it under another id than the client does."""
    go = asyncio.Event()
    replies = answer(reasoning="lost", finish="length"), answer(TEXT, reasoning=THOUGHT).hold(go, after=3)
    async with FakeBackend(*replies, style="llama-server") as backend:
        given = settings(backend.url, engine="llama-server", policy={"rescue": "retry"})
        async with serving(given) as proxy, asking(proxy, max_tokens=5000) as reading:
            await reading.until("two")
            told = await answer_now(proxy, reading.id)
            go.set()
            assert (told.status_code, told.json()["status"]) == (200, "answering")
            thought, text, finish = await reading.rest()
            chat = next(row for row in await proxy.rows(2) if row["kind"] == "chat")
    assert (thought, text, finish) == ("lostone two three ", TEXT, "stop")
    assert controls(backend) == [{"id": "chatcmpl-1", "action": "reasoning_end"}]
    assert sorted(chat["flags"]) == ["answer_now", "rescued"]


# A time for thoughts ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
async def test_a_thought_has_so_many_seconds(stream):
    """It is ended after `policy.thinking_seconds`; an answer in one piece is streamed from the engine for that."""
    reply = answer(TEXT, reasoning="word " * 400, gap=0.02)
    async with FakeBackend(reply, style="llama-server") as backend:
        async with serving(settings(backend.url, engine="llama-server", policy={"thinking_seconds": 0.3})) as proxy:
            response = await proxy.chat(USER, stream=stream)
            row = (await proxy.rows())[0]
    if stream:
        thought, text, finish = said(response.text)
    else:
        choice = response.json()["choices"][0]
        thought, text = choice["message"]["reasoning_content"], choice["message"]["content"]
        finish = choice["finish_reason"]
        assert response.json()["usage"]["completion_tokens"] == len((thought + text).split())
    assert (text, finish) == (TEXT, "stop")
    assert 0 < thought.count("word") < 200
    assert (row["flags"], row["outcome"], row["stream"]) == (["answer_now"], "ok", stream)
    assert row["completion_tokens"] == len((thought + text).split())
    sent = backend.requests[0].body
    assert (sent["stream"], sent["reasoning_control"]) == (True, True)
    assert len(controls(backend)) == 1


async def test_a_thought_that_ends_by_itself_before_that_is_left_alone():
    """The time is that of the thought: a text may take longer."""
    reply = answer("word " * 30, reasoning="one", gap=0.02)
    async with FakeBackend(reply, style="llama-server") as backend:
        async with serving(settings(backend.url, engine="llama-server", policy={"thinking_seconds": 0.3})) as proxy:
            assert said((await proxy.chat(USER, stream=True)).text) == ("one", "word " * 30, "stop")
            assert (await proxy.rows())[0]["flags"] == []
    assert not controls(backend)


@pytest.mark.parametrize("engine", ["kimi", "vllm"])
async def test_an_engine_without_a_control_thinks_as_long_as_it_likes(engine):
    """Nothing is asked of it, and what was not to be streamed is not."""
    async with FakeBackend(answer(TEXT, reasoning=THOUGHT, gap=0.02), style=engine) as backend:
        async with serving(settings(backend.url, engine=engine, policy={"thinking_seconds": 0.05})) as proxy:
            assert said((await proxy.chat(USER, stream=True)).text) == (THOUGHT, TEXT, "stop")
            whole = (await proxy.chat(USER)).json()["choices"][0]["message"]
    assert (whole["reasoning_content"], whole["content"]) == (THOUGHT, TEXT)
    assert [request.get("stream", False) for request in backend.requests] == [True, False]
    assert not any("reasoning_control" in request.body for request in backend.requests)
    assert not controls(backend)


async def test_a_control_that_fails_costs_no_answer():
    """The thought goes on, and is asked to end once: the answer comes late, and whole."""
    reply, paths = answer(TEXT, reasoning="word " * 20, gap=0.02), {CONTROL: error(500, "no")}
    async with FakeBackend(reply, style="llama-server", paths=paths) as backend:
        async with serving(settings(backend.url, engine="llama-server", policy={"thinking_seconds": 0.1})) as proxy:
            assert said((await proxy.chat(USER, stream=True)).text) == ("word " * 20, TEXT, "stop")
            assert (await proxy.rows())[0]["flags"] == []
    assert len(controls(backend)) == 1


async def test_a_second_try_has_its_own_time_for_a_thought():
    """The first try's is over, and so is the time that it took."""
    replies = answer(reasoning="lost", finish="length"), answer(TEXT, reasoning="word " * 400, gap=0.02)
    async with FakeBackend(*replies, style="llama-server") as backend:
        given = settings(backend.url, engine="llama-server", policy={"rescue": "retry", "thinking_seconds": 0.3})
        async with serving(given) as proxy:
            thought, text, _ = said((await proxy.chat(USER, stream=True, max_tokens=5000)).text)
            row = (await proxy.rows())[0]
    assert 0 < thought.count("word") < 200
    assert text == TEXT
    assert sorted(row["flags"]) == ["answer_now", "rescued"]
    assert [body["id"] for body in controls(backend)] == ["chatcmpl-1"]


async def test_a_thought_in_tags_is_timed_and_ended_like_any_other():
    """The engine may write it into the text: what counts is what it is."""
    head: dict[str, Any] = {"id": "chatcmpl-0", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    deltas = ["<think>", "one ", "two ", "three ", "</think>", TEXT]
    chunks = [{**head, "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]} for text in deltas]
    end = {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    timed = [step for chunk in chunks for step in (chunk, 0.1)]
    async with FakeBackend(script(*timed, end, "[DONE]"), style="llama-server") as backend:
        given = settings(backend.url, engine="llama-server", family="generic", policy={"thinking_seconds": 0.15})
        async with serving(given) as proxy:
            thought, text, _ = said((await proxy.chat(USER, stream=True)).text)
    assert (thought.split(), text) == (["one", "two", "three"], TEXT)
    assert controls(backend) == [{"id": "chatcmpl-0", "action": "reasoning_end"}]


@pytest.mark.parametrize(("engine", "status", "code"), [("llama-server", 200, None), ("vllm", 501, "not_supported")])
async def test_a_request_that_is_not_answered_yet_can_be_asked_for(engine, status, code):
    """While it waits in line or for the first header: noted where the engine can, refused where it cannot."""
    go = asyncio.Event()
    async with FakeBackend(answer(TEXT, reasoning=THOUGHT).after(go), style=engine) as backend:
        async with serving(settings(backend.url, engine=engine)) as proxy:
            asking = asyncio.create_task(proxy.chat(USER, stream=True))
            await backend.request_arrived()
            (known,) = (await proxy.http.get(f"{proxy.url}/generations")).json()["data"]
            told = await answer_now(proxy, known["request_id"])
            go.set()
            await asking
    assert told.status_code == status
    assert told.json().get("error", {}).get("code") == code
