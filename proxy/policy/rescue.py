"""One more try for an answer that was lost to thinking."""

from __future__ import annotations

from dataclasses import replace

from proxy import window
from proxy.asks import MOST_TOKENS
from proxy.messages import Plan
from proxy.policy.effort import words
from proxy.policy.room import thinking_budget
from proxy.policy.settings import Terms

_TIMES = 2


def rescued(plan: Plan, terms: Terms) -> Plan | None:
    """The same request at the lowest effort and with twice the room; None where it would be the same request again, or
    one that nobody waits for.

    What the window has left is the most, as far as it is known.
    """
    if terms.policy.rescue == "off" or plan.kind == "probe":
        return None
    known, cap, room = words(plan.facts), plan.max_tokens, window.room(plan)
    effort = known[0] if known and plan.effort != "none" else plan.effort
    more = None if cap is None else min(cap * _TIMES, MOST_TOKENS)
    if cap is not None and more is not None and room is not None:
        more = max(cap, min(more, room))
    if (effort, more) == (plan.effort, cap):
        return None
    why = f"the answer was lost: once more at {effort or 'the same'} effort, with {more or 'no'} cap"
    again = plan.decided("rescue", why, max_tokens=more)
    if effort != plan.effort:
        again = replace(again, effort=effort, effort_changed=True, effort_reason="rescue")
    if more != cap:
        again = replace(again, max_tokens_reason="rescue")
    return again if plan.thinking_budget_reason == "client" else _budgeted(again, terms)


def _budgeted(plan: Plan, terms: Terms) -> Plan:
    """The budget for the new cap; its decision was told already."""
    told = plan.decisions
    return replace(thinking_budget(replace(plan, thinking_budget=None), terms), decisions=told)
