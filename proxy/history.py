"""Putting back what a front end dropped, by the rule of the model's family.

Never a false thought. What the client sends wins, if it is not blank and is not the stored thought but for blanks at
its ends: then the stored bytes go.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Literal, NamedTuple

import msgspec
from annotated_types import Ge, Le
from pydantic import field_validator

from proxy import window
from proxy.jsons import dumps, loads, splice
from proxy.keys import without_blanks
from proxy.messages import REASONING_FIELDS, History, Json, Message, Plan
from proxy.normalise import tool_calls
from proxy.recall import Recalled
from proxy.section import Section
from proxy.thinking import same_thought

FILLER = "(The reasoning of this step was not kept.)"
"""Stands in for a thought that nobody knows, where a family refuses a request without one."""


class Restoring(Section):
    """`[history]`: which assistant turns get their thought back, and for how long turns are kept.

    `restore = "auto"` is the family's own rule; `filler = "auto"` a fixed text, used only where a family refuses a
    missing thought, `"off"` sends none. The limits are by last use and by stored size; 0 is no limit.
    """

    restore: Literal["auto", "all", "tools", "current", "never"] = "auto"
    filler: str = "auto"
    lift_think_tags: bool = True
    max_age_days: Annotated[int, Ge(0), Le(36_500)] = 30
    max_mb: Annotated[int, Ge(0), Le(1_000_000_000)] = 1024

    @field_validator("filler")
    @classmethod
    def _is_visible(cls, filler: str) -> str:
        if not filler.strip():
            raise ValueError('needs a visible text; "off" sends none')
        return filler

    @property
    def filler_text(self) -> str:
        """The filler itself; empty where none is sent."""
        return {"auto": FILLER, "off": ""}.get(self.filler, self.filler).strip()


def conversation_effort(known: Mapping[int, Recalled]) -> str | None:
    """What the default chose for this conversation: that of its latest known turn where the default was asked."""
    efforts = (known[at].turn.effort for at in sorted(known, reverse=True))
    return next((effort for effort in efforts if effort is not None), None)


def restore(plan: Plan, known: Mapping[int, Recalled], settings: Restoring, *, answer: int, bare: bool = False) -> Plan:
    """The plan with every assistant message as the backend is to read it, and the counts of what was done.

    Where the window has no room for `answer` tokens, old thoughts are left out first, and those of the current tool
    loop last; `bare` leaves out all. A trailing assistant message is the beginning of the answer, and stays as it is.
    """
    terms = _Terms(plan, settings)
    fates = [terms.fate(at, message, known.get(at)) for at, message in enumerate(plan.messages)]
    plan = replace(plan, restored=_sizes(fates))
    out = plan.restored if bare else window.left_out(plan, terms.current, answer)
    for at in out:
        fates[at] = terms.dropped(fates[at])
    left = {at: size for at, size in plan.restored.items() if at not in out} if out else plan.restored
    plan = replace(plan, messages=tuple(fate.message for fate in fates), restored=left)
    return _explained(plan, fates)


class _Fate(NamedTuple):
    """What becomes of a message: under which count of History it falls (`kind`), and which rules had a part in it."""

    message: Message
    kind: str = ""
    rules: tuple[str, ...] = ()


class _Terms:
    """What the family and the settings want of one request."""

    def __init__(self, plan: Plan, settings: Restoring) -> None:
        family, count = plan.facts.family, len(plan.messages)
        rule = family.history if settings.restore == "auto" else settings.restore
        if plan.request.keeps_all and settings.restore == "auto" and rule != "never":
            rule = "all"
        tools = plan.request.has_tools or any(message.calls for message in plan.messages)
        users = (at for at, message in enumerate(plan.messages) if message.role == "user")
        self.current = max(users, default=-1) + 1
        """Where the current tool loop begins."""
        self._first = {"all": 0, "tools": 0 if tools else count, "current": self.current}.get(rule, count)
        self._last = count - 1
        self._strips = family.history == "never" and rule == "never"
        self._lifts = settings.lift_think_tags and family.thinks
        self._filler = settings.filler_text
        ask = plan.request.effort
        thinks = ask is None or ask.word != "none"
        required = family.required if plan.facts.refuses_missing and thinks else "never"
        self._all_required = required == "tools" and tools
        self._calls_required = required == "calls"

    def fate(self, at: int, message: Message, known: Recalled | None) -> _Fate:
        """What becomes of the message at a position."""
        if message.role != "assistant":
            return _Fate(message)
        if at == self._last:
            return _stripped(message) if self._strips else _Fate(message)
        if message.mirrored is not None and not self._lifts:
            return _stripped(message) if self._strips else _Fate(message, "present")
        message, rules = _said(message, known)
        return _stripped(message, rules) if self._strips else self._thought(at, message, known, rules)

    def dropped(self, fate: _Fate) -> _Fate:
        """The same without the thought that was put back."""
        message = _with(fate.message, reasoning=None)
        if "reasoning_details" in message.named:
            message = _with_fields(message, reasoning_details=None)
        rules = (*(rule for rule in fate.rules if rule != "restore"), "window")
        if not self._needs(message):
            return _Fate(message, "dropped", rules)
        return _Fate(_with(message, reasoning=self._filler), "dropped", (*rules, "filler"))

    def _thought(self, at: int, message: Message, known: Recalled | None, rules: tuple[str, ...]) -> _Fate:
        """The client's own thought, else the stored one, else what the family insists on."""
        own = message.reasoning
        if own is not None and own.strip() != self._filler:
            if known is not None and _same(own, known.reasoning, mirrored="lift" in rules):
                message = _thinking(message, known)
            return _Fate(message, "present", rules)
        if known is not None and (known.reasoning or known.turn.details) and at >= self._first:
            return _Fate(_thinking(message, known), "restored", (*rules, "restore"))
        if self._needs(message):
            return _Fate(_with(message, reasoning=self._filler), "filled", (*rules, "filler"))
        missing = known is None and at >= self._first
        return _Fate(_with(message, reasoning=None), "missing" if missing else "", rules)

    def _needs(self, message: Message) -> bool:
        """The backend refuses this message without a thought, and there is a filler to send."""
        return bool(self._filler) and (self._all_required or (self._calls_required and bool(message.calls)))


_with = msgspec.structs.replace


def _said(message: Message, known: Recalled | None) -> tuple[Message, tuple[str, ...]]:
    """The message with its visible part as the model wrote it: no thought in the text, its blanks, and its calls."""
    content, rules, changes = message.content, [], {}
    if message.mirrored is not None and not _is_literal(message, known):
        rules.append("lift")
        thought = message.reasoning or (message.mirrored if message.mirrored.strip() else None)
        message = _with(message, reasoning=thought)
    if known is not None and known.blanks is not None:
        content = _with_blanks(content, *known.blanks)
        if content is not message.content:
            rules.append("restore")
    if rules:
        changes["content"] = dumps(content or "")
    if known is not None and known.calls and not message.calls:
        rules.append("restore_calls")
        changes["tool_calls"] = known.calls.encode()
        message = _with(message, calls=tool_calls(loads(changes["tool_calls"])))
    return (_with_fields(message, **changes), tuple(rules)) if rules else (message, ())


def _is_literal(message: Message, known: Recalled | None) -> bool:
    """Whether what looks like a mirrored thought is the text of an answer that begins so."""
    if known is None or not known.placed or known.blanks is not None:
        return False
    return not same_thought(message.mirrored or "", known.reasoning)


def _with_fields(message: Message, **changes: bytes | None) -> Message:
    """The message with these raw values in place of its own; None takes a field away."""
    fields = {name: raw for name, raw in {**message.fields, **changes}.items() if raw is not None}
    return _with(message, raw=splice(fields), named=tuple(name for name in REASONING_FIELDS if name in fields))


def _with_blanks(content: Json, before: str, behind: str) -> Json:
    """A text with the blanks that the model wrote, which some clients cut off in one request and not in the next."""
    if isinstance(content, str):
        text = without_blanks(content)
        whole = f"{before}{text}{behind}"
        return content if not text or whole == content else whole
    if isinstance(content, list) and len(content) == 1 and isinstance(content[0], dict):
        part = content[0]
        whole = _with_blanks(part.get("text"), before, behind)
        return content if whole is part.get("text") else [{**part, "text": whole}]
    return content


def _same(own: str, stored: str, *, mirrored: bool) -> bool:
    """Whether a client's thought is the stored one, but for what clients change without meaning."""
    return own.strip() == stored.strip() or (mirrored and same_thought(own, stored))


def _thinking(message: Message, known: Recalled) -> Message:
    """The message with the stored thought, and with the stored details where the client sent none."""
    details = known.turn.details if known.turn.reasoning == known.reasoning else ""
    if details and "reasoning_details" not in message.named:
        message = _with_fields(message, reasoning_details=details.encode())
    return _with(message, reasoning=known.reasoning or None)


def _stripped(message: Message, rules: tuple[str, ...] = ()) -> _Fate:
    if not message.named and "lift" not in rules:
        return _Fate(message, "", rules)
    bare = _with_fields(message, **dict.fromkeys(message.named))
    return _Fate(_with(bare, reasoning=None), "", (*rules, "strip"))


def _sizes(fates: Sequence[_Fate]) -> dict[int, int]:
    """Bytes of the thoughts that were put back, by position."""
    texts = {at: fate.message.reasoning or "" for at, fate in enumerate(fates) if fate.kind == "restored"}
    return {at: len(text) if text.isascii() else len(text.encode()) for at, text in texts.items()}


def _explained(plan: Plan, fates: Sequence[_Fate]) -> Plan:
    """The plan with its counts, and a decision for each rule that changed something."""
    counts = Counter(fate.kind for fate in fates if fate.kind)
    plan = replace(plan, history=History(**counts))
    ruled = Counter(rule for fate in fates for rule in dict.fromkeys(fate.rules))
    for rule, reason in _REASONS.items():
        if ruled[rule]:
            plan = plan.decided(rule, f"{ruled[rule]} {'turn' if ruled[rule] == 1 else 'turns'}: {reason}")
    return plan


_REASONS = {
    "restore": "the thought, or the blanks around the text, that the front end dropped",
    "restore_calls": "the tool calls that the front end dropped",
    "lift": "a thought inside the visible text goes under its own name",
    "filler": "nobody knows the thought, and the backend refuses a request without one",
    "strip": "the family takes no past thoughts",
    "window": "left out, so that an answer fits into the window",
}
