"""A ledger for reading: sums and counts over its rows, wherever they are kept.

What it gives is additive: rows of one group may come several times (a file of lines is read in parts), and whoever asks
adds them up. Sums of money are exact.
"""

from __future__ import annotations

import gzip
import logging
import os
import re
import sqlite3
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from decimal import Context, Decimal, Inexact, InvalidOperation
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import IO, Annotated, Any, TypeAlias

import msgspec

from proxy.errors import ConfigError, NotFound
from proxy.messages import Entry
from proxy.places import is_postgres, sqlite_path
from proxy.store.rows import COLUMNS, INSERT, to_sql
from proxy.store.schema import check, connect, connect_to, migrate, refusal, transaction

log = logging.getLogger(__name__)

Row: TypeAlias = tuple[Any, ...]
Told: TypeAlias = Callable[[int, int], None]
"""Called with the bytes that are read and those there are."""

_BATCH = 20_000
_LISTS = ("decisions", "flags")
_NUMBER = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)] | float
_HINTS: dict[str, Any] = {
    name: list[str] if name in _LISTS else bool if "bool" in hint else str if "str" in hint else _NUMBER
    for name, hint in Entry.__annotations__.items()
}
"""The types of a line's fields, as far as reading needs them."""
_PARALLEL_ROWS = 200_000
_PICO = Decimal("1e-12")
_CHEAP = "{0} BETWEEN '0' AND '0.~' AND length({0}) <= 14 AND {0} NOT LIKE '%e%'"
"""An amount below a dollar with at most 12 digits behind the point: as a whole number of picodollars SQLite adds it up
exactly, and in a tenth of the time that a sum of texts takes."""
LATER = {"cache_write_tokens": "bigint", "cache_saved_usd": "text"}
"""Columns that ledgers of earlier versions lack; reading adds nothing to them."""


@dataclass(frozen=True, slots=True)
class Sum:
    """The sum of an expression over the rows where `when` holds; an `exact` one is of decimal texts."""

    name: str
    of: str
    when: str = ""
    exact: bool = False


@dataclass(frozen=True, slots=True)
class Where:
    """Rows from `since` to before `until`, both RFC 3339 or None, of one client or of all."""

    since: str | None = None
    until: str | None = None
    client: str | None = None

    def sql(self) -> tuple[str, list[str]]:
        """The condition, with a `?` for each of the values. Times are compared without the zone, because
        `15:00:00.250Z` sorts before `15:00:00Z`."""
        given = {"ts >= ?": self.since, "ts < ?": self.until, "client = ?": self.client}
        held = {condition: value for condition, value in given.items() if value is not None}
        values = [value.removesuffix("Z") if condition.startswith("ts") else value for condition, value in held.items()]
        return " AND ".join(held) or "1 = 1", values


class Ledger(ABC):
    """Rows to be summed up."""

    @abstractmethod
    def sums(self, keys: Sequence[str], wanted: Sequence[Sum], where: Where) -> Iterator[Row]:
        """For each combination of values of SQL expressions those, and the sums, None where there is nothing to add."""

    @abstractmethod
    def counts(self, keys: Sequence[str], where: Where) -> Iterator[Row]:
        """Each combination of values of SQL expressions, and how many rows have it."""

    def close(self) -> None:  # noqa: B027 - most have something to let go of, not all
        """Let go of it."""


def open_ledger(url: str, told: Told | None = None) -> Ledger:
    """The ledger at a store's URL, at `jsonl:///file` (as with `sqlite:///`), or at the path of either file.

    A path that ends with `.jsonl`, `.ndjson` or `.json`, and perhaps with `.gz` behind it, holds JSON lines, any other
    is a store's, which is read in place, also while a proxy writes. Raises NotFound where there is no ledger yet,
    ConfigError for a URL or a file that is none, and for a server that cannot be used.
    """
    if is_postgres(url):
        from proxy.store.postgres_ledger import PostgresLedger  # noqa: PLC0415 - psycopg may not be installed

        return PostgresLedger(url)
    path = _path(url)
    if not path.is_file():
        raise NotFound(
            f"there is no ledger yet at {path}. `reasoning-proxy serve` makes it where `store.url` or "
            f"`store.ledger_jsonl` names this file; each request then adds a row"
        )
    try:
        return Lines(path, told) if _is_jsonl(url, path) else SqliteLedger.at(path)
    except (sqlite3.Error, OSError) as error:
        raise refusal(error, path) from error


def _path(url: str) -> Path:
    if url == "memory":
        raise ConfigError("a ledger in memory ends with its process: set store.url or store.ledger_jsonl to keep one")
    if url.startswith("jsonl:///"):
        return Path(url.removeprefix("jsonl:///"))
    stored = sqlite_path(url) if url == "sqlite" or "://" in url else None
    return stored or Path(url).expanduser()


def _is_jsonl(url: str, path: Path) -> bool:
    # By its name and not by a look into it: see `files.make_private` for what opening a store's file does.
    name = path.name.removesuffix(".gz")
    return url.startswith("jsonl:") or ("://" not in url and name.endswith((".jsonl", ".ndjson", ".json")))


class SqliteLedger(Ledger):
    """The table `requests` behind a connection, which is used under `lock`."""

    def __init__(
        self, connection: sqlite3.Connection, lock: AbstractContextManager[Any], path: Path | None = None
    ) -> None:
        """With a `path` the connection is the ledger's own, and large files are read by several at once."""
        self._connection = connection
        self._lock = lock
        self._path = path
        connection.create_aggregate("exact_sum", 1, _ExactSum)  # type: ignore[arg-type]
        known = {row[1] for row in connection.execute("PRAGMA table_info(requests)")}
        self._source = _source(known)

    @classmethod
    def at(cls, path: Path) -> SqliteLedger:
        """That of a store's file. Raises NotFound where it has none yet."""
        connection = connect_to(path)
        try:
            if not check(connection, path):
                raise NotFound(f"there is no ledger yet in {path}: `reasoning-proxy serve` makes it when it starts")
            return cls(connection, threading.RLock(), path)
        except BaseException:
            connection.close()
            raise

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> SqliteLedger:
        """One in memory."""
        connection = connect(None)
        try:
            migrate(connection, None)
            with transaction(connection):
                connection.executemany(INSERT, map(to_sql, entries))
            found = cls(connection, threading.RLock())
        except BaseException:
            connection.close()
            raise
        found._own = True
        return found

    _own = False

    def sums(self, keys: Sequence[str], wanted: Sequence[Sum], where: Where) -> Iterator[Row]:
        condition, values = where.sql()
        for rows in self._each(_sums_sql(self._source, keys, wanted, condition), values):
            yield from _exactly(rows, wanted)

    def counts(self, keys: Sequence[str], where: Where) -> Iterator[Row]:
        condition, values = where.sql()
        for rows in self._each(_counts_sql(self._source, keys, condition), values):
            yield from rows

    def _each(self, sql: str, values: Sequence[Any]) -> Iterator[list[Row]]:
        """The rows of a query; of a large file those of each part, of which several are read at once."""
        try:
            with self._lock:
                (last,) = self._connection.execute("SELECT coalesce(max(rowid), 0) FROM requests").fetchone()
                if self._path is None or last < _PARALLEL_ROWS:
                    yield self._connection.execute(sql.format(rowids="1 = 1"), values).fetchall()
                    return
            parts = max(2, min(4, os.cpu_count() or 1))
            edges = [last * part // parts for part in range(parts + 1)]
            with ThreadPoolExecutor(parts) as pool:
                yield from pool.map(lambda low, high: self._part(sql, low, high, values), edges, edges[1:])
        except sqlite3.Error as error:
            raise ConfigError(f"the ledger cannot be read ({error}): is it reasoning-proxy's own file?") from None

    def _part(self, sql: str, low: int, high: int, values: Sequence[Any]) -> list[Row]:
        assert self._path is not None  # noqa: S101 - else there are no parts
        with closing(connect_to(self._path)) as connection:
            connection.create_aggregate("exact_sum", 1, _ExactSum)  # type: ignore[arg-type]
            return connection.execute(sql.format(rowids=f"rowid > {low} AND rowid <= {high}"), values).fetchall()

    def close(self) -> None:
        if self._path is not None or self._own:
            self._connection.close()


class Lines(Ledger):
    """A file of JSON lines, also a packed one: read in parts, each time anew."""

    def __init__(self, path: Path, told: Told | None = None) -> None:
        self._path = path
        self._told = told
        path.open("rb").close()

    def sums(self, keys: Sequence[str], wanted: Sequence[Sum], where: Where) -> Iterator[Row]:
        condition, values = where.sql()
        sql = _sums_sql("requests", keys, wanted, condition)
        for rows in self._parts(sql, values):
            yield from _exactly(rows, wanted)

    def counts(self, keys: Sequence[str], where: Where) -> Iterator[Row]:
        condition, values = where.sql()
        for rows in self._parts(_counts_sql("requests", keys, condition), values):
            yield from rows

    def _parts(self, sql: str, values: Sequence[Any]) -> Iterator[list[Row]]:
        """Each part of the file goes into a table in memory of no more columns than the query has."""
        names = ["ts", *(name for name in COLUMNS if name != "ts" and re.search(rf"\b{name}\b", sql))]
        with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
            connection.create_aggregate("exact_sum", 1, _ExactSum)  # type: ignore[arg-type]
            connection.execute(f"CREATE TABLE requests ({', '.join(names)})")
            insert = f"INSERT INTO requests VALUES ({', '.join('?' * len(names))})"  # noqa: S608 - only marks
            rows = self._rows(names)
            while batch := list(islice(rows, _BATCH)):
                connection.execute("BEGIN")
                connection.execute("DELETE FROM requests")
                connection.executemany(insert, batch)
                connection.execute("COMMIT")
                yield connection.execute(sql.format(rowids="1 = 1"), values).fetchall()

    def _rows(self, names: Sequence[str]) -> Iterator[Row]:
        """The rows of the file. A last line that is still being written is left out, and so is a damaged one, with a
        word in the log."""
        decode = msgspec.json.Decoder(msgspec.defstruct("Line", [_field(name) for name in names])).decode
        values = attrgetter(*names) if len(names) > 1 else lambda line: (line.ts,)
        lists = [at for at, name in enumerate(names) if name in _LISTS]
        damaged, size = 0, max(1, self._path.stat().st_size)
        with self._path.open("rb") as file, self._unpacked(file) as lines:
            for number, line in enumerate(lines):
                if self._told is not None and number % _BATCH == 0:
                    self._told(file.tell(), size)
                try:
                    row = values(decode(line))
                except msgspec.MsgspecError:
                    damaged += line.endswith(b"\n") and bool(line.strip())
                    continue
                yield _joined(row, lists) if lists else row
        if damaged:
            log.warning("%s: %d lines are no ledger rows and are not counted", self._path, damaged)

    def _unpacked(self, file: IO[bytes]) -> AbstractContextManager[IO[bytes]]:
        packed = self._path.suffix == ".gz"
        return gzip.GzipFile(fileobj=file) if packed else nullcontext(file)  # type: ignore[return-value]


def _joined(row: Row, lists: Sequence[int]) -> Row:
    return tuple(",".join(value or ()) if at in lists else value for at, value in enumerate(row))


def _field(name: str) -> tuple[str, Any, Any]:
    """Of a line as it is read; a number that no column can hold is no row of ours."""
    return name, _HINTS[name] | None, None


def _source(known: set[str]) -> str:
    missing = ", ".join(f"NULL AS {name}" for name in LATER if name not in known)
    return f"(SELECT rowid, *, {missing} FROM requests)" if missing else "requests"  # noqa: S608 - our own names


def _sums_sql(source: str, keys: Sequence[str], wanted: Sequence[Sum], condition: str) -> str:
    columns = [*keys, *(part for each in wanted for part in _parts_of(each))]
    return f"SELECT {', '.join(columns)} FROM {source} WHERE {condition} AND {{rowids}}" + grouped(keys)  # noqa: S608


def _counts_sql(source: str, keys: Sequence[str], condition: str) -> str:
    columns = [*keys, "count(*)"]
    return f"SELECT {', '.join(columns)} FROM {source} WHERE {condition} AND {{rowids}}" + grouped(keys)  # noqa: S608


def grouped(keys: Sequence[str]) -> str:
    """The end of a query that begins with them; without any all rows are one group."""
    return f" GROUP BY {', '.join(str(number) for number in range(1, len(keys) + 1))}" if keys else ""


def _parts_of(each: Sum) -> tuple[str, ...]:
    if not each.exact:
        return (f"sum(CASE WHEN {each.when} THEN {each.of} END)" if each.when else f"sum({each.of})",)
    cheap, when = _CHEAP.format(each.of), each.when or "1 = 1"
    return (
        f"sum(CASE WHEN {when} AND {cheap} THEN CAST(round({each.of} * 1e12) AS INTEGER) END)",
        f"exact_sum({each.of}) FILTER (WHERE {when} AND NOT ({cheap}))",
    )


def _exactly(rows: Iterable[Row], wanted: Sequence[Sum]) -> Iterator[Row]:
    """Rows of a query of `_parts_of`, the two parts of each exact sum in one."""
    for row in rows:
        count = len(row) - sum(2 if each.exact else 1 for each in wanted)
        parts = iter(row[count:])
        yield (*row[:count], *(_amount(next(parts), next(parts)) if each.exact else next(parts) for each in wanted))


def _amount(pico: int | None, rest: str | None) -> Decimal | None:
    cheap = None if pico is None else _EXACT.multiply(Decimal(pico), _PICO)
    found: Decimal | None = add(cheap, None if rest is None else Decimal(rest))
    return found


_EXACT = Context(prec=1300, traps=[Inexact, InvalidOperation])
"""Enough digits for every text that an exact sum takes; Decimal rounds to 28 otherwise."""


def amount_of(text: object) -> Decimal | None:
    """A decimal text as a sum takes it; None for what is no amount. What lies outside is no sum of money either, and an
    exact sum of it would fill the memory."""
    try:
        found = Decimal(text) if isinstance(text, str) and len(text) <= 200 else None
    except InvalidOperation:
        return None
    return found if found is not None and found.is_finite() and abs(found.adjusted()) <= 500 else None


def add(one: Any, other: Any) -> Any:
    """Two sums as one; None adds nothing."""
    if one is None or other is None:
        return other if one is None else one
    return _EXACT.add(one, other) if isinstance(one, Decimal) else one + other


class _ExactSum:
    """SQL aggregate over decimal texts. SQL's own sum is binary, where 0.1 + 0.2 is not 0.3."""

    def __init__(self) -> None:
        self._sum: Decimal | None = None

    def step(self, value: object) -> None:
        self._sum = add(self._sum, amount_of(value))

    def finalize(self) -> str | None:
        return None if self._sum is None else f"{self._sum:f}"
