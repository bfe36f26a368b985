"""Reading and writing JSON: msgspec, and the standard library for what msgspec refuses.

Half a surrogate pair (an emoji that somebody cut in two) stands in real requests and in real deltas, where the next one
brings the other half. msgspec refuses the whole text then, as it does for NaN, 1e999 and raw line ends in texts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

_TABLE = msgspec.json.Decoder(dict[str, msgspec.Raw])

JsonError = (msgspec.DecodeError, ValueError, RecursionError)
"""What `loads` raises for a text that is no JSON."""


def loads(data: bytes) -> Any:
    """The value of a JSON text, with lone surrogates and numbers beyond bounds where it has them. Raises JsonError."""
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError:
        return json.loads(data.decode("utf-8", "replace"), strict=False)


def dumps(value: Any) -> bytes:
    """A value as compact JSON in UTF-8."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":")).encode()


def table(data: bytes) -> dict[str, bytes]:
    """The fields of a JSON object, each left as it is written. Raises JsonError, also where it is no object."""
    return {name: bytes(raw) for name, raw in _TABLE.decode(data).items()}


def splice(fields: Mapping[str, bytes]) -> bytes:
    """A JSON object of fields that are written already."""
    parts: list[bytes] = []
    for name, raw in fields.items():  # joined at once: a copy of long messages for each field would cost more than all
        parts += (b",", dumps(name), b":", raw)
    parts[:1] = [b"{"]
    parts.append(b"}")
    return b"".join(parts)


def objects(value: Any) -> list[dict[str, Any]]:
    """The objects in a decoded list; none of what is no list."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def has_escaped_surrogates(data: bytes) -> bool:
    """Whether an escape of a surrogate stands somewhere, paired or not."""
    return b"\\ud" in data or b"\\uD" in data


def healed(text: str) -> str:
    """Halves of a pair that follow one another joined, and lone ones replaced by U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
