"""Events as the engine should have sent them: the thought apart from the text, and no echo of a filler.

Per choice, for any cut of the stream. An event that this changes is marked `shaped`, and is written anew.
"""

from __future__ import annotations

from typing import Literal

from proxy.messages import Event, Part
from proxy.section import Section
from proxy.thinking import Echo, Splitter


class Thinking(Section):
    """`[thinking]`: how a thought that stands in the text of an answer is told from it.

    `auto` looks for a leading thought block where the model thinks and the engine has sent no thought under a name of
    its own; `parse` always; `parse-prefilled` knows that the prompt has opened the block; `off` leaves texts alone.
    """

    tags: Literal["auto", "parse", "parse-prefilled", "off"] = "auto"


class Shaper:
    """Takes the events of one answer in order."""

    def __init__(self, settings: Thinking, *, thinks: bool, filler: str) -> None:
        """`filler` is the text that stands in for unknown thoughts in this request; empty where none does."""
        self._tags = "off" if settings.tags == "auto" and not thinks else settings.tags
        self._filler = filler
        self._choices: dict[int, _Choice] = {}

    @property
    def heard(self) -> bool:
        """The model echoed the filler."""
        return any(choice.echo is not None and choice.echo.heard for choice in self._choices.values())

    def apply(self, event: Event, *, last: bool = False) -> None:
        """Change the event's parts where that is due; `last` says that nothing of any choice follows."""
        if self._tags == "off" and not self._filler:
            return
        for part in event.parts:
            choice = self._choices.get(part.choice)
            if choice is None:
                choice = self._choices[part.choice] = _Choice(self._tags, self._filler)
            if choice.quiet:
                continue
            reasoning, text = choice.take(part, last=last or part.finish is not None)
            if (reasoning, text) != (part.reasoning, part.text):
                part.reasoning, part.text = reasoning, text
                event.shaped = True

    def rest(self) -> list[Part]:
        """What is still held back, when the stream is over without a finish of its choices."""
        parts = []
        for at, choice in self._choices.items():
            reasoning, text = choice.take(Part(at), last=True)
            if reasoning or text:
                parts.append(Part(at, reasoning, text))
        return parts


class _Choice:
    """What one choice still waits for; `quiet` when that is nothing, and its events pass as they are."""

    def __init__(self, tags: str, filler: str) -> None:
        self._auto = tags == "auto"
        self._splitter = None if tags == "off" else Splitter(opened=tags == "parse-prefilled")
        self.echo = Echo(filler) if filler else None
        self._listening = self.echo is not None
        self.quiet = False

    def take(self, part: Part, *, last: bool) -> tuple[str, str]:
        """(reasoning, text) that can leave now."""
        reasoning, text = part.reasoning, part.text
        last = last or bool(part.calls)
        if self._splitter is not None:
            if reasoning and self._auto:
                text, self._splitter = self._splitter.end()[1] + text, None
            else:
                thought, text = self._splitter.feed(text)
                reasoning += thought
        if self._splitter is not None and last:
            thought, said = self._splitter.end()
            reasoning, text, self._splitter = reasoning + thought, text + said, None
        if self.echo is not None and self._listening:
            reasoning = self.echo.feed(reasoning)
            if text.strip() or last:
                reasoning += self.echo.end()
                self._listening = False
        if self._splitter is not None and self._splitter.told:
            self._splitter = None
        self.quiet = self._splitter is None and not self._listening
        return reasoning, text
