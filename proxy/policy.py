"""Effort, budgets and caps: a tuple of rules that each look at a plan and may return another, with the reason."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge

from proxy.section import Section

Tokens = Annotated[int, Ge(0)]


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
