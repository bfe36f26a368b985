"""Events → the finished answer: its texts and calls for each choice, usage, finish and outcome."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from proxy.calls import arguments_text
from proxy.events import Event, Usage, count_of
from proxy.jsons import healed
from proxy.messages import Json, ToolCall


@dataclass(slots=True)
class Call:
    """One tool call as it grows."""

    index: int
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Choice:
    """One choice as it grows."""

    reasoning: list[str] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    details: list[dict[str, Json]] = field(default_factory=list)
    finish: str | None = None
    other: bool = False

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The calls in the order in which they began."""
        return tuple(ToolCall(call.name, "".join(call.arguments), call.id or None) for call in self.calls)

    @property
    def shows(self) -> bool:
        """There is something that the user sees: text, or a call."""
        return bool(self.calls) or any(piece.strip() for piece in self.text)


class Fold:
    """Takes the events of one answer, streamed or whole, and knows what was said so far."""

    def __init__(self) -> None:
        self.choices: dict[int, Choice] = {}
        self.usage = Usage()
        self.timings: Mapping[str, Json] = {}
        self.error: Mapping[str, Json] | None = None
        self.names: frozenset[str] = frozenset()
        """Under which thoughts came."""

    def add(self, event: Event) -> None:
        for part in event.parts:
            choice = self.choices.get(part.choice)
            if choice is None:
                choice = self.choices[part.choice] = Choice()
            if part.reasoning:
                choice.reasoning.append(part.reasoning)
            if part.text:
                choice.text.append(part.text)
            for fragment in part.calls:
                _add_call(choice, fragment)
            for entry in part.details:
                _add_details(choice.details, entry)
            if part.finish:
                choice.finish = part.finish
            if part.other:
                choice.other = True
        if not event.names <= self.names:
            self.names |= event.names
        if event.usage is not None:
            self.usage = event.usage
        if event.timings is not None:
            self.timings = event.timings
        if event.error is not None:
            self.error = event.error

    def answers(self, *, growing: bool = False) -> Iterator[tuple[Choice, str, str]]:
        """Each choice with its thought and its text; pairs that were cut between two deltas are whole again. Of a
        `growing` answer half a pair stays: the other one may follow."""
        mend = str if growing else healed
        for choice in self.choices.values():
            yield choice, mend("".join(choice.reasoning)), mend("".join(choice.text))

    @property
    def thought(self) -> bool:
        """Whether it thought, as far as can be seen."""
        return any(choice.reasoning for choice in self.choices.values())

    @property
    def said(self) -> bool:
        """Whether there is something that the user sees."""
        return any(choice.shows for choice in self.choices.values())

    @property
    def reasoning_text(self) -> str:
        """All thoughts of all choices, for counting."""
        return "".join(reasoning for _, reasoning, _ in self.answers())

    @property
    def visible_text(self) -> str:
        """All texts and calls of all choices, for counting."""
        calls = (call.name + call.arguments for choice in self.choices.values() for call in choice.tool_calls)
        return "".join([*(text for _, _, text in self.answers()), *calls])

    @property
    def finish(self) -> str | None:
        """The first choice's finish reason, `tool_calls` or `stop` where the engine gave none."""
        first = self.choices.get(0)
        return finish_of(first) if first else None

    @property
    def outcome(self) -> str:
        """`ok`, `length` or `answer_lost` of an answer that came to its end."""
        shown = [choice for choice in self.choices.values() if choice.shows]
        if not shown and self.thought:
            kept = any(choice.other or choice.finish == "content_filter" for choice in self.choices.values())
            return "ok" if kept else "answer_lost"
        return "length" if any(choice.finish == "length" for choice in shown) else "ok"

    @property
    def empty(self) -> bool:
        """An answer without text, call or thought."""
        return not any(choice.shows or choice.reasoning for choice in self.choices.values())

    def reported(self) -> Usage:
        """Usage as reported; llama-server's timings tell the totals where no usage came."""
        usage, timings = self.usage, self.timings
        if usage.completion is None:
            usage = replace(usage, completion=count_of(timings.get("predicted_n")))
        cached, evaluated = count_of(timings.get("cache_n")), count_of(timings.get("prompt_n"))
        if usage.prompt is None and cached is not None and evaluated is not None:
            usage = replace(usage, prompt=cached + evaluated, cached=cached)
        return usage


def total(usages: Sequence[Usage]) -> Usage:
    """All together; a figure that one of them lacks is unknown."""
    if len(usages) == 1:
        return usages[0]
    sums = {}
    for name in ("prompt", "cached", "completion", "reasoning", "written", "cost"):
        values = [getattr(usage, name) for usage in usages]
        sums[name] = None if None in values else sum(values)
    return Usage(**sums, repaired=any(usage.repaired for usage in usages))


def finish_of(choice: Choice) -> str:
    """What a client is told where the engine's `[DONE]` came without a finish reason."""
    return choice.finish or ("tool_calls" if choice.calls else "stop")


_GROWING = ("text", "summary", "data")
"""Fields of `reasoning_details` entries that a stream sends in pieces."""


def _add_details(details: list[dict[str, Json]], entry: Mapping[str, Json]) -> None:
    """A stream's pieces of one entry share its type and index and follow one another; a signature comes last."""
    last = details[-1] if details else {}
    index = entry.get("index")
    if index is None or (last.get("type"), last.get("index")) != (entry.get("type"), index):
        details.append(dict(entry))
        return
    for name, value in entry.items():
        grows = name in _GROWING and isinstance(last.get(name), str) and isinstance(value, str)
        if value is not None:
            last[name] = last[name] + value if grows else value


def _add_call(choice: Choice, fragment: Mapping[str, Json]) -> None:
    """A fragment as `calls.py` leaves it: with the index of its call, or, without one, a whole call."""
    index, last = fragment.get("index"), choice.calls[-1] if choice.calls else None
    call = last if last is not None and index is not None and last.index == index else None
    if call is None and last is not None and index is not None and index < last.index:
        call = next((call for call in choice.calls if call.index == index), None)
    if call is None:
        call = Call(len(choice.calls) if index is None else index)
        choice.calls.append(call)
    function = fragment.get("function")
    function = function if isinstance(function, dict) else {}
    call.id = call.id or str(fragment.get("id") or "")
    call.name = call.name or str(function.get("name") or "")
    if arguments := arguments_text(function.get("arguments")):
        call.arguments.append(arguments)
