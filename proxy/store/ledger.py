"""A ledger for reading: sums and counts over its rows, wherever they are kept.

What it gives is additive: rows of one group may come several times (a file of lines is read in parts), and whoever asks
adds them up. Sums of money are exact.
"""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal, Inexact, InvalidOperation
from pathlib import Path
from typing import Any, TypeAlias

from proxy.errors import ConfigError, NotFound
from proxy.places import is_postgres, sqlite_path
from proxy.store.schema import refusal

Row: TypeAlias = tuple[Any, ...]
Told: TypeAlias = Callable[[int, int], None]
"""Called with the bytes that are read and those there are."""

LATER = {"cache_write_tokens": "bigint", "cache_saved_usd": "text"}
"""Columns that ledgers of earlier versions lack; reading adds nothing to them."""
EXACT = Context(prec=1300, traps=[Inexact, InvalidOperation])
"""Enough digits for every text that an exact sum takes; Decimal rounds to 28 otherwise."""


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
    from proxy.store.lines_ledger import Lines  # noqa: PLC0415 - they are made of what stands here
    from proxy.store.sqlite_ledger import SqliteLedger  # noqa: PLC0415

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


def grouped(keys: Sequence[str]) -> str:
    """The end of a query that begins with them; without any all rows are one group."""
    return f" GROUP BY {', '.join(str(number) for number in range(1, len(keys) + 1))}" if keys else ""


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
    return EXACT.add(one, other) if isinstance(one, Decimal) else one + other
