"""Those who wait for an answer: what each is shown of it, and how its connection is kept alive till then.

A listener is a client's side of one generation, and the body of the reply to it. The generation pushes, in its own
task; the door that holds the reply takes what is written as fast as its client reads.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from typing import ClassVar, Protocol

from proxy import config, headers, render, sse
from proxy.doors import Gone, Reply, Write
from proxy.errors import ProxyError
from proxy.events import Event
from proxy.record import Record


class Source(Protocol):
    """What makes the answer that a listener waits for."""

    @property
    def record(self) -> Record:
        """The account of it."""

    @property
    def hold_up(self) -> str:
        """What it waits for, in words; empty where the engine writes."""

    def headers(self) -> list[tuple[str, str]]:
        """Those of a reply, as far as they are known."""

    def whole(self) -> Event:
        """All of it, at its end."""

    def end(self, error: ProxyError | None) -> Event:
        """Let it come to nothing; what was held back."""

    async def left(self, listener: Listener) -> None:
        """That one listens no more."""


class Listener(ABC):
    """One client of one generation. Whoever holds it calls `aclose`."""

    hears: ClassVar[bool]
    """It is told of the answer while that grows."""

    def __init__(self, source: Source, record: Record, view: render.View, every: float) -> None:
        """`record` is that of the client's own request; silence is broken `every` so many seconds, 0: never."""
        self._source = source
        self._view = view
        self._every = every
        self._loop = asyncio.get_running_loop()
        self._reply: asyncio.Future[Reply] = self._loop.create_future()
        self._replied = False
        self._over = asyncio.Event()
        self._fed = asyncio.Event()
        self._first = b""  # what is due as soon as somebody takes it
        self._write: Write | None = None
        self._writes = False
        self._wrote = self._loop.time()
        self._keeping: asyncio.Task[None] | None = None
        self._clock = self._loop.call_later(every, self._tick) if every else None
        self.gone = False
        """Nobody is there any more."""
        self.record = record
        self._rejoined = record is not source.record
        self.is_delivered = False
        """The client was given all of it."""

    # The door's side

    async def reply(self) -> Reply:
        """What the client is answered: as soon as its status is known, or when its connection must be kept alive.

        Raises ProxyError where there is nothing but an error.
        """
        reply = await self._reply
        del self._reply  # which holds this listener, as the body
        self.is_delivered = isinstance(reply.body, bytes)
        return reply

    def _answer(self, reply: Reply) -> None:
        """That is what the client is answered, unless it was before."""
        if not self._replied:
            self._replied = True
            if not self._reply.done():  # cancelled: nobody waits for it any more
                self._reply.set_result(reply)

    async def feed(self, write: Write) -> None:
        """Give the body to `write` as it comes; returns at its end."""
        self._write = write
        first, self._first = self._first, b""
        if first:
            await self._give(write, first)
        self._fed.set()
        await self._over.wait()

    def delivered(self) -> None:
        """All of the body is with the client."""
        self.is_delivered = not self.gone

    def interrupt(self, error: ProxyError) -> bytes:
        """End the answer for a reason of ours: the last bytes. Nothing where it had come to its end."""
        if self._over.is_set():
            return b""
        self.gone = True
        rest = self._source.end(error)
        self.record.failed(error)  # where it is not the account that was just closed
        return self._broken(rest, error)

    async def aclose(self) -> None:
        """The client has all, or has left."""
        self.gone = True
        self._stop()
        self._fed.set()
        if self._rejoined:
            self.record.finish("client_disconnected")  # unless it has come to its end
        await self._source.left(self)

    # The generation's side

    @abstractmethod
    def opened(self, status: int) -> None:
        """The backend answers."""

    @abstractmethod
    async def heard(self, events: list[Event]) -> None:
        """More of the answer."""

    @abstractmethod
    async def waits(self) -> None:
        """What holds the answer up has changed."""

    @abstractmethod
    def catch_up(self, events: list[Event]) -> None:
        """What was said before this one came."""

    @abstractmethod
    async def complete(self, events: list[Event], rest: Event, usage: object) -> None:
        """The last of the answer, with what was held back; `usage` is told where the engine has told none."""

    async def failed(self, rest: Event, error: ProxyError) -> None:
        """The answer broke, or there is none."""
        self.record.failed(error)
        if self._replied:
            await self._put(self._broken(rest, error))
        else:
            self._replied = True
            if not self._reply.done():
                self._reply.set_exception(error)
        self._end()

    async def refused(self, status: int, told: list[tuple[str, str]], body: bytes) -> None:
        """The backend's own error in the place of an answer."""
        self._take_over()
        if self._replied:
            await self._put(self._refusal(body))
        self._answer(Reply(status, told, body))
        self._end()

    # What the two kinds do each in its way

    @abstractmethod
    def _broken(self, rest: Event, error: ProxyError) -> bytes:
        """How a body ends that has begun, when the answer broke."""

    @abstractmethod
    def _refusal(self, body: bytes) -> bytes:
        """The same where the backend refused after all."""

    @abstractmethod
    def _opening(self) -> Reply:
        """The reply whose status nobody knows yet."""

    @abstractmethod
    def _silence(self) -> bytes:
        """What breaks the silence."""

    def _take_over(self) -> None:
        """What became of the answer is what became of the request that listens to it."""
        if self._rejoined and not self.gone:
            self.record.shares(self._source.record)

    def _end(self) -> None:
        self._stop()
        self._over.set()

    def _stop(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None

    async def _put(self, piece: bytes) -> None:
        """Write a piece as soon as the door takes it; waits where the client is slow to read."""
        if not self._fed.is_set():
            await self._fed.wait()
        if piece and self._write is not None and not self.gone:
            await self._give(self._write, piece)

    async def _give(self, write: Write, piece: bytes) -> None:
        self._writes = True
        try:
            await write(piece)
        except Gone:
            self.gone = True
        finally:
            self._writes = False
            self._wrote = self._loop.time()

    def _tick(self) -> None:
        """Break the silence where it is due, and look again when it may be."""
        left = self._wrote + self._every - self._loop.time()
        if left <= 0:
            left = self._every
            if not self._replied:
                self._first = self._silence()
                self._answer(self._opening())
            elif self._write is not None:
                self._keeping = self._loop.create_task(self._keep_alive(self._write), name="keep-alive")
        self._clock = self._loop.call_later(left, self._tick)

    async def _keep_alive(self, write: Write) -> None:
        """Nothing may follow the end, which may have come before; and whoever does not read needs no sign of life."""
        if not (self._over.is_set() or self._writes or self.gone) and (piece := self._silence()):
            await self._give(write, piece)


class Streaming(Listener):
    """Wants a stream of events."""

    hears = True

    def __init__(
        self, source: Source, record: Record, view: render.View, server: config.Server, *, progress: bool
    ) -> None:
        """`progress`: it wants to know how far its prompt is read."""
        super().__init__(source, record, view, 0 if server.keepalive == "off" else server.keepalive_seconds)
        self._comments = server.keepalive == "comment"
        self._progress = progress and self._comments
        self._created = int(time.time())

    def opened(self, status: int) -> None:
        self._answer(Reply(status, [*self._source.headers(), *headers.STREAM], self))

    async def heard(self, events: list[Event]) -> None:
        await self._put(b"".join(map(self._view.event, events)))

    async def waits(self) -> None:
        if self._progress and self._replied:
            await self._put(self._silence())

    def catch_up(self, events: list[Event]) -> None:
        self._first = b"".join(map(self._view.event, events))

    async def complete(self, events: list[Event], rest: Event, usage: object) -> None:
        said = b"".join(map(self._view.event, events)) + self._view.rest(rest.parts)
        await self._put(said + self._view.close(self._source.record.fold, usage))
        self._take_over()
        self._end()

    def _broken(self, rest: Event, error: ProxyError) -> bytes:
        told = render.failure(error.message, error.type, error.code)
        return self._view.rest(rest.parts) + self.record.safe(told.decode()).encode()

    def _refusal(self, body: bytes) -> bytes:
        return sse.encode(body) + sse.DONE_EVENT

    def _opening(self) -> Reply:
        return Reply(200, [*self._source.headers(), *headers.STREAM], self)

    def _silence(self) -> bytes:
        """A comment, which readers of such streams leave out; or, for those that do not, a chunk without a word."""
        if self._comments:
            return f": {self._source.hold_up or 'keep-alive'}\n\n".encode()
        entry = self.record.entry
        begun = {"id": f"chatcmpl-{entry.request_id}", "created": self._created, "model": entry.model}
        return self._view.silence({**begun, "object": "chat.completion.chunk"})


class Whole(Listener):
    """Wants the answer in one piece."""

    hears = False

    def __init__(self, source: Source, record: Record, view: render.View, server: config.Server) -> None:
        super().__init__(source, record, view, server.nonstream_keepalive_seconds)

    def opened(self, status: int) -> None:
        """It is answered at the end."""

    async def heard(self, events: list[Event]) -> None:
        """And told then."""

    async def waits(self) -> None:
        """There is no place for a word of that."""

    def catch_up(self, events: list[Event]) -> None:
        """It gets all at once anyway."""

    async def complete(self, events: list[Event], rest: Event, usage: object) -> None:
        self._take_over()
        body = self._view.whole(self._source.whole())
        if self._replied:
            await self._put(body)
        its = self._source.record
        more = headers.of_answer(its.entry.outcome, its.cost() if its is self.record else None)
        self._answer(Reply(its.entry.status or 200, [*self._source.headers(), headers.JSON, *more], body))
        self._end()

    def _broken(self, rest: Event, error: ProxyError) -> bytes:
        return self.record.safe(error.body().decode()).encode()

    def _refusal(self, body: bytes) -> bytes:
        return body

    def _opening(self) -> Reply:
        return Reply(200, [*self._source.headers(), headers.JSON], self)

    def _silence(self) -> bytes:
        """White space before a JSON value is no part of it."""
        return b" "
