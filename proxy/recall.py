"""What the store is told of an answer, and what it knows of the messages of a request.

When in doubt nothing is recalled: a text that the user edited matches nothing, and a key that leads to several thoughts
leads nowhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from proxy.jsons import dumps, loads
from proxy.keys import Chain, plain_id
from proxy.messages import Found, Message, ToolCall, Turn
from proxy.thinking import lifted

_BETWEEN = "\n\n"
"""Between the thoughts of two turns that a front end made one."""


@dataclass(frozen=True, slots=True)
class Recalled:
    """What is known of an assistant message.

    `turn` is the turn that it is, or the last of those that a front end made one; `reasoning` its thought, or all of
    theirs in order. `calls` is the JSON of the tool calls that the front end lost, with the ids that their results
    have. `exact` says that it stands where the turn stood, with the same text.
    """

    turn: Turn
    reasoning: str
    calls: str = ""
    exact: bool = False


class Recaller:
    """Finds the turns of one request. `conversation` is the name that the client gave to it."""

    def __init__(self, chain: Chain, messages: Sequence[Message], found: Found, conversation: str | None) -> None:
        self._chain = chain
        self._messages = messages
        self._found = found
        self._conversation = conversation

    def all(self) -> dict[int, Recalled]:
        """Position → what is known of the assistant message there."""
        known: dict[int, Recalled] = {}
        previous = b""
        for at in reversed(self._chain.keys):  # a turn tells which thought went before it
            recalled = self._with_calls(at) or self._exact(at, previous) or self._by_itself(at)
            previous = b""
            if recalled is not None:
                known[at] = recalled
                previous = recalled.turn.previous
        return known

    def _exact(self, at: int, previous: bytes) -> Recalled | None:
        """The turn of this very history; of several, what tells them apart decides, and then the newest."""
        turns = self._found.exact.get(self._chain.keys[at])
        if not turns:
            return None
        turn = turns[-1] if len(turns) == 1 else max(reversed(turns), key=lambda turn: self._likeness(turn, previous))
        return Recalled(turn, turn.reasoning, exact=True)

    def _likeness(self, turn: Turn, previous: bytes) -> tuple[bool, bool, bool]:
        """What went upstream once stays; else the same conversation, else the same system messages."""
        return (
            bool(previous) and self._chain.thought(turn.reasoning) == previous,
            self._conversation is not None and turn.conversation == self._conversation,
            turn.system == self._chain.system,
        )

    def _with_calls(self, at: int) -> Recalled | None:
        """The turn of a message that lost its calls, where the results behind it are those of its calls."""
        key = self._chain.weaker[at].lost
        turn = self._found.sole.get(key) if key and not self._messages[at].calls else None
        if turn is None or not turn.calls:
            return None
        calls = loads(turn.calls.encode())
        behind = (message.call_id for message in self._messages[at + 1 : at + 1 + len(calls)])
        ids = {plain_id(name): name for name in behind if name}
        calls = [{**call, "id": ids[plain_id(call["id"])]} for call in calls if plain_id(call["id"]) in ids]
        return Recalled(turn, turn.reasoning, dumps(calls).decode(), exact=True) if len(calls) == len(ids) else None

    def _by_itself(self, at: int) -> Recalled | None:
        """What the weaker keys lead to: the message alone, or each of its calls."""
        message, weaker = self._messages[at], self._chain.weaker[at]
        whole = self._sole(weaker.whole)
        if whole is not None:
            return Recalled(whole, whole.reasoning)
        if not weaker.calls or (message.content and len(weaker.calls) == 1):
            return None
        turns = [self._sole(key) for key in weaker.calls]
        told = {turn.key: turn for turn in turns if turn is not None}  # the calls of one turn lead to it each
        if None in turns or (message.content and len(told) == 1):
            return None  # the calls of one turn under another text: somebody changed the text
        *_, last = told.values()
        return Recalled(last, _BETWEEN.join(turn.reasoning for turn in told.values() if turn.reasoning))

    def _sole(self, key: bytes | None) -> Turn | None:
        """The turn of a weaker key, unless it is known to belong to another conversation."""
        turn = self._found.sole.get(key) if key else None
        if turn is None or (self._conversation and turn.conversation and turn.conversation != self._conversation):
            return None
        return turn


@dataclass(frozen=True, slots=True)
class Answer:
    """A finished answer: its visible text, its calls, its thought, and the JSON of its `reasoning_details`."""

    text: str
    calls: tuple[ToolCall, ...]
    reasoning: str
    details: str = ""


def turns(chain: Chain, messages: Sequence[Message], known: Mapping[int, Recalled], answer: Answer) -> list[Turn]:
    """The turns to keep for an answer to `messages` as they went to the backend; the caller adds whose they are.

    The last is the answer itself. Before it stand those of one text with the assistant message that it goes on from,
    because a front end's "continue" makes them one.
    """
    text, reasoning = answer.text, answer.reasoning
    if not reasoning and (found := lifted(text)):  # the engine has no parser, and nobody split its text
        reasoning, text = found
    key, weaker = chain.answer(text, answer.calls)
    said = Turn(
        key,
        reasoning,
        calls=_calls(answer.calls),
        details=answer.details,
        blanks=_blanks(text),
        previous=chain.thought(_thought_before(messages)),
        system=chain.system,
        weaker=tuple(weaker),
    )
    before = known.get(len(messages) - 1)
    both = _BETWEEN.join(thought for thought in (before.reasoning if before else "", reasoning) if thought)
    joined = replace(said, reasoning=both, details="", blanks=None, previous=b"", weaker=())
    return [*(replace(joined, key=other) for other in chain.continued(text, answer.calls)), said]


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


def _thought_before(messages: Sequence[Message]) -> str:
    """The thought that goes upstream on the last assistant turn."""
    turns = (message for message in reversed(messages[:-1]) if message.role == "assistant")
    return next((message.reasoning or "" for message in turns), "")
