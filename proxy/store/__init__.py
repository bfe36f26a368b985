"""Where turns, ledger rows and speeds are kept, behind one protocol.

    from proxy.store import open_store
    store = open_store("sqlite:///proxy.db")

Recording is a synchronous put into memory (after a disconnect every `await` in a `finally` is cancelled); one thread
writes. What was put is found at once and is on disk within a second.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from proxy.errors import ConfigError, NotFound
from proxy.messages import Entry
from proxy.places import is_postgres, sqlite_path
from proxy.speeds import Speed
from proxy.store.ledger import Ledger
from proxy.store.limits import Limits
from proxy.store.lines import Lines
from proxy.store.sqlite import SqliteStore
from proxy.store.sqlite_upkeep import SqliteUpkeep
from proxy.store.upkeep import Upkeep
from proxy.thoughts import Thought
from proxy.turns import Found, Turn

__all__ = ["Store", "Upkeep", "open_store", "open_upkeep"]


class Store(Protocol):
    """What the pipeline needs of a store. Every method may be called from any thread."""

    @property
    def salt(self) -> bytes:
        """32 random bytes, made once and kept in the store: keys and users appear only as hashes salted with it."""

    @property
    def shared(self) -> bool:
        """Other processes are expected to ask for the turns of this one: they should be written before `[DONE]`."""

    async def find(self, keys: Sequence[bytes], weaker: Sequence[bytes] = ()) -> Found:
        """What is known of `keys` and of `weaker` ones. One query for all.

        Turns come without their weaker keys. A turn that is found counts as used. A store that cannot be read is logged
        and makes `healthy` false: a lost thought is no reason to fail a request.
        """

    def put_turn(self, turn: Turn) -> None:
        """Keep a turn, as the newest of its key. One that differs neither in `reasoning` nor in `seen` replaces
        the one before.

        Each of its weaker keys leads to it, unless the key leads to another thought already: from then on, and for as
        long as the store remembers it, that key leads nowhere.
        """

    def put_entry(self, entry: Entry, complete: Callable[[Entry], None] | None = None) -> None:
        """Append a ledger row, which nobody changes any more but `complete`.

        `complete` runs in the writer's thread just before the row is written; heavy counting belongs there. If it
        raises, that is logged and the row is written as it is.

        Neither put raises. Where the queue is full they wait 0.2 s at the most; see `proxy.store.writer`.
        """

    def recent_speeds(self) -> dict[tuple[str, str], Speed]:
        """(backend, upstream model) → what `speeds.measured` found in its rows, of every kind, smoothed in their order.

        Of what is on disk; so too the next.
        """

    def recent_thoughts(self, limit: int = 10_000) -> list[Thought]:
        """The thoughts in the last `limit` rows of the ledger, oldest first: of chats that came to an end, `length` and
        `answer_lost` among them, wherever a row has a count, a backend and a family. A count of 0 where the effort
        `none` was sent is no thought.
        """

    def entries(self, limit: int | None = None, *, own: bool = False) -> list[dict[str, Any]]:
        """The last `limit` rows of the ledger, newest last, after a flush: names as in Entry, lists as lists.

        `own` leaves out what other processes, or earlier ones, wrote.
        """

    def ledger(self) -> Ledger:
        """The ledger for reading, after a flush; whoever gets it closes it, and before the store."""

    def flush(self, timeout: float = 10.0) -> bool:
        """Wait until all that was put before is on disk; false if that took longer than `timeout` seconds."""

    async def written(self, seconds: float) -> None:
        """Wait, so long at the most, until all that was put before is on disk; not where nothing can be written now."""

    def healthy(self) -> bool:
        """Whether the writer lives and the last write and the last read were good."""

    def close(self) -> None:
        """Flush and end the thread. What comes later is logged as lost. Closing again does nothing."""


def open_store(url: str, ledger_jsonl: str = "", *, max_age_days: int = 0, max_mb: int = 0) -> Store:
    """The store at `url`; with `ledger_jsonl` each ledger row is also appended to that file, as a line of JSON.

    Raises ConfigError for an unknown URL, a file that cannot be opened or written, is damaged, or is newer than this
    version, and for a PostgreSQL server that cannot be reached or used. A file that was there before is never removed,
    and keeps its mode; a new one gets 0600.
    """
    path = sqlite_path(url)
    lines = Lines(Path(ledger_jsonl).expanduser()) if ledger_jsonl else None
    limits = Limits(max_age_days, max_mb)
    if is_postgres(url):
        from proxy.store.postgres import PostgresStore  # noqa: PLC0415 - psycopg may not be installed

        return PostgresStore(url, lines, limits)
    return SqliteStore(path, lines, limits)


def open_upkeep(url: str, *, writes: bool = True, now: Callable[[], float] = time.time) -> Upkeep:
    """The upkeep of the store at `url`, which is never made by this. Without `writes` it can only be read.

    Raises NotFound where there is no store yet, ConfigError for `memory` and for a URL or file that is none.
    """
    if is_postgres(url):
        from proxy.store.postgres_upkeep import PostgresUpkeep  # noqa: PLC0415 - psycopg may not be installed

        return PostgresUpkeep(url, now)
    path = sqlite_path(url)
    if path is None:
        raise ConfigError("a store in memory ends with its process: nothing outside of it can look after its turns")
    if not path.is_file():
        raise NotFound(f"there is no store yet at {path}: `reasoning-proxy serve` makes it when it starts")
    return SqliteUpkeep(path, writes, now)
