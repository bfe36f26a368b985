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
from proxy.events import Event
from proxy.fold import Fold
from proxy.gather import Gather
from proxy.incoming import Again, Incoming, Second
from proxy.jsons import loads
from proxy.listeners import Listener
from proxy.live import Live, check
from proxy.messages import Plan
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
        self.began = time.time()
        self.complete = False
        """All of the answer is there, and its row and turns are being written."""
        self.finished = False
        """They are: it can be told to whoever comes."""
        self._settings = settings
        self._keeps = keeps
        self._over = over
        self._listener: Listener | None = None
        self._returned: list[tuple[str, str]] = []
        self._status: int | None = None
        self._gather: Gather | None = None
        self._said = Fold()  # what a listener has been told, where another one may come
        self._finish_told = False
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
    def may_detach(self) -> bool:
        """It may go on when its client leaves."""
        made = self.asking.made
        return made.plan.kind == "chat" and made.route.backend.detaches(made.plan.facts.slow)

    @property
    def broken(self) -> bool:
        """There will be no answer."""
        return self.record.finished and not self.complete

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
        check(self.plan)
        self._wanted_now = True
        return "pending"

    def join(self, listener: Listener) -> None:
        """Tell one that comes later all there was, and from then on what there is. Nobody else listens."""
        self._listener = listener
        if self._status is None:
            return
        if self.finished or self._said.choices:
            listener.catch_up(self._so_far())
        listener.opened(self._status)
        if self.finished:
            usage = loads(self.whole().raw).get("usage")
            self._task = asyncio.create_task(listener.complete([], NOTHING, usage), name=f"replay of {self.id}")

    def _so_far(self) -> list[Event]:
        """All that was told, as events of a stream."""
        if self._event is not None:
            return incoming.replayed(_NEUTRAL.whole(self._event), set(self.record.fold.choices))
        assert self._gather is not None  # noqa: S101 - what can be left has one
        ended = {at for at, choice in self._said.choices.items() if choice.finish is not None}
        return incoming.replayed(_NEUTRAL.whole(self._gather.whole(self._said, growing=True)), ended)

    async def left(self, listener: Listener) -> None:
        """A client is gone: the work ends, unless it goes on without one."""
        if self._listener is listener:
            self._listener = None
            told = self._finish_told and not self.complete  # only what follows an answer is missing
            if not (self.broken or listener.is_delivered) and (told or not self._keeps(self)):
                self.end(None)
        if self._task is not None and self._task.cancelling():
            await asyncio.gather(self._task, return_exceptions=True)

    def end(self, error: ProxyError | None) -> Event:
        """Let it come to nothing, for this reason, or because the client left; what was held back."""
        rest = NOTHING
        if not self.record.finished:
            rest = self._rest(broken=True)
            if error is not None:
                self.record.failed(error)
            elif self._finish_told:  # the answer was complete, and what it took had not been told yet
                self.record.left()
                self.record.finish()
            else:
                self.record.finish("client_disconnected")
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
            if self._listener is not None:
                self._listener.opened(answer.status)
            event = await relay.whole(answer, dialect, self._hearing(), self.record, again=self._again())
            self.complete = True
            await self.record.settled()
            self._event, self.finished = event, True
            if self._listener is not None:
                await self._listener.complete(self._so_far(), NOTHING, loads(event.raw).get("usage"))

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
        if self.may_detach or not self.asking.request.stream:
            self._gather = Gather()
        try:
            if self._listener is not None:
                self._listener.opened(answer.status)
            async for events, last in self._incoming:
                if last:
                    await self._last(self._incoming, events)
                else:
                    await self._hear(self._incoming, events)
        finally:
            await self._incoming.aclose()

    async def _hear(self, stream: Incoming, events: list[Event]) -> None:
        """What came in one read leaves in one write."""
        self._note(events)
        listener = self._listener
        if listener is None:
            return
        await (listener.heard(events) if events else listener.waits())
        if stream.is_told and listener.hears and not listener.gone:
            self._finish_told = True

    def _note(self, events: list[Event]) -> None:
        if self._gather is not None:
            for event in events:
                self._gather.add(event)
                self._said.add(event)

    async def _last(self, stream: Incoming, events: list[Event]) -> None:
        """The row and the turns are there before `[DONE]` leaves: agents answer within milliseconds."""
        rest, usage = self._rest(), None
        if not self.record.fold.choices:
            raise refusals.inside(None)
        self.complete = True
        if stream.left_early:
            self.record.left()
        untold = self._gather is not None and not (self._gather.usage or any(event.usage for event in events))
        if stream.left_early or untold:
            usage = await asyncio.to_thread(self.record.usage_told)
        self.record.finish()
        await self.record.settled()
        self._note([*events, rest])
        if self._gather is not None and self._gather.usage is None:
            self._gather.usage = usage  # a whole answer has one
        self.finished = True
        if self._listener is not None:
            await self._listener.complete(events, rest, usage if stream.left_early else None)

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
