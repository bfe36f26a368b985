"""What every OpenAI-compatible engine has in common; an engine's module says only what differs.

`encode` writes a plan as a request body: raw fields are spliced in the client's order, and only what the plan changes
is written anew. `decode` reads one event of an answer, or a whole one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec

from proxy import jsons
from proxy.errors import UpstreamError
from proxy.jsons import JsonError, dumps, loads, splice
from proxy.messages import REASONING_FIELDS, Event, Facts, Json, Message, Part, Plan, Usage, count_of
from proxy.normalise import CAP_FIELDS, details_text

Fields = dict[str, bytes]

_PLAIN_FIELDS = frozenset({"role", "content", "name", *REASONING_FIELDS})
"""Of an assistant message that has nothing but a text to say."""


class _Delta(msgspec.Struct):
    role: Any = None
    content: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    reasoning_details: Any = None
    tool_calls: Any = None


class _Choice(msgspec.Struct):
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


_CHUNK = msgspec.json.Decoder(_Chunk)


class Dialect:
    """An engine's way of saying things. Stateless: one instance serves all requests."""

    name: ClassVar[str] = "openai"
    tells_properties: ClassVar[bool] = False
    """It can be asked for its models, window and template."""
    reasoning_field: ClassVar[str] = "reasoning_content"
    """The name under which the engine reads past thoughts."""
    keeps: ClassVar[frozenset[str]] = frozenset()
    """Further thought fields that the engine reads, and that go back word for word."""
    cap_fields: ClassVar[tuple[str, ...]] = CAP_FIELDS
    """Names of the output cap that the engine obeys; the first is used where the client's own is not among them."""
    effort_places: ClassVar[frozenset[str]] = frozenset({"reasoning_effort", "reasoning.effort", "thinking.effort"})
    """Where the engine understands an effort word, beside template options."""
    takes_template_options: ClassVar[bool] = False
    budget_field: ClassVar[str | None] = None
    """The field for a hard cap on thinking tokens, where the engine has one."""
    refuses_overflow: ClassVar[bool] = False
    """Prompt plus cap beyond the window is an error, not a clamp."""
    refuses_missing: ClassVar[bool] = True
    """A past thought that its family requires is missed with an error. Servers of one's own only do worse without."""
    reuses_connections: ClassVar[bool] = True
    """A connection can serve a further request after it served one."""

    def encode(self, plan: Plan) -> bytes:
        """The request body for this engine."""
        fields = dict(plan.request.fields)
        if plan.facts.upstream_model != plan.request.model:
            fields["model"] = dumps(plan.facts.upstream_model)
        fields["messages"] = b"[" + b",".join(map(self._message, plan.messages)) + b"]"
        self._write_cap(fields, plan)
        if plan.effort is not None:
            self._write_effort(fields, plan)
        if plan.thinking_budget is not None and self.budget_field:
            fields[self.budget_field] = dumps(plan.thinking_budget)
        if plan.request.stream and not plan.request.include_usage:
            merge(fields, "stream_options", "include_usage", True)
        return splice(fields)

    def _message(self, message: Message) -> bytes:
        """A message with its thought under the name that the engine reads, once, and without blank ones.

        One without content or calls is what is left of an answer that was stopped: an empty text.
        """
        if message.role != "assistant":
            return message.raw
        if not message.named and (message.content is not None or message.calls):
            thought = message.reasoning
            return message.raw if thought is None else _with_field(message.raw, self.reasoning_field, thought)
        fields: Fields = {}
        for name, raw in message.fields.items():
            if name not in REASONING_FIELDS or name in self.keeps:
                fields[name] = raw
            elif name == self.reasoning_field and message.reasoning is not None:
                fields[name] = dumps(message.reasoning)
        if message.reasoning is not None:
            fields.setdefault(self.reasoning_field, dumps(message.reasoning))
        if message.content is None and fields.keys() <= _PLAIN_FIELDS:
            fields["content"] = b'""'
        return splice(fields)

    def _write_cap(self, fields: Fields, plan: Plan) -> None:
        """One cap under one name: never two values."""
        if plan.max_tokens is None:
            return
        came = plan.request.max_tokens_field
        name = came if came in self.cap_fields else self.cap_fields[0]
        if came != name or plan.max_tokens != plan.request.max_tokens:
            put_in_place(fields, came or name, name, dumps(plan.max_tokens))
        for other in CAP_FIELDS:
            if other != name:
                fields.pop(other, None)

    def _write_effort(self, fields: Fields, plan: Plan) -> None:
        """The effort where this engine reads it. What the client wrote stays, if the engine understands it as it is."""
        ask = plan.request.effort
        if ask is not None and (ask.word == "none" or ask.where.startswith("chat_template_kwargs.")):
            return
        if ask is not None and not plan.effort_changed and self._understands(ask.where, plan.facts):
            return
        if ask is not None:
            forget(fields, ask.where)
        if self.takes_template_options and plan.facts.effort_option not in ("", "reasoning_effort"):
            merge(fields, "chat_template_kwargs", plan.facts.effort_option, plan.effort)
        else:
            self._set_effort(fields, plan.effort or "")

    def _understands(self, where: str, facts: Facts) -> bool:
        if self.takes_template_options and facts.effort_option not in ("", "reasoning_effort"):
            return False
        return where in self.effort_places

    def _set_effort(self, fields: Fields, word: str) -> None:
        fields["reasoning_effort"] = dumps(word)

    def effort_option(self, family_option: str, template: str | None) -> str:
        """The template option that carries the effort; empty where the engine has a field that works.

        `template` is the model's chat template where the engine tells it.
        """
        return ""

    def decode(self, payload: bytes, *, whole: bool = False) -> Event:
        """One event of a stream, or a `whole` answer. Raises UpstreamError for what is no JSON object."""
        try:
            chunk = _chunk(payload)
        except JsonError as error:
            raise UpstreamError(f"the backend sent an answer that cannot be read: {error}") from None
        event = Event(payload)
        if chunk.error:
            event.error = chunk.error if isinstance(chunk.error, dict) else {"message": str(chunk.error)}
        usage = chunk.usage
        for at, choice in enumerate(chunk.choices or ()):
            said = choice.message if whole else choice.delta
            numbered = isinstance(choice.index, int) and not isinstance(choice.index, bool)
            if said is None or not numbered:
                event.odd = True
            _read(event, choice.index if numbered else at, choice, said or _Delta())
            usage = usage or choice.usage
        event.empty = not chunk.choices
        if isinstance(usage, dict):
            event.usage = usage_of(usage)
        if isinstance(chunk.timings, dict):
            event.timings = chunk.timings
        return event


def _chunk(payload: bytes) -> _Chunk:
    try:
        return _CHUNK.decode(payload)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        return msgspec.convert(loads(payload), _Chunk)


def _read(event: Event, at: int, choice: _Choice, said: _Delta) -> None:
    part = Part(at, role=said.role == "assistant")
    if said.role is not None and not part.role:
        event.odd = True
    if isinstance(said.content, str):
        part.text = said.content
    for name in REASONING_FIELDS:
        value = getattr(said, name)
        if name == "reasoning_details" and isinstance(value, list):
            part.details = [entry for entry in value if isinstance(entry, dict)]
        text = details_text(value) if name == "reasoning_details" else value
        if isinstance(text, str) and text:
            event.names |= {name}
            part.reasoning = part.reasoning or text
        elif value == "":
            event.odd = True
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
    )


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


def _with_field(raw: bytes, name: str, value: str) -> bytes:
    """An object that has other fields, with one more at its end."""
    return b'%b,"%b":%b}' % (raw.rstrip()[:-1].rstrip(), name.encode(), dumps(value))


def merge(fields: Fields, table: str, key: str, value: Json) -> None:
    """Set one key of a field that is an object, leaving its others as they came."""
    raw = fields.get(table, b"null")
    inner = {} if raw.strip() == b"null" else jsons.table(raw)
    inner[key] = dumps(value)
    fields[table] = splice(inner)


def forget(fields: Fields, where: str) -> None:
    """Remove the field at `name` or `name.key`, and an object that is empty then."""
    name, _, key = where.partition(".")
    if key:
        inner = {part: raw for part, raw in jsons.table(fields[name]).items() if part != key}
        if inner:
            fields[name] = splice(inner)
            return
    fields.pop(name, None)


def put_in_place(fields: Fields, old: str, new: str, raw: bytes) -> None:
    """Set `new` where `old` stands, so that the order of the others stays as it was."""
    if old == new or old not in fields:
        fields[new] = raw
        return
    items = [
        (new, raw) if name == old else (name, value) for name, value in fields.items() if name != new or name == old
    ]
    fields.clear()
    fields.update(items)
