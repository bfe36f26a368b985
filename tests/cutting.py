"""Texts that are cut into pieces, for tests of what reads them piece by piece."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

CUTS = st.lists(st.integers(0, 10_000), max_size=10)
"""Places to cut at, whatever the length."""
WORDS = (" ", "\n", "\n\n", "\r\n", "\u00a0", "x", "word", "<", "/", "b", "```", "5 < 6", "ж")


def texts(marks: Sequence[str], most: int = 12) -> st.SearchStrategy[str]:
    """Texts of whole marks, beginnings of marks, blanks and words."""
    part = st.one_of(
        st.sampled_from(marks),
        st.builds(lambda mark, size: mark[: size % len(mark) + 1], st.sampled_from(marks), st.integers(0, 60)),
        st.sampled_from(WORDS),
    )
    return st.lists(part, max_size=most).map("".join)


def cut(text: str, places: Sequence[int]) -> list[str]:
    """The text in pieces."""
    ends = sorted({place % (len(text) + 1) for place in places})
    return [text[start:end] for start, end in zip([0, *ends], [*ends, len(text)], strict=True)]


def shared(several: Sequence[str]) -> str:
    """The beginning that all have in common."""
    first, last = min(several), max(several)
    return first[: next((at for at, one in enumerate(first) if last[at : at + 1] != one), len(first))]
