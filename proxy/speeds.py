"""How fast a model reads and writes, learned from the rows of the ledger."""

from __future__ import annotations

import math
from typing import NamedTuple

from proxy.messages import Entry, count_of

SMOOTHING = 0.3
"""How much of a new figure goes into the known one."""
LEAST_DECODED = 4
"""Tokens of an answer; fewer are too few to judge by."""
LEAST_PREFILLED = 32
"""Tokens of a prompt that were evaluated and not cached; fewer are too few to judge by."""


class Speed(NamedTuple):
    """Tokens per second, smoothed over requests; None where nothing was measured."""

    decode: float | None = None
    prefill: float | None = None


def measured(entry: Entry) -> Speed:
    """What of a row counts."""
    decoded, prompt, cached = map(_tokens, (entry.completion_tokens, entry.prompt_tokens, entry.cached_tokens))
    return Speed(
        _counting(entry.decode_tokens_per_second, decoded >= LEAST_DECODED),
        _counting(entry.prefill_tokens_per_second, prompt - cached >= LEAST_PREFILLED),
    )


def smoothed(known: Speed | None, seen: Speed) -> Speed:
    """What is known after `seen`. The first figure is taken as it is."""
    known = known or Speed()
    return Speed(_mixed(known.decode, seen.decode), _mixed(known.prefill, seen.prefill))


def _tokens(count: int | None) -> int:
    return count_of(count) or 0


def _counting(figure: float | None, enough: bool) -> float | None:
    return figure if enough and isinstance(figure, int | float) and 0 < figure < math.inf else None


def _mixed(known: float | None, seen: float | None) -> float | None:
    return seen if known is None else known if seen is None else known + SMOOTHING * (seen - known)
