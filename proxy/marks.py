"""Marks in a text that comes in pieces."""

from __future__ import annotations

from collections.abc import Sequence


def undecided(text: str, marks: Sequence[str], at: int = 0) -> int:
    """Where the end of `text` begins, from `at` on, that may become one of the marks."""
    sure = len(text)
    for mark in marks:
        start = text.find(mark[0], max(at, len(text) - len(mark) + 1), sure)
        while start >= 0 and not mark.startswith(text[start:]):
            start = text.find(mark[0], start + 1, sure)
        if start >= 0:
            sure = start
    return sure
