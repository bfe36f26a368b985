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
from proxy.messages import Message
from proxy.thinking import same_thought
from proxy.turns import MARK_BYTES, Found, Turn


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
        self._behind = dict(itertools.pairwise(self._positions))
        """Position of an assistant message → that of the next one."""
        self._no_thought = chain.mark("")
        self._made_before: dict[int, int] = {}
        """When the first of the turns behind that are found where they stand was made; 0 where there is none."""
        self._altered = False
        """A turn lost a part of it, or was made one with another: that is why nothing behind it is in its place."""

    def all(self) -> dict[int, Recalled]:
        """Position → what is known of the assistant message there."""
        known: dict[int, Recalled] = {}
        after, back = None, 0  # a turn that is found where it stands tells which thoughts went before it
        near, near_back, made = None, 0, 0
        for at in reversed(self._positions):
            back, near_back = back + 1, near_back + 1
            if after is None or not after.saw(back):  # as long as it reaches: a nearer one may be a twin's
                after, back = near, near_back
            self._made_before[at] = made
            recalled = self._placed(at, after, back)
            if recalled is not None:
                known[at], near, near_back = recalled, recalled.turn, 0
                made = min(made or near.made, near.made)
        alone = self._alone_once(known)
        before: int | None = None
        for at in self._positions:
            behind = self._behind.get(at)
            if at not in known:
                recalled = self._outlined(at, behind, known)
                recalled = recalled or self._near(at, before, behind, known)
                recalled = recalled or self._with_less(at, behind, known)
                recalled = recalled or self._by_itself(at, alone.get(at, []), before, behind, known)
                if recalled is not None:
                    known[at] = recalled
            before = at
        return known

    def _placed(self, at: int, after: Turn | None, back: int) -> Recalled | None:
        """The turn of this very history; of several, what tells them apart decides, and then the newest.

        `after` is the next assistant turn that is found where it stands, `back` how many before it this one is.
        """
        mark = after.saw(back) if after is not None else b""
        made = self._made_before[at]
        turns = self._found.exact.get(self._chain.keys[at], ())
        turns = [turn for turn in turns if self._may_stand(turn, mark, made) or self._is_shown(at, turn)]
        if not turns:
            return None
        turn = turns[-1]
        if len(turns) > 1:  # newest first, for max takes the first of equals
            seen = after.seen[: -MARK_BYTES * back] if after is not None else b""
            hint = self._hint_behind(at)
            turn = max(turns[::-1], key=lambda turn: self._likeness(at, turn, mark, seen, hint))
        return Recalled(turn, turn.reasoning, turn.blanks, self._lost_calls(at, turn) or "", placed=True)

    def _may_stand(self, turn: Turn, mark: bytes, made: int) -> bool:
        """Whether a later turn does not speak against it: it tells by a mark which thought it saw, empty if it cannot.

        It may have seen none because the store was away, but not a turn that was made later. A settled turn was put
        here by a guess of ours: it must belong to the conversation, or have been seen.
        """
        if mark == self._mark(turn):
            return True
        if turn.settled and (not turn.conversation or turn.conversation != self._conversation):
            return False
        return not mark or (mark == self._no_thought and turn.made < made)

    def _likeness(self, at: int, turn: Turn, mark: bytes, seen: bytes, hint: bytes) -> tuple[int, ...]:
        """The thought that the client shows; what went upstream once, here and before; the same conversation; the same
        system prompt; what a weaker key of the next turn says."""
        own = self._mark(turn)
        alike = zip(turn.seen[::-1], seen[::-1], strict=False)
        return (
            self._is_shown(at, turn),
            own == mark,
            sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], alike)),
            turn.conversation == self._conversation,
            turn.system == self._chain.system,
            own == hint,
        )

    def _mark(self, turn: Turn) -> bytes:
        return turn.mark or self._chain.mark(turn.reasoning)  # turns of older versions come without

    def _is_shown(self, at: int, turn: Turn) -> bool:
        """Whether the client sends this turn's thought by itself."""
        own = self._messages[at].reasoning or self._messages[at].mirrored
        return own is not None and same_thought(own, turn.reasoning)

    def _hint_behind(self, at: int) -> bytes:
        """The mark of this thought as the weaker keys of the assistant message behind it have it."""
        behind = self._behind.get(at)
        hint = self._hint(behind) if behind is not None else None
        return hint.saw(1) if hint is not None else b""

    def _hint(self, at: int) -> Turn | None:
        """The turn that a weaker key has for a message which is not found where it stands."""
        turns = (self._found.sole.get(key) for key in self._chain.weaker(at))
        return next((turn for turn in turns if turn is not None), None)

    def _outlined(self, at: int, behind: int | None, known: Mapping[int, Recalled]) -> Recalled | None:
        """The turn of a message where it stands, in a history in which tools now say something else."""
        turn = self._sole(at, self._chain.weaker(at).outline)
        if turn is None or (behind in known and not self._is_seen(turn, behind, known)):
            return None
        return Recalled(turn, turn.reasoning, turn.blanks, self._lost_calls(at, turn) or "")

    def _with_less(self, at: int, behind: int | None, known: Mapping[int, Recalled]) -> Recalled | None:
        """The turn of a message that lost its text, or its calls where the results behind it are those of its calls."""
        message = self._messages[at]
        turns = (self._sole(at, key) for key in self._chain.weaker(at).less)
        turn = next((turn for turn in turns if turn is not None), None)
        if turn is None or (behind in known and not self._is_seen(turn, behind, known)):
            return None
        calls = None if message.calls else self._lost_calls(at, turn)
        if calls is None and not message.calls:
            return None
        self._altered = True
        return Recalled(turn, turn.reasoning, None if message.calls else turn.blanks, calls or "")

    def _lost_calls(self, at: int, turn: Turn) -> str | None:
        """The calls of a turn whose message has none, as JSON; None where the results behind it are not theirs."""
        if self._messages[at].calls or not turn.calls:
            return None
        calls = loads(turn.calls.encode())
        behind = self._messages[at + 1 : at + 1 + len(calls)]
        ids = [message.call_id for message in behind if message.role == "tool" and message.call_id]
        plain = {plain_id(name): name for name in ids}
        if len(ids) == len(calls) == 1:
            plain = {plain_id(calls[0]["id"]): ids[0]}  # whatever the client calls it
        if {plain_id(call["id"]) for call in calls} != plain.keys():
            return None
        return dumps([{**call, "id": plain[plain_id(call["id"])]} for call in calls]).decode()

    def _near(self, at: int, before: int | None, behind: int | None, known: Mapping[int, Recalled]) -> Recalled | None:
        """The turn of a message with the two before it."""
        turn = self._sole(at, self._chain.weaker(at).near)
        if turn is None or not self._follows(turn, before, known):
            return None
        if behind in known and not self._is_seen(turn, behind, known):
            return None
        return Recalled(turn, turn.reasoning, turn.blanks)

    def _by_itself(
        self, at: int, told: Sequence[Turn], before: int | None, behind: int | None, known: Mapping[int, Recalled]
    ) -> Recalled | None:
        """The turns that a message alone leads to, where each follows on the one before, the neighbours' included.

        For a history that is not trimmed but unknown, from another proxy or another caller, may make the same calls.
        """
        if not told or (len(told) == 1 and self._is_edited(at, told[0])):
            return None
        if not self._follows(told[0], before, known) or not self._is_seen(told[-1], behind, known):
            return None
        if any(self._mark(one) != other.saw(1) for one, other in itertools.pairwise(told)):
            return None
        blanks = told[0].blanks if len(told) == 1 else None
        self._altered |= len(told) > 1
        return Recalled(told[-1], BETWEEN.join(turn.reasoning for turn in told if turn.reasoning), blanks)

    def _is_edited(self, at: int, turn: Turn) -> bool:
        """Whether a history is as long as the turn's and under the same system prompt, and yet another one.

        Then it was not cut or summarised: somebody changed a word in it, or it is another chat that goes on alike.
        """
        return not self._altered and turn.depth == self._chain.depth(at) and turn.system == self._chain.system

    def _follows(self, turn: Turn, before: int | None, known: Mapping[int, Recalled]) -> bool:
        """Whether a turn saw the thought of the assistant message before it; at the front nobody can know that."""
        if before is None or (before not in known and self._is_front(before)):
            return True
        recalled, message = known.get(before), self._messages[before]
        if recalled is None and not (message.reasoning or message.mirrored):
            return False
        seen = [
            thought_of(message, recalled),
            *([recalled.turn.reasoning] if recalled else []),
        ]  # of a merged one, its last
        return turn.saw(1) in map(self._chain.mark, seen)

    def _is_front(self, at: int) -> bool:
        """Whether a message that is not known may be one whose place was cut away, and that is not found by itself."""
        weaker = self._chain.weaker(at)
        return weaker.near is None and not weaker.whole and not weaker.calls

    def _is_seen(self, turn: Turn, behind: int | None, known: Mapping[int, Recalled]) -> bool:
        """Whether the assistant message behind a turn saw its thought, if there is one that is not just begun."""
        if behind is None or behind == len(self._messages) - 1:
            return True
        after = known[behind].turn if behind in known else self._hint(behind)
        return after is not None and after.saw(1) == self._mark(turn)

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
        whole = self._sole(at, weaker.whole)
        if whole is not None:
            return [whole]
        if message.content and len(weaker.calls) == 1:
            return []
        turns = [self._sole(at, key) for key in weaker.calls]
        told = {turn.key: turn for turn in turns if turn is not None}  # the calls of one turn lead to it each
        if None in turns or (message.content and len(told) == 1):
            return []  # the calls of one turn under another text: somebody changed the text
        return list(told.values())

    def _sole(self, at: int, key: bytes | None) -> Turn | None:
        """The turn of a weaker key, unless it is of another conversation, or was made after what stands behind it."""
        turn = self._found.sole.get(key) if key else None
        if turn is None or turn.conversation != self._conversation:
            return None
        before = self._made_before.get(at)
        return None if before and turn.made > before else turn
