"""What the rows of the ledger teach: speeds, kept in a table of their own, and thoughts, read from the last rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from proxy.messages import Entry
from proxy.speeds import SMOOTHING, measured
from proxy.thoughts import Thought, thought_of

SpeedRow = tuple[str, str, float | None, float | None]


def _mixed(column: str) -> str:
    """`proxy.speeds.smoothed` in SQL: the sum is NULL where either figure is."""
    known, seen = f"speeds.{column}", f"excluded.{column}"
    return f"{column} = coalesce({known} + {SMOOTHING} * ({seen} - {known}), {seen}, {known})"


# One statement that reads and writes, so that processes that share the table make one record.
PUT_SPEED = f"""INSERT INTO speeds (backend, upstream_model, decode_tokens_per_second, prefill_tokens_per_second)
    VALUES (?, ?, ?, ?) ON CONFLICT (backend, upstream_model) DO UPDATE
    SET {_mixed("decode_tokens_per_second")}, {_mixed("prefill_tokens_per_second")}"""  # noqa: S608 - our own names

SPEEDS = "SELECT backend, upstream_model, decode_tokens_per_second, prefill_tokens_per_second FROM speeds"


def speed_rows(entries: Sequence[Entry]) -> list[SpeedRow]:
    """The values of PUT_SPEED for each of `entries` that tells a speed."""
    return [
        (entry.backend, entry.upstream_model, *speed)
        for entry in entries
        if entry.backend and entry.upstream_model and any(speed := measured(entry))
    ]


_TOLD = ("kind", "backend", "family", "effort_sent", "thinking_budget_sent", "reasoning_tokens", "outcome", "flags")


def thoughts(number: str) -> str:
    """What `thoughts_of` reads of the last ? rows, oldest first; `number` rises with each row.

    The limit stands alone, so that rows before them are never read, whether or not a last one has a thought.
    """
    return f"SELECT {', '.join(_TOLD)} FROM requests ORDER BY {number} DESC LIMIT ?"  # noqa: S608 - our own names


def thoughts_of(rows: Iterable[Sequence[Any]]) -> list[Thought]:
    """The thoughts in rows of that query, the latest first; told the oldest first."""
    entries = (Entry(**dict(zip(_TOLD, row, strict=True)) | {"flags": row[-1].split(",")}) for row in rows)
    found = [told for entry in entries if (told := thought_of(entry))]
    return found[::-1]
