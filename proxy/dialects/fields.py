"""Changing a request body that is a table of raw fields: one key here, one there, the rest as it came."""

from __future__ import annotations

from collections.abc import Mapping

from proxy import jsons
from proxy.jsons import dumps, splice
from proxy.messages import Json

Fields = dict[str, bytes]


def merge(fields: Fields, table: str, values: Mapping[str, Json]) -> None:
    """Set keys of a field that is an object, leaving its others as they came; one that is none gives way."""
    raw = fields.get(table, b"null").strip()
    inner = jsons.table(raw) if raw.startswith(b"{") else {}
    fields[table] = splice({**inner, **{key: dumps(value) for key, value in values.items()}})


def forget(fields: Fields, where: str) -> None:
    """Remove the field at `name` or `name.key`, and an object that is empty then."""
    name, _, key = where.partition(".")
    if key and name in fields:
        inner = {part: raw for part, raw in jsons.table(fields[name]).items() if part != key}
        if inner:
            fields[name] = splice(inner)
            return
    fields.pop(name, None)


def put_in_place(fields: Fields, old: str, new: str, raw: bytes) -> None:
    """Set `new` where `old` stands, so that the order of the others stays as it was."""
    if old == new or old not in fields:
        fields[new] = raw
        return
    items = [
        (new, raw) if name == old else (name, value) for name, value in fields.items() if name != new or name == old
    ]
    fields.clear()
    fields.update(items)
