"""Events as the engine should have sent them: the thought apart from the text, no end-of-turn markers, no echo of a
filler, the role once, strict tool calls, and one finish that is true.

Per choice, for any cut of the stream. An event that this changes is marked `shaped`, and is written anew.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from proxy import calls
from proxy.cut import Cut
from proxy.events import Event, Part
from proxy.families import Family
from proxy.section import Section
from proxy.splitter import Splitter, Trailing
from proxy.thinking import TAGS, Echo


class Thinking(Section):
    """`[thinking]`: how a thought that stands in the text of an answer is told from it.

    `auto` looks for a leading thought block where the model thinks and the engine has sent no thought under a name of
    its own; `parse` always; `parse-prefilled` knows that the prompt has opened the block; `off` leaves texts alone.
    """

    tags: Literal["auto", "parse", "parse-prefilled", "off"] = "auto"


class Shaper:
    """Takes the events of one answer in order."""

    def __init__(
        self,
        settings: Thinking,
        family: Family,
        *,
        filler: str,
        new_id: calls.NewId,
        cut: Callable[[], Cut] | None = None,
        choices: int = 1,
    ) -> None:
        """`filler` is the text that stands in for unknown thoughts in this request; empty where none does. `cut` makes
        what ends the visible text of each of so many choices."""
        tags = "off" if settings.tags == "auto" and not family.thinks else settings.tags
        self._new: Callable[[], _Choice] = lambda: _Choice(tags, family, filler, new_id, cut() if cut else None)
        self._count = choices
        self.cuts = cut is not None
        """A text may be ended here."""
        self._choices: dict[int, _Choice] = {}

    @property
    def heard(self) -> bool:
        """The model echoed the filler."""
        return any(choice.echo is not None and choice.echo.heard for choice in self._choices.values())

    @property
    def over(self) -> bool:
        """All choices have their end, and one of them has it from here: what the engine still writes is not wanted."""
        choices = self._choices.values()
        if len(choices) < self._count or not any(choice.cut_off for choice in choices):
            return False
        return all(choice.finished for choice in choices)

    def again(self, *, begun: bool) -> None:
        """What follows is another answer to the same request. `begun`: it goes on in the same stream."""
        for at in self._choices:
            self._choices[at] = self._new()
            self._choices[at].begun = begun

    def apply(self, event: Event, *, whole: bool = False) -> None:
        """Change the event's parts where that is due; a `whole` answer is one event."""
        for part in event.parts:
            choice = self._choices.get(part.choice)
            if choice is None:
                choice = self._choices[part.choice] = self._new()
            elif choice.quiet and not part.calls and part.finish is None and not part.role:
                continue
            if choice.take(part, whole=whole):
                event.shaped = True

    def rest(self, *, broken: bool = False) -> list[Part]:
        """What is still held back, when the stream is over without a finish of its choices."""
        parts = []
        for at, choice in self._choices.items():
            part = Part(at)
            choice.release(part, cut=broken)
            if part.reasoning or part.text or part.calls:
                parts.append(part)
        return parts


class _Choice:
    """What one choice still waits for; `quiet` when that is nothing, and its texts pass as they are."""

    def __init__(self, tags: str, family: Family, filler: str, new_id: calls.NewId, cut: Cut | None) -> None:
        self._auto = tags == "auto"
        marks = {"answers": family.answer_tags, "calls": family.call_tags}
        opened = tags == "parse-prefilled"
        self._splitter = None if tags == "off" else Splitter(opened, family.tags or TAGS, **marks)
        self._trailing = Trailing(family.end_markers) if family.end_markers and tags != "off" else None
        self.echo = Echo(filler) if filler else None
        self._listening = self.echo is not None
        self._new_id = new_id
        self._calls = calls.Calls(new_id)
        self._cut = cut
        self.begun = self.finished = False

    @property
    def quiet(self) -> bool:
        return self._splitter is None and self._trailing is None and not self._listening and self._cut is None

    @property
    def cut_off(self) -> bool:
        """The visible text was ended here, and not by the engine."""
        return self._cut is not None and bool(self._cut.ended)

    def take(self, part: Part, *, whole: bool) -> bool:
        """Let of a part what can leave now; true where that changes it."""
        came = (part.role, part.reasoning, part.text, part.calls, part.finish)
        if self.cut_off:
            part.role, part.reasoning, part.text, part.calls, part.details, part.finish = False, "", "", [], [], None
            return True
        part.role, self.begun = not self.begun, True
        part.reasoning, part.text = self._texts(part.reasoning, part.text, last=whole or bool(part.calls))
        if self._cut is not None and self._cut.ended:
            part.calls, part.finish, self.finished = [], "tool_calls" if self._calls else self._cut.ended, True
            part.other = True
            return True
        if part.calls:
            part.calls = calls.whole(part.calls, self._new_id) if whole else self._calls.take(part.calls)
        if part.finish is not None or whole:
            self._finish(part)
        return (part.role, part.reasoning, part.text, part.calls, part.finish) != came

    def release(self, part: Part, *, cut: bool) -> None:
        """Add what was held back: nothing follows that it could belong to."""
        reasoning, text = self._texts("", "", last=True)
        part.reasoning, part.text = part.reasoning + reasoning, part.text + text
        if held := self._calls.end(cut=cut):
            part.calls = [*part.calls, *held]

    def _finish(self, part: Part) -> None:
        """One finish a choice, in OpenAI's words, and true to what was sent."""
        if self.finished:
            part.finish = None
            return
        said = part.finish or "stop"
        word = _FINISHES.get(said.lower(), said)
        self.release(part, cut=word == "length")
        if self._cut is not None and self._cut.ended:  # by what was held back till now
            word, part.other = self._cut.ended, True
        called = bool(part.calls or self._calls)
        if word in ("stop", "tool_calls") or (word == "function_call" and called):
            word = "tool_calls" if called else "stop"
        part.finish, self.finished = word, True

    def _texts(self, reasoning: str, text: str, *, last: bool) -> tuple[str, str]:
        """What can leave of thought and text; all, where what follows is the `last` or a call."""
        if self._splitter is not None:
            reasoning, text = self._split(self._splitter, reasoning, text, last=last)
        if self.echo is not None and self._listening:
            reasoning = self.echo.feed(reasoning)
            if text.strip() or last:
                reasoning += self.echo.end()
                self._listening = False
        if self._trailing is not None:
            text = self._trailing.feed(text)
            if last:
                text += self._trailing.end()
        if self._cut is not None:
            text = self._cut.feed(text)
            if last:
                text += self._cut.end()
        return reasoning, text

    def _split(self, splitter: Splitter, reasoning: str, text: str, *, last: bool) -> tuple[str, str]:
        if reasoning and self._auto:
            self._splitter = None
            return reasoning, splitter.end()[1] + text
        thought, text = splitter.feed(text)
        reasoning += thought
        if last:
            thought, said = splitter.end()
            reasoning, text = reasoning + thought, text + said
        if last or splitter.told:
            self._splitter = None
        return reasoning, text


_FINISHES = {
    "eos": "stop",
    "eos_token": "stop",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "stop_token": "stop",
    "max_tokens": "length",
    "model_length": "length",
    "tool_use": "tool_calls",
    "tool_call": "tool_calls",
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
}
"""Finish reasons as engines write them → OpenAI's word; all others go on as they are."""
