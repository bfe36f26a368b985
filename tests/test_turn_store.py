"""What every store does with turns, whatever the engine: the contract, written against the protocol alone."""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proxy.messages import Entry
from proxy.store import Store, open_upkeep
from proxy.store.limits import DAY, NO_LIMITS, Limits
from proxy.store.postgres import PostgresStore
from proxy.store.sqlite import SqliteStore
from proxy.store.texts import pack
from proxy.turns import MOST_TURNS, Found, Turn

START = 1_800_000_000.0


class Clock:
    """A time that only moves when a test says so."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> float:
        """Seconds since 1970."""
        return self.now


@dataclass
class Place:
    """Where one engine keeps a store: opened as often as a test likes, and closed at its end.

    `lasts` is false where what was put ends with the store object; `url` is empty there too.
    """

    make: Callable[[Limits, Clock], Store]
    lasts: bool
    url: str = ""
    clock: Clock = field(default_factory=Clock)
    opened: ExitStack = field(default_factory=ExitStack)

    def open(self, limits: Limits = NO_LIMITS) -> Store:
        """A store there."""
        return self.opened.enter_context(closing(self.make(limits, self.clock)))


@pytest.fixture(params=["sqlite", "memory", "postgres"])
def fresh(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Place]]:
    """New places of one engine, each empty."""
    numbers = itertools.count()
    with ExitStack() as stack:

        def place() -> Place:
            if request.param == "postgres":
                opened = stack.enter_context(ExitStack())
                url = opened.enter_context(request.getfixturevalue("postgres_server").database())
                return Place(lambda *given: PostgresStore(url, None, *given), True, url, opened=opened)
            path = tmp_path / f"{next(numbers)}.db" if request.param == "sqlite" else None

            def make(limits: Limits, clock: Clock) -> Store:
                return SqliteStore(path, limits=limits, now=clock)

            found = Place(make, lasts=path is not None, url=f"sqlite:///{path}" if path else "")
            stack.callback(found.opened.close)
            return found

        yield place


@pytest.fixture
def place(fresh: Callable[[], Place]) -> Place:
    """An empty place."""
    return fresh()


on_disk = pytest.mark.parametrize("fresh", ["sqlite", "postgres"], indirect=True)
"""For what a store in memory cannot do."""


def key(number: int) -> bytes:
    """A key."""
    return number.to_bytes(16, "big")


def bare(turn: Turn) -> Turn:
    """As it is found: without its weaker keys."""
    return msgspec.structs.replace(turn, weaker=())


def random_text(size: int, seed: int = 0) -> str:
    """One that does not compress to much less."""
    letters = random.Random(seed)  # noqa: S311 - no secret
    return "".join(chr(letters.randrange(0x4E00, 0x9FFF)) for _ in range(size // 3))


def put_all(store: Store, turns: Sequence[Turn]) -> None:
    """Each after the other, and then on disk."""
    for turn in turns:
        store.put_turn(turn)
    assert store.flush()


async def exact(store: Store, *numbers: int) -> dict[bytes, list[Turn]]:
    """The turns of these keys."""
    found = await store.find([key(number) for number in numbers])
    return {asked: list(turns) for asked, turns in found.exact.items()}


async def sole(store: Store, *numbers: int) -> dict[bytes, Turn]:
    """The turns that these weaker keys lead to."""
    return dict((await store.find([], [key(number) for number in numbers])).sole)


FULL = Turn(
    key(1),
    " thought\n\u2028\x00 é ",
    "low",
    '[{"name": "f", "arguments": "{\\"a\\": 1}"}]',
    '[{"type": "reasoning.text", "text": "…"}]',
    ("\n\n", " \t\x85\u2003"),
    b"mark",
    b"\x00seen",
    b"system\xff",
    "openwebui",
    "3f00a7",
    1_800_000_000_123,
    7,
    True,
    (key(11), key(12)),
)
TURNS = [
    FULL,
    Turn(key(2), ""),
    Turn(key(3), "é" * 100_000, "", blanks=None),
    Turn(key(4), random_text(5000), None, calls="[]", client="", conversation=""),
    Turn(b"", "an empty key", seen=b"p"),
]

# What comes back


@pytest.mark.parametrize("flushed", [False, True])
async def test_every_field_comes_back_as_it_was_put(place: Place, flushed: bool) -> None:
    """Texts with NUL and odd blanks, empty and missing ones; from memory and from disk alike."""
    store = place.open()
    for turn in TURNS:
        store.put_turn(turn)
    if flushed:
        assert store.flush()
    found = await store.find([key(5), *(turn.key for turn in TURNS)], [key(11), key(12), key(13)])
    assert found == Found({turn.key: [bare(turn)] for turn in TURNS}, {key(11): bare(FULL), key(12): bare(FULL)})


@on_disk
async def test_a_reopened_store_knows_all(place: Place) -> None:
    """And has its salt still."""
    first = place.open()
    put_all(first, TURNS)
    first.close()
    second = place.open()
    found = await second.find([turn.key for turn in TURNS], [key(12)])
    assert found == Found({turn.key: [bare(turn)] for turn in TURNS}, {key(12): bare(FULL)})
    assert second.salt == first.salt
    assert len(second.salt) == 32


async def test_nothing_asked_is_nothing_found(place: Place) -> None:
    """Also of a store that has turns."""
    store = place.open()
    put_all(store, TURNS)
    assert await store.find([]) == Found()
    assert await store.find([key(99)], [key(98)]) == Found()


async def test_a_key_and_a_weaker_key_are_different_things(place: Place) -> None:
    """Even where the bytes are the same."""
    store = place.open()
    put_all(store, [Turn(key(1), "a", weaker=(key(2),)), Turn(key(2), "b", weaker=(key(1),))])
    assert await exact(store, 1) == {key(1): [Turn(key(1), "a")]}
    assert await sole(store, 1) == {key(1): Turn(key(2), "b")}


async def test_many_keys_at_once(place: Place) -> None:
    """Known, unknown and repeated ones, more than one statement takes."""
    store = place.open()
    put_all(store, [Turn(key(number), f"thought {number}", weaker=(key(number),)) for number in (0, 39_999, 69_999)])
    asked = [key(number) for number in [*range(70_000), 0, 39_999]]
    found = await store.find(asked, asked)
    assert set(found.exact) == set(found.sole) == {key(0), key(39_999), key(69_999)}


# Several thoughts of one key


@pytest.mark.parametrize("flushed", ["never", "each", "half"])
async def test_one_key_has_several_thoughts_in_the_order_of_their_puts(place: Place, flushed: str) -> None:
    """All within the same second; an empty thought is one, too. Wherever they are: in memory, on disk, or both."""
    store = place.open()
    thoughts = ["c", "a", "", "b"]
    for number, thought in enumerate(thoughts):
        store.put_turn(Turn(key(1), thought))
        if flushed == "each" or (flushed == "half" and number == 1):
            assert store.flush()
    assert await exact(store, 1) == {key(1): [Turn(key(1), thought) for thought in thoughts]}


@pytest.mark.parametrize("flushed", [False, True])
async def test_the_same_thought_again_is_the_newest_and_the_only_one(place: Place, flushed: bool) -> None:
    """What else the turn has is that of the last put."""
    store = place.open()
    first = Turn(key(1), "a", "low", calls="[1]", details="[2]", client="x")
    again = Turn(key(1), "a", None, calls="[3]", details="", blanks=None, client="y")
    for turn in (first, Turn(key(1), "b"), again):
        store.put_turn(turn)
        if flushed:
            assert store.flush()
    assert await exact(store, 1) == {key(1): [Turn(key(1), "b"), again]}


@pytest.mark.parametrize("flushed", [False, True])
async def test_the_oldest_of_too_many_thoughts_goes(place: Place, flushed: bool) -> None:
    """A key has MOST_TURNS; one that was put again is not the oldest any more."""
    store = place.open()
    for number in [*range(MOST_TURNS), 0, MOST_TURNS, MOST_TURNS + 1]:
        store.put_turn(Turn(key(1), f"{number}"))
        if flushed:
            assert store.flush()
    [turns] = (await exact(store, 1)).values()
    left = [*range(3, MOST_TURNS), 0, MOST_TURNS, MOST_TURNS + 1]
    assert [turn.reasoning for turn in turns] == [f"{number}" for number in left]


# Weaker keys


@pytest.mark.parametrize("flushed", ["never", "each", "half"])
async def test_a_weaker_key_leads_to_one_thought_or_nowhere(place: Place, flushed: str) -> None:
    """The same thought in another turn is still one; another thought makes it lead nowhere, for good."""
    store = place.open()

    def put(turn: Turn, half: bool = False) -> None:
        store.put_turn(turn)
        if flushed == "each" or (flushed == "half" and half):
            assert store.flush()

    put(Turn(key(1), "a", weaker=(key(11), key(12))), half=True)
    assert await sole(store, 11, 12) == dict.fromkeys([key(11), key(12)], Turn(key(1), "a"))
    put(Turn(key(2), "a", weaker=(key(11),)))
    assert await sole(store, 11, 12) == {key(11): Turn(key(2), "a"), key(12): Turn(key(1), "a")}
    put(Turn(key(3), "", weaker=(key(11),)), half=True)
    assert await sole(store, 11, 12) == {key(12): Turn(key(1), "a")}
    put(Turn(key(2), "a", weaker=(key(11),)))
    assert await sole(store, 11, 12) == {key(12): Turn(key(1), "a")}


async def test_a_weaker_key_never_becomes_clear_because_a_turn_went(place: Place) -> None:
    """One of its two thoughts was pushed out: the key does not lead to the other."""
    store = place.open()
    put_all(store, [Turn(key(1), "a", weaker=(key(11),)), Turn(key(2), "b", weaker=(key(11),))])
    put_all(store, [Turn(key(1), f"{number}") for number in range(MOST_TURNS)])
    assert await sole(store, 11) == {}
    put_all(store, [Turn(key(2), "b", weaker=(key(11),))])
    assert await sole(store, 11) == {}


@pytest.mark.parametrize("flushed", [False, True])
async def test_a_weaker_key_of_the_turn_that_is_pushed_out_and_of_its_successor(place: Place, flushed: bool) -> None:
    """It led to both for a moment, and so it leads nowhere."""
    store = place.open()
    store.put_turn(Turn(key(1), "first", weaker=(key(11),)))
    for number in range(1, MOST_TURNS):
        store.put_turn(Turn(key(1), f"{number}"))
    if flushed:
        assert store.flush()
    put_all(store, [Turn(key(1), "last", weaker=(key(11),))])
    assert await sole(store, 11) == {}


async def test_a_weaker_key_goes_with_its_turn(place: Place) -> None:
    """It leads to no other turn that happens to come later."""
    store = place.open()
    put_all(store, [Turn(key(1), "a", weaker=(key(11),))])
    put_all(store, [Turn(key(1), f"{number}") for number in range(MOST_TURNS)])
    assert await sole(store, 11) == {}


# Against a model


class Model:
    """What a store should know, as plain tables."""

    def __init__(self) -> None:
        self.exact: dict[bytes, dict[str, Turn]] = {}
        self.weaker: dict[bytes, Turn | None] = {}
        self.lost: set[bytes] = set()
        """Weaker keys whose turn was pushed out: a store may know more or less of them."""

    def put(self, turn: Turn) -> None:
        """Keep a turn."""
        thoughts = self.exact.setdefault(turn.key, {})
        thoughts.pop(turn.reasoning, None)
        thoughts[turn.reasoning] = bare(turn)
        for name in turn.weaker:
            before = self.weaker.get(name, turn)
            self.weaker[name] = bare(turn) if before and before.reasoning == turn.reasoning else None
        if len(thoughts) > MOST_TURNS:
            self._lose(thoughts.pop(next(iter(thoughts))))

    def forget(self, client: str) -> None:
        """Delete the turns of a client."""
        for thoughts in self.exact.values():
            for turn in [turn for turn in thoughts.values() if turn.client == client]:
                self._lose(thoughts.pop(turn.reasoning))
        self.exact = {name: thoughts for name, thoughts in self.exact.items() if thoughts}

    def _lose(self, gone: Turn) -> None:
        for name, led in self.weaker.items():
            if led and (led.key, led.reasoning) == (gone.key, gone.reasoning):
                self.lost.add(name)

    def check(self, found: Found, keys: Sequence[bytes], weaker: Sequence[bytes]) -> None:
        """It is what was found."""
        known = {name: list(self.exact[name].values()) for name in keys if name in self.exact}
        assert {name: list(turns) for name, turns in found.exact.items()} == known
        clear = {name: led for name in weaker if (led := self.weaker.get(name)) and name not in self.lost}
        assert _names({name: turn for name, turn in found.sole.items() if name not in self.lost}) == _names(clear)


def _names(led: Mapping[bytes, Turn]) -> dict[bytes, tuple[bytes, str]]:
    """The turns without what a later put of the same turn may have changed."""
    return {name: (turn.key, turn.reasoning) for name, turn in led.items()}


KEYS = [key(number) for number in range(4)]
WEAKER = [key(number) for number in range(10, 15)]
some_turn = st.builds(
    Turn,
    key=st.sampled_from(KEYS),
    reasoning=st.sampled_from(["", *"abcdefghi", "long " * 100]),
    calls=st.sampled_from(["", "[1]", "a"]),
    details=st.sampled_from(["", "[1]"]),
    effort=st.sampled_from([None, "", "low"]),
    blanks=st.sampled_from([None, ("", ""), ("", "\n")]),
    client=st.sampled_from([None, "x"]),
    weaker=st.lists(st.sampled_from(WEAKER), max_size=3).map(tuple),
)
some_step = st.sampled_from(["flush", "reopen", "find", "forget"])
steps = st.lists(st.one_of(some_turn, some_turn, some_turn, some_step), max_size=60)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(steps=steps)
def test_a_store_knows_what_plain_tables_know(fresh: Callable[[], Place], steps: list[Turn | str]) -> None:
    """Whatever is put and asked in whatever order, flushed, reopened or neither; and at its end it is empty again."""
    place = fresh()
    store, model = place.open(), Model()
    for step in [*steps, "find", "flush", "find"]:
        if isinstance(step, Turn):
            store.put_turn(step)
            model.put(step)
        elif step == "flush":
            assert store.flush()
        elif step == "reopen" and place.lasts:
            store.close()
            store = place.open()
        elif step == "forget" and place.lasts:
            assert store.flush()
            with open_upkeep(place.url) as upkeep:
                upkeep.forget(client="x")
            model.forget("x")
        elif step == "find":
            model.check(asyncio.run(store.find(KEYS, WEAKER)), KEYS, WEAKER)
    if place.lasts:
        assert_emptied(place)
    place.opened.close()


def assert_emptied(place: Place) -> None:
    """Its running total is what a count gives, and when all turns go, so do all texts."""
    with open_upkeep(place.url, now=lambda: START + 100 * DAY) as upkeep:
        with upkeep.writing() as turns:
            assert turns.bytes() == turns.recount()
        upkeep.prune(Limits(max_age_days=1))
        found = upkeep.stats()
    assert (found.turns, found.texts, found.text_bytes, found.stored_bytes) == (0, 0, 0, 0)


async def test_threads_put_and_find_at_once(place: Place) -> None:
    """Each finds its own turns at once, and nothing is lost."""
    store = place.open()
    failed: list[str] = []

    def work(worker: int) -> None:
        for number in range(40):
            name = key(worker * 1000 + number)
            store.put_turn(Turn(name, f"{worker} {number}", weaker=(name,)))
            found = asyncio.run(store.find([name], [name]))
            if not found.exact or not found.sole:
                failed.append(f"{worker} {number}")

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert store.flush()
    assert len(await exact(store, *(worker * 1000 + number for worker in range(6) for number in range(40)))) == 240


# Age and size


async def test_a_turn_that_nobody_uses_goes(place: Place) -> None:
    """After `max_age_days`; one that was found meanwhile stays, and so does the ledger."""
    store = place.open(Limits(max_age_days=30))
    store.put_entry(Entry(request_id="r"))
    put_all(store, [Turn(key(1), "used", weaker=(key(11),)), Turn(key(2), "unused", weaker=(key(12),))])
    place.clock.now += 20 * DAY
    assert len(await exact(store, 1)) == 1
    assert store.flush()
    place.clock.now += 20 * DAY
    put_all(store, [Turn(key(3), "new")])
    assert set(await exact(store, 1, 2, 3)) == {key(1), key(3)}
    assert set(await sole(store, 11, 12)) == {key(11)}
    assert [row["request_id"] for row in store.entries()] == ["r"]


async def test_a_turn_found_by_a_weaker_key_was_used(place: Place) -> None:
    """However it was found."""
    store = place.open(Limits(max_age_days=30))
    put_all(store, [Turn(key(1), "a", weaker=(key(11),))])
    place.clock.now += 20 * DAY
    assert await sole(store, 11)
    assert store.flush()
    place.clock.now += 20 * DAY
    put_all(store, [Turn(key(2), "b")])
    assert set(await exact(store, 1, 2)) == {key(1), key(2)}


async def test_a_weaker_key_that_leads_nowhere_is_remembered_by_age(place: Place) -> None:
    """As long as one asks for it, and `max_age_days` longer; it outlives the turns that it once led to."""
    store = place.open(Limits(max_age_days=30))
    put_all(store, [Turn(key(1), "a", weaker=(key(11),)), Turn(key(2), "b", weaker=(key(11),))])
    place.clock.now += 20 * DAY
    assert await sole(store, 11) == {}
    assert store.flush()
    place.clock.now += 20 * DAY
    put_all(store, [Turn(key(3), "a", weaker=(key(11),))])
    assert await exact(store, 1, 2) == {}
    assert await sole(store, 11) == {}
    place.clock.now += 31 * DAY
    put_all(store, [Turn(key(4), "a")])
    put_all(store, [Turn(key(3), "a", weaker=(key(11),))])
    assert await sole(store, 11) == {key(11): Turn(key(3), "a")}


async def test_the_least_recently_used_go_when_there_are_too_many(place: Place) -> None:
    """Down to 90 % of `max_mb`, in the order of their last use."""
    store = place.open(Limits(max_mb=1))
    texts = [random_text(30_000, number) for number in range(60)]
    sizes = [len(pack(text, b"").data) for text in texts]
    fitting = next(number for number in range(60) if sum(sizes[: number + 1]) > 1_000_000)
    for number in range(fitting):
        put_all(store, [Turn(key(number), texts[number])])
        place.clock.now += 1
    place.clock.now += 2 * 3600
    assert len(await exact(store, 0)) == 1
    assert store.flush()
    place.clock.now += 100
    put_all(store, [Turn(key(number), texts[number]) for number in range(fitting, fitting + 4)])
    left = {int.from_bytes(name, "big") for name in await exact(store, *range(60))}
    assert left == {0, *range(fitting + 4 - len(left) + 1, fitting + 4)}
    assert 0.85 * 1_048_576 < sum(sizes[number] for number in left) < 0.9 * 1_048_576


@on_disk
async def test_limits_are_looked_at_when_a_store_opens(place: Place) -> None:
    """Nothing need be over them since."""
    store = place.open()
    put_all(store, [Turn(key(1), "old")])
    store.close()
    place.clock.now += 40 * DAY
    store = place.open(Limits(max_age_days=30))
    put_all(store, [Turn(key(2), "a")])
    assert set(await exact(store, 1, 2)) == {key(2)}


def turns_in(place: Place) -> int:
    """How many there are, without using one."""
    with open_upkeep(place.url, writes=False) as upkeep:
        return upkeep.stats().turns


@on_disk
def test_limits_are_looked_at_once_a_minute(place: Place) -> None:
    """And only when something is written."""
    store = place.open(Limits(max_age_days=1))
    put_all(store, [Turn(key(1), "old")])
    place.clock.now += DAY - 10
    put_all(store, [Turn(key(2), "a")])
    place.clock.now += 40
    put_all(store, [Turn(key(3), "b")])
    assert turns_in(place) == 3
    place.clock.now += 40
    assert store.flush()
    assert turns_in(place) == 3
    put_all(store, [Turn(key(4), "c")])
    assert turns_in(place) == 3


@on_disk
async def test_a_use_is_written_down_once_an_hour(place: Place) -> None:
    """A conversation asks for all its turns with every request."""
    store = place.open()
    put_all(store, [Turn(key(1), "a")])
    used = []
    for minutes in (50, 20, 50, 20):
        place.clock.now += 60 * minutes
        await exact(store, 1)
        assert store.flush()
        with open_upkeep(place.url, writes=False) as upkeep:
            used.append(upkeep.stats().newest_use)
    assert used == [f"2027-01-15T{time}:00Z" for time in ("08:00", "09:10", "09:10", "10:20")]


async def test_no_limits_keep_all(place: Place) -> None:
    """0 is no limit."""
    store = place.open()
    put_all(store, [Turn(key(number), random_text(30_000, number)) for number in range(60)])
    place.clock.now += 10_000 * DAY
    put_all(store, [Turn(key(99), "new")])
    assert len(await exact(store, *range(60))) == 60


async def test_many_old_turns_go_in_steps(place: Place) -> None:
    """More than go in one transaction: until none is left."""
    store = place.open(Limits(max_age_days=1))
    put_all(store, [Turn(key(number), f"{number}") for number in range(350)])
    place.clock.now += 2 * DAY
    for number in range(1000, 1010):
        put_all(store, [Turn(key(number), "new")])
    assert await exact(store, *range(350)) == {}
    assert len(await exact(store, *range(1000, 1010))) == 10


# Upkeep, beside a store that is open


def kept(place: Place) -> Store:
    """An open store with turns of two clients and three conversations, of which two turns share a thought."""
    store = place.open()
    put_all(
        store,
        [
            Turn(key(1), "shared thought", "low", '[ {"id":\n1} ]', "no JSON", client="a", conversation="c1"),
            Turn(key(2), "shared thought", client="b", conversation="c2", weaker=(key(11),)),
        ],
    )
    place.clock.now += 3600
    put_all(store, [Turn(key(3), "é" * 1000, client="a", conversation="c3", weaker=(key(12),)), Turn(key(4), "")])
    return store


@on_disk
async def test_stats_count_what_is_there(place: Place) -> None:
    """Each different text once; what is stored is less than the text where that is long, plus fixed amounts."""
    kept(place)
    with open_upkeep(place.url, writes=False) as upkeep:
        found = upkeep.stats()
    assert (found.turns, found.texts, found.text_bytes) == (4, 4, 14 + 13 + 7 + 2000)
    assert found.stored_bytes < 4 * 300 + 4 * 60 + 14 + 13 + 7 + 100
    assert found.file_bytes > 0
    assert (found.oldest_use, found.newest_use) == ("2027-01-15T08:00:00Z", "2027-01-15T09:00:00Z")
    assert [(one.client, one.turns) for one in found.clients] in (
        [("a", 2), (None, 1), ("b", 1)],
        [("a", 2), ("b", 1), (None, 1)],
    )
    assert found.clients[0].oldest_use == "2027-01-15T08:00:00Z"
    assert found.clients[0].newest_use == "2027-01-15T09:00:00Z"


@on_disk
async def test_stats_of_an_empty_store(place: Place) -> None:
    """Times are missing."""
    place.open()
    with open_upkeep(place.url) as upkeep:
        found = upkeep.stats()
    assert (found.turns, found.texts, found.stored_bytes, found.oldest_use, found.clients) == (0, 0, 0, None, [])


@on_disk
async def test_export_tells_each_turn(place: Place) -> None:
    """In the order of their first puts; calls and details as JSON values, and as text where they are none."""
    kept(place)
    with open_upkeep(place.url, writes=False) as upkeep:
        lines = [msgspec.json.encode(turn) for turn in upkeep.export()]
        chosen = [[turn["key"] for turn in upkeep.export(*of)] for of in (("a", None), (None, "c3"), ("b", "c3"))]
    assert not any(b"\n" in line for line in lines)
    found = [msgspec.json.decode(line) for line in lines]
    assert found[0] == {
        "key": key(1).hex(),
        "reasoning": "shared thought",
        "calls": [{"id": 1}],
        "details": "no JSON",
        "client": "a",
        "conversation": "c1",
        "effort": "low",
        "created": "2027-01-15T08:00:00Z",
        "used": "2027-01-15T08:00:00Z",
    }
    assert [turn["key"] for turn in found] == [key(number).hex() for number in (1, 2, 3, 4)]
    assert (found[3]["reasoning"], found[3]["calls"], found[3]["client"]) == ("", None, None)
    assert chosen == [[key(1).hex(), key(3).hex()], [key(3).hex()], []]


@on_disk
async def test_export_gives_more_than_one_part(place: Place) -> None:
    """It reads in parts, and misses none between them."""
    store = place.open()
    put_all(store, [Turn(key(number), f"{number}") for number in range(257)])
    with open_upkeep(place.url, writes=False) as upkeep:
        assert [turn["reasoning"] for turn in upkeep.export()] == [f"{number}" for number in range(257)]


@on_disk
async def test_forget_deletes_the_turns_of_a_client(place: Place) -> None:
    """With their weaker keys; a text that another client's turn has stays for that one. The ledger stays."""
    store = kept(place)
    store.put_entry(Entry(request_id="r", client="a"))
    assert store.flush()
    with open_upkeep(place.url) as upkeep:
        assert upkeep.forget(client="a").turns == 2
        assert upkeep.reclaim() is None
        assert upkeep.forget(client="a").turns == 0
        assert upkeep.stats().texts == 1
        with upkeep.writing() as turns:
            assert turns.bytes() == turns.recount()
    assert set(await exact(store, 1, 2, 3, 4)) == {key(2), key(4)}
    assert set(await sole(store, 11, 12)) == {key(11)}
    assert [row["request_id"] for row in store.entries()] == ["r"]
    put_all(store, [Turn(key(3), "again", client="a")])
    assert set(await exact(store, 3)) == {key(3)}
    assert store.healthy()


@on_disk
@pytest.mark.parametrize(
    ("client", "conversation", "left"), [(None, "c3", {1, 2, 4}), ("a", "c1", {2, 3, 4}), ("b", "c1", {1, 2, 3, 4})]
)
async def test_forget_a_conversation(place: Place, client: str | None, conversation: str, left: set[int]) -> None:
    """Client and conversation together mean turns of both."""
    store = kept(place)
    with open_upkeep(place.url) as upkeep:
        assert upkeep.forget(client, conversation).turns == 4 - len(left)
    assert set(await exact(store, 1, 2, 3, 4)) == {key(number) for number in left}


@on_disk
async def test_forget_wants_to_know_whose(place: Place) -> None:
    """All of them would be a mistake."""
    kept(place)
    with open_upkeep(place.url) as upkeep, pytest.raises(ValueError, match="neither"):
        upkeep.forget()


@on_disk
async def test_forget_deletes_more_than_one_part(place: Place) -> None:
    """Several transactions, so that a proxy can write in between."""
    store = place.open()
    put_all(store, [Turn(key(number), f"{number}", client="ab"[number % 2]) for number in range(500)])
    with open_upkeep(place.url) as upkeep:
        assert upkeep.forget(client="a").turns == 250
    assert len(await exact(store, *range(500))) == 250


@on_disk
async def test_prune_applies_limits_at_once(place: Place) -> None:
    """By age and by size, however many turns that are."""
    store = place.open()
    put_all(store, [Turn(key(number), "old") for number in range(250)])
    place.clock.now += 10 * DAY
    texts = [random_text(30_000, number) for number in range(300, 360)]
    put_all(store, [Turn(key(number), text) for number, text in enumerate(texts, 300)])
    with open_upkeep(place.url, now=place.clock) as upkeep:
        assert upkeep.prune(NO_LIMITS).turns == 0
        assert upkeep.prune(Limits(max_age_days=10)).turns == 0
        assert upkeep.prune(Limits(max_age_days=9)).turns == 250
        before = upkeep.stats().stored_bytes
        gone = upkeep.prune(Limits(max_mb=1))
        assert before - gone.bytes == upkeep.stats().stored_bytes
        assert 0.85 * 1_048_576 < upkeep.stats().stored_bytes <= 0.9 * 1_048_576
        assert upkeep.prune(Limits(max_mb=1)).turns == 0
        assert upkeep.reclaim() is None
    assert set(await exact(store, *range(400))) == {key(number) for number in range(300 + gone.turns, 360)}
