"""Where a visible text ends before the engine ends it: at a stop string, or after so many tokens, for any cut of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from proxy import tokens
from proxy.jsons import healed
from proxy.marks import undecided


class Cut:
    """Ends a visible text at a stop string, or after so many tokens, in any pieces: the stream's cuts change nothing.

    The stop string that is complete first counts, as where one character came after the other; of several that end at
    one place the longest. It is no part of what leaves, unless `keeps_stop`. `most_tokens` caps what is left then: that
    text is cut at a token's end where it has more of them, so that a stop string behind the cap is none.

    Tokens are those of the text as a whole, only that runs of more than `LONGEST` characters without a seam are counted
    in stretches of that length. Halves of a pair are joined, and lone ones replaced, as where texts are folded.
    """

    def __init__(self, stops: Sequence[str] = (), *, most_tokens: int | None = None, keeps_stop: bool = False) -> None:
        self._stops = [healed(stop) for stop in stops if stop]
        self._cap = None if most_tokens is None else _Cap(most_tokens)
        self._keeps_stop = keeps_stop
        self._half = ""  # of a pair
        self._held = ""  # what may become a stop string
        self._stopped = False

    @property
    def ended(self) -> Literal["", "stop", "length"]:
        """Why the text was ended; nothing leaves after that."""
        if self._cap is not None and self._cap.over:
            return "length"
        return "stop" if self._stopped else ""

    def feed(self, text: str) -> str:
        """What can leave now. Held back is what may be a stop string, or, close to the cap, a word that may be cut."""
        if self.ended or not text:
            return ""
        text = self._whole_pairs(text)
        if not self._stops:
            return self._capped(text)
        text, self._held = self._held + text, ""
        found = _first_of(self._stops, text)
        if found is None:
            sure = undecided(text, self._stops)
            text, self._held = text[:sure], text[sure:]
            return self._capped(text)
        self._stopped = True
        return self._capped(text[: found[1] if self._keeps_stop else found[0]], last=True)

    def end(self) -> str:
        """What was held back: the text is over."""
        if self.ended:
            return ""
        half, self._half = self._half, ""
        left = self.feed("\ufffd") if half else ""
        if not self.ended:
            held, self._held = self._held, ""
            left += self._capped(held, last=True)
        return left

    def _whole_pairs(self, text: str) -> str:
        """The text without half a pair at its end, which waits for the other."""
        text, self._half = self._half + text, ""
        if "\ud800" <= text[-1] <= "\udbff":
            text, self._half = text[:-1], text[-1]
        return healed(text)

    def _capped(self, text: str, *, last: bool = False) -> str:
        return text if self._cap is None else self._cap.feed(text, last=last)


def _first_of(stops: Sequence[str], text: str) -> tuple[int, int] | None:
    """(start, end) of the stop string that is complete first."""
    found: tuple[int, int] | None = None
    for stop in stops:
        start = text.find(stop, 0, found[1] if found else len(text))
        if start >= 0 and (found is None or (start + len(stop), start) < (found[1], found[0])):
            found = start, start + len(stop)
    return found


LONGEST = 120
"""Characters of one word; a longer one is counted in stretches, so that a text without an end meets its cap."""

_SEAM = re.compile(r"(?<=[^\W_])(?=[\W_])|(?<=\S)(?=[ \t])|(?<=\n)(?=\S)")
"""Places that no token spans, whatever follows: behind letters and digits, before a blank, at a line's start."""


class _Cap:
    """Lets so many tokens of a text through. A text of just so many is not cut.

    A token has one byte at the least, so nothing is counted before the text has more bytes than tokens are left, and
    then each word once.
    """

    def __init__(self, most: int) -> None:
        self._left = max(0, most)
        self._pieces: list[str] = []  # that are not counted
        self._size = 0  # of them, in bytes
        self._sent = 0  # characters of them that left
        self.over = False

    def feed(self, text: str, *, last: bool = False) -> str:
        """What can leave now; all that may, where nothing follows."""
        if self.over:
            return ""
        self._pieces.append(text)
        self._size += _size(text)
        if self._size <= self._left:
            self._sent += len(text)
            return text
        text, at = "".join(self._pieces), 0
        while self._size > self._left and (end := _word(text, at, last=last)) is not None:
            word = text[at:end]
            count = tokens.count(word) if self._left else 1
            if count > self._left:
                self.over, self._pieces = True, []
                return text[self._sent : at + len(tokens.first(word, self._left))]
            self._left -= count
            self._size -= _size(word)
            at = end
        if self._size and not self._left:
            self.over, self._pieces = True, []
            return text[self._sent : at]
        sure = at + _characters(text[at:], self._left)
        left = text[self._sent : sure]
        self._pieces, self._sent = [text[at:]], sure - at
        return left


def _word(text: str, at: int, *, last: bool) -> int | None:
    """Where the word ends that begins at `at`; None where that is still open."""
    most = at + LONGEST
    if seam := _SEAM.search(text, at + 1, most + 1):
        return seam.start()
    if len(text) > most:
        return most
    return len(text) if last and at < len(text) else None


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _characters(text: str, size: int) -> int:
    """How many characters of `text` are whole within its first `size` bytes."""
    return len(text[:size].encode()[:size].decode("utf-8", "ignore"))
