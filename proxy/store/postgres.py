"""The store that many replicas of the proxy share: a PostgreSQL database.

The tables lie where the connection's `search_path` says, by default in the schema `public` of the database. A schema of
their own: `postgresql://…/database?options=-csearch_path%3Dname`, made beforehand with `CREATE SCHEMA name`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from operator import itemgetter
from typing import Any, TypeAlias

from proxy.messages import Entry
from proxy.speeds import Speed
from proxy.store.connections import Marked, Readers, begin, looking_up, pipelined, storable
from proxy.store.disk import Disk
from proxy.store.driver import errors, psycopg
from proxy.store.found import Stored, merge
from proxy.store.learned import PUT_SPEED, SPEEDS, speed_rows, thoughts, thoughts_of
from proxy.store.ledger import Ledger
from proxy.store.limits import NO_LIMITS, Limits
from proxy.store.lines import Lines
from proxy.store.postgres_ledger import PostgresLedger
from proxy.store.postgres_schema import Connection, connect, migrate, reason_of, refusal
from proxy.store.queued import QueuedStore
from proxy.store.rows import INSERT, NAMES, from_sql, to_sql
from proxy.store.turns import Turns
from proxy.thoughts import Thought
from proxy.turns import Found, Turn

PART = 50
"""Turns that are written in one transaction."""

READERS = 4
FIND_SECONDS = 5.0
"""After so long a request goes on without what the server would have said."""

_PUT_ENTRY = INSERT.replace(f"({NAMES})", f"(replica, {NAMES})").replace("(?", "(?, ?").replace("?", "%s")
_PUT_SPEED = PUT_SPEED.replace("?", "%s")
_THOUGHTS = thoughts("id").replace("?", "%s")

_Row: TypeAlias = Sequence[Any]
_Put: TypeAlias = Callable[[Connection, psycopg.Pipeline, str, Sequence[_Row]], None]

log = logging.getLogger(__name__)


class _Database(Disk):
    """One connection that writes, and some that read."""

    errors = (psycopg.Error,)

    def __init__(self, url: str, limits: Limits, now: Callable[[], float]) -> None:
        super().__init__(limits, now)
        self._url = url
        self._write_lock = threading.Lock()
        self._writing: Connection | None = connect(url)
        try:
            self.salt = migrate(self._writing, url)
            (self._before,) = self._writing.execute("SELECT coalesce(max(id), 0) FROM requests").fetchone() or (0,)
        except BaseException:
            self._writing.close()
            raise
        self._readers = Readers(url, READERS)
        self._replica = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self._doubt: tuple[str, Sequence[Entry]] | None = None
        """A transaction whose COMMIT got no answer, and what it was to write."""
        self._written: list[Entry] = []
        """Rows that turned out to be in the table although that was not known when they were handed back."""

    @contextmanager
    def writing(self) -> Iterator[Turns]:
        with self._transaction(alone=True) as (connection, pipeline):
            yield Turns(Marked(connection, pipeline))

    @contextmanager
    def _transaction(self, alone: bool) -> Iterator[tuple[Connection, psycopg.Pipeline]]:
        """All or nothing. A connection that may be bad afterwards is not used again."""
        with self._write_lock:
            connection = self._begun(alone)
            try:
                with pipelined(connection) as pipeline:
                    yield connection, pipeline
                    connection.execute("COMMIT")
            except BaseException:
                self._drop()
                raise

    def _begun(self, alone: bool) -> Connection:
        """The connection, in a transaction; made anew where it broke since it was used last."""
        if self._writing is not None:
            try:
                return begin(self._writing, alone)
            except psycopg.Error:
                was_broken = self._writing.broken
                self._drop()
                if not was_broken:
                    raise
        self._writing = connect(self._url)
        try:
            return begin(self._writing, alone)
        except psycopg.Error:
            self._drop()
            raise

    def _drop(self) -> None:
        if self._writing is not None:
            self._writing.close()
            self._writing = None

    @contextmanager
    def reading(self) -> Iterator[Turns]:
        with self._readers.one() as connection, looking_up(connection) as marked:
            yield Turns(marked)

    def find(self, keys: Sequence[bytes], weaker: Sequence[bytes]) -> Stored:
        def work(connection: Connection) -> Stored:
            with looking_up(connection) as marked:
                return Turns(marked).find(keys, weaker, self._now(), self.most_values)

        return self._readers.run(work)

    def write_turns(self, turns: Sequence[Turn]) -> None:
        """Write all, in their order. What was written before an error may be written again."""
        # In parts, so that the other replicas get their turn.
        for start in range(0, len(turns), PART):
            super().write_turns(turns[start : start + PART])

    def hang_up(self) -> None:
        """End the reads that wait for an answer."""
        self._readers.hang_up()

    def hopeless(self, error: Exception) -> bool:
        if not isinstance(error, psycopg.Error):
            return not isinstance(error, OSError)
        values = (psycopg.DataError, psycopg.IntegrityError, errors.DatatypeMismatch)
        ours = isinstance(error, psycopg.ProgrammingError) and error.sqlstate is None
        # 54: too large, as a name of more than 2,700 bytes for an index.
        return isinstance(error, values) or ours or (error.sqlstate or "").startswith("54")

    def write_entries(self, entries: Sequence[Entry]) -> None:
        self._settle()
        written = set(map(id, self._written))
        left = [entry for entry in entries if id(entry) not in written]
        try:
            self._write(left, _put_all)
        except Exception as error:
            if not self.hopeless(error):
                raise
            self._write(left, self._put_each)
        self._written = []

    def _settle(self) -> None:
        """Learn how the transaction ended whose end was lost with the connection."""
        if self._doubt is None:
            return
        number, entries = self._doubt
        status = self._readers.run(lambda connection: _status(connection, number))
        if status == "in progress":
            raise psycopg.OperationalError("the server has not ended the last transaction yet")
        self._doubt = None
        if status == "committed":
            self._written += entries

    def _write(self, entries: Sequence[Entry], put: _Put) -> None:
        rows = [[self._replica, *to_sql(entry)] for entry in entries]
        with self._transaction(alone=False) as (connection, pipeline):
            (number,) = connection.execute("SELECT pg_current_xact_id()::text").fetchone() or ("",)
            put(connection, pipeline, _PUT_ENTRY, rows)
            # Models always in the same order, so that two replicas do not wait for one another.
            put(connection, pipeline, _PUT_SPEED, sorted(speed_rows(entries), key=itemgetter(0, 1)))
            self._doubt = number, entries
        self._doubt = None

    def _put_each(self, connection: Connection, pipeline: psycopg.Pipeline, sql: str, rows: Sequence[_Row]) -> None:
        """One that no table can hold does not cost the others."""
        for row in rows:
            connection.execute("SAVEPOINT one")
            try:
                _put_all(connection, pipeline, sql, [row])
                pipeline.sync()
            except Exception as error:
                if not self.hopeless(error):
                    raise
                log.error("a row is lost, because no table can hold it: %s", reason_of(error))
                connection.execute("ROLLBACK TO SAVEPOINT one")

    def entries(self, limit: int | None, own: bool) -> list[dict[str, Any]]:
        # Ours came after all that were there when we began: without that, every row would be searched.
        mine = "WHERE id > %s AND replica = %s " if own else ""
        sql = f"SELECT {NAMES} FROM requests {mine}ORDER BY id DESC LIMIT %s"  # noqa: S608 - our own names
        values = [*((self._before, self._replica) if own else ()), limit]
        rows = self._readers.run(lambda connection: connection.execute(sql, values, binary=True).fetchall())
        return [from_sql(row) for row in reversed(rows)]

    def speeds(self) -> dict[tuple[str, str], Speed]:
        rows = self._readers.run(lambda connection: connection.execute(SPEEDS).fetchall())
        return {(backend, model): Speed(*speed) for backend, model, *speed in rows}

    def thoughts(self, limit: int) -> list[Thought]:
        rows = self._readers.run(lambda connection: connection.execute(_THOUGHTS, [limit], binary=True).fetchall())
        return thoughts_of(rows)

    def ledger(self) -> Ledger:
        return PostgresLedger(self._url)

    def close(self) -> None:
        with self._write_lock:
            self._drop()
        self._readers.close()


def _put_all(connection: Connection, _: psycopg.Pipeline, sql: str, rows: Sequence[_Row]) -> None:
    with connection.cursor() as cursor:
        cursor.executemany(sql, [[storable(value) for value in row] for row in rows])


def _status(connection: Connection, number: str) -> str | None:
    try:
        (status,) = connection.execute("SELECT pg_xact_status(%s::xid8)", [number]).fetchone() or (None,)
    except psycopg.DataError:
        return None  # another server took over, which has not come so far
    return str(status)


class PostgresStore(QueuedStore):
    """`proxy.store.Store` in a PostgreSQL database that several processes share.

    Raises ConfigError where the server cannot be reached or used, or belongs to a newer version. Later it may go away:
    what comes meanwhile waits in memory, and is written when it is back.
    """

    shared = True
    readers = READERS

    def __init__(
        self,
        url: str,
        lines: Lines | None = None,
        limits: Limits = NO_LIMITS,
        now: Callable[[], float] = time.time,
    ) -> None:
        try:
            self._database = _Database(url, limits, now)
        except psycopg.Error as error:
            raise refusal(error, url) from None
        self._probe: Future[None] | None = None
        super().__init__(self._database, lines)

    async def find(self, keys: Sequence[bytes], weaker: Sequence[bytes] = ()) -> Found:
        """What is known of the keys: in memory, and in the database by one query outside the event loop."""
        try:
            return await asyncio.wait_for(super().find(keys, weaker), FIND_SECONDS)
        except TimeoutError:
            if self._readable:
                log.error("the store does not answer within %g s: turns are not found", FIND_SECONDS)
            self._readable = False
            self._database.hang_up()
            return merge(self._writer.find(keys, weaker), Stored())

    def healthy(self) -> bool:
        """Whether the writer lives and the last write and the last read were good.

        Where a read failed, the next one may be long in coming, because nobody sends requests to a proxy that is not
        ready. So it is tried here, in the background.
        """
        if not (self._readable or self._closed) and (self._probe is None or self._probe.done()):
            self._probe = self._reads.submit(self._try_reading)
        return super().healthy()

    def _try_reading(self) -> None:
        with suppress(psycopg.Error):
            self._database.find([b""], [])
            self._readable = True

    def close(self) -> None:
        """Flush, end the threads, close the connections. Closing again does nothing."""
        waiting = threading.Timer(FIND_SECONDS, self._database.hang_up)
        waiting.daemon = True
        waiting.start()
        try:
            super().close()
        finally:
            waiting.cancel()
