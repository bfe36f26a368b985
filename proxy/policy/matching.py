"""Which of the settings' own rules are for a request, and what kind of request it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from proxy import sides, window
from proxy.messages import ChatRequest, Decision
from proxy.normalise import parts_text
from proxy.policy.settings import Kind, Policy, Preset, Rules, When


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as rules see it: as it came, and from whom. `headers` have lower-case names."""

    request: ChatRequest
    kind: Kind
    client: str | None
    headers: Mapping[str, str]


def kind_of(request: ChatRequest, settings: Policy) -> tuple[Kind, str]:
    """What a request is for, and how that is seen: a front end's connection test, a task of its own beside the chat
    (a title, tags), or the chat."""
    asked, limit, count = request.max_tokens, settings.probe, len(request.messages)
    is_short = asked is not None and asked <= limit.max_tokens and count <= limit.messages
    if limit.max_tokens and is_short and not request.has_tools:
        return "probe", f"cap of {asked}, {count} message{'s' if count > 1 else ''}"
    name = sides.name_of(request, settings.side_patterns)
    return ("chat", "") if name is None else ("side", name)


def matching(rules: Rules, asked: Asked) -> tuple[Preset, tuple[Decision, ...]]:
    """What the rules that match set, the later ones over the earlier ones, and a decision for each."""
    preset, decisions = Preset(), []
    for number, rule in enumerate(rules, 1):
        if all(_conditions(rule.when, asked)):
            preset = rule.set.over(preset)
            told = ", ".join(f"{name} {value}" for name, value in rule.set.given.items())
            decisions.append(Decision(f"rule:{rule.name or number}", told))
    return preset, tuple(decisions)


def _conditions(when: When, asked: Asked) -> Iterator[bool]:
    """One for each thing that a rule wants, the dear ones last."""
    request = asked.request
    if when.model is not None:
        yield _fits(request.model, when.model)
    if when.client is not None:
        yield asked.client is not None and _fits(asked.client, when.client)
    if when.kind is not None:
        yield asked.kind == when.kind
    if when.tools is not None:
        yield request.has_tools == when.tools
    for name, pattern in when.header.items():
        yield name in asked.headers and _fits(asked.headers[name], pattern)
    if when.prompt_tokens_over is not None:
        yield window.prompt_tokens(request) > when.prompt_tokens_over
    if when.text is not None:
        yield any(sides.found(when.text, text) for text in _texts(request))


def _fits(name: str, pattern: str) -> bool:
    """`*` and `?` stand for others; brackets are part of names (`k3[1m]`)."""
    return fnmatchcase(name, pattern.replace("[", "[[]"))


def _texts(request: ChatRequest) -> Iterator[str]:
    """That of the first message, and that of the latest one of the user."""
    first, last = request.messages[0], next((each for each in request.messages[::-1] if each.role == "user"), None)
    yield parts_text(first.content)
    if last is not None and last is not first:
        yield parts_text(last.content)
