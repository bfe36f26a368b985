"""The effective settings as TOML, with secrets hidden."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

from pydantic import BaseModel, SecretStr

from proxy.config.problems import dotted, quoted
from proxy.config.tables import Settings
from proxy.places import hide_password

HIDDEN = "***"


def show(settings: Settings) -> str:
    """The settings as a TOML document; what is not set and has no default is left out."""
    read = f"file: {settings.file}" if settings.file else "no file was read"
    blocks = ["# " + "".join(char if char.isprintable() else "?" for char in read)]
    for name, table in settings:
        for head, part in _tables(name, table):
            lines = [f"{_key(key)} = {_value(value)}" for key, value in _items(part) if value is not None]
            blocks.append("\n".join([head, *lines]))
    return "\n\n".join(blocks) + "\n"


def _tables(name: str, value: Any) -> Iterator[tuple[str, BaseModel | Mapping[str, Any]]]:
    """The head and the content of each table under a name: one, or each of its own name, or a list."""
    if isinstance(value, dict):
        yield from ((f"[{dotted((name, key))}]", table) for key, table in value.items())
    elif isinstance(value, tuple):
        # Of a rule only what it says: what it leaves open has no value that a file could give.
        yield from ((f"[[{name}]]", table.model_dump(exclude_defaults=True)) for table in value)
    else:
        yield f"[{name}]", value


def _items(table: BaseModel | Mapping[str, Any]) -> list[tuple[str, Any]]:
    return list(table.items() if isinstance(table, Mapping) else table)


def _key(key: str) -> str:
    return dotted((key,))


def _value(value: Any) -> str:
    if isinstance(value, SecretStr):
        return quoted(HIDDEN)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return quoted(hide_password(value))
    if isinstance(value, (Mapping, BaseModel)):
        pairs = [f"{_key(key)} = {_value(part)}" for key, part in _items(value) if part is not None]
        return "{ " + ", ".join(pairs) + " }" if pairs else "{}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    return repr(float(value)) if isinstance(value, Decimal) else repr(value)
