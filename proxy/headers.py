"""Headers: those that tell about the decisions, whose names are public (see the README), and those that pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from proxy.messages import Plan

_HOP_BY_HOP = frozenset(
    {"connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer", "transfer-encoding"}
    | {"upgrade", "content-length", "content-type", "x-request-id"}
)
"""Headers of one connection, and those that are written anew for the next."""
_NOT_FORWARDED = _HOP_BY_HOP | {"host", "accept-encoding", "expect", "cookie", "origin", "referer"}
"""A browser's cookies and origin belong to the proxy's own host."""
_NOT_RETURNED = _HOP_BY_HOP | {"content-encoding", "server", "date", "set-cookie", "cache-control"}
_NOT_RETURNED |= {"access-control-allow-origin", "x-accel-buffering", "x-should-retry"}


JSON = ("content-type", "application/json")
STREAM = [
    ("content-type", "text/event-stream"),
    ("cache-control", "no-cache"),
    ("x-accel-buffering", "no"),  # nginx holds streams back otherwise
]

MOST_DECISIONS = 64
"""Named in the header; the ledger has all."""


def of_plan(plan: Plan) -> list[tuple[str, str]]:
    """The `x-proxy-*` headers of a request that went to a backend."""
    history = plan.history
    return [
        ("x-proxy-backend", _safe(plan.facts.backend)),
        ("x-proxy-effort", _with_reason(plan.effort, reason=plan.effort_reason)),
        ("x-proxy-max-tokens", _max_tokens(plan)),
        ("x-proxy-thinking-budget", _with_reason(plan.thinking_budget, reason=plan.thinking_budget_reason)),
        (
            "x-proxy-history",
            f"present={history.present}; restored={history.restored}; missing={history.missing}; "
            f"filled={history.filled}; dropped={history.dropped}",
        ),
        ("x-proxy-decisions", _decisions(plan)),
    ]


def of_answer(outcome: str, cost: str | None) -> list[tuple[str, str]]:
    """What only a complete answer can tell."""
    found = [("x-proxy-outcome", outcome)]
    return found if cost is None else [*found, ("x-proxy-cost-usd", cost)]


def _decisions(plan: Plan) -> str:
    """The rules' names, once each; clients refuse a header of some thousand characters."""
    names = list(dict.fromkeys(decision.rule for decision in plan.decisions))
    shown = names[:MOST_DECISIONS]
    left = len(names) - len(shown)
    return ",".join([*shown, *([f"{left}-more"] if left else [])]) or "-"


def _max_tokens(plan: Plan) -> str:
    if plan.max_tokens is None:
        return "-"
    asked = "-" if plan.request.max_tokens is None else plan.request.max_tokens
    return f"{plan.max_tokens}; asked={asked}; reason={plan.max_tokens_reason}"


def _with_reason(value: object, *, reason: str | None) -> str:
    return "-" if value is None else f"{_safe(str(value))}; reason={reason}"


def _safe(value: str) -> str:
    """A header value cannot hold control characters or text beyond Latin-1."""
    return "".join(char if " " <= char <= "~" else "?" for char in value)


def upstream(incoming: Mapping[str, str]) -> dict[str, str]:
    """What a backend is sent: the client's own headers, less those of the connection and of the browser."""
    kept = {
        name: value
        for name, value in incoming.items()
        if name not in _NOT_FORWARDED and not name.startswith(("x-proxy-", "sec-"))
    }
    return {**kept, "accept-encoding": "identity", "content-type": "application/json"}


def returned(found: Mapping[str, str], safe: Callable[[str], str]) -> list[tuple[str, str]]:
    """A backend's headers that mean something to the client, such as rate limits and trace ids.

    `safe` hides keys in their values.
    """
    return [
        (name, safe(value))
        for name, value in found.items()
        if name.lower() not in _NOT_RETURNED and not name.lower().startswith("x-proxy-") and value.isprintable()
    ]
