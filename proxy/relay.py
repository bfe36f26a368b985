"""A backend's answer that does not come as a stream of events: a whole one, or a body that passes through raw."""

from __future__ import annotations

import logging
from collections.abc import Callable

from proxy import refusals, shape
from proxy.dialects import Dialect
from proxy.doors import Gone, Write
from proxy.errors import ProxyError
from proxy.events import Event
from proxy.incoming import Again
from proxy.jsons import dumps, loads
from proxy.record import Record
from proxy.wire import Answer

log = logging.getLogger(__name__)


class Raw:
    """A body that passes through as it stands on the wire."""

    def __init__(self, answer: Answer, record: Record, left: Callable[[], None]) -> None:
        """`left` is called when it is over."""
        self._answer = answer
        self._record = record
        self._left = left

    async def feed(self, write: Write) -> None:
        try:
            async for chunk in self._answer.raw_chunks():
                await write(chunk)
        except Gone:
            return  # `aclose` follows
        except ProxyError as error:
            self._record.failed(error)
            raise
        self._record.finish("ok")

    def delivered(self) -> None:
        """Its row is written already."""

    def interrupt(self, error: ProxyError) -> bytes:
        """Nothing can be added to a body of an unknown kind."""
        self._record.failed(error)
        return b""

    async def aclose(self) -> None:
        self._record.finish("client_disconnected")
        await self._answer.aclose()
        self._left()


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
    return event


async def _read(answer: Answer, dialect: Dialect) -> Event:
    await refusals.expect(answer, "application/json", "text/plain")
    event = dialect.decode(await answer.read(), whole=True)
    if event.error is not None or not event.parts:
        raise refusals.inside(event.error)
    return event


def _take(event: Event, shaper: shape.Shaper, record: Record) -> None:
    shaper.apply(event, whole=True)
    record.flag("filler_echo", shaper.heard)
    record.fold.add(event)
