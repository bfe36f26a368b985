"""What every OpenAI-compatible engine has in common; an engine's module says only what differs.

`encode` writes a plan as a request body: raw fields are spliced in the client's order, and only what the plan changes
is written anew. `decode` reads one event of an answer, or a whole one. `questions` and `about` are what a probe asks
the server, and makes of the answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from proxy.dialects import reading, roles
from proxy.dialects.advice import Advice
from proxy.dialects.fields import Fields, forget, merge, put_in_place
from proxy.events import Event, count_of
from proxy.jsons import dumps, splice
from proxy.messages import REASONING_FIELDS, Ask, Facts, Json, Message, Plan
from proxy.normalise import CAP_FIELDS

_PLAIN_FIELDS = frozenset({"role", "content", "name", *REASONING_FIELDS})
"""Of an assistant message that has nothing but a text to say."""
_OPTIONS = "chat_template_kwargs"


@dataclass(frozen=True, slots=True)
class About:
    """What a server tells of one model. None and empty are unknown.

    `context_limit` is what one request can have, in tokens; `thinks` whether the server lets it; `efforts` are the
    words that it takes; `loaded` is false where a request would have to load it first; `slots` is how many requests
    it works on at a time.
    """

    context_limit: int | None = None
    template: str | None = None
    thinks: bool | None = None
    efforts: tuple[str, ...] = ()
    loaded: bool | None = None
    slots: int | None = None

    def over(self, earlier: About) -> About:
        """What is known now: what this look did not bring stays as it was."""
        return replace(
            self,
            context_limit=self.context_limit or earlier.context_limit,
            template=earlier.template if self.template is None else self.template,
            thinks=earlier.thinks if self.thinks is None else self.thinks,
            efforts=self.efforts or earlier.efforts,
            slots=self.slots or earlier.slots,
        )


@dataclass(frozen=True, slots=True)
class Question:
    """A request of a probe: a path from the server's root, with a body where it is a POST."""

    path: str
    body: Mapping[str, Json] | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Control:
    """`field` of a request lets its thought be ended: by a POST of `action` and the answer's `id` to `path`."""

    field: str
    path: str
    action: Mapping[str, Json]


Rows = Sequence[Mapping[str, Json]]
"""The entries of `/v1/models`, each with an `id`."""
Answers = Mapping[str, Json]
"""Decoded bodies by the path of their question; what was not answered with JSON is missing."""


def tokens_in(told: Json) -> int | None:
    """How many tokens an answer of `/tokenize` counts."""
    if not isinstance(told, dict):
        return None
    tokens = told.get("tokens")
    return len(tokens) if isinstance(tokens, list) else count_of(told.get("count"))


def text_at(answers: Answers, path: str, name: str) -> str:
    """A text of an answer; empty where it is not there."""
    body = answers.get(path)
    value = body.get(name) if isinstance(body, dict) else None
    return value if isinstance(value, str) else ""


class Dialect:
    """An engine's way of saying things. Stateless: one instance serves all requests."""

    name: ClassVar[str] = ""
    hosts: ClassVar[tuple[str, ...]] = ()
    """Ends of the host names of a known service."""
    servers: ClassVar[tuple[str, ...]] = ()
    """Values of its `Server` header."""
    owners: ClassVar[tuple[str, ...]] = ()
    """Who owns the models in its `/v1/models`."""
    door: ClassVar[tuple[str, str] | None] = None
    """A path that tells it, and the field that it has there; asked only where the above tell nothing."""
    tells_properties: ClassVar[bool] = False
    """It can be asked for its models, window and template."""

    is_service: ClassVar[bool] = False
    """The model maker's own service: what its families say of one holds here."""
    prices_of: ClassVar[str] = ""
    """The service's name in genai-prices."""
    reasoning_field: ClassVar[str] = "reasoning_content"
    """The name under which the engine reads past thoughts."""
    learns_field: ClassVar[bool] = False
    """Nobody knows that name: it is the one under which the server sends them."""
    keeps: ClassVar[frozenset[str]] = frozenset()
    """Further thought fields that the engine reads, and that go back word for word."""
    cap_fields: ClassVar[tuple[str, ...]] = ("max_completion_tokens", "max_tokens")
    """Names of the output cap that the engine obeys; the first is used where the client's own is not among them."""
    takes_unlimited: ClassVar[bool] = False
    """It knows a cap of -1; others refuse it."""
    effort_places: ClassVar[frozenset[str] | None] = None
    """Where the engine understands an effort word, beside template options; None: nobody knows, so all is left."""
    off_places: ClassVar[frozenset[str] | None] = None
    """Where it understands that it shall not think, in the same way."""
    takes_template_options: ClassVar[bool] = False
    budget_fields: ClassVar[tuple[str, ...]] = ()
    """Names of a hard cap on thinking tokens, where the engine has one; the first is the one to write."""
    budget_needs_parser: ClassVar[bool] = False
    """It refuses that cap where it does not tell thoughts from texts."""
    refuses_overflow: ClassVar[bool] = False
    """Prompt plus cap beyond the window is an error, not a clamp."""
    is_own: ClassVar[bool] = False
    """A program that people run by themselves, and no service."""
    slots: ClassVar[int | None] = None
    """How many requests it works on at a time where it does not tell; None is as many as come."""
    refuses_missing: ClassVar[bool] = True
    """A past thought that its family requires is missed with an error. Servers of one's own only do worse without."""
    takes_developer: ClassVar[bool] = False
    """It knows the role `developer`; the others refuse it, or their templates drop the message."""
    refuses_effort: ClassVar[bool] = False
    """An effort is an error for a model that does not think, so the server must have said that it does."""
    reuses_connections: ClassVar[bool] = True
    """A connection can serve a further request after it served one."""
    control: ClassVar[Control | None] = None
    """How a thought is ended while it runs, where the engine can."""
    lets_go: ClassVar[bool] = True
    """It stops working on a whole answer as soon as nobody waits for it any more, as all do with a stream."""
    tokenizes: ClassVar[str] = ""
    """The field in which its `/tokenize` takes a text; empty where it has none."""
    progress_field: ClassVar[str] = ""
    """A field that makes it tell how far it has read the prompt."""
    whole_only: ClassVar[tuple[str, ...]] = ()
    """Fields that it takes together, but not in a stream."""
    running_counts: ClassVar[Mapping[str, Json]] = {}
    """Fields that make it count tokens in each event, so that a stream that is left early has counts."""
    advice: ClassVar[Advice] = Advice()

    def questions(self, rows: Rows, answers: Answers) -> list[Question]:
        """What a probe asks beside `/v1/models`; asked again with the answers, until nothing new comes."""
        return []

    def version(self, headers: Mapping[str, str], answers: Answers) -> str:
        """The server's version, as it says it; empty where it does not."""
        return ""

    def about(self, row: Mapping[str, Json], answers: Answers) -> About:
        """What is known of one model. vLLM and SGLang say `max_model_len`, hosted services `context_length`."""
        sizes = (count_of(row.get(name)) for name in ("max_model_len", "context_length"))
        return About(next((size for size in sizes if size), None))

    def field_for(self, version: str) -> str:
        """The name under which this version reads past thoughts."""
        return self.reasoning_field

    def effort_option(self, family_option: str, template: str | None) -> str:
        """The template option that carries the effort; empty where the engine has a field that works.

        `template` is the model's chat template where the engine tells it.
        """
        return ""

    def switch(self, options: Mapping[str, Json], template: str | None) -> Mapping[str, Json]:
        """Those of a family's template options, for thinking on or off, that work here."""
        return options if self.takes_template_options else {}

    def thinks_always(self, options: Mapping[str, Json], template: str | None) -> bool:
        """Whether nothing in this template switches thinking off; `options` are the family's for it."""
        return False

    def encode(self, plan: Plan) -> bytes:
        """The request body for this engine."""
        fields = dict(plan.request.fields)
        if plan.facts.upstream_model != plan.request.model:
            fields["model"] = dumps(plan.facts.upstream_model)
        name = plan.facts.reasoning_field or self.reasoning_field
        messages = roles.system_only(plan.messages) if plan.developer_role == "system" else plan.messages
        fields["messages"] = b"[" + b",".join([self._message(message, name) for message in messages]) + b"]"
        for changed, value in plan.fields.items():
            if value is None:
                fields.pop(changed, None)
            else:
                fields[changed] = value
        self._write_cap(fields, plan)
        self._write_effort(fields, plan)
        if plan.request.keeps_all and plan.facts.keep_all:
            self._set_options(fields, plan, plan.facts.keep_all)
        if plan.thinking_budget is not None and self.budget_fields:
            fields[self.budget_fields[0]] = dumps(plan.thinking_budget)
        self._write_way(fields, plan)
        return splice(fields)

    def _write_way(self, fields: Fields, plan: Plan) -> None:
        """How the answer is to come: streamed, counted, and with a thought that can be ended."""
        if plan.streamed and not plan.request.stream:
            fields["stream"] = b"true"
        if (plan.streamed or plan.request.stream) and not plan.request.include_usage:
            merge(fields, "stream_options", {"include_usage": True})
        if plan.cuts:
            for name, value in self.running_counts.items():
                if isinstance(value, dict):
                    merge(fields, name, value)
                else:
                    fields[name] = dumps(value)
        if plan.controlled and self.control is not None:
            fields[self.control.field] = b"true"
        if plan.progress:
            fields[self.progress_field] = b"true"

    def _message(self, message: Message, reasoning_field: str) -> bytes:
        """A message with its thought under the name that the engine reads, once, and without blank ones.

        One without content or calls is what is left of an answer that was stopped: an empty text.
        """
        if message.role != "assistant":
            return message.raw
        if not message.named and (message.content is not None or message.calls):
            thought = message.reasoning
            return message.raw if thought is None else _with_field(message.raw, reasoning_field, thought)
        fields: Fields = {}
        for name, raw in message.fields.items():
            if name not in REASONING_FIELDS or name in self.keeps:
                fields[name] = raw
            elif name == reasoning_field and message.reasoning is not None:
                fields[name] = dumps(message.reasoning)
        if message.reasoning is not None:
            fields.setdefault(reasoning_field, dumps(message.reasoning))
        if message.content is None and fields.keys() <= _PLAIN_FIELDS:
            fields["content"] = b'""'
        return splice(fields)

    def _write_cap(self, fields: Fields, plan: Plan) -> None:
        """One cap under one name: never two values."""
        came = plan.request.max_tokens_field
        if plan.max_tokens is None:
            for name in CAP_FIELDS if came is not None else ():  # the first that counts says that there be no limit
                if name != came or not self.takes_unlimited:
                    fields.pop(name, None)
            return
        name = came if came in self.cap_fields else self.cap_fields[0]
        if came != name or plan.max_tokens != plan.request.max_tokens:
            put_in_place(fields, came or name, name, dumps(plan.max_tokens))
        for other in CAP_FIELDS:
            if other != name:
                fields.pop(other, None)

    def _write_effort(self, fields: Fields, plan: Plan) -> None:
        """The effort where this engine reads it. What the client wrote stays, if the engine understands it as it is."""
        ask, facts = plan.request.effort, plan.facts
        for where in plan.request.contradicted if self.effort_places is not None else ():
            forget(fields, where)
        if ask is None and plan.request.switched_on is not None:
            self._switch_on(fields, plan, plan.request.switched_on)
        if plan.effort is None:
            return
        if ask is not None:
            if not plan.effort_changed and self._understands(ask, facts):
                return
            if ask.where and not ask.where.startswith(
                _OPTIONS
            ):  # a client's own template options stay, wherever they go
                forget(fields, ask.where)
            for where in plan.request.repeated if self.effort_places is not None else ():
                forget(fields, where)
        if plan.effort == "none":
            self._switch_off(fields, plan)
            return
        if ask is not None and facts.switch_on:
            self._set_options(fields, plan, facts.switch_on)
        self._set_effort(fields, plan, plan.effort)

    def _understands(self, ask: Ask, facts: Facts) -> bool:
        """Whether the engine obeys the client's words where they stand."""
        if not ask.where:
            return False
        off = ask.word == "none"
        places = self.off_places if off else self.effort_places
        if places is None:
            return True
        if ask.where.startswith(_OPTIONS) and self.takes_template_options:
            option = ask.where.partition(".")[2]
            known = facts.switch_off.keys() if off else {facts.effort_option} - {""}
            return not known or option in known
        if off:  # engines turn `reasoning_effort: "none"` into this option by themselves
            return ask.where in places and facts.switch_off.keys() <= {"enable_thinking"}
        return ask.where in places and not facts.switch_on and facts.effort_option in ("", "reasoning_effort")

    def _set_effort(self, fields: Fields, plan: Plan, word: str) -> None:
        if self.takes_template_options and (option := plan.facts.effort_option) not in ("", "reasoning_effort"):
            own = plan.request.template_options.get(option, b"null")
            if plan.request.effort is not None or own == b"null":  # else it is the client's, though no word
                merge(fields, _OPTIONS, {option: word})
        else:
            fields["reasoning_effort"] = dumps(word)

    def _switch_off(self, fields: Fields, plan: Plan) -> None:
        """Say that the model shall not think."""
        if plan.facts.switch_off:
            self._set_options(fields, plan, plan.facts.switch_off)
        else:
            fields["reasoning_effort"] = b'"none"'

    def _switch_on(self, fields: Fields, plan: Plan, where: str) -> None:
        """Say that the model shall think, where that is not what it does by itself."""
        if plan.facts.switch_on:
            self._set_options(fields, plan, plan.facts.switch_on)

    def _set_options(self, fields: Fields, plan: Plan, options: Mapping[str, Json]) -> None:
        """Template options beside the client's own, which stay as they are."""
        own = plan.request.template_options
        if missing := {name: value for name, value in options.items() if name not in own}:
            merge(fields, _OPTIONS, missing)

    def decode(self, payload: bytes, *, whole: bool = False) -> Event:
        """One event of a stream, or a `whole` answer. Raises UpstreamError for what is no JSON object."""
        return reading.decode(payload, whole=whole)


class OpenAI(Dialect):
    """Any other OpenAI-compatible server, and OpenAI's own. What it understands is what its users send."""

    name = "openai"
    takes_unlimited = True  # or not: nobody knows
    learns_field = True
    takes_developer = True


def _with_field(raw: bytes, name: str, value: str) -> bytes:
    """An object that has other fields, with one more at its end."""
    return b'%b,"%b":%b}' % (raw.rstrip()[:-1].rstrip(), name.encode(), dumps(value))
