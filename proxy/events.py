"""What an answer says, event by event, in the words of no engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal

from proxy.messages import Json

_MOST_COUNTED = 2**53


def count_of(value: Json) -> int | None:
    """A number of tokens as an engine reports it; None for what can be none."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST_COUNTED else None


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one answer, as reported. None is unknown; it is never written as 0.

    `cached` and `written` are the parts of the prompt that came from the engine's cache and that went into it.
    `repaired`: the completion was reported without the thought in it, and is put right. `cost` is what the service
    says that it asks, in USD.
    """

    prompt: int | None = None
    cached: int | None = None
    completion: int | None = None
    reasoning: int | None = None
    repaired: bool = False
    written: int | None = None
    cost: Decimal | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """How much of a prompt the engine has read, in tokens: `processed` of `total`, `cached` of them without work; the
    rest took so many `seconds`."""

    total: int
    cached: int
    processed: int
    seconds: float

    @property
    def percent(self) -> int:
        """How much that is of the whole."""
        return 100 * self.processed // self.total if self.total else 100

    @property
    def seconds_left(self) -> float | None:
        """How long the rest takes at the same pace; None where there is none yet."""
        done = self.processed - self.cached
        return (self.total - self.processed) * self.seconds / done if done > 0 and self.seconds > 0 else None


@dataclass(slots=True)
class Part:
    """What one event adds to one choice. `calls` and `details` (of `reasoning_details`) are fragments as they came.

    `role`: it says that the assistant speaks; `other`: it shows something that is neither text nor call (a refusal, a
    picture), or its text was ended before it began.
    """

    choice: int = 0
    role: bool = False
    other: bool = False
    reasoning: str = ""
    text: str = ""
    calls: list[dict[str, Json]] = field(default_factory=list)
    details: list[dict[str, Json]] = field(default_factory=list)
    finish: str | None = None


@dataclass(slots=True)
class Event:
    """One event of an answer, or a whole answer.

    `raw` is the JSON text as it came. `odd` is true where a strict client needs it written anew; else the bytes may
    leave as they are, if the client wants the thought under the name that it has here (`names`). Where it is `shaped`,
    `parts` and not `raw` tell the thought and the text.
    """

    raw: bytes
    parts: list[Part] = field(default_factory=list)
    names: frozenset[str] = frozenset()
    odd: bool = False
    shaped: bool = False
    empty: bool = False
    usage: Usage | None = None
    timings: Mapping[str, Json] | None = None
    error: Mapping[str, Json] | None = None
    progress: Progress | None = None
