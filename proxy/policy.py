"""Effort, budgets and caps: a tuple of rules that each look at a plan and may return another, with the reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Literal

from annotated_types import Ge, Le

from proxy import window
from proxy.errors import InvalidRequest
from proxy.messages import Ask, ChatRequest, Plan
from proxy.normalise import MOST_TOKENS
from proxy.section import Section

_USUAL_EFFORTS = ("low", "medium", "high")
_BUDGET_FIELDS = {"thinking_budget_tokens", "reasoning_budget_tokens", "thinking_token_budget"}

Tokens = Annotated[int, Ge(0), Le(MOST_TOKENS)]


class Probe(Section):
    """A request at or below both numbers is a front end's connection test. `max_tokens = 0` switches the rule off."""

    max_tokens: Tokens = 5
    messages: Tokens = 1


class Policy(Section):
    """`[policy]`: what the proxy decides where the client is silent."""

    default_effort: str = "auto"
    slow_below_tokens_per_second: Annotated[float, Ge(0)] = 10.0
    min_completion_tokens: Tokens | dict[str, Tokens] = 5000
    thinking_budget: Tokens | Literal["auto", "off"] = "auto"
    answer_reserve_tokens: Tokens = 1024
    probe: Probe = Probe()


Rule = Callable[[Plan, Policy], Plan]


def answer_room(request: ChatRequest, settings: Policy) -> int:
    """Tokens that the window should have left for an answer, thought and text."""
    table = settings.min_completion_tokens
    least = table if isinstance(table, int) else max(table.values(), default=0)
    reserve = settings.answer_reserve_tokens
    return max(least, reserve if request.max_tokens is None else min(reserve, request.max_tokens))


def decide(plan: Plan, settings: Policy) -> Plan:
    """The plan with each rule in order. Raises InvalidRequest for an effort that the model does not know."""
    request = plan.request
    plan = replace(plan, max_tokens=request.max_tokens)
    if request.max_tokens is not None:
        plan = replace(plan, max_tokens_reason="client")
    for rule in RULES:
        plan = rule(plan, settings)
    return plan


def probe(plan: Plan, settings: Policy) -> Plan:
    """A front end's connection test is answered as it was asked, at the lowest effort."""
    asked, limit = plan.request.max_tokens, settings.probe
    if not limit.max_tokens or asked is None or asked > limit.max_tokens:
        return plan
    if len(plan.request.messages) > limit.messages or plan.request.has_tools:
        return plan
    return plan.decided("probe", f"cap of {asked}, {len(plan.messages)} message", kind="probe")


def effort(plan: Plan, settings: Policy) -> Plan:
    """The client's word, fitted to the family; else the word of the conversation; else the default."""
    if plan.request.effort is not None:
        return _asked_effort(plan, plan.request.effort)
    if not plan.facts.family.thinks:
        return plan
    word, reason = _default_effort(plan, settings)
    if not word:
        return replace(plan, effort_reason=reason)
    return plan.decided("effort", reason, effort=word, effort_reason=reason, effort_changed=True)


def _asked_effort(plan: Plan, ask: Ask) -> Plan:
    family = plan.facts.family
    word = ask.word
    if not ask.where.startswith("chat_template_kwargs.") and word != "none" and family.efforts:
        word = family.effort_words.get(word, word)
        if word not in family.efforts:
            known = ", ".join([*family.efforts, *family.effort_words])
            raise InvalidRequest(f"`{ask.where}` {ask.word!r} is unknown to {family.name}: {known}", param=ask.where)
    plan = replace(plan, effort=word, effort_reason="client")
    return plan if word == ask.word else plan.decided("effort", f"{ask.word} is {word} here", effort_changed=True)


def _default_effort(plan: Plan, settings: Policy) -> tuple[str, str]:
    """(word, reason); an empty word sends none."""
    facts, default = plan.facts, settings.default_effort
    words = facts.family.efforts or (_USUAL_EFFORTS if facts.effort_option else ())
    if default == "off":
        return "", "off"
    if plan.kind == "probe":
        return (words[0] if words else ""), "probe"
    if facts.conversation_effort is not None:
        return facts.conversation_effort, "conversation"
    if default == "auto":
        return (words[0], "slow-backend") if facts.slow and words else ("", "auto")
    word = facts.family.effort_words.get(default, default)
    return (word, "default") if word in facts.family.efforts or not facts.family.efforts else ("", "unknown-word")


def floor(plan: Plan, settings: Policy) -> Plan:
    """A cap that thinking would use up is raised, on engines that refuse an overflow only as far as the window goes."""
    asked, facts = plan.request.max_tokens, plan.facts
    wanted = _floor_for(plan, settings)
    if asked is None or asked >= wanted or plan.kind == "probe" or plan.effort == "none" or not facts.family.thinks:
        return plan
    room = window.room(plan) if facts.refuses_overflow else None
    if room is None or room >= wanted:
        return plan.decided("floor", f"raised from {asked}", max_tokens=wanted, max_tokens_reason="floor")
    if room > asked:
        plan = plan.decided("floor", f"raised from {asked}", max_tokens=room)
    return plan.decided("clamp", f"the window has room for {max(room, 0)} tokens", max_tokens_reason="clamp")


def _floor_for(plan: Plan, settings: Policy) -> int:
    table = settings.min_completion_tokens
    if isinstance(table, int):
        return table
    efforts = plan.facts.family.efforts
    word = plan.effort or (efforts[-1] if efforts else "")
    return table.get(word, max(table.values(), default=0))


def thinking_budget(plan: Plan, settings: Policy) -> Plan:
    """Where the engine ends a thought by itself, it does so early enough for an answer to fit under the cap."""
    setting, cap = settings.thinking_budget, plan.max_tokens
    if setting == "off" or not plan.facts.budget_enforced or not plan.facts.family.thinks or plan.kind == "probe":
        return plan
    if plan.effort == "none" or _BUDGET_FIELDS & plan.request.fields.keys():
        return plan
    if setting != "auto":
        return plan.decided("thinking_budget", "setting", thinking_budget=setting, thinking_budget_reason="setting")
    if cap is None:
        return plan
    room = window.room(plan)
    cap = cap if room is None else min(cap, max(room, 1))
    budget = cap - min(settings.answer_reserve_tokens, (cap + 1) // 2)
    kept = f"{cap - budget} tokens are kept for the answer"
    return plan.decided("thinking_budget", kept, thinking_budget=budget, thinking_budget_reason="reserve")


RULES: tuple[Rule, ...] = (probe, effort, floor, thinking_budget)
