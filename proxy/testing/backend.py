"""The scripted backend: an HTTP/1.1 server on a loopback port, made of raw streams.

No HTTP library, because exact bytes, half answers and resets are what it is for.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import zlib
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from types import TracebackType
from typing import Any, Self

from proxy.messages import Json
from proxy.testing.engines import STYLES
from proxy.testing.replies import SSE, Content, Reply, document, echo
from proxy.testing.request import Request
from proxy.testing.styles import Style

Rules = Callable[[Request], Reply]

CHAT = ("/v1/chat/completions", "/chat/completions")
HEAD_LIMIT = 1 << 20  # bytes of a request's head
GRACE = 0.02  # seconds before a reset: some systems drop what was sent and not yet read


class Gone(Exception):
    """The peer left while an answer was due."""


class FakeBackend:
    """A backend that answers chat requests by a script.

    Each chat request takes the next of `replies`, the last one repeats; or `rules` picks the reply; without either the
    backend echoes. `paths` gives replies, or rules, to other paths. `requests` are the chat requests in the order of
    their arrival, `others` the rest. An exception that a rule raises is raised again when the context ends.
    """

    def __init__(
        self,
        *replies: Reply,
        rules: Rules | None = None,
        paths: Mapping[str, Reply | Rules] | None = None,
        style: str = "openai",
        model: str = "fake",
        context: int = 131072,
        port: int = 0,
    ) -> None:
        self.replies = replies
        self.rules = rules or (self._next if replies else echo)
        if style not in STYLES:
            raise ValueError(f"there is no style {style!r}; known: {', '.join(STYLES)}")
        self.style = STYLES[style]
        self.port = port
        self.requests: list[Request] = []
        self.others: list[Request] = []
        doors = {path: _door(answer) for path, answer in self.style.doors(model, context).items()}
        self.paths: dict[str, Reply | Rules] = {**doors, **(paths or {})}
        self._arrivals: asyncio.Queue[Request] = asyncio.Queue()
        self._connections: set[asyncio.Task[None]] = set()
        self._failures: list[Exception] = []

    @property
    def url(self) -> str:
        """The base URL for clients, with `/v1`."""
        return f"http://127.0.0.1:{self.port}/v1"

    async def request_arrived(self, within: float = 5.0) -> Request:
        """The next chat request that this method has not given yet, as soon as it is there, answered or not."""
        return await asyncio.wait_for(self._arrivals.get(), within)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port, limit=HEAD_LIMIT)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        if self._failures and not problem:
            raise self._failures[0]

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(Peer(reader, writer)))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, peer: Peer) -> None:
        """Answer the requests of one connection, one after the other."""
        try:
            while (request := await peer.request()) and await self._answer(request, peer):
                pass
        except Exception as failure:  # a fault of a rule must reach the test
            self._failures.append(failure)
        finally:
            peer.close()

    async def _answer(self, request: Request, peer: Peer) -> bool:
        """True while the connection may be used again."""
        try:
            return await Answer(self._reply(request), request, peer).send(self.style)
        except (Gone, ConnectionError):
            request.closed_by_peer = True
            return False
        finally:
            request.over.set()

    def _reply(self, request: Request) -> Reply:
        if request.method == "POST" and request.path in CHAT:
            request.number = len(self.requests)
            self.requests.append(request)
            self._arrivals.put_nowait(request)
            return self.rules(request)
        self.others.append(request)
        found = self.paths.get(request.path)
        if found is None:
            controlled = self.style.control(request, self.requests)
            found = _door(self.style.unknown) if controlled is None else document(*controlled)
        return found if isinstance(found, Reply) else found(request)

    def _next(self, request: Request) -> Reply:
        return self.replies[min(request.number, len(self.replies) - 1)]


class Peer:
    """The other end of a connection.

    The head of its next request is read ahead while an answer is due: so it shows when the peer leaves.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.left = asyncio.Event()
        self._head = asyncio.create_task(self._read_head())
        writer.transport.set_write_buffer_limits(0)  # so that a drained write is with the system

    async def request(self) -> Request | None:
        """The next request; None when the peer has left."""
        if not (head := await self._head):
            return None
        first, *lines = head.decode("latin-1").rstrip().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        method, target, _ = first.split(" ", 2)
        path, _, query = target.partition("?")
        try:
            body = await self._body(headers)
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        self._head = asyncio.create_task(self._read_head())
        return Request(method, path, query, headers, body)

    async def write(self, data: bytes) -> None:
        """Write, and let others have a turn; fails when the peer has left."""
        if self.left.is_set():
            raise Gone
        self.writer.write(data)
        await self.writer.drain()
        await asyncio.sleep(0)

    async def wait(self, for_what: Awaitable[Any]) -> None:
        """Wait, unless the peer leaves first."""
        tasks = [asyncio.ensure_future(for_what), asyncio.ensure_future(self.left.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
        if self.left.is_set():
            raise Gone

    def close(self) -> None:
        """Close the connection; what was written is still delivered."""
        self._head.cancel()
        self.writer.transport.abort()

    def reset_on_close(self) -> None:
        """Let the close be a reset."""
        linger = struct.pack("ii", 1, 0)
        self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)

    async def _read_head(self) -> bytes:
        try:
            return await self.reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            self.left.set()
            return b""

    async def _body(self, headers: dict[str, str]) -> bytes:
        if headers.get("expect", "").lower() == "100-continue":
            self.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if "chunked" not in headers.get("transfer-encoding", "").lower():
            return await self.reader.readexactly(int(headers.get("content-length") or 0))
        parts = []
        while size := int((await self.reader.readline()).split(b";")[0], 16):
            parts.append(await self.reader.readexactly(size))
            await self.reader.readline()
        while (await self.reader.readline()).strip():
            pass  # trailers
        return b"".join(parts)


class Answer:
    """One reply on its way out."""

    def __init__(self, reply: Reply, request: Request, peer: Peer) -> None:
        self.reply = reply
        self.request = request
        self.peer = peer
        self.headers = {name.lower(): value for name, value in reply.headers.items()}
        fits = "gzip" in request.headers.get("accept-encoding", "") and "content-length" not in self.headers
        self.packer = zlib.compressobj(wbits=31) if reply.compress and fits else None
        self.chunked = False

    async def send(self, style: Style) -> bool:
        """True while the connection may be used again."""
        await self._pause(self.reply.start)
        content = self.reply.content(self.request, style)
        if not self.reply.bare:
            content = self._pack_whole(content)
            await self.peer.write(self._head(content, style))
        for step in self.reply.steps(content):
            if isinstance(step, bytes):
                await self._write(step)
            else:
                await self._pause(step)
        return await self._end()

    async def _end(self) -> bool:
        end = self.reply.end
        if end == "stall":
            await self._pause(asyncio.Event())
        if end == "abort":
            await asyncio.sleep(GRACE)
            self.peer.reset_on_close()
        if end in ("abort", "cut"):
            return False
        if self.chunked:
            rest = self.packer.flush() if self.packer else b""
            with contextlib.suppress(Gone, ConnectionError):  # a peer may leave at `[DONE]`
                await self.peer.write(_chunk(rest) + b"0\r\n\r\n")
        return end == "complete" and self.request.headers.get("connection", "").lower() != "close"

    async def _pause(self, step: float | asyncio.Event) -> None:
        if isinstance(step, asyncio.Event):
            await self.peer.wait(step.wait())
        elif step:
            await self.peer.wait(asyncio.sleep(step))

    async def _write(self, data: bytes) -> None:
        if self.chunked and self.packer:
            data = self.packer.compress(data) + self.packer.flush(zlib.Z_SYNC_FLUSH)
        if data:
            await self.peer.write(_chunk(data) if self.chunked else data)
            self.request.wrote()

    def _pack_whole(self, content: Content) -> Content:
        if not (content.whole and self.packer):
            return content
        plain = b"".join(step for step in content.steps if isinstance(step, bytes))
        return content._replace(steps=[self.packer.compress(plain) + self.packer.flush()])

    def _head(self, content: Content, style: Style) -> bytes:
        headers = {"content-type": content.type, **style.headers}
        if content.type == SSE:
            headers |= style.stream_headers
        if self.packer:
            headers["content-encoding"] = "gzip"
        if content.whole:
            headers["content-length"] = str(sum(len(step) for step in content.steps if isinstance(step, bytes)))
        if self.reply.status >= 400:
            headers |= style.error_headers(self.reply.status)
        headers |= self.headers
        self.chunked = "content-length" not in headers
        if self.chunked:
            headers["transfer-encoding"] = "chunked"
        status = self.reply.status
        reason = HTTPStatus(status).phrase if status in set(HTTPStatus) else "Status"
        lines = [f"HTTP/1.1 {status} {reason}", *(f"{name}: {value}" for name, value in headers.items())]
        return "\r\n".join([*lines, "", ""]).encode("latin-1")


def _door(answer: Json) -> Reply | Rules:
    return (lambda request: document(*answer(request))) if callable(answer) else document(answer)


def _chunk(data: bytes) -> bytes:
    """Framed as a chunk. No data is no chunk: an empty one would be the end."""
    return b"%x\r\n%s\r\n" % (len(data), data) if data else b""
