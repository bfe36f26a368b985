"""Usage → cost in USD, in decimal arithmetic."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated

from annotated_types import Ge

from proxy.events import Usage
from proxy.section import Section

PerMillion = Annotated[Decimal, Ge(0)]
_MILLION = 1_000_000
_DIGITS = Decimal("1e-12")
"""What is billed by time has no end of digits; a picodollar is enough of them."""


class Price(Section):
    """USD per million tokens. Thinking is billed as output everywhere. Where `cached_input` or `cache_write` is
    missing, tokens from the cache, or into it, cost what input costs."""

    input: PerMillion
    output: PerMillion
    cached_input: PerMillion | None = None
    cache_write: PerMillion | None = None


def cost(usage: Usage, price: Price) -> Decimal | None:
    """What `usage` costs at `price`; None where prompt or completion tokens are unknown.

    Linear in the tokens: of sums it is the sum of the costs.
    """
    if usage.prompt is None or usage.completion is None:
        return None
    cached = min(usage.cached or 0, usage.prompt)
    written = min(usage.written or 0, usage.prompt - cached)
    total = (usage.prompt - cached - written) * price.input + usage.completion * price.output
    total += cached * (price.input if price.cached_input is None else price.cached_input)
    total += written * (price.input if price.cache_write is None else price.cache_write)
    return total / _MILLION


def saved(usage: Usage, price: Price) -> Decimal | None:
    """What tokens from the cache cost less than if they had been read anew; None where nobody knows how many."""
    if usage.cached is None or usage.prompt is None:
        return None
    less = Decimal(0) if price.cached_input is None else price.input - price.cached_input
    return min(usage.cached, usage.prompt) * less / _MILLION


def of_time(seconds: Decimal, usd_per_hour: Decimal) -> Decimal:
    """What so much time of a machine costs, to a picodollar."""
    return (seconds * usd_per_hour / 3600).quantize(_DIGITS)


def written(amount: Decimal) -> str:
    """An amount as the ledger has it: plain digits, no zeros at the end."""
    text = format(amount, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text
