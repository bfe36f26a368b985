"""The values that travel through the pipeline. No behaviour beyond reading themselves.

Those of which a request has hundreds are msgspec structs, which are made ten times faster than frozen dataclasses.

Wire bodies are never modelled whole: a request is a table of raw JSON fields in the client's order, so that what nobody
touches leaves with the bytes that came, and unknown fields go along.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from proxy.families import Family
from proxy.jsons import table
from proxy.thoughts import Room

Json = Any
"""A decoded JSON value."""

REASONING_FIELDS = ("reasoning_content", "reasoning", "reasoning_details")
"""Names under which a thought stands on an assistant message, in the order in which they are believed."""


class ToolCall(msgspec.Struct, frozen=True):
    """A tool call of an assistant message. `arguments` is the JSON text that the model wrote."""

    name: str
    arguments: str
    id: str | None = None


class Message(msgspec.Struct, frozen=True):
    """One message of a request.

    `raw` is its JSON, as it came or as it is to go but for the thought. `reasoning` is the thought that goes with it:
    first what came under any of its names, None where the field is missing, blank or no text; after `history.restore`,
    what the backend is to read. `named` are the names of thoughts that `raw` has.

    `mirrored` is a thought that a front end folded into the visible text or its parts, and `content` is without it;
    None where there is none. `name` is a user's, `call_id` that of the call whose result this is. `size` is in bytes,
    pictures and the like at a fixed one.
    """

    raw: bytes
    role: str
    content: Json = None
    calls: tuple[ToolCall, ...] = ()
    reasoning: str | None = None
    named: tuple[str, ...] = ()
    mirrored: str | None = None
    name: str | None = None
    call_id: str | None = None
    size: int = 0

    @property
    def fields(self) -> dict[str, bytes]:
        """The raw values by name, in the client's order. Read anew each time: most messages go as they came."""
        return table(self.raw)


@dataclass(frozen=True, slots=True)
class Ask:
    """What a client said about effort: the word, and where it stands. `word` "none" means: do not think; `where` is
    empty where the model's name said it."""

    word: str
    where: str


@dataclass(frozen=True, slots=True)
class Budget:
    """How many tokens of thought a client allows, and where it says so."""

    tokens: int
    where: str


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A chat completion request: raw `fields` in the client's order, and what the rules need to know of them.

    `contradicted` are the places where another effort is said than `effort`. `switched_on` is where the client says
    that the model shall think, without a word for how much; `keeps_all` that all past thoughts count
    (`thinking.keep`).
    """

    fields: Mapping[str, bytes]
    messages: tuple[Message, ...]
    model: str
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    max_tokens: int | None = None
    max_tokens_field: str | None = None
    effort: Ask | None = None
    contradicted: tuple[str, ...] = ()
    repeated: tuple[str, ...] = ()
    switched_on: str | None = None
    budget: Budget | None = None
    keeps_all: bool = False
    has_tools: bool = False
    choices: int = 1
    template_options: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Decision:
    """A rule changed something: its public name, and why."""

    rule: str
    reason: str


@dataclass(frozen=True, slots=True)
class History:
    """What became of the assistant turns of a request; the counts of `x-proxy-history`."""

    present: int = 0
    restored: int = 0
    missing: int = 0
    filled: int = 0
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known about where a request goes, before anything is decided.

    `context_limit` is in tokens, None where unknown. `effort_option` is the template option that carries the effort
    on this engine, empty where the effort has a field of its own; `switch_on` and `switch_off` are those that make
    the model think or not, `keep_all` those that keep all past thoughts in the prompt, each empty where there are
    none. `thinks_always`: nothing switches it off here; `effort_refused`: an effort is an error, as far as is
    known. `conversation_effort` is `Turn.effort` of the latest known turn of the same conversation.
    `bytes_per_token` is that of prompts, learned or assumed on the safe side. `reasoning_field` is the name under
    which past thoughts are read, empty for the engine's usual one. `is_service`: the family's own service.
    `takes_options`: it reads template options. `has_control`: a thought can be ended while it runs; `has_progress`: it
    tells how far it has read a prompt; `lets_go`: it stops when nobody waits for a whole answer any more; `whole_only`
    are fields that it takes together, but not in a stream. `rooms`: effort as sent (empty where none is) → what the
    thoughts of this family took here.
    """

    backend: str
    engine: str
    family: Family
    upstream_model: str
    slow: bool = False
    context_limit: int | None = None
    effort_option: str = ""
    switch_on: Mapping[str, Json] = field(default_factory=dict)
    switch_off: Mapping[str, Json] = field(default_factory=dict)
    keep_all: Mapping[str, Json] = field(default_factory=dict)
    thinks_always: bool = False
    effort_refused: bool = False
    budget_fields: tuple[str, ...] = ()
    reasoning_field: str = ""
    is_service: bool = False
    takes_developer: bool = True
    takes_options: bool = True
    refuses_overflow: bool = False
    refuses_missing: bool = False
    bytes_per_token: float = 3.0
    conversation_effort: str | None = None
    has_control: bool = False
    has_progress: bool = False
    lets_go: bool = True
    whole_only: tuple[str, ...] = ()
    rooms: Mapping[str, Room] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plan:
    """What goes to the backend, and why: the request, and what the rules made of it.

    `effort`, `max_tokens` and `thinking_budget` are what will be sent, None for nothing; each has its reason. Where the
    effort stays as the client wrote it, `effort_changed` is false and its place in the body is left alone.
    `restored` is the size in bytes of the thoughts that were put back, by position. `fields` are further raw values
    that are set, or with None taken away; `developer_role` is "system" where that role is sent as the other.
    `streamed`: the answer is to come as a stream, whatever the client wants, with a thought that can be ended
    (`controlled`) and a word now and then while the prompt is read (`progress`).
    """

    request: ChatRequest
    facts: Facts
    messages: tuple[Message, ...]
    kind: str = "chat"
    effort: str | None = None
    effort_reason: str | None = None
    effort_changed: bool = False
    max_tokens: int | None = None
    max_tokens_reason: str | None = None
    thinking_budget: int | None = None
    thinking_budget_reason: str | None = None
    developer_role: str = "keep"
    fields: Mapping[str, bytes | None] = field(default_factory=dict)
    stops: tuple[str, ...] = ()
    keeps_stop: bool = False
    visible_tokens: int | None = None
    controlled: bool = False
    progress: bool = False
    streamed: bool = False
    history: History = History()
    restored: Mapping[int, int] = field(default_factory=dict)
    decisions: tuple[Decision, ...] = ()

    @property
    def cuts(self) -> bool:
        """The proxy may end the visible text before the engine does."""
        return bool(self.stops) or self.visible_tokens is not None

    def decided(self, rule: str, reason: str, **changes: Any) -> Plan:
        """The plan with changes, and the decision that made them."""
        return replace(self, decisions=(*self.decisions, Decision(rule, reason)), **changes)


@dataclass(slots=True)
class Entry:
    """One ledger row: one request. The names are public; a missing value is None. Order is the order of the columns."""

    v: int = 1
    ts: str = ""
    request_id: str = ""
    client: str | None = None
    end_user: str | None = None
    conversation: str | None = None
    kind: str = "chat"
    endpoint: str = ""
    model: str | None = None
    upstream_model: str | None = None
    backend: str | None = None
    engine: str | None = None
    family: str | None = None
    stream: bool | None = None
    effort_asked: str | None = None
    effort_sent: str | None = None
    effort_reason: str | None = None
    max_tokens_asked: int | None = None
    max_tokens_sent: int | None = None
    thinking_budget_sent: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    completion_tokens: int | None = None
    reasoning_tokens: int | None = None
    visible_tokens: int | None = None
    reasoning_source: str = "unknown"
    reported_reasoning_tokens: int | None = None
    turns_present: int | None = None
    turns_restored: int | None = None
    turns_missing: int | None = None
    turns_filled: int | None = None
    turns_dropped: int | None = None
    first_byte_ms: int | None = None
    first_reasoning_ms: int | None = None
    first_visible_ms: int | None = None
    duration_ms: int | None = None
    prefill_tokens_per_second: float | None = None
    decode_tokens_per_second: float | None = None
    finish_reason: str | None = None
    outcome: str = "ok"
    status: int | None = None
    attempts: int = 0
    cost_usd: str | None = None
    cache_saved_usd: str | None = None
    price_source: str | None = None
    decisions: list[str] = field(default_factory=list)
    flags: list[str] = field(default_factory=list)
    error: str | None = None
