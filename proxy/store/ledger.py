"""A ledger for reading: a connection with the table `requests`, whether the rows are in a store or in a JSONL file."""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec

from proxy.errors import ConfigError, NotFound
from proxy.messages import Entry
from proxy.places import sqlite_path
from proxy.store.rows import INSERT, from_line, to_sql
from proxy.store.schema import BUSY_SECONDS, check, connect, migrate, refusal, transaction

Keep = Callable[[Entry], bool]

log = logging.getLogger(__name__)


def open_ledger(url: str, keep: Keep) -> sqlite3.Connection:
    """The ledger at a store's URL, at `jsonl:///file` (as with `sqlite:///`), or at the path of either file.

    A path that ends with `.jsonl`, `.ndjson` or `.json` holds JSON lines, any other is a store's.
    Of JSON lines the rows that `keep` wants are loaded into memory; a store is read in place, also while a proxy
    writes. Raises NotFound where there is no ledger yet, ConfigError for a URL or a file that is none.
    """
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
    where = f"{path.absolute().as_uri()}?mode=ro"
    if not os.access(path.parent, os.W_OK) and not path.with_name(f"{path.name}-wal").exists():
        # SQLite would make the index of its log here even to read; where there is no log, nothing needs one.
        where += "&immutable=1"
    connection = sqlite3.connect(where, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False, uri=True)
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
