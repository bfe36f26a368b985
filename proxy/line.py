"""The waiting line in front of one backend: fair among clients, and users' own questions before side requests."""

from __future__ import annotations

import asyncio
import heapq
import math
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal

from proxy.meter import Meter
from proxy.speeds import SMOOTHING

GRACE_SECONDS = 1.0
"""Open WebUI asks for the title of a new chat before it asks the question itself."""
_REMEMBERED = 1000
"""Clients. Whoever was served before all these counts as never served, which is nearly the same."""


class LineFull(Exception):
    """So many are `waiting`, and nobody more may. `retry_after` is in seconds."""

    def __init__(self, waiting: int, retry_after: int) -> None:
        super().__init__(f"{waiting} requests wait already")
        self.waiting = waiting
        self.retry_after = retry_after


@dataclass(slots=True, eq=False)
class Ticket:
    """A request in the line or in its place: how many seconds it `waited`, and from which position; 0 if it did not."""

    client: str
    side: bool
    _since: float  # when it came; once it has its place, when it got that
    waited: float = 0.0
    first_position: int = 0
    _came: Decimal | None = None  # the meter's reading when it got its place
    _share: Decimal = Decimal(0)
    _held: asyncio.TimerHandle | None = None  # as long as its grace lasts


class Line:
    """At most `limit` requests run at a time (0: any number), and at most `most_waiting` wait.

    Where one runs at a time, a side request waits `grace` seconds for a question that may follow it.
    """

    def __init__(self, limit: int, most_waiting: int, *, grace: float = GRACE_SECONDS) -> None:
        self.limit = limit
        self.most_waiting = most_waiting
        self._grace = grace if limit == 1 else 0.0
        self._running: dict[Ticket, None] = {}  # the one that runs longest first
        self._waiting: dict[Ticket, asyncio.Future[None]] = {}  # as they came
        self._given = 0
        self._last_given: dict[str, int] = {}  # the number of the client's latest place; the lowest first
        self._seconds: float | None = None  # that a place is taken, smoothed
        self._meter = Meter()
        self._positions: dict[Ticket, int] | None = None  # None: to be found anew

    @property
    def running(self) -> int:
        """Places that are taken."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Tickets that wait."""
        return len(self._line())

    @property
    def has_room(self) -> bool:
        """Whether a place is free."""
        return not self.limit or len(self._running) < self.limit

    async def enter(self, client: str, *, side: bool = False, told: Callable[[Ticket], None] | None = None) -> Ticket:
        """Wait for a place, which `leave` must give back. `told` gets the ticket at once where it has to wait.

        Raises LineFull where it would have to wait and nobody more may.
        """
        loop = asyncio.get_running_loop()
        ticket = Ticket(client, side, loop.time())
        if self.has_room and not (side and self._grace):  # whoever waits now is held back
            self._give(ticket)
            return ticket
        # One whom only the grace keeps from a free place does not count.
        if self.waiting - (self.limit - self.running) >= self.most_waiting:
            raise self._full(ticket)
        place = self._waiting[ticket] = loop.create_future()
        self._positions = None
        if side and self._grace:
            ticket._held = loop.call_later(self._grace, self._release, ticket)
        try:
            ticket.first_position = self.position(ticket)
            if told is not None:
                told(ticket)
            await place
        except BaseException:  # cancelled, and perhaps after it got its place
            if ticket._held is not None:
                ticket._held.cancel()
            if self._waiting.pop(ticket, None) is not None:
                ticket.waited = loop.time() - ticket._since
            if ticket in self._running:
                self._take_back(ticket)
            self._serve()
            raise
        return ticket

    def leave(self, ticket: Ticket) -> None:
        """Give the place back; nothing happens where it has none."""
        if ticket in self._running:
            self._take_back(ticket)
            seconds = asyncio.get_running_loop().time() - ticket._since
            known = seconds if self._seconds is None else self._seconds
            self._seconds = known + SMOOTHING * (seconds - known)
            self._serve()

    def position(self, ticket: Ticket) -> int:
        """1 is served next, as far as is known now; 0 does not wait.

        It comes true if places are given back in the order in which they were taken, and nobody comes or gives up.
        """
        if ticket not in self._waiting:
            return 0
        if self._positions is None:
            line = self._line()
            # Where a place is free, all are held back, and the grace of the first ends first.
            order = self._order(line[:1], line[1:]) if self.has_room else self._order(*_by_kind(line))
            self._positions = {each: number for number, each in enumerate(order, 1)}
        return self._positions.get(ticket, 0)

    def share(self, ticket: Ticket) -> Decimal:
        """Seconds of the backend's busy time that are this ticket's so far: while several have places, each gets its
        even part."""
        if ticket in self._running and ticket._came is not None:
            return self._meter.read(asyncio.get_running_loop().time()) - ticket._came
        return ticket._share

    def waits(self, client: str) -> bool:
        """Whether a request of this client waits that is not a side request."""
        return any(ticket.client == client and not ticket.side for ticket in self._line())

    def _line(self) -> list[Ticket]:
        """Who waits. A cancelled one is in `_waiting` until its task runs again, and must get no place."""
        return [ticket for ticket, place in self._waiting.items() if not place.done()]

    def _give(self, ticket: Ticket) -> None:
        self._running[ticket], self._positions = None, None
        ticket._came = self._meter.come(asyncio.get_running_loop().time())
        if self.limit:
            self._given += 1
            self._last_given.pop(ticket.client, None)
            self._last_given[ticket.client] = self._given
            if len(self._last_given) > _REMEMBERED:
                del self._last_given[next(iter(self._last_given))]

    def _take_back(self, ticket: Ticket) -> None:
        del self._running[ticket]
        now = self._meter.go(asyncio.get_running_loop().time())
        ticket._share = now - (now if ticket._came is None else ticket._came)

    def _release(self, ticket: Ticket) -> None:
        ticket._held = None
        self._serve()

    def _serve(self) -> None:
        """Give away what is free, after a change."""
        self._positions = None
        while self.has_room and (ready := [ticket for ticket in self._line() if ticket._held is None]):
            ticket = next(self._order(*_by_kind(ready)))
            place = self._waiting.pop(ticket)
            now = place.get_loop().time()
            ticket.waited, ticket._since = now - ticket._since, now
            self._give(ticket)
            place.set_result(None)

    def _order(self, *groups: Sequence[Ticket]) -> Iterator[Ticket]:
        """Of service, one group after the other, if the place that was taken first always becomes free first."""
        places = deque(ticket.client for ticket in self._running)
        taken, last, given = Counter(places), Counter(self._last_given), self._given
        for group in groups:
            queues: dict[str, deque[Ticket]] = {}
            for ticket in group:
                queues.setdefault(ticket.client, deque()).append(ticket)
            for came, client in enumerate(queues, -len(queues)):
                last.setdefault(client, came)  # below 0: never
            heap = [(taken[client], last[client], client) for client in queues]
            heapq.heapify(heap)
            while queues:
                if len(places) >= self.limit:
                    client = places.popleft()
                    taken[client] -= 1
                    heapq.heappush(heap, (taken[client], last[client], client))
                best = heapq.heappop(heap)
                client = best[-1]
                if client not in queues or best != (taken[client], last[client], client):
                    continue  # out of date: there is a newer one
                yield queues[client].popleft()
                if not queues[client]:
                    del queues[client]
                given += 1
                last[client] = given
                taken[client] += 1
                places.append(client)
                heapq.heappush(heap, (taken[client], last[client], client))

    def _full(self, ticket: Ticket) -> LineFull:
        line = self._line()
        if self._seconds is None:
            oldest = next(iter(self._running), ticket)
            seconds = max(ticket._since - oldest._since, 5.0)
        else:  # those before it must leave, and one of those that run now
            before = sum(ticket.side or not each.side for each in line)
            seconds = self._seconds * (before + 1) / self.limit
        return LineFull(len(line), min(max(math.ceil(seconds), 1), 3600))


def _by_kind(line: Sequence[Ticket]) -> tuple[list[Ticket], list[Ticket]]:
    """Side requests go last, whenever they came."""
    return [each for each in line if not each.side], [each for each in line if each.side]
