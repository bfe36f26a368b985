"""A turn as rows of SQL, and rows as what is known of keys."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import msgspec

from proxy.store.found import Stored
from proxy.store.texts import NONE, Packed, pack, unpack
from proxy.turns import Turn

_KEPT = (
    *("id", "key", "thought", "calls", "details", "nth", "used"),
    *("effort", "blanks", "mark", "seen", "system", "client", "conversation", "made", "depth", "settled"),
)
_WIDTH = len(_KEPT)

COLUMNS = ", ".join(f"t.{name}" for name in _KEPT)
"""Of the table `turns t`, for a row of a turn."""

WITH_TEXTS = f"""{COLUMNS}, r.data, r.size, c.data, c.size, d.data, d.size FROM turns t
    LEFT JOIN texts r ON r.id = t.thought LEFT JOIN texts c ON c.id = t.calls LEFT JOIN texts d ON d.id = t.details"""
"""The same, with the texts behind it."""

EXACT, WEAKER, TEXT = 0, 1, 2
"""Kinds of rows for `found`: a turn by its key, a turn by a weaker key, a text of one of them."""

OF_A_TEXT = f"{TEXT}, data, id, NULL, NULL, NULL, NULL, size" + ", NULL" * (_WIDTH - 6)
"""Of the table `texts`, for a row as wide as those of turns."""

_nth = itemgetter(5, 0)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PackedTurn:
    """A turn with its texts as they are stored."""

    turn: Turn
    thought: Packed
    calls: Packed
    details: Packed
    blanks: str | None

    @classmethod
    def of(cls, turn: Turn, salt: bytes) -> PackedTurn:
        """Raises UnicodeEncodeError where one of the texts has half a surrogate pair."""
        "".join((turn.effort or "", turn.client or "", turn.conversation or "")).encode()
        thought, calls, details = (pack(text, salt) for text in (turn.reasoning, turn.calls, turn.details))
        return cls(turn, thought, calls, details, _blanks_to_sql(turn.blanks))


def found(rows: list[Any], stale_before: float) -> Stored:
    """Rows of all kinds as turns. One whose text is damaged is left out, and leads nowhere."""
    texts = {row[2]: _text(row[2], row[1], row[7]) for row in rows if row[0] == TEXT} | {NONE: ""}
    hits = sorted((row for row in rows if row[0] != TEXT), key=lambda row: (row[7] or 0, row[2] or 0))
    turns = {number: _turn(row[2:], texts) for number, row in {row[2]: row for row in hits}.items()}
    known = Stored()
    for row in hits:
        kind, asked, number, used = row[0], row[1], row[2], row[8]
        turn = turns[number]
        if used < stale_before:
            known.stale.note(number if number is not None else asked)
        if kind == WEAKER and turn is None:
            known.unclear.add(asked)
        elif kind == WEAKER and turn is not None:
            known.sole[asked] = turn
        elif turn is not None:
            known.exact.setdefault(asked, []).append(turn)
    return known


def exact(rows: list[Any], stale_before: float) -> Stored:
    """Rows WITH_TEXTS as turns. One whose text is damaged is left out."""
    known = Stored()
    rows.sort(key=_nth)
    for row in rows:
        if row[6] < stale_before:
            known.stale.note(row[0])
        turn = with_texts(row)
        if turn is not None:
            known.exact.setdefault(turn.key, []).append(turn)
    return known


def with_texts(row: Sequence[Any]) -> Turn | None:
    """The turn of a row WITH_TEXTS; None where a text is damaged."""
    thought, calls, details = row[2:5]
    said = _text(thought, row[_WIDTH], row[_WIDTH + 1]) if thought else ""
    made = _text(calls, row[_WIDTH + 2], row[_WIDTH + 3]) if calls else ""
    more = _text(details, row[_WIDTH + 4], row[_WIDTH + 5]) if details else ""
    return None if said is None or made is None or more is None else _turn_of(row, said, made, more)


def _turn(row: Sequence[Any], texts: Mapping[int, str | None]) -> Turn | None:
    said, calls, details = (texts.get(number) for number in row[2:5])
    return None if said is None or calls is None or details is None else _turn_of(row, said, calls, details)


def _turn_of(row: Sequence[Any], reasoning: str, calls: str, details: str) -> Turn:
    effort, blanks, mark, seen, system, client, conversation, made, depth, settled = row[7:_WIDTH]
    said = (row[1], reasoning, effort, calls, details, _blanks_from_sql(blanks))
    return Turn(*said, mark, seen, system, client, conversation, made, depth, bool(settled))


def _text(number: int, data: bytes | None, size: int) -> str | None:
    try:
        return None if data is None else unpack(data, size)
    except (zlib.error, UnicodeDecodeError) as error:
        log.error("the text %d in the store is damaged (%s): its turns are not found", number, error)
        return None


def _blanks_to_sql(blanks: tuple[str, str] | None) -> str | None:
    if blanks is None:
        return ""
    return msgspec.json.encode(blanks).decode() if any(blanks) else None


def _blanks_from_sql(blanks: str | None) -> tuple[str, str] | None:
    if blanks is None:
        return "", ""
    return msgspec.json.decode(blanks, type=tuple[str, str]) if blanks else None
