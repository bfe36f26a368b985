"""The ledger in a SQLite database: sums in its own SQL, and exact ones of money."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

from proxy.errors import ConfigError, NotFound
from proxy.messages import Entry
from proxy.store.ledger import EXACT, LATER, Ledger, Row, Sum, Where, add, amount_of, grouped
from proxy.store.rows import INSERT, to_sql
from proxy.store.schema import check, connect, connect_to, migrate, transaction

_PARALLEL_ROWS = 200_000
_PICO = Decimal("1e-12")
_CHEAP = "{0} BETWEEN '0' AND '0.~' AND length({0}) <= 14 AND {0} NOT LIKE '%e%'"
"""An amount below a dollar with at most 12 digits behind the point: as a whole number of picodollars SQLite adds it up
exactly, and in a tenth of the time that a sum of texts takes."""


class SqliteLedger(Ledger):
    """The table `requests` behind a connection, which is used under `lock`."""

    def __init__(
        self, connection: sqlite3.Connection, lock: AbstractContextManager[Any], path: Path | None = None
    ) -> None:
        """With a `path` the connection is the ledger's own, and large files are read by several at once."""
        self._connection = connection
        self._lock = lock
        self._path = path
        with_exact_sums(connection)
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
        for rows in self._each(sums_sql(self._source, keys, wanted, condition), values):
            yield from exactly(rows, wanted)

    def counts(self, keys: Sequence[str], where: Where) -> Iterator[Row]:
        condition, values = where.sql()
        for rows in self._each(counts_sql(self._source, keys, condition), values):
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
            with_exact_sums(connection)
            return connection.execute(sql.format(rowids=f"rowid > {low} AND rowid <= {high}"), values).fetchall()

    def close(self) -> None:
        if self._path is not None or self._own:
            self._connection.close()


def _source(known: set[str]) -> str:
    missing = ", ".join(f"NULL AS {name}" for name in LATER if name not in known)
    return f"(SELECT rowid, *, {missing} FROM requests)" if missing else "requests"  # noqa: S608 - our own names


def sums_sql(source: str, keys: Sequence[str], wanted: Sequence[Sum], condition: str) -> str:
    """The query for `Ledger.sums`; `{rowids}` stands for a condition on rowids."""
    columns = [*keys, *(part for each in wanted for part in _parts_of(each))]
    return f"SELECT {', '.join(columns)} FROM {source} WHERE {condition} AND {{rowids}}" + grouped(keys)  # noqa: S608


def counts_sql(source: str, keys: Sequence[str], condition: str) -> str:
    """The query for `Ledger.counts`, in the same way."""
    columns = [*keys, "count(*)"]
    return f"SELECT {', '.join(columns)} FROM {source} WHERE {condition} AND {{rowids}}" + grouped(keys)  # noqa: S608


def _parts_of(each: Sum) -> tuple[str, ...]:
    if not each.exact:
        return (f"sum(CASE WHEN {each.when} THEN {each.of} END)" if each.when else f"sum({each.of})",)
    cheap, when = _CHEAP.format(each.of), each.when or "1 = 1"
    return (
        f"sum(CASE WHEN {when} AND {cheap} THEN CAST(round({each.of} * 1e12) AS INTEGER) END)",
        f"exact_sum({each.of}) FILTER (WHERE {when} AND NOT ({cheap}))",
    )


def exactly(rows: Iterable[Row], wanted: Sequence[Sum]) -> Iterator[Row]:
    """Rows of a query of `_parts_of`, the two parts of each exact sum in one."""
    for row in rows:
        count = len(row) - sum(2 if each.exact else 1 for each in wanted)
        parts = iter(row[count:])
        yield (*row[:count], *(_amount(next(parts), next(parts)) if each.exact else next(parts) for each in wanted))


def _amount(pico: int | None, rest: str | None) -> Decimal | None:
    cheap = None if pico is None else EXACT.multiply(Decimal(pico), _PICO)
    found: Decimal | None = add(cheap, None if rest is None else Decimal(rest))
    return found


def with_exact_sums(connection: sqlite3.Connection) -> None:
    """Teach a connection what the queries here need."""
    connection.create_aggregate("exact_sum", 1, cast("Any", ExactSum))


class ExactSum:
    """SQL aggregate over decimal texts. SQL's own sum is binary, where 0.1 + 0.2 is not 0.3."""

    def __init__(self) -> None:
        self._sum: Decimal | None = None

    def step(self, value: object) -> None:
        self._sum = add(self._sum, amount_of(value))

    def finalize(self) -> str | None:
        return None if self._sum is None else f"{self._sum:f}"
