"""What is known of keys in memory and on disk, and both together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from proxy.turns import MOST_TURNS, Found, Turn


@dataclass(slots=True)
class Uses:
    """Turns by their number, and weaker keys that lead nowhere, of which it is to be noted that they were met."""

    turns: set[int] = field(default_factory=set)
    weaker: set[bytes] = field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self.turns or self.weaker)

    def note(self, met: int | bytes) -> None:
        """A turn by its number, or a weaker key."""
        if isinstance(met, int):
            self.turns.add(met)
        else:
            self.weaker.add(met)

    def add(self, other: Uses) -> None:
        """The other's too."""
        self.turns |= other.turns
        self.weaker |= other.weaker


@dataclass(frozen=True, slots=True)
class Held:
    """What is not on disk yet: for each key the turns that were put with it, the oldest first."""

    exact: Mapping[bytes, Sequence[Turn]] = field(default_factory=dict)
    weaker: Mapping[bytes, Sequence[Turn]] = field(default_factory=dict)


class Waiting:
    """Turns on their way to the disk, by their keys."""

    def __init__(self) -> None:
        self._exact: dict[bytes, list[Turn]] = {}
        self._weaker: dict[bytes, list[Turn]] = {}

    def add(self, turn: Turn) -> None:
        """As the newest of its keys."""
        self._exact.setdefault(turn.key, []).append(turn)
        for key in turn.weaker:
            self._weaker.setdefault(key, []).append(turn)

    def remove(self, turn: Turn) -> None:
        """Its oldest entry."""
        _take_out(self._exact, turn.key, turn)
        for key in turn.weaker:
            _take_out(self._weaker, key, turn)

    def find(self, keys: Iterable[bytes], weaker: Iterable[bytes]) -> Held:
        """Those of these keys."""
        if not self._exact:
            return Held()
        exact = {key: tuple(self._exact[key]) for key in keys if key in self._exact}
        return Held(exact, {key: tuple(self._weaker[key]) for key in weaker if key in self._weaker})


def _take_out(held: dict[bytes, list[Turn]], key: bytes, turn: Turn) -> None:
    turns = held[key]
    del turns[next(at for at, other in enumerate(turns) if other is turn)]
    if not turns:
        del held[key]


@dataclass(frozen=True, slots=True)
class Stored:
    """What is on disk. `unclear` are weaker keys that lead to several thoughts; `stale` is to be marked as used."""

    exact: dict[bytes, list[Turn]] = field(default_factory=dict)
    sole: dict[bytes, Turn] = field(default_factory=dict)
    unclear: set[bytes] = field(default_factory=set)
    stale: Uses = field(default_factory=Uses)

    def add(self, other: Stored) -> None:
        """The other's too; the two know no key in common."""
        self.exact.update(other.exact)
        self.sole.update(other.sole)
        self.unclear.update(other.unclear)
        self.stale.add(other.stale)


def merge(held: Held, stored: Stored | None = None) -> Found:
    """Both, as if all were on disk already: what is held is newer. A turn may be in both.

    Where the disk was not read, a weaker key leads nowhere: the disk may know of another thought.
    """
    if stored is None:
        stored = Stored(unclear=set(held.weaker))
    exact: dict[bytes, Sequence[Turn]] = dict(stored.exact)
    for key, turns in held.exact.items():
        different = {(turn.reasoning, turn.seen): turn for turn in stored.exact.get(key, ())}
        for turn in turns:
            different.pop((turn.reasoning, turn.seen), None)
            different[turn.reasoning, turn.seen] = _bare(turn)
        exact[key] = list(different.values())[-MOST_TURNS:]
    sole = dict(stored.sole)
    for key, turns in held.weaker.items():
        known = [*turns, *([sole.pop(key)] if key in sole else [])]
        if key not in stored.unclear and len({turn.reasoning for turn in known}) == 1:
            sole[key] = _bare(turns[-1])
    return Found(exact, sole)


def _bare(turn: Turn) -> Turn:
    """As it comes from the disk."""
    return msgspec.structs.replace(turn, weaker=()) if turn.weaker else turn
