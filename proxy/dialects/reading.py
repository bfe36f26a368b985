"""An answer's JSON → a neutral event, from whichever fields an engine uses."""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import msgspec

from proxy.errors import UpstreamError
from proxy.events import Event, Part, Progress, Usage, count_of
from proxy.jsons import JsonError, loads
from proxy.messages import REASONING_FIELDS, Json
from proxy.normalise import details_text, parted, parts_text


class _Delta(msgspec.Struct):
    role: Any = None
    content: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    reasoning_details: Any = None
    tool_calls: Any = None
    refusal: Any = None
    audio: Any = None
    images: Any = None
    function_call: Any = None


class _Choice(msgspec.Struct):
    error: Any = None
    index: Any = None
    delta: _Delta | None = None
    message: _Delta | None = None
    finish_reason: Any = None
    usage: Any = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: Any = None
    timings: Any = None
    error: Any = None
    object: Any = None
    message: Any = None
    detail: Any = None
    prompt_progress: Any = None


_CHUNK = msgspec.json.Decoder(_Chunk)


def decode(payload: bytes, *, whole: bool = False) -> Event:
    """One event of a stream, or a `whole` answer. Raises UpstreamError for what is no JSON object."""
    payload = _utf8(payload)
    try:
        chunk = _chunk(payload)
    except JsonError as error:
        raise UpstreamError(f"the backend sent an answer that cannot be read: {error}") from None
    event = Event(payload)
    event.error = _error(chunk, payload)
    usage = chunk.usage
    for at, choice in enumerate(chunk.choices or ()):
        said = choice.message if whole else choice.delta
        index = int(choice.index) if isinstance(choice.index, str) and choice.index.isdecimal() else choice.index
        numbered = isinstance(index, int) and not isinstance(index, bool)
        if said is None or not numbered or index is not choice.index:
            event.odd = True
        _read(event, index if numbered else at, choice, said or _Delta())
        usage = usage or choice.usage
    event.empty = not chunk.choices
    if isinstance(usage, dict):
        event.usage = usage_of(usage)
    if isinstance(chunk.timings, dict):
        event.timings = chunk.timings
    if isinstance(chunk.prompt_progress, dict):
        event.progress = _progress(chunk.prompt_progress)
    return event


def _progress(told: Mapping[str, Json]) -> Progress | None:
    """How far llama-server has read the prompt; its own chunk says nothing else but, again, the role."""
    total, processed = count_of(told.get("total")), count_of(told.get("processed"))
    if total is None or processed is None:
        return None
    milliseconds = told.get("time_ms")
    seconds = milliseconds / 1000 if isinstance(milliseconds, int | float) and milliseconds > 0 else 0.0
    return Progress(total, count_of(told.get("cache")) or 0, min(processed, total), seconds)


def _error(chunk: _Chunk, payload: bytes) -> Mapping[str, Json] | None:
    """The backend's own error: nested, flat as SGLang's, a bare text, or in a choice as OpenRouter's."""
    if chunk.error or (chunk.error is not None and not chunk.choices):
        return chunk.error if isinstance(chunk.error, dict) else {"message": str(chunk.error)}
    if chunk.choices is None and (chunk.object == "error" or isinstance(chunk.detail or chunk.message, str)):
        found = loads(payload)
        return {**found, "message": found.get("message") or found.get("detail")}
    for choice in chunk.choices or ():
        if choice.error or choice.finish_reason == "error":
            told = choice.error if isinstance(choice.error, dict) else {"message": choice.error or "the backend failed"}
            return {"type": "upstream_error", **told}
    return None


def _utf8(payload: bytes) -> bytes:
    """The payload with what is no UTF-8 replaced: it may stand in a field that nobody reads, and leave as it came."""
    if payload.isascii():
        return payload
    try:
        payload.decode()
    except UnicodeDecodeError:
        return payload.decode("utf-8", "replace").encode()
    return payload


def _chunk(payload: bytes) -> _Chunk:
    try:
        return _CHUNK.decode(payload)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        return msgspec.convert(loads(payload), _Chunk)


def _read(event: Event, at: int, choice: _Choice, said: _Delta) -> None:
    other = bool(said.refusal or said.audio or said.images or said.function_call)
    part = Part(at, role=said.role == "assistant", other=other)
    if said.role is not None and not part.role:
        event.odd = True
    if isinstance(said.content, str):
        part.text = said.content
    elif isinstance(said.content, list) and (found := parted(said.content)) is not None:
        event.odd, (part.reasoning, part.text) = True, found
    for name in REASONING_FIELDS:
        value = getattr(said, name)
        if name != "reasoning_details" and isinstance(value, dict | list):
            event.odd, value = True, parts_text(value)
        if name == "reasoning_details" and isinstance(value, list):
            part.details = [entry for entry in value if isinstance(entry, dict)]
        text = details_text(value) if name == "reasoning_details" else value
        if isinstance(text, str) and text:
            event.names |= {name}
            part.reasoning = part.reasoning or text
        elif value == "":
            event.odd = True
    if isinstance(said.tool_calls, dict):
        event.odd, said.tool_calls = True, [said.tool_calls]
    if isinstance(said.tool_calls, list):
        part.calls = [call for call in said.tool_calls if isinstance(call, dict)]
    if isinstance(choice.finish_reason, str) and choice.finish_reason:
        part.finish = choice.finish_reason
    elif choice.finish_reason is not None:
        event.odd = True
    event.parts.append(part)


def usage_of(usage: Mapping[str, Json]) -> Usage:
    """Tokens as reported, wherever an engine puts them."""
    prompt_details = _details(usage, "prompt_tokens_details")
    completion_details = _details(usage, "completion_tokens_details")
    prompt, said = count_of(usage.get("prompt_tokens")), count_of(usage.get("completion_tokens"))
    reasoning = _first(completion_details.get("reasoning_tokens"), usage.get("reasoning_tokens"))
    completion = _with_thought(prompt, said, reasoning, count_of(usage.get("total_tokens")))
    return Usage(
        prompt=prompt,
        cached=_first(
            prompt_details.get("cached_tokens"), usage.get("cached_tokens"), usage.get("prompt_cache_hit_tokens")
        ),
        completion=completion,
        reasoning=reasoning,
        repaired=completion != said,
        written=_first(
            prompt_details.get("cache_write_tokens"),
            prompt_details.get("created_cache_tokens"),
            prompt_details.get("cache_creation_tokens"),
            usage.get("cache_creation_input_tokens"),
        ),
        cost=_cost(usage),
    )


def _cost(usage: Mapping[str, Json]) -> Decimal | None:
    """OpenRouter says what it asks; with a key of one's own its fee, and beside it what the maker asks."""
    told = [usage.get("cost"), _details(usage, "cost_details").get("upstream_inference_cost")]
    parts = [part for part in told if isinstance(part, int | float) and not isinstance(part, bool) and part >= 0]
    if not isinstance(told[0], int | float) or not parts or not all(map(math.isfinite, parts)):
        return None
    return sum(map(Decimal, map(repr, parts if usage.get("is_byok") is True else parts[:1])), Decimal(0))


def _with_thought(prompt: int | None, said: int | None, reasoning: int | None, total: int | None) -> int | None:
    """The completion with its thought in it: some services count only what is visible, and the total tells."""
    if said is None or not reasoning:
        return said
    left = total - prompt if total is not None and prompt is not None else None
    if reasoning > said:
        return left if left is not None and left >= reasoning else said + reasoning
    return left if left == said + reasoning else said


def _details(usage: Mapping[str, Json], name: str) -> Mapping[str, Json]:
    value = usage.get(name)
    return value if isinstance(value, dict) else {}


def _first(*values: Json) -> int | None:
    return next((number for value in values if (number := count_of(value)) is not None), None)
