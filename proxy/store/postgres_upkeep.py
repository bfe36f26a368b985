"""Looking after the turns in a PostgreSQL database, beside the proxies that use it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from proxy.errors import ConfigError, NotFound
from proxy.places import hide_password
from proxy.store.connections import Marked, begin, pipelined
from proxy.store.driver import errors, psycopg
from proxy.store.postgres_schema import MIGRATIONS, TABLES, Connection, check, connect, reason_of, refusal
from proxy.store.turns import Turns
from proxy.store.upkeep import Upkeep

_TEXTUAL = ("texts", "turns", "weaker")


class PostgresUpkeep(Upkeep):
    """Raises NotFound where there is no store yet, ConfigError where it cannot be used or is of another version."""

    errors = (psycopg.Error,)

    def __init__(self, url: str, now: Callable[[], float]) -> None:
        self._connection = _opened(url)
        super().__init__(Marked(self._connection), now)

    @contextmanager
    def writing(self) -> Iterator[Turns]:
        with pipelined(begin(self._connection, alone=True)) as pipeline:
            yield Turns(Marked(self._connection, pipeline))
            self._connection.execute("COMMIT")

    def reclaim(self) -> str | None:
        # Deleting only marks rows, and a plain VACUUM leaves their bytes in the gaps of pages: FULL writes the tables
        # anew. The server's log of changes (WAL) and its backups go by their own rules.
        problems: list[str] = []

        def listen(told: errors.Diagnostic) -> None:
            # Read at once: psycopg takes it back.
            if problem := _problem(told):
                problems.append(problem)

        self._connection.add_notice_handler(listen)
        try:
            self._connection.execute("SET lock_timeout = '8s'")
            for table in _TEXTUAL:
                self._connection.execute(f"VACUUM (FULL, VERBOSE) {table}")
        except psycopg.Error as error:
            return f"the tables could not be written anew ({reason_of(error)})"
        finally:
            self._connection.remove_notice_handler(listen)
        return problems[0] if problems else None

    def file_bytes(self) -> int:
        sql = "SELECT sum(pg_total_relation_size(to_regclass(name))) FROM unnest(%s::text[]) AS name"
        (size,) = self._connection.execute(sql, [TABLES]).fetchone() or (0,)
        return int(size)

    def close(self) -> None:
        self._connection.close()


def _problem(told: errors.Diagnostic) -> str | None:
    """Why a table was not written anew, or not without the rows that were deleted, by what the server told."""
    if told.severity_nonlocalized == "WARNING":  # the user may not
        return told.message_primary
    # "3 dead row versions cannot be removed yet."
    kept = re.match(r"\d+", told.message_detail or "")
    if kept and int(kept[0]):
        return f"{kept[0]} deleted rows can still be seen by another program's transaction, and were kept"
    return None


def _opened(url: str) -> Connection:
    try:
        connection = connect(url)
        try:
            version = check(connection, url)
            if not version:
                raise NotFound(
                    f"there is no store yet in {hide_password(url)}: `reasoning-proxy serve` makes it when it starts"
                )
            if version < len(MIGRATIONS):
                raise ConfigError(
                    f"store.url: {hide_password(url)} has the tables of an older reasoning-proxy: "
                    "start `reasoning-proxy serve` once, which brings them up to date"
                )
        except BaseException:
            connection.close()
            raise
    except psycopg.Error as error:
        raise refusal(error, url) from None
    return connection
