"""Effort, budgets, caps and what else is decided: a tuple of rules that each look at a plan and may return another,
with the reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Literal

from annotated_types import Ge, Le

from proxy import window
from proxy.asks import MOST_TOKENS
from proxy.errors import InvalidRequest
from proxy.families import SAMPLED
from proxy.jsons import dumps, loads
from proxy.messages import Ask, ChatRequest, Json, Plan
from proxy.section import Section

_USUAL_EFFORTS = ("low", "medium", "high")

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
    sampling: Literal["recommended", "client"] = "recommended"
    developer_role: Literal["auto", "keep", "system"] = "auto"
    forced_tool_choice: Literal["forward", "auto"] = "forward"


Rule = Callable[[Plan, Policy], Plan]


def answer_room(request: ChatRequest, settings: Policy) -> int:
    """Tokens that the window should have left for an answer, thought and text."""
    table = settings.min_completion_tokens
    least = table if isinstance(table, int) else max(table.values(), default=0)
    reserve = settings.answer_reserve_tokens
    return max(least, reserve if request.max_tokens is None else min(reserve, request.max_tokens))


def decide(plan: Plan, settings: Policy) -> Plan:
    """The plan with each rule in order. Raises InvalidRequest for what the model cannot be asked."""
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
    if ask.word == "none":
        return _asked_not_to_think(plan, ask)
    word: str | None = ask.word
    if not (plan.facts.takes_options and ask.where.startswith("chat_template_kwargs.")):
        # Whoever names an option of the template knows its words.
        word = family.fitted(ask.word)
        if word is None:
            known, where = ", ".join(dict.fromkeys([*family.efforts, *family.effort_words])), ask.where or "model"
            raise InvalidRequest(f"`{where}`: {ask.word!r} is unknown to {family.name}: {known}", param=where)
    plan = replace(plan, effort=word, effort_reason=_who(ask))
    return plan if word == ask.word else plan.decided("effort", f"{ask.word} is {word} here", effort_changed=True)


def _who(ask: Ask) -> str:
    return "client" if ask.where else "model"


def _asked_not_to_think(plan: Plan, ask: Ask) -> Plan:
    """Where nothing switches thinking off, the lowest effort is the nearest to it."""
    facts = plan.facts
    if not facts.thinks_always or not facts.family.thinks:
        return replace(plan, effort="none", effort_reason=_who(ask))
    why = f"{facts.family.name} always thinks here"
    if not facts.family.efforts:
        return plan.decided("effort", why, effort_reason="always-thinks")
    lowest = facts.family.efforts[0]
    return plan.decided("effort", why, effort=lowest, effort_reason=_who(ask), effort_changed=True)


def _default_effort(plan: Plan, settings: Policy) -> tuple[str, str]:
    """(word, reason); an empty word sends none."""
    facts, default = plan.facts, settings.default_effort
    words = facts.family.efforts or (_USUAL_EFFORTS if facts.effort_option else ())
    if default == "off":
        return "", "off"
    if facts.effort_refused:
        return "", "no-thinking"
    if plan.request.budget is not None:  # the client says how much in tokens
        return "", "client"
    if plan.kind == "probe":
        return (words[0] if words else ""), "probe"
    if facts.conversation_effort is not None:
        return facts.conversation_effort, "conversation"
    if default == "auto":
        return (words[0], "slow-backend") if facts.slow and words else ("", "auto")
    word = facts.family.fitted(default)
    return (word, "default") if word else ("", "unknown-word")


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
    """The configured floor; where none is, the family's for this effort, else the default."""
    table, family = settings.min_completion_tokens, plan.facts.family
    if "min_completion_tokens" not in settings.model_fields_set and family.floors:
        table = dict(family.floors)
    if isinstance(table, int):
        return table
    word = plan.effort or (family.efforts[-1] if family.efforts else "")
    return table.get(word, max(table.values(), default=0))


def thinking_budget(plan: Plan, settings: Policy) -> Plan:
    """Where the engine ends a thought by itself, it does so early enough for an answer to fit under the cap."""
    setting, cap, asked = settings.thinking_budget, plan.max_tokens, plan.request.budget
    names = plan.facts.budget_fields
    if not names or set(names) & plan.request.fields.keys():
        return plan
    if asked is not None:
        why = f"{asked.where} is {names[0]} here"
        return plan.decided("thinking_budget", why, thinking_budget=asked.tokens, thinking_budget_reason="client")
    if setting == "off" or not plan.facts.family.thinks or plan.kind == "probe" or plan.effort == "none":
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


def stop(plan: Plan, settings: Policy) -> Plan:
    """More or longer stop strings than the family's own service takes are refused before it does so less clearly."""
    limits, facts = plan.facts.family.stops, plan.facts
    if limits is None or not facts.is_service:
        return plan
    said = _value(plan, "stop")
    strings = [said] if isinstance(said, str) else [each for each in said or () if isinstance(each, str)]
    most, size = limits
    if len(strings) > most or any(len(each.encode("utf-8", "replace")) > size for each in strings):
        takes = f"{facts.family.name} takes at most {most} stop strings of {size} bytes on backend {facts.backend}"
        raise InvalidRequest(f"`stop` has too many or too long strings: {takes}", param="stop")
    return plan


def sampling(plan: Plan, settings: Policy) -> Plan:
    """The family's values where the client set none; its own service knows them, and may refuse all others."""
    family, facts = plan.facts.family, plan.facts
    if settings.sampling == "client":
        return plan
    wanted: dict[str, float] = {**family.sampling, **(family.agentic if plan.request.has_tools else {})}
    own = {name: value for name in SAMPLED if (value := _value(plan, name)) is not None}
    if facts.is_service:
        refused = {name for name, value in own.items() if value != wanted.get(name)} if family.sampling_fixed else ()
        if not refused:
            return plan
        why = f"{' and '.join(sorted(refused))} cannot be chosen for {family.name} here"
        return plan.decided("sampling", why, fields={**plan.fields, **dict.fromkeys(refused)})
    if own or not wanted or plan.effort == "none" or plan.kind == "probe":
        return plan
    why = ", ".join(f"{name} {value:g}" for name, value in wanted.items())
    return plan.decided("sampling", why, fields={**plan.fields, **{name: dumps(each) for name, each in wanted.items()}})


def developer_role(plan: Plan, settings: Policy) -> Plan:
    """`developer` goes as `system` to engines that do not know it, and several at the head as one."""
    setting, roles = settings.developer_role, [message.role for message in plan.messages[:2]]
    named = any(message.role == "developer" for message in plan.messages)
    wanted = setting == "system" or (setting == "auto" and not plan.facts.takes_developer)
    joins = setting == "system" and roles == ["system", "system"]
    if not wanted or not (named or joins):
        return plan
    return plan.decided("developer_role", "sent as system", developer_role="system")


def tool_choice(plan: Plan, settings: Policy) -> Plan:
    """A forced tool choice that the family's service refuses while the model thinks becomes `auto`."""
    takes, facts = plan.facts.family.forced_tool_choice, plan.facts
    if settings.forced_tool_choice != "auto" or takes == "any" or not facts.refuses_missing or plan.effort == "none":
        return plan
    said = _value(plan, "tool_choice")
    is_named = isinstance(said, dict) and said.get("type") == "function"
    if not is_named and (said != "required" or takes == "required"):
        return plan
    why = f"{facts.family.name} refuses {'a named function' if is_named else said} while it thinks"
    return plan.decided("tool_choice", why, fields={**plan.fields, "tool_choice": b'"auto"'})


def _value(plan: Plan, name: str) -> Json:
    raw = plan.request.fields.get(name)
    return None if raw is None else loads(raw)


RULES: tuple[Rule, ...] = (
    probe,
    effort,
    floor,
    thinking_budget,
    stop,
    sampling,
    developer_role,
    tool_choice,
)
