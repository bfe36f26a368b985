"""How many tokens an answer may have, thought and text, and how many of them are kept for the text."""

from __future__ import annotations

from dataclasses import replace

from proxy import window
from proxy.asks import MOST_TOKENS
from proxy.messages import Plan
from proxy.policy.settings import Terms
from proxy.thoughts import PERCENTILE

_MARKS = 8
"""Tokens of the marks that end a thought, at the most: the engine writes them, and they count. K3's are six, those of a
model without tokens for them (`</think>` in SmolLM2) four."""


def floor(plan: Plan, terms: Terms) -> Plan:
    """A cap that thinking would use up is raised; that of a side request without one is set.

    Where the client's cap counts the visible text alone (`completion_tokens_mode = "visible"`), the room for a thought
    comes on top. On engines that refuse an overflow only as far as the window goes.
    """
    asked, policy = plan.request.max_tokens, terms.policy
    if plan.kind == "probe":
        return plan
    if asked is None:
        said = plan.request.max_tokens_field is not None  # that there be no limit
        least = policy.side_max_tokens if plan.kind == "side" and not said else 0
        if not least:
            return plan
        return _raised(plan, least, rule="side", reason="side", why=f"{least} tokens for a side request")
    if plan.effort == "none" or not plan.facts.family.thinks:
        return plan
    if policy.completion_tokens_mode == "visible":
        room, source = _room(plan, terms)
        raised = _raised(
            plan, asked + room, rule="floor", reason="visible", why=f"{room} tokens for the thought: {source}"
        )
        return replace(raised, visible_tokens=asked)
    wanted = _floor(plan, terms)
    return plan if asked >= wanted else _raised(plan, wanted, rule="floor", reason="floor", why=f"raised from {asked}")


def _raised(plan: Plan, wanted: int, *, rule: str, reason: str, why: str) -> Plan:
    wanted = min(wanted, MOST_TOKENS)
    room = window.room(plan) if plan.facts.refuses_overflow else None
    if room is None or room >= wanted:
        return plan.decided(rule, why, max_tokens=wanted, max_tokens_reason=reason)
    if room > (plan.request.max_tokens or 0):
        plan = plan.decided(rule, why, max_tokens=room)
    return plan.decided("clamp", f"the window has room for {max(room, 0)} tokens", max_tokens_reason="clamp")


def _floor(plan: Plan, terms: Terms) -> int:
    """A side request is short: no more than its own cap where it has none."""
    least = terms.floor(plan.facts.family, plan.effort)
    side = terms.policy.side_max_tokens
    return min(least, side) if plan.kind == "side" and side else least


def _room(plan: Plan, terms: Terms) -> tuple[int, str]:
    """Tokens that a thought needs here, as the ledger tells, else as much as the floor; and who says so."""
    learned = plan.facts.rooms.get(plan.effort or "")
    if learned is not None:
        return learned.tokens, f"{PERCENTILE} % of {learned.thoughts} thoughts here took no more"
    return _floor(plan, terms), "the floor for this effort"


def thinking_budget(plan: Plan, terms: Terms) -> Plan:
    """Where the engine ends a thought by itself, it does so early enough for an answer to fit under the cap."""
    setting, cap, asked = terms.thinking_budget, plan.max_tokens, plan.request.budget
    names = plan.facts.budget_fields
    if not names or set(names) & plan.request.fields.keys():
        return plan
    if asked is not None:
        why = f"{asked.where} is {names[0]} here"
        return plan.decided("thinking_budget", why, thinking_budget=asked.tokens, thinking_budget_reason="client")
    if setting == "off" or not plan.facts.family.thinks or plan.kind == "probe" or plan.effort == "none":
        return plan
    most = None if cap is None else _most(plan, terms, cap)
    if isinstance(setting, int) and (most is None or setting <= most):
        who = "setting" if terms.preset.thinking_budget is None else "rule"
        return plan.decided("thinking_budget", who, thinking_budget=setting, thinking_budget_reason=who)
    if most is None or cap is None:
        return plan
    kept = f"{cap - most} tokens are kept for the answer"
    return plan.decided("thinking_budget", kept, thinking_budget=most, thinking_budget_reason="reserve")


def _most(plan: Plan, terms: Terms, cap: int) -> int:
    """The longest thought that leaves room for the answer under the cap.

    Kept are `answer_reserve_tokens`, or all that the client lets the text have where its cap counts the text alone, and
    the marks. Of a cap that is too small for both, the answer gets half, or what the thoughts here are known to leave.
    """
    room = window.room(plan)
    cap = cap if room is None else min(cap, max(room, 1))
    learned = plan.facts.rooms.get(plan.effort or "")
    if plan.visible_tokens is None:
        wanted, thought = terms.policy.answer_reserve_tokens, learned.tokens if learned else 0
    else:
        wanted, thought = plan.visible_tokens + _MARKS, max(_room(plan, terms)[0] - _MARKS, 0)
    kept = min(wanted, max((cap + 1) // 2, cap - thought if thought else 0))
    return cap - max(kept, min(_MARKS, cap))
