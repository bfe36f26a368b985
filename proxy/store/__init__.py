"""Where turns, ledger rows and speeds are kept, behind one protocol.

    from proxy.store import open_store
    store = open_store("sqlite:///proxy.db")

Recording is a synchronous put into memory (after a disconnect every `await` in a `finally` is cancelled); one thread
writes. What was put is found at once and is on disk within a second.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from proxy.messages import Entry, Turn
from proxy.places import sqlite_path
from proxy.store.lines import Lines
from proxy.store.sqlite import SqliteStore

__all__ = ["Store", "open_store"]


class Store(Protocol):
    """What the pipeline needs of a store. Every method may be called from any thread."""

    @property
    def salt(self) -> bytes:
        """32 random bytes, made once and kept in the store: keys and users appear only as hashes salted with it."""

    async def find(self, keys: Sequence[bytes]) -> dict[bytes, Turn]:
        """The known ones among `keys`. One query for all, none where all are still in memory.

        A store that cannot be read is logged and makes `healthy` false: a lost thought is no reason to fail a request.
        """

    def put_turn(self, turn: Turn) -> None:
        """Keep a turn. The newer text of a key wins: the same visible answer was generated anew."""

    def put_entry(self, entry: Entry, complete: Callable[[Entry], None] | None = None) -> None:
        """Append a ledger row, which nobody changes any more but `complete`.

        `complete` runs in the writer's thread just before the row is written; heavy counting belongs there. If it
        raises, that is logged and the row is written as it is.

        Neither put raises. Where the queue is full they wait 0.2 s at the most; see `proxy.store.writer`.
        """

    def recent_speeds(self) -> dict[tuple[str, str], float]:
        """(backend, upstream model) → decode tokens per second of its latest row that has them."""

    def entries(self, limit: int | None = None, *, own: bool = False) -> list[dict[str, Any]]:
        """The last `limit` rows of the ledger, newest last, after a flush: names as in Entry, lists as lists.

        `own` leaves out what other processes, or earlier ones, wrote.
        """

    def flush(self, timeout: float = 10.0) -> bool:
        """Wait until all that was put before is on disk; false if that took longer than `timeout` seconds."""

    def healthy(self) -> bool:
        """Whether the writer lives and the last write and the last read were good."""

    def close(self) -> None:
        """Flush and end the thread. What comes later is logged as lost. Closing again does nothing."""


def open_store(url: str, ledger_jsonl: str = "") -> Store:
    """The store at `url`; with `ledger_jsonl` each ledger row is also appended to that file, as a line of JSON.

    Raises ConfigError for an unknown URL, a file that cannot be opened or written, is damaged, or is newer than this
    version. A file that was there before is never removed, and keeps its mode; a new one gets 0600.
    """
    path = sqlite_path(url)
    lines = Lines(Path(ledger_jsonl).expanduser()) if ledger_jsonl else None
    return SqliteStore(path, lines)
