"""A backend's streamed answer as it comes in: events, shaped and told to the record, a list of them for each read."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from proxy import refusals, shape, sse
from proxy.dialects import Dialect, reading
from proxy.errors import ProxyError, UpstreamError
from proxy.events import Event, Progress
from proxy.jsons import dumps, loads, objects
from proxy.live import Live
from proxy.messages import Json, Plan
from proxy.record import Record
from proxy.wire import Answer

log = logging.getLogger(__name__)


class Chunked(Protocol):
    """A streamed answer of a backend, or what stands in for one."""

    def chunks(self) -> AsyncIterator[bytes]: ...

    async def aclose(self) -> None: ...


class Second(NamedTuple):
    """Another answer to the same request, and the plan that it is to."""

    answer: Answer
    plan: Plan


Again = Callable[[], Awaitable[Second | None]]
"""Asks for another answer where one was lost to thinking; None where that cannot be had."""


class Incoming:
    """Read it with `async for`; whoever holds it calls `aclose`.

    It is left early where the visible text has its end, and goes on with the answer of `again` where this one was lost.
    Raises the error that broke the answer, after all that came before it.
    """

    def __init__(
        self,
        answer: Chunked,
        dialect: Dialect,
        shaper: shape.Shaper,
        record: Record,
        *,
        live: Live | None = None,
        again: Again | None = None,
        progress: bool = False,
    ) -> None:
        """`progress`: the engine tells how far it has read the prompt, because we asked, and the client did not."""
        self._answer = answer
        self._dialect = dialect
        self._shaper = shaper
        self._record = record
        self._live = live
        self._again = again
        self._ready: list[Event] = []
        self._held: list[Event] | None = None  # what ends the answer that may be lost
        self._error: ProxyError | None = None
        self._head: dict[str, Json] | None = None  # of the first event: those of another answer get it too
        self._begun = False  # this answer has
        self._id: Json = None  # of it, as the engine knows it
        self._second: Plan | None = None  # of another answer, of which nothing came yet
        self._follows = False  # on an answer that was lost
        self._tells = progress
        self.progress: Progress | None = None
        """How far the engine has read the prompt; None where it does not tell, or writes already."""
        self._watches = live is not None or again is not None

    @property
    def left_early(self) -> bool:
        """The visible text ended here, and the engine was left before it had told what it spent."""
        return self._shaper.cuts and self._shaper.over

    @property
    def is_told(self) -> bool:
        """The client has every choice's finish."""
        return self.is_finished and self._held is None

    @property
    def is_finished(self) -> bool:
        """Every choice has its finish."""
        choices = self._record.fold.choices.values()
        return bool(choices) and all(choice.finish for choice in choices)

    async def __aiter__(self) -> AsyncIterator[tuple[list[Event], bool]]:
        """(events, whether these are the last) for each read that brought any, and at the end. None came, but for the
        last, where there is only progress."""
        while True:
            codec, over = sse.Decoder(), False
            try:
                async for data in self._answer.chunks():
                    read = self.progress
                    if over := self._take(codec.feed(data)):
                        break
                    if self._ready or self.progress is not read:
                        yield self._taken(), False
                if not over and not self._take(codec.end()) and not self.is_finished:
                    raise UpstreamError("the backend ended the stream in the middle of the answer")
            except ProxyError as error:
                if not self.is_finished:  # else all was said: only the end of the connection is missing
                    self._error = error
            if self.left_early:
                await self._answer.aclose()
            if self._again is None or not self._is_lost:
                break
            if self._ready:
                yield self._taken(), False
            if not await self._goes_on(self._again):
                break
        self._let_go()
        yield self._taken(), self._error is None
        if self._error is not None:
            raise self._error

    def _taken(self) -> list[Event]:
        ready, self._ready = self._ready, []
        return ready

    def _take(self, payloads: list[bytes]) -> bool:
        """Read events that came together; true when the answer is over."""
        for payload in payloads:
            if payload.startswith(sse.DONE):
                return True
            if not payload.strip():
                continue
            try:
                event = self._dialect.decode(payload)
            except UpstreamError as error:
                # Not a token's worth of meaning is lost with it, and hours of work would be if the stream ended here.
                log.warning("request %s: an event is left out: %s", self._record.entry.request_id, error.message)
                continue
            if self._tells and self._is_progress(event):
                continue
            if self._second is not None:
                if event.error is not None:
                    self._no_second(refusals.inside(event.error))
                    return True
                if not event.parts:
                    continue
                self._follow(self._second)
            self._shaper.apply(event)
            self._record.event(event)
            if event.error is not None:
                self._error = refusals.inside(event.error)
                return True
            if self._watches:
                self._watch(event)
            if self._again is None and self._held is None:
                self._ready.append(event)
            else:
                self._put(event)
        return self._shaper.cuts and self._shaper.over

    def _is_progress(self, event: Event) -> bool:
        """Whether an event tells nothing else. The role that it says again is told with the first word."""
        words = any(part.reasoning or part.text or part.calls or part.finish for part in event.parts)
        self.progress = None if words else event.progress or self.progress
        return event.progress is not None and not words and event.error is None

    def _watch(self, event: Event) -> None:
        """What only answers need that may be followed by another, or told to come to their end."""
        if not self._begun:
            told = loads(event.raw)
            self._begun, self._id = True, told.get("id")
            if self._head is None:
                self._head = {name: told[name] for name in ("id", "created") if name in told}
        if self._live is not None:
            self._live.saw(event, self._id)
        self._watches = self._follows or self._again is not None or (self._live is not None and not self._live.answers)
        if self._follows:
            body = {**loads(event.raw), **(self._head or {})}
            if event.usage is not None:  # the client pays for both
                _drop_usage(body)
                body["usage"] = self._record.usage_told()
            event.raw = dumps(body)

    def _put(self, event: Event) -> None:
        """An event leaves, unless it is the end of an answer that another one may follow."""
        if (
            self._again is not None
            and self._held is None
            and self._is_lost
            and any(part.finish for part in event.parts)
        ):
            self._held = []
        if self._held is None:
            self._ready.append(event)
            return
        self._held.append(event)
        if not self._is_lost:  # another choice has an answer
            self._let_go()

    def _let_go(self) -> None:
        self._ready += self._held or ()
        self._held = None

    @property
    def _is_lost(self) -> bool:
        return self._error is None and self._record.fold.outcome == "answer_lost"

    async def _goes_on(self, again: Again) -> bool:
        """Whether another answer is there to be read in the place of this one."""
        self._again = None
        second = await again()
        if second is None:
            return False
        try:
            stream = await streamed(second.answer, self._dialect)
        except ProxyError as error:
            self._no_second(error)
            return False
        await self._answer.aclose()
        self._answer, self._second = stream, second.plan
        return True

    def _follow(self, plan: Plan) -> None:
        """The other answer has begun. Till then the first one is an answer all the same."""
        self._second = None
        self._record.tried_again(plan)
        self._shaper.again(begun=True)
        if self._live is not None:
            self._live.again()
        self._ready += [_only_thought(event) for event in self._held or () if _thinks(event)]
        self._held, self._begun, self._follows, self._watches = None, False, True, True

    def _no_second(self, error: ProxyError) -> None:
        log.warning("request %s: there is no second answer: %s", self._record.entry.request_id, error.message)

    def rest(self, *, broken: bool = False) -> Event:
        """What was held back leaves: nothing follows that it could belong to."""
        held = Event(b"", self._shaper.rest(broken=broken))
        self._record.event(held)
        self._record.flag("filler_echo", self._shaper.heard)
        return held

    async def aclose(self) -> None:
        """Let the backend go."""
        if self._live is not None:
            await self._live.aclose()
        await self._answer.aclose()


def _thinks(event: Event) -> bool:
    return any(part.reasoning or part.details for part in event.parts)


def _only_thought(event: Event) -> Event:
    """What an event says of the thought, where it is not the end of the answer after all."""
    body = loads(event.raw)
    _drop_usage(body)
    parts = [replace(part, finish=None) for part in event.parts]
    return Event(dumps(body), parts, event.names, shaped=True)


def _drop_usage(body: dict[str, Any]) -> None:
    """Moonshot's stands in the choice."""
    for place in (body, *objects(body.get("choices"))):
        place.pop("usage", None)


async def streamed(answer: Answer, dialect: Dialect) -> Chunked:
    """The answer to a request for a stream; a backend that does not stream answers whole, in one event then."""
    if answer.kind != "application/json" or answer.status != 200:
        await refusals.expect(answer, "text/event-stream")
        return answer
    body = await answer.read()
    event = dialect.decode(body, whole=True)
    if event.error is not None or not event.parts:
        raise refusals.inside(event.error)
    said, ends, usage = _as_chunks(body)
    chunks = [said, ends, *([{**said, "choices": [], "usage": usage}] if usage else [])]
    return _Written(b"".join(sse.encode(dumps(chunk)) for chunk in chunks) + sse.DONE_EVENT)


def replayed(body: bytes, ended: set[int]) -> list[Event]:
    """A whole answer in the making, as the events of a stream so far; these choices have their finish."""
    said, ends, _ = _as_chunks(body)
    ends["choices"] = [choice for choice in ends["choices"] if choice["index"] in ended]
    return [reading.decode(dumps(chunk)) for chunk in (said, ends) if chunk["choices"]]


def _as_chunks(body: bytes) -> tuple[dict[str, Any], dict[str, Any], Json]:
    """A whole answer as two chunks of a stream, what it says and its finishes; and its usage."""
    found = loads(body)
    usage = found.pop("usage", None)
    head = {**found, "object": "chat.completion.chunk"}
    said, ends = zip(*(_as_deltas(at, choice) for at, choice in enumerate(found["choices"])), strict=True)
    return {**head, "choices": list(said)}, {**head, "choices": list(ends)}, usage


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
