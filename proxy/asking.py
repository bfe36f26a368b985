"""How an answer is asked for: in line, past a server that still loads, with less where it was too much, and from
another backend where this one is not there. Nothing that may have begun to generate is asked for again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from proxy import headers, refusals, window
from proxy.backend import Backend
from proxy.callers import Caller
from proxy.doors import Call
from proxy.errors import ProxyError, QueueFull, UpstreamUnreachable
from proxy.line import LineFull, Ticket
from proxy.messages import ChatRequest, Plan
from proxy.planning import Instead, Planned, Planner
from proxy.record import Record
from proxy.wire import Answer

CHAT = "/chat/completions"
LOADING_PAUSE = 1.0
"""Seconds from one look at a server that loads its model to the next."""


class _Loading(Exception):
    """The backend loads its model, and another one is there to be asked."""


async def enter(
    backend: Backend, caller: Caller, *, side: bool = False, told: Callable[[Ticket], None] | None = None
) -> Ticket:
    """A place at the backend; see `Line.enter`. Raises QueueFull."""
    try:
        return await backend.line.enter(caller.scope, side=side, told=told)
    except LineFull as full:
        text = f"{full.waiting} requests wait for backend {backend.name} already, as many as its `queue_limit` allows"
        raise QueueFull(f"{text}; try again in {full.retry_after} s", retry_after=full.retry_after) from None


class Asking:
    """Gets the answer to one request. It holds a place at the backend until `leave`."""

    def __init__(
        self,
        planner: Planner,
        call: Call,
        caller: Caller,
        request: ChatRequest,
        made: Planned,
        *,
        record: Record,
        crowded: Callable[[Backend, Caller], None],
    ) -> None:
        """`crowded` is told of a request that somebody waits for where the backend has no slot left."""
        self._planner = planner
        self._call = call
        self.caller = caller
        self.request = request
        """What the client asks for."""
        self.made = made
        """The plan that was sent last, or is about to be."""
        self._record = record
        self._crowded = crowded
        self._ticket: Ticket | None = None
        self._loads = False
        self._waited: tuple[int, float] | None = None  # from which position, and for how long
        self.begun = False
        """The backend has it: tokens may have been spent."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Those of the client's request."""
        return self._call.headers

    @property
    def backend(self) -> Backend:
        """The one that is asked."""
        return self.made.route.backend

    @property
    def position(self) -> int:
        """How many are served before it, and itself; 0 where it waits no more."""
        return self.backend.line.position(self._ticket) if self._ticket is not None else 0

    @property
    def hold_up(self) -> str:
        """What it waits for, in words; empty where the engine works on it."""
        if place := self.position:
            return f"queued, position {place} of {self.backend.line.waiting}"
        return "the backend loads its model" if self._loads else ""

    def timing(self) -> list[tuple[str, str]]:
        """The header that tells of the line, where there was one."""
        if self._waited is None:
            return []
        first, since = self._waited
        now = asyncio.get_running_loop().time()
        seconds = self._ticket.waited if self._ticket is not None and not self.position else now - since
        return [("server-timing", f'queue;desc="position {first}";dur={seconds * 1000:.0f}')]

    async def answer(self) -> Answer:
        """The backend's answer, with its body still to come.

        Raises what went wrong with the first backend where no other one is there either.
        """
        first, others = self.made, self.backend.settings.fallback
        try:
            return await self._from(first, patient=not others)
        except (UpstreamUnreachable, QueueFull, _Loading) as error:
            problem = error
        for name in others:
            made = await self._instead(name, first, problem)
            if made is None:
                continue
            try:
                return await self._from(made, patient=False)
            except (UpstreamUnreachable, QueueFull, _Loading):
                continue
        self.leave()
        self._take(first)
        if isinstance(problem, _Loading):
            return await self._from(first, patient=True)
        raise problem

    async def send(self, plan: Plan) -> Answer:
        """Send a plan, once, to the backend whose place is held."""
        self._record.entry.attempts += 1
        await self.backend.give_way()
        body = self.backend.dialect.encode(plan)
        self.begun = True
        try:
            return await self.backend.send(
                "POST", CHAT, headers.upstream(self._call.headers), body, query=self._call.query
            )
        except UpstreamUnreachable:
            self.begun = False
            raise

    def leave(self) -> None:
        """Give the place back."""
        if self._ticket is not None:
            ticket, self._ticket = self._ticket, None
            self.backend.line.leave(ticket)

    async def _from(self, made: Planned, *, patient: bool) -> Answer:
        await self._enter()
        answer = await self._loaded(made.plan, patient=patient)
        if not (made.plan.restored and await refusals.overflows(answer)):
            return answer
        # Nothing was generated, and the client's own messages may fit: only what we added is too much.
        size, limit = window.size(made.plan), made.plan.facts.context_limit
        made.route.backend.learned.overflowed(made.route.upstream_model, size, limit)
        self._take(self._planner.decided(made, bare=True))
        return await self.send(self.made.plan)

    async def _enter(self) -> None:
        """Wait for a place."""
        self.leave()
        plan, backend = self.made.plan, self.backend
        busy = backend.is_busy(plan.facts.upstream_model)
        self._ticket = await enter(backend, self.caller, side=plan.kind == "side", told=self._told)
        self._record.holds(backend.line, self._ticket)
        if busy and not self._ticket.first_position:
            self._ask_for_room()  # it waits inside the server

    def _ask_for_room(self) -> None:
        if self.made.plan.kind == "chat":
            self._crowded(self.backend, self.caller)

    def _told(self, ticket: Ticket) -> None:
        self._ticket = ticket
        self._ask_for_room()
        self._waited = (max(ticket.first_position, 1), asyncio.get_running_loop().time())

    async def _loaded(self, plan: Plan, *, patient: bool) -> Answer:
        """The answer of a server that has its model; that it has none after `loading_timeout` all the same."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self.backend.settings.loading_timeout
        while True:
            answer = await self.send(plan)
            if not await refusals.is_loading(answer):
                return answer
            self.begun = False
            if not patient:
                raise _Loading
            self._loads = True
            try:
                if not await self._has_loaded(until):
                    return answer
            finally:
                self._loads = False

    async def _has_loaded(self, until: float) -> bool:
        """Wait for it, as long as there is time."""
        loop = asyncio.get_running_loop()
        while (left := until - loop.time()) > 0:
            await asyncio.sleep(min(LOADING_PAUSE, left))
            if not await self.backend.loads():
                return loop.time() < until
        return False

    async def _instead(self, name: str, first: Planned, problem: Exception) -> Planned | None:
        """The plan for another backend; None where that one cannot take the request either."""
        self.leave()
        why = {UpstreamUnreachable: "cannot be reached", QueueFull: "has a full queue"}.get(type(problem), "loads")
        instead = Instead(name, f"{first.route.backend.name} {why}")
        try:
            made = await self._planner.plan(self.request, self.caller, self._call.headers, instead=instead)
            window.check(made.plan)
        except ProxyError:
            return None
        self._take(made)
        return made

    def _take(self, made: Planned) -> None:
        self.made = made
        self._record.planned(made)
