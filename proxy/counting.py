"""What one answer came to in tokens: as reported, else counted by whoever knows the model's tokens best."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from proxy import tokens
from proxy.events import Usage
from proxy.fold import Fold

Count = Callable[[str], int | None]
"""Tokens of a text; None where that cannot be told now."""


@dataclass(frozen=True, slots=True)
class Counted:
    """Tokens of an answer, of its thought, and how that is known: `reported`, `tokenized` or `estimated`."""

    completion: int
    reasoning: int
    source: str

    @property
    def visible(self) -> int:
        """All that is no thought: texts, calls, and the mark-up around them and around the thought."""
        return self.completion - self.reasoning


def is_reported(fold: Fold, usage: Usage) -> bool:
    """Whether the engine's own count of the thought can be believed.

    A zero beside a thought that can be seen means that it does not count (vLLM with some parsers); a thought as long as
    the whole beside a text that can be seen counts something else.
    """
    completion, reasoning = usage.completion, usage.reasoning
    if completion is None or reasoning is None or reasoning > completion:
        return False
    if reasoning == 0:
        return not fold.thought
    return reasoning < completion or not fold.said


def counted(fold: Fold, usage: Usage, count: Count | None = None) -> Counted | None:
    """The tokens of one answer; None of one that never began. Takes time in proportion to the texts.

    `count` tells the model's own tokens; without it they are estimated. What an answer that broke off has cost is
    estimated in any case: nobody tells what was generated and never sent.
    """
    if is_reported(fold, usage) and usage.completion is not None and usage.reasoning is not None:
        return Counted(usage.completion, usage.reasoning, "reported")
    thought, said = fold.reasoning_text, fold.visible_text
    own = count(thought) if count is not None and thought else None
    if usage.completion is None:
        if not (thought or said):
            return None
        rest = count(said) if count is not None and said else None
        reasoning = tokens.count(thought) if own is None else own
        return Counted(reasoning + (tokens.count(said) if rest is None else rest), reasoning, "estimated")
    if own is None:
        return Counted(usage.completion, tokens.split(usage.completion, thought, said)[0], "estimated")
    # Mark-up is no thought, as engines see it that tell both; where nothing else was said, all of it is.
    most = usage.completion - 1 if fold.said and usage.completion else usage.completion
    return Counted(usage.completion, min(own, most) if fold.said else usage.completion, "tokenized")


def total(parts: Sequence[Counted]) -> Counted:
    """Of several tries, known no better than the worst of them."""
    worst = max(parts, key=lambda part: ("reported", "tokenized", "estimated").index(part.source))
    return Counted(sum(part.completion for part in parts), sum(part.reasoning for part in parts), worst.source)
