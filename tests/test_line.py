"""The line in front of a backend: who is served next, who is sent away, and that no place is lost or given twice."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from proxy.line import GRACE_SECONDS, Line, LineFull, Ticket
from proxy.speeds import SMOOTHING


async def turns(count: int = 6) -> None:
    """Let everything happen that can happen now."""
    for _ in range(count):
        await asyncio.sleep(0)


def scheduled() -> list[asyncio.TimerHandle]:
    """What the loop would still do later."""
    return [handle for handle in vars(asyncio.get_running_loop())["_scheduled"] if not handle.cancelled()]


class Clock:
    """The loop's clock, which stands still until it is moved. Nothing may block while a timer is set."""

    def __init__(self) -> None:
        self.now = 1000.0
        vars(asyncio.get_running_loop())["time"] = lambda: self.now

    async def move(self, seconds: float) -> None:
        """So much time passes, and what was due then happens."""
        self.now += seconds
        await turns()


class Crowd:
    """Requests with names: the first letter is the client, a capital's is a side request."""

    def __init__(self, line: Line) -> None:
        self.line = line
        self.served: list[str] = []
        self.told: dict[str, Ticket] = {}
        self._tasks: dict[str, asyncio.Task[Ticket]] = {}

    async def come(self, *names: str) -> None:
        """One after the other; `waits` says who has no place then."""
        for name in names:
            self._tasks[name] = asyncio.create_task(self._come(name))
            await turns()

    async def _come(self, name: str) -> Ticket:
        def told(ticket: Ticket) -> None:
            assert name not in self.told
            self.told[name] = ticket

        ticket = await self.line.enter(name[0].lower(), side=name[0].isupper(), told=told)
        self.served.append(name)
        return ticket

    def leave(self, name: str) -> None:
        """Give a place back."""
        self.line.leave(self._tasks[name].result())

    def cancel(self, name: str) -> None:
        """The client goes away."""
        self._tasks[name].cancel()

    def failure(self, name: str) -> BaseException | None:
        """What it ended with."""
        return self._tasks[name].exception()

    def cancelled(self, name: str) -> bool:
        """Whether it got no place because it was cancelled."""
        return self._tasks[name].cancelled()

    def ticket(self, name: str) -> Ticket:
        """Of one that was served."""
        return self._tasks[name].result()

    def positions(self) -> dict[str, int]:
        """Of all who wait."""
        return {name: at for name, ticket in self.told.items() if (at := self.line.position(ticket))}

    async def finish(self) -> list[str]:
        """Let all leave, the one first who was served first: the whole order of service. Nothing is left behind."""
        done = 0
        while done < len(self.served):
            self.leave(self.served[done])
            done += 1
            await turns()
        await asyncio.wait(self._tasks.values())
        assert (self.line.running, self.line.waiting, scheduled()) == (0, 0, [])
        return self.served


async def order(limit: int, *names: str) -> list[str]:
    """In which these are served who come one after the other; their positions said so."""
    crowd = Crowd(Line(limit, 100, grace=0.0))
    await crowd.come(*names)
    told = crowd.positions()
    at_once = len(crowd.served)
    served = await crowd.finish()
    assert {name: number for number, name in enumerate(served[at_once:], 1)} == told
    return served


# Order --------------------------------------------------------------------------------------------------------------


async def test_one_client_is_served_as_it_came():
    """Without others, fairness changes nothing."""
    assert await order(1, "a1", "a2", "a3", "a4") == ["a1", "a2", "a3", "a4"]


async def test_clients_take_turns():
    """Ten requests of one client do not hold up one of another."""
    many = [f"a{number}" for number in range(11)]
    assert await order(1, *many, "b", "c") == ["a0", "b", "c", *many[1:]]
    assert await order(1, "a1", "a2", "a3", "b1", "b2", "c1", "c2") == ["a1", "b1", "c1", "a2", "b2", "c2", "a3"]


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (1, ["a1", "b1", "c1", "a2", "b2", "a3", "a4", "a5"]),
        (2, ["a1", "a2", "b1", "c1", "a3", "b2", "a4", "a5"]),  # c1 while b1 runs, a3 as b's turn was later than a's
        (3, ["a1", "a2", "a3", "b1", "c1", "a4", "b2", "a5"]),  # a4 while b1 and c1 run
    ],
)
async def test_who_has_the_fewest_places_is_next(limit, expected):
    """Then who got one least recently, then who came first."""
    assert await order(limit, "a1", "a2", "a3", "a4", "a5", "b1", "b2", "c1") == expected


async def test_a_client_without_a_place_goes_before_one_that_waits_longer():
    """The places that are taken now count first."""
    crowd = Crowd(Line(2, 100))
    await crowd.come("b0", "a1", "a2", "b1")
    crowd.leave("b0")
    await turns()
    assert crowd.served == ["b0", "a1", "b1"]
    assert await crowd.finish() == ["b0", "a1", "b1", "a2"]


async def test_the_client_served_least_recently_goes_first():
    """Though the other one came first; who was never served goes before both."""
    crowd = Crowd(Line(1, 100))
    for name in ("a0", "b0", "x0"):
        await crowd.come(name)
        if name != "x0":
            crowd.leave(name)
    await crowd.come("b1", "a1", "c1", "d1")
    assert crowd.positions() == {"c1": 1, "d1": 2, "a1": 3, "b1": 4}
    crowd.leave("x0")
    await turns()
    crowd.served = crowd.served[3:]
    assert await crowd.finish() == ["c1", "d1", "a1", "b1"]


async def test_side_requests_wait_for_all_others():
    """They came first, and the others came while they waited, even of one client; among themselves they are fair."""
    assert await order(1, "b0", "A1", "A2", "C1", "a1", "a2", "b1") == ["b0", "a1", "b1", "a2", "C1", "A1", "A2"]
    assert await order(2, "b0", "b1", "A1", "a1") == ["b0", "b1", "a1", "A1"]


async def test_nothing_stops_a_side_request_that_runs():
    """It has its place; only those who wait are passed."""
    assert await order(2, "A1", "B1", "c1") == ["A1", "B1", "c1"]


async def test_a_client_is_known_to_wait_with_its_own_question():
    """Not with a side request, and not any more when it was served."""
    line = Line(1, 100, grace=0.0)
    crowd = Crowd(line)
    await crowd.come("a1", "b1", "C1")
    assert [line.waits(client) for client in "abc"] == [False, True, False]
    crowd.leave("a1")
    assert not line.waits("b")
    await turns()
    await crowd.finish()


async def test_long_lines_are_no_work():
    """Hundreds of clients come, and each asks where it stands: far less than a second, and not one for each hundred."""
    line = Line(1, 1000)
    first = await line.enter("a")
    tickets: list[Ticket] = []
    before = time.process_time()
    entering = [asyncio.create_task(line.enter(f"b{number}", told=tickets.append)) for number in range(600)]
    await turns()
    assert [ticket.first_position for ticket in tickets] == list(range(1, 601))
    for _ in range(100):
        assert [line.position(ticket) for ticket in tickets] == list(range(1, 601))
    assert time.process_time() - before < 5
    for task in entering:
        task.cancel()
    line.leave(first)
    await asyncio.wait(entering)
    assert (line.running, line.waiting) == (0, 0)


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 5), st.lists(st.sampled_from("aaabbccdABC"), min_size=1, max_size=25))
def test_positions_come_true(limit, clients):
    """For any crowd, as long as nobody comes or gives up."""
    asyncio.run(order(limit, *(f"{client}{number}" for number, client in enumerate(clients))))


# Limits -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 2, 3])
async def test_no_more_run_than_may(limit):
    """As many as may run do; the others wait."""
    crowd = Crowd(Line(limit, 100))
    assert crowd.line.has_room
    await crowd.come("a1", "a2", "b1", "b2", "c1")
    assert (crowd.line.running, crowd.line.waiting, crowd.line.has_room) == (limit, 5 - limit, False)
    await crowd.finish()


async def test_without_a_limit_nobody_waits():
    """Places are counted still; a side request is not held back, and nobody is told to wait."""
    line = Line(0, 0)
    crowd = Crowd(line)
    await crowd.come(*(f"{letter}{number}" for letter in "aB" for number in range(100)))
    assert (line.running, line.waiting, line.has_room, crowd.told) == (200, 0, True, {})
    assert line.position(crowd.ticket("a1")) == 0
    crowd.leave("a1")
    crowd.leave("a1")
    assert line.running == 199
    crowd.served.remove("a1")
    await crowd.finish()


def test_without_a_limit_a_place_takes_no_turn_of_the_loop():
    """No future is made: the coroutine ends with its first step."""

    async def enters_at_once() -> None:
        line = Line(0, 0)
        entering = line.enter("a")
        with pytest.raises(StopIteration) as ended:
            entering.send(None)
        ticket: Ticket = ended.value.value
        assert (ticket.waited, ticket.first_position, line.running) == (0.0, 0, 1)
        assert not line._last_given

    asyncio.run(enters_at_once())


async def test_who_finds_a_free_place_did_not_wait():
    """It is not told to, and its ticket says so."""
    line = Line(1, 100)
    told: list[Ticket] = []
    ticket = await line.enter("a", told=told.append)
    assert (told, ticket.waited, ticket.first_position, line.position(ticket)) == ([], 0.0, 0, 0)
    assert (ticket.client, ticket.side) == ("a", False)
    line.leave(ticket)


async def test_a_ticket_says_how_long_it_waited_and_from_where():
    """And, while it waits, where it stands."""
    clock, line = Clock(), Line(1, 100)
    crowd = Crowd(line)
    await crowd.come("a1", "b1", "b2", "c1")
    assert [crowd.told[name].first_position for name in ("b1", "b2", "c1")] == [1, 2, 2]
    assert crowd.positions() == {"b1": 1, "c1": 2, "b2": 3}
    await clock.move(2.5)
    crowd.leave("a1")
    assert crowd.positions() == {"c1": 1, "b2": 2}
    await clock.move(4)
    crowd.leave("b1")
    await turns()
    tickets = [crowd.ticket(name) for name in ("a1", "b1", "c1")]
    assert [ticket.waited for ticket in tickets] == [0.0, 2.5, 6.5]
    crowd.served = crowd.served[2:]
    await crowd.finish()


@pytest.mark.parametrize("most", [0, 1, 3])
async def test_no_more_wait_than_may(most):
    """The next is sent away at once, told of nothing; as soon as one leaves the line there is room again."""
    crowd = Crowd(Line(2, most))
    waiting = [f"b{number}" for number in range(most)]
    await crowd.come("a1", "a2", *waiting, "c1")
    full = crowd.failure("c1")
    assert isinstance(full, LineFull)
    assert (full.waiting, str(full)) == (most, f"{most} requests wait already")
    assert ("c1" in crowd.told, crowd.line.running, crowd.line.waiting) == (False, 2, most)
    crowd.leave("a1")
    await crowd.come("c2")
    assert ("c2" in crowd.told) is (most > 0)
    crowd.served.remove("a1")
    await crowd.finish()


async def test_a_place_is_given_back_once():
    """Whoever leaves twice takes no place from another."""
    line = Line(1, 100)
    crowd = Crowd(line)
    await crowd.come("a1", "b1", "c1")
    for _ in range(3):
        crowd.leave("a1")
    await turns()
    assert (crowd.served, line.running) == (["a1", "b1"], 1)
    crowd.leave("a1")
    line.leave(crowd.told["c1"])  # it has no place yet
    await turns()
    assert (crowd.served, line.running, line.waiting) == (["a1", "b1"], 1, 1)
    crowd.served.remove("a1")
    await crowd.finish()


# When to come again -------------------------------------------------------------------------------------------------


async def refused(line: Line, *, side: bool = False) -> int:
    """In how many seconds to come again."""
    with pytest.raises(LineFull) as full:
        await line.enter("z", side=side)
    return full.value.retry_after


@pytest.mark.parametrize(("runs", "seconds"), [(0.0, 5), (4.0, 5), (5.5, 6), (90.0, 90), (1e5, 3600)])
async def test_before_anything_ended_the_oldest_tells_how_long_it_takes(runs, seconds):
    """It has run for so long: at least as long again. The younger one tells less."""
    clock, line = Clock(), Line(2, 0)
    await line.enter("a")
    await clock.move(runs)
    await line.enter("b")
    assert await refused(line) == seconds


async def test_the_latest_durations_tell_when_to_come_again():
    """Smoothed; as many must leave as are served before, and one more."""
    clock, line = Clock(), Line(1, 0)
    known = None
    for seconds in (10.0, 20.0, 4.0):
        ticket = await line.enter("a")
        await clock.move(seconds)
        line.leave(ticket)
        known = seconds if known is None else known + SMOOTHING * (seconds - known)
        ticket = await line.enter("a")
        assert await refused(line) == math.ceil(known)
        line.leave(ticket)
        known += SMOOTHING * (0 - known)


async def test_only_the_time_in_a_place_is_a_duration():
    """The time in the line before is not, nor is a second leaving."""
    clock, line = Clock(), Line(1, 1)
    crowd = Crowd(line)
    await crowd.come("a1", "b1")
    for name in ("a1", "b1"):
        await clock.move(10)
        crowd.leave(name)
        await turns()
    await crowd.come("a2", "b2")
    await clock.move(1000)
    crowd.leave("a1")
    assert await refused(line) == 20
    crowd.cancel("b2")
    crowd.served = ["a2"]
    await crowd.finish()


@pytest.mark.parametrize(
    ("limit", "waiting", "side", "seconds"),
    [
        (1, [], False, 10),
        (1, ["b1", "b2", "c1"], False, 40),
        (1, ["b1", "B1", "C1"], False, 20),  # it passes the side requests
        (1, ["b1", "B1", "C1"], True, 40),
        (2, ["b1", "b2", "c1"], False, 20),
        (3, ["b1", "b2", "c1"], False, 14),
    ],
)
async def test_who_is_served_before_tells_when_to_come_again(limit, waiting, side, seconds):
    """Each takes ten seconds, and so many leave together."""
    clock, line = Clock(), Line(limit, len(waiting))
    ticket = await line.enter("a")
    await clock.move(10)
    line.leave(ticket)
    crowd = Crowd(line)
    await crowd.come(*[f"a{number}" for number in range(limit)], *waiting)
    assert await refused(line, side=side) == seconds
    await clock.move(10)
    await crowd.finish()


async def test_nobody_is_told_to_come_again_at_once_or_tomorrow():
    """Between a second and an hour."""
    clock, line = Clock(), Line(1, 0)
    for runs, seconds in ((0.0, 1), (1e6, 3600)):
        ticket = await line.enter("a")
        await clock.move(runs)
        line.leave(ticket)
        ticket = await line.enter("a")
        assert await refused(line) == seconds
        line.leave(ticket)


# The grace of side requests -----------------------------------------------------------------------------------------


async def test_a_side_request_is_held_back_in_real_time():
    """Its place is free and it waits all the same, for as long as it is said, and no longer."""
    line = Line(1, 0, grace=0.05)
    told: list[Ticket] = []
    before = time.monotonic()
    ticket = await line.enter("a", side=True, told=told.append)
    assert 0.045 < time.monotonic() - before < 1
    assert (told, ticket.first_position) == ([ticket], 1)
    assert 0.045 < ticket.waited < 1
    line.leave(ticket)
    assert scheduled() == []


async def test_a_question_passes_the_title_that_was_asked_for_before_it():
    """The title waits for the answer then, though its grace is over; no timer is left."""
    clock, crowd = Clock(), Crowd(Line(1, 100))
    await crowd.come("A1")
    assert (crowd.positions(), crowd.line.running, crowd.line.waiting) == ({"A1": 1}, 0, 1)
    await clock.move(GRACE_SECONDS * 0.9)
    await crowd.come("a1")
    assert crowd.served == ["a1"]
    await clock.move(GRACE_SECONDS)
    assert (crowd.served, crowd.positions(), scheduled()) == (["a1"], {"A1": 1}, [])
    assert await crowd.finish() == ["a1", "A1"]


async def test_a_title_is_asked_for_when_its_grace_is_over():
    """Nothing else came."""
    clock, crowd = Clock(), Crowd(Line(1, 100))
    await crowd.come("A1")
    await clock.move(GRACE_SECONDS * 0.9)
    assert crowd.served == []
    await clock.move(GRACE_SECONDS * 0.1)
    assert crowd.served == ["A1"]
    assert crowd.ticket("A1").waited == pytest.approx(GRACE_SECONDS)
    await crowd.finish()


async def test_the_grace_counts_from_when_the_request_came():
    """Also where the place was taken: if free within the grace, it waits for the rest; if later, for nothing."""
    clock, crowd = Clock(), Crowd(Line(1, 100))
    await crowd.come("a1", "A1")
    await clock.move(GRACE_SECONDS * 0.75)
    crowd.leave("a1")
    await turns()
    assert (crowd.served, crowd.line.running) == (["a1"], 0)
    await clock.move(GRACE_SECONDS * 0.25)
    await crowd.come("B1")
    await clock.move(GRACE_SECONDS)
    assert crowd.served == ["a1", "A1"]
    crowd.leave("A1")
    await turns()
    assert crowd.served == ["a1", "A1", "B1"]
    crowd.served = ["B1"]
    await crowd.finish()


async def test_of_several_that_are_held_back_the_first_is_served_first():
    """Its grace ends first, though its client was served and the other was not; positions say so."""
    clock, crowd = Clock(), Crowd(Line(1, 100))
    await crowd.come("a0")
    crowd.leave("a0")
    await crowd.come("A1", "A2")
    await clock.move(GRACE_SECONDS / 2)
    await crowd.come("B1")
    assert crowd.positions() == {"A1": 1, "B1": 2, "A2": 3}
    await clock.move(GRACE_SECONDS / 2)
    assert crowd.served == ["a0", "A1"]
    await clock.move(GRACE_SECONDS)
    crowd.served = crowd.served[1:]
    assert await crowd.finish() == ["A1", "B1", "A2"]


async def test_positions_follow_a_question_that_takes_the_free_place():
    """Those who are held back are served later then, and in the order of all."""
    clock, crowd = Clock(), Crowd(Line(1, 100))
    await crowd.come("a0")
    crowd.leave("a0")
    await crowd.come("A1", "B1")
    assert crowd.positions() == {"A1": 1, "B1": 2}
    await crowd.come("c1")
    assert crowd.positions() == {"B1": 1, "A1": 2}
    await clock.move(GRACE_SECONDS)
    crowd.served = ["c1"]
    assert await crowd.finish() == ["c1", "B1", "A1"]


@pytest.mark.parametrize("limit", [0, 2, 3])
async def test_only_a_server_with_one_place_holds_back(limit):
    """Others have room for the question that follows."""
    line = Line(limit, 0)
    ticket = await line.enter("a", side=True)
    assert ticket.waited == 0.0
    line.leave(ticket)


async def test_without_grace_a_side_request_finds_the_free_place():
    """As everybody does."""
    line = Line(1, 0, grace=0.0)
    ticket = await line.enter("a", side=True)
    assert ticket.first_position == 0
    line.leave(ticket)


async def test_who_is_only_held_back_takes_no_place_in_the_line():
    """An idle server takes a title where nobody may wait; but one, as without a grace, and no second."""
    clock, crowd = Clock(), Crowd(Line(1, 0))
    await crowd.come("A1", "B1")
    full = crowd.failure("B1")
    assert isinstance(full, LineFull)
    assert (full.waiting, full.retry_after) == (1, 5)
    await crowd.come("a1", "b1")
    assert (crowd.served, crowd.positions()) == (["a1"], {"A1": 1})
    assert isinstance(crowd.failure("b1"), LineFull)
    await clock.move(GRACE_SECONDS)
    assert await crowd.finish() == ["a1", "A1"]


async def test_behind_a_free_place_as_many_are_held_back_as_may_wait():
    """One for the place, and the line."""
    clock, crowd = Clock(), Crowd(Line(1, 1))
    await crowd.come("A1", "B1", "C1")
    assert crowd.positions() == {"A1": 1, "B1": 2}
    assert isinstance(crowd.failure("C1"), LineFull)
    await clock.move(GRACE_SECONDS)
    assert await crowd.finish() == ["A1", "B1"]


# Cancelling ---------------------------------------------------------------------------------------------------------


async def test_who_gives_up_leaves_the_line():
    """Those behind it move up at once, before its task has ended."""
    clock, line = Clock(), Line(1, 2)
    crowd = Crowd(line)
    await crowd.come("a1", "b1", "c1")
    await clock.move(3)
    crowd.cancel("b1")
    assert (line.waiting, line.waits("b")) == (1, False)
    await crowd.come("d1")
    assert (crowd.positions(), crowd.told["b1"].waited) == ({"c1": 1, "d1": 2}, 3.0)
    assert crowd.cancelled("b1")
    assert await crowd.finish() == ["a1", "c1", "d1"]


async def test_who_gives_up_before_the_place_is_free_does_not_get_it():
    """In the same turn of the loop, so that its task does not know yet."""
    crowd = Crowd(Line(1, 100))
    await crowd.come("a1", "b1", "c1")
    crowd.cancel("b1")
    crowd.leave("a1")
    await turns()
    assert (crowd.served, crowd.cancelled("b1")) == (["a1", "c1"], True)
    crowd.served.remove("a1")
    await crowd.finish()


async def test_a_place_that_was_given_to_one_who_gives_up_goes_to_the_next():
    """In the same turn of the loop: it has the place already, but its task does not know yet."""
    crowd = Crowd(Line(1, 100))
    await crowd.come("a1", "b1", "c1")
    crowd.leave("a1")
    crowd.cancel("b1")
    assert crowd.line.running == 1
    await turns()
    assert (crowd.served, crowd.cancelled("b1"), crowd.line.running) == (["a1", "c1"], True, 1)
    crowd.served.remove("a1")
    await crowd.finish()


async def test_a_place_is_free_when_all_give_up_in_the_moment_in_which_it_was_given():
    """Nobody is left, and the next finds it."""
    crowd = Crowd(Line(1, 100))
    await crowd.come("a1", "b1", "c1")
    crowd.leave("a1")
    crowd.cancel("b1")
    crowd.cancel("c1")
    await turns()
    assert (crowd.line.running, crowd.line.waiting) == (0, 0)
    await crowd.come("d1")
    assert crowd.served == ["a1", "d1"]
    crowd.served.remove("a1")
    await crowd.finish()


async def test_who_gives_up_with_its_place_teaches_no_duration():
    """It has used none, so that nobody is told to come again too soon."""
    clock, line = Clock(), Line(1, 1)
    crowd = Crowd(line)
    await crowd.come("a1", "b1")
    await clock.move(10)
    crowd.leave("a1")
    crowd.cancel("b1")
    await crowd.come("c1", "d1")
    assert await refused(line) == 20
    crowd.served.remove("a1")
    await clock.move(10)
    await crowd.finish()


async def test_who_is_cancelled_before_it_began_was_never_there():
    """Its coroutine does not run."""
    line = Line(1, 100)
    task = asyncio.create_task(line.enter("a"))
    task.cancel()
    await asyncio.wait([task])
    assert (task.cancelled(), line.running, line.waiting) == (True, 0, 0)


async def test_who_is_held_back_and_gives_up_leaves_no_timer():
    """Behind it, the next has its own grace."""
    clock, crowd = Clock(), Crowd(Line(1, 100))
    await crowd.come("A1")
    await clock.move(GRACE_SECONDS / 2)
    await crowd.come("B1")
    crowd.cancel("A1")
    await turns()
    assert (crowd.positions(), len(scheduled())) == ({"B1": 1}, 1)
    await clock.move(GRACE_SECONDS / 2)
    assert crowd.served == []
    crowd.cancel("B1")
    await turns()
    assert (crowd.line.waiting, scheduled()) == (0, [])
    await crowd.finish()


async def test_who_gives_up_in_the_moment_in_which_its_grace_ends_gets_no_place():
    """The place stays free."""
    clock, crowd = Clock(), Crowd(Line(1, 100))
    await crowd.come("A1")
    clock.now += GRACE_SECONDS
    crowd.cancel("A1")
    await turns()
    assert (crowd.served, crowd.line.running, crowd.line.waiting, scheduled()) == ([], 0, 0, [])


async def test_who_waits_for_no_longer_than_it_wants_leaves_the_line():
    """As with a time limit around `enter`."""
    line = Line(1, 100)
    first = await line.enter("a")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await line.enter("b")
    assert (line.running, line.waiting) == (1, 0)
    line.leave(first)
    assert line.has_room


async def test_who_fails_when_it_is_told_to_wait_leaves_the_line():
    """The error reaches the caller."""
    line = Line(1, 100)
    first = await line.enter("a")

    def fails(ticket: Ticket) -> None:
        raise ValueError(ticket.first_position)

    with pytest.raises(ValueError, match="1"):
        await line.enter("b", told=fails)
    assert (line.running, line.waiting) == (1, 0)
    line.leave(first)


# Memory -------------------------------------------------------------------------------------------------------------


async def test_of_clients_without_number_the_latest_are_remembered():
    """A thousand; each counts from its latest place."""
    line = Line(1, 100)
    for number in range(3000):
        line.leave(await line.enter("b" if number % 500 == 0 else f"client {number}"))
    assert len(line._last_given) == 1000
    crowd = Crowd(line)
    await crowd.come("x1", "b1", "y1")
    assert await crowd.finish() == ["x1", "y1", "b1"]


# Against a model ----------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Request:
    """One request of the model, and the real one beside it."""

    client: str
    side: bool
    due: float = 0.0
    held: bool = False
    state: str = "new"  # then: waits, given, runs; gone, refused
    cancelled: bool = False
    ticket: Ticket | None = None
    task: asyncio.Task[None] | None = None


@dataclass
class Model:
    """The rules, told a second time and as simply as they can be."""

    limit: int
    most: int
    grace: float
    now: float = 0.0
    waiting: list[Request] = field(default_factory=list)
    running: list[Request] = field(default_factory=list)
    served: list[Request] = field(default_factory=list)
    """All who ever got a place, as they got it."""
    to_do: list[Request] = field(default_factory=list)
    """Whose task runs in the next turn of the loop, in this order."""

    def serve(self) -> None:
        """Give away what is free."""
        while len(self.running) < self.limit:
            ready = [each for each in self.waiting if not each.held]
            if not ready:
                return
            best = min(ready, key=self._rank)
            self.waiting.remove(best)
            best.state = "given"
            self.running.append(best)
            self.served.append(best)
            self.to_do.append(best)

    def move(self, seconds: float) -> None:
        """So much time passes; graces end in the order in which the requests came."""
        self.now += seconds
        for request in [each for each in self.waiting if each.held and each.due <= self.now]:
            request.held = False
            self.serve()

    def _rank(self, request: Request) -> tuple[bool, int, int]:
        taken = Counter(each.client for each in self.running)
        given = [number for number, each in enumerate(self.served) if each.client == request.client]
        return request.side, taken[request.client], max(given, default=-1)  # then as they came

    def turn(self) -> None:
        """All tasks that can run do."""
        while self.to_do:
            self._run(self.to_do.pop(0))

    def _run(self, request: Request) -> None:
        if request.cancelled:
            if request.state == "given":
                self.running.remove(request)
            request.state = "gone"
            self.serve()
        elif request.state == "given":
            request.state = "runs"
        else:
            self.now += TICK
            request.due = self.now + self.grace
            request.held = self.limit == 1 and request.side and self.grace > 0
            free = not self.limit or len(self.running) < self.limit
            if free and not request.held:
                request.state = "runs"
                self.running.append(request)
                self.served.append(request)
            elif len(self.waiting) - (self.limit - len(self.running)) >= self.most:
                request.state = "refused"
            else:
                request.state = "waits"
                self.waiting.append(request)

    def cancel(self, request: Request) -> None:
        """Its task is cancelled."""
        request.cancelled = True
        if request.state == "waits":
            self.waiting.remove(request)
            request.state = "gone"

    def leave(self, request: Request) -> None:
        """It gives its place back."""
        self.running.remove(request)
        request.state = "gone"
        self.serve()


class Play:
    """A line and its model, to which the same things happen."""

    def __init__(self, limit: int, most: int, grace: float) -> None:
        self.clock = Clock()
        self.line = Line(limit, most, grace=grace)
        self.model = Model(limit, most, grace, now=self.clock.now)
        self.requests: list[Request] = []

    def enter(self, client: str, side: bool) -> None:
        """One comes, in the next turn."""
        request = Request(client, side)
        request.task = asyncio.create_task(self._enter(request))
        self.requests.append(request)
        self.model.to_do.append(request)

    async def _enter(self, request: Request) -> None:
        def told(ticket: Ticket) -> None:
            assert request.ticket is None
            request.ticket = ticket
            assert ticket.first_position == self.line.position(ticket) > 0

        self.clock.now += TICK
        ticket = await self.line.enter(request.client, side=request.side, told=told)
        assert request.ticket in (None, ticket)
        assert bool(ticket.first_position) is (request.ticket is not None)
        request.ticket = ticket

    def leave(self, number: int) -> None:
        """One of those leaves that run and know it; it does so twice."""
        running = [each for each in self.model.running if each.state == "runs"]
        if running:
            request = running[number % len(running)]
            self.model.leave(request)
            self.line.leave(request.ticket)
            self.line.leave(request.ticket)

    def cancel(self, state: str, number: int) -> None:
        """One of those in a state is cancelled."""
        found = [each for each in self.requests if each.state == state and not each.cancelled]
        if found:
            request = found[number % len(found)]
            event(f"cancelled: {state}")
            self.model.cancel(request)
            request.task.cancel()

    def snatch(self, number: int) -> None:
        """One leaves, and whoever gets the place is cancelled before it knows."""
        self.leave(number)
        self.cancel("given", number)

    async def settle(self, seconds: float = 0.0) -> None:
        """The loop turns, and then so much time passes."""
        self.model.turn()
        await turns(2 * len(self.requests) + 4)
        self.check()
        if seconds:
            self.model.move(seconds)
            self.model.turn()
            await self.clock.move(seconds)
            self.check()

    def check(self) -> None:
        """Both are alike."""
        line, model = self.line, self.model
        assert not model.limit or line.running <= model.limit
        assert (line.running, line.waiting) == (len(model.running), len(model.waiting))
        for request in self.requests:
            ended = request.task.done() and not request.task.cancelled()
            assert ended is (
                request.state in ("runs", "refused") or (request.state == "gone" and not request.cancelled)
            )
            if ended:
                assert isinstance(request.task.exception(), LineFull) is (request.state == "refused")
            if request.ticket is not None:
                assert bool(line.position(request.ticket)) is (request.state == "waits")
        positions = sorted(line.position(request.ticket) for request in model.waiting)
        assert positions == list(range(1, len(positions) + 1))
        assert all(request.held for request in model.waiting) or line.running == model.limit
        for client in CLIENTS:
            assert line.waits(client) is any(each.client == client and not each.side for each in model.waiting)
        due = [request.due for request in model.waiting if request.held]
        assert sorted(timer.when() for timer in scheduled()) == due

    async def finish(self) -> None:
        """Nobody comes any more, and all leave in the order in which they were served: positions come true."""
        foreseen = sorted(self.model.waiting, key=lambda each: self.line.position(each.ticket))
        before = len(self.model.served)
        if self.line.has_room and foreseen:
            await self.settle(foreseen[0].due - self.model.now)
        await self.settle(self.model.grace)
        while self.model.running:
            self.leave(0)
            await self.settle()
        assert self.model.served[before:] == foreseen
        assert (self.line.running, self.line.waiting, scheduled()) == (0, 0, [])
        assert all(request.task.done() for request in self.requests)


CLIENTS = "abcd"
TICK = 2**-20
"""No two come in the same moment."""
STEP = st.one_of(
    st.tuples(st.just("enter"), st.sampled_from(CLIENTS), st.booleans()),
    st.tuples(st.just("enter"), st.sampled_from(CLIENTS), st.just(False)),
    st.tuples(st.just("enter"), st.sampled_from(CLIENTS), st.just(False)),
    st.tuples(st.just("leave"), st.integers(0, 3)),
    st.tuples(st.just("snatch"), st.integers(0, 3)),
    st.tuples(st.just("cancel"), st.sampled_from(["given", "waits", "new"]), st.integers(0, 9)),
)
TURN = st.tuples(st.lists(STEP, min_size=1, max_size=5), st.sampled_from([0.0, 0.0, 0.25, 0.75, 1.0]))


@settings(max_examples=400, deadline=None)
@given(
    st.sampled_from([1, 1, 2, 3, 0]),
    st.sampled_from([20, 0, 1, 3]),
    st.sampled_from([1.0, 0.0]),
    st.lists(TURN, min_size=3, max_size=15),
)
def test_random_crowds_are_served_by_the_rules(limit, most, grace, happens):
    """Whatever happens within one turn of the loop: never more than may run, no place lost, nobody forgotten."""

    async def play() -> None:
        crowd = Play(limit, most, grace)
        for steps, seconds in happens:
            for name, *values in steps:
                getattr(crowd, name)(*values)
            await crowd.settle(seconds)
        event(f"waiting at the end: {min(len(crowd.model.waiting), 4)}")
        await crowd.finish()

    asyncio.run(play())
