"""A second opinion on the memory of thoughts, for `test_memory_model.py`.

Written apart from the product and as simply as can be: what was said is a tuple, the memory is a dictionary of such
tuples, and nothing is hashed. Every message that a client keeps knows the answers of the model that it was made of.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple

import msgspec

LONG = 200
"""Characters of a text that can be known by itself."""
MOST = 8
"""More thoughts than this under one visible history need not be remembered."""

Call = tuple[str, str]
"""Name and arguments, as JSON text."""


class Scope(NamedTuple):
    """Whose turns these are."""

    key: str
    end_user: str
    model: str


@dataclass(frozen=True)
class Style:
    """What a front end does to the turns that it keeps. `empty` is the content of a message without text."""

    thought: str = "drop"  # or blank, keep, trim, rewrite; think, details: mirrored into the text
    strip: bool = False
    spell: bool = False
    empty: Any = ""


@dataclass(eq=False, repr=False)
class Generation:
    """One answer of the model. It is `kept` in the memory when it came to its end; times are ticks of a clock."""

    number: int
    ask: Ask
    thought: str
    text: str
    calls: tuple[Call, ...]
    kept: bool = False
    done: float = float("inf")

    @cached_property
    def path(self) -> tuple[Any, ...]:
        """The visible history up to and with this answer."""
        return *self.ask.paths[-1], Line("assistant", self.text, self.calls).said


@dataclass(frozen=True)
class Line:
    """A message as a client keeps it: what it says, what it was made of, and the thought if the client was shown it."""

    role: str
    text: str
    calls: tuple[Call, ...] = ()
    origins: tuple[Generation, ...] = ()
    thought: str = ""
    lost: tuple[Call, ...] = ()  # calls that the front end dropped
    call_id: str = ""

    @cached_property
    def said(self) -> tuple[Any, ...]:
        """What a reader sees, without what front ends change for no reason."""
        calls = [(name, json.dumps(json.loads(arguments), sort_keys=True)) for name, arguments in self.calls]
        return self.role, self.text.strip(), *calls

    def own(self, style: Style) -> str:
        """The thought that the client sends along, under its name or in the text."""
        kept = {"keep": self.thought, "trim": self.thought.strip(), "rewrite": self.thought and "My own words."}
        mirrored = self.thought.strip() if style.thought in ("think", "details") else ""
        return kept.get(style.thought, mirrored)

    def wire(self, style: Style) -> dict[str, Any]:
        """The JSON that the client sends."""
        if self.role != "assistant":
            result = {"tool_call_id": self.call_id} if self.call_id else {}
            return {"role": self.role, **result, "content": self.text}
        text = self.text.strip() if style.strip else self.text
        if self.thought and style.thought == "think":
            text = f"<think>{self.thought}</think>\n\n{text}"
        elif self.thought and style.thought == "details":
            quoted = "\n".join(f"> {row}" for row in self.thought.strip().split("\n"))
            head = '<details type="reasoning" done="true" duration="3">\n<summary>Thought for 3 seconds</summary>'
            text = f"{head}\n{quoted}\n</details>\n{text}"
        message: dict[str, Any] = {"role": "assistant", "content": text or (style.empty if self.calls else "")}
        if self.own(style) and style.thought in ("keep", "trim", "rewrite"):
            message["reasoning_content"] = self.own(style)
        elif style.thought == "blank":
            message["reasoning_content"] = " "
        if self.calls:
            message["tool_calls"] = [
                {"id": call_id(name, at), "type": "function", "function": {"name": name, "arguments": arguments}}
                for at, (name, arguments) in enumerate(respelled(call) if style.spell else call for call in self.calls)
            ]
        return message


def visible_paths(lines: Iterable[Line]) -> list[tuple[Any, ...]]:
    """The visible history up to and with each line."""
    return list(accumulate((line.said,) for line in lines))


def call_id(name: str, at: int) -> str:
    """As Kimi numbers them, anew in every turn: it is the same id in nearly every chat."""
    return f"functions.{name}:{at}"


def respelled(call: Call) -> Call:
    """Equal arguments in another order and with other blanks."""
    name, arguments = call
    return name, json.dumps(dict(reversed(json.loads(arguments).items())), indent=1)


@dataclass(eq=False, repr=False)
class Chat:
    """A conversation as one client holds it."""

    scope: Scope
    system: str
    conversation: str
    style: Style
    lines: list[Line] = field(default_factory=list)
    story: list[str] = field(default_factory=list)
    last: Ask | None = None


class _Body(msgspec.Struct):
    """A request's messages, byte for byte."""

    messages: list[msgspec.Raw]


@dataclass(eq=False, repr=False)
class Ask:
    """One request: what the chat was when it was sent, and what the backend received."""

    number: int
    chat: Chat
    started: int
    arrived: float = float("inf")
    received: list[dict[str, Any]] = field(default_factory=list)
    raw: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        chat = self.chat
        self.scope, self.system, self.conversation, self.style = chat.scope, chat.system, chat.conversation, chat.style
        self.lines, self.before, self.told = tuple(chat.lines), chat.last, len(chat.story)
        self.shift = 1 if self.system else 0
        self.sent = [{"role": "system", "content": self.system}] * self.shift
        self.sent += [line.wire(self.style) for line in self.lines]
        self.paths = visible_paths(self.lines)
        self.generation: Generation | None = None

    def arrives(self, body: bytes, tick: int) -> None:
        """The backend has it."""
        self.arrived = tick
        self.raw = [bytes(raw) for raw in msgspec.json.decode(body, type=_Body).messages]
        self.received = [json.loads(raw) for raw in self.raw]

    def thought(self, at: int) -> str:
        """The thought that went upstream on a line, "" for none."""
        found: str = self.received[at + self.shift].get("reasoning_content") or ""
        return found


class Fault(NamedTuple):
    """Something that should not have gone upstream, or that is missing there."""

    kind: str  # wrong, missed, own, prefix, changed
    ask: Ask
    at: int
    why: str


class Memory:
    """What the model wrote so far, and what may therefore go upstream."""

    def __init__(self) -> None:
        self.clock = 0
        self.generations: dict[int, Generation] = {}
        self.counts: Counter[str] = Counter()
        self._by_path: defaultdict[Any, list[Generation]] = defaultdict(list)
        self._by_key: defaultdict[Any, list[Generation]] = defaultdict(list)
        self._by_texts: defaultdict[Any, list[Generation]] = defaultdict(list)
        self._sent: defaultdict[Any, set[str]] = defaultdict(set)

    def tick(self) -> int:
        """Later than all before."""
        self.clock += 1
        return self.clock

    def begins(self, generation: Generation) -> None:
        """The backend has begun to answer."""
        ask, path = generation.ask, generation.path
        self.generations[generation.number] = generation
        self._by_path[ask.scope, path].append(generation)
        self._by_texts[ask.scope, texts(path)].append(generation)
        for key in weaker(path):
            self._by_key[ask.scope, key].append(generation)

    def faults(self, ask: Ask) -> Iterator[Fault]:
        """What is wrong with a request that the backend received, judged when all that ran beside it has ended."""
        if [message["role"] for message in ask.received] != [message["role"] for message in ask.sent]:
            yield Fault("changed", ask, 0, "as many messages as came")
            return
        known = [self._known(ask, at) if line.role == "assistant" else [] for at, line in enumerate(ask.lines)]
        # What is remembered just now may be used or not, and of too many thoughts some may be forgotten. Nor is there
        # more to say of what went before a thought that the client wrote itself.
        loose = any(len(turns) > MOST or any(turn.done > ask.started for turn in turns) for turns in known)
        latest: tuple[int, Generation] | None = None
        used = set[str]()
        for at in reversed(range(len(ask.lines))):  # a later turn tells which thought went before it
            if why := self._changed(ask, at):
                yield Fault("changed", ask, at, why)
            if ask.lines[at].role != "assistant":
                continue
            thought, turns, own = ask.thought(at), known[at], ask.lines[at].own(ask.style)
            behind = latest[1].ask if latest else None
            if own:
                why = self._own(ask, at, turns, own)
            elif turns:
                why = self._exact(ask, at, turns, behind, loose=loose)
            else:
                why = self._weak(ask, at, behind)
            numbers = set() if own else set(re.findall(r"#(\d+)#", thought))
            if not why and used & numbers:
                why = "one that does not stand on another message of this request, too"
            used |= numbers
            if why:
                yield Fault("own" if own else "wrong" if thought else "missed", ask, at, why)
            if turns and latest is None:
                alike = [turn for turn in turns if turn.thought == thought]
                latest = (at, alike[-1]) if alike else None
                loose |= len(alike) != 1  # two answers without a thought: nobody can tell which of the chats this is
        if not loose and (fault := self._grown(ask, known, latest)):
            yield fault

    def _known(self, ask: Ask, at: int) -> list[Generation]:
        """What the model wrote for exactly this visible history, the oldest first."""
        if ask.lines[at].lost and "tool_calls" in ask.received[at + ask.shift]:
            return []  # the proxy saw that something visible is missing
        turns = self._by_path.get((ask.scope, ask.paths[at]), ())
        return [turn for turn in turns if turn.kept and turn.ask.arrived < ask.arrived]

    def _own(self, ask: Ask, at: int, turns: list[Generation], own: str) -> str:
        """The client's own thought wins; one that is the stored one but for blanks goes as it is stored."""
        self.counts["own"] += 1
        thought = ask.thought(at)
        stored = {turn.thought for turn in turns if turn.thought.strip() == own.strip()}
        if stored and len(turns) <= MOST and all(turn.done < ask.started for turn in turns):
            return "" if thought in stored else f"the stored bytes of the client's own thought: {stored}"
        mirrored = ask.style.thought in ("think", "details") and thought.strip() == own.strip()
        fits = mirrored or thought in {own, *(turn.thought for turn in ask.lines[at].origins)}
        return "" if fits else f"the client's own thought: {own!r}"

    def _exact(self, ask: Ask, at: int, turns: list[Generation], behind: Ask | None, *, loose: bool) -> str:
        """The visible history is known: its thought must be there. `behind` asked for the latest turn that is known."""
        self.counts["exact"] += 1
        every = {turn.thought for turn in turns}
        right, why = every | self._sent[ask.scope, ask.paths[at]], "one that was written for this history"
        if loose:
            right |= {""}
        elif behind is None:
            about = ask.system, ask.conversation
            best = [turn for turn in turns if (turn.ask.system, turn.ask.conversation) == about]
            mine = [turn for turn in turns if turn in ask.lines[at].origins]
            if best:
                right = {turn.thought for turn in (best[-1:] if best[-1] in mine else best + mine)}
                why = "the newest with this system prompt and conversation header"
        else:  # what went upstream once stays, as long as the system prompt before it stays
            seen = behind.thought(at)
            if seen in every and behind.system == ask.system:
                right, why = {seen}, "the one that the turn behind it has seen"
            right |= {seen}
        return "" if ask.thought(at) in right else f"{why}: {sorted(right)}"

    def _weak(self, ask: Ask, at: int, behind: Ask | None) -> str:
        """The visible history is not known: nothing, or what the message by itself leads to."""
        thought, line, sent = ask.thought(at), ask.lines[at], self._sent[ask.scope, ask.paths[at]]
        if thought in ("", behind and behind.thought(at), *sent):
            return ""
        turns = [self.generations[int(number)] for number in re.findall(r"#(\d+)#", thought)]
        self.counts["both" if len(turns) > 1 else "weak"] += 1
        if "".join(thought.split()) != "".join("".join(turn.thought for turn in turns).split()):
            return "a thought that somebody wrote"
        if any(turn.ask.scope != ask.scope for turn in turns):
            return "no other user's, and no other model's"
        if not all(turn.kept for turn in turns):
            return "none of an answer that did not come to its end"
        if not all(turn in line.origins or self._leads_to(turn, ask, at) for turn in turns):
            return "none of another message"
        if len(turns) == 1 and thought != turns[0].thought:
            return f"the bytes that were written: {turns[0].thought!r}"
        if [turn for turn in line.origins if turn in turns] != [turn for turn in turns if turn in line.origins]:
            return "the thoughts in their order"
        mine = [turn for turn in line.origins if turn.ask.scope == ask.scope and turn.done < ask.started]
        mine = [turn for turn in mine if turn.thought]
        if len(mine) > len(turns) and all(self._leads_to(turn, ask, at) for turn in mine):
            return f"all of {[turn.thought for turn in mine]}"
        sent.add(thought)  # and there it may stay, whatever else the message leads to later
        return ""

    def _leads_to(self, turn: Generation, ask: Ask, at: int) -> bool:
        """Whether a message, by itself, leads to this turn alone."""
        for key in weaker(ask.paths[at]) & weaker(turn.path):
            kept = [other for other in self._by_key[ask.scope, key] if other.kept and other.done < ask.started]
            if {turn.thought} >= {other.thought for other in kept}:
                return True
        return turn in self._alike(ask, at)

    def _alike(self, ask: Ask, at: int) -> list[Generation]:
        """Where a front end has lost calls, histories are alike whose texts agree."""
        lost = any(line.lost for line in ask.lines[: at + 1])
        return [turn for turn in self._by_texts[ask.scope, texts(ask.paths[at])] if turn.kept] if lost else []

    def _changed(self, ask: Ask, at: int) -> str:
        """What is to stand in a message beside its thought; the blanks around its text are no matter."""
        line, sent, received = ask.lines[at], ask.sent[at + ask.shift], ask.received[at + ask.shift]
        if line.role != "assistant":
            return "" if received == sent else f"the message as it came: {sent}"
        if (received["content"] or "").strip() != line.text.strip():
            return f"the text {line.text!r}"
        if not line.lost or "tool_calls" not in received:
            return "" if received.get("tool_calls") == sent.get("tool_calls") else "the calls as they came"
        calls = tuple((call["function"]["name"], call["function"]["arguments"]) for call in received["tool_calls"])
        return "" if calls in {line.lost, *(turn.calls for turn in self._alike(ask, at))} else f"{line.lost}"

    def _grown(self, ask: Ask, known: list[list[Generation]], latest: tuple[int, Generation] | None) -> Fault | None:
        """A conversation that only grew: what went upstream before is the beginning of what goes upstream now."""
        before = ask.before
        if before is None or before.scope != ask.scope:
            return None
        if [*map(unblanked, ask.sent[: len(before.sent)])] != [*map(unblanked, before.sent)]:
            return None
        if latest:  # another turn of the same words is right, too, and may have another beginning
            at, turn = latest
            if turn is not before.generation if at >= len(before.lines) else ask.thought(at) != before.thought(at):
                return None
        self.counts["grown"] += 1
        for place, (old, new) in enumerate(zip(before.raw, ask.raw, strict=False)):
            at = place - ask.shift
            if old == new:
                continue
            # What was not known then may be known now; and where nothing is put back, blanks are the client's own.
            then, now = before.thought(at), ask.thought(at)
            learnt = not any(turn.done < before.started for turn in known[at]) and then.strip() in ("", now.strip())
            if at < 0 or visible(old) != visible(new) or not (learnt or not then + now):
                return Fault("prefix", ask, at, f"as before: {old.decode()}")
        return None


def weaker(path: tuple[Any, ...]) -> set[Any]:
    """What a message can be known by where its history is not: with the two before it, itself, and each call.

    And where it stands, by its calls alone: a front end may have dropped its text.
    """
    _, text, *calls = path[-1]
    by_itself = {path[-1], *calls, (path[:-1], "no text", *calls)} if calls or len(text) >= LONG else set()
    return by_itself | ({path[-3:]} if len(path) > 2 else set())


def texts(path: tuple[Any, ...]) -> tuple[Any, ...]:
    """A history without its calls."""
    return tuple(said[:2] for said in path)


def unblanked(message: dict[str, Any]) -> dict[str, Any]:
    """A message as it is compared with what the client sent before."""
    text = message["content"]
    return message | {"content": text.strip()} if message["role"] == "assistant" and text else message


def visible(raw: bytes) -> dict[str, Any]:
    """A message but for its thought and the blanks around its text."""
    return {name: value for name, value in unblanked(json.loads(raw)).items() if name != "reasoning_content"}


def shape(lines: Sequence[Line]) -> str:
    """A history in a few letters: u(ser), t(ool), and the numbers of the answers."""
    numbers = ["+".join(str(turn.number) for turn in line.origins) + "!" * bool(line.lost) for line in lines]
    return " ".join(line.role[0] + number for line, number in zip(lines, numbers, strict=True))
