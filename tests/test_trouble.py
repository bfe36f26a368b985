"""Every kind of trouble with a backend: what the client and the ledger are told of it, and that nothing is sent twice.

A fault meets three ways of asking: for a whole answer, for a stream, and for a whole answer that the backend streams
(`gathered`). `test_trouble_elsewhere.py` goes on with oddities, refusals, silence, size and connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import pytest_asyncio
from running import Running, events, serving, settings

from proxy import tokens
from proxy.testing import FakeBackend, Reply, Request, Rules, answer, document, raw, wire
from proxy.testing import events as script
from proxy.turns import Turn

pytestmark = pytest.mark.asyncio(loop_scope="module")

Fault = Reply | Rules
Fields = dict[str, Any]

USER = {"role": "user", "content": "hi"}
LOCAL = {"engine": "kimi", "family": "kimi-k3", "models": ["m"], "slow": False}
WAYS: dict[str, Fields] = {"whole": {}, "stream": {"stream": True}, "gathered": {"stop": ["never said"]}}


# What backends say ---------------------------------------------------------------------------------------------------


def chunk(finish: str | None = None, **delta: Any) -> Fields:
    """An event of a stream."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}


def called(**fragment: Any) -> Fields:
    """An event with a part of a tool call."""
    return chunk(tool_calls=[{"index": 0, **fragment}])


def sse(*items: Fields | str) -> bytes:
    """Events as they stand on the wire."""
    return b"".join(f"data: {item if isinstance(item, str) else json.dumps(item)}\n\n".encode() for item in items)


def framed(data: bytes) -> bytes:
    """A chunk of a body whose length nobody knows."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def gzip(data: bytes) -> bytes:
    """Compressed."""
    packer = zlib.compressobj(wbits=31)
    return packer.compress(data) + packer.flush()


THOUGHT = [chunk(role="assistant", reasoning_content="Two "), chunk(reasoning_content="names.")]
TEXT = [*THOUGHT, chunk(content="Two ")]
CALL = [
    *THOUGHT,
    called(id="a", type="function", function={"name": "ls", "arguments": ""}),
    called(function={"arguments": '{"path": "/da'}),
]
ALL_SAID = [*TEXT, chunk(content="files."), chunk("stop")]
GOOD = sse(*ALL_SAID, "[DONE]")
MESSAGE = {"role": "assistant", "reasoning_content": "Two names.", "content": "Two files."}
WHOLE = json.dumps(
    {"id": "c", "object": "chat.completion", "choices": [{"index": 0, "message": MESSAGE, "finish_reason": "stop"}]}
).encode()


def http(
    *headers: str,
    start: str = "HTTP/1.1 200 OK",
    body: Callable[[bytes], bytes] = lambda data: data,
    said: bytes = GOOD,
    whole: bytes = WHOLE,
) -> Rules:
    """An answer to the byte, as a stream where one is asked for; then the connection is closed. `body` spoils it."""

    def answered(request: Request) -> Reply:
        kind, data = ("text/event-stream", said) if request.get("stream") else ("application/json", whole)
        head = "\r\n".join([start, f"content-type: {kind}", *headers, "", ""])
        return wire(head.encode("latin-1") + body(data))

    return answered


# What becomes of them ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Told:
    """What became of one request: the response, its row, and the turns that were remembered."""

    way: str
    response: httpx.Response
    row: dict[str, Any]
    turns: int

    @property
    def said(self) -> list[Fields]:
        """The events of a stream, without its end."""
        *said, end = events(self.response.text)
        assert end == "[DONE]"
        return [json.loads(each) for each in said]

    @property
    def heard(self) -> tuple[str, str, list[str]]:
        """Thought, text and finishes."""
        bodies = self.said if self.way == "stream" else [self.response.json()]
        choices = [choice for body in bodies for choice in body["choices"]]
        parts = [choice.get("delta") or choice.get("message") or {} for choice in choices]
        thought, text = ("".join(part.get(name) or "" for part in parts) for name in ("reasoning_content", "content"))
        return thought, text, [choice["finish_reason"] for choice in choices if choice["finish_reason"]]

    def is_refused(
        self, status: int = 502, code: object = "upstream_error", *, ours: bool = True, outcome: str = "upstream_error"
    ) -> Fields:
        """The response is an error; `ours` where the proxy itself is the origin. Gives the error."""
        response, unsent = self.response, outcome == "upstream_unreachable"
        told: Fields = response.json()["error"]
        assert set(told) == {"message", "type", "param", "code"}
        assert (self.way, response.status_code, told["code"]) == (self.way, status, code)
        assert response.headers.get("x-proxy-error") == (code if ours else None)
        assert response.headers.get("x-should-retry") == (None if unsent else "false")
        self._is_recorded(status, told, outcome)
        return told

    def is_broken(self, before: list[Fields], status: int = 502, code: object = "upstream_error") -> Fields:
        """The stream brought what came before the fault, then an error and `[DONE]`, no finish. Gives the error."""
        *said, last = self.said
        told: Fields = last["error"]
        assert (self.response.status_code, self.response.headers["content-type"]) == (200, "text/event-stream")
        assert said == before
        assert (set(told), told["code"]) == ({"message", "type", "param", "code"}, code)
        self._is_recorded(status, told, "upstream_error")
        return told

    def _is_recorded(self, status: int, told: Fields, outcome: str) -> None:
        row = self.row
        assert (row["outcome"], row["status"], row["error"]) == (outcome, status, told["message"])
        assert (row["attempts"], row["stream"], self.turns) == (1, self.way == "stream", 0)

    def has_spent(self, thought: str, text: str) -> None:
        """What came is counted, and marked as an estimate."""
        row, thinking = self.row, tokens.count(thought)
        assert (row["reasoning_tokens"], row["completion_tokens"]) == (thinking, thinking + tokens.count(text))
        assert row["reasoning_source"] == "estimated"

    def is_good(self) -> None:
        """The answer is whole, and remembered."""
        assert (self.way, self.response.status_code) == (self.way, 200)
        assert self.heard == ("Two names.", "Two files.", ["stop"])
        assert (self.row["outcome"], self.row["status"], self.row["error"], self.turns) == ("ok", 200, None, 1)


class Front:
    """A client of a served proxy that sees the ledger and the store, too."""

    def __init__(self, proxy: Running) -> None:
        self.proxy = proxy
        self.asked = 0
        self._kept: list[Turn] = []
        store: Any = proxy.pipeline.store
        put = store.put_turn

        def keeps(turn: Turn) -> None:
            self._kept.append(turn)
            put(turn)

        store.put_turn = keeps

    async def ask(self, way: str, within: float = 10.0, **fields: Any) -> Told:
        """Ask and wait for the end. The connection to the backend is let go after it."""
        before = len(self._kept)
        self.asked += 1
        async with asyncio.timeout(within):
            response = await self.proxy.chat(USER, **WAYS[way], **fields)
        row = await self.row(response)
        await self.lets_go()
        return Told(way, response, row, len(self._kept) - before)

    async def row(self, response: httpx.Response) -> dict[str, Any]:
        """The ledger's row of the request that was answered so."""
        for _ in range(200):
            rows = {row["request_id"]: row for row in await self.proxy.rows()}
            if row := rows.get(response.headers["x-request-id"]):
                return row
            await asyncio.sleep(0.01)
        raise AssertionError("the request has no row")

    async def lets_go(self) -> None:
        """Nobody holds a connection to a backend."""
        for _ in range(400):
            if not any(connector._acquired for connector in self._connectors()):
                return
            await asyncio.sleep(0.005)
        raise AssertionError("a connection is still held")

    def _connectors(self) -> Iterator[Any]:
        for backend in self.proxy.pipeline.backends.by_name.values():
            for client in backend._wire._clients.values():
                transport: Any = client._transport
                yield transport.client.connector


def rules_of(fault: Fault) -> Rules:
    """The same for each request, or as it chooses."""
    return fault if callable(fault) else lambda _: fault


Trouble = Callable[..., contextlib.AbstractAsyncContextManager[tuple[FakeBackend, Front]]]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def trouble() -> AsyncIterator[Trouble]:
    """`trouble(fault)`: a backend with this fault, and a client of the proxy in front of it. Nothing is sent twice.

    One proxy serves all tests, as it does its users; and another one those with other settings for the backend.
    """
    async with contextlib.AsyncExitStack() as stack:
        made: dict[frozenset[tuple[str, Any]], tuple[FakeBackend, Front]] = {}

        async def pair(local: Fields) -> tuple[FakeBackend, Front]:
            backend = await stack.enter_async_context(FakeBackend())
            given = settings(backend.url, backends={"local": {**LOCAL, "url": backend.url, **local}})
            return backend, Front(await stack.enter_async_context(serving(given)))

        @contextlib.asynccontextmanager
        async def trouble_with(fault: Fault, **local: Any) -> AsyncIterator[tuple[FakeBackend, Front]]:
            key = frozenset(local.items())
            if key not in made:
                made[key] = await pair(local)
            backend, front = made[key]
            backend.requests.clear()
            backend.others.clear()
            backend.rules, before = rules_of(fault), front.asked
            yield backend, front
            assert len(backend.requests) == front.asked - before

        yield trouble_with


@pytest.fixture(autouse=True)
def _no_fault_of_ours(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No trouble of a backend is a traceback in the log."""
    yield
    ours = [record for record in caplog.get_records("call") if record.name.startswith(("proxy", "asyncio"))]
    assert [record for record in ours if record.exc_info or record.levelno >= logging.ERROR] == []


# No connection -------------------------------------------------------------------------------------------------------


async def told_of(url: str, **local: Any) -> list[str]:
    """The messages of a backend that cannot be reached: nothing was sent, so it may be asked again."""
    given = settings(url, backends={"local": {**LOCAL, "url": url, **local}})
    async with serving(given) as proxy:
        front = Front(proxy)
        told = [await front.ask(way) for way in WAYS]
    unreachable = {"code": "upstream_unreachable", "outcome": "upstream_unreachable"}
    messages = [each.is_refused(**unreachable)["message"] for each in told]
    assert all("backend local" in message and "`url`" in message for message in messages)
    assert {(each.row["completion_tokens"], each.row["cost_usd"]) for each in told} == {(None, None)}
    return messages


async def test_a_connection_that_is_refused_may_be_tried_again():
    """Nothing listens there."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    assert all("Connect" in message for message in await told_of(f"http://127.0.0.1:{port}/v1"))


async def test_a_name_that_nobody_knows_is_told(monkeypatch):
    """The resolver's words go on."""

    def unknown(host, *rest, asks=socket.getaddrinfo, **options):
        if host == "backend.invalid":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return asks(host, *rest, **options)

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert all("Name or service not known" in message for message in await told_of("http://backend.invalid/v1"))


async def test_a_connection_that_is_not_taken_ends_after_connect_timeout():
    """A server whose queue is full does not answer at all."""
    with socket.socket() as full, contextlib.ExitStack() as waiting:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(3):
            client = waiting.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(full.getsockname())
        url = "http://{}:{}/v1".format(*full.getsockname())
        assert all("timeout" in message for message in await told_of(url, connect_timeout=0.1))


# No answer -----------------------------------------------------------------------------------------------------------

OK = "HTTP/1.1 200 OK\r\n"
CHUNKED = "transfer-encoding: chunked"
NO_ANSWER: dict[str, Fault] = {
    "closed before the headers": wire(),
    "reset before the headers": wire().then_abort(),
    "half a status line": wire(b"HTTP/1.1 20"),
    "a banner in place of HTTP": wire(b"SSH-2.0-OpenSSH_9.9\r\n\r\n"),
    "bytes in place of HTTP": wire(bytes(range(256))),
    "headers that break off": wire(OK.encode() + b"content-ty"),
    "a header without a colon": http("no colon here"),
    "a header of 70 KB": http("x-huge: " + "a" * 70_000),
    "a thousand headers": http(*(f"x-{n}: a" for n in range(1000))),
    "a length that is no number": http("content-length: some"),
    "two lengths": http("content-length: 10", "content-length: 20"),
    "chunks that are none": http(CHUNKED, body=lambda data: framed(data) + b"zz\r\n"),
}


@pytest.mark.parametrize("fault", NO_ANSWER.values(), ids=NO_ANSWER)
async def test_no_answer_to_a_request_that_was_sent_is_never_asked_for_again(trouble, fault):
    """502 with the backend's name for each way of asking; nothing is known of what it cost."""
    async with trouble(fault) as (_, front):
        for way in WAYS:
            told = await front.ask(way)
            assert "backend local" in told.is_refused()["message"]
            assert (told.row["completion_tokens"], told.row["reasoning_source"]) == (None, "unknown")


async def test_a_reset_before_the_request_was_read_counts_as_sent():
    """From here nobody can tell how much of it arrived."""
    connections = 0

    async def reset(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        writer.transport.abort()

    async with await asyncio.start_server(reset, "127.0.0.1", 0) as server:
        async with serving(settings("http://{}:{}/v1".format(*server.sockets[0].getsockname()))) as proxy:
            front = Front(proxy)
            for way in WAYS:
                (await front.ask(way)).is_refused()
    assert connections == len(WAYS)


# An answer of another kind -------------------------------------------------------------------------------------------

STAYS = {"location": "https://elsewhere.invalid/v1"}
OTHER_KINDS: dict[str, tuple[Fault, str]] = {
    "octets": (raw(GOOD, headers={"content-type": "application/octet-stream"}).then_stall(), "octet-stream"),
    "204": (wire(b"HTTP/1.1 204 No Content\r\n\r\n"), "204"),
    "304": (wire(b"HTTP/1.1 304 Not Modified\r\n\r\n"), "304"),
    "302 to nowhere": (document("moved", 302), "nowhere"),
    "307": (raw(b"moved", status=307, headers=STAYS).then_stall(), STAYS["location"]),
    "308": (raw(b"moved", status=308, headers=STAYS).then_stall(), STAYS["location"]),
    "101": (wire(b"HTTP/1.1 101 Switching Protocols\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n" + GOOD), "101"),
    "status 999": (wire(b"HTTP/1.1 999 Odd\r\ncontent-length: 2\r\n\r\n{}"), "999"),
}


@pytest.mark.parametrize(("fault", "words"), OTHER_KINDS.values(), ids=OTHER_KINDS)
async def test_an_answer_of_another_kind_is_an_error_before_the_stream_opens(trouble, fault, words):
    """502 that says what came instead; a body that never ends is not waited for."""
    async with trouble(fault) as (backend, front):
        for way in WAYS:
            assert words in (await front.ask(way)).is_refused()["message"]
        stays = [await request.hung_up() for request in backend.requests]
    assert fault.end != "stall" or all(stays)


async def test_a_redirect_is_not_followed(trouble):
    """The prompt, and with it a key, would go to whomever the answer names."""
    async with FakeBackend(answer("not for you")) as other:
        moved = document("moved", 307, {"location": f"{other.url}/chat/completions"})
        async with trouble(moved) as (_, front):
            assert other.url in (await front.ask("whole")).is_refused()["message"]
    assert other.requests == []


async def test_a_stream_for_a_whole_request_is_an_error_and_is_not_read_to_its_end(trouble):
    """Nobody asked for one."""
    async with trouble(raw(GOOD).then_stall()) as (backend, front):
        assert "text/event-stream" in (await front.ask("whole")).is_refused()["message"]
        assert await backend.requests[0].hung_up()


async def test_an_answer_without_a_body_is_an_error(trouble):
    """200 and nothing: no finish, and no JSON."""
    async with trouble(http("content-length: 0", body=lambda _: b"")) as (_, front):
        for way in ("whole", "gathered"):
            (await front.ask(way)).is_refused()
        (await front.ask("stream")).is_broken([])


# Broken in the middle ------------------------------------------------------------------------------------------------

ENDS: dict[str, Callable[[list[Fields]], Fault]] = {
    "reset": lambda said: script(*said).then_abort(),
    "no last chunk": lambda said: script(*said).then_cut(),
    "closed without a finish": lambda said: script(*said),
    "shorter than its length": lambda said: http("content-length: 9999", said=sse(*said), whole=WHOLE[:40]),
    "HTTP/1.0 that breaks off": lambda said: http(start="HTTP/1.0 200 OK", said=sse(*said), whole=WHOLE[:40]),
    "half an event": lambda said: http(said=sse(*said) + b'data: {"choices": [{"ind', whole=WHOLE[:40]),
    "half of a [DONE]": lambda said: http(said=sse(*said) + b"data: [DO", whole=WHOLE[:40]),
}
PLACES = {"in the thought": THOUGHT, "in the text": TEXT, "in a call": CALL}
BROKEN = {
    **{f"reset {place}": (ENDS["reset"], said) for place, said in PLACES.items()},
    **{f"closed {place}": (ENDS["closed without a finish"], said) for place, said in PLACES.items()},
    **{name: (make, TEXT) for name, make in ENDS.items() if name not in ("reset", "closed without a finish")},
}


@pytest.mark.parametrize(("make", "said"), BROKEN.values(), ids=BROKEN)
async def test_what_came_before_an_answer_broke_is_delivered_and_counted(trouble, make, said):
    """Then an error and `[DONE]`; where a whole answer is wanted, 502. Half a turn is never remembered."""
    arguments = "ls" + '{"path": "/da' if said is CALL else ""
    async with trouble(make(said)) as (_, front):
        streamed, gathered = await front.ask("stream"), await front.ask("gathered")
        streamed.is_broken(said)
        gathered.is_refused()
        for told in (streamed, gathered):
            told.has_spent("Two names.", arguments or ("Two " if said is TEXT else ""))


WHOLE_BROKEN: dict[str, Fault] = {
    "reset": raw(WHOLE[:40], headers={"content-type": "application/json"}).then_abort(),
    "no last chunk": raw(WHOLE[:40], headers={"content-type": "application/json"}).then_cut(),
    "shorter than its length": http("content-length: 9999", whole=WHOLE),
    "longer than its length": http("content-length: 40"),
    "HTTP/1.0 that breaks off": http(start="HTTP/1.0 200 OK", whole=WHOLE[:40]),
    "truncated gzip": http("content-encoding: gzip", body=lambda data: gzip(data)[:60]),
    "no gzip": http("content-encoding: gzip"),
    "an encoding that nobody asked for": http("content-encoding: br", body=lambda data: data[::-1]),
}


@pytest.mark.parametrize("fault", WHOLE_BROKEN.values(), ids=WHOLE_BROKEN)
async def test_a_whole_answer_that_breaks_is_502_and_no_turn(trouble, fault):
    """Half a JSON text is no answer, however it came to be half."""
    async with trouble(fault) as (_, front):
        (await front.ask("whole")).is_refused()


@pytest.mark.parametrize("name", ["truncated gzip", "no gzip", "an encoding that nobody asked for"])
async def test_a_stream_that_cannot_be_unpacked_is_an_error_in_the_stream(trouble, name):
    """Nothing of it can be read, and its headers were good."""
    async with trouble(WHOLE_BROKEN[name]) as (_, front):
        (await front.ask("stream")).is_broken([])
        (await front.ask("gathered")).is_refused()


BOOM = {"message": "boom", "type": "server_error", "code": 500}
SGLANG = {"object": "error", "message": "boom", "type": "BadRequestError", "param": None, "code": 400}
OPENROUTER = {**chunk("error", content=""), "error": {"code": 429, "message": "boom"}, "provider": "x"}
ERRORS: dict[str, tuple[list[Fields | str], int]] = {
    "llama-server": ([{"error": BOOM}], 500),
    "vLLM": ([{"error": {**BOOM, "param": None}}, "[DONE]"], 500),
    "SGLang": ([{"error": SGLANG}, "[DONE]"], 400),
    "OpenRouter": ([OPENROUTER, "[DONE]"], 429),
}


@pytest.mark.parametrize("said", [TEXT, []], ids=["in the middle", "first"])
@pytest.mark.parametrize("engine", ERRORS)
async def test_an_error_event_ends_the_stream_whatever_the_engine_sends_after_it(trouble, engine, said):
    """Its words and code go on, and the backend is left though it keeps the connection open."""
    last, status = ERRORS[engine]
    async with trouble(script(*said, *last).then_stall()) as (backend, front):
        streamed, gathered = await front.ask("stream"), await front.ask("gathered")
        assert streamed.is_broken(said, status, status)["message"] == "boom"
        assert gathered.is_refused(status, status, ours=False)["message"] == "boom"
        if said:
            streamed.has_spent("Two names.", "Two ")
            gathered.has_spent("Two names.", "Two ")
        assert all([await request.hung_up() for request in backend.requests])


async def test_an_error_behind_the_finish_is_an_error_all_the_same(trouble):
    """The engine's own word counts for more than its finish; the turn is not remembered."""
    async with trouble(script(*ALL_SAID, {"error": BOOM}).then_stall()) as (_, front):
        (await front.ask("stream")).is_broken(ALL_SAID, 500, 500)
        (await front.ask("gathered")).is_refused(500, 500, ours=False)
