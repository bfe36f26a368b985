"""One answer that is being made, whoever listens: its line, its backend, its events, its account."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from functools import partial

from proxy import config, headers, incoming, policy, refusals, relay, render, shape
from proxy.asking import Asking
from proxy.cut import Cut
from proxy.errors import InternalError, NotFound, ProxyError, UpstreamError
from proxy.gather import Gather
from proxy.incoming import Again, Incoming, Second
from proxy.jsons import loads
from proxy.listeners import Listener
from proxy.live import Live
from proxy.messages import Event, Plan
from proxy.record import Record
from proxy.wire import Answer

log = logging.getLogger(__name__)

NOTHING = Event(b"")
_NEUTRAL = render.View("reasoning_content", include_usage=True)


class Generation:
    """A task of its own makes the answer, so that it can outlive its client. `left` and `end` may come at any time."""

    def __init__(
        self,
        asking: Asking,
        record: Record,
        settings: config.Settings,
        *,
        keeps: Callable[[Generation], bool],
        over: Callable[[Generation], None],
    ) -> None:
        """`keeps` is asked whether it goes on, when its client leaves before the end; `over` is told of the end."""
        self.id = record.entry.request_id
        self.record = record
        self.asking = asking
        self.may_detach = asking.made.plan.kind == "chat" and asking.backend.detaches(asking.made.plan.facts.slow)
        self.began = time.time()
        self.finished = False
        """The answer is complete, recorded, and can be told to whoever comes."""
        self._settings = settings
        self._keeps = keeps
        self._over = over
        self._listener: Listener | None = None
        self._returned: list[tuple[str, str]] = []
        self._status: int | None = None
        self._gather = Gather() if self.may_detach or not asking.request.stream else None
        self._event: Event | None = None  # a whole answer
        self._incoming: Incoming | None = None
        self._live: Live | None = None
        self._wanted_now = False
        self._task: asyncio.Task[None] | None = None

    def start(self, listener: Listener) -> None:
        """Begin, for this one."""
        self._listener = listener
        self._task = asyncio.create_task(self._run(), name=f"generation {self.id}")

    # What listeners and others ask of it

    @property
    def plan(self) -> Plan:
        """The latest that was sent."""
        return self.record.plan or self.asking.made.plan

    @property
    def detached(self) -> bool:
        """Nobody listens."""
        return self._listener is None

    @property
    def ids(self) -> set[str]:
        """Under which it is known: that of the request that began it, and that of the one that listens."""
        return {self.id} if self._listener is None else {self.id, self._listener.record.entry.request_id}

    @property
    def hold_up(self) -> str:
        if hold_up := self.asking.hold_up:
            return hold_up
        progress = self._incoming.progress if self._incoming is not None else None
        if progress is None:
            return ""
        left = progress.seconds_left
        return f"prompt read to {progress.percent} %" + ("" if left is None else f", about {left:.0f} s left")

    def headers(self) -> list[tuple[str, str]]:
        return [*self._returned, *headers.of_plan(self.plan), *self.asking.timing()]

    def whole(self) -> Event:
        if self._event is not None:
            return self._event
        assert self._gather is not None  # noqa: S101 - listeners that ask for it have made it be there
        return self._gather.whole(self.record.fold)

    async def answer_now(self) -> str:
        """End its thought; see `Live.answer_now`."""
        if self._live is not None:
            return await self._live.answer_now()
        if self.finished:
            raise NotFound("this answer has come to its end")
        self._wanted_now = True
        return "pending"

    def join(self, listener: Listener) -> None:
        """Tell one that comes later all there was, and from then on what there is. Nobody else listens."""
        self._listener = listener
        if self._status is None:
            return
        if self.record.fold.choices and (self.finished or self._gather is not None):
            listener.catch_up(self._so_far())
        listener.opened(self._status)
        if self.finished:
            usage = loads(self.whole().raw).get("usage")
            self._task = asyncio.create_task(listener.complete([], NOTHING, usage), name=f"replay of {self.id}")

    def _so_far(self) -> list[Event]:
        """All that was said, as events of a stream."""
        choices = self.record.fold.choices
        ended = {at for at, choice in choices.items() if choice.finish is not None}
        return incoming.replayed(_NEUTRAL.whole(self.whole()), ended)

    async def left(self, listener: Listener) -> None:
        """A client is gone: the work ends, unless it goes on without one."""
        if self._listener is listener:
            self._listener = None
            lives = self.finished or not self.record.finished
            if lives and not listener.delivered and (self._is_told or not self._keeps(self)):
                self.end(None)
        if self._task is not None and self._task.cancelling():
            await asyncio.gather(self._task, return_exceptions=True)

    @property
    def _is_told(self) -> bool:
        """Its client had every choice's finish: only what follows an answer is missing."""
        return self._incoming is not None and self._incoming.is_told and not self.finished

    def end(self, error: ProxyError | None) -> Event:
        """Let it come to nothing, for this reason, or because the client left; what was held back."""
        rest = NOTHING
        if not self.record.finished:
            rest = self._rest(broken=True)
            if error is not None:
                self.record.failed(error)
            else:
                self.record.finish(None if self._is_told else "client_disconnected")
        if self._task is not None:
            self._task.cancel()
        return rest

    async def drop(self, error: ProxyError) -> None:
        """End it, and tell who listens."""
        listener, self._listener = self._listener, None
        rest = self.end(error)
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
        if listener is not None:
            await listener.failed(rest, error)

    # Its own task

    async def _run(self) -> None:
        try:
            answer = await self.asking.answer()
            await self._tell(answer)
        except ProxyError as error:
            await self._fail(error)
        except Exception:
            log.exception("request %s failed by a fault of this program", self.id)
            await self._fail(InternalError("an internal error; the proxy's log says more under this request's id"))
        except BaseException as error:
            self.record.failed(error)  # unless whoever ended it has said why
            raise
        finally:
            self.asking.leave()
            self._over(self)

    async def _tell(self, answer: Answer) -> None:
        self.record.answered(answer.status)
        self._status, self._returned = answer.status, headers.returned(answer.headers, self.record.safe)
        if answer.status >= 400:
            more, error = await refusals.refused(answer, self.record)
            if self._listener is not None:
                told = self._returned + headers.of_plan(self.plan) + self.asking.timing() + more
                await self._listener.refused(answer.status, told, error)
        elif self.plan.streamed:
            await self._stream(answer)
        else:
            dialect = self.asking.backend.dialect
            self._event = await relay.whole(answer, dialect, self._hearing(), self.record, again=self._again())
            await self._complete([], NOTHING, None)

    async def _stream(self, answer: Answer) -> None:
        made = self.asking.made
        dialect = made.route.backend.dialect
        stream = await incoming.streamed(answer, dialect)
        seconds = self._settings.policy.thinking_seconds
        self._live = Live(made, self.record, headers=self.asking.headers, seconds=seconds, wanted=self._wanted_now)
        self._incoming = Incoming(
            stream,
            dialect,
            self._hearing(),
            self.record,
            live=self._live,
            again=self._again(),
            progress=made.plan.progress,
        )
        try:
            if self._listener is not None:
                self._listener.opened(answer.status)
            async for events, last in self._incoming:
                if self._gather is not None:
                    for event in events:
                        self._gather.add(event)
                if last:
                    await self._last(self._incoming, events)
                elif self._listener is not None:
                    await (self._listener.heard(events) if events else self._listener.waits())
        finally:
            await self._incoming.aclose()

    async def _last(self, stream: Incoming, events: list[Event]) -> None:
        """The row and the turns are there before `[DONE]` leaves: agents answer within milliseconds."""
        rest, usage = self._rest(), None
        if stream.left_early:
            self.record.left()
            usage = await asyncio.to_thread(self.record.usage_told)
        if self._gather is not None:
            self._gather.add(rest)
            if self._gather.usage is None:  # a whole answer has one
                self._gather.usage = usage or await asyncio.to_thread(self.record.usage_told)
        if not self.record.fold.choices:
            raise refusals.inside(None)
        self.record.finish()
        await self.record.settled()
        await self._complete(events, rest, usage)

    async def _complete(self, events: list[Event], rest: Event, usage: object) -> None:
        self.finished = True
        if self._listener is not None:
            await self._listener.complete(events, rest, usage)

    async def _fail(self, error: ProxyError) -> None:
        rest = self._rest(broken=True)
        if isinstance(error, UpstreamError):
            error.name(self.asking.backend.name)
        self.record.failed(error)
        await self.record.settled()
        if self._listener is not None:
            await self._listener.failed(rest, error)

    def _rest(self, *, broken: bool = False) -> Event:
        return self._incoming.rest(broken=broken) if self._incoming is not None else NOTHING

    def _hearing(self) -> shape.Shaper:
        """What makes the answer to the plan what the engine should have sent."""
        plan, settings = self.plan, self._settings
        # A filler is listened for where this request carries one that the model may echo.
        filled = any(decision.rule == "filler" for decision in plan.decisions)
        return shape.Shaper(
            settings.thinking,
            self.asking.made.route.family,
            filler=settings.history.filler_text if filled else "",
            new_id=_call_id,
            cut=partial(Cut, plan.stops, most_tokens=plan.visible_tokens, keeps_stop=plan.keeps_stop)
            if plan.cuts
            else None,
            choices=plan.request.choices,
        )

    def _again(self) -> Again | None:
        """How one more answer is asked for where this one is lost to thinking; None where none shall be."""
        made = self.asking.made
        plan = policy.rescued(made.plan, made.terms)
        if plan is None:
            return None

        async def again() -> Second | None:
            try:
                answer = await self.asking.send(plan)
            except ProxyError as error:
                log.warning("request %s: there is no second answer: %s", self.id, error.message)
                return None
            if answer.status >= 400:
                reason = refusals.error_fields(await answer.read(), answer.status)[0]
                log.warning("request %s: there is no second answer: %s", self.id, self.record.safe(reason))
                return None
            return Second(answer, plan)

        return again


def _call_id() -> str:
    return "call_" + os.urandom(12).hex()
