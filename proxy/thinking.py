"""Thought mark-up in text: lifting it out of what a front end sends back, and hearing a filler echoed.

Between the tags that a model writes all is thought, to the byte, line feeds directly inside the tags included: under a
template with bare tags (Kimi-K2) the next prompt would else not begin with this one. vLLM's parsers keep them too, and
llama.cpp under such a template (build 11549). Of the templates that write `<think>\\n`, Qwen3's strips what comes;
MiniMax-M2's does not. Only a closed block with nothing but blanks is no thought, as in llama.cpp: Qwen3 writes one
where it does not think.

Between the tags that a front end writes, one line end at each side is its own: `<think>\\n` + thought + `\\n</think>`.
"""

from __future__ import annotations

import html
import re

TAGS = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),
    ("<reasoning>", "</reasoning>"),
    ("<mm:think>", "</mm:think>"),
    ("<think:opensource>", "</think:opensource>"),
    ("<seed:think>", "</seed:think>"),
    ("[THINK]", "[/THINK]"),
    ("◁think▷", "◁/think▷"),
)
"""Opener and closer of each kind of thought that models write."""

_DETAILS = ("<details", "</details>")
_SUMMARY = ("<summary>", "</summary>")
_TYPES = ('type="reasoning"', "type='reasoning'")

_BEGINNINGS = frozenset(opener[0] for opener, _ in (*TAGS, _DETAILS))
_VISIBLE = re.compile(r"\S")
_QUOTE = re.compile(r"^> ?", re.MULTILINE)
_QUOTES = re.compile(r"\A[\s>]+")
_ESCAPED = re.compile("&(?:amp|lt|gt|quot|#x27|#39);")  # what escaping writes; all other entities are the model's own
_JOINT = "\n\n"


def lifted(text: str) -> tuple[str, str] | None:
    """(thought, rest) of a text that begins with closed thought blocks, else None.

    Several thoughts are joined by a blank line; blocks with nothing but blanks add none. `rest` begins at the first
    visible character behind the last block. A block ends at its first closer, as models and parsers read it.
    """
    thoughts: list[str] = []
    start = at = visible(text, 0)
    if text[at : at + 1] not in _BEGINNINGS:  # almost always
        return None
    while (block := _block(text, at)) is not None:
        thought, end = block
        if thought and not thought.isspace():
            thoughts.append(thought)
        at = visible(text, end)
    return None if at == start else (_JOINT.join(thoughts), text[at:])


def same_thought(a: str, b: str) -> bool:
    """Whether two thoughts differ in no more than what mirroring changes: blanks, line ends, quote marks at the
    beginnings of lines, and escaped HTML."""
    return a == b or _words(a) == _words(b)


def _words(thought: str) -> list[str]:
    return [word for line in _unescaped(thought).splitlines() for word in _QUOTES.sub("", line).split()]


def visible(text: str, at: int) -> int:
    """The position of the first character from `at` on that is no blank."""
    found = _VISIBLE.search(text, at)
    return found.start() if found else len(text)


def _block(text: str, at: int) -> tuple[str, int] | None:
    """The thought of the closed block that begins at `at`, and the position behind it."""
    for opener, closer in TAGS:
        if text.startswith(opener, at):
            start = at + len(opener)
            end = text.find(closer, start)
            return None if end < 0 else (_inner(text[start:end]), end + len(closer))
    return _details_block(text, at)


def _inner(text: str) -> str:
    """A thought without the line ends that the front end put inside the tags."""
    return text.removeprefix("\r").removeprefix("\n").removesuffix("\n").removesuffix("\r")


def _details_block(text: str, at: int) -> tuple[str, int] | None:
    """Open WebUI's block: a summary, and the thought as a quote that is then escaped as a whole (older versions did not
    escape). Blanks around the quote are mark-up."""
    opener, closer = _DETAILS
    if not text.startswith(opener, at):
        return None
    behind = text.find(">", at)
    attributes = text[at + len(opener) : behind] if behind >= 0 else ""
    if not attributes[:1].isspace() or not any(attribute in _TYPES for attribute in attributes.split()):
        return None
    end = text.find(closer, behind)
    if end < 0:
        return None
    inner = text[behind + 1 : end].strip()
    if inner.startswith(_SUMMARY[0]):
        _, found, rest = inner.partition(_SUMMARY[1])
        inner = rest.strip() if found else inner
    return _QUOTE.sub("", _unescaped(inner)), end + len(closer)


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(lambda found: html.unescape(found[0]), text)


class Echo:
    """Passes a thought on without the filler that the model echoes at its start, in any pieces.

    Models repeat a filler that they were sent as a past thought. Echoes are dropped, several in a row too, with the
    blanks before, between and behind them. What begins like the filler and then differs leaves unchanged.
    """

    def __init__(self, filler: str) -> None:
        self._filler = filler.strip()
        self._over = not self._filler  # the thought's own text began
        self._blanks: list[str] = []
        self._matched = 0  # characters of the filler that are held back
        self.heard = False
        """An echo was dropped."""

    def feed(self, thought: str) -> str:
        """What can leave now."""
        at = 0
        while at < len(thought) and not self._over:
            if not self._matched:
                start = visible(thought, at)
                if not self.heard:
                    self._blanks.append(thought[at:start])
                at = start
            due = self._filler[self._matched : self._matched + len(thought) - at]
            if not thought.startswith(due, at):
                return self.end() + thought[at:]
            at += len(due)
            self._matched += len(due)
            if self._matched == len(self._filler):
                self.heard, self._matched, self._blanks = True, 0, []
        return thought[at:]

    def end(self) -> str:
        """What was held back: the thought is over, or is no echo."""
        held = "".join(self._blanks) + self._filler[: self._matched]
        self._over, self._blanks, self._matched = True, [], 0
        return held
