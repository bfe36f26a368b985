"""How fast a model reads and writes, learned from the rows of the ledger."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from proxy.events import count_of
from proxy.messages import Entry, Json

SMOOTHING = 0.3
"""How much of a new figure goes into the known one."""
LEAST_DECODED = 4
"""Tokens of an answer; fewer are too few to judge by."""
LEAST_PREFILLED = 32
"""Tokens of a prompt that were evaluated and not cached; fewer are too few to judge by."""


_LEAST_SPAN = 0.1
"""Seconds; a whole answer that arrives in fewer came out of a buffer, and its pace says nothing."""
_MOST = 1e9


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


@dataclass(slots=True)
class Span:
    """When the tokens of an answer came, in seconds of any clock: the first moment, the last, and how many pieces."""

    first: float = 0.0
    last: float = 0.0
    count: int = 0

    def note(self, now: float) -> None:
        """A piece came."""
        if not self.count:
            self.first = now
        self.last = now
        self.count += 1

    def pace(self, tokens: int) -> float | None:
        """Tokens a second; None where everything came at once."""
        seconds = self.last - self.first
        return round((tokens - 1) / seconds, 3) if seconds >= _LEAST_SPAN and tokens > 1 else None


def decode(timings: Mapping[str, Json], span: Span, tokens: int) -> float | None:
    """Tokens a second of an answer of so many: the engine's own figure, else the pace from the first to the last."""
    return positive(timings.get("predicted_per_second")) or span.pace(tokens)


def positive(value: object) -> float | None:
    """An engine's figure; None for what can be none."""
    return round(float(value), 3) if isinstance(value, int | float) and 0 < value < _MOST else None
