"""The time of one machine, shared out among those who use it at once."""

from __future__ import annotations

from decimal import Decimal


class Meter:
    """Every second in which `users` are there belongs to each of them by its even part; nobody's time is not counted.

    What all of them had together is exactly the time in which anybody was there.
    """

    def __init__(self) -> None:
        self._users = 0
        self._since = 0.0
        self._parts = Decimal(0)

    def read(self, now: float) -> Decimal:
        """The seconds that one who was there all along would have had; the difference of two readings is the share of
        who was there between them. `now` never goes back."""
        if self._users and now > self._since:
            self._parts += Decimal(now - self._since) / self._users
        self._since = now
        return self._parts

    def come(self, now: float) -> Decimal:
        """One more; the reading of this moment."""
        parts = self.read(now)
        self._users += 1
        return parts

    def go(self, now: float) -> Decimal:
        """One less; the reading of this moment."""
        parts = self.read(now)
        self._users -= 1
        return parts
