"""How many tokens thoughts take, as the rows of the ledger tell."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from proxy.messages import Entry

PERCENTILE = 95
LEAST = 20
"""Thoughts from which a room is told; fewer are no experience."""
_LATEST = 200
"""Thoughts of one kind that are looked at: models and their users change."""
MOST = 65_536
"""Tokens that a thought counts for at the most: one that never ends shall not make the room grow without end."""


class Thought(NamedTuple):
    """What the thought of one answer took. `effort` is the word that was sent, empty where none was.

    One that was ended before its end counts double: how long it would have been nobody knows, and counted as it is, it
    would keep the next room as small as the one that cut it.
    """

    backend: str
    family: str
    effort: str
    tokens: int


def thought_of(entry: Entry) -> Thought | None:
    """What a row tells; None where there was no thought of a chat, or those of two tries are added up in it."""
    taken, budget, effort = entry.reasoning_tokens, entry.thinking_budget_sent, entry.effort_sent or ""
    if entry.kind != "chat" or entry.backend is None or entry.family is None or taken is None or effort == "none":
        return None
    if entry.outcome not in ("ok", "length", "answer_lost") or budget == 0 or "rescued" in entry.flags:
        return None
    # Counts are estimates: what came near its budget was ended by it.
    ended = budget is not None and taken * 10 >= budget * 9
    if ended or entry.outcome == "answer_lost" or "answer_now" in entry.flags:
        taken *= 2
    return Thought(entry.backend, entry.family, effort, min(taken, MOST))


class Room(NamedTuple):
    """The tokens that nearly all thoughts (PERCENTILE of them) took, and how many thoughts tell so."""

    tokens: int
    thoughts: int


class Thoughts:
    """The thoughts of one backend, by family and effort. May be told from any thread."""

    def __init__(self) -> None:
        self._latest: dict[str, dict[str, deque[int]]] = {}
        self._rooms: dict[str, dict[str, Room]] = {}

    def add(self, thought: Thought) -> None:
        """Take one into the experience."""
        efforts = self._latest.setdefault(thought.family, {})
        efforts.setdefault(thought.effort, deque(maxlen=_LATEST)).append(thought.tokens)
        self._rooms.pop(thought.family, None)

    def rooms(self, family: str) -> dict[str, Room]:
        """Effort → its room, for those with enough thoughts."""
        found = self._rooms.get(family)
        if found is None:
            seen = {effort: list(taken) for effort, taken in list(self._latest.get(family, {}).items())}
            found = {effort: _room(taken) for effort, taken in seen.items() if len(taken) >= LEAST}
            self._rooms[family] = found
        return found


def _room(taken: Iterable[int]) -> Room:
    ordered = sorted(taken)
    at = -(-len(ordered) * PERCENTILE // 100) - 1
    return Room(ordered[at], len(ordered))
