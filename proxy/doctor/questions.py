"""What a backend is asked: small chat requests, written as the proxy writes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from proxy import normalise
from proxy.dialects import Dialect
from proxy.jsons import dumps, loads
from proxy.messages import Facts, Json, Plan

QUESTION = "Which is larger, 9.9 or 9.11? Explain."
OTHER_QUESTION = "Tell me how a ship floats, in two sentences."
ANSWER_TOKENS = 48
"""Enough to see under which name a thought comes, and to measure the speed."""

_PLAIN_MARK, _TOOL_MARK = "Apples come first.", "Pears come second."
_PLAIN_THOUGHT = f"{_PLAIN_MARK} {'One more apple goes into the basket. ' * 10}".strip()
_TOOL_THOUGHT = f"{_TOOL_MARK} {'One more pear goes into the basket. ' * 18}".strip()
_A_THOUGHT, _THE_LONGER, _BOTH = 36, 120, 196
"""More tokens than these. The thoughts have 84 and 148 where a word and a full stop are a token each."""
_CALL = {"id": "functions.count:0", "type": "function", "function": {"name": "count", "arguments": '{"what":"pears"}'}}
_TOOL = {
    "type": "function",
    "function": {
        "name": "count",
        "description": "Counts things.",
        "parameters": {"type": "object", "properties": {"what": {"type": "string"}}, "required": ["what"]},
    },
}

Body = Mapping[str, Json]


class Kept(NamedTuple):
    """Which past thoughts reached the prompt: that of a plain turn, and that of a turn with a tool call."""

    plain: bool
    tool: bool


def question(*, again: bool = False) -> dict[str, Any]:
    """One that a model likes to think about; another, where the first one got no answer."""
    return {"messages": [{"role": "user", "content": OTHER_QUESTION if again else QUESTION}]}


def history(*, thoughts: bool, tools: bool, ends_with_tool: bool) -> dict[str, Any]:
    """A plain turn and a tool turn, each with its thought; the last message is the tool's result or the user's."""
    plain = {"reasoning_content": _PLAIN_THOUGHT} if thoughts else {}
    called = {"reasoning_content": _TOOL_THOUGHT} if thoughts else {}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "How many apples are there?"},
        {"role": "assistant", "content": "Seven apples.", **plain},
        {"role": "user", "content": "And how many pears?"},
    ]
    if not tools:
        return {"messages": messages}
    messages += [
        {"role": "assistant", "content": "", "tool_calls": [_CALL], **called},
        {"role": "tool", "tool_call_id": _CALL["id"], "content": "12"},
    ]
    if not ends_with_tool:
        messages += [{"role": "assistant", "content": "Twelve."}, {"role": "user", "content": "Thank you."}]
    return {"messages": messages, "tools": [_TOOL]}


def kept_in(prompt: str) -> Kept:
    """Which thoughts stand in a prompt."""
    return Kept(_PLAIN_MARK in prompt, _TOOL_MARK in prompt)


def kept_in_tokens(more: int) -> Kept:
    """Which thoughts make a prompt so many tokens longer."""
    return Kept(plain=_A_THOUGHT < more <= _THE_LONGER or more > _BOTH, tool=more > _THE_LONGER)


def body(
    dialect: Dialect,
    facts: Facts,
    chat: Mapping[str, Any],
    *,
    cap: int,
    effort: str | None = None,
    stream: bool = False,
) -> dict[str, Any]:
    """The chat request as the proxy would send it, where a client asks for this effort."""
    fields: dict[str, Any] = {"model": facts.upstream_model, **chat}
    if effort:
        fields["reasoning_effort"] = effort
    if stream:
        fields["stream"] = True
    request = normalise.read(dumps(fields))
    plan = Plan(request, facts, request.messages, effort=effort, max_tokens=cap)
    written: dict[str, Any] = loads(dialect.encode(plan))
    return written


def place_of(word: str, written: Body) -> str:
    """Where a word stands in a request: `name` or `name.key`; empty where it does not."""
    return next(
        _places(word, {name: value for name, value in written.items() if name not in ("messages", "model")}), ""
    )


def _places(word: str, fields: Body) -> Iterator[str]:
    for name, value in fields.items():
        if value == word:
            yield name
        elif isinstance(value, dict):
            yield from (f"{name}.{inner}" for inner in _places(word, value))


def ends_open(prompt: str, tags: Sequence[tuple[str, str]]) -> bool:
    """Whether a prompt ends inside a thought, so that an answer begins in it."""
    return any(prompt.rstrip().endswith(opener) for opener, _ in tags)
