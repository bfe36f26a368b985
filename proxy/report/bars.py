"""Stacked bars of thought and visible tokens over time, as figures for an inline SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

WIDTH, HEIGHT = 960, 220
_MOST = 400
"""Bars that can be told apart; of more only the latest are drawn."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One span of time: its place and the heights of its two parts in the picture, and its figures."""

    name: str
    x: float
    width: float
    reasoning: int
    visible: int
    reasoning_height: float
    visible_height: float


@dataclass(frozen=True, slots=True)
class Bars:
    """The picture: `top` is what the highest bar stands for, in tokens."""

    bars: tuple[Bar, ...]
    top: int
    width: int = WIDTH
    height: int = HEIGHT

    @classmethod
    def of(cls, rows: Sequence[dict[str, Any]], key: str) -> Self:
        """From rows of a report by `key`."""
        rows = rows[-_MOST:]
        top = max(((row["reasoning_tokens"] or 0) + (row["visible_tokens"] or 0) for row in rows), default=0)
        step = WIDTH / max(len(rows), 1)
        width = min(step * 0.8, 48.0)
        bars = []
        for number, row in enumerate(rows):
            reasoning, visible = row["reasoning_tokens"] or 0, row["visible_tokens"] or 0
            scale = HEIGHT / top if top else 0.0
            bars.append(
                Bar(
                    str(row[key] or "-"),
                    round(number * step + (step - width) / 2, 2),
                    round(width, 2),
                    reasoning,
                    visible,
                    round(reasoning * scale, 2),
                    round(visible * scale, 2),
                )
            )
        return cls(tuple(bars), top)
