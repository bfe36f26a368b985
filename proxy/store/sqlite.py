"""The embedded store: one SQLite file in WAL mode, one connection that writes and one that reads."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from proxy.messages import Entry
from proxy.speeds import Speed
from proxy.store.disk import Disk
from proxy.store.learned import PUT_SPEED, SPEEDS, speed_rows, thoughts, thoughts_of
from proxy.store.ledger import Ledger
from proxy.store.limits import NO_LIMITS, Limits
from proxy.store.lines import Lines
from proxy.store.queued import QueuedStore
from proxy.store.rows import INSERT, NAMES, from_sql, to_sql
from proxy.store.schema import connect, migrate, refusal, transaction
from proxy.store.sqlite_ledger import SqliteLedger
from proxy.store.turns import MOST_VALUES, Turns
from proxy.thoughts import Thought

_THOUGHTS = thoughts("rowid")
_T = TypeVar("_T")

log = logging.getLogger(__name__)


class _File(Disk):
    """Two connections to one file, or one connection to memory."""

    errors = (sqlite3.Error,)

    def __init__(self, path: Path | None, limits: Limits, now: Callable[[], float]) -> None:
        super().__init__(limits, now)
        self._path = path
        self._writing = connect(path)
        try:
            migrate(self._writing, path)
            (self.salt,) = self._writing.execute("SELECT value FROM meta WHERE name = 'salt'").fetchone()
            self._reading = connect(path) if path else self._writing
        except BaseException:
            self._writing.close()
            raise
        self._write_lock = threading.Lock()
        self._read_lock = threading.Lock() if path else self._write_lock
        # 32,766 in the builds of most systems. No conversation is longer: one query in practice.
        self.most_values = min(self._reading.getlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER), MOST_VALUES)
        self._own: list[tuple[int, int]] = []
        """First and last rowid of each run of rows that this process wrote."""

    @contextmanager
    def writing(self) -> Iterator[Turns]:
        with self._write_lock, transaction(self._writing):
            yield Turns(self._writing)

    @contextmanager
    def reading(self) -> Iterator[Turns]:
        with self._read_lock:
            yield Turns(self._reading)

    def hopeless(self, error: Exception) -> bool:
        return _hopeless(error)

    def write_entries(self, entries: Sequence[Entry]) -> None:
        with self._write_lock, transaction(self._writing):
            count = self._insert(INSERT, entries, to_sql)
            (last,) = self._writing.execute("SELECT last_insert_rowid()").fetchone()
            self._insert(PUT_SPEED, speed_rows(entries), tuple)
        if count:
            self._remember(last - count + 1, last)

    def _insert(self, sql: str, values: Sequence[_T], row: Callable[[_T], Sequence[Any]]) -> int:
        """How many of `values` the table took. One that it cannot take does not cost the others of its batch."""
        self._writing.execute("SAVEPOINT batch")
        try:
            self._writing.executemany(sql, map(row, values))
            return len(values)
        except Exception as error:
            if not _hopeless(error):
                raise
        self._writing.execute("ROLLBACK TO batch")
        taken = 0
        for value in values:
            try:
                self._writing.execute(sql, row(value))
                taken += 1
            except Exception as error:
                if not _hopeless(error):
                    raise
                log.error("a row is lost, because no table can hold it: %s", error)
        return taken

    def _remember(self, first: int, last: int) -> None:
        if self._own and self._own[-1][1] == first - 1:
            first = self._own.pop()[0]
        self._own.append((first, last))

    def entries(self, limit: int | None, own: bool) -> list[dict[str, Any]]:
        runs = list(self._own)
        if own and not runs:
            return []
        first = runs[0][0] if own else 0
        sql = f"SELECT rowid, {NAMES} FROM requests WHERE rowid >= ? ORDER BY rowid DESC"  # noqa: S608 - our own names
        with self._read_lock:
            rows = self._reading.execute(sql, (first,))
            wanted = (row for row in rows if not own or any(start <= row[0] <= end for start, end in reversed(runs)))
            found = [from_sql(row[1:]) for row in islice(wanted, limit)]
            rows.close()
        return found[::-1]

    def speeds(self) -> dict[tuple[str, str], Speed]:
        with self._read_lock:
            return {(backend, model): Speed(*speed) for backend, model, *speed in self._reading.execute(SPEEDS)}

    def thoughts(self, limit: int) -> list[Thought]:
        with self._read_lock:
            rows = self._reading.execute(_THOUGHTS, (limit,)).fetchall()
        return thoughts_of(rows)

    def ledger(self) -> Ledger:
        if self._path is None:
            return SqliteLedger(self._reading, self._read_lock)
        return SqliteLedger.at(self._path)

    def close(self) -> None:
        with self._write_lock:
            self._writing.close()
        if self._reading is not self._writing:
            with self._read_lock:
                self._reading.close()


def _hopeless(error: Exception) -> bool:
    """Whether the value is to blame (too large a number, half a surrogate pair), so that trying again does not help."""
    values = (sqlite3.DataError, sqlite3.IntegrityError, sqlite3.ProgrammingError)
    return isinstance(error, values) or not isinstance(error, sqlite3.DatabaseError)


class SqliteStore(QueuedStore):
    """`proxy.store.Store` in a file, or in memory where `path` is None.

    Raises ConfigError where the file cannot be opened, is damaged or belongs to a newer version; it is kept as it is.
    A killed process loses what was not yet written, well below a second's; a system that goes down, what the operating
    system had not yet put on the disk (`synchronous=NORMAL`), and the file stays whole in both cases.
    """

    def __init__(
        self,
        path: Path | None,
        lines: Lines | None = None,
        limits: Limits = NO_LIMITS,
        now: Callable[[], float] = time.time,
    ) -> None:
        try:
            file = _File(path, limits, now)
        except (sqlite3.Error, OSError) as error:
            raise refusal(error, path) from error
        super().__init__(file, lines)
