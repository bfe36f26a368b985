"""Finished assistant turns, as the store keeps them and as it answers for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec


class Turn(msgspec.Struct, frozen=True):
    """A finished assistant turn as the store keeps it.

    `key` is the salted hash of the visible history up to and with this turn, `weaker` are hashes that tell less of it
    (see `history.Chain`). `reasoning` is the exact text that the model wrote, empty where it did not think; `details`
    the JSON of its `reasoning_details`, `calls` that of its tool calls, each empty where there were none. `blanks` are
    those before and after the visible text, None where they cannot be put back. `effort` is what the default chose for
    the conversation: a word, empty where it chose to send none, None where the client chose.

    `mark` stands for `reasoning` where turns are compared. Where one key has several turns, `seen` (the marks of the
    assistant turns before it, the nearest last, MOST_MARKS at the most), `conversation` and `system` (a hash of the
    system messages) tell them apart. `client` is the configured name, `made` when the answer ended, in milliseconds
    since 1970, `depth` the number of visible messages before it. A `settled` turn stands where a weaker key led to it,
    and not where it was generated.
    """

    key: bytes
    reasoning: str
    effort: str | None = None
    calls: str = ""
    details: str = ""
    blanks: tuple[str, str] | None = ("", "")
    mark: bytes = b""
    seen: bytes = b""
    system: bytes = b""
    client: str | None = None
    conversation: str | None = None
    made: int = 0
    depth: int = 0
    settled: bool = False
    weaker: tuple[bytes, ...] = ()

    def saw(self, back: int) -> bytes:
        """The mark of the thought so many assistant turns before it; empty where that is not known."""
        start = len(self.seen) - MARK_BYTES * back
        return self.seen[start : start + MARK_BYTES] if start >= 0 else b""


@dataclass(frozen=True, slots=True)
class Found:
    """What a store knows of the keys that it was asked for.

    `exact`: key → its turns, the oldest first, different in `reasoning` or `seen`, and no more than MOST_TURNS.
    `sole`: weaker key → the turn it leads to, for those that lead to one thought alone.
    """

    exact: Mapping[bytes, Sequence[Turn]] = field(default_factory=dict)
    sole: Mapping[bytes, Turn] = field(default_factory=dict)


MARK_BYTES = 4
MOST_MARKS = 16

MOST_TURNS = 32
"""Different turns that one key may have; the oldest goes when there are more."""
