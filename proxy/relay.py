"""A backend's answer on its way to the client: streamed event by event, whole, or raw."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

from proxy import refusals, render, shape
from proxy.dialects import Dialect
from proxy.errors import InternalError, ProxyError
from proxy.gather import Gather
from proxy.incoming import EMPTY, Again, Incoming
from proxy.jsons import dumps, loads
from proxy.messages import Event
from proxy.record import Record
from proxy.wire import Answer

log = logging.getLogger(__name__)

JSON = ("content-type", "application/json")
STREAM_HEADERS = [
    ("content-type", "text/event-stream"),
    ("cache-control", "no-cache"),
    ("x-accel-buffering", "no"),  # nginx holds streams back otherwise
]


class Stream:
    """A chat answer on its way to the client, event by event. Its holder closes it."""

    def __init__(self, incoming: Incoming, view: render.View, record: Record) -> None:
        self._incoming = incoming
        self._view = view
        self._record = record
        self._ready: list[bytes] = []
        self._pieces = self._run()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._pieces

    async def _run(self) -> AsyncIterator[bytes]:
        try:
            async for events, last in self._incoming:
                self._ready += map(self._view.event, events)
                if last:
                    await self._complete()
                    await self._record.settled()
                if piece := self._flush():
                    yield piece
        except ProxyError as error:
            self._fail(error)
        except Exception:
            log.exception("request %s failed by a fault of this program", self._record.entry.request_id)
            self._fail(InternalError("an internal error; the proxy's log says more under this request's id"))
        await self._record.settled()
        if piece := self._flush():
            yield piece

    def _flush(self) -> bytes:
        """What came in one read leaves in one write."""
        ready, self._ready = self._ready, []
        return b"".join(ready)

    async def _complete(self) -> None:
        """The row and the turns are there before `[DONE]` leaves: agents answer within milliseconds."""
        self._ready.append(self._view.rest(self._incoming.rest().parts))
        usage = None
        if self._incoming.left_early:
            self._record.left()
            usage = await asyncio.to_thread(self._record.usage_told)
        self._record.finish()
        self._ready.append(self._view.close(self._record.fold, usage))

    def _fail(self, error: ProxyError) -> None:
        self._ready.append(self._view.rest(self._incoming.rest(broken=True).parts))
        self._record.failed(error)
        told = render.failure(error.message, error.type, error.code)
        self._ready.append(self._record.safe(told.decode()).encode())

    def interrupt(self, error: ProxyError) -> bytes:
        """What is ready, and the error as the last event; nothing where the stream had come to its end."""
        if not self._record.finished:
            self._fail(error)
        return self._flush()

    async def aclose(self) -> None:
        """Let the backend go. A client that left behind the last finish reason has the whole answer."""
        self._record.finish(None if self._incoming.is_told else "client_disconnected")
        await self._incoming.aclose()


class Raw:
    """A body that passes through as it stands on the wire."""

    def __init__(self, answer: Answer, record: Record) -> None:
        self._answer = answer
        self._record = record

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._answer.raw_chunks():
                yield chunk
        except ProxyError as error:
            self._record.failed(error)
            raise
        self._record.finish("ok")

    def interrupt(self, error: ProxyError) -> bytes:
        """Nothing can be added to a body of an unknown kind."""
        self._record.failed(error)
        return b""

    async def aclose(self) -> None:
        self._record.finish("client_disconnected")
        await self._answer.aclose()


async def gathered(incoming: Incoming, record: Record) -> Event:
    """A streamed answer as one event, for a client that wants it whole; recorded before it leaves."""
    gather = Gather()
    try:
        async for events, _ in incoming:
            for event in events:
                gather.add(event)
        gather.add(incoming.rest())
        if incoming.left_early:
            record.left()
        if gather.usage is None:  # a whole answer has one
            gather.usage = await asyncio.to_thread(record.usage_told)
    finally:
        await incoming.aclose()
    if not record.fold.choices:
        raise refusals.inside(EMPTY)
    record.finish()
    await record.settled()
    return gather.whole(record.fold)


async def whole(
    answer: Answer, dialect: Dialect, shaper: shape.Shaper, record: Record, *, again: Again | None = None
) -> Event:
    """A complete answer as one event; recorded before it leaves. Where it was lost, that of `again` comes instead."""
    event = await _read(answer, dialect)
    _take(event, shaper, record)
    second = await again() if again is not None and record.fold.outcome == "answer_lost" else None
    if second is not None:
        try:
            other = await _read(second.answer, dialect)
        except ProxyError as error:  # that is none; the first one was an answer all the same
            log.warning("request %s: there is no second answer: %s", record.entry.request_id, error.message)
        else:
            record.tried_again(second.plan)
            shaper.again(begun=False)
            event = other
            _take(event, shaper, record)
            event.raw = dumps({**loads(event.raw), "usage": record.usage_told()})  # the client pays for both
    record.finish()
    await record.settled()
    return event


async def _read(answer: Answer, dialect: Dialect) -> Event:
    await refusals.expect(answer, "application/json", "text/plain")
    event = dialect.decode(await answer.read(), whole=True)
    if event.error is not None or not event.parts:
        raise refusals.inside(event.error or EMPTY)
    return event


def _take(event: Event, shaper: shape.Shaper, record: Record) -> None:
    shaper.apply(event, whole=True)
    record.flag("filler_echo", shaper.heard)
    record.fold.add(event)
