"""The scripted backend: what a client of it sees, byte for byte, and what it remembers of its clients."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import struct
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from proxy.testing import FakeBackend, Reply, Request, Rules, answer, document, error, events, raw, wire

TLS = ssl.create_default_context()  # made once: it is most of the cost of a client
ASK: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "What is there?"}]}
STREAM = ASK | {"stream": True}


async def post(
    backend: FakeBackend, body: dict[str, Any], path: str = "/chat/completions", patience: float = 5.0, **more: Any
) -> httpx.Response:
    """One request over a connection of its own."""
    async with httpx.AsyncClient(timeout=httpx.Timeout(5, read=patience), verify=TLS) as client:
        return await client.post(backend.url + path, json=body, **more)


@asynccontextmanager
async def streamed(backend: FakeBackend) -> AsyncIterator[httpx.Response]:
    """A stream that is being read."""
    async with (
        httpx.AsyncClient(timeout=5, verify=TLS) as client,
        client.stream("POST", backend.url + "/chat/completions", json=STREAM) as response,
    ):
        yield response


@asynccontextmanager
async def connection(backend: FakeBackend) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A bare connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", backend.port)
    try:
        yield reader, writer
    finally:
        writer.close()


def http(body: bytes = b"{}", *headers: str) -> bytes:
    """A chat request as bytes."""
    lines = ["POST /v1/chat/completions HTTP/1.1", "host: x", f"content-length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


class TestBytes:
    """What is scripted is what arrives."""

    async def test_events_are_data_or_bytes(self) -> None:
        """A dict and a str are the data of an event, bytes stand for themselves, and no `[DONE]` is added."""
        script = events({"a": "ä"}, "x\ny", b": ping\n\n", "[DONE]")
        async with FakeBackend(script) as backend:
            response = await post(backend, STREAM)
        assert response.content == 'data: {"a":"ä"}\n\ndata: x\ndata: y\n\n: ping\n\ndata: [DONE]\n\n'.encode()
        assert response.headers["content-type"] == "text/event-stream"

    async def test_raw_is_a_write_each(self) -> None:
        """Bytes arrive exactly, cut where they were cut, and an empty write does not end the body."""
        parts = [b"data: \xe2", b"", b"\x80\xa8\r", b"\n\r\n", bytes(range(256))]
        async with FakeBackend(raw(*parts)) as backend, connection(backend) as (reader, writer):
            writer.write(http())
            await reader.readuntil(b"\r\n\r\n")
            for part in filter(None, parts):
                assert int(await reader.readline(), 16) == len(part)
                assert await reader.readexactly(len(part) + 2) == part + b"\r\n"
            assert await reader.readexactly(5) == b"0\r\n\r\n"

    async def test_raw_with_a_length_is_not_chunked(self) -> None:
        """Headers and status are the script's; a content-length is believed."""
        script = raw(b'{"a"', b": 1}", status=529, headers={"Content-Length": "8", "content-type": "application/json"})
        async with FakeBackend(script) as backend:
            response = await post(backend, ASK)
        assert (response.status_code, response.json()) == (529, {"a": 1})
        assert "transfer-encoding" not in response.headers

    @pytest.mark.parametrize("parts", [(b"HTTP/1.1 200 OK\r\n", b"half a head"), ()])
    async def test_wire_replaces_http(self, parts: tuple[bytes, ...]) -> None:
        """The bytes, or none, go out without a head, then the connection ends."""
        async with FakeBackend(wire(*parts)) as backend, connection(backend) as (reader, writer):
            writer.write(http())
            assert await reader.read() == b"".join(parts)

    async def test_an_error_body_can_be_anything(self) -> None:
        """A dict and bytes are sent as they are, with the script's headers."""
        replies = error(429, {"detail": "slow"}, {"retry-after": "7"}), error(502, b"<html>")
        async with FakeBackend(*replies) as backend:
            first, second = await post(backend, ASK), await post(backend, ASK)
        assert (first.json(), first.headers["retry-after"]) == ({"detail": "slow"}, "7")
        assert (second.status_code, second.content) == (502, b"<html>")

    @pytest.mark.parametrize("body", [ASK, STREAM])
    async def test_gzip_only_where_it_is_accepted(self, body: dict[str, Any]) -> None:
        """A client that accepts gzip gets it, another gets the plain bytes."""
        async with FakeBackend(answer("Hello.", reasoning="Hm.").gzipped()) as backend:
            packed = await post(backend, body)
            plain = await post(backend, body, headers={"accept-encoding": "br"})
        assert packed.headers["content-encoding"] == "gzip"
        assert "content-encoding" not in plain.headers
        assert packed.text.replace("chatcmpl-0", "chatcmpl-1") == plain.text

    async def test_each_compressed_event_can_be_read_at_once(self) -> None:
        """Every write of a compressed stream is flushed."""
        go = asyncio.Event()
        async with FakeBackend(events("one", go, "two").gzipped()) as backend, streamed(backend) as response:
            texts = response.aiter_text()
            assert await anext(texts) == "data: one\n\n"
            go.set()
            assert "".join([text async for text in texts]) == "data: two\n\n"


class TestRequests:
    """What the backend remembers."""

    async def test_a_request_is_kept_as_it_came(self) -> None:
        """Body as bytes and decoded, headers in lower case, path and query."""
        payload = b'{ "model":"m",\n"b":1.0}'
        async with FakeBackend() as backend:
            await post(backend, {}, "/chat/completions?a=1", content=payload, headers={b"X-Name": "Ä".encode()})
            [request] = backend.requests
        assert (request.raw, request.body) == (payload, {"model": "m", "b": 1.0})
        assert (request.method, request.path, request.query) == ("POST", "/v1/chat/completions", "a=1")
        assert request.headers["x-name"].encode("latin-1") == "Ä".encode()

    async def test_a_body_that_is_no_json(self) -> None:
        """Such a body is None, and `get` finds nothing in it."""
        request = Request("POST", "/", "", {}, b"{")
        assert (request.body, request.get("model", "-"), request.messages) == (None, "-", [])

    async def test_chunked_and_expected_bodies(self) -> None:
        """A body in chunks with a trailer is put together; `expect: 100-continue` is answered."""
        head = b"POST /chat/completions HTTP/1.1\r\ntransfer-encoding: chunked\r\nexpect: 100-continue\r\n\r\n"
        async with FakeBackend(document({})) as backend, connection(backend) as (reader, writer):
            writer.write(head)
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(b'3;x=y\r\n{"a\r\nB\r\n": "567890"\r\n1\r\n}\r\n0\r\nt: u\r\n\r\n')
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        assert backend.requests[0].raw == b'{"a": "567890"}'

    async def test_replies_in_order_and_the_last_repeats(self) -> None:
        """One reply a chat request; requests to other paths take none."""
        async with FakeBackend(answer("one"), answer("two")) as backend:
            await post(backend, {}, "/embeddings")
            texts = [(await post(backend, ASK)).json()["choices"][0]["message"]["content"] for _ in range(3)]
        assert texts == ["one", "two", "two"]

    async def test_rules_pick_the_reply(self) -> None:
        """A callable sees the request."""

        def rules(request: Request) -> Reply:
            return answer("calm") if request.get("reasoning_effort") == "low" else error(400, "too much")

        async with FakeBackend(rules=rules) as backend:
            assert (await post(backend, ASK | {"reasoning_effort": "low"})).is_success
            assert (await post(backend, ASK)).json()["error"]["message"] == "too much"

    async def test_a_broken_rule_fails_the_test(self) -> None:
        """The exception of a rule comes out of the context."""

        def rules(request: Request) -> Reply:
            raise LookupError("not scripted")

        backend = FakeBackend(rules=rules)
        await backend.__aenter__()
        with pytest.raises(httpx.RemoteProtocolError):
            await post(backend, ASK)
        with pytest.raises(LookupError, match="not scripted"):
            await backend.__aexit__(None, None, None)

    async def test_other_paths_are_scripted_by_name(self) -> None:
        """`paths` takes replies and rules, also in place of a side door, and records apart from the chats."""
        paths: dict[str, Reply | Rules] = {
            "/v1/embeddings": document({"data": []}),
            "/v1/tokenize": lambda request: document({"tokens": list(request.body["content"])}),
            "/v1/models": error(503, "Loading model"),
        }
        async with FakeBackend(paths=paths, style="llama-server") as backend:
            assert (await post(backend, {}, "/embeddings")).json() == {"data": []}
            assert (await post(backend, {"content": "ab"}, "/tokenize")).json() == {"tokens": ["a", "b"]}
            assert (await post(backend, {}, "/models")).status_code == 503
            assert [request.path for request in backend.others] == ["/v1/embeddings", "/v1/tokenize", "/v1/models"]

    async def test_without_a_script_it_echoes(self) -> None:
        """The default answer repeats the question and says which past thoughts came along."""
        past = [{"role": "assistant", "content": "a", "reasoning": "b"}, {"role": "assistant", "content": "c"}]
        ask = {"role": "user", "content": [{"type": "text", "text": "And now?"}]}
        async with FakeBackend() as backend:
            message = (await post(backend, {"messages": [*past, ask]})).json()["choices"][0]["message"]
        assert message["content"] == "You said: And now?"
        assert "Of 2 earlier answers, 1 came back" in message["reasoning_content"]


class TestTime:
    """Silence, holds and endings, without a clock where it can be."""

    async def test_silence_before_the_headers(self) -> None:
        """`after(event)` sends nothing until the event is set; the request can be seen before."""
        go = asyncio.Event()
        async with FakeBackend(answer("x").after(go)) as backend:
            pending = asyncio.create_task(post(backend, ASK))
            request = await backend.request_arrived()
            assert request is backend.requests[0]
            assert not pending.done()
            go.set()
            assert (await pending).is_success

    async def test_requests_arrive_one_by_one(self) -> None:
        """`request_arrived` gives each chat request once, and complains when none comes."""
        async with FakeBackend() as backend:
            await asyncio.gather(post(backend, ASK), post(backend, ASK))
            assert [await backend.request_arrived() for _ in range(2)] == backend.requests
            with pytest.raises(TimeoutError):
                await backend.request_arrived(within=0.01)

    @pytest.mark.parametrize("reply", [answer("a b c"), events({}, {}, {}, {}), raw(b"a", b"b", b"c", b"d")])
    async def test_a_held_stream_shows_what_came_before(self, reply: Reply) -> None:
        """`hold` stops after so many writes, and what was written can be read."""
        go = asyncio.Event()
        async with FakeBackend(reply.hold(go, after=2)) as backend, streamed(backend) as response:
            parts = response.aiter_bytes()
            before = await anext(parts)
            while before.count(b"\n\n") < 2 and before != b"ab":
                before += await anext(parts)
            go.set()
            assert b"".join([part async for part in parts])

    @pytest.mark.parametrize(
        ("reply", "sent", "least"),
        [
            (answer("a b c", gap=0.01), 6, 0.05),
            (answer("a b c", gap=0.01).first(3), 3, 0.02),
            (events("a", 0.02, "b", gap=0.01), 2, 0.03),
        ],
    )
    async def test_gaps_pauses_and_an_early_end(self, reply: Reply, sent: int, least: float) -> None:
        """A gap is between events, a pause where it stands, and `first` ends a stream in good order."""
        loop = asyncio.get_running_loop()
        async with FakeBackend(reply) as backend:
            start = loop.time()
            assert (await post(backend, STREAM)).text.count("data: ") == sent
            assert loop.time() - start >= least * 0.9

    async def test_a_reset_is_seen_after_what_was_sent(self) -> None:
        """`then_abort` resets the connection; the events before it arrive."""
        async with FakeBackend(events("one", "two").then_abort()) as backend, connection(backend) as (reader, writer):
            writer.write(http())
            assert b"data: two" in await reader.readuntil(b"two\n\n")
            with pytest.raises(ConnectionResetError):
                await reader.read()
            assert not await backend.requests[0].hung_up()

    async def test_a_cut_is_an_incomplete_body(self) -> None:
        """`then_cut` closes in the middle of a body, chunked or not."""
        half = raw(b'{"id"', headers={"content-length": "100"})
        async with FakeBackend(events("one").then_cut(), answer("x").first(0).then_cut(), half.then_cut()) as backend:
            for body in (STREAM, ASK, ASK):
                with pytest.raises(httpx.RemoteProtocolError, match="without sending complete"):
                    await post(backend, body)

    @pytest.mark.parametrize("reply", [answer("x").after(60), events("one").then_stall()])
    async def test_silence_lasts_until_the_client_leaves(self, reply: Reply) -> None:
        """`after(seconds)` and `then_stall` outlast the client's patience, and the backend knows when it left."""
        async with FakeBackend(reply) as backend:
            with pytest.raises(httpx.ReadTimeout):
                await post(backend, STREAM, patience=0.05)
            assert await (await backend.request_arrived()).hung_up()

    @pytest.mark.parametrize("body", [ASK, STREAM])
    async def test_a_client_that_hangs_up_is_noticed(self, body: dict[str, Any]) -> None:
        """Whoever leaves before the answer is complete is marked, at once and without a further write."""
        never = asyncio.Event()
        async with FakeBackend(answer("a b c").after(never), answer("a b c").hold(never)) as backend:
            for _ in range(2):
                pending = asyncio.create_task(post(backend, body))
                request = await backend.request_arrived()
                assert not request.closed_by_peer
                pending.cancel()
                assert await request.hung_up()

    async def test_how_much_left_before_a_client_did_is_known(self) -> None:
        """`writes` are the events that the client was sent, and all of them where it stayed."""
        never = asyncio.Event()
        async with FakeBackend(answer("a b c").hold(never, after=3), answer("a b c")) as backend:
            async with streamed(backend) as response:
                assert await anext(response.aiter_bytes())
                await backend.requests[0].written(3)
                with pytest.raises(TimeoutError):
                    await backend.requests[0].written(4, within=0.01)
            assert await backend.requests[0].hung_up()
            await post(backend, STREAM)
            assert not await backend.requests[1].hung_up()
        assert [request.writes for request in backend.requests] == [3, 6]

    async def test_a_client_that_resets_is_noticed(self) -> None:
        """A reset by the client is a hang-up too."""
        async with FakeBackend(answer("a").after(60)) as backend, connection(backend) as (_, writer):
            writer.write(http())
            request = await backend.request_arrived()
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            writer.transport.abort()
            assert await request.hung_up()


class TestConnections:
    """Kept, reused and closed."""

    async def test_a_connection_is_kept(self) -> None:
        """Whole answers, streams and errors follow one another on one connection, also when asked ahead."""
        replies = answer("one"), answer("two"), error(500, "three"), answer("four").gzipped()
        async with FakeBackend(*replies) as backend, connection(backend) as (reader, writer):
            stream = json.dumps(STREAM).encode()
            writer.write(http() + http(stream) + http() + http(b"{}", "accept-encoding: gzip", "connection: close"))
            found = await reader.read()
        assert [found.count(word) for word in (b"HTTP/1.1", b"one", b"two", b"three", b"gzip")] == [4, 1, 1, 1, 1]
        assert [request.closed_by_peer for request in backend.requests] == [False] * 4

    async def test_an_unannounced_close(self) -> None:
        """`then_close` completes the answer and leaves a pooled connection dead."""
        async with FakeBackend(answer("x").then_close()) as backend, connection(backend) as (reader, writer):
            writer.write(http())
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
            assert json.loads(body)["choices"]
            assert b"connection" not in head.lower()

    async def test_leaving_the_context_ends_everything(self) -> None:
        """Held answers end with the backend, and nobody can connect any more."""
        async with FakeBackend(answer("x").after(60)) as backend:
            pending = asyncio.create_task(post(backend, ASK))
            request = await backend.request_arrived()
        with pytest.raises(httpx.TransportError):
            await pending
        assert not await request.hung_up()
        with pytest.raises(httpx.ConnectError):
            await post(backend, ASK)


async def test_it_runs_as_a_program() -> None:
    """`python -m proxy.testing` serves an echo in the style asked for and says where."""
    command = [sys.executable, "-m", "proxy.testing", "--port", "0", "--style", "vllm", "--gap", "0"]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout
        url = (await asyncio.wait_for(process.stdout.readline(), 20)).decode().split()[-1]
        async with httpx.AsyncClient(timeout=5, verify=TLS) as client:
            message = (await client.post(url + "/chat/completions", json=ASK)).json()["choices"][0]["message"]
        assert message["content"] == "You said: What is there?"
        assert message["reasoning"]
    finally:
        process.terminate()
        await process.wait()
