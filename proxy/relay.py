"""A backend's answer on its way to the client: streamed event by event, whole, raw, or refused."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping

from proxy import render, shape, sse
from proxy.dialects import Dialect
from proxy.errors import ContextLengthExceeded, InternalError, ProxyError, UpstreamError, error_body
from proxy.jsons import JsonError, dumps, loads
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


class Stream:
    """A chat answer on its way to the client: read, counted, shown, recorded. Its holder closes it."""

    def __init__(
        self, answer: Answer, dialect: Dialect, shaper: shape.Shaper, view: render.View, record: Record
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

    def _release(self) -> None:
        """What was held back leaves: nothing follows that it could belong to."""
        held = Event(b"", self._shaper.rest())
        self._record.event(held)
        self._ready.append(self._view.rest(held.parts))

    def _fail(self, error: ProxyError) -> None:
        self._release()
        self._record.failed(error)
        self._ready.append(render.failure(self._record.safe(error.message), error.type, error.code))

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
        self._release()
        message = self._record.safe(str(error.get("message") or "the backend reported an error without a message"))
        self._record.failed(UpstreamError(message))
        kind = error.get("type")
        kind = kind if isinstance(kind, str) else UpstreamError.type
        self._ready.append(render.failure(message, kind, error.get("code")))

    def interrupt(self, error: ProxyError) -> bytes:
        """What is ready, and the error as the last event; nothing where the stream had come to its end."""
        if not self._record.finished:
            self._fail(error)
        return self._flush()

    async def aclose(self) -> None:
        """Let the backend go. A client that left behind the last finish reason has the whole answer."""
        self._record.finish(None if self._is_finished() else "client_disconnected")
        await self._answer.aclose()


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
    await expect(answer, "application/json", "text/plain")
    event = dialect.decode(await answer.read(), whole=True)
    shaper.apply(event, whole=True)
    record.flag("filler_echo", shaper.heard)
    record.fold.add(event)
    if event.error is not None:
        raise UpstreamError(f"the backend answered with an error: {event.error.get('message') or event.error}")
    record.finish()
    await record.settled()
    return event


_TOO_LONG = (
    "exceed_context_size",
    "context_length_exceeded",
    "context length",
    "context size",
    "context window",
    "exceeded model token limit",
    "input token length too long",
)
"""How engines say that a prompt does not fit: llama-server, OpenAI, vLLM and SGLang, Moonshot."""


async def overflows(answer: Answer) -> bool:
    """Whether the backend refused the prompt because it is too long for the window."""
    return answer.status == 400 and _is_too_long(await answer.read())


def _is_too_long(body: bytes) -> bool:
    text = body.decode("utf-8", "replace").lower()
    return any(phrase in text for phrase in _TOO_LONG)


async def refused(answer: Answer, record: Record) -> tuple[list[tuple[str, str]], bytes]:
    """A backend's own error: its words in OpenAI's shape, with the headers that go along."""
    body = await answer.read()
    message, kind, param, code = error_fields(body, answer.status)
    if answer.status == 400 and _is_too_long(body):
        code = ContextLengthExceeded.code  # the word that clients know, to shorten their history by themselves
    record.entry.error = record.safe(message)
    record.finish("upstream_error")
    told = record.safe(error_body(message, kind, code, param).decode()).encode()
    # 503 and 429 come before any work; every other 5xx may have cost tokens, and llama-server says 500 for mistakes
    # of the caller, which the openai SDK would send three times.
    if answer.status >= 500 and answer.status != 503:
        return [JSON, ("x-should-retry", "false")], told
    return [JSON], told


async def refused_raw(answer: Answer, record: Record) -> bytes:
    """The decoded body of an error that passes through. Only keys are taken out of it."""
    body = await answer.read()
    record.entry.error = record.safe(error_fields(body, answer.status)[0])
    record.finish("upstream_error")
    return record.safe(body.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")


def error_fields(body: bytes, status: int) -> tuple[str, str | None, object, object]:
    """(message, type, param, code) from the shapes that engines use: nested, flat, a bare text, or no JSON at all."""
    try:
        found = loads(body)
    except JsonError:
        found = body.decode("utf-8", "replace").strip()[:2000]
    if isinstance(found, dict) and found.get("error"):
        found = found["error"]
    if not isinstance(found, dict):
        return str(found or f"the backend answered {status} without a body"), "upstream_error", None, status
    message = found.get("message") or dumps(found).decode()
    kind = found.get("type")
    return str(message), kind if isinstance(kind, str) else "upstream_error", found.get("param"), found.get("code")


async def expect(answer: Answer, *kinds: str) -> None:
    """Close the answer and raise UpstreamError where it has no body, or is of none of these media types.

    A missing type is forgiven. What an error in JSON says is repeated.
    """
    status = answer.status
    if status < 300 and status != 204 and answer.kind in (*kinds, ""):
        return
    words = error_fields(await answer.read(), status)[0] if answer.kind == "application/json" else ""
    await answer.aclose()
    if status >= 300:
        place = answer.headers.get("location", "nowhere")
        raise UpstreamError(f"the backend answered {status} and points to {place}: is its `url` right?")
    if status == 204:
        raise UpstreamError("the backend answered 204, without a body")
    raise UpstreamError(f"the backend answered with {answer.kind} where {kinds[0]} was expected: {words}".rstrip(": "))
