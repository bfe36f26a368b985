"""What the store is told when an answer is complete: the turns that a later history can ask for."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from proxy.jsons import dumps
from proxy.keys import BETWEEN, Chain
from proxy.messages import Message, ToolCall
from proxy.recall import Recalled, thought_of
from proxy.thinking import TAGS, lifted
from proxy.turns import MOST_MARKS, Turn

_OPENERS = tuple(opener for opener, _ in TAGS)


@dataclass(frozen=True, slots=True)
class Answer:
    """A finished answer: its visible text, its calls, its thought, and the JSON of its `reasoning_details`.

    The others are as in Turn.
    """

    text: str
    calls: tuple[ToolCall, ...]
    reasoning: str
    details: str = ""
    effort: str | None = None
    client: str | None = None
    conversation: str | None = None
    made: int = 0


class Rememberer:
    """Makes the turns of the answers to one request: `asked` are its messages as they came, `sent` as they went out."""

    def __init__(
        self, chain: Chain, asked: Sequence[Message], sent: Sequence[Message], known: Mapping[int, Recalled]
    ) -> None:
        self._chain = chain
        self._asked = asked
        self._sent = sent
        self._known = known
        self._positions = list(chain.keys)
        self._marks: dict[int, bytes] = {}

    def settled(self, conversation: str | None) -> Iterator[Turn]:
        """Turns that weaker keys led to and whose thoughts went upstream: they have a place of their own from now on.

        So they stay in this conversation when another turn makes those keys lead nowhere, and the prompt's beginning
        does not change.
        """
        for at, recalled in self._known.items():
            if not recalled.placed and recalled.reasoning == (self._sent[at].reasoning or ""):
                yield msgspec.structs.replace(
                    recalled.turn,
                    key=self._chain.keys[at],
                    reasoning=recalled.reasoning,
                    mark=self._chain.mark(recalled.reasoning),
                    blanks=recalled.blanks,
                    seen=self._seen(at),
                    system=self._chain.system,
                    conversation=conversation,
                    settled=True,
                    weaker=(),
                )

    def answered(self, answer: Answer) -> Iterator[Turn]:
        """The answer, and before it what a front end's "continue" makes of it and the text that it goes on from."""
        text, reasoning = answer.text, answer.reasoning
        blanks = _blanks(text)
        if found := lifted(text):  # as it will be read when it comes back
            if not reasoning and text.lstrip().startswith(
                _OPENERS
            ):  # the engine has no parser, and nobody split its text
                reasoning = found[0]
            text, blanks = found[1], None
        key, weaker = self._chain.answer(text, answer.calls)
        turn = Turn(
            key,
            reasoning,
            effort=answer.effort,
            calls=_calls(answer.calls),
            details=answer.details,
            blanks=blanks,
            mark=self._chain.mark(reasoning),
            seen=self._seen(len(self._asked)),
            system=self._chain.system,
            client=answer.client,
            conversation=answer.conversation,
            made=answer.made,
            depth=self._chain.depth(),
            weaker=tuple(weaker),
        )
        begun = self._known.get(len(self._asked) - 1)
        both = BETWEEN.join(thought for thought in (begun.reasoning if begun else "", reasoning) if thought)
        bare = {"details": "", "blanks": None, "seen": b"", "weaker": ()}
        joined = msgspec.structs.replace(turn, reasoning=both, mark=self._chain.mark(both), **bare)
        yield from (msgspec.structs.replace(joined, key=other) for other in self._chain.continued(text, answer.calls))
        yield turn

    def _seen(self, at: int) -> bytes:
        """Marks of the thoughts of the assistant turns before a position, whether they went upstream or not."""
        end = bisect_left(self._positions, at)
        return b"".join(map(self._mark, self._positions[max(0, end - MOST_MARKS) : end]))

    def _mark(self, at: int) -> bytes:
        if at not in self._marks:
            self._marks[at] = self._chain.mark(thought_of(self._asked[at], self._known.get(at)))
        return self._marks[at]


def _calls(calls: Sequence[ToolCall]) -> str:
    """The calls as a client would send them back; empty where one has no id that a result could name."""
    if not calls or not all(call.id for call in calls):
        return ""
    rows = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in calls
    ]
    return dumps(rows).decode()


def _blanks(text: str) -> tuple[str, str] | None:
    """Those before and behind a text; None where its line ends could not be put back."""
    if "\r" in text:
        return None
    if not text.strip():
        return "", ""
    return text[: len(text) - len(text.lstrip())], text[len(text.rstrip()) :]
