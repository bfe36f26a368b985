"""Side requests: what a front end asks on its own account, read from `sides.toml` and the user's own patterns."""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Iterator, Sequence
from importlib import resources
from typing import Annotated

from annotated_types import MinLen
from pydantic import field_validator, model_validator

from proxy.messages import ChatRequest, Message
from proxy.normalise import parts_text
from proxy.section import Section, check_pattern

OWN = "own pattern"
"""What a request is called that one of the user's own patterns recognises."""

_INSTRUCTING = ("system", "developer")
_ANSWERING = ("assistant", "tool", "function")
Text = Annotated[str, MinLen(1)]


class Side(Section):
    """A row of `sides.toml`; the keys are explained at the top of that file."""

    name: Text
    first: tuple[Text, ...] = ()
    last: tuple[Text, ...] = ()
    marks: tuple[Text, ...] = ()
    lacks: tuple[Text, ...] = ()
    streamed: bool | None = None
    lone: bool = False
    examples: bool = False
    source: Text
    date: Text

    @field_validator("first", "last")
    @classmethod
    def _patterns_compile(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in patterns:
            check_pattern(pattern)
        return patterns

    @model_validator(mode="after")
    def _says_where(self) -> Side:
        if bool(self.first) == bool(self.last):
            raise ValueError(f"{self.name!r} must have either `first` or `last`")
        return self

    def opens(self, text: str) -> bool:
        """Whether a text begins as the front end's does, has its marks, and lacks what it would lack."""
        if not any(_compiled(pattern).match(text) for pattern in self.first or self.last):
            return False
        return all(mark in text for mark in self.marks) and not any(mark in text for mark in self.lacks)


@functools.cache
def shipped() -> tuple[Side, ...]:
    """The rows of `sides.toml`, in its order."""
    rows = tomllib.loads(resources.files("proxy").joinpath("sides.toml").read_text("utf-8"))["side"]
    return tuple(Side(**row) for row in rows)


_compiled = functools.cache(re.compile)

SEARCHED = 4_000
"""Characters at each end of a text in which a user's pattern is looked for: an everyday one (`foo.*bar`) takes time
that grows with the square of the text, and all other requests wait meanwhile."""


def found(pattern: str, text: str) -> bool:
    """Whether a user's regular expression is found in the first or the last SEARCHED characters of a text."""
    ends = [text] if len(text) <= 2 * SEARCHED else [text[:SEARCHED], text[-SEARCHED:]]
    return any(_compiled(pattern).search(end) for end in ends)


def name_of(request: ChatRequest, own: Sequence[str] = ()) -> str | None:
    """Which side request this is; None for a user's own question, and for everything with tools.

    The name of a row of `sides.toml`, or `OWN` where one of the user's own regular expressions is found in the first
    message, whatever comes after it.
    """
    if request.has_tools or not request.messages:
        return None
    seen = _Seen(request)
    for row in shipped():
        if seen.shows(row):
            return row.name
    if own:
        text = parts_text(request.messages[0].content)
        if any(found(pattern, text) for pattern in own):
            return OWN
    return None


class _Seen:
    """What the rows look at in one request, read once."""

    def __init__(self, request: ChatRequest) -> None:
        messages = request.messages
        self._streamed = request.stream
        self._answered = any(message.role in _ANSWERING for message in messages)
        self._lone = sum(message.role == "user" for message in messages) == 1
        self._firsts = [parts_text(message.content).lstrip() for message in _openings(messages)]
        self._lasts = [parts_text(messages[-1].content).lstrip()] if messages[-1].role == "user" else []

    def shows(self, row: Side) -> bool:
        """Whether the request is the one of that row."""
        if row.streamed not in (None, self._streamed) or (row.lone and not self._lone):
            return False
        if row.first and self._answered and not row.examples:
            return False
        firsts = self._firsts[-1:] if row.lone else self._firsts
        return any(row.opens(text) for text in (firsts if row.first else self._lasts))


def _openings(messages: Sequence[Message]) -> Iterator[Message]:
    """The instructions that a request begins with, and the first thing that its user says."""
    if messages[0].role in _INSTRUCTING:
        yield messages[0]
    yield from [message for message in messages if message.role == "user"][:1]
