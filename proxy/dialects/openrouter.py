"""OpenRouter, which relays to many services."""

from __future__ import annotations

from proxy.dialects.fields import Fields, merge
from proxy.dialects.plain import Dialect
from proxy.messages import Plan


class OpenRouter(Dialect):
    """The effort stands in `reasoning`, and the cap is `max_tokens`."""

    name = "openrouter"
    prices_of = "openrouter"
    hosts = ("openrouter.ai",)
    reasoning_field = "reasoning"
    takes_developer = True
    keeps = frozenset({"reasoning_details"})
    cap_fields = ("max_tokens",)
    effort_places = frozenset({"reasoning.effort"})
    off_places = frozenset({"reasoning.effort", "reasoning.enabled"})

    def _set_effort(self, fields: Fields, plan: Plan, word: str) -> None:
        if plan.request.budget is not None and plan.request.budget.where == "reasoning.max_tokens":
            return  # it takes an effort or a number of tokens, not both
        merge(fields, "reasoning", {"effort": word})

    def _switch_off(self, fields: Fields, plan: Plan) -> None:
        merge(fields, "reasoning", {"effort": "none"})
