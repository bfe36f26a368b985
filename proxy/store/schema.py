"""The tables of a SQLite store, as numbered migrations. Never change one that was released: add the next."""

from __future__ import annotations

import errno
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from proxy.errors import ConfigError
from proxy.store.files import make_private
from proxy.store.tables import TURNS
from proxy.store.texts import pack

log = logging.getLogger(__name__)

BUSY_SECONDS = 5.0
"""How long a statement waits for another process that writes to the same file."""

PAGE_BYTES = 8192
"""Of a new file. In SQLite's own 4096 a compressed thought of 2.3 KB fits once, and the rest of the page is lost."""

WORDS = {"id": "INTEGER PRIMARY KEY", "bytes": "BLOB", "number": "INTEGER", "small": "WITHOUT ROWID"}
"""For `proxy.store.tables`."""


def _move_turns(connection: sqlite3.Connection) -> None:
    """From one table with the texts in it to those of `tables.TURNS`. All turns count as used now.

    In statements of its own, because those of `proxy.store.turns` are for the tables of today.
    """
    connection.execute("ALTER TABLE turns RENAME TO first_turns")
    for statement in TURNS:
        connection.execute(statement.format_map(WORDS))
    if connection.execute("SELECT 1 FROM first_turns").fetchone():
        log.info("the stored turns move to new tables; with many of them this takes a while")
    (salt,) = connection.execute("SELECT value FROM meta WHERE name = 'salt'").fetchone()
    now = int(time.time())
    for key, reasoning, effort, created in connection.execute("SELECT * FROM first_turns ORDER BY rowid"):
        number, text = 0, pack(reasoning, salt)
        if text.size:
            sql = """INSERT INTO texts (hash, uses, size, data) VALUES (?, 1, ?, ?)
                ON CONFLICT (hash) DO UPDATE SET uses = uses + 1 RETURNING id"""
            ((number,),) = connection.execute(sql, (text.hash, text.size, text.data)).fetchall()
        sql = """INSERT INTO turns (key, thought, calls, details, nth, created, used, effort, blanks, mark, seen,
            system, made, depth, settled) VALUES (?, ?, 0, 0, 1, ?, ?, ?, '', x'', x'', x'', ?, 0, 0)"""
        connection.execute(sql, (key, number, created, now, effort, created * 1000))
    connection.execute("DROP TABLE first_turns")
    connection.execute(
        """UPDATE totals SET value = (SELECT count(*) * 300 FROM turns)
            + (SELECT coalesce(sum(length(data) + 60), 0) FROM texts)"""
    )


MIGRATIONS: tuple[tuple[str, ...] | Callable[[sqlite3.Connection], None], ...] = (
    (
        "CREATE TABLE meta (name TEXT PRIMARY KEY, value BLOB NOT NULL)",
        # Not WITHOUT ROWID, although the key is what one asks for: with texts of 5 KB that was 3 times slower to write,
        # 12 times slower to ask for 1,000 keys, and took 40 % more room, because the texts lie inside the tree.
        """CREATE TABLE turns (
            key BLOB NOT NULL UNIQUE, reasoning TEXT NOT NULL, effort TEXT,
            created INTEGER NOT NULL -- seconds since 1970
        )""",
        # The latest speed of each model, so that a start need not search the ledger.
        """CREATE TABLE speeds (
            backend TEXT NOT NULL, upstream_model TEXT NOT NULL, decode_tokens_per_second REAL NOT NULL,
            PRIMARY KEY (backend, upstream_model)
        )""",
        """CREATE TABLE requests (
            v INTEGER, ts TEXT, request_id TEXT, client TEXT, end_user TEXT, conversation TEXT, kind TEXT,
            endpoint TEXT, model TEXT, upstream_model TEXT, backend TEXT, engine TEXT, family TEXT, stream INTEGER,
            effort_asked TEXT, effort_sent TEXT, effort_reason TEXT,
            max_tokens_asked INTEGER, max_tokens_sent INTEGER, thinking_budget_sent INTEGER,
            prompt_tokens INTEGER, cached_tokens INTEGER, completion_tokens INTEGER,
            reasoning_tokens INTEGER, visible_tokens INTEGER, reasoning_source TEXT, reported_reasoning_tokens INTEGER,
            turns_present INTEGER, turns_restored INTEGER, turns_missing INTEGER, turns_filled INTEGER,
            turns_dropped INTEGER, first_byte_ms INTEGER, first_reasoning_ms INTEGER, first_visible_ms INTEGER,
            duration_ms INTEGER, prefill_tokens_per_second REAL, decode_tokens_per_second REAL,
            finish_reason TEXT, outcome TEXT, status INTEGER, attempts INTEGER, cost_usd TEXT, price_source TEXT,
            decisions TEXT, flags TEXT, error TEXT
        )""",
        "CREATE INDEX requests_ts ON requests (ts)",
        "INSERT INTO meta (name, value) VALUES ('salt', randomblob(32))",
    ),
    _move_turns,
    (
        # Made anew, because SQLite takes no NOT NULL from a column.
        "ALTER TABLE speeds RENAME TO first_speeds",
        # Smoothed by `learned.PUT_SPEED`, so that a start need not search the ledger.
        """CREATE TABLE speeds (
            backend TEXT NOT NULL, upstream_model TEXT NOT NULL,
            decode_tokens_per_second REAL, prefill_tokens_per_second REAL,
            PRIMARY KEY (backend, upstream_model)
        )""",
        # Very slow ones were rounded to 0, which is no speed.
        """INSERT INTO speeds SELECT backend, upstream_model, decode_tokens_per_second, NULL FROM first_speeds
            WHERE decode_tokens_per_second > 0""",
        "DROP TABLE first_speeds",
    ),
    (
        "ALTER TABLE requests ADD COLUMN cache_write_tokens INTEGER",
        "ALTER TABLE requests ADD COLUMN cache_saved_usd TEXT",
    ),
)


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All or nothing. `connection` is in autocommit mode (`isolation_level=None`)."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        # Some errors, a full disk among them, have already rolled back.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def connect(path: Path | None) -> sqlite3.Connection:
    """A connection in autocommit mode to a file, which is made with mode 0600 in folders of 0700, or to memory.

    Raises OSError, sqlite3.Error, and ConfigError for a file that is not ours, which stays as it is.
    """
    if path is None:
        return sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    make_private(path)
    if not os.access(path, os.W_OK):  # SQLite opens it all the same, to read
        raise PermissionError(errno.EACCES, "the file is read-only", str(path))
    connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        check(connection, path)  # before the first change
        connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        _use_wal(connection)
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA secure_delete = ON")
    except BaseException:
        connection.close()
        raise
    return connection


def connect_to(path: Path, *, writes: bool = False) -> sqlite3.Connection:
    """A connection in autocommit mode to a file that is there. Raises sqlite3.Error."""
    where = f"{path.absolute().as_uri()}?mode={'rw' if writes else 'ro'}"
    if not writes and not os.access(path.parent, os.W_OK) and not path.with_name(f"{path.name}-wal").exists():
        # SQLite would make the index of its log here even to read; where there is no log, nothing needs one.
        where += "&immutable=1"
    return sqlite3.connect(where, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False, uri=True)


def _use_wal(connection: sqlite3.Connection) -> None:
    """Switch to a write-ahead log. SQLite does not wait by itself where two processes do this to a new file at once."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL").fetchone()
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def migrate(connection: sqlite3.Connection, path: Path | None) -> None:
    """Bring the tables up to date. Raises ConfigError where they are newer, sqlite3.Error where it may not write."""
    with transaction(connection):  # also where nothing is to be done: a file that is read-only is refused here
        version = check(connection, path)
        for number, step in enumerate(MIGRATIONS[version:], version + 1):
            if callable(step):
                step(connection)
            else:
                for statement in step:
                    connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {number}")


def check(connection: sqlite3.Connection, path: Path | None) -> int:
    """The number of the last migration that the file has seen. Raises ConfigError where that is not one of ours."""
    # Before the version: another process may bring both in between.
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if version > len(MIGRATIONS):
        raise ConfigError(
            f"store.url: {path} was written by a newer reasoning-proxy (schema {version}, this one knows "
            f"{len(MIGRATIONS)}). It was left as it is: upgrade, or name another file"
        )
    if tables and (version < 1 or not {"meta", "requests"} <= tables):
        raise ConfigError(
            f"store.url: {path} is the database of another program. It was left as it is: name another file"
        )
    return version


def refusal(error: sqlite3.Error | OSError, path: Path | None) -> ConfigError:
    """What to tell the user of a file that could not be opened."""
    if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError):
        return ConfigError(
            f"store.url: {path} is damaged, or no SQLite database ({error}). It was left as it is: move it away and a "
            f"new one is made, or save what can be saved with `sqlite3 {path} .recover`"
        )
    return ConfigError(
        f"store.url: {path} cannot be opened ({error}): it and its folder must be writable, and on a local disk"
    )
