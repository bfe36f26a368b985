"""What the store knows of the messages of a request.

When in doubt nothing is recalled: a text that the user edited matches nothing, a key that leads to several thoughts
leads nowhere, and one turn is not recalled for two messages.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from proxy.jsons import dumps, loads
from proxy.keys import BETWEEN, Chain, plain_id
from proxy.messages import Found, Message, Turn
from proxy.thinking import same_thought


class Recalled(NamedTuple):
    """What is known of an assistant message.

    `turn` is the turn that it is, or the last of those that a front end made one; `reasoning` its thought, or all of
    theirs in order. `blanks` are those around the text, as in Turn. `calls` is the JSON of the tool calls that the
    front end lost, with the ids that their results have. `placed` says that its own key led to it.
    """

    turn: Turn
    reasoning: str
    blanks: tuple[str, str] | None = None
    calls: str = ""
    placed: bool = False


def thought_of(message: Message, known: Recalled | None) -> str:
    """The thought of an assistant turn, as far as anybody knows it."""
    return known.reasoning if known is not None else message.reasoning or message.mirrored or ""


class Recaller:
    """Finds the turns of one request. `conversation` is the name that the client gave to it."""

    def __init__(self, chain: Chain, messages: Sequence[Message], found: Found, conversation: str | None) -> None:
        self._chain = chain
        self._messages = messages
        self._found = found
        self._conversation = conversation
        self._positions = list(chain.keys)
        self._no_thought = chain.thought("")

    def all(self) -> dict[int, Recalled]:
        """Position → what is known of the assistant message there."""
        known: dict[int, Recalled] = {}
        previous = b""
        for at in reversed(self._positions):  # a turn tells which thought went before it
            recalled = self._placed(at, previous)
            if recalled is not None:
                known[at] = recalled
            previous = recalled.turn.previous if recalled is not None else self._hint(at)
        alone = self._alone_once(known)
        for number, at in enumerate(self._positions):
            before = self._positions[number - 1] if number else None
            behind = self._positions[number + 1] if number + 1 < len(self._positions) else None
            if at not in known:
                recalled = self._near(at, before, behind, known)
                recalled = recalled or self._with_results(at, behind, known)
                recalled = recalled or self._by_itself(alone.get(at, []), before, behind, known)
                if recalled is not None:
                    known[at] = recalled
        return known

    def _placed(self, at: int, previous: bytes) -> Recalled | None:
        """The turn of this very history; of several, what tells them apart decides, and then the newest.

        Where the turn behind it saw no thought here, none is recalled: what went upstream once stays as it was.
        """
        turns = self._found.exact.get(self._chain.keys[at])
        if not turns or (previous and previous == self._no_thought and all(turn.reasoning for turn in turns)):
            return None
        turn = (
            turns[-1] if len(turns) == 1 else max(reversed(turns), key=lambda turn: self._likeness(at, turn, previous))
        )
        return Recalled(turn, turn.reasoning, turn.blanks, self._lost_calls(at, turn) or "", placed=True)

    def _likeness(self, at: int, turn: Turn, previous: bytes) -> tuple[bool, bool, bool, bool]:
        """The thought that the client shows; what went upstream once; the same conversation; the same system prompt."""
        own = self._messages[at].reasoning or self._messages[at].mirrored
        return (
            own is not None and same_thought(own, turn.reasoning),
            bool(previous) and self._chain.thought(turn.reasoning) == previous,
            turn.conversation == self._conversation,
            turn.system == self._chain.system,
        )

    def _hint(self, at: int) -> bytes:
        """Which thought went before a message that is not found where it stands, as its weaker keys have it."""
        turns = (self._found.sole.get(key) for key in self._chain.weaker(at))
        return next((turn.previous for turn in turns if turn is not None), b"")

    def _with_results(self, at: int, behind: int | None, known: Mapping[int, Recalled]) -> Recalled | None:
        """The turn of a message that lost its calls, where the results behind it are those of its calls."""
        key = self._chain.weaker(at).lost
        turn = self._found.sole.get(key) if key else None
        calls = self._lost_calls(at, turn) if turn is not None else None
        if turn is None or calls is None or not self._is_seen(turn, behind, known):
            return None
        return Recalled(turn, turn.reasoning, turn.blanks, calls)

    def _lost_calls(self, at: int, turn: Turn) -> str | None:
        """The calls of a turn whose message has none, as JSON; None where the results behind it are not theirs."""
        if self._messages[at].calls or not turn.calls:
            return None
        calls = loads(turn.calls.encode())
        behind = (message.call_id for message in self._messages[at + 1 : at + 1 + len(calls)])
        ids = {plain_id(name): name for name in behind if name}
        if {plain_id(call["id"]) for call in calls} != ids.keys():
            return None
        return dumps([{**call, "id": ids[plain_id(call["id"])]} for call in calls]).decode()

    def _near(self, at: int, before: int | None, behind: int | None, known: Mapping[int, Recalled]) -> Recalled | None:
        """The turn of a message with the two before it."""
        turn = self._sole(self._chain.weaker(at).near)
        if turn is None or not self._follows(turn, before, known):
            return None
        if behind in known and behind is not None and not self._is_seen(turn, behind, known):
            return None
        return Recalled(turn, turn.reasoning, turn.blanks)

    def _by_itself(
        self, told: Sequence[Turn], before: int | None, behind: int | None, known: Mapping[int, Recalled]
    ) -> Recalled | None:
        """The turns that a message alone leads to, where each follows on the one before, the neighbours' included.

        For a history that is not trimmed but unknown, from another proxy or another caller, may make the same calls.
        """
        if not told or not self._follows(told[0], before, known) or not self._is_seen(told[-1], behind, known):
            return None
        if any(self._chain.thought(one.reasoning) != other.previous for one, other in itertools.pairwise(told)):
            return None
        blanks = told[0].blanks if len(told) == 1 else None
        return Recalled(told[-1], BETWEEN.join(turn.reasoning for turn in told if turn.reasoning), blanks)

    def _follows(self, turn: Turn, before: int | None, known: Mapping[int, Recalled]) -> bool:
        """Whether a turn saw the thought of the assistant message before it; at the front nobody can know that."""
        if before is None or (before not in known and self._is_front(before)):
            return True
        own = self._messages[before].reasoning or self._messages[before].mirrored
        if before not in known and own is None:
            return False
        return turn.previous == self._chain.thought(thought_of(self._messages[before], known.get(before)))

    def _is_front(self, at: int) -> bool:
        """Whether a message that is not known may be one whose place was cut away, and that is not found by itself."""
        weaker = self._chain.weaker(at)
        return weaker.near is None and not weaker.whole and not weaker.calls

    def _is_seen(self, turn: Turn, behind: int | None, known: Mapping[int, Recalled]) -> bool:
        """Whether the assistant message behind a turn saw its thought, if there is one that is not just begun."""
        if behind is None or behind == len(self._messages) - 1:
            return True
        after = known[behind].turn if behind in known else self._sole(self._chain.weaker(behind).near)
        return after is not None and after.previous == self._chain.thought(turn.reasoning)

    def _alone_once(self, known: Mapping[int, Recalled]) -> dict[int, list[Turn]]:
        """What messages lead to by themselves, but no turn in two places."""
        alone = {at: told for at in self._positions if at not in known and (told := self._alone(at))}
        times = Counter(turn.reasoning for told in alone.values() for turn in told)
        times.update(recalled.reasoning for recalled in known.values())
        return {
            at: told
            for at, told in alone.items()
            if all(times[turn.reasoning] < 2 or not turn.reasoning for turn in told)
        }

    def _alone(self, at: int) -> list[Turn]:
        """The turns of a message by itself, in order; none where a key leads nowhere."""
        message, weaker = self._messages[at], self._chain.weaker(at)
        whole = self._sole(weaker.whole)
        if whole is not None:
            return [whole]
        if message.content and len(weaker.calls) == 1:
            return []
        turns = [self._sole(key) for key in weaker.calls]
        told = {turn.key: turn for turn in turns if turn is not None}  # the calls of one turn lead to it each
        if None in turns or (message.content and len(told) == 1):
            return []  # the calls of one turn under another text: somebody changed the text
        return list(told.values())

    def _sole(self, key: bytes | None) -> Turn | None:
        """The turn of a weaker key, unless it is known to belong to another conversation."""
        turn = self._found.sole.get(key) if key else None
        if turn is None or (self._conversation and turn.conversation and turn.conversation != self._conversation):
            return None
        return turn
