"""An Entry as a row of the SQL table `requests`, as a line of JSON, and back: the same flat names everywhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any

import msgspec

from proxy.messages import Entry

COLUMNS = tuple(field.name for field in fields(Entry))
NAMES = ", ".join(COLUMNS)
INSERT = f"INSERT INTO requests ({NAMES}) VALUES ({', '.join('?' * len(COLUMNS))})"  # noqa: S608 - our own names

_LISTS = ("decisions", "flags")
_LISTS_AT = tuple(map(COLUMNS.index, _LISTS))

_MOST = 2**63

_values = attrgetter(*COLUMNS)
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Entry).decode


def to_sql(entry: Entry) -> list[Any]:
    """The values in the order of COLUMNS; lists as comma lists. A number that no column can hold is left out."""
    row: list[Any] = [None if isinstance(value, int) and abs(value) >= _MOST else value for value in _values(entry)]
    for at in _LISTS_AT:
        row[at] = ",".join(row[at])
    return row


def from_sql(row: Sequence[Any]) -> dict[str, Any]:
    """A row in the order of COLUMNS as a flat table, equal to what `to_line` writes."""
    found = dict(zip(COLUMNS, row, strict=True))
    for name in _LISTS:
        found[name] = found[name].split(",") if found[name] else []
    if found["stream"] is not None:
        found["stream"] = bool(found["stream"])
    return found


def to_line(entry: Entry) -> bytes:
    """One JSON object with its newline; missing is null."""
    return _encode(entry) + b"\n"


def from_line(line: bytes) -> Entry:
    """The Entry of a line. Unknown names are left out, missing ones are None. Raises msgspec.MsgspecError."""
    return _decode(line)
