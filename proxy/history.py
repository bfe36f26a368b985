"""The keys of assistant turns, and putting back what a front end dropped.

A turn is found by what it says and where it stands: a salted hash chained message by message over the visible history.
System and developer messages are left out: they change from day to day, and between agents that share a history
(recorded with opencode and Qwen Code). Ids of tool calls are left out: Kimi numbers its calls anew in every chat.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import msgspec

from proxy.messages import REASONING_FIELDS, History, Json, Message, Plan, ToolCall, Turn
from proxy.section import Section

_NOT_SAID = frozenset({"system", "developer"})
_DIGEST = 16
_EXACT = 2**53
_canonical = msgspec.json.Encoder(order="sorted")


class Restoring(Section):
    """`[history]`: which assistant turns get their thought back. `auto` is the family's own rule."""

    restore: Literal["auto", "all", "tools", "current", "never"] = "auto"


class Chain:
    """The keys of a history, one for each assistant turn, and of an answer to it.

    Store and lookup both go through here. Cost is linear in the length of the history.
    """

    def __init__(self, messages: tuple[Message, ...], scope: bytes) -> None:
        self._state = _digest(b"", scope)
        self.keys: dict[int, bytes] = {}
        """Position of an assistant message in the request → its key."""
        for at, message in enumerate(messages):
            if message.role in _NOT_SAID:
                continue
            self._state = _digest(self._state, _said(message.role, message.content, message.calls))
            if message.role == "assistant":
                self.keys[at] = self._state

    def answer(self, text: str, calls: tuple[ToolCall, ...]) -> bytes:
        """The key of an answer to this history."""
        return _digest(self._state, _said("assistant", text, calls))


def scope(salt: bytes, credential: str, end_user: str | None, family: str) -> bytes:
    """Whose turns these are. Two callers, two end users or two model families never share one."""
    return _digest(salt, msgspec.json.encode(["scope", credential, end_user, family]))


def hashed(salt: bytes, kind: str, value: str) -> str:
    """A name that may stand in a log: salted, so that it cannot be looked up, and short."""
    return _digest(salt, msgspec.json.encode([kind, value])).hex()[:16]


def _digest(key: bytes, data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST, key=key).digest()


def _said(role: str, content: Json, calls: tuple[ToolCall, ...]) -> bytes:
    """A message reduced to what it says, so that changes that front ends make without meaning do not matter."""
    return _canonical.encode([role, _content(content), [[call.name, _arguments(call.arguments)] for call in calls]])


def _content(content: Json) -> Json:
    if isinstance(content, str):
        return _text(content)
    if isinstance(content, list):
        parts = [_text(part["text"]) if _is_text(part) else part for part in content]
        return parts[0] if len(parts) == 1 and isinstance(parts[0], str) else parts
    return "" if content is None else content


def _is_text(part: Json) -> bool:
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)


def _text(text: str) -> str:
    """Outer blanks and line ends are what front ends change in a text that nobody edited."""
    return text.replace("\r\n", "\n").strip()


def _arguments(arguments: str) -> Json:
    """Equal in value is equal: clients write argument JSON anew."""
    try:
        return _numbers(msgspec.json.decode(arguments)) if arguments.strip() else {}
    except (msgspec.DecodeError, RecursionError):
        return _text(arguments)


def _numbers(value: Json) -> Json:
    """`1.0` is `1` to a client that writes the JSON anew. Beyond 2^53 doubles are not exact, so there it is not."""
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT:
        return int(value)
    if isinstance(value, list):
        return [_numbers(part) for part in value]
    if isinstance(value, dict):
        return {name: _numbers(part) for name, part in value.items()}
    return value


def conversation_effort(chain: Chain, turns: Mapping[bytes, Turn]) -> str | None:
    """What the default chose for this conversation: that of its latest known turn where the default was asked."""
    for key in reversed(chain.keys.values()):
        turn = turns.get(key)
        if turn is not None and turn.effort is not None:
            return turn.effort
    return None


def restore(plan: Plan, chain: Chain, turns: Mapping[bytes, Turn], settings: Restoring) -> Plan:
    """The plan with every assistant message as the backend is to read it, and the counts of what was done.

    A thought that the client sends wins, unless it is the stored one but for blanks at its ends: then the stored bytes
    go. A trailing assistant message is the beginning of the answer, and gets nothing.
    """
    family = plan.facts.family
    rule = family.history if settings.restore == "auto" else settings.restore
    strips = family.history == "never" and rule == "never"
    first = _first_wanted(plan, rule)
    messages = list(plan.messages)
    present = restored = missing = stripped = 0
    for at, key in chain.keys.items():
        message, turn = messages[at], turns.get(key)
        if strips:
            stripped += any(name in message.fields for name in REASONING_FIELDS)
            messages[at] = replace(message, reasoning=None)
        elif message.reasoning is not None:
            present += 1
            if turn is not None and turn.reasoning.strip() == message.reasoning.strip():
                messages[at] = replace(message, reasoning=turn.reasoning)
        elif at >= first and at < len(messages) - 1:
            if turn is None:
                missing += 1
            elif turn.reasoning:
                restored += 1
                messages[at] = replace(message, reasoning=turn.reasoning)
    plan = replace(plan, messages=tuple(messages), history=History(present, restored, missing))
    if restored:
        plan = plan.decided("restore", f"{restored} of {len(chain.keys)} turns")
    if stripped:
        plan = plan.decided("strip", f"{stripped} turns: {family.name} takes no past thoughts")
    return plan


def _first_wanted(plan: Plan, rule: str) -> int:
    """The position from which on assistant messages get their thoughts back."""
    messages = plan.messages
    nowhere = len(messages)
    if rule == "all":
        return 0
    if rule == "tools":
        return 0 if plan.request.has_tools or any(message.calls for message in messages) else nowhere
    if rule == "current":
        return max((at for at, message in enumerate(messages) if message.role == "user"), default=-1) + 1
    return nowhere
