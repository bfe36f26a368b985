"""The embedded store: one SQLite file in WAL mode, one connection that writes and one that reads."""

from __future__ import annotations

import asyncio
import atexit
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from proxy.messages import Entry, Turn
from proxy.store.lines import Lines
from proxy.store.rows import INSERT, NAMES, from_sql, to_sql
from proxy.store.schema import connect, migrate, refusal, transaction
from proxy.store.writer import Complete, Writer

_PUT_TURN = """INSERT INTO turns (key, reasoning, effort, created) VALUES (?, ?, ?, ?) ON CONFLICT (key) DO UPDATE
    SET reasoning = excluded.reasoning, effort = excluded.effort, created = excluded.created"""
_PUT_SPEED = """INSERT INTO speeds VALUES (?, ?, ?) ON CONFLICT (backend, upstream_model) DO UPDATE
    SET decode_tokens_per_second = excluded.decode_tokens_per_second"""
_T = TypeVar("_T")

log = logging.getLogger(__name__)


class _File:
    """The connections, and what the writer's thread does with its own."""

    def __init__(self, path: Path | None) -> None:
        self.writing = connect(path)
        try:
            migrate(self.writing, path)
            (self.salt,) = self.writing.execute("SELECT value FROM meta WHERE name = 'salt'").fetchone()
            self.reading = connect(path) if path else self.writing
        except BaseException:
            self.writing.close()
            raise
        self.write_lock = threading.Lock()
        self.read_lock = threading.Lock() if path else self.write_lock
        self.own: list[tuple[int, int]] = []
        """First and last rowid of each run of rows that this process wrote."""

    def write_turns(self, turns: Sequence[Turn]) -> None:
        now = int(time.time())
        with self.write_lock, transaction(self.writing):
            self._insert(_PUT_TURN, turns, lambda turn: (turn.key, turn.reasoning, turn.effort, now))

    def write_entries(self, entries: Sequence[Entry]) -> None:
        speeds = {
            (entry.backend, entry.upstream_model): entry.decode_tokens_per_second
            for entry in entries
            if entry.backend and entry.upstream_model and entry.decode_tokens_per_second is not None
        }
        with self.write_lock, transaction(self.writing):
            count = self._insert(INSERT, entries, to_sql)
            (last,) = self.writing.execute("SELECT last_insert_rowid()").fetchone()
            self._insert(_PUT_SPEED, list(speeds.items()), lambda item: (*item[0], item[1]))
        if count:
            self._remember(last - count + 1, last)

    def _insert(self, sql: str, values: Sequence[_T], row: Callable[[_T], Sequence[Any]]) -> int:
        """How many of `values` the table took. One that it cannot take does not cost the others of its batch."""
        self.writing.execute("SAVEPOINT batch")
        try:
            self.writing.executemany(sql, map(row, values))
            return len(values)
        except Exception as error:
            if not _hopeless(error):
                raise
        self.writing.execute("ROLLBACK TO batch")
        taken = 0
        for value in values:
            try:
                self.writing.execute(sql, row(value))
                taken += 1
            except Exception as error:
                if not _hopeless(error):
                    raise
                log.error("a turn or row is lost, because no table can hold it: %s", error)
        return taken

    def _remember(self, first: int, last: int) -> None:
        if self.own and self.own[-1][1] == first - 1:
            first = self.own.pop()[0]
        self.own.append((first, last))

    def find(self, keys: Sequence[bytes]) -> dict[bytes, Turn]:
        # 32,766 in the builds of most systems. No conversation is longer: one query in practice.
        most = min(self.reading.getlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER), 30_000)
        found: dict[bytes, Turn] = {}
        for start in range(0, len(keys), most):
            some = keys[start : start + most]
            marks = ",".join("?" * len(some))
            sql = f"SELECT key, reasoning, effort FROM turns WHERE key IN ({marks})"  # noqa: S608 - only marks
            with self.read_lock:
                found |= {row[0]: Turn(*row) for row in self.reading.execute(sql, some)}
        return found

    def entries(self, limit: int | None, own: bool) -> list[dict[str, Any]]:
        runs = list(self.own)
        if own and not runs:
            return []
        first = runs[0][0] if own else 0
        sql = f"SELECT rowid, {NAMES} FROM requests WHERE rowid >= ? ORDER BY rowid DESC"  # noqa: S608 - our own names
        with self.read_lock:
            rows = self.reading.execute(sql, (first,))
            wanted = (row for row in rows if not own or any(start <= row[0] <= end for start, end in reversed(runs)))
            found = [from_sql(row[1:]) for row in islice(wanted, limit)]
            rows.close()
        return found[::-1]

    def speeds(self) -> dict[tuple[str, str], float]:
        with self.read_lock:
            rows = self.reading.execute("SELECT backend, upstream_model, decode_tokens_per_second FROM speeds")
            return {(backend, model): speed for backend, model, speed in rows}

    def close(self) -> None:
        with self.write_lock:
            self.writing.close()
        if self.reading is not self.writing:
            with self.read_lock:
                self.reading.close()


def _hopeless(error: Exception) -> bool:
    """Whether the value is to blame (too large a number, half a surrogate pair), so that trying again does not help."""
    values = (sqlite3.DataError, sqlite3.IntegrityError, sqlite3.ProgrammingError)
    return isinstance(error, values) or not isinstance(error, sqlite3.DatabaseError)


class SqliteStore:
    """`proxy.store.Store` in a file, or in memory where `path` is None.

    Raises ConfigError where the file cannot be opened, is damaged or belongs to a newer version; it is kept as it is.
    A killed process loses what was not yet written, well below a second's; a system that goes down, what the operating
    system had not yet put on the disk (`synchronous=NORMAL`), and the file stays whole in both cases.
    """

    def __init__(self, path: Path | None, lines: Lines | None = None) -> None:
        try:
            self._file = _File(path)
        except (sqlite3.Error, OSError) as error:
            raise refusal(error, path) from error
        self._writer = Writer(self._file, lines)
        self._reads = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store-reader")
        self._readable = True
        self._closing = threading.Lock()
        self._closed = False
        atexit.register(self.close)

    @property
    def salt(self) -> bytes:
        """32 random bytes of this store."""
        salt: bytes = self._file.salt
        return salt

    async def find(self, keys: Sequence[bytes]) -> dict[bytes, Turn]:
        """The known ones among `keys`: from memory, then the others in one query outside the event loop."""
        # Memory first: the writer takes a turn out of it only after it is on disk.
        found = self._writer.find(keys)
        absent = [key for key in dict.fromkeys(keys) if key not in found]
        if not absent or self._closed:
            return found
        try:
            stored = await asyncio.get_running_loop().run_in_executor(self._reads, self._file.find, absent)
        except sqlite3.Error as error:
            if self._readable:
                log.error("the store cannot be read (%s): turns are not found", error)
            self._readable = False
            return found
        self._readable = True
        return stored | found

    def put_turn(self, turn: Turn) -> None:
        """Keep a turn."""
        self._writer.put(turn)

    def put_entry(self, entry: Entry, complete: Complete | None = None) -> None:
        """Append a ledger row, completed by `complete` in the writer's thread."""
        self._writer.put(entry, complete)

    def recent_speeds(self) -> dict[tuple[str, str], float]:
        """(backend, upstream model) → decode tokens per second of the latest row that is written and has them."""
        return self._file.speeds()

    def entries(self, limit: int | None = None, *, own: bool = False) -> list[dict[str, Any]]:
        """The last rows of the ledger, newest last, after a flush; with `own` only those of this store object."""
        self.flush()
        return self._file.entries(limit, own)

    def flush(self, timeout: float = 10.0) -> bool:
        """Wait until all that was put before is on disk; false if that took longer than `timeout` seconds."""
        return self._writer.flush(timeout)

    def healthy(self) -> bool:
        """Whether the writer lives and the last write and the last read were good."""
        return self._readable and self._writer.healthy()

    def close(self) -> None:
        """Flush, end the threads, close the file. Closing again does nothing."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
            atexit.unregister(self.close)
            self._reads.shutdown()
            if self._writer.close():
                self._file.close()
            else:
                log.error("the store's writer did not end in time: what it had not written is lost")
