"""Connections to PostgreSQL: for statements that are written with `?`, and those that threads read with."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from proxy.store.driver import psycopg
from proxy.store.postgres_schema import Connection, connect

_LONGEST_PAUSE = 30.0
_BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED"
# The server would read whole tables where it has not counted their rows yet, after many were written in a short time:
# 300 keys in 300,000 turns took 370 ms instead of 6.
_BY_INDEX = "SELECT " + ", ".join(
    f"set_config('{name}', 'off', true)" for name in ("enable_seqscan", "enable_hashjoin", "enable_mergejoin", "jit")
)
# The second one: a replica that was cut off within a transaction does not hold up the others for longer.
_ALONE = (
    "SET LOCAL lock_timeout = '8s'",
    "SET LOCAL idle_in_transaction_session_timeout = '30s'",
    # To the end of the transaction: one writer of this table, of which other schemas may have another.
    "SELECT pg_advisory_xact_lock(1919247218, 'turns'::regclass::oid::integer)",
)
_NO_NUL = str.maketrans("\0", "\ufffd")

_T = TypeVar("_T")


def begin(connection: Connection, alone: bool) -> Connection:
    """Begin a transaction; `alone` waits until nobody else writes turns."""
    with pipelined(connection):
        for statement in (_BEGIN, *(_ALONE if alone else ())):
            connection.execute(statement)
    return connection


@contextmanager
def pipelined(connection: Connection) -> Iterator[psycopg.Pipeline]:
    """Statements are sent together. Raises the first error; psycopg itself would log a second one that follows."""
    failed: Exception | None = None
    try:
        with connection.pipeline() as pipeline:
            try:
                yield pipeline
            except Exception as error:
                failed = error
    except psycopg.Error as error:
        failed = failed or error
    if failed is not None:
        raise failed


@contextmanager
def looking_up(connection: Connection) -> Iterator[Marked]:
    """For a query by keys."""
    with pipelined(connection) as pipeline:
        connection.execute(f"{_BEGIN} READ ONLY")
        connection.execute(_BY_INDEX)
        yield Marked(connection, pipeline)
        connection.execute("COMMIT")


class Marked:
    """`proxy.store.texts.Connection` over psycopg. In a pipeline a statement is sent when an answer is asked for."""

    def __init__(self, connection: Connection, pipeline: psycopg.Pipeline | None = None) -> None:
        self._connection = connection
        self._pipeline = pipeline

    def execute(self, sql: str, values: Sequence[Any] = (), /) -> Answer:
        """Run one statement."""
        cursor = self._connection.cursor(binary=True)  # else each byte comes as two hex digits
        cursor.execute(sql.replace("?", "%s"), [storable(value) for value in values] or None)
        return Answer(cursor, self._pipeline)


class Answer:
    """The answer to a statement."""

    def __init__(self, cursor: psycopg.Cursor[Any], pipeline: psycopg.Pipeline | None) -> None:
        self._cursor = cursor
        self._pipeline = pipeline
        self.fetchone = cursor.fetchone
        self.fetchall = cursor.fetchall

    @property
    def rowcount(self) -> int:
        """How many rows were changed."""
        if self._pipeline is not None:
            self._pipeline.sync()
        return self._cursor.rowcount

    def __iter__(self) -> Iterator[Any]:
        return iter(self._cursor)


def storable(value: Any) -> Any:
    """What a column of texts can hold: NUL is no character for PostgreSQL."""
    return value.translate(_NO_NUL) if isinstance(value, str) and "\0" in value else value


class Readers:
    """Connections that threads read with, made when they are needed.

    Where the server does not answer, it is left alone for five times as long as the failure took, 30 s at the most:
    one that refuses is asked again at once, and one that swallows everything does not hold up each request.
    """

    def __init__(self, url: str, kept: int) -> None:
        self._url = url
        self._kept = kept
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._busy: set[Connection] = set()
        self._not_before = 0.0
        self._closed = False

    def run(self, work: Callable[[Connection], _T]) -> _T:
        """What `work` gives, which is done anew where an idle connection turns out broken. Raises psycopg.Error."""
        while True:
            started, connection = time.monotonic(), self._take()
            was_idle = connection is not None
            try:
                connection = connection or connect(self._url)
                with self._lent(connection):
                    return work(connection)
            except psycopg.Error:
                broken = connection is None or connection.closed
                if broken and not was_idle:
                    ended = time.monotonic()
                    self._not_before = ended + min(5 * (ended - started), _LONGEST_PAUSE)
                if not (broken and was_idle):
                    raise

    @contextmanager
    def one(self) -> Iterator[Connection]:
        """A connection for what is no single query."""
        with self._lent(self._take() or connect(self._url)) as connection:
            yield connection

    def _take(self) -> Connection | None:
        if time.monotonic() < self._not_before:
            raise psycopg.OperationalError("the server did not answer, and is asked again soon")
        with self._lock:
            return self._idle.pop() if self._idle else None

    @contextmanager
    def _lent(self, connection: Connection) -> Iterator[Connection]:
        with self._lock:
            self._busy.add(connection)
        try:
            yield connection
        finally:
            with self._lock:
                self._busy.discard(connection)
                good = connection.info.transaction_status is psycopg.pq.TransactionStatus.IDLE
                keep = good and not self._closed and len(self._idle) < self._kept
                if keep:
                    self._idle.append(connection)
            if not keep:
                connection.close()

    def hang_up(self) -> None:
        """Break the connections that wait for an answer, so that their threads are free."""
        with self._lock:
            for connection in self._busy:
                with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as line:
                    line.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close those that are idle now, and the others when their work is done."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()
