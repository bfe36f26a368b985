"""What is said beside effort and room: stop strings, sampling, roles, tool choice."""

from __future__ import annotations

from proxy.errors import InvalidRequest
from proxy.families import SAMPLED
from proxy.jsons import dumps, loads
from proxy.messages import ChatRequest, Json, Plan
from proxy.policy.settings import Terms


def stop(plan: Plan, terms: Terms) -> Plan:
    """Engines look for stop strings in the thought too, and end the answer before it began: the proxy finds them.

    Where they go to the family's own service, more or longer ones than it takes are refused before it does so less
    clearly.
    """
    said, facts = _value(plan, "stop"), plan.facts
    strings = [said] if isinstance(said, str) else said if isinstance(said, list) else []
    texts = tuple(each for each in strings if isinstance(each, str) and each)
    if not texts or len(texts) != len(strings):
        return plan
    may_think = facts.family.thinks and plan.effort != "none"
    if terms.policy.stop == "visible" and may_think:
        keeps = _value(plan, "include_stop_str_in_output") is True
        why = "looked for in the visible text alone"
        return plan.decided("stop", why, stops=texts, keeps_stop=keeps, fields={**plan.fields, "stop": None})
    if facts.family.stops is not None and facts.is_service:
        most, size = facts.family.stops
        if len(texts) > most or any(len(each.encode("utf-8", "replace")) > size for each in texts):
            takes = f"{facts.family.name} takes at most {most} stop strings of {size} bytes on backend {facts.backend}"
            raise InvalidRequest(f"`stop` has too many or too long strings: {takes}", param="stop")
    return plan


def sampling(plan: Plan, terms: Terms) -> Plan:
    """A rule's values, else the family's, where the client set none; its own service knows them, and may refuse all
    others."""
    family, facts = plan.facts.family, plan.facts
    usual: dict[str, float] = {**family.sampling, **(family.agentic if plan.request.has_tools else {})}
    own = {name: value for name in SAMPLED if (value := _value(plan, name)) is not None}
    preset = {name: value for name in SAMPLED if (value := getattr(terms.preset, name)) is not None}
    if facts.is_service and family.sampling_fixed:
        refused = {name for name, value in own.items() if value != usual.get(name)}
        if not refused or terms.policy.sampling == "client":
            return plan
        why = f"{' and '.join(sorted(refused))} cannot be chosen for {family.name} here"
        return plan.decided("sampling", why, fields={**plan.fields, **dict.fromkeys(refused)})
    recommends = terms.policy.sampling == "recommended" and not facts.is_service
    if not recommends or plan.effort == "none" or plan.kind == "probe":
        usual = {}
    wanted = {} if own else {**usual, **preset}
    if not wanted:
        return plan
    why = ", ".join(f"{name} {value:g}" for name, value in wanted.items())
    return plan.decided("sampling", why, fields={**plan.fields, **{name: dumps(each) for name, each in wanted.items()}})


def developer_role(plan: Plan, terms: Terms) -> Plan:
    """`developer` goes as `system` to engines that do not know it, and several at the head as one."""
    setting, roles = terms.policy.developer_role, [message.role for message in plan.messages[:2]]
    named = any(message.role == "developer" for message in plan.messages)
    wanted = setting == "system" or (setting == "auto" and not plan.facts.takes_developer)
    joins = setting == "system" and roles == ["system", "system"]
    if not wanted or not (named or joins):
        return plan
    return plan.decided("developer_role", "sent as system", developer_role="system")


def tool_choice(plan: Plan, terms: Terms) -> Plan:
    """A forced tool choice that the family's service refuses while the model thinks becomes `auto`."""
    takes, facts = plan.facts.family.forced_tool_choice, plan.facts
    if (
        terms.policy.forced_tool_choice != "auto"
        or takes == "any"
        or not facts.refuses_missing
        or plan.effort == "none"
    ):
        return plan
    said = _value(plan, "tool_choice")
    is_named = isinstance(said, dict) and said.get("type") == "function"
    if not is_named and (said != "required" or takes == "required"):
        return plan
    why = f"{facts.family.name} refuses {'a named function' if is_named else said} while it thinks"
    return plan.decided("tool_choice", why, fields={**plan.fields, "tool_choice": b'"auto"'})


def has(request: ChatRequest, name: str) -> bool:
    """Whether a field says something."""
    raw = request.fields.get(name)
    return raw is not None and bool(loads(raw))


def _value(plan: Plan, name: str) -> Json:
    raw = plan.request.fields.get(name)
    return None if raw is None else loads(raw)
