"""A ledger for reading: a SQLite connection with the table `requests`, wherever the rows are kept."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec

from proxy.errors import ConfigError, NotFound
from proxy.messages import Entry
from proxy.places import is_postgres, sqlite_path
from proxy.store.rows import INSERT, from_line, to_sql
from proxy.store.schema import check, connect, connect_to, migrate, refusal, transaction

Keep = Callable[[Entry], bool]

log = logging.getLogger(__name__)


def open_ledger(url: str, keep: Keep, since: str | None = None, until: str | None = None) -> sqlite3.Connection:
    """The ledger at a store's URL, at `jsonl:///file` (as with `sqlite:///`), or at the path of either file.

    A path that ends with `.jsonl`, `.ndjson` or `.json` holds JSON lines, any other is a store's.
    Of JSON lines and of PostgreSQL the rows that `keep` wants are loaded into memory; a file of SQLite is read in
    place, also while a proxy writes. Raises NotFound where there is no ledger yet, ConfigError for a URL or a file that
    is none, and for a server that cannot be used.

    `since` and `until` are RFC 3339 in UTC: rows outside of them, which `keep` must not want, a server need not send.
    """
    if is_postgres(url):
        from proxy.store.postgres_schema import read_ledger  # noqa: PLC0415 - psycopg may not be installed

        return load(read_ledger(url, since, until), keep)
    path = _path(url)
    if not path.is_file():
        raise NotFound(
            f"there is no ledger yet at {path}. `reasoning-proxy serve` makes it where `store.url` or "
            f"`store.ledger_jsonl` names this file; each request then adds a row"
        )
    try:
        return load(_lines(path), keep) if _is_jsonl(url, path) else _connect(path)
    except (sqlite3.Error, OSError) as error:
        raise refusal(error, path) from error


def load(entries: Iterable[Entry], keep: Keep) -> sqlite3.Connection:
    """A connection to a ledger in memory of the rows that `keep` wants. Whoever holds it closes it."""
    connection = connect(None)
    try:
        migrate(connection, None)
        with transaction(connection):
            connection.executemany(INSERT, (to_sql(entry) for entry in entries if keep(entry)))
    except BaseException:
        connection.close()
        raise
    return connection


def _path(url: str) -> Path:
    if url == "memory":
        raise ConfigError("a ledger in memory ends with its process: set store.url or store.ledger_jsonl to keep one")
    if url.startswith("jsonl:///"):
        return Path(url.removeprefix("jsonl:///"))
    stored = sqlite_path(url) if url == "sqlite" or "://" in url else None
    return stored or Path(url).expanduser()


def _is_jsonl(url: str, path: Path) -> bool:
    # By its name and not by a look into it: see `files.make_private` for what opening a store's file does.
    return url.startswith("jsonl:") or ("://" not in url and path.suffix in (".jsonl", ".ndjson", ".json"))


def _connect(path: Path) -> sqlite3.Connection:
    connection = connect_to(path)
    try:
        if not check(connection, path):
            raise NotFound(f"there is no ledger yet in {path}: `reasoning-proxy serve` makes it when it starts")
    except BaseException:
        connection.close()
        raise
    return connection


def _lines(path: Path) -> Iterator[Entry]:
    """The rows of a file. A last line that is still being written is left out; a damaged one is, and is logged."""
    damaged = 0
    with path.open("rb") as file:
        for line in file:
            try:
                if line.strip():
                    yield from_line(line)
            except msgspec.MsgspecError:
                damaged += line.endswith(b"\n")
    if damaged:
        log.warning("%s: %d lines are no ledger rows and are not counted", path, damaged)
