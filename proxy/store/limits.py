"""Turns that nobody asks for go: by the time of their last use, and by the room that all take together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from proxy.store.turns import Gone, Turns

DAY = 86_400
MIB = 1_048_576
EVERY_SECONDS = 60
"""How often the limits are looked at, at the most."""
STEP = 100
"""Turns that go in one transaction, so that what is to be written need not wait for long."""
_TARGET = 0.9


@dataclass(frozen=True, slots=True)
class Limits:
    """A turn unused for `max_age_days` goes; above `max_mb` the least recently used go down to 90 % of it. 0: never.

    What turns take is `Turns.bytes`.
    """

    max_age_days: int = 0
    max_mb: int = 0


NO_LIMITS = Limits()


class Limiter:
    """Applies limits, step by step. `now` gives seconds since 1970."""

    def __init__(self, limits: Limits, now: Callable[[], float]) -> None:
        self._limits = limits
        self._now = now
        self._last: float | None = None
        self._shrinking = False
        self.done = limits == NO_LIMITS
        """Whether there is nothing more to do, as the last step found."""

    def due(self) -> bool:
        """Whether a step is to be made now: the last one left something to do, or was a while ago.

        If so, it is not due again before its time, also where it fails.
        """
        now = self._now()
        passed = EVERY_SECONDS if self._last is None else now - self._last
        is_due = self._limits != NO_LIMITS and (not self.done or not 0 <= passed < EVERY_SECONDS)
        if is_due:
            self._last, self.done = now, True
        return is_due

    def step(self, turns: Turns) -> Gone:
        """Delete of what is over the limits, STEP turns at the most, within the transaction of `turns`."""
        gone, more = self._by_age(turns, self._now()) if self._limits.max_age_days else (Gone(), False)
        if not more and self._limits.max_mb:
            by_size, more = self._by_size(turns, self._limits.max_mb * MIB)
            gone += by_size
        self.done = not more
        return gone

    def _by_age(self, turns: Turns, now: float) -> tuple[Gone, bool]:
        before = int(now) - self._limits.max_age_days * DAY
        gone = turns.drop(turns.oldest(STEP, before))
        return gone, turns.drop_unclear(before, STEP) == STEP or gone.turns == STEP

    def _by_size(self, turns: Turns, most: int) -> tuple[Gone, bool]:
        total, target = turns.bytes(), most * _TARGET
        if total <= (target if self._shrinking else most):
            self._shrinking = False
            return Gone(), False
        gone = turns.drop(turns.oldest(STEP), enough=total - target)
        if not gone.turns:
            total = turns.recount()
        self._shrinking = gone.turns > 0 and total - gone.bytes > target
        return gone, self._shrinking
