"""Client JSON → ChatRequest, with the quirks of front ends as named steps.

Nothing is rewritten here: raw fields are kept, and what the rules need is read beside them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from proxy import asks, thinking
from proxy.asks import MOST_TOKENS
from proxy.errors import InvalidRequest
from proxy.jsons import has_escaped_surrogates, healed, table
from proxy.messages import REASONING_FIELDS, ChatRequest, Json, Message, ToolCall

CAP_FIELDS = ("n_predict", "max_completion_tokens", "max_tokens")
"""Names of the output cap; where several are sent, llama-server, vLLM and Moonshot obey the first that they know."""

_UNLIMITED = -1
_PART_BYTES = 4_000
"""A picture's or a file's part in a prompt: about a thousand tokens."""
_LIST = msgspec.json.Decoder(list[msgspec.Raw])


def read(body: bytes) -> ChatRequest:
    """The request in `body`. Raises InvalidRequest that names the field and what it takes."""
    fields = _fields(body)
    model = _decoded(fields, "model")
    if not isinstance(model, str) or not model.strip():
        what = "missing" if model in (None, "") else f"no name but {_shown(model)}"
        raise InvalidRequest(f"`model` is {what}: give one of the names that GET /v1/models lists", param="model")
    stream = _boolean(fields, "stream")
    options = _table(fields, "chat_template_kwargs")
    cap_field, cap = _cap(fields)
    said = {name: _decoded(fields, name) for name in asks.FIELDS if name in fields}
    chosen = {name: _decoded(options, name) for name in asks.OPTIONS if name in options}
    stream_options = (_plain_table(fields, "stream_options") or {}) if stream else {}
    return ChatRequest(
        fields=fields,
        messages=_messages(fields),
        model=model,
        stream=stream,
        include_usage=stream_options.get("include_usage") is True,
        continuous_usage=stream_options.get("continuous_usage_stats") is True,
        max_tokens=cap,
        max_tokens_field=cap_field,
        effort=asks.effort(said, chosen),
        contradicted=asks.contradicted(said, chosen),
        repeated=asks.repeated(said, chosen),
        switched_on=asks.switched_on(said, chosen),
        budget=asks.budget(said),
        keeps_all=asks.keeps_all(said),
        has_tools=bool(_decoded(fields, "tools")),
        choices=_choices(fields),
        template_options=options,
    )


def _fields(body: bytes) -> dict[str, bytes]:
    try:
        return table(_without_half_pairs(body))
    except msgspec.ValidationError:
        raise InvalidRequest("the body must be a JSON object with `model` and `messages`") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}") from None


def _without_half_pairs(body: bytes) -> bytes:
    """The body with lone surrogates replaced, where it has any: engines refuse them, and so does our reader."""
    if not has_escaped_surrogates(body):
        return body
    try:
        msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        try:
            return healed(json.dumps(json.loads(body), ensure_ascii=False)).encode()
        except (ValueError, RecursionError):
            pass  # no JSON at all: whoever reads it next says so
    return body


def _decoded(fields: Mapping[str, bytes], name: str) -> Json:
    raw = fields.get(name)
    if raw is None:
        return None
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"`{name}` cannot be read: {error}", param=name) from None


def _boolean(fields: Mapping[str, bytes], name: str) -> bool:
    value = _decoded(fields, name)
    if value is None or isinstance(value, bool):
        return bool(value)
    raise InvalidRequest(f"`{name}` must be true or false, not {_shown(value)}", param=name)


def _plain_table(fields: Mapping[str, bytes], name: str) -> dict[str, Json] | None:
    value = _decoded(fields, name)
    if value is None or isinstance(value, dict):
        return value
    raise InvalidRequest(f"`{name}` must be an object, not {_shown(value)}", param=name)


def _table(fields: Mapping[str, bytes], name: str) -> dict[str, bytes]:
    """A field that is an object, with its own values left raw."""
    if _plain_table(fields, name) is None:
        return {}
    return table(fields[name])


def _cap(fields: Mapping[str, bytes]) -> tuple[str | None, int | None]:
    """The cap that an engine would obey and the name it came under; -1 is llama-server's word for no limit."""
    found: tuple[str | None, int | None] = (None, None)
    for name in reversed(CAP_FIELDS):
        value = _decoded(fields, name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not _UNLIMITED <= value <= MOST_TOKENS:
            takes = f"must be a whole number of tokens up to {MOST_TOKENS}"
            raise InvalidRequest(f"`{name}` {takes}, not {_shown(value)}", param=name)
        found = (name, None if value == _UNLIMITED else value)
    return found


def _choices(fields: Mapping[str, bytes]) -> int:
    """How many answers are wanted at once; what is no number of them is for the engine to refuse."""
    value = _decoded(fields, "n")
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 1


def _messages(fields: Mapping[str, bytes]) -> tuple[Message, ...]:
    raw = fields.get("messages")
    if raw is None:
        raise InvalidRequest("`messages` is missing: give a list with at least one message", param="messages")
    try:
        rows = _LIST.decode(raw)
    except msgspec.DecodeError:
        raise InvalidRequest("`messages` must be a list of objects", param="messages") from None
    if not rows:
        raise InvalidRequest("`messages` is empty: give at least one message", param="messages")
    return tuple(_message(bytes(row), at) for at, row in enumerate(rows))


class _Row(msgspec.Struct):
    role: Any = None
    content: Any = None
    tool_calls: Any = None
    name: Any = None
    tool_call_id: Any = None
    reasoning_content: Any = msgspec.UNSET
    reasoning: Any = msgspec.UNSET
    reasoning_details: Any = msgspec.UNSET

    def thoughts(self) -> dict[str, Any]:
        """The fields for thoughts that are there."""
        if self.reasoning_content is self.reasoning is self.reasoning_details is msgspec.UNSET:
            return {}
        values = {name: getattr(self, name) for name in REASONING_FIELDS}
        return {name: value for name, value in values.items() if value is not msgspec.UNSET}


_ROW = msgspec.json.Decoder(_Row)


def _message(raw: bytes, at: int) -> Message:
    try:
        row = _ROW.decode(raw)
    except msgspec.ValidationError:
        takes = "must be an object with `role` and `content`"
        raise InvalidRequest(f"messages[{at}] {takes}", param=f"messages.{at}") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"messages[{at}] cannot be read: {error}", param=f"messages.{at}") from None
    role, content = row.role, row.content
    if not isinstance(role, str) or not role:
        takes = "must be a text such as user or assistant"
        raise InvalidRequest(f"messages[{at}].role {takes}, not {_shown(role)}", param=f"messages.{at}.role")
    size = _size(raw, content)
    if role != "assistant":
        name = _text(row.name) if role == "user" else None
        call_id = _text(row.tool_call_id) if role == "tool" else None
        return Message(raw, role, content, name=name, call_id=call_id, size=size)
    mirrored, content = _unfolded(content)
    calls = tool_calls(row.tool_calls)
    thoughts = row.thoughts()
    if not thoughts:  # almost always
        return Message(raw, role, content, calls=calls, mirrored=mirrored, size=size)
    reasoning, named = reasoning_of(thoughts), tuple(thoughts)
    return Message(raw, role, content, calls=calls, reasoning=reasoning, named=named, mirrored=mirrored, size=size)


def _size(raw: bytes, content: Json) -> int:
    """Bytes of a message as a model reads it: a picture is as long as its file only on the wire."""
    others = [part for part in content if not _is(part, "text")] if isinstance(content, list) else []
    if not others:
        return len(raw)
    return _PART_BYTES * len(others) + sum(len(part["text"].encode()) for part in content if _is(part, "text"))


def _is(part: Json, kind: str) -> bool:
    return isinstance(part, dict) and part.get("type") == kind and isinstance(part.get(kind), str)


def _text(value: Json) -> str | None:
    return value if isinstance(value, str) and value else None


def _unfolded(content: Json) -> tuple[str | None, Json]:
    """The thought that a front end folded into an assistant's text or parts, None where there is none, and the rest."""
    if isinstance(content, str):
        found = thinking.lifted(content)
        return found or (None, content)
    if not isinstance(content, list):
        return None, content
    thoughts = [_thought_in(part) for part in content]
    rest = [part for part, thought in zip(content, thoughts, strict=True) if thought is None]
    texts = [thought for thought in thoughts if thought is not None]
    if rest and _is(rest[0], "text") and (found := thinking.lifted(rest[0]["text"])):
        texts.append(found[0])
        rest = [{**rest[0], "text": found[1]}, *rest[1:]]
    return ("\n\n".join(texts) if texts else None), rest


def _thought_in(part: Json) -> str | None:
    """The thought of a part that is one: `thinking` (SGLang, and as a list of texts Mistral) or `reasoning`."""
    kind = part.get("type") if isinstance(part, dict) else None
    if kind not in ("thinking", "reasoning"):
        return None
    said = part.get("thinking") if kind == "thinking" else part.get("text")
    return parts_text(said) if isinstance(said, str | list) else None


def parted(content: list[Json]) -> tuple[str, str] | None:
    """(thought, text) of an answer whose content is a list of parts, as Mistral's; None where it has other parts."""
    thoughts = [_thought_in(part) for part in content]
    others = [part for part, thought in zip(content, thoughts, strict=True) if thought is None]
    if not all(_is(part, "text") for part in others):
        return None
    return "".join(thought or "" for thought in thoughts), "".join(part["text"] for part in others)


def parts_text(value: Json) -> str:
    """The text of a thought that is a text, an object, or a list of these."""
    parts = value if isinstance(value, list) else [value]
    texts = [part.get("text") if isinstance(part, dict) else part for part in parts]
    return "".join(text for text in texts if isinstance(text, str))


def tool_calls(value: Json) -> tuple[ToolCall, ...]:
    """The calls in a `tool_calls` value. What has no function name is left out: an engine will say so better."""
    calls = []
    for entry in value if isinstance(value, list) else ():
        function = entry.get("function") if isinstance(entry, dict) else None
        if isinstance(function, dict) and isinstance(function.get("name"), str):
            arguments = function.get("arguments")
            arguments = "" if arguments is None else arguments
            text = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
            calls.append(ToolCall(function["name"], text, entry.get("id")))
    return tuple(calls)


def reasoning_of(values: Mapping[str, Json]) -> str | None:
    """The thought under any of its names; None where it is missing, blank or no text."""
    for name in REASONING_FIELDS:
        value = values.get(name)
        if name == "reasoning_details":
            value = details_text(value)
        if isinstance(value, str) and value.strip():
            return value
    return None


def details_text(value: Json) -> str:
    """The texts of `reasoning_details`, joined in order without separators."""
    entries = [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []
    texts = [entry.get("text") or entry.get("summary") for entry in entries]
    return "".join(text for text in texts if isinstance(text, str))


def _shown(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 60 else text[:57] + "…"
