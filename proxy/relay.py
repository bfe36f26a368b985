"""A backend's answer on its way to the client: streamed event by event, whole, or raw."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from typing import Protocol

from proxy import refusals, render, shape, sse
from proxy.dialects import Dialect
from proxy.errors import InternalError, ProxyError, UpstreamError
from proxy.jsons import dumps, loads, objects
from proxy.messages import Event, Json
from proxy.record import Record
from proxy.wire import Answer

log = logging.getLogger(__name__)

JSON = ("content-type", "application/json")
STREAM_HEADERS = [
    ("content-type", "text/event-stream"),
    ("cache-control", "no-cache"),
    ("x-accel-buffering", "no"),  # nginx holds streams back otherwise
]


class Chunked(Protocol):
    """A streamed answer of a backend, or what stands in for one."""

    def chunks(self) -> AsyncIterator[bytes]: ...

    async def aclose(self) -> None: ...


class Stream:
    """A chat answer on its way to the client: read, counted, shown, recorded. Its holder closes it."""

    def __init__(
        self, answer: Chunked, dialect: Dialect, shaper: shape.Shaper, view: render.View, record: Record
    ) -> None:
        self._answer = answer
        self._dialect = dialect
        self._shaper = shaper
        self._view = view
        self._record = record
        self._ready: list[bytes] = []
        self._pieces = self._run()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._pieces

    async def _run(self) -> AsyncIterator[bytes]:
        codec = sse.Decoder()
        try:
            async for data in self._answer.chunks():
                ended = self._take(codec.feed(data))
                if ended:
                    await self._record.settled()
                if piece := self._flush():
                    yield piece
                if ended:
                    return
            if not self._take(codec.end()):
                self._end()
        except ProxyError as error:
            if self._is_finished():
                self._complete()  # all was said: only the end of the connection is missing
            else:
                self._fail(error)
        except Exception:
            log.exception("request %s failed by a fault of this program", self._record.entry.request_id)
            self._fail(InternalError("an internal error; the proxy's log says more under this request's id"))
        await self._record.settled()
        yield self._flush()

    def _flush(self) -> bytes:
        """What came in one read leaves in one write."""
        ready, self._ready = self._ready, []
        return b"".join(ready)

    def _release(self, *, broken: bool = False) -> None:
        """What was held back leaves: nothing follows that it could belong to."""
        held = Event(b"", self._shaper.rest(broken=broken))
        self._record.event(held)
        self._ready.append(self._view.rest(held.parts))

    def _fail(self, error: ProxyError) -> None:
        self._release(broken=True)
        self._record.failed(error)
        self._ready.append(self._told(error.message, error.type, error.code))

    def _told(self, message: str, kind: str, code: object) -> bytes:
        return self._record.safe(render.failure(message, kind, code).decode()).encode()

    def _take(self, payloads: list[bytes]) -> bool:
        """Read events that came together; true when the stream is over."""
        for payload in payloads:
            if payload.startswith(sse.DONE):
                self._complete()
                return True
            if not payload.strip():
                continue
            try:
                event = self._dialect.decode(payload)
            except UpstreamError as error:
                # Not a token's worth of meaning is lost with it, and hours of work would be if the stream ended here.
                log.warning("request %s: an event is left out: %s", self._record.entry.request_id, error.message)
                continue
            self._shaper.apply(event)
            self._record.event(event)
            if event.error is not None:
                self._broken(event.error)
                return True
            self._ready.append(self._view.event(event))
        return False

    def _complete(self) -> None:
        """The row and the turns are there before `[DONE]` leaves: agents answer within milliseconds."""
        self._release()
        self._record.flag("filler_echo", self._shaper.heard)
        self._record.finish()
        self._ready.append(self._view.close(self._record.fold))

    def _end(self) -> None:
        """The backend closed without `[DONE]`: complete if every choice has its finish, else broken."""
        if not self._is_finished():
            raise UpstreamError("the backend ended the stream in the middle of the answer")
        self._complete()

    def _is_finished(self) -> bool:
        choices = self._record.fold.choices.values()
        return bool(choices) and all(choice.finish for choice in choices)

    def _broken(self, error: Mapping[str, Json]) -> None:
        """The backend's own words for what went wrong."""
        self._release(broken=True)
        message = str(error.get("message") or "the backend reported an error without a message")
        self._record.failed(UpstreamError(message))
        kind = error.get("type")
        kind = kind if isinstance(kind, str) else UpstreamError.type
        self._ready.append(self._told(message, kind, error.get("code")))

    def interrupt(self, error: ProxyError) -> bytes:
        """What is ready, and the error as the last event; nothing where the stream had come to its end."""
        if not self._record.finished:
            self._fail(error)
        return self._flush()

    async def aclose(self) -> None:
        """Let the backend go. A client that left behind the last finish reason has the whole answer."""
        self._record.finish(None if self._is_finished() else "client_disconnected")
        await self._answer.aclose()


async def streamed(answer: Answer, dialect: Dialect) -> Chunked:
    """The answer to a request for a stream; a backend that does not stream answers whole, in one event then."""
    if answer.kind != "application/json" or answer.status != 200:
        await refusals.expect(answer, "text/event-stream")
        return answer
    body = await answer.read()
    event = dialect.decode(body, whole=True)
    if event.error is not None or not event.parts:
        raise refusals.inside(event.error or _EMPTY)
    found = loads(body)
    usage = found.pop("usage", None)
    head = {**found, "object": "chat.completion.chunk"}
    said, ends = zip(*(_as_deltas(at, choice) for at, choice in enumerate(found["choices"])), strict=True)
    events = [{**head, "choices": said}, {**head, "choices": ends}]
    if usage:
        events.append({**head, "choices": [], "usage": usage})
    return _Written(b"".join(sse.encode(dumps(event)) for event in events) + sse.DONE_EVENT)


_EMPTY = {"message": "the backend answered without a choice"}


def _as_deltas(at: int, choice: Mapping[str, Json]) -> tuple[dict[str, Json], dict[str, Json]]:
    """A choice of a whole answer as two of a stream: what it says, and its finish."""
    message = choice.get("message")
    message = dict(message) if isinstance(message, dict) else {}
    if isinstance(message.get("tool_calls"), list):
        message["tool_calls"] = [{**call, "index": at} for at, call in enumerate(objects(message["tool_calls"]))]
    rest = {name: value for name, value in choice.items() if name not in ("message", "finish_reason")}
    end = {"index": choice.get("index", at), "delta": {}, "finish_reason": choice.get("finish_reason") or "stop"}
    return {**rest, "delta": message, "finish_reason": None}, end


class _Written:
    """An answer that was read already, and is closed."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    async def chunks(self) -> AsyncIterator[bytes]:
        yield self._data

    async def aclose(self) -> None:
        """Nothing is left to close."""


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


async def whole(answer: Answer, dialect: Dialect, shaper: shape.Shaper, record: Record) -> Event:
    """A complete answer as one event; recorded before it leaves."""
    await refusals.expect(answer, "application/json", "text/plain")
    event = dialect.decode(await answer.read(), whole=True)
    shaper.apply(event, whole=True)
    record.flag("filler_echo", shaper.heard)
    record.fold.add(event)
    if event.error is not None or not event.parts:
        raise refusals.inside(event.error or _EMPTY)
    record.finish()
    await record.settled()
    return event
