"""Answers that outlive their clients: who gets them again, which give way, when they end, and what the ledger says."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import signal
import ssl
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import httpx2
import openai
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from running import Running, events, process, serving, settings

from proxy import AsyncTransport, config
from proxy.testing import FakeBackend, Reply, Request, ToolCall, answer, error, raw
from proxy.testing import events as script

USER = {"role": "user", "content": "hi"}
MORE = {"role": "user", "content": "more"}
TITLE = {
    "role": "user",
    "content": "### Task:\nGenerate a concise title summarizing the chat history.\n### Output:\nJSON\n"
    "<chat_history>\nUSER: hi\n</chat_history>",
}
TEXT, THOUGHT = "alpha beta gamma delta", "one two three "
ANNA, BEN = {"authorization": "Bearer key-of-anna"}, {"authorization": "Bearer key-of-ben"}
CONTROL = "/v1/chat/completions/control"


@pytest.fixture(autouse=True, scope="module")
def _certificates_are_read_once() -> Iterator[None]:
    """Every HTTP client reads them, and nothing here is encrypted: that took a third of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ssl, "create_default_context", functools.cache(ssl.create_default_context))
        yield


def detaching(url: str, *, engine: str = "kimi", tables: dict[str, Any] | None = None, **local: Any) -> config.Settings:
    """Settings for one backend on which answers outlive their clients."""
    table = {"url": url, "engine": engine, "family": "kimi-k3", "models": ["m"], "slow": False, "detach": True}
    return settings(url, backends={"local": {**table, **local}}, **(tables or {}))


@contextlib.asynccontextmanager
async def inside(given_: config.Settings) -> AsyncIterator[Running]:
    """The same through the library door, where a client that closes its response has left at once."""
    transport = AsyncTransport(given_)
    async with httpx.AsyncClient(transport=transport, timeout=30) as http:
        yield Running("http://proxy.invalid/v1", transport._open(), http)


# What clients hear ---------------------------------------------------------------------------------------------------


@dataclass
class Said:
    """One choice of an answer, however it came."""

    thought: str = ""
    text: str = ""
    calls: list[list[str]] = field(default_factory=list)
    finishes: list[str] = field(default_factory=list)

    def take(self, said: dict[str, Any], finish: str | None) -> None:
        """A delta, or a whole message."""
        self.thought += said.get("reasoning_content") or ""
        self.text += said.get("content") or ""
        for at, call in enumerate(said.get("tool_calls") or ()):
            index = call.get("index", at)
            while len(self.calls) <= index:
                self.calls.append(["", "", ""])
            function, known = call.get("function") or {}, self.calls[index]
            known[0] += call.get("id") or ""
            known[1] += function.get("name") or ""
            known[2] += function.get("arguments") or ""
        if finish:
            self.finishes.append(finish)


class Heard:
    """An answer as its client has it: each choice, each usage, each error, and whether a stream has its end."""

    def __init__(self, body: str) -> None:
        self.choices: dict[int, Said] = {}
        self.usages: list[dict[str, Any]] = []
        self.errors: list[str] = []
        if body.lstrip().startswith("{"):
            found, self.ended = [json.loads(body)], True
        else:
            data = events(body)
            self.ended = data[-1:] == ["[DONE]"] and data.count("[DONE]") == 1
            found = [json.loads(each) for each in data if each != "[DONE]"]
        for chunk in found:
            if "error" in chunk:
                self.errors.append(chunk["error"]["code"])
            for choice in chunk.get("choices", ()):
                said = self.choices.setdefault(choice["index"], Said())
                said.take(choice.get("delta") or choice.get("message") or {}, choice.get("finish_reason"))
            if chunk.get("usage"):
                self.usages.append(chunk["usage"])

    @property
    def only(self) -> Said:
        """The one choice of a complete answer."""
        assert (self.ended, self.errors, list(self.choices)) == (True, [], [0])
        return self.choices[0]


WHOLE = Said(THOUGHT, TEXT, [], ["stop"])


class Reading:
    """A streamed answer that is being read."""

    def __init__(self, response: Any) -> None:
        self.response = response
        self.id = response.headers["x-request-id"]
        self.text = ""
        self._pieces = response.aiter_text()

    async def until(self, words: str) -> None:
        """Read on until these words have come."""
        async with asyncio.timeout(5):
            while words not in self.text:
                self.text += await anext(self._pieces)

    async def rest(self) -> Heard:
        """Read all."""
        async with asyncio.timeout(5):
            async for piece in self._pieces:
                self.text += piece
        return Heard(self.text)


@contextlib.asynccontextmanager
async def reading(
    proxy: Running, *messages: dict[str, Any], headers: dict[str, str] | None = None, **fields: Any
) -> AsyncIterator[Reading]:
    """A streamed request, as soon as its answer has begun; whoever ends this before the answer's end has vanished."""
    body = {"model": "m", "messages": list(messages) or [USER], "stream": True, **fields}
    async with proxy.http.stream("POST", f"{proxy.url}/chat/completions", json=body, headers=headers) as response:
        assert response.status_code == 200
        yield Reading(response)


async def listed(proxy: Running, headers: dict[str, str] | None = None) -> list[dict[str, Any]]:
    """The caller's own generations."""
    told = (await proxy.http.get(f"{proxy.url}/generations", headers=headers)).json()
    assert told["object"] == "list"
    return list(told["data"])


async def states(
    proxy: Running, *expected: str, headers: dict[str, str] | None = None, tries: int = 200
) -> list[dict[str, Any]]:
    """The caller's generations, once they are in these states, the oldest first."""
    found: list[dict[str, Any]] = []
    for _ in range(tries):
        found = await listed(proxy, headers)
        if [each["state"] for each in found] == list(expected):
            return found
        await asyncio.sleep(0.005)
    raise AssertionError(f"{found} instead of {expected}")


async def has(proxy: Running, what: str, least: int) -> None:
    """Wait until so many characters of the caller's only generation are there."""
    for _ in range(200):
        (found,) = await listed(proxy)
        if found[what] >= least:
            return
        await asyncio.sleep(0.005)
    raise AssertionError(f"{found} has not {least} {what}")


async def left(
    proxy: Running, words: str, *messages: dict[str, Any], headers: dict[str, str] | None = None, **fields: Any
) -> str:
    """A client streams until it has heard these words, and vanishes; the id of its request, now detached."""
    async with reading(proxy, *messages, headers=headers, **fields) as stream:
        await stream.until(words)
    for _ in range(500):
        if any(each["id"] == stream.id and each["detached"] for each in await listed(proxy, headers)):
            return str(stream.id)
        await asyncio.sleep(0.005)
    raise AssertionError(f"{stream.id} is not detached")


async def vanishes(task: asyncio.Task[Any]) -> None:
    """The client of a request that waits for its answer is gone."""
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def left_whole(proxy: Running, backend: FakeBackend, *messages: dict[str, Any], **fields: Any) -> Request:
    """A client that wants a whole answer vanishes when the backend has its request, which goes on, detached."""
    task = asyncio.create_task(proxy.chat(*messages, **fields))
    request = await backend.request_arrived()
    await vanishes(task)
    await states(proxy, "detached")
    return request


async def chats(proxy: Running, count: int = 1) -> list[dict[str, Any]]:
    """The rows of all chat requests, in the order in which they came, once there are so many."""
    rows: list[dict[str, Any]] = []
    for _ in range(300):
        rows = [row for row in await asyncio.to_thread(proxy.pipeline.store.entries) if row["kind"] != "passthrough"]
        if len(rows) >= count:
            break
        await asyncio.sleep(0.01)
    assert len(rows) == count
    return sorted(rows, key=lambda row: row["ts"])


def outcomes(rows: list[dict[str, Any]]) -> list[tuple[str, list[str]]]:
    """Outcome and flags of each row."""
    return [(row["outcome"], row["flags"]) for row in rows]


def one_bill(rows: list[dict[str, Any]], *rejoiners: str) -> None:
    """The first row has tokens and cost, those that rejoined the answer have neither."""
    first, *others = rows
    assert (first["outcome"], first["flags"]) == ("ok", ["detached"])
    assert first["completion_tokens"] > 0
    assert first["cost_usd"] is not None
    assert [row["outcome"] for row in others] == list(rejoiners)
    for row in others:
        assert row["flags"] == ["rejoined"]
        for name in ("prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens", "cost_usd"):
            assert row[name] is None, name
        assert [row[name] for name in ("kind", "backend", "model")] == [
            first[name] for name in ("kind", "backend", "model")
        ]


PRICED = {"models": {"m": {"backend": "local", "price": {"input": 1.0, "output": 2.0}}}}


# Coming back while it runs -------------------------------------------------------------------------------------------


async def test_a_stream_that_was_left_is_rejoined_by_a_stream():
    """All there was comes at once, before the backend says more, and the rest live; one request, one bill."""
    go, more = asyncio.Event(), asyncio.Event()
    reply = answer(TEXT, reasoning=THOUGHT).hold(go, after=6).hold(more, after=7)
    async with FakeBackend(reply) as backend, serving(detaching(backend.url, tables=PRICED)) as proxy:
        await left(proxy, "beta")
        async with reading(proxy) as again:
            await again.until("beta")
            assert (await listed(proxy))[0]["state"] == "running"
            go.set()
            await again.until("gamma")
            more.set()
            assert (await again.rest()).only == WHOLE
        assert again.response.headers["x-proxy-backend"] == "local"
        rows = await chats(proxy, 2)
        assert await listed(proxy) == []
    assert len(backend.requests) == 1
    assert not backend.requests[0].closed_by_peer
    one_bill(rows, "ok")
    assert rows[0]["request_id"] != rows[1]["request_id"] == again.id


async def test_a_stream_that_was_left_is_rejoined_by_one_who_wants_it_whole():
    """The body is the same but for `stream`: the answer comes in one piece at its end."""
    go = asyncio.Event()
    reply = answer(TEXT, reasoning=THOUGHT).hold(go, after=6)
    async with FakeBackend(reply) as backend, serving(detaching(backend.url, tables=PRICED)) as proxy:
        await left(proxy, "beta")
        again = asyncio.create_task(proxy.chat())
        await states(proxy, "running")
        go.set()
        response = await again
        rows = await chats(proxy, 2)
    assert Heard(response.text).only == WHOLE
    assert response.json()["object"] == "chat.completion"
    assert response.json()["usage"]["completion_tokens"] == rows[0]["completion_tokens"]
    assert response.headers["x-proxy-outcome"] == "ok"
    assert "x-proxy-cost-usd" not in response.headers
    assert len(backend.requests) == 1
    one_bill(rows, "ok")
    assert [row["stream"] for row in rows] == [True, False]


@pytest.mark.parametrize(
    ("begun", "stream"),
    [
        (False, False),
        (True, False),
        (False, True),
        (True, True),
    ],
)
async def test_a_whole_answer_that_was_left_is_rejoined(begun, stream):
    """Before the backend's headers or with half of its body there, by one who wants it whole, or as a stream."""
    go = asyncio.Event()
    said = {"role": "assistant", "content": TEXT, "reasoning_content": THOUGHT}
    usage = {"prompt_tokens": 1, "completion_tokens": 7, "total_tokens": 8}
    choice = {"index": 0, "message": said, "finish_reason": "stop"}
    body = json.dumps({"id": "x", "object": "chat.completion", "choices": [choice], "usage": usage}).encode()
    half = raw(body[:40], go, body[40:], headers={"content-type": "application/json"})
    async with FakeBackend(half if begun else half.after(go)) as backend:
        async with serving(detaching(backend.url, tables=PRICED)) as proxy:
            request = await left_whole(proxy, backend)
            if begun:
                await request.written(1)
            again = asyncio.create_task(proxy.chat(stream=stream))
            await states(proxy, "running")
            go.set()
            response = await asyncio.wait_for(again, 1)
            rows = await chats(proxy, 2)
    assert Heard(response.text).only == WHOLE
    assert len(backend.requests) == 1
    one_bill(rows, "ok")


@pytest.mark.parametrize(
    ("style", "writes", "stream"),
    [
        ("kimi", 9, True),
        ("kimi", 9, False),
        ("llama-server", 9, True),
        ("vllm", 9, True),
        ("vllm", 9, False),
        ("ollama", 7, True),  # whole calls
    ],
)
async def test_calls_that_were_half_written_are_completed(style, writes, stream):
    """Thought, text and two calls; the first one's arguments are cut in the middle when the client leaves."""
    arguments = ['{"path": "/a/very/long/name"}', '{"b": 1, "a": "\\u00e9"}']
    calls = [ToolCall("ls", arguments[0], "call_1"), ToolCall("cat", arguments[1], "call_2")]
    tools = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in "lc"]
    go = asyncio.Event()
    reply = answer("I look.", reasoning=THOUGHT, calls=calls).hold(go, after=writes)
    async with FakeBackend(reply, style=style) as backend, inside(detaching(backend.url, engine=style)) as proxy:
        async with reading(proxy, tools=tools) as stream_:
            await backend.requests[0].written(writes)
            await stream_.until("look.")
        await states(proxy, "detached")
        await has(proxy, "visible_characters", len("I look.ls{"))
        again = asyncio.create_task(proxy.chat(tools=tools, stream=stream))
        await states(proxy, "running")
        go.set()
        heard = Heard((await again).text).only
    assert (heard.thought, heard.text, heard.finishes) == (THOUGHT, "I look.", ["tool_calls"])
    assert [call[1] for call in heard.calls] == ["ls", "cat"]
    assert [json.loads(call[2]) for call in heard.calls] == [json.loads(each) for each in arguments]
    assert len({call[0] for call in heard.calls}) == 2
    assert len(backend.requests) == 1


def chunk(*choices: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A chunk of a scripted stream."""
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": list(choices), **more}


def delta(index: int = 0, finish: str | None = None, **fields: Any) -> dict[str, Any]:
    """What a chunk says of one choice."""
    return {"index": index, "delta": fields, "finish_reason": finish}


@pytest.mark.parametrize(("stream", "counted"), [(True, True), (True, False), (False, True), (False, False)])
async def test_a_choice_that_has_its_finish_is_told_it_once(stream, counted):
    """Of two choices one is complete when the client comes back: each has its own text and one finish."""
    go = asyncio.Event()
    usage = chunk(usage={"prompt_tokens": 3, "completion_tokens": 9, "total_tokens": 12})
    reply = script(
        chunk(delta(0, role="assistant", content="")),
        chunk(delta(1, role="assistant", content="")),
        chunk(delta(0, reasoning_content="t0")),
        chunk(delta(1, content="second ")),
        chunk(delta(0, content="first")),
        chunk(delta(0, "stop")),
        go,
        chunk(delta(1, content="half")),
        chunk(delta(1, "length")),
        *([usage] if counted else []),
        "[DONE]",
    )
    async with FakeBackend(reply) as backend, inside(detaching(backend.url)) as proxy:
        await left(proxy, '"stop"', n=2)
        more = {"stream_options": {"include_usage": True}} if stream else {}
        again = asyncio.create_task(proxy.chat(n=2, stream=stream, **more))
        await states(proxy, "running")
        go.set()
        heard = Heard((await again).text)
    assert heard.ended
    assert heard.choices == {
        0: Said("t0", "first", [], ["stop"]),
        1: Said("", "second half", [], ["length"]),
    }
    assert len(heard.usages) == (counted or not stream)  # a whole answer has one, estimated where the engine says none
    if counted:
        assert heard.usages[0]["completion_tokens"] == 9
    assert len(backend.requests) == 1


@pytest.mark.parametrize(("first", "second"), [(True, False), (False, True)])
async def test_each_client_gets_the_usage_if_it_asked_for_it(first, second):
    """`stream_options` is no part of what is asked for: who asks for usage gets it once, another does not get any."""
    go = asyncio.Event()
    reply = answer(TEXT, reasoning=THOUGHT).hold(go, after=6)
    async with FakeBackend(reply) as backend, inside(detaching(backend.url)) as proxy:
        await left(proxy, "beta", stream_options={"include_usage": first})
        async with reading(proxy, stream_options={"include_usage": second}) as again:
            go.set()
            heard = await again.rest()
        rows = await chats(proxy, 2)
    assert heard.only == WHOLE
    assert [usage["completion_tokens"] for usage in heard.usages] == ([rows[0]["completion_tokens"]] if second else [])
    assert len(backend.requests) == 1


@pytest.mark.parametrize("shown", ["both", "think_tags", "hidden"])
async def test_who_comes_back_is_shown_the_thought_in_its_own_way(shown):
    """In the middle of the thought: the tag is opened and closed once, and other names are used throughout."""
    go = asyncio.Event()
    reply = answer(TEXT, reasoning=THOUGHT).hold(go, after=3)
    async with FakeBackend(reply) as backend:
        async with inside(detaching(backend.url, tables={"defaults": {"client_reasoning": shown}})) as proxy:
            async with reading(proxy):
                await backend.requests[0].written(3)
            await states(proxy, "detached")
            await has(proxy, "reasoning_characters", len("one two "))
            async with reading(proxy) as again:
                await states(proxy, "running")
                go.set()
                heard = (await again.rest()).only
        found = [json.loads(each) for each in events(again.text)[:-1]]
    deltas = [choice["delta"] for each in found for choice in each["choices"]]
    named = "".join(each.get("reasoning") or "" for each in deltas)
    assert heard.text == (f"<think>\n{THOUGHT}\n</think>\n\n{TEXT}" if shown == "think_tags" else TEXT)
    assert named == (THOUGHT if shown == "both" else "")
    assert heard.thought == (THOUGHT if shown == "both" else "")
    assert heard.finishes == ["stop"]


async def test_a_letter_that_was_cut_in_two_is_whole_again():
    """An emoji comes as two halves of a surrogate pair, and the client leaves and comes back between them."""
    go = asyncio.Event()
    halves = [json.dumps(chunk(delta(content="?"))).replace("?", half) for half in ("a\\ud83d", "\\ude00b")]
    reply = script(chunk(delta(role="assistant")), halves[0], go, halves[1], chunk(delta(0, "stop")), "[DONE]")
    async with FakeBackend(reply) as backend, inside(detaching(backend.url)) as proxy:
        await left(proxy, "a\\ud83d")
        async with reading(proxy) as again:
            go.set()
            text = (await again.rest()).only.text
    assert text.encode("utf-16", "surrogatepass").decode("utf-16", "replace") == "a\U0001f600b"


async def test_an_answer_may_be_left_and_rejoined_again_and_again():
    """Each one who left may come back; each has a row, and only the first has tokens."""
    gates = [asyncio.Event() for _ in range(3)]
    reply = answer(TEXT, reasoning=THOUGHT)
    for at, gate in enumerate(gates):
        reply = reply.hold(gate, after=5 + at)
    async with FakeBackend(reply) as backend, inside(detaching(backend.url, tables=PRICED)) as proxy:
        first = await left(proxy, "alpha")
        for gate, word in zip(gates[:2], ("beta", "gamma"), strict=True):
            async with reading(proxy) as again:
                gate.set()
                await again.until(word)
            (found,) = await states(proxy, "detached")
            assert found["id"] == first
        async with reading(proxy) as last:
            await last.until("gamma")
            gates[2].set()
            assert (await last.rest()).only == WHOLE
        rows = await chats(proxy, 4)
    one_bill(rows, "client_disconnected", "client_disconnected", "ok")
    assert len(backend.requests) == 1


async def test_who_comes_back_is_kept_alive_too():
    """Silence is broken for one who listens to an answer that another one began."""
    go = asyncio.Event()
    reply = answer(TEXT, reasoning=THOUGHT).hold(go, after=6)
    given_ = {"server": {"keepalive_seconds": 0.05}}
    async with FakeBackend(reply) as backend, serving(detaching(backend.url, tables=given_)) as proxy:
        await left(proxy, "beta")
        async with reading(proxy) as again:
            await again.until(": keep-alive")
            go.set()
            assert (await again.rest()).only == WHOLE


async def test_one_who_does_not_know_yet_whether_there_is_an_answer_is_kept_alive_too():
    """The backend has the request and said nothing: the stream opens with a keep-alive, for both clients."""
    go = asyncio.Event()
    given_ = {"server": {"keepalive_seconds": 0.05}}
    async with FakeBackend(answer(TEXT, reasoning=THOUGHT).after(go)) as backend:
        async with serving(detaching(backend.url, tables=given_)) as proxy:
            await left(proxy, ": keep-alive")
            async with reading(proxy) as again:
                await again.until(": keep-alive")
                go.set()
                assert (await again.rest()).only == WHOLE
    assert len(backend.requests) == 1


async def test_one_who_waits_for_a_whole_answer_is_kept_alive_too():
    """Blanks come before the JSON for the first client and for the second; both rows have the answer's outcome."""
    go = asyncio.Event()
    tables = {"server": {"nonstream_keepalive_seconds": 0.05}}
    async with FakeBackend(answer(TEXT, reasoning=THOUGHT).after(go)) as backend:
        async with serving(detaching(backend.url, tables=tables)) as proxy:
            body = {"model": "m", "messages": [USER]}
            for last in (False, True):
                async with proxy.http.stream("POST", f"{proxy.url}/chat/completions", json=body) as response:
                    pieces = response.aiter_text()
                    assert not (await anext(pieces)).strip()
                    if last:
                        go.set()
                        assert Heard("".join([piece async for piece in pieces])).only == WHOLE
                if not last:
                    await states(proxy, "detached")
            rows = await chats(proxy, 2)
    assert outcomes(rows) == [("ok", ["detached"]), ("ok", ["rejoined"])]
    assert len(backend.requests) == 1


# Any answer, any moments ---------------------------------------------------------------------------------------------


PIECES = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6),
    st.sampled_from(["<think>", "</think>", "<thi", "nk>", "\n", " ", "<|im_", "end|>", "<|im_end|>", "word "]),
)
MOST = int(os.environ.get("MOST", "30"))
VISIT = st.tuples(st.integers(0, 6), st.integers(0, 12), st.booleans())
"""How far the backend goes on meanwhile, how long the client still stays then, and whether it wants a stream."""


@dataclass
class Script:
    """An answer in pieces, and gates before each of them."""

    said: list[dict[str, Any]]
    gates: list[asyncio.Event]

    def reply(self) -> Reply:
        """The stream; before its finish is the last gate."""
        steps: list[Any] = [chunk(delta(role="assistant", content=""))]
        for gate, each in zip(self.gates, self.said, strict=False):
            steps += [gate, chunk(delta(**each))]
        finish = "tool_calls" if any("tool_calls" in each for each in self.said) else "stop"
        return script(*steps, self.gates[-1], chunk(delta(0, finish)), "[DONE]")

    def open(self, until: int) -> None:
        """So many pieces may leave."""
        for gate in self.gates[:until]:
            gate.set()

    @property
    def whole(self) -> Said:
        """What it comes to."""
        whole = Said()
        for each in self.said:
            whole.take(each, None)
        whole.finishes.append("tool_calls" if whole.calls else "stop")
        return whole


@st.composite
def scripts(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Deltas of thought, then of text, then of calls."""
    said: list[dict[str, Any]] = [{"reasoning_content": piece} for piece in draw(st.lists(PIECES, max_size=6))]
    said += [{"content": piece} for piece in draw(st.lists(PIECES, max_size=6))]
    for index in range(draw(st.integers(0, 2))):
        arguments = json.dumps({"a": draw(PIECES)}, ensure_ascii=draw(st.booleans()))
        at = draw(st.integers(0, len(arguments)))
        function = {"name": f"f{index}", "arguments": ""}
        said.append({"tool_calls": [{"index": index, "id": f"c{index}", "type": "function", "function": function}]})
        said += [
            {"tool_calls": [{"index": index, "function": {"arguments": part}}]}
            for part in (arguments[:at], arguments[at:])
            if part
        ]
    return said


async def visited(
    said: list[dict[str, Any]], visits: list[tuple[int, int, bool]], *, stream: bool, shown: str, tags: str
) -> Heard:
    """What the last client hears when others came and left before it. Through the library door."""
    script_ = Script(said, [asyncio.Event() for _ in range(len(said) + 1)])
    url = "http://proxy.invalid/v1/chat/completions"
    async with FakeBackend(script_.reply()) as backend:
        given_ = detaching(backend.url, tables={"thinking": {"tags": tags}, "defaults": {"client_reasoning": shown}})
        async with httpx.AsyncClient(transport=AsyncTransport(given_), timeout=5) as http:

            async def reads(streams: bool) -> str:
                body = {"model": "m", "messages": [USER], "stream": streams}
                async with http.stream("POST", url, json=body) as response:
                    return (await response.aread()).decode()

            opened = 0
            for at, (further, stays, streams) in enumerate(visits):
                task = asyncio.create_task(reads(streams or at == 0))  # how the first one asks is how the backend is
                if not at:
                    await backend.request_arrived()
                opened = min(opened + further, len(said))
                script_.open(opened)
                await backend.requests[0].written(1 + opened)
                for _ in range(stays):
                    await asyncio.sleep(0)
                await vanishes(task)
            task = asyncio.create_task(reads(stream or not visits))
            await asyncio.sleep(0)
            script_.open(len(said) + 1)
            heard = Heard(await asyncio.wait_for(task, 5))
    assert len(backend.requests) == 1
    return heard


@examples(max_examples=MOST, deadline=None)
@given(scripts(), st.lists(VISIT, min_size=1, max_size=5), st.booleans())
def test_whoever_comes_last_has_the_whole_answer(said, visits, stream):
    """Of a random answer, for clients that come and leave at any moments, streamed or not: no word twice, none lost."""
    heard = asyncio.run(visited(said, visits, stream=stream, shown="reasoning_content", tags="off"))
    assert heard.choices[0] == Script(said, []).whole
    assert (heard.ended, heard.errors) == (True, [])


@examples(max_examples=MOST // 2, deadline=None)
@given(
    scripts(),
    st.lists(VISIT, min_size=1, max_size=4),
    st.booleans(),
    st.sampled_from(["reasoning_content", "think_tags", "hidden"]),
    st.sampled_from(["auto", "parse", "parse-prefilled"]),
)
def test_whoever_comes_last_has_what_one_who_stays_has(said, visits, stream, shown, tags):
    """Where thoughts are parted from texts, or put into tags: all is as if nobody had left."""
    how: dict[str, Any] = {"stream": stream, "shown": shown, "tags": tags}
    heard, stays = asyncio.run(visited(said, visits, **how)), asyncio.run(visited(said, [], **how))
    assert heard.choices == stays.choices
    assert (heard.ended, heard.errors) == (True, [])


# Coming back after the end -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("second", [False, True])
@pytest.mark.parametrize("first", [False, True])
async def test_an_answer_that_ended_meanwhile_is_replayed_once(first, second):
    """Streamed or whole, in any pairing; after that the same body is a new question."""
    go = asyncio.Event()
    replies = answer(TEXT, reasoning=THOUGHT), answer("Another.")
    held = replies[0].hold(go, after=6) if first else replies[0].after(go)
    async with FakeBackend(held, replies[1]) as backend, inside(detaching(backend.url, tables=PRICED)) as proxy:
        if first:
            await left(proxy, "beta")
        else:
            await left_whole(proxy, backend)
        go.set()
        (found,) = await states(proxy, "finished")
        more = {"stream_options": {"include_usage": True}} if second else {}
        again = Heard((await proxy.chat(stream=second, **more)).text)
        assert again.only == WHOLE
        assert await listed(proxy) == []
        assert len(backend.requests) == 1
        rows = await chats(proxy, 2)
        new = Heard((await proxy.chat(stream=second)).text)
        assert len(backend.requests) == 2
    assert new.only.text == "Another."
    assert found["visible_characters"] == len(TEXT)
    assert [usage["completion_tokens"] for usage in again.usages] == [rows[0]["completion_tokens"]]
    one_bill(rows, "ok")


async def test_calls_are_replayed_whole():
    """With their ids, names and arguments, and their own finish."""
    go = asyncio.Event()
    reply = answer(reasoning=THOUGHT, calls=[ToolCall("ls", '{"path": "/tmp"}', "call_1")]).hold(go, after=5)
    async with FakeBackend(reply) as backend, inside(detaching(backend.url)) as proxy:
        async with reading(proxy):
            await backend.requests[0].written(5)
        await states(proxy, "detached")
        go.set()
        await states(proxy, "finished")
        async with reading(proxy) as again:
            heard = (await again.rest()).only
    assert heard == Said(THOUGHT, "", [["call_1", "ls", '{"path": "/tmp"}']], ["tool_calls"])


async def test_a_replay_that_is_left_can_be_had_again():
    """It was not delivered whole: the next one gets it from its beginning, and nothing is generated again."""
    size = 4_000_000
    go = asyncio.Event()
    reply = answer("x" * size, split=size // 4).hold(go, after=2)
    async with FakeBackend(reply) as backend, serving(detaching(backend.url)) as proxy:
        async with reading(proxy):
            await backend.requests[0].written(2)
        await states(proxy, "detached")
        go.set()
        await states(proxy, "finished")
        async with reading(proxy) as stream:
            await stream.until("xxxx")
            assert len(stream.text) < size
        await states(proxy, "finished", tries=30)
        async with reading(proxy) as again:
            assert (await again.rest()).only.text == "x" * size
        assert await listed(proxy) == []
    assert len(backend.requests) == 1


async def test_one_who_leaves_in_the_middle_of_the_last_words_finds_the_answer_again():
    """Its connection is slow, and most of the last piece never left for it: that is not delivered."""
    go, size = asyncio.Event(), 4_000_000
    last = [chunk(delta(content="x" * size)), chunk(delta(0, "stop"))]
    data = "".join(f"data: {json.dumps(each)}\n\n" for each in last) + "data: [DONE]\n\n"
    reply = script(chunk(delta(role="assistant", content="alpha")), go, data.encode())
    async with FakeBackend(reply, answer("New.")) as backend, serving(detaching(backend.url)) as proxy:
        async with reading(proxy) as stream:
            await stream.until("alpha")
            go.set()
            await stream.until("xxxx")
            assert len(stream.text) < size
        await asyncio.sleep(0.1)
        async with reading(proxy) as again:
            text = (await again.rest()).only.text
    assert text == "alpha" + "x" * size
    assert len(backend.requests) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_after_an_answer_was_delivered_the_same_body_is_a_new_question(stream):
    """So that "regenerate" works: nobody left before the end."""
    async with FakeBackend(answer("One."), answer("Two.")) as backend, inside(detaching(backend.url)) as proxy:
        heard = [Heard((await proxy.chat(stream=stream)).text).only.text for _ in range(2)]
        rows = await chats(proxy, 2)
    assert heard == ["One.", "Two."]
    assert outcomes(rows) == [("ok", []), ("ok", [])]


async def test_a_turn_that_ended_without_its_client_is_remembered():
    """The thought of a detached answer goes back in the next turn, whoever told the client the text."""
    go = asyncio.Event()
    async with FakeBackend(answer(TEXT, reasoning=THOUGHT).hold(go, after=6), answer("ok")) as backend:
        async with inside(detaching(backend.url)) as proxy:
            await left(proxy, "beta")
            go.set()
            await states(proxy, "finished")
            next_turn = await proxy.chat(USER, {"role": "assistant", "content": TEXT}, MORE)
    assert "restored=1" in next_turn.headers["x-proxy-history"]
    assert backend.requests[1].body["messages"][1]["reasoning_content"] == THOUGHT


# Whose it is ---------------------------------------------------------------------------------------------------------


async def test_the_same_body_of_two_clients_at_a_time_is_two_generations():
    """Neither has left: each gets an answer of its own."""
    go = asyncio.Event()
    replies = answer("alpha one").hold(go, after=2), answer("alpha two").hold(go, after=2)
    async with FakeBackend(*replies) as backend, inside(detaching(backend.url)) as proxy:
        async with reading(proxy) as first, reading(proxy) as second:
            await states(proxy, "running", "running")
            go.set()
            assert [(await each.rest()).only.text for each in (first, second)] == ["alpha one", "alpha two"]
        assert outcomes(await chats(proxy, 2)) == [("ok", []), ("ok", [])]
    assert len(backend.requests) == 2


async def test_of_two_who_left_the_same_question_one_is_kept():
    """The second one to leave ends; who comes back gets the other, and one who asks at the same time a new one."""
    go = asyncio.Event()
    replies = answer("alpha one").hold(go, after=2), answer("alpha two").hold(go, after=2), answer("three")
    async with FakeBackend(*replies) as backend, serving(detaching(backend.url)) as proxy:
        async with reading(proxy) as first, reading(proxy) as second:
            await first.until("alpha")
            await second.until("alpha")
        (found,) = await states(proxy, "detached")
        ended = next(request for request in backend.requests if request.over.is_set())
        assert await ended.hung_up()
        async with reading(proxy) as again:
            await again.until("alpha")
            other = await proxy.chat()
            go.set()
            heard = (await again.rest()).only.text
        rows = {row["request_id"]: row for row in await chats(proxy, 4)}
    assert Heard(other.text).only.text == "three"
    kept = first.id if found["id"] == first.id else second.id
    assert heard == ("alpha one" if kept == first.id else "alpha two")
    (lost,) = {first.id, second.id} - {kept}
    assert (rows[kept]["outcome"], rows[lost]["outcome"]) == ("ok", "client_disconnected")


@pytest.mark.parametrize("who", ["key", "end user", "x-api-key"])
async def test_nobody_else_is_told_an_answer_that_was_left(who):
    """The same body under another key, or for another end user, is another question; the first is still there."""
    others = {"key": BEN, "end user": {**ANNA, "x-openwebui-user-id": "7"}, "x-api-key": {"x-api-key": "key-of-anna2"}}
    go = asyncio.Event()
    replies = answer(TEXT, reasoning=THOUGHT).hold(go, after=6), answer("Not yours.")
    async with FakeBackend(*replies) as backend, inside(detaching(backend.url)) as proxy:
        await left(proxy, "beta", headers=ANNA)
        assert Heard((await proxy.chat(headers=others[who])).text).only.text == "Not yours."
        assert await listed(proxy, others[who]) == []
        async with reading(proxy, headers=ANNA) as again:
            go.set()
            assert (await again.rest()).only == WHOLE
    assert len(backend.requests) == 2


async def test_configured_clients_are_told_apart():
    """By the table whose key they have, and no other key of theirs leads to it."""
    clients = {name: {"api_key": f"key-of-{name}"} for name in ("anna", "ben")}
    go = asyncio.Event()
    replies = answer(TEXT, reasoning=THOUGHT).hold(go, after=6), answer("Not yours.")
    async with FakeBackend(*replies) as backend:
        async with inside(detaching(backend.url, tables={"clients": clients})) as proxy:
            await left(proxy, "beta", headers=ANNA)
            assert Heard((await proxy.chat(headers=BEN)).text).only.text == "Not yours."
            refused = [await proxy.http.get(f"{proxy.url}/generations"), await proxy.chat()]
            (found,) = await listed(proxy, ANNA)
            async with reading(proxy, headers=ANNA) as again:
                go.set()
                assert (await again.rest()).only == WHOLE
    assert [response.status_code for response in refused] == [401, 401]
    assert found["client"] == "anna"


@pytest.mark.parametrize("fields", [{"temperature": 0.5}, {"max_tokens": 6000}, {"messages": [MORE]}, {"model": "n"}])
async def test_another_body_has_its_own_answer(fields):
    """One field more, another one, or another model: a new request."""
    go = asyncio.Event()
    replies = answer(TEXT, reasoning=THOUGHT).hold(go, after=6), answer("Another.")
    async with FakeBackend(*replies) as backend, inside(detaching(backend.url, models=["m", "n"])) as proxy:
        await left(proxy, "beta")
        assert Heard((await proxy.chat(**fields)).text).only.text == "Another."
        (found,) = await listed(proxy)
    assert found["state"] == "detached"
    assert len(backend.requests) == 2


async def test_the_order_of_a_bodys_fields_does_not_matter():
    """A client may write them as it likes."""
    go = asyncio.Event()
    reply = answer(TEXT, reasoning=THOUGHT).hold(go, after=6)
    async with FakeBackend(reply) as backend, inside(detaching(backend.url)) as proxy:
        await left(proxy, "beta", temperature=0.5)
        body = {"stream": False, "temperature": 0.5, "messages": [USER], "model": "m"}
        again = asyncio.create_task(proxy.http.post(f"{proxy.url}/chat/completions", json=body))
        await states(proxy, "running")
        go.set()
        assert Heard((await again).text).only == WHOLE
    assert len(backend.requests) == 1


# What is not kept ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("stream", "when"), [(False, "headers"), (True, "headers"), (True, "thought"), (True, "text")])
async def test_without_detaching_a_client_that_leaves_ends_the_work(stream, when):
    """Within a second, streamed or not, before the backend's headers or after; the row says what was spent."""
    never, writes = asyncio.Event(), {"headers": 0, "thought": 3, "text": 6}[when]
    reply = answer(TEXT, reasoning=THOUGHT)
    reply = reply.after(never) if when == "headers" else reply.hold(never, after=writes)
    async with FakeBackend(reply) as backend:
        async with serving(detaching(backend.url, detach=False, max_concurrency=1, tables=PRICED)) as proxy:
            task = asyncio.create_task(proxy.chat(stream=stream))
            request = await backend.request_arrived()
            await request.written(writes)
            await has(proxy, "reasoning_characters", 1 if writes else 0)
            await vanishes(task)
            assert await request.hung_up(within=1)
            (row,) = await chats(proxy)
            assert await listed(proxy) == []
            backend.rules = lambda _: answer("Free.")
            assert Heard((await proxy.chat()).text).only.text == "Free."
    assert (row["outcome"], row["flags"]) == ("client_disconnected", [])
    assert len(backend.requests) == 2
    if writes:
        assert row["completion_tokens"] > 0
        assert row["reasoning_source"] == "estimated"


@pytest.mark.parametrize(
    ("detach", "slow", "kept"), [("auto", True, True), ("auto", False, False), (False, True, False)]
)
async def test_by_default_answers_of_slow_backends_are_kept(detach, slow, kept):
    """`detach = "auto"` follows `slow`; true and false do not."""
    reply = answer(TEXT, reasoning=THOUGHT).hold(asyncio.Event(), after=6)
    async with FakeBackend(reply) as backend, inside(detaching(backend.url, detach=detach, slow=slow)) as proxy:
        async with reading(proxy) as stream:
            await stream.until("beta")
        if kept:
            await states(proxy, "detached")
        else:
            assert await backend.requests[0].hung_up(within=1)
            assert outcomes(await chats(proxy)) == [("client_disconnected", [])]


@pytest.mark.parametrize("kept", [False, True])
async def test_the_backend_that_answers_says_whether_its_answer_is_kept(kept):
    """Another one stands in for one that is down: its own `detach` counts."""
    async with FakeBackend() as down:
        url = down.url
    reply = answer(TEXT, reasoning=THOUGHT).hold(asyncio.Event(), after=6)
    async with FakeBackend(reply) as backend:
        local = {"engine": "kimi", "family": "kimi-k3", "models": ["m"], "slow": False}
        tables = {
            "local": {**local, "url": url, "detach": not kept, "fallback": ["other"]},
            "other": {**local, "url": backend.url, "detach": kept},
        }
        async with inside(settings(url, backends=tables)) as proxy:
            async with reading(proxy) as stream:
                await stream.until("beta")
            assert [each["state"] for each in await listed(proxy)] == (["detached"] if kept else [])


@pytest.mark.parametrize(("kind", "fields"), [("side", {"messages": [TITLE]}), ("probe", {"max_tokens": 1})])
async def test_side_requests_and_probes_are_not_kept(kind, fields):
    """Nobody comes back for them."""
    reply = answer(TEXT, reasoning=THOUGHT).hold(asyncio.Event(), after=6)
    async with FakeBackend(reply) as backend, inside(detaching(backend.url)) as proxy:
        async with reading(proxy, **fields) as stream:
            await stream.until("beta")
        assert await backend.requests[0].hung_up(within=1)
        (row,) = await chats(proxy)
    assert (row["kind"], row["outcome"], row["flags"]) == (kind, "client_disconnected", [])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("detach", [False, True])
async def test_a_request_whose_client_leaves_the_line_is_gone(stream, detach):
    """It reaches no backend, and the one behind it is served; the row says so and has no tokens."""
    go = asyncio.Event()
    async with FakeBackend(answer("first").hold(go), answer("third")) as backend:
        async with serving(detaching(backend.url, detach=detach, max_concurrency=1)) as proxy:
            first = asyncio.create_task(proxy.chat(stream=True))
            await backend.request_arrived()
            second = asyncio.create_task(proxy.chat(MORE, stream=stream))
            await states(proxy, "running", "queued")
            third = asyncio.create_task(proxy.chat(USER, MORE))
            await states(proxy, "running", "queued", "queued")
            await vanishes(second)
            await states(proxy, "running", "queued")
            go.set()
            assert [Heard((await each).text).only.text for each in (first, third)] == ["first", "third"]
            rows = await chats(proxy, 3)
    assert len(backend.requests) == 2
    gone = next(row for row in rows if row["outcome"] != "ok")
    assert (gone["outcome"], gone["flags"], gone["completion_tokens"]) == ("client_disconnected", [], None)


@pytest.mark.parametrize("how", ["cut", "error event", "refused"])
async def test_what_fails_without_a_listener_is_asked_for_anew(how):
    """The row of the one that failed says `upstream_error`; the same body is a new request then."""
    go = asyncio.Event()
    replies = {
        "cut": answer(TEXT, reasoning=THOUGHT).hold(go, after=6).first(7).then_cut(),
        "error event": script(chunk(delta(content="beta")), go, {"error": {"message": "boom"}}),
        "refused": error(500, "boom").after(go),
    }
    async with FakeBackend(replies[how], answer("New.")) as backend, inside(detaching(backend.url)) as proxy:
        if how == "refused":
            await left_whole(proxy, backend)
        else:
            await left(proxy, "beta")
        go.set()
        await states(proxy)
        assert Heard((await proxy.chat()).text).only.text == "New."
        rows = await chats(proxy, 2)
    assert outcomes(rows) == [("upstream_error", ["detached"]), ("ok", [])]
    assert len(backend.requests) == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_what_fails_before_one_who_came_back_is_told_as_ever(stream):
    """An error inside the stream, or a status; both rows say `upstream_error`."""
    go = asyncio.Event()
    reply = answer(TEXT, reasoning=THOUGHT).hold(go, after=6).first(7).then_cut()
    async with FakeBackend(reply) as backend, inside(detaching(backend.url)) as proxy:
        await left(proxy, "beta")
        again = asyncio.create_task(proxy.chat(stream=stream))
        await states(proxy, "running")
        go.set()
        response = await again
        rows = await chats(proxy, 2)
    assert outcomes(rows) == [("upstream_error", ["detached"]), ("upstream_error", ["rejoined"])]
    if stream:
        heard = Heard(response.text)
        assert (heard.ended, heard.errors) == (True, ["upstream_error"])
        assert heard.choices[0] == Said(THOUGHT, "alpha beta gamma ", [], [])
    else:
        assert (response.status_code, response.headers["x-should-retry"]) == (502, "false")


async def test_a_refusal_reaches_the_one_who_came_back():
    """The backend says no after the first client left: its status and words are told."""
    go = asyncio.Event()
    async with FakeBackend(error(400, "no such tool").after(go)) as backend, inside(detaching(backend.url)) as proxy:
        await left_whole(proxy, backend)
        again = asyncio.create_task(proxy.chat())
        await states(proxy, "running")
        go.set()
        response = await again
        rows = await chats(proxy, 2)
    assert (response.status_code, response.json()["error"]["message"]) == (400, "no such tool")
    assert [(row["outcome"], row["status"]) for row in rows] == [("upstream_error", 400)] * 2


# Giving way ----------------------------------------------------------------------------------------------------------


SLOTS: list[tuple[str, dict[str, Any]]] = [
    ("kimi", {"max_concurrency": 1}),
    ("llama-server", {}),
    ("llama-server", {"max_concurrency": 1}),
    ("ollama", {}),
]


@pytest.mark.parametrize(("engine", "local"), SLOTS)
async def test_what_was_left_gives_way_to_the_next_question_of_its_client(engine, local):
    """It may have been stopped: the slot is free for the same caller's other request, by the line or the engine."""
    replies = answer(TEXT, reasoning=THOUGHT).hold(asyncio.Event(), after=6), answer("Next."), answer("New.")
    async with FakeBackend(*replies, style=engine) as backend:
        async with inside(detaching(backend.url, engine=engine, **local)) as proxy:
            await left(proxy, "beta")
            assert Heard((await proxy.chat(MORE)).text).only.text == "Next."
            assert await backend.requests[0].hung_up(within=1)
            assert await listed(proxy) == []
            assert Heard((await proxy.chat()).text).only.text == "New."
            rows = await chats(proxy, 3)
    assert outcomes(rows) == [("client_disconnected", ["detached"]), ("ok", []), ("ok", [])]
    assert rows[0]["completion_tokens"] > 0
    assert "gave way" in rows[0]["error"]


async def test_nothing_gives_way_to_a_question_that_is_refused():
    """The line is full: the question does not wait, and the answer that was left goes on."""
    go = asyncio.Event()
    replies = answer(TEXT, reasoning=THOUGHT).hold(go, after=6), answer("Ben's.")
    async with FakeBackend(*replies) as backend:
        async with inside(detaching(backend.url, max_concurrency=1, queue_limit=1)) as proxy:
            await left(proxy, "beta", headers=ANNA)
            waits = asyncio.create_task(proxy.chat(MORE, headers=BEN))
            await states(proxy, "queued", headers=BEN)
            refused = await proxy.chat(MORE, headers=ANNA)
            found = await listed(proxy, ANNA)
            go.set()
            await waits
    assert refused.status_code == 429
    assert [each["state"] for each in found] == ["detached"]


async def test_where_there_is_a_slot_left_nothing_gives_way():
    """Two slots: the second question is answered beside the first."""
    go = asyncio.Event()
    replies = answer(TEXT, reasoning=THOUGHT).hold(go, after=6), answer("Next.")
    async with FakeBackend(*replies) as backend, inside(detaching(backend.url, max_concurrency=2)) as proxy:
        await left(proxy, "beta")
        assert Heard((await proxy.chat(MORE)).text).only.text == "Next."
        async with reading(proxy) as again:
            go.set()
            assert (await again.rest()).only == WHOLE
    assert len(backend.requests) == 2


async def test_the_oldest_gives_way_first():
    """Of two that the client left, one slot is enough."""
    never = asyncio.Event()
    replies = [answer(TEXT, reasoning=THOUGHT).hold(never, after=6)] * 2
    async with FakeBackend(*replies, answer("Next.")) as backend:
        async with inside(detaching(backend.url, max_concurrency=2)) as proxy:
            first = await left(proxy, "beta")
            second = await left(proxy, "beta", MORE)
            assert Heard((await proxy.chat(USER, MORE)).text).only.text == "Next."
            (found,) = await states(proxy, "detached")
            assert await backend.requests[0].hung_up(within=1)
    assert found["id"] == second != first


async def test_an_answer_that_is_complete_has_no_slot_to_give():
    """A finished one is still there after the next question of its client."""
    go = asyncio.Event()
    replies = answer(TEXT, reasoning=THOUGHT).hold(go, after=6), answer("Next.")
    async with FakeBackend(*replies) as backend, inside(detaching(backend.url, max_concurrency=1)) as proxy:
        await left(proxy, "beta")
        go.set()
        await states(proxy, "finished")
        assert Heard((await proxy.chat(MORE)).text).only.text == "Next."
        assert Heard((await proxy.chat(stream=True)).text).only == WHOLE
    assert len(backend.requests) == 2


async def test_one_who_listens_gives_no_way():
    """A rejoined answer has a client: the next question waits for its end."""
    go = asyncio.Event()
    replies = answer(TEXT, reasoning=THOUGHT).hold(go, after=6), answer("Next.")
    async with FakeBackend(*replies) as backend, inside(detaching(backend.url, max_concurrency=1)) as proxy:
        await left(proxy, "beta")
        async with reading(proxy) as again:
            following = asyncio.create_task(proxy.chat(MORE))
            await states(proxy, "running", "queued")
            go.set()
            assert (await again.rest()).only == WHOLE
        assert Heard((await following).text).only.text == "Next."


async def test_what_its_client_leaves_while_its_next_question_waits_ends():
    """The other order: the next question waits already when the client of the first one goes."""
    never = asyncio.Event()
    replies = answer(TEXT, reasoning=THOUGHT).hold(never, after=6), answer("Next.")
    async with FakeBackend(*replies) as backend, serving(detaching(backend.url, max_concurrency=1)) as proxy:
        async with reading(proxy) as stream:
            await stream.until("beta")
            following = asyncio.create_task(proxy.chat(MORE))
            await states(proxy, "running", "queued")
        assert Heard((await asyncio.wait_for(following, 5)).text).only.text == "Next."
        assert await backend.requests[0].hung_up(within=1)
        assert outcomes(await chats(proxy, 2)) == [("client_disconnected", []), ("ok", [])]


@pytest.mark.parametrize("engine", ["llama-server", "ollama"])
async def test_so_it_does_where_the_next_question_waits_inside_the_server(engine):
    """The server has one slot and a line of its own: what is left gives way to the question that waits there."""
    slot = asyncio.Event()
    replies = answer(TEXT, reasoning=THOUGHT).hold(asyncio.Event(), after=6), answer("Next.").after(slot)
    async with FakeBackend(*replies, style=engine) as backend:
        async with inside(detaching(backend.url, engine=engine)) as proxy:
            async with reading(proxy) as stream:
                await stream.until("beta")
                first = await backend.request_arrived()
                following = asyncio.create_task(proxy.chat(MORE))
                await backend.request_arrived()
            try:
                assert await first.hung_up(within=0.5)
            finally:
                slot.set()
                await following


async def test_a_side_request_is_nothing_to_give_way_to():
    """A title can wait: what was left goes on, also where the title waited before."""
    go = asyncio.Event()
    reply = answer(TEXT, reasoning=THOUGHT).hold(go, after=6)
    async with FakeBackend(reply) as backend, serving(detaching(backend.url, max_concurrency=1)) as proxy:
        async with reading(proxy) as stream:
            await stream.until("beta")
            early = asyncio.create_task(proxy.chat(TITLE))
            await states(proxy, "running", "queued")
        await states(proxy, "detached", "queued")
        late = asyncio.create_task(proxy.chat(TITLE, max_tokens=100))
        await states(proxy, "detached", "queued", "queued")
        await vanishes(early)
        await vanishes(late)
        async with reading(proxy) as again:
            go.set()
            assert (await again.rest()).only == WHOLE
    assert len(backend.requests) == 1


@pytest.mark.parametrize("other", [BEN, {**ANNA, "x-openwebui-user-id": "7"}])
async def test_another_client_waits_for_what_was_left(other):
    """Whoever did not ask for it cannot have stopped it."""
    go = asyncio.Event()
    replies = answer(TEXT, reasoning=THOUGHT).hold(go, after=6), answer("Next.")
    async with FakeBackend(*replies) as backend, inside(detaching(backend.url, max_concurrency=1)) as proxy:
        await left(proxy, "beta", headers=ANNA)
        waits = asyncio.create_task(proxy.chat(MORE, headers=other))
        await states(proxy, "queued", headers=other)
        await states(proxy, "detached", headers=ANNA)
        go.set()
        assert Heard((await waits).text).only.text == "Next."
        await states(proxy, "finished", headers=ANNA)
        assert Heard((await proxy.chat(headers=ANNA)).text).only == WHOLE
    assert len(backend.requests) == 2


async def test_another_backend_is_nothing_to_give_way_to():
    """Each backend has its own slots."""
    go = asyncio.Event()
    async with FakeBackend(answer(TEXT, reasoning=THOUGHT).hold(go, after=6)) as one, FakeBackend(answer("B.")) as two:
        local = {"engine": "kimi", "family": "kimi-k3", "slow": False, "detach": True, "max_concurrency": 1}
        tables = {
            "local": {**local, "url": one.url, "models": ["m"]},
            "other": {**local, "url": two.url, "models": ["n"]},
        }
        async with inside(settings(one.url, backends=tables)) as proxy:
            await left(proxy, "beta")
            assert Heard((await proxy.chat(MORE, model="n")).text).only.text == "B."
            async with reading(proxy) as again:
                go.set()
                assert (await again.rest()).only == WHOLE


# Bounds --------------------------------------------------------------------------------------------------------------


async def test_nobody_comes_back_for_too_long():
    """After `detach_minutes` it ends, and the slot is free for whoever waits; its row says what was spent."""
    replies = answer(TEXT, reasoning=THOUGHT).hold(asyncio.Event(), after=6), answer("Next.")
    async with FakeBackend(*replies) as backend:
        async with inside(detaching(backend.url, max_concurrency=1, detach_minutes=0.003)) as proxy:
            await left(proxy, "beta", headers=ANNA)
            assert Heard((await proxy.chat(MORE, headers=BEN)).text).only.text == "Next."
            assert await backend.requests[0].hung_up(within=1)
            assert await listed(proxy, ANNA) == []
            rows = await chats(proxy, 2)
    assert outcomes(rows) == [("client_disconnected", ["detached"]), ("ok", [])]
    assert "0.003 minutes" in rows[0]["error"]
    assert rows[0]["completion_tokens"] > 0


async def test_who_comes_back_in_time_stops_the_clock():
    """The time counts from the moment of leaving, and only while nobody listens."""
    go = asyncio.Event()
    reply = answer(TEXT, reasoning=THOUGHT).hold(go, after=6)
    async with FakeBackend(reply) as backend, inside(detaching(backend.url, detach_minutes=0.003)) as proxy:
        await left(proxy, "beta")
        async with reading(proxy) as again:
            await asyncio.sleep(0.25)
            go.set()
            assert (await again.rest()).only == WHOLE
    assert not backend.requests[0].closed_by_peer


async def test_a_finished_answer_is_not_kept_for_ever():
    """After `detach_minutes` the same body is a new question."""
    go = asyncio.Event()
    replies = answer(TEXT, reasoning=THOUGHT).hold(go, after=6), answer("New.")
    async with FakeBackend(*replies) as backend, inside(detaching(backend.url, detach_minutes=0.003)) as proxy:
        await left(proxy, "beta")
        go.set()
        await states(proxy)
        assert Heard((await proxy.chat()).text).only.text == "New."
        assert outcomes(await chats(proxy, 2)) == [("ok", ["detached"]), ("ok", [])]


async def test_the_oldest_of_too_many_ends():
    """64 are kept; with the 65th the first one ends, and none of the others."""
    never = asyncio.Event()
    async with FakeBackend(answer("alpha beta").hold(never, after=2)) as backend:
        async with inside(detaching(backend.url)) as proxy:
            ids = [await left(proxy, "alpha", {"role": "user", "content": f"question {n}"}) for n in range(64)]
            assert [each["id"] for each in await listed(proxy)] == ids
            ids.append(await left(proxy, "alpha", MORE))
            assert await backend.requests[0].hung_up(within=1)
            assert [each["id"] for each in await listed(proxy)] == ids[1:]
            (row,) = await chats(proxy)
    assert [request.closed_by_peer for request in backend.requests[:2]] == [True, True]  # the others, when it stops
    assert (row["request_id"], row["outcome"], row["flags"]) == (ids[0], "client_disconnected", ["detached"])


# The list, and ending by name ----------------------------------------------------------------------------------------


async def test_the_list_tells_of_each_what_it_does():
    """Queued, running, detached, finished; the oldest first, with what is written."""
    gates = [asyncio.Event() for _ in range(3)]
    replies = [answer(TEXT, reasoning=THOUGHT).hold(gate, after=6) for gate in gates]
    async with FakeBackend(*replies) as backend, inside(detaching(backend.url, max_concurrency=2)) as proxy:
        first = await left(proxy, "beta")
        gates[0].set()
        await states(proxy, "finished")
        second = await left(proxy, "beta", MORE)
        async with reading(proxy, USER, MORE) as third:
            await third.until("beta")
            waits = asyncio.create_task(proxy.chat(MORE, MORE, headers=BEN))
            (queued,) = await states(proxy, "queued", headers=BEN)
            found = await states(proxy, "finished", "detached", "running")
            await vanishes(waits)
    assert [each["id"] for each in found] == [first, second, third.id]
    assert [each["detached"] for each in found] == [True, True, False]
    assert [each["visible_characters"] for each in found] == [len(TEXT), len("alpha beta "), len("alpha beta ")]
    assert {each["reasoning_characters"] for each in found} == {len(THOUGHT)}
    for each in found:
        assert (each["object"], each["model"], each["backend"], each["stream"]) == ("generation", "m", "local", True)
        assert each["request_id"] == each["id"]
    assert queued["waits_for"] == "queued, position 1 of 1"
    assert queued["visible_characters"] == 0


async def end(proxy: Running, request_id: str, headers: dict[str, str] | None = None) -> httpx.Response:
    """DELETE a generation."""
    return await proxy.http.delete(f"{proxy.url}/generations/{request_id}", headers=headers)


async def test_one_can_be_looked_at_and_other_methods_are_not_the_backends_affair():
    """GET with an id; what is not there is told by the proxy, and nothing of it goes upstream."""
    async with FakeBackend(answer(TEXT, reasoning=THOUGHT).hold(asyncio.Event(), after=6)) as backend:
        async with inside(detaching(backend.url)) as proxy:
            await left(proxy, "beta")
            (known,) = await listed(proxy)
            own = f"{proxy.url}/generations"
            one = (await proxy.http.get(f"{own}/{known['id']}")).json()
            refused = [
                await proxy.http.get(f"{own}/req_0"),
                await proxy.http.put(f"{own}/{known['id']}"),
                await proxy.http.post(own),
                await proxy.http.delete(own),
            ]
            assert [(each.status_code, each.headers["x-proxy-error"]) for each in refused] == [(404, "not_found")] * 4
        assert not any("generations" in request.path for request in backend.others)
    assert {**one, "seconds": 0} == {**known, "seconds": 0}


async def test_what_was_left_can_be_ended():
    """By its id: the backend is let go, the row is written, and the same body is a new question."""
    replies = answer(TEXT, reasoning=THOUGHT).hold(asyncio.Event(), after=6), answer("New.")
    async with FakeBackend(*replies) as backend, serving(detaching(backend.url, max_concurrency=1)) as proxy:
        request_id = await left(proxy, "beta")
        told = await end(proxy, request_id)
        assert await backend.requests[0].hung_up(within=1)
        assert await listed(proxy) == []
        assert (await end(proxy, request_id)).status_code == 404
        assert Heard((await proxy.chat()).text).only.text == "New."
        rows = await chats(proxy, 2)
    assert (told.status_code, told.json()["deleted"], told.json()["id"]) == (200, True, request_id)
    assert outcomes(rows) == [("client_disconnected", ["detached"]), ("ok", [])]
    assert rows[0]["completion_tokens"] > 0


async def test_a_finished_one_can_be_forgotten():
    """Its row stays what it was."""
    go = asyncio.Event()
    replies = answer(TEXT, reasoning=THOUGHT).hold(go, after=6), answer("New.")
    async with FakeBackend(*replies) as backend, inside(detaching(backend.url)) as proxy:
        request_id = await left(proxy, "beta")
        go.set()
        await states(proxy, "finished")
        assert (await end(proxy, request_id)).status_code == 200
        assert Heard((await proxy.chat()).text).only.text == "New."
        assert outcomes(await chats(proxy, 2)) == [("ok", ["detached"]), ("ok", [])]


@pytest.mark.parametrize("stream", [False, True])
async def test_one_that_runs_can_be_ended(stream):
    """Its client is told: an error in the stream, or 410; nothing of it is left, also where answers are not kept."""
    reply = answer(TEXT, reasoning=THOUGHT)
    reply = reply.hold(asyncio.Event(), after=6) if stream else reply.after(asyncio.Event())
    async with FakeBackend(reply) as backend, serving(detaching(backend.url, detach=not stream)) as proxy:
        asked = asyncio.create_task(proxy.chat(stream=stream))
        request = await backend.request_arrived()
        await request.written(6 if stream else 0)
        (found,) = await states(proxy, "running")
        assert (await end(proxy, found["id"])).status_code == 200
        response = await asked
        assert await request.hung_up(within=1)
        assert await listed(proxy) == []
        (row,) = await chats(proxy)
    if stream:
        heard = Heard(response.text)
        assert (heard.ended, heard.errors, heard.choices[0].finishes) == (True, ["generation_ended"], [])
    else:
        assert (response.status_code, response.json()["error"]["code"]) == (410, "generation_ended")
        assert response.headers["x-should-retry"] == "false"
    assert (row["outcome"], row["flags"]) == ("client_disconnected", [])


@pytest.mark.parametrize("by", ["first", "second"])
async def test_one_that_was_rejoined_can_be_ended_by_both_ids(by):
    """That of the request that began it, and that of the one who listens."""
    reply = answer(TEXT, reasoning=THOUGHT).hold(asyncio.Event(), after=6)
    async with FakeBackend(reply) as backend, inside(detaching(backend.url)) as proxy:
        first = await left(proxy, "beta")
        async with reading(proxy) as again:
            await again.until("beta")
            assert (await end(proxy, first if by == "first" else again.id)).status_code == 200
            heard = await again.rest()
        assert await backend.requests[0].hung_up(within=1)
        rows = await chats(proxy, 2)
    assert (heard.ended, heard.errors) == (True, ["generation_ended"])
    assert outcomes(rows) == [("client_disconnected", ["detached"]), ("client_disconnected", ["rejoined"])]
    assert rows[1]["completion_tokens"] is None


@pytest.mark.parametrize("stream", [False, True])
async def test_one_that_waits_in_line_can_be_ended(stream):
    """Its client is told, its place is free, and no backend hears of it."""
    go = asyncio.Event()
    async with FakeBackend(answer("first").hold(go), answer("third")) as backend:
        async with serving(detaching(backend.url, max_concurrency=1)) as proxy:
            first = asyncio.create_task(proxy.chat(stream=True))
            await backend.request_arrived()
            second = asyncio.create_task(proxy.chat(MORE, stream=stream))
            queued = (await states(proxy, "running", "queued"))[1]
            third = asyncio.create_task(proxy.chat(USER, MORE))
            await states(proxy, "running", "queued", "queued")
            assert (await end(proxy, queued["id"])).status_code == 200
            response = await second
            go.set()
            assert [Heard((await each).text).only.text for each in (first, third)] == ["first", "third"]
            rows = {row["request_id"]: row for row in await chats(proxy, 3)}
    assert (response.status_code, response.json()["error"]["code"]) == (410, "generation_ended")
    assert rows[queued["id"]]["outcome"] == "client_disconnected"
    assert len(backend.requests) == 2


async def test_nobody_ends_what_is_not_theirs():
    """404 for an id that nobody has, for another key's and for another end user's; it goes on."""
    go = asyncio.Event()
    reply = answer(TEXT, reasoning=THOUGHT).hold(go, after=6)
    async with FakeBackend(reply) as backend, inside(detaching(backend.url)) as proxy:
        request_id = await left(proxy, "beta", headers=ANNA)
        refused = [
            await end(proxy, "req_0123456789abcdef01234567", ANNA),
            await end(proxy, request_id, BEN),
            await end(proxy, request_id, {**ANNA, "x-openwebui-user-id": "7"}),
            await end(proxy, request_id),
        ]
        async with reading(proxy, headers=ANNA) as again:
            refused.append(await end(proxy, again.id, BEN))
            go.set()
            assert (await again.rest()).only == WHOLE
    for response in refused:
        assert (response.status_code, response.json()["error"]["code"]) == (404, "not_found")
        assert response.headers["x-proxy-error"] == "not_found"


# Beside other features -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["first", "second"])
async def test_who_came_back_can_ask_for_the_answer_now(by):
    """By its own request's id, or by that of the one that began the answer."""
    go = asyncio.Event()
    reply = answer(TEXT, reasoning="one two three four five six").hold(go, after=3)
    async with FakeBackend(reply, style="llama-server") as backend:
        async with inside(detaching(backend.url, engine="llama-server")) as proxy:
            first = await left(proxy, "two")
            async with reading(proxy) as again:
                await again.until("two")
                request_id = first if by == "first" else again.id
                told = await proxy.http.post(f"{proxy.url}/chat/completions/{request_id}/answer-now")
                go.set()
                heard = (await again.rest()).only
            rows = await chats(proxy, 2)
    assert told.status_code == 200
    assert heard == Said("one two three ", TEXT, [], ["stop"])
    assert [each.body["id"] for each in backend.others if each.path == CONTROL] == ["chatcmpl-0"]
    assert rows[0]["flags"] == ["detached", "answer_now"]


LOST = script(
    chunk(delta(role="assistant", content="")),
    chunk(delta(reasoning_content="lost ")),
    chunk(delta(0, "length", reasoning_content="thought ")),
    "[DONE]",
)


@pytest.mark.parametrize(
    ("when", "stream"),
    [
        ("first thought", True),
        ("between", True),
        ("between", False),
        ("second thought", True),
        ("second thought", False),
        ("end", True),
    ],
)
async def test_an_answer_that_was_rescued_is_rejoined(when, stream):
    """Whenever one comes back: in the thought that is lost, before the second try says a word, in it, or after it."""
    gates = {name: asyncio.Event() for name in ("first thought", "between", "second thought")}
    replies = (
        LOST.hold(gates["first thought"], after=2),
        answer(TEXT, reasoning=THOUGHT).after(gates["between"]).hold(gates["second thought"], after=3),
    )
    async with FakeBackend(*replies) as backend:
        async with inside(detaching(backend.url, tables={"policy": {"rescue": "retry"}})) as proxy:
            await left(proxy, "lost", max_tokens=5000)
            for name, gate in gates.items():
                if name == when:
                    break
                gate.set()
            if when in ("between", "second thought"):
                for _ in range(2):
                    await backend.request_arrived()
            if when == "second thought":
                await backend.requests[1].written(3)
                await has(proxy, "reasoning_characters", len("one two "))
            await states(proxy, "finished" if when == "end" else "detached")
            again = asyncio.create_task(proxy.chat(stream=stream, max_tokens=5000))
            if when != "end":
                await states(proxy, "running")
            for gate in gates.values():
                gate.set()
            heard = Heard((await again).text).only
            rows = await chats(proxy, 2)
    assert (heard.text, heard.finishes) == (TEXT, ["stop"])
    assert heard.thought in (THOUGHT, "lost thought " + THOUGHT)
    assert len(backend.requests) == 2
    assert [row["outcome"] for row in rows] == ["ok", "ok"]
    assert sorted(rows[0]["flags"]) == ["detached", "rescued"]


@pytest.mark.parametrize(
    ("first", "finished", "stream"),
    [(True, False, True), (True, True, False), (False, False, True), (False, True, True), (False, False, False)],
)
async def test_a_stop_string_ends_a_detached_answer_as_any_other(first, finished, stream):
    """Half of it has come when the client leaves; the text ends before it, and the engine is left there."""
    go, never = asyncio.Event(), asyncio.Event()
    reply = answer("alpha END beta gamma", reasoning=THOUGHT, split=2).hold(go, after=12).hold(never, after=18)
    async with FakeBackend(reply) as backend, inside(detaching(backend.url)) as proxy:
        if first:
            async with reading(proxy, stop=["END"]):
                await backend.requests[0].written(12)
            await states(proxy, "detached")
            await has(proxy, "visible_characters", len("alpha "))
        else:
            await left_whole(proxy, backend, stop=["END"])
        if finished:
            go.set()
            await states(proxy, "finished")
        again = asyncio.create_task(proxy.chat(stop=["END"], stream=stream))
        if not finished:
            await states(proxy, "running")
            go.set()
        heard = Heard((await again).text).only
        assert await backend.requests[0].hung_up(within=1)
        rows = await chats(proxy, 2)
    assert heard == Said(THOUGHT, "alpha ", [], ["stop"])
    assert len(backend.requests) == 1
    assert [row["outcome"] for row in rows] == ["ok", "ok"]


# The moment of the end -----------------------------------------------------------------------------------------------


class Writing:
    """Holds up the store when a row shall be on disk before the last byte leaves."""

    def __init__(self, proxy: Running, monkeypatch: pytest.MonkeyPatch) -> None:
        self._come, self.go = threading.Event(), threading.Event()
        written = proxy.pipeline.store.written

        async def held(seconds: float) -> None:
            self._come.set()
            await asyncio.to_thread(self.go.wait, 5)
            await written(seconds)

        monkeypatch.setattr("proxy.record._LONG_MS", 0)  # each answer took its time
        monkeypatch.setattr(proxy.pipeline.store, "written", held)

    async def come(self) -> None:
        """The answer is complete, and its row is being written."""
        assert await asyncio.to_thread(self._come.wait, 5)


def ending(*before: Any) -> Reply:
    """A stream whose last word, finish and end come in one read."""
    last = [chunk(delta(content="gamma")), chunk(delta(0, "stop")), "[DONE]"]
    data = "".join(f"data: {each if isinstance(each, str) else json.dumps(each)}\n\n" for each in last)
    return script(chunk(delta(role="assistant", content="alpha ")), *before, data.encode())


@pytest.mark.parametrize(
    "stream",
    [
        False,
        True,
    ],
)
async def test_one_who_comes_back_while_the_row_is_written_hears_nothing_twice(stream, monkeypatch):
    """The answer is complete, and not yet told to be: its last words come once."""
    go = asyncio.Event()
    async with FakeBackend(ending(go), answer("New.")) as backend, serving(detaching(backend.url)) as proxy:
        await left(proxy, "alpha")
        writing = Writing(proxy, monkeypatch)
        try:
            go.set()
            await writing.come()
            again = asyncio.create_task(proxy.chat(stream=stream))
            if stream:
                await states(proxy, "running")
        finally:
            writing.go.set()
        heard = Heard((await again).text).only
    assert heard == Said("", "alpha gamma", [], ["stop"])
    assert len(backend.requests) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_one_who_leaves_while_the_row_is_written_finds_the_answer_again(stream, monkeypatch):
    """It was complete and not delivered: what took hours is not thrown away."""
    go = asyncio.Event()
    reply = ending(go) if stream else answer("alpha gamma").after(go)
    async with FakeBackend(reply, answer("New.")) as backend, serving(detaching(backend.url)) as proxy:
        first = asyncio.create_task(proxy.chat(stream=stream))
        await backend.request_arrived()
        await states(proxy, "running")
        writing = Writing(proxy, monkeypatch)
        try:
            go.set()
            await writing.come()
            await vanishes(first)
            await asyncio.sleep(0.05)
        finally:
            writing.go.set()
        again = Heard((await proxy.chat(stream=stream)).text).only
    assert again.text == "alpha gamma"
    assert len(backend.requests) == 1


@pytest.mark.parametrize("rejoined", [False, True])
async def test_one_who_waits_for_a_whole_answer_may_leave_before_its_very_last_event(rejoined):
    """The engine has said the finish and not the end, and the client has nothing: it is told all when it comes back."""
    go, done = asyncio.Event(), asyncio.Event()
    reply = answer(TEXT, reasoning=THOUGHT).hold(go, after=6).hold(done, after=9)
    stops = {"stop": ["END"]}  # which is why the engine is asked for a stream
    async with FakeBackend(reply, answer("New.")) as backend, serving(detaching(backend.url)) as proxy:
        if rejoined:
            await left(proxy, "beta", **stops)
        task = asyncio.create_task(proxy.chat(**stops))
        request = await backend.request_arrived()
        await states(proxy, "running")
        go.set()
        await request.written(9)
        await has(proxy, "visible_characters", len(TEXT))
        await asyncio.sleep(0.05)
        await vanishes(task)
        await asyncio.sleep(0.05)
        done.set()
        again = Heard((await proxy.chat(**stops)).text).only
    assert again == WHOLE
    assert len(backend.requests) == 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("detach", [False, True])
async def test_one_who_had_every_word_and_leaves_before_the_end_leaves_a_complete_answer(stream, detach):
    """The finish was told: the row says `ok`, the turn is remembered, and the backend is let go or has ended."""
    go = asyncio.Event()
    reply = answer(TEXT, reasoning=THOUGHT).hold(go, after=9)
    async with FakeBackend(reply, answer("ok")) as backend, serving(detaching(backend.url, detach=detach)) as proxy:
        async with reading(proxy) as reader:
            await reader.until('"stop"')
        (row,) = await chats(proxy)
        next_turn = await proxy.chat(USER, {"role": "assistant", "content": TEXT}, MORE, stream=stream)
        go.set()
        assert await listed(proxy) == []
    assert row["outcome"] == "ok"
    assert "restored=1" in next_turn.headers["x-proxy-history"]


# The ends of the proxy, and its other doors --------------------------------------------------------------------------


async def test_a_detached_answer_has_its_row_when_the_proxy_is_stopped(tmp_path):
    """SIGTERM: the backend is let go, the process ends well, and the ledger says what was spent."""
    toml = f"""
        [backends.local]
        url = "URL"
        engine = "kimi"
        family = "kimi-k3"
        models = ["m"]
        detach = true
        [store]
        url = "sqlite:///{tmp_path / "proxy.db"}"
        ledger_jsonl = "{tmp_path / "ledger.jsonl"}"
        """
    reply = answer(TEXT, reasoning=THOUGHT).hold(asyncio.Event(), after=6)
    async with FakeBackend(reply) as backend, httpx.AsyncClient(timeout=30) as http:
        with process(tmp_path, toml.replace("URL", backend.url), signalled=True) as url:
            body = {"model": "m", "messages": [USER], "stream": True}
            async with http.stream("POST", f"{url}/chat/completions", json=body) as response:
                await Reading(response).until("beta")
            for _ in range(500):
                found = (await http.get(f"{url}/generations")).json()["data"]
                if [each["state"] for each in found] == ["detached"]:
                    break
                await asyncio.sleep(0.01)
            os.kill(int((tmp_path / "pid").read_text()), signal.SIGTERM)
            assert await backend.requests[0].hung_up()
    rows = [json.loads(line) for line in (tmp_path / "ledger.jsonl").read_text().splitlines()]
    (row,) = [row for row in rows if row["kind"] == "chat"]
    assert (row["outcome"], row["flags"], row["request_id"]) == ("rejected", ["detached"], found[0]["id"])
    assert "shutting down" in row["error"]
    assert row["completion_tokens"] > 0
    assert "Traceback" not in (tmp_path / "log.txt").read_text()


def sdk_on(transport: AsyncTransport, timeout: float = 10.0) -> openai.AsyncOpenAI:
    """The real SDK on the library door."""
    http = httpx2.AsyncClient(transport=transport, timeout=timeout)
    return openai.AsyncOpenAI(
        base_url="http://proxy.invalid/v1", api_key="unused", http_client=http, max_retries=0, timeout=timeout
    )


@pytest.mark.parametrize("door", ["server", "library"])
async def test_the_sdk_reads_a_rejoined_stream(door):
    """An agent breaks out of its loop and asks again: the SDK puts text, thought and call together from both."""
    go = asyncio.Event()
    call = ToolCall("ls", '{"path": "/tmp/a/b"}', "call_1")
    reply = answer("I look.", reasoning=THOUGHT, calls=[call]).hold(go, after=9)
    tools: Any = [{"type": "function", "function": {"name": "ls", "parameters": {"type": "object", "properties": {}}}}]
    messages: Any = [USER]
    async with FakeBackend(reply) as backend, contextlib.AsyncExitStack() as stack:
        given_ = detaching(backend.url)
        if door == "server":
            proxy = await stack.enter_async_context(serving(given_))
            sdk = openai.AsyncOpenAI(base_url=proxy.url, api_key="unused", max_retries=0)
        else:
            sdk = sdk_on(AsyncTransport(given_))
        await stack.enter_async_context(sdk)
        stream = await sdk.chat.completions.create(model="m", messages=messages, tools=tools, stream=True)
        async for _ in stream:
            if backend.requests[0].writes >= 9:
                break
            await asyncio.sleep(0)
        await stream.close()
        for _ in range(500):
            found = (await sdk.get("/generations", cast_to=httpx.Response)).json()["data"]
            if found[0]["detached"]:
                break
            await asyncio.sleep(0.005)
        async with sdk.chat.completions.stream(model="m", messages=messages, tools=tools) as again:
            go.set()
            final = await again.get_final_completion()
    message = final.choices[0].message
    assert (message.content, final.choices[0].finish_reason) == ("I look.", "tool_calls")
    assert message.tool_calls is not None
    assert [each.function.arguments for each in message.tool_calls] == ['{"path": "/tmp/a/b"}']
    assert len(backend.requests) == 1


async def test_an_agent_whose_own_time_is_over_finds_its_answer():
    """Through the library door: a time-out of the SDK, and a try again, are one generation."""
    go = asyncio.Event()
    async with FakeBackend(answer(TEXT, reasoning=THOUGHT).after(go)) as backend:
        transport = AsyncTransport(detaching(backend.url, tables=PRICED))
        async with sdk_on(transport) as sdk:
            messages: Any = [USER]
            with pytest.raises(openai.APITimeoutError):
                await sdk.with_options(timeout=0.1).chat.completions.create(model="m", messages=messages)
            go.set()
            told = await sdk.chat.completions.create(model="m", messages=messages)
        rows = [row for row in transport.ledger if row["kind"] == "chat"]
    assert told.choices[0].message.content == TEXT
    assert len(backend.requests) == 1
    one_bill(sorted(rows, key=lambda row: row["flags"]), "ok")


async def test_the_library_ends_what_was_left_when_it_is_closed():
    """Its row is written, and the backend is let go."""
    reply = answer(TEXT, reasoning=THOUGHT).hold(asyncio.Event(), after=6)
    async with FakeBackend(reply) as backend:
        transport = AsyncTransport(detaching(backend.url))
        async with httpx.AsyncClient(transport=transport) as http:
            body = {"model": "m", "messages": [USER], "stream": True}
            async with http.stream("POST", "http://proxy.invalid/v1/chat/completions", json=body) as response:
                await Reading(response).until("beta")
        assert await backend.requests[0].hung_up(within=1)
