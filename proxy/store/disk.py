"""What stands behind the queue: the tables of one engine, written by one thread and read by another."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from proxy.messages import Entry
from proxy.speeds import Speed
from proxy.store.found import Stored, Uses
from proxy.store.ledger import Ledger
from proxy.store.limits import Limiter, Limits
from proxy.store.turn_rows import PackedTurn
from proxy.store.turns import MOST_VALUES, Turns
from proxy.thoughts import Thought
from proxy.turns import Turn

log = logging.getLogger(__name__)


class Disk(ABC):
    """The turns of any engine. Each brings its connections and the ledger.

    `now` gives seconds since 1970. `errors` are what an engine raises where it cannot be read or written.
    """

    errors: tuple[type[Exception], ...]
    salt: bytes
    most_values = MOST_VALUES

    def __init__(self, limits: Limits, now: Callable[[], float]) -> None:
        self._now = now
        self._limiter = Limiter(limits, now)

    @abstractmethod
    def writing(self) -> AbstractContextManager[Turns]:
        """A transaction, all or nothing, that no other writer is in."""

    @abstractmethod
    def reading(self) -> AbstractContextManager[Turns]:
        """For one query."""

    @abstractmethod
    def hopeless(self, error: Exception) -> bool:
        """Whether a value is to blame that no table can hold, so that trying again does not help."""

    @abstractmethod
    def write_entries(self, entries: Sequence[Entry]) -> None:
        """Write all in one transaction."""

    @abstractmethod
    def entries(self, limit: int | None, own: bool) -> list[dict[str, Any]]:
        """The last rows of the ledger, newest last; with `own` those that this object wrote."""

    @abstractmethod
    def speeds(self) -> dict[tuple[str, str], Speed]:
        """(backend, upstream model) → what its rows tell, smoothed."""

    @abstractmethod
    def thoughts(self, limit: int) -> list[Thought]:
        """Those of the last `limit` rows of the ledger, oldest first."""

    @abstractmethod
    def ledger(self) -> Ledger:
        """What is written, for reading by whoever closes it."""

    @abstractmethod
    def close(self) -> None:
        """Give back the connections."""

    def find(self, keys: Sequence[bytes], weaker: Sequence[bytes]) -> Stored:
        """What is on disk of these keys."""
        with self.reading() as turns:
            return turns.find(keys, weaker, self._now(), self.most_values)

    def write_turns(self, turns: Sequence[Turn]) -> None:
        """Write all, in their order, in one transaction. A turn that no table can hold is logged as lost."""
        packed = [found for turn in turns if (found := self._packed(turn))]
        try:
            self._put(packed)
        except Exception as error:
            if not self.hopeless(error):
                raise
            for one in packed:
                self._put_or_lose(one)

    def write_uses(self, uses: Uses) -> None:
        """Note that turns were used now."""
        with self.writing() as turns:
            turns.mark_used(uses, self._now())

    def tidy(self) -> bool:
        """Delete a part of what is over the limits, where it is time for that; whether there is more to delete."""
        if self._limiter.due():
            with self.writing() as turns:
                self._limiter.step(turns)
        return not self._limiter.done

    def _packed(self, turn: Turn) -> PackedTurn | None:
        try:
            return PackedTurn.of(turn, self.salt)
        except UnicodeEncodeError as error:
            _log_loss(turn, error)
            return None

    def _put(self, packed: Sequence[PackedTurn]) -> None:
        with self.writing() as turns:
            turns.put(packed, self._now())

    def _put_or_lose(self, packed: PackedTurn) -> None:
        try:
            self._put([packed])
        except Exception as error:
            if not self.hopeless(error):
                raise
            _log_loss(packed.turn, error)


def _log_loss(turn: Turn, error: Exception) -> None:
    log.error("the turn %s is lost, because no table can hold it: %s", turn.key.hex(), error)
