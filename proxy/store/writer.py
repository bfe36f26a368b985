"""One bounded queue, one thread that writes, batches.

A put takes a lock, appends and leaves. The thread writes what gathered in 50 ms. What cannot be written (a full disk, a
file that another process holds) stays in the queue, is found there, and is tried again until it is written.

If the queue is full (64 million characters, or 64,000 ledger rows), nothing is dropped silently: while the thread makes
progress, a put waits for room, 0.2 s at the most, and logs a warning; if there is still none, or the disk takes
nothing, the oldest unwritten turn or row gives way and is named in the log. The newest turn is the one that an agent
asks for within milliseconds, and a request must not fail or stall because a disk is full.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from proxy.messages import Entry
from proxy.store.found import Held, Uses, Waiting
from proxy.store.lines import Lines
from proxy.turns import Turn

LIMIT = 64_000_000
WEIGHT = 1_000
"""Characters that an item counts for, beside its thought."""
BATCH = 500
GATHER_SECONDS = 0.05
WAIT_SECONDS = 0.2
COMPLETE_SECONDS = 0.25
"""After so much counting the rows counted so far are written: a row is on disk within a second."""
RETRY_SECONDS = 0.5
CLOSE_SECONDS = 10.0

Complete = Callable[[Entry], None]

log = logging.getLogger(__name__)


class Sink(Protocol):
    """Where the thread writes. All raise where nothing was written and a later try may be good."""

    def write_turns(self, turns: Sequence[Turn]) -> None:
        """Write all in one transaction, in their order."""

    def write_entries(self, entries: Sequence[Entry]) -> None:
        """Write all in one transaction."""

    def write_uses(self, uses: Uses) -> None:
        """Note that turns were used now."""

    def tidy(self) -> bool:
        """Delete a part of what is over the limits, where it is time for that; whether there is more to delete."""


@dataclass(slots=True, eq=False)
class _Item:
    value: Turn | Entry
    complete: Complete | None = None
    number: int = 0
    written: bool = False

    @property
    def weight(self) -> int:
        turn = self.value
        texts = len(turn.reasoning) + len(turn.calls) + len(turn.details) if isinstance(turn, Turn) else 0
        return WEIGHT + texts


class Writer:
    """The queue and its thread, in front of any store."""

    def __init__(self, sink: Sink, lines: Lines | None = None, *, limit: int = LIMIT) -> None:
        self._sink = sink
        self._lines = lines
        self._limit = limit
        self._changed = threading.Condition()
        self._items: deque[_Item] = deque()
        self._waiting = Waiting()
        self._uses = Uses()
        self._looking_after = False
        self._more = True  # to be tidied
        self._weight = 0
        self._count = 0
        self._taken = 0  # so many at the head are in the thread's hands
        self._told: deque[tuple[int, Callable[[], None]]] = deque()
        self._hurry = False
        self._closing = False
        self._good = True
        self._stuck = False  # a put has waited in vain: the next ones need not, until something is written
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)
        self._thread.start()

    def put(self, value: Turn | Entry, complete: Complete | None = None) -> None:
        """Queue a turn or a row. Never raises; waits as the module says."""
        item = _Item(value, complete)
        with self._changed:
            if self._weight + item.weight > self._limit and not self._closing:
                self._make_room(item.weight)
            if self._closing:
                log.error("%s came after the store was closed and is lost", _name(item))
                return
            self._count += 1
            item.number = self._count
            self._items.append(item)
            self._weight += item.weight
            if isinstance(value, Turn):
                self._waiting.add(value)
            if len(self._items) == 1:
                self._changed.notify_all()

    def find(self, keys: Sequence[bytes], weaker: Sequence[bytes] = ()) -> Held:
        """The turns of these keys that are not on disk yet."""
        with self._changed:
            return self._waiting.find(keys, weaker)

    def mark_used(self, uses: Uses) -> None:
        """Note soon that turns were used now. Lost where the store cannot be written: they will be used again."""
        with self._changed:
            if not self._closing:
                self._uses.add(uses)
                self._changed.notify_all()

    def flush(self, timeout: float) -> bool:
        """Wait until all that was put before is written; false after `timeout` seconds."""
        with self._changed:
            last = self._count
            self._hurry = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._written(last) or not self._thread.is_alive(), timeout)
            return self._written(last)

    def tell(self, done: Callable[[], None]) -> None:
        """Call `done`, which is quick, when all that was put before is written; at once where the store
        cannot be written now, for nobody knows how long that takes."""
        with self._changed:
            if self._good and self._thread.is_alive() and not self._reached(self._count):
                self._told.append((self._count, done))
                self._hurry = True
                self._changed.notify_all()
                return
        done()

    def healthy(self) -> bool:
        """Whether the thread lives and the last write was good."""
        return self._good and self._thread.is_alive() and (self._lines is None or self._lines.good)

    def close(self, timeout: float = CLOSE_SECONDS) -> bool:
        """Write what is queued and end the thread; false if it did not end within `timeout` seconds."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _reached(self, number: int) -> bool:
        return not self._items or self._items[0].number > number

    def _written(self, number: int) -> bool:
        return (
            self._reached(number)
            and not (self._uses or self._looking_after)
            and not (self._lines and self._lines.waiting)
        )

    def _make_room(self, weight: int) -> None:
        def room() -> bool:
            return self._weight + weight <= self._limit

        if self._good and not self._stuck:
            log.warning("the store's queue is full (%d waiting): a request waits for it", len(self._items))
            self._hurry = True
            self._changed.notify_all()
            self._stuck = not self._changed.wait_for(room, WAIT_SECONDS)
        while not room() and len(self._items) > self._taken:
            item = self._items[self._taken]
            del self._items[self._taken]
            self._forget(item)
            log.error("%s is lost: the store takes nothing and its queue is full", _name(item))

    def _forget(self, item: _Item) -> None:
        self._weight -= item.weight
        if isinstance(item.value, Turn):
            self._waiting.remove(item.value)

    def _run(self) -> None:
        while True:
            batch, uses = self._take()
            written = self._write(batch)
            with self._changed:
                self._taken = 0
                for _ in range(written or 0):
                    self._forget(self._items.popleft())
                self._good = written is not None
                self._stuck = self._stuck and not self._good
                while self._told and (self._reached(self._told[0][0]) or self._closing or not self._good):
                    self._told.popleft()[1]()
                self._changed.notify_all()
            if written is not None:
                self._look_after(uses)
            with self._changed:
                self._looking_after = False
                self._changed.notify_all()
                if self._closing and (not self._good or not self._items):
                    self._report_loss()
                    return
                if not self._good:
                    self._changed.wait_for(lambda: self._hurry or self._closing, RETRY_SECONDS)

    def _take(self) -> tuple[list[_Item], Uses]:
        """The next items, which stay in the queue until they are written, and uses.

        No items when closing, when only lines or uses wait, or when there is more to tidy.
        """
        with self._changed:
            lines_wait = self._lines is not None and not self._lines.good
            pause = 0.0 if self._more else RETRY_SECONDS if lines_wait else None
            self._changed.wait_for(lambda: self._items or self._uses or self._closing, pause)
            if len(self._items) < BATCH:
                self._changed.wait_for(lambda: self._hurry or self._closing, GATHER_SECONDS)
            self._hurry = False
            batch = list(islice(self._items, BATCH))
            self._taken = len(batch)
            uses, self._uses = self._uses, Uses()
            self._looking_after = bool(uses or batch)
            return batch, uses

    def _look_after(self, uses: Uses) -> None:
        """What may fail without loss: uses are noted, and what is over the limits is deleted."""
        try:
            if uses:
                self._sink.write_uses(uses)
            self._more = not self._closing and self._sink.tidy()
        except Exception as error:
            self._more = False
            log.warning("the store could not be looked after (%s): that is tried again later", error)

    def _write(self, batch: list[_Item]) -> int | None:
        """How many from the head of the batch are on disk now; None if the store cannot be written."""
        try:
            turns = [item for item in batch if isinstance(item.value, Turn) and not item.written]
            if turns:  # first, because counting may take its time
                self._sink.write_turns([item.value for item in turns if isinstance(item.value, Turn)])
                for item in turns:
                    item.written = True
            batch = _completed(batch)
            entries = [item.value for item in batch if isinstance(item.value, Entry)]
            if entries:
                self._sink.write_entries(entries)
        except Exception as error:
            if self._good:
                log.error("the store cannot be written (%s): what comes waits in memory", error)
            return None
        if not self._good:
            log.warning("the store is written again")
        if self._lines:
            self._lines.append(entries)
        return len(batch)

    def _report_loss(self) -> None:
        lines = self._lines.waiting.count(b"\n") if self._lines else 0
        if self._items or lines:
            log.error("closed before %d turns and rows, and %d lines, could be written", len(self._items), lines)


def _completed(batch: list[_Item]) -> list[_Item]:
    """The items up to the one at which COMPLETE_SECONDS were used up, each completed once."""
    deadline = time.monotonic() + COMPLETE_SECONDS
    for number, item in enumerate(batch, 1):
        complete, item.complete = item.complete, None
        if complete is None or not isinstance(item.value, Entry):
            continue
        try:
            complete(item.value)
        except Exception:
            log.exception("%s could not be completed and is written as it is", _name(item))
        if time.monotonic() > deadline:
            return batch[:number]
    return batch


def _name(item: _Item) -> str:
    value = item.value
    return f"the turn {value.key.hex()}" if isinstance(value, Turn) else f"the ledger row of {value.request_id}"
