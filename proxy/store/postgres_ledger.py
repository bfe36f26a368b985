"""The ledger in a PostgreSQL database: the server adds up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

from proxy.errors import NotFound
from proxy.places import hide_password
from proxy.store.driver import psycopg
from proxy.store.ledger import LATER, Ledger, Row, Sum, Where, grouped
from proxy.store.postgres_schema import check, connect, refusal

_NUMBER = r"{0} ~ '^[0-9]{{1,100}}([.][0-9]{{1,100}}){{0,1}}(E[+-][0-9]{{1,2}}){{0,1}}$'"


class PostgresLedger(Ledger):
    """One connection of its own. Raises NotFound where there is no ledger, ConfigError."""

    def __init__(self, url: str) -> None:
        self._url = url
        try:
            self._connection = connect(url)
        except psycopg.Error as error:
            raise refusal(error, url) from None
        try:
            if not check(self._connection, url):
                raise NotFound(f"there is no ledger yet in {hide_password(url)}: `reasoning-proxy serve` makes it")
            self._source = self._columns()
        except psycopg.Error as error:
            self._connection.close()
            raise refusal(error, url) from None
        except BaseException:
            self._connection.close()
            raise

    def _columns(self) -> str:
        rows = self._connection.execute(
            "SELECT attname FROM pg_attribute WHERE attrelid = 'requests'::regclass AND attnum > 0"
        )
        known = {name for (name,) in rows}
        missing = [f"NULL::{kind} AS {name}" for name, kind in LATER.items() if name not in known]
        return f"(SELECT *, {', '.join(missing)} FROM requests) AS requests" if missing else "requests"  # noqa: S608

    def sums(self, keys: Sequence[str], wanted: Sequence[Sum], where: Where) -> Iterator[Row]:
        condition, values = where.sql()
        columns = ", ".join([*keys, *map(_column, wanted)])
        sql = f"SELECT {columns} FROM {self._source} WHERE {condition}" + grouped(keys)  # noqa: S608 - our own words
        for row in self._ask(sql, values):
            sums = zip(row[len(keys) :], wanted, strict=True)
            yield (*row[: len(keys)], *(_number(value, each) for value, each in sums))

    def counts(self, keys: Sequence[str], where: Where) -> Iterator[Row]:
        condition, values = where.sql()
        columns = ", ".join([*keys, "count(*)"])
        yield from self._ask(f"SELECT {columns} FROM {self._source} WHERE {condition}" + grouped(keys), values)  # noqa: S608

    def _ask(self, sql: str, values: Sequence[Any]) -> list[Row]:
        try:
            return self._connection.execute(sql.replace("?", "%s"), values).fetchall()
        except psycopg.Error as error:
            raise refusal(error, self._url) from None

    def close(self) -> None:
        self._connection.close()


def _column(each: Sum) -> str:
    of = f"{each.of}::numeric" if each.exact else each.of
    conditions = [part for part in (each.when, _NUMBER.format(each.of) if each.exact else "") if part]
    return f"sum(CASE WHEN {' AND '.join(conditions)} THEN {of} END)" if conditions else f"sum({of})"


def _number(value: Any, each: Sum) -> Any:
    if value is None:
        return None
    return Decimal(value) if each.exact else int(value)
