"""The keys of assistant turns: what a message says, and where it stands, hashed.

A turn is found by a salted hash chained message by message over the visible history. System and developer messages are
left out: they change from day to day, and between agents that share a history (recorded with opencode and Qwen Code).
Ids of tool calls are left out: Kimi numbers its calls anew in every chat.

Weaker keys serve where a history was trimmed, merged, summarised or thinned out: those of a message in a history whose
tools said something else, with the two messages before it, by itself, by each of its calls, and less its calls or text.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import msgspec

from proxy.messages import Json, Message, ToolCall
from proxy.turns import MARK_BYTES, Turn

LONG_TEXT = 200
"""Characters from which on a text without calls is found by itself, and a message with the two before it: shorter ones
are said too often."""

BETWEEN = "\n\n"
"""Between the thoughts of two turns that a front end made one."""

_NOT_SAID = frozenset({"system", "developer"})
_DIGEST = 16
_EXACT = 2**53
_JOINTS = ("", "\n", "\n\n")
"""What front ends put between two texts that they make one."""
_MAYBE_FLOAT = re.compile(r"\d[.eE]")
_NO_ID = re.compile(r"[^A-Za-z0-9_-]")
_MOST_OF_ID = 64
_canonical = msgspec.json.Encoder(order="sorted")


@dataclass(frozen=True, slots=True)
class Weaker:
    """Keys of a message that tell less; each counts only if it leads to one thought alone."""

    outline: bytes | None = None
    """The message where it stands, whatever the tools before it said: some clients clear or reorder old results."""
    near: bytes | None = None
    """The message with the two visible ones before it: what trimming and summarising leave of a history."""
    whole: bytes | None = None
    """The message by itself."""
    calls: tuple[bytes, ...] = ()
    """Each of its calls by itself, in order."""
    less: tuple[bytes, ...] = ()
    """The message where it stands, less its text, or less its calls but with the ids of their results, or with any id
    where it is one result."""

    def __iter__(self) -> Iterator[bytes]:
        yield from (key for key in (self.outline, self.near, self.whole, *self.calls, *self.less) if key)


class Chain:
    """The keys of a history, one for each assistant turn, and of an answer to it.

    Store and lookup both go through here. Cost is linear in the length of the history.
    """

    def __init__(self, messages: Sequence[Message], scope: bytes) -> None:
        self._scope = scope
        self._messages = messages
        self._visible: list[tuple[int, bytes]] = []
        """Position and what is said there."""
        self._here = self._before = _Place(_digest(b"", scope))
        self._places: dict[int, tuple[_Said, _Place]] = {}
        self._weaker: dict[int, Weaker] = {}
        self.keys: dict[int, bytes] = {}
        """Position of an assistant message in the request → its key."""
        self.system = b""
        """A hash of the system messages."""
        here = self._here
        for at, message in enumerate(messages):
            if message.role == "assistant":
                said = _Said(message.content, message.calls)
                self._places[at] = said, here
                data = said.data
            elif message.role not in _NOT_SAID:
                data = _said_to_it(message)
            else:
                self.system = _digest(self.system, _canonical.encode(_content(message.content)))
                continue
            self._visible.append((at, data))
            self._before = here
            here = _Place(_digest(here.state, data), here.last, data, here.depth + 1)
            if message.role == "assistant":
                self.keys[at] = here.state
        self._here = here

    def depth(self, at: int | None = None) -> int:
        """How many visible messages stand before an assistant message, or before the answer."""
        return self._here.depth if at is None else self._places[at][1].depth

    def weaker(self, at: int) -> Weaker:
        """The weaker keys of the assistant message at a position."""
        if at not in self._weaker:
            said, before = self._places[at]
            results = () if said.calls else _answered(self._messages, at)
            self._weaker[at] = self._keys(said, before, results, self._outlines.get(at))
        return self._weaker[at]

    @cached_property
    def _outlines(self) -> dict[int, bytes]:
        """Position of an assistant message behind tool results → its outline; at -1 the state before the answer."""
        found: dict[int, bytes] = {}
        state, thinned = _digest(self._scope, b"outline"), False
        for at, data in self._visible:
            if self._messages[at].role == "tool":
                thinned = True
                continue
            state = _digest(state, data)
            if thinned and at in self.keys:
                found[at] = state
        return {**found, -1: state} if thinned else {}

    def weaker_than(self, exact: Mapping[bytes, Sequence[Turn]]) -> list[bytes]:
        """The weaker keys of all messages that are not found by their own, or only because a weaker one led there."""
        lacking = [at for at, key in self.keys.items() if all(turn.settled for turn in exact.get(key, ()))]
        return [weaker for at in lacking for weaker in self.weaker(at)]

    def mark(self, text: str) -> bytes:
        """The mark of a thought, also of none, for `Turn.seen`."""
        return _digest(self._scope, text.encode())[:MARK_BYTES]

    def answer(self, text: str, calls: tuple[ToolCall, ...]) -> tuple[bytes, Weaker]:
        """The keys of an answer to this history."""
        said = _Said(text, calls)
        ids = [call.id for call in calls if call.id]
        outline = _digest(self._outlines[-1], said.data) if self._outlines else None
        weaker = self._keys(said, self._here, ids if len(ids) == len(calls) else (), outline, stored=True)
        return self._here.after(said.data), weaker

    def continued(self, text: str, calls: tuple[ToolCall, ...]) -> list[bytes]:
        """Keys of the one message that front ends make of a trailing assistant message and the answer to it."""
        last = self._messages[self._visible[-1][0]] if self._visible else None
        if last is None or last.role != "assistant" or not isinstance(last.content, str | None):
            return []
        first = last.content or ""
        texts = [first + text, *(f"{first.strip()}{joint}{text.strip()}" for joint in _JOINTS)]
        said = [_Said(joined, last.calls + calls) for joined in dict.fromkeys(texts)]
        return list(dict.fromkeys(self._before.after(one.data) for one in said))

    def _keys(
        self, said: _Said, before: _Place, ids: Sequence[str], outline: bytes | None, *, stored: bool = False
    ) -> Weaker:
        """The weaker keys of what was said after `before`; `ids` are those of its results."""
        text = said.text if isinstance(said.text, str) else ""
        findable = said.calls or len(text) >= LONG_TEXT
        around = before.last_but_one + before.last + said.data
        less = [["no calls", said.text, sorted(map(plain_id, ids))]] if ids else []
        less += [["no calls", said.text]] if len(ids) == 1 else []
        # Stored for a turn that has a text, asked for by a message that has none: the text may have been dropped.
        less += [["no text", said.calls]] if said.calls and bool(text) == stored else []
        return Weaker(
            outline=outline,
            near=_digest(self._scope, around) if before.last_but_one and len(around) >= LONG_TEXT else None,
            whole=_digest(self._scope, said.data) if findable and (text or len(said.calls) != 1) else None,
            calls=tuple(_digest(self._scope, _canonical.encode(["call", *call])) for call in said.calls),
            less=tuple(_digest(before.state, _canonical.encode(parts)) for parts in less),
        )


class _Place(NamedTuple):
    """A place in a history: the hash of all that was said before it, the last two messages of that, and how many."""

    state: bytes
    last_but_one: bytes = b""
    last: bytes = b""
    depth: int = 0

    def after(self, said: bytes) -> bytes:
        """The hash of all up to and with a further message."""
        return _digest(self.state, said)


class _Said:
    """An assistant message reduced to what it says, so that changes without meaning do not matter."""

    __slots__ = ("calls", "data", "text")

    def __init__(self, content: Json, calls: tuple[ToolCall, ...]) -> None:
        self.text = _text_of(content)
        self.calls = [[call.name, _arguments(call.arguments)] for call in calls]
        self.data = _canonical.encode(["assistant", self.text, self.calls])


def scope(salt: bytes, credential: str, end_user: str | None, family: str) -> bytes:
    """Whose turns these are. Two callers, two end users or two model families never share one."""
    return _digest(salt, msgspec.json.encode(["scope", credential, end_user, family]))


def hashed(salt: bytes, kind: str, value: str) -> str:
    """A name that may stand in a log: salted, so that it cannot be looked up, and short."""
    return _digest(salt, msgspec.json.encode([kind, value])).hex()[:16]


def plain_id(name: str) -> str:
    """A call's id as the strictest client writes it back (kimi-code, `tool-call-id.ts`)."""
    return _NO_ID.sub("_", name)[:_MOST_OF_ID]


def without_blanks(text: str) -> str:
    """Outer blanks and line ends are what front ends change in a text that nobody edited."""
    return (text.replace("\r\n", "\n") if "\r" in text else text).strip()


def _digest(key: bytes, data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST, key=key).digest()


def _answered(messages: Sequence[Message], at: int) -> list[str]:
    """The ids of the tool results directly behind a message; none where one lacks its id."""
    ids = []
    for message in messages[at + 1 :]:
        if message.role != "tool":
            break
        if message.call_id is None:
            return []
        ids.append(message.call_id)
    return ids


def _said_to_it(message: Message) -> bytes:
    """What a user or a tool says. A user's `name` tells people in one chat apart; a tool's comes and goes."""
    name = [message.name] if message.name else []
    return _canonical.encode([message.role, _content(message.content), [], *name])


def _text_of(content: Json) -> Json:
    """What an assistant said: it was one text, whatever parts a front end made of it."""
    if isinstance(content, list) and all(map(_is_text, content)):
        return without_blanks("".join(part["text"] for part in content))
    return _content(content)


def _content(content: Json) -> Json:
    if isinstance(content, str):
        return without_blanks(content)
    if isinstance(content, list):
        parts = [without_blanks(part["text"]) if _is_text(part) else part for part in content]
        return parts[0] if len(parts) == 1 and isinstance(parts[0], str) else parts
    return "" if content is None else content


def _is_text(part: Json) -> bool:
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)


def _arguments(arguments: str) -> Json:
    """Equal in value is equal: clients write argument JSON anew."""
    try:
        value = msgspec.json.decode(arguments) if arguments.strip() else {}
        return _numbers(value) if _MAYBE_FLOAT.search(arguments) else value
    except (msgspec.DecodeError, RecursionError):
        return without_blanks(arguments)


def _numbers(value: Json) -> Json:
    """`1.0` is `1` to a client that writes the JSON anew. Beyond 2^53 doubles are not exact, so there it is not."""
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT:
        return int(value)
    if isinstance(value, list):
        return [_numbers(part) for part in value]
    if isinstance(value, dict):
        return {name: _numbers(part) for name, part in value.items()}
    return value
