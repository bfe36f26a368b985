"""Long histories, large bodies, long thoughts, and clients that are slow to read."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from running import events, serving, settings

from proxy.testing import FakeBackend, Reply, answer
from proxy.testing.replies import SSE, Content

USER = {"role": "user", "content": "hi"}
MB = 1_048_576


async def test_a_body_as_large_as_allowed_goes_through_byte_for_byte():
    """64 MB, most of it one picture; one byte more is refused before anything is sent."""
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": [picture]}]}).encode()
    room = 64 * MB - len(body)
    large = body.replace(b"base64,", b"base64," + b"A" * room)
    async with FakeBackend(answer("seen")) as backend, serving(settings(backend.url)) as proxy:
        headers = {"content-type": "application/json"}
        taken = await proxy.http.post(f"{proxy.url}/chat/completions", content=large, headers=headers)
        refused = await proxy.http.post(f"{proxy.url}/chat/completions", content=large + b" ", headers=headers)
        (request,) = backend.requests
        assert (taken.status_code, refused.status_code) == (200, 413)
        assert b"A" * room in request.raw


async def test_a_history_of_a_million_tokens_gets_its_thoughts_back():
    """Two thousand turns of two kilobytes: the last one's thought is restored, and all messages arrive as they were."""
    said = [{"role": ("user", "assistant")[at % 2], "content": f"{at} " + "word " * 400} for at in range(4000)]
    async with FakeBackend(answer("So.", reasoning="last thought")) as backend, serving(settings(backend.url)) as proxy:
        first = await proxy.chat(*said, USER)
        second = await proxy.chat(*said, USER, {"role": "assistant", "content": "So."}, USER)
        upstream = backend.requests[1].body["messages"]
    assert (first.status_code, second.status_code) == (200, 200)
    assert "restored=1" in second.headers["x-proxy-history"]
    assert upstream[:4001] == [*said, USER]
    assert upstream[4001]["reasoning_content"] == "last thought"


async def test_a_thought_of_ten_thousand_events_arrives_whole_and_in_order():
    """None is lost, doubled, or moved."""
    thought = " ".join(map(str, range(10_000)))
    async with FakeBackend(answer("So.", reasoning=thought)) as backend, serving(settings(backend.url)) as proxy:
        response = await proxy.chat(USER, stream=True)
    chunks = [json.loads(data) for data in events(response.text)[:-1]]
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    assert "".join(delta.get("reasoning_content") or "" for delta in deltas) == thought


def endless(size: int) -> Reply:
    """A stream that never ends, of events with so many characters."""

    def chunks() -> Iterator[bytes]:
        while True:
            delta = {"index": 0, "delta": {"reasoning_content": "x" * size}, "finish_reason": None}
            chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [delta]}
            yield b"data: " + json.dumps(chunk).encode() + b"\n\n"

    return Reply(lambda request, style: Content(SSE, chunks()))


@pytest.mark.parametrize("detach", [False, True])
async def test_a_client_that_does_not_read_stops_the_backend(detach):
    """What is buffered on the way is bounded; when the client leaves, so does the work, unless it is to go on."""
    async with FakeBackend(endless(10_000)) as backend:
        tables = {"backends": {"local": {**_local(backend.url), "detach": detach}}}
        async with serving(settings(backend.url, **tables)) as proxy:
            reader, writer = await _asking(proxy.url)
            request = await backend.request_arrived()
            written = -1
            while written != request.writes:  # till everything on the way is full
                written = request.writes
                await asyncio.sleep(0.3)
            assert 0 < written < 2_000  # 20 MB
            await reader.readexactly(5 * MB)
            await request.written(written + 50)
            writer.transport.abort()
            if not detach:
                assert await request.hung_up()
                (row,) = await proxy.rows()
                assert row["outcome"] == "client_disconnected"
                assert row["completion_tokens"] > 0
            else:  # nobody holds it up any more
                await request.written(request.writes + 200)


def _local(url: str) -> dict[str, Any]:
    return {"url": url, "engine": "kimi", "family": "kimi-k3", "models": ["m"], "slow": False}


async def _asking(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A streamed request on a connection with small buffers."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", urlsplit(url).port))
    reader, writer = await asyncio.open_connection(sock=sock, limit=65536)
    body = json.dumps({"model": "m", "messages": [USER], "stream": True}).encode()
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n")
    writer.write(b"content-length: %d\r\n\r\n" % len(body) + body)
    return reader, writer
