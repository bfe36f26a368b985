"""What is decided about a request: a tuple of rules that each look at a plan and may return another, with the reason.

`settings.py` has what users write, `matching.py` which of their rules are for a request, `effort.py`, `room.py` and
`fields.py` what is decided, `rescue.py` the second try of an answer that was lost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from proxy.messages import ChatRequest, Plan
from proxy.policy.effort import effort
from proxy.policy.fields import developer_role, has, sampling, stop, tool_choice
from proxy.policy.matching import Asked, kind_of, matching
from proxy.policy.rescue import rescued
from proxy.policy.room import floor, thinking_budget
from proxy.policy.settings import Policy, Preset, Probe, Rule, Rules, Terms

__all__ = [
    "Asked",
    "Policy",
    "Preset",
    "Probe",
    "Rule",
    "Rules",
    "Terms",
    "answer_room",
    "decide",
    "kind_of",
    "matching",
    "rescued",
]


def answer_room(request: ChatRequest, settings: Policy) -> int:
    """Tokens that the window should have left for an answer, thought and text."""
    table = settings.min_completion_tokens
    least = table if isinstance(table, int) else max(table.values(), default=0)
    reserve = settings.answer_reserve_tokens
    return max(least, reserve if request.max_tokens is None else min(reserve, request.max_tokens))


def decide(plan: Plan, terms: Terms) -> Plan:
    """The plan with each rule in order. Raises InvalidRequest for what the model cannot be asked."""
    request = plan.request
    reason = None if request.max_tokens is None else "client"
    plan = replace(plan, max_tokens=request.max_tokens, max_tokens_reason=reason)
    for rule in _RULES:
        plan = rule(plan, terms)
    return plan


def _way(plan: Plan, terms: Terms) -> Plan:
    """Whether the answer must come as it grows: to be ended where it is due, to end its thought, or to be let go."""
    facts, request = plan.facts, plan.request
    thinks = facts.family.thinks and plan.effort != "none" and plan.kind != "probe"
    wanted = plan.cuts or not facts.lets_go or (thinks and facts.has_control and terms.policy.thinking_seconds > 0)
    refused = bool(facts.whole_only) and all(has(request, name) for name in facts.whole_only)
    streamed = request.stream or (wanted and not refused)  # a whole answer is cut too, only later
    told = streamed and facts.has_progress and (facts.slow or terms.progress) and not has(request, "return_progress")
    return replace(plan, streamed=streamed, controlled=streamed and thinks and facts.has_control, progress=told)


_RULES: tuple[Callable[[Plan, Terms], Plan], ...] = (
    effort,
    floor,
    thinking_budget,
    stop,
    sampling,
    developer_role,
    tool_choice,
    _way,
)
