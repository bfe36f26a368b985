"""A streamed answer as the whole one that it is, for a client that did not ask for a stream."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from proxy.dialects import reading
from proxy.events import Event
from proxy.fold import Choice, Fold, finish_of
from proxy.jsons import dumps, has_escaped_surrogates, healed, loads
from proxy.messages import REASONING_FIELDS, Json, ToolCall
from proxy.normalise import details_text

_NOT_TOP = frozenset({"object", "choices", "usage", "error", "obfuscation", "prompt_progress"})
"""Top-level fields that are written anew, or that only a stream has."""
_NOT_CHOICE = frozenset({"index", "delta", "message", "finish_reason", "logprobs", "usage"})
_NOT_DELTA = frozenset({"content", "tool_calls", *REASONING_FIELDS})
_NOT_CALL = frozenset({"index", "id", "type", "function"})
_NOT_FUNCTION = frozenset({"name", "arguments"})


@dataclass(slots=True)
class _Call:
    """Of one call what the fold does not keep."""

    others: dict[str, Json] = field(default_factory=dict)
    others_of_function: dict[str, Json] = field(default_factory=dict)


@dataclass(slots=True)
class _Beside:
    """Of one choice what the fold does not keep."""

    others: dict[str, Json] = field(default_factory=dict)
    lists: dict[str, list[Json]] = field(default_factory=dict)  # of its deltas
    logprobs: dict[str, Json] | None = None
    refusal: list[str] = field(default_factory=list)
    calls: dict[int, _Call] = field(default_factory=dict)


class Gather:
    """Takes the shaped events of a stream in order, and gives the whole answer that they are.

    Texts, calls, details and finishes are the fold's, which has had the same events. Here is kept what stands beside
    them. At the top, in a choice and in a call: objects are merged and lists joined, of all else the last value counts
    that is not null. In a delta: `refusal` grows, lists (`annotations`, `images`) are joined, and other fields that
    nobody knows are left out, because those that grow cannot be told from those that are said again.
    """

    def __init__(self) -> None:
        self.usage: dict[str, Json] | None = None
        """As the engine wrote it last; a caller may put another in its place."""
        self._top: dict[str, Json] = {}
        self._choices: dict[int, _Beside] = {}

    def add(self, event: Event) -> None:
        """One event of the stream, or parts that were held back. An error is no part of an answer."""
        if event.error is not None:
            return
        for part in event.parts:
            beside = self._choices.setdefault(part.choice, _Beside())
            if part.calls:
                _read_calls(beside.calls, part.calls)
        if not event.raw:
            return
        body = loads(event.raw)
        _merge(self._top, body, _NOT_TOP)
        usage = body.get("usage")
        for choice, part in zip(body.get("choices") or (), event.parts, strict=False):
            usage = usage or choice.get("usage")
            _read_choice(self._choices[part.choice], choice)
        if usage and isinstance(usage, dict):
            self.usage = usage

    def whole(self, fold: Fold, *, growing: bool = False) -> Event:
        """The answer as a backend's whole one is read; so far, where it is still `growing`."""
        said = zip(fold.choices, fold.answers(growing=growing), strict=True)
        body: dict[str, Any] = {
            **self._top,
            "object": "chat.completion",
            "choices": [self._choice(at, *one) for at, one in sorted(said, key=lambda pair: pair[0])],
        }
        if self.usage is not None:
            body["usage"] = self.usage
        raw = dumps(body)
        if not growing and has_escaped_surrogates(raw):
            raw = healed(json.dumps(body, ensure_ascii=False)).encode()
        return reading.decode(raw, whole=True)

    def _choice(self, at: int, choice: Choice, reasoning: str, text: str) -> dict[str, Json]:
        beside = self._choices.get(at) or _Beside()
        calls = zip(choice.calls, choice.tool_calls, strict=True)
        message: dict[str, Json] = {"role": "assistant", "content": text}
        if reasoning:
            message["reasoning_content"] = reasoning
        if choice.details and (reasoning or not details_text(choice.details)):
            message["reasoning_details"] = choice.details
        if choice.calls:
            message["tool_calls"] = [_written(call, beside.calls.get(one.index) or _Call()) for one, call in calls]
        if beside.refusal:
            message["refusal"] = healed("".join(beside.refusal))
        if not text and (choice.calls or beside.refusal):
            message["content"] = None
        message |= {name: values for name, values in beside.lists.items() if name not in message}
        written = {**beside.others, "index": at, "message": message, "finish_reason": finish_of(choice)}
        return written if beside.logprobs is None else {**written, "logprobs": beside.logprobs}


def _read_choice(beside: _Beside, choice: Mapping[str, Json]) -> None:
    _merge(beside.others, choice, _NOT_CHOICE)
    logprobs, delta = choice.get("logprobs"), choice.get("delta")
    if isinstance(logprobs, dict):
        beside.logprobs = beside.logprobs or {}
        _merge(beside.logprobs, logprobs)
    if not isinstance(delta, dict):
        return
    for name, value in delta.items():
        if name == "refusal" and value and isinstance(value, str):
            beside.refusal.append(value)
        elif isinstance(value, list) and name not in _NOT_DELTA:
            beside.lists.setdefault(name, []).extend(value)


def _read_calls(known: dict[int, _Call], fragments: Sequence[Mapping[str, Json]]) -> None:
    """Fields of calls beside those of the fold, such as Gemini's `extra_content`; the text of a custom call grows."""
    for fragment in fragments:
        index = fragment.get("index")
        call = known.setdefault(index if isinstance(index, int) else len(known), _Call())
        had = call.others.get("custom")
        _merge(call.others, fragment, _NOT_CALL)
        custom, function = fragment.get("custom"), fragment.get("function")
        if isinstance(custom, dict) and isinstance(had, dict):
            texts = [each.get("input") for each in (had, custom)]
            grown = "".join(text for text in texts if isinstance(text, str))
            call.others["custom"] = {**call.others["custom"], "input": grown}
        if isinstance(function, dict):
            _merge(call.others_of_function, function, _NOT_FUNCTION)


def _written(call: ToolCall, beside: _Call) -> dict[str, Json]:
    """A call as a whole answer has it; a custom one has no function."""
    if "custom" in beside.others:
        return {"id": call.id, "type": "custom", **beside.others}
    function = {"name": call.name, "arguments": call.arguments, **beside.others_of_function}
    return {"id": call.id, "type": "function", "function": function, **beside.others}


def _merge(known: dict[str, Json], new: Mapping[str, Json], left_out: Iterable[str] = ()) -> None:
    """Add the fields of a further piece: objects are merged, lists joined, and null takes nothing away."""
    for name, value in new.items():
        if name in left_out:
            continue
        had = known.get(name)
        if isinstance(value, dict) and isinstance(had, dict):
            known[name] = {**had, **value}
        elif isinstance(value, list) and isinstance(had, list):
            had.extend(value)
        elif value is not None or name not in known:
            known[name] = list(value) if isinstance(value, list) else value
