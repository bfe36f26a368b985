"""Usage → cost in USD, in decimal arithmetic."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated

from annotated_types import Ge

from proxy.events import Usage
from proxy.section import Section

PerMillion = Annotated[Decimal, Ge(0)]


class Price(Section):
    """USD per million tokens. Thinking is billed as output everywhere; without `cached_input` the input price holds."""

    input: PerMillion
    output: PerMillion
    cached_input: PerMillion | None = None


def cost(usage: Usage, price: Price) -> Decimal | None:
    """What `usage` costs at `price`; None where prompt or completion tokens are unknown."""
    if usage.prompt is None or usage.completion is None:
        return None
    cached = min(usage.cached or 0, usage.prompt)
    cached_price = price.input if price.cached_input is None else price.cached_input
    total = (usage.prompt - cached) * price.input + cached * cached_price + usage.completion * price.output
    return total / 1_000_000
