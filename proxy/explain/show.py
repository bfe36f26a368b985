"""A plan as text for people and as JSON for programs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass

import msgspec

from proxy import headers
from proxy.jsons import JsonError, dumps
from proxy.messages import Plan
from proxy.speeds import Speed
from proxy.thoughts import PERCENTILE

_WIDE = 17
_AS_HEADERS = ("x-proxy-effort", "x-proxy-max-tokens", "x-proxy-thinking-budget", "x-proxy-history")


@dataclass(frozen=True, slots=True)
class Explained:
    """A plan, the body that it is upstream, and the speed that was measured of the model."""

    plan: Plan
    body: bytes
    speed: Speed


def document(made: Explained) -> str:
    """One JSON object. The body stands in it as it goes upstream."""
    plan, facts = made.plan, made.plan.facts
    told = {
        "kind": plan.kind,
        "backend": facts.backend,
        "engine": facts.engine,
        "family": facts.family.name,
        "model": plan.request.model,
        "upstream_model": facts.upstream_model,
        "effort": plan.effort,
        "effort_reason": plan.effort_reason,
        "max_tokens": plan.max_tokens,
        "max_tokens_asked": plan.request.max_tokens,
        "max_tokens_reason": plan.max_tokens_reason,
        "thinking_budget": plan.thinking_budget,
        "thinking_budget_reason": plan.thinking_budget_reason,
        "decisions": [asdict(decision) for decision in plan.decisions],
        "history": asdict(plan.history),
        "restored": sorted(plan.restored),
        "headers": dict(headers.of_plan(plan)),
        "learned": {
            "decode_tokens_per_second": made.speed.decode,
            "prefill_tokens_per_second": made.speed.prefill,
            "slow": facts.slow,
            "context_limit": facts.context_limit,
            "thoughts": {effort: room._asdict() for effort, room in facts.rooms.items()},
        },
        "stops": plan.stops,
        "visible_tokens": plan.visible_tokens,
        "streamed": plan.streamed,
        "body": msgspec.Raw(made.body),
    }
    return printable(msgspec.json.encode(told).decode("utf-8", "replace"))


def text(made: Explained) -> str:
    """A line for each fact, and the upstream body at the end."""
    plan = made.plan
    parts = [list(_way(plan))]
    for head, lines in (
        ("decisions", [_line(f"  {each.rule}", each.reason) for each in plan.decisions]),
        ("known of the model", list(_known(made))),
        ("thoughts put back", list(_restored(plan))),
    ):
        parts.append([head, *(lines or ["  none"])])
    parts.append(["upstream body", printable(_indented(made.body))])
    return "\n\n".join("\n".join(lines) for lines in parts)


def printable(said: str) -> str:
    """What a client or a server says must not steer the terminal; line ends stay. JSON keeps its meaning."""
    return said if said.isascii() and said.isprintable() else "".join(map(_safe, said))


def _safe(char: str) -> str:
    if char.isprintable() or char == "\n":
        return char
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def _way(plan: Plan) -> Iterator[str]:
    facts, request, told = plan.facts, plan.request, dict(headers.of_plan(plan))
    yield _line("request", f"{plan.kind}, model {request.model}")
    yield _line("backend", f"{facts.backend}, engine {facts.engine}")
    yield _line("upstream model", f"{facts.upstream_model}, family {facts.family.name}")
    reasons = {"x-proxy-effort": plan.effort_reason}
    for name in _AS_HEADERS:
        value, reason = told[name], reasons.get(name)
        silent = value == "-" and reason is not None
        yield _line(name.removeprefix("x-proxy-"), f"{value}; reason={reason}" if silent else value)
    if plan.stops:
        yield _line("stop strings", f"{dumps(plan.stops).decode()}, looked for by the proxy")
    if plan.visible_tokens is not None:
        yield _line("visible cap", f"{plan.visible_tokens:,} tokens, counted by the proxy")
    asked = "" if plan.streamed == request.stream else ", though the client does not ask for it"
    yield _line("streamed", f"{'yes' if plan.streamed else 'no'}{asked}")


def _known(made: Explained) -> Iterator[str]:
    plan, facts, speed = made.plan, made.plan.facts, made.speed
    counts = "counts as slow" if facts.slow else "does not count as slow"
    figures = [
        f"{figure:,.3g} tokens a second {what}"
        for figure, what in ((speed.decode, "written"), (speed.prefill, "read"))
        if figure is not None
    ]
    yield _line("  speed", f"{', '.join(figures) or 'not measured'}: {counts}")
    yield _line("  context", "unknown" if facts.context_limit is None else f"{facts.context_limit:,} tokens")
    for effort, room in facts.rooms.items():
        yield _line(
            "  room",
            f"{_at(effort)}: {PERCENTILE} % of {room.thoughts} took {room.tokens:,} tokens or fewer",
        )
    if facts.family.thinks and plan.effort != "none" and (plan.effort or "") not in facts.rooms:
        yield _line("  room", f"{_at(plan.effort or '')}: not enough thoughts yet: the floor is used")


def _at(effort: str) -> str:
    return f"at effort {effort}" if effort else "without an effort"


def _restored(plan: Plan) -> Iterator[str]:
    for at, size in sorted(plan.restored.items()):
        yield _line(f"  messages[{at}]", f"{size:,} bytes")


def _line(name: str, said: str) -> str:
    """One line, whatever a client put into what is said."""
    return printable(f"{name:<{_WIDE}} {said}").replace("\n", "\\u000a")


def _indented(body: bytes) -> str:
    with suppress(*JsonError):  # half a surrogate pair: as it goes
        body = msgspec.json.format(body, indent=2)
    return body.decode("utf-8", "replace")
