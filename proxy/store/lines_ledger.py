"""The ledger in a file of JSON lines, which is read in parts, each time anew."""

from __future__ import annotations

import gzip
import logging
import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import IO, Annotated, Any

import msgspec

from proxy.messages import Entry
from proxy.store.ledger import Ledger, Row, Sum, Told, Where
from proxy.store.rows import COLUMNS
from proxy.store.sqlite_ledger import counts_sql, exactly, sums_sql, with_exact_sums

log = logging.getLogger(__name__)

_BATCH = 20_000
_LISTS = ("decisions", "flags")
_NUMBER = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)] | float
_HINTS: dict[str, Any] = {
    name: list[str] if name in _LISTS else bool if "bool" in hint else str if "str" in hint else _NUMBER
    for name, hint in Entry.__annotations__.items()
}
"""The types of a line's fields, as far as reading needs them."""


class Lines(Ledger):
    """A file of JSON lines, also a packed one: read in parts, each time anew."""

    def __init__(self, path: Path, told: Told | None = None) -> None:
        self._path = path
        self._told = told
        path.open("rb").close()

    def sums(self, keys: Sequence[str], wanted: Sequence[Sum], where: Where) -> Iterator[Row]:
        condition, values = where.sql()
        sql = sums_sql("requests", keys, wanted, condition)
        for rows in self._parts(sql, values):
            yield from exactly(rows, wanted)

    def counts(self, keys: Sequence[str], where: Where) -> Iterator[Row]:
        condition, values = where.sql()
        for rows in self._parts(counts_sql("requests", keys, condition), values):
            yield from rows

    def _parts(self, sql: str, values: Sequence[Any]) -> Iterator[list[Row]]:
        """Each part of the file goes into a table in memory of no more columns than the query has."""
        names = ["ts", *(name for name in COLUMNS if name != "ts" and re.search(rf"\b{name}\b", sql))]
        with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
            with_exact_sums(connection)
            connection.execute(f"CREATE TABLE requests ({', '.join(names)})")
            insert = f"INSERT INTO requests VALUES ({', '.join('?' * len(names))})"  # noqa: S608 - only marks
            rows = self._rows(names)
            while batch := list(islice(rows, _BATCH)):
                connection.execute("BEGIN")
                connection.execute("DELETE FROM requests")
                connection.executemany(insert, batch)
                connection.execute("COMMIT")
                yield connection.execute(sql.format(rowids="1 = 1"), values).fetchall()

    def _rows(self, names: Sequence[str]) -> Iterator[Row]:
        """The rows of the file. A last line that is still being written is left out, and so is a damaged one, with a
        word in the log."""
        decode = msgspec.json.Decoder(msgspec.defstruct("Line", [_field(name) for name in names])).decode
        values = attrgetter(*names) if len(names) > 1 else lambda line: (line.ts,)
        lists = [at for at, name in enumerate(names) if name in _LISTS]
        damaged, size = 0, max(1, self._path.stat().st_size)
        with self._path.open("rb") as file, self._unpacked(file) as lines:
            for number, line in enumerate(lines):
                if self._told is not None and number % _BATCH == 0:
                    self._told(file.tell(), size)
                try:
                    row = values(decode(line))
                except msgspec.MsgspecError:
                    damaged += line.endswith(b"\n") and bool(line.strip())
                    continue
                yield _joined(row, lists) if lists else row
        if damaged:
            log.warning("%s: %d lines are no ledger rows and are not counted", self._path, damaged)

    def _unpacked(self, file: IO[bytes]) -> AbstractContextManager[IO[bytes]]:
        packed = self._path.suffix == ".gz"
        return gzip.GzipFile(fileobj=file) if packed else nullcontext(file)  # type: ignore[return-value]


def _joined(row: Row, lists: Sequence[int]) -> Row:
    return tuple(",".join(value or ()) if at in lists else value for at, value in enumerate(row))


def _field(name: str) -> tuple[str, Any, Any]:
    """Of a line as it is read; a number that no column can hold is no row of ours."""
    return name, _HINTS[name] | None, None
