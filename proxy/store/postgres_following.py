"""The ledger of a PostgreSQL database, watched."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from proxy.errors import NotFound
from proxy.places import hide_password
from proxy.store.driver import psycopg
from proxy.store.following import BATCH, Following, Row, Wanted, named, waiting
from proxy.store.postgres_schema import Connection, check, connect, reason_of, refusal

LATE_SECONDS = 60.0
"""So long a number that was left out may still come: of two proxies the later number may be committed first."""
_LATE = 1000
_AGAIN_SECONDS = 2.0


class PostgresFollowing(Following):
    """The table `requests`, by its numbers; a server that went away is asked again."""

    def __init__(self, url: str, now: Callable[[], float] = time.monotonic) -> None:
        self._url = url
        self._shown = hide_password(url)
        self._now = now
        self._connection: Connection | None = None
        self._last = 0
        self._late: dict[int, float] = {}
        """Numbers that were left out, and when that was seen."""
        self._again = 0.0

    def last(self, most: int, wanted: Wanted) -> list[Row]:
        try:
            connection = self._connected()
            if connection is None:
                raise NotFound(f"there is no ledger yet in {self._shown}: `reasoning-proxy serve` makes it")
            (top,) = _first(connection, "SELECT coalesce(max(id), 0) FROM requests")
            where, values = wanted.sql()
            sql = f"SELECT * FROM requests WHERE id <= %s{where.replace('?', '%s')} ORDER BY id DESC LIMIT %s"  # noqa: S608
            rows = _named(connection.execute(sql, (top, *values, most)))
            near = max(0, top - _LATE)
            found = connection.execute("SELECT id FROM requests WHERE id > %s AND id <= %s", (near, top)).fetchall()
        except psycopg.Error as error:
            raise refusal(error, self._url) from None
        self._last = top
        self._left_out(near, top, {number for (number,) in found})
        return rows[::-1]

    def new(self) -> list[Row]:
        if self._connection is None and self._now() < self._again:
            return []
        try:
            connection = self._connected()
            self.waits = "" if connection is not None else waiting(self._shown)
            return [] if connection is None else self._next(connection)
        except psycopg.Error as error:
            self.close()
            self._again = self._now() + _AGAIN_SECONDS
            self.waits = f"waiting for {self._shown}: it cannot be read ({reason_of(error)})"
            return []

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _connected(self) -> Connection | None:
        """None where there is no ledger yet."""
        if self._connection is not None:
            return self._connection
        connection = connect(self._url)
        try:
            if not check(connection, self._url):
                connection.close()
                self._again = self._now() + _AGAIN_SECONDS
                return None
            (top,) = _first(connection, "SELECT coalesce(max(id), 0) FROM requests")
            if top < self._last:  # the database was made anew
                self._last, self._late = 0, {}
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return connection

    def _next(self, connection: Connection) -> list[Row]:
        since = self._now() - LATE_SECONDS
        self._late = {number: seen for number, seen in self._late.items() if seen >= since}
        cursor = connection.execute(
            "SELECT * FROM requests WHERE id > %s UNION ALL SELECT * FROM requests WHERE id = ANY(%s) "
            "ORDER BY id LIMIT %s",
            (self._last, list(self._late), BATCH),
        )
        at = [column.name for column in cursor.description or ()].index("id")
        found = cursor.fetchall()
        numbers = {row[at] for row in found}
        if numbers:
            self._late = {number: seen for number, seen in self._late.items() if number not in numbers}
            self._left_out(self._last, max(numbers), numbers)
            self._last = max(self._last, *numbers)
        return named([column.name for column in cursor.description or ()], found)

    def _left_out(self, after: int, last: int, found: set[int]) -> None:
        now = self._now()
        for number in range(max(after, last - _LATE) + 1, last + 1):
            if number not in found:
                self._late[number] = now


def _first(connection: Connection, sql: str) -> Any:
    return connection.execute(sql.encode()).fetchone() or (0,)


def _named(cursor: Any) -> list[Row]:
    return named([column.name for column in cursor.description], cursor)
