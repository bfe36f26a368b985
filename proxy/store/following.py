"""A ledger that is watched: its last rows, and those that come, wherever they are kept.

with closing(open_following("sqlite:///proxy.db", print)) as ledger:
    rows = ledger.last(20, Wanted(client="openwebui"))
"""

from __future__ import annotations

import gzip
import os
import sqlite3
import zlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from proxy.errors import ConfigError, NotFound
from proxy.places import is_postgres, sqlite_path
from proxy.store.growing import GrowingFile
from proxy.store.rows import COLUMNS, from_line, from_sql
from proxy.store.schema import check, connect_to, refusal

BATCH = 1000
"""Rows that are read at once."""

Row: TypeAlias = dict[str, Any]
"""A flat one with the names of Entry, as `Store.entries` gives them."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Rows of one client and of one outcome; None: of any."""

    client: str | None = None
    outcome: str | None = None

    def takes(self, client: str | None, outcome: str) -> bool:
        """Whether a row with these is one."""
        return self.client in (None, client) and self.outcome in (None, outcome)

    def sql(self) -> tuple[str, list[str]]:
        """Further conditions, with a `?` for each of the values."""
        given = {"client": self.client, "outcome": self.outcome}
        held = {name: value for name, value in given.items() if value is not None}
        return "".join(f" AND {name} = ?" for name in held), list(held.values())


class Following(ABC):
    """Rows in the order in which they were written. `close` it."""

    waits = ""
    """Why nothing can come just now, for people; empty where something can."""

    @abstractmethod
    def last(self, most: int, wanted: Wanted) -> list[Row]:
        """The last rows of those that are wanted; `new` goes on behind the ledger's last row.

        Raises NotFound where there is no ledger yet, ConfigError where it cannot be read.
        """

    @abstractmethod
    def new(self) -> list[Row]:
        """The next rows, wanted or not: of a ledger that was not there before, from its first one on.

        None while there are no more, and while the ledger is not there or cannot be read for now: then `waits` says so.
        Raises ConfigError where waiting does not help.
        """

    @abstractmethod
    def close(self) -> None:
        """Let go of it."""


def open_following(url: str, say: Callable[[str], None], *, goes_on: bool = False) -> Following:
    """The ledger at a store's URL, at `jsonl:///file`, or at the path of either file; nothing is read yet.

    Which file is which, `proxy.store.ledger.open_ledger` tells. `say` gets a word about damaged lines; `goes_on`: `new`
    will be called. Raises ConfigError for a URL that means none.
    """
    if is_postgres(url):
        from proxy.store.postgres_following import PostgresFollowing  # noqa: PLC0415 - psycopg may not be installed

        return PostgresFollowing(url)
    if url == "memory":
        raise ConfigError("a ledger in memory ends with its process: set store.url or store.ledger_jsonl to keep one")
    if url.startswith("jsonl:///"):
        return LinesFollowing(Path(url.removeprefix("jsonl:///")), say, goes_on)
    stored = sqlite_path(url) if url == "sqlite" or "://" in url else None
    if stored is not None:
        return SqliteFollowing(stored)
    path = Path(url).expanduser()
    is_lines = path.name.removesuffix(".gz").endswith((".jsonl", ".ndjson", ".json"))
    return LinesFollowing(path, say, goes_on) if is_lines else SqliteFollowing(path)


def missing(where: object) -> NotFound:
    """There is no ledger, and what makes one."""
    return NotFound(
        f"there is no ledger yet at {where}. `reasoning-proxy serve` makes it where `store.url` or "
        "`store.ledger_jsonl` names this place; each request then adds a row"
    )


def waiting(where: object) -> str:
    """The same, where that is no error."""
    return f"waiting for {where}: there is no ledger yet"


def named(names: Sequence[str], values: Iterable[Sequence[Any]]) -> list[Row]:
    """Rows of SQL; what tables of an earlier version lack is None."""
    at = {name: place for place, name in enumerate(names)}
    places = [at.get(name) for name in COLUMNS]
    return [from_sql([None if place is None else row[place] for place in places]) for row in values]


class SqliteFollowing(Following):
    """The table `requests` of a file, which is read in place while a proxy writes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self._opened: tuple[object, ...] = ()
        self._last = 0
        self._version: int | None = None

    def last(self, most: int, wanted: Wanted) -> list[Row]:
        try:
            connection = self._looked_at()
            if connection is None:
                raise missing(self._path)
            version = _version(connection)
            (top,) = connection.execute("SELECT coalesce(max(rowid), 0) FROM requests").fetchone()
            where, values = wanted.sql()
            sql = f"SELECT * FROM requests WHERE rowid <= ?{where} ORDER BY rowid DESC LIMIT ?"  # noqa: S608
            rows = _rows(connection.execute(sql, (top, *values, most)))
        except (sqlite3.Error, OSError) as error:
            raise refusal(error, self._path) from error
        self._last, self._version = top, version
        return rows[::-1]

    def new(self) -> list[Row]:
        try:
            connection = self._looked_at()
            self.waits = "" if connection is not None else waiting(self._path)
            return [] if connection is None else self._next(connection)
        except (sqlite3.OperationalError, OSError) as error:  # locked for long, or being moved
            self.close()
            self.waits = f"waiting for {self._path}: it cannot be read ({error})"
            return []
        except sqlite3.Error as error:
            raise refusal(error, self._path) from error

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _next(self, connection: sqlite3.Connection) -> list[Row]:
        version = _version(connection)
        if version == self._version:  # nobody wrote
            return []
        (top,) = connection.execute("SELECT coalesce(max(rowid), 0) FROM requests").fetchone()
        start = min(self._last, top)  # above it where rows were deleted
        end = min(top, start + BATCH)
        found = connection.execute("SELECT * FROM requests WHERE rowid > ? AND rowid <= ? ORDER BY rowid", (start, end))
        rows = _rows(found)
        self._last, self._version = end, version if end == top else None
        return rows

    def _looked_at(self) -> sqlite3.Connection | None:
        """The connection to the file that is there now; None where there is no ledger in it, or no file."""
        try:
            found = os.stat(self._path)
        except FileNotFoundError:
            found = None
        if found is None or not self._path.is_file():
            self.close()
            self._last = 0
            return None
        # The log counts, because a file without one may have been opened as one that nobody writes to.
        now = (found.st_dev, found.st_ino, self._path.with_name(f"{self._path.name}-wal").exists())
        if self._connection is not None and now == self._opened:
            return self._connection
        self.close()
        if now[:2] != self._opened[:2]:
            self._last = 0
        connection = connect_to(self._path)
        try:
            connection.text_factory = _text
            is_there = bool(check(connection, self._path))
        except BaseException:
            connection.close()
            raise
        if not is_there:
            connection.close()
            return None
        self._connection, self._opened, self._version = connection, now, None
        return connection


def _version(connection: sqlite3.Connection) -> int:
    """Another number whenever another connection has written."""
    return int(connection.execute("PRAGMA data_version").fetchone()[0])


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _rows(cursor: sqlite3.Cursor) -> list[Row]:
    return named([column[0] for column in cursor.description], cursor)


class _Head(msgspec.Struct):
    """What tells whether a line is wanted; all of it takes four times as long to read."""

    ts: str = ""
    client: str | None = None
    outcome: str = "ok"


_head = msgspec.json.Decoder(_Head).decode
_values = attrgetter(*COLUMNS)


class LinesFollowing(Following):
    """A file of JSON lines, which may be rotated and cut short; a packed one has only last rows."""

    def __init__(self, path: Path, say: Callable[[str], None], goes_on: bool) -> None:
        self._path = path
        self._say = say
        self._goes_on = goes_on
        self._is_packed = path.suffix == ".gz"
        self._file = GrowingFile(path)
        self._told = False
        if self._is_packed and goes_on:
            raise ConfigError(f"{path} is packed, and nothing is appended to it: leave out --follow")

    def last(self, most: int, wanted: Wanted) -> list[Row]:
        if not self._path.is_file():
            raise missing(self._path)
        try:
            if self._is_packed:
                with gzip.open(self._path) as lines:
                    return list(deque(self._decoded(lines, wanted), most))
            self._file.open()
            return list(islice(self._decoded(self._backwards(), wanted), most))[::-1]
        except (OSError, EOFError, zlib.error) as error:
            raise self._refusal(error) from error

    def new(self) -> list[Row]:
        try:
            lines = self._file.more()
        except OSError as error:
            self._file.close()
            self.waits = f"waiting for {self._path}: it cannot be read ({error.strerror})"
            return []
        self.waits = "" if self._file.is_open else waiting(self._path)
        return list(self._decoded(lines, Wanted()))

    def close(self) -> None:
        self._file.close()

    def _backwards(self) -> Iterator[bytes]:
        lines = self._file.backwards()
        first = next(lines, b"")
        if not self._goes_on:
            yield self._file.ending
        yield first
        yield from lines

    def _decoded(self, lines: Iterable[bytes], wanted: Wanted) -> Iterator[Row]:
        for line in lines:
            try:
                head = _head(line)
                if head.ts and wanted.takes(head.client, head.outcome):  # without a time it is another program's
                    yield dict(zip(COLUMNS, _values(from_line(line)), strict=True))
                is_row = bool(head.ts)
            except msgspec.MsgspecError:
                is_row = False
            if not is_row and line.strip() and line is not self._file.ending and not self._told:
                self._told = True
                self._say(f"warning: {self._path} has lines that are no ledger rows, which are left out")

    def _refusal(self, error: Exception) -> ConfigError:
        reason = getattr(error, "strerror", None) or str(error)
        return ConfigError(f"{self._path} cannot be read ({reason}): it must be a file of JSON lines that you may read")
