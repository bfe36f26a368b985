"""The texts of turns: each is kept once, found by a salted hash, compressed where that pays."""

from __future__ import annotations

import functools
import hashlib
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

NONE = 0
"""The number of the empty text, which has no row."""

ROW_BYTES = 60
"""What a row of `texts` takes beside its data."""

_SHORT = 512
"""A text below so many bytes is not compressed: it costs more to unpack than it takes."""
_PAYS = 0.9
_WARM_BYTES = 8_000
"""Texts of fewer bytes as stored stay unpacked for a while: a conversation asks for the same ones each turn."""


class Cursor(Protocol):
    """The answer to a statement."""

    @property
    def rowcount(self) -> int:
        """How many rows were changed."""

    def fetchone(self) -> Any:
        """The next row, or None."""

    def fetchall(self) -> list[Any]:
        """All rows that are left."""

    def __iter__(self) -> Iterator[Any]: ...


class Connection(Protocol):
    """What the statements of turns need of an engine, which are written with `?` for a value."""

    def execute(self, sql: str, values: Sequence[Any] = ..., /) -> Cursor:
        """Run one statement."""


@dataclass(frozen=True, slots=True)
class Packed:
    """A text as it is stored; `size` is that of the text, in bytes."""

    hash: bytes
    size: int
    data: bytes


def pack(text: str, salt: bytes) -> Packed:
    """Raises UnicodeEncodeError for half a surrogate pair."""
    data = text.encode()
    found = hashlib.blake2b(data, digest_size=16, key=salt).digest()
    if len(data) >= _SHORT:
        packed = zlib.compress(data)
        if len(packed) < _PAYS * len(data):
            return Packed(found, len(data), packed)
    return Packed(found, len(data), data)


def unpack(data: bytes, size: int) -> str:
    """Raises zlib.error or UnicodeDecodeError where the data is damaged."""
    if len(data) == size:
        return data.decode()
    return _unpack_warm(data) if len(data) < _WARM_BYTES else zlib.decompress(data).decode()


@functools.lru_cache(maxsize=2_000)
def _unpack_warm(data: bytes) -> str:
    return zlib.decompress(data).decode()


def hold(connection: Connection, text: Packed) -> tuple[int, int]:
    """The number of a text that one more field uses, and how many bytes the store grew by."""
    if not text.size:
        return NONE, 0
    number, uses = connection.execute(
        "INSERT INTO texts (hash, uses, size, data) VALUES (?, 1, ?, ?)"
        " ON CONFLICT (hash) DO UPDATE SET uses = texts.uses + 1 RETURNING id, uses",
        (text.hash, text.size, text.data),
    ).fetchone()
    return number, len(text.data) + ROW_BYTES if uses == 1 else 0


def release(connection: Connection, number: int) -> int:
    """One field less uses the text. The last one takes it along; so many bytes were freed."""
    if number == NONE:
        return 0
    gone = connection.execute(
        "DELETE FROM texts WHERE id = ? AND uses = 1 RETURNING length(data)", (number,)
    ).fetchone()
    if gone is not None:
        return int(gone[0]) + ROW_BYTES
    connection.execute("UPDATE texts SET uses = uses - 1 WHERE id = ?", (number,))
    return 0
