"""What the response headers tell about the decisions. The names are public, see the README."""

from __future__ import annotations

from proxy.messages import Plan


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
        ("x-proxy-decisions", ",".join(dict.fromkeys(decision.rule for decision in plan.decisions)) or "-"),
    ]


def of_answer(outcome: str, cost: str | None) -> list[tuple[str, str]]:
    """What only a complete answer can tell."""
    found = [("x-proxy-outcome", outcome)]
    return found if cost is None else [*found, ("x-proxy-cost-usd", cost)]


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
