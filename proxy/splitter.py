"""An answer that comes as one text, parted into thought and said, in any pieces: the cuts change nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from proxy.marks import undecided
from proxy.thinking import TAGS, visible

_JOINT = "\n\n"


class _Closer(NamedTuple):
    """What ends a thought: its closer, or the opener of an answer, or of a call, which is then `kept` as text."""

    mark: str
    answer: bool = False
    kept: bool = False


class Splitter:
    """Parts an answer that comes as one text, in any pieces, into thought and said. The cuts change nothing.

    An opener counts only before visible text; with `opened` the prompt ended in one, and the text begins inside the
    thought, and an opener that the model writes once more is dropped. Without one the kind is unknown, and any closer
    of `tags` ends the thought; else only its own does. Blanks behind a closer are dropped; a further thought directly
    behind is joined by a blank line. An unclosed thought stays thought to the end.

    `answers` are openers of the visible text: they end a thought that lacks its closer, and are dropped at its place or
    at the head. `calls` are openers of tool calls: they end a thought too, and are visible text, because what the
    engine did not read as a call is none.
    """

    def __init__(
        self,
        opened: bool = False,
        tags: Sequence[tuple[str, str]] = TAGS,
        *,
        answers: Sequence[str] = (),
        calls: Sequence[str] = (),
    ) -> None:
        self._tags = tags
        self._answers = answers
        self._ends = [*(_Closer(mark, answer=True) for mark in answers), *(_Closer(mark, kept=True) for mark in calls)]
        self._heads = [*(opener for opener, _ in tags), *answers]
        self._longest = max(map(len, self._heads), default=0)
        self._opened = opened  # by the prompt, and nothing visible came yet
        self._closers: Sequence[_Closer] | None = None  # of the thought that the text is in
        self._head = True  # nothing but blanks came yet
        self._told = False  # visible text began: all else is text
        self._fresh = False  # nothing but blanks of this thought came yet
        self._joint = ""  # before the next piece of thought
        self._thought = False  # some thought left
        self._held: list[str] = []
        self._blank = False  # what is held is blank

    @property
    def told(self) -> bool:
        """The visible text began: all that follows is text."""
        return self._told

    def feed(self, text: str) -> tuple[str, str]:
        """(thought, said) that can leave now. Held back is what may yet be a tag, or belong to one."""
        if self._told or not text:
            return "", text
        if self._blank and text.isspace():  # joined once, not piece by piece
            self._held.append(text)
            return "", ""
        return self._advance(text, last=False)

    def end(self) -> tuple[str, str]:
        """(thought, said) that was held back: the answer is over."""
        return self._advance("", last=True)

    def _advance(self, text: str, last: bool) -> tuple[str, str]:
        text = "".join([*self._held, text])
        self._held, self._blank = [], False
        thoughts: list[str] = []
        at: int | None = 0
        while at is not None and not self._told:
            if self._closers is None:
                at = self._before(text, at, last)
            else:
                at = self._within(text, at, last, self._closers, thoughts)
        return "".join(thoughts), "" if at is None else text[at:]

    def _before(self, text: str, at: int, last: bool) -> int | None:
        """Before an opener or the visible text: where to go on, None to wait for more."""
        start = visible(text, at)
        head = text[start : start + self._longest]
        since = at if self._head else start
        if not last and any(opener != head and opener.startswith(head) for opener in self._heads):
            self._held, self._blank = [text[since:]], self._head and not head
            return None
        kinds = [tag for tag in self._tags if head.startswith(tag[0])]
        if kinds:
            opener, closer = max(kinds, key=lambda tag: len(tag[0]))
            self._open([closer])
            return start + len(opener)
        if answer := next((mark for mark in self._answers if head.startswith(mark)), ""):
            self._told = True
            return start + len(answer)
        if self._opened:
            self._open([closer for _, closer in self._tags])
        else:
            self._told = True
        return since

    def _open(self, closers: Sequence[str]) -> None:
        self._closers = [*map(_Closer, closers), *self._ends]
        self._fresh = True
        self._opened = self._head = False
        self._joint = _JOINT if self._thought else ""

    def _within(self, text: str, at: int, last: bool, closers: Sequence[_Closer], thoughts: list[str]) -> int | None:
        """Inside a thought: its text goes to `thoughts`; where to go on behind it, None to wait for more."""
        # The closer that is complete first counts, so that no cut can make another one count; none is sought beyond it.
        closer, end, size = None, len(text), 1
        for each in closers:
            start = text.find(each.mark, at, end)
            if start >= 0 and (start + len(each.mark), -len(each.mark)) < (end, size):
                closer, end, size = each, start + len(each.mark), -len(each.mark)
        stop = end + size if closer else len(text) if last else undecided(text, [each.mark for each in closers], at)
        blank = self._fresh and visible(text, at) >= stop
        if closer:
            self._closers, self._told = None, closer.answer or closer.kept
            if not blank:
                self._think(text[at:stop], thoughts)
            return stop if closer.kept else end
        if blank and not last:
            self._held, self._blank = [text[at:]], stop == len(text)
        else:
            self._think(text[at:stop], thoughts)
            self._held, self._fresh = [text[stop:]], False
        return None

    def _think(self, piece: str, thoughts: list[str]) -> None:
        if piece:
            thoughts += self._joint, piece
            self._joint, self._thought = "", True


class Trailing:
    """Passes a text on without the end-of-turn markers at its end, in any pieces.

    Held back is what may be the end: markers, with nothing but blanks between and behind them. What is no end leaves.
    """

    def __init__(self, markers: Sequence[str]) -> None:
        self._markers = sorted(markers, key=len, reverse=True)
        self._start = re.compile(f"[{re.escape(''.join({marker[0] for marker in markers}))}]")
        self._read: list[str] = []  # markers and the blanks behind them
        self._begun = ""  # what may become the next marker

    def feed(self, text: str) -> str:
        """What can leave now."""
        if not self._read and not self._begun and not self._start.search(text):
            return text
        left: list[str] = []
        text, at, self._begun = self._begun + text, 0, ""
        while at < len(text):
            head = text[at : at + len(self._markers[0])]
            if any(marker != head and marker.startswith(head) for marker in self._markers):
                self._begun = head
                break
            if marker := next((marker for marker in self._markers if head.startswith(marker)), ""):
                self._read.append(marker)
                at += len(marker)
            elif self._read and head[0].isspace():
                self._read.append(head[0])
                at += 1
            else:
                found = self._start.search(text, at + 1)
                end = found.start() if found else len(text)
                left += (*self._read, text[at:end])
                self._read, at = [], end
        return "".join(left)

    def end(self) -> str:
        """What was held back and is no marker: the text is over. One that was cut behind whole ones is one."""
        begun, read = self._begun, self._read
        self._begun, self._read = "", []
        return "" if read or begun in self._markers else begun
