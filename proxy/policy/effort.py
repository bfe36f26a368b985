"""How much the model shall think: the client's word, fitted to the family; else what the settings choose."""

from __future__ import annotations

from dataclasses import replace

from proxy.errors import InvalidRequest
from proxy.messages import Ask, Facts, Plan
from proxy.policy.settings import Terms

_USUAL = ("low", "medium", "high")


def effort(plan: Plan, terms: Terms) -> Plan:
    """The client's word, fitted to the family; else the word of the conversation; else the default."""
    if plan.request.effort is not None:
        return _asked(plan, plan.request.effort)
    if not plan.facts.family.thinks:
        return plan
    word, reason = _chosen(plan, terms)
    if not word:
        return replace(plan, effort_reason=reason)
    return plan.decided("effort", reason, effort=word, effort_reason=reason, effort_changed=True)


def words(facts: Facts) -> tuple[str, ...]:
    """The efforts that work here, the lowest first; empty where none is known."""
    return facts.family.efforts or (_USUAL if facts.effort_option else ())


def _asked(plan: Plan, ask: Ask) -> Plan:
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


def _chosen(plan: Plan, terms: Terms) -> tuple[str, str]:
    """(word, reason) where the client is silent; an empty word sends none."""
    facts, default = plan.facts, terms.policy.default_effort
    if facts.effort_refused:
        return "", "no-thinking"
    if plan.request.budget is not None or (plan.request.switched_on is not None and plan.kind == "side"):
        return "", "client"  # who says how much in tokens, or that it shall think
    if terms.preset.effort is not None:
        return _of_rule(facts, terms.preset.effort)
    if plan.kind == "side":
        return ("none" if _can_be_off(facts) else _lowest(facts)), "side"
    if plan.kind == "probe":
        return _lowest(facts), "probe"
    if default == "off":
        return "", "off"
    if facts.conversation_effort is not None:
        return facts.conversation_effort, "conversation"
    if default == "auto":
        return (_lowest(facts), "slow-backend") if facts.slow and words(facts) else ("", "auto")
    word = facts.family.fitted(default)
    return (word, "default") if word else ("", "unknown-word")


def _of_rule(facts: Facts, said: str) -> tuple[str, str]:
    if said == "off":
        return "", "rule"
    if said == "none":
        return (_lowest(facts) if facts.thinks_always else "none"), "rule"
    word = facts.family.fitted(said)
    return (word, "rule") if word else ("", "unknown-word")


def _lowest(facts: Facts) -> str:
    known = words(facts)
    return known[0] if known else ""


def _can_be_off(facts: Facts) -> bool:
    """Whether an option of the template switches thinking off."""
    return bool(facts.switch_off) and not facts.thinks_always
