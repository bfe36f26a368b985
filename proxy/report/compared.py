"""The same traffic at other prices: at those of a hosted model, and at today's."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from proxy import prices
from proxy.events import Usage
from proxy.report.sums import SUMS, folded, money
from proxy.store.ledger import Ledger, Row, Sum, Where, add
from proxy.tariffs import Tariff, Tariffs

_HOUR = " USD/hour"
_COUNTED = "prompt_tokens IS NOT NULL AND completion_tokens IS NOT NULL"
_TOKENS = (
    Sum("rows", "1", _COUNTED),
    Sum("all_rows", "1"),
    Sum("prompt", "prompt_tokens", _COUNTED),
    Sum("cached", "cached_tokens", _COUNTED),
    Sum("written", "cache_write_tokens", _COUNTED),
    Sum("completion", "completion_tokens", _COUNTED),
    Sum("cost", "cost_usd", exact=True),
)


def compare(ledger: Ledger, where: Where, key: str, model: str, tariff: Tariff) -> dict[str, Any]:
    """What the rows would have cost at a tariff.

    `compare_usd` is with the cache hits that were seen, `compare_usd_without_cache` as if there had been none: what a
    service's own cache would do lies between them. `by` has the first for each value of the key. `machines` are the
    backends that are billed by the hour: their rate, busy hours and cost, what their traffic costs at the tariff, for
    each busy hour too, and where the break-even lies: the share of all hours, and the tokens a day, from which a
    machine that is paid around the clock is cheaper. A share above 1 is never reached.
    """
    groups = folded(ledger.sums([key, "backend", "price_source"], _TOKENS, where), _TOKENS)
    by: dict[Any, Decimal] = {}
    whole: dict[str, Any] = dict.fromkeys(each.name for each in _TOKENS)
    machines: dict[tuple[str, str], dict[str, Any]] = {}
    for (value, backend, source), sums in groups.items():
        by[value] = add(by.get(value), _cost(sums, tariff))
        whole = _added(whole, sums)
        if source is not None and source.endswith(_HOUR):
            machines[backend, source] = _added(machines.get((backend, source), {}), sums)
    return {
        "model": model,
        "price": {name: money(value) for name, value in tariff.price if value is not None},
        "price_source": tariff.source,
        "rows": whole["rows"] or 0,
        "rows_without_tokens": (whole["all_rows"] or 0) - (whole["rows"] or 0),
        "cost_usd": None if whole["cost"] is None else money(whole["cost"]),
        "compare_usd": money(_cost(whole, tariff)),
        "compare_usd_without_cache": money(_cost({**whole, "cached": None, "written": None}, tariff)),
        "machines": [_machine(*name, sums, tariff) for name, sums in sorted(machines.items())],
        "by": {value: money(amount) for value, amount in by.items()},
    }


def _machine(backend: str, source: str, sums: dict[str, Any], tariff: Tariff) -> dict[str, Any]:
    rate, cost, there = _rate(source), sums["cost"] or Decimal(0), _cost(sums, tariff)
    hours = cost / rate
    each = there / hours if hours else Decimal(0)
    share = rate / each if each else None
    tokens = ((sums["prompt"] or 0) + (sums["completion"] or 0)) / hours if hours else Decimal(0)
    return {
        "backend": backend,
        "usd_per_hour": money(rate),
        "busy_hours": round(float(hours), 4),
        "cost_usd": money(cost),
        "compare_usd": money(there),
        "compare_usd_per_busy_hour": round(float(each), 6),
        "break_even_share": None if share is None else round(float(share), 4),
        "break_even_tokens_per_day": None if share is None or share > 1 else round(tokens * 24 * share),
    }


def repriced(ledger: Ledger, where: Where, keys: Sequence[str], tariffs: Tariffs) -> dict[Row, dict[str, Any]]:
    """The sums of each group, with the amounts of today's prices."""
    wanted = (*SUMS, *_TOKENS)
    more = ["model", "upstream_model", "backend", "price_source", "outcome"]
    found: dict[Row, dict[str, Any]] = {}
    for group, sums in folded(ledger.sums([*keys, *more], wanted, where), wanted).items():
        key, (model, upstream, backend, source, outcome) = group[: len(keys)], group[len(keys) :]
        held = tariffs.of(model or "", backend, upstream=upstream) if backend is not None else None
        amount, saved, unknown = _again(sums, held, source)
        mine = {each.name: sums[each.name] for each in SUMS}
        mine |= {"cost_usd": amount, "lost_usd": amount if outcome == "answer_lost" else None}
        mine |= {"restored_saved_usd": saved, "rows_without_cost": unknown}
        found[key] = _added(found.get(key, {}), mine)
    return found


def _again(sums: dict[str, Any], held: Tariff | Decimal | None, source: str | None) -> tuple[Any, Any, int]:
    """What a group costs today, what cache hits saved, and how many of its rows have no cost."""
    had = (source is not None and sums["all_rows"]) or 0
    spent: int = max(sums["rows_without_cost"] or 0, had, sums["rows"] or 0)
    if isinstance(held, Decimal):
        by_time = source is not None and source.endswith(_HOUR)
        amount = (sums["cost"] or Decimal(0)) * held / _rate(source or "") if by_time else None
        return amount, None, 0 if by_time else spent
    if held is None or not sums["rows"]:
        return None, None, spent
    restored = Usage(sums["restored_cached_tokens"], sums["restored_cached_tokens"])
    return _cost(sums, held), prices.saved(restored, held.price), spent - sums["rows"]


def _cost(sums: dict[str, Any], tariff: Tariff) -> Decimal:
    usage = Usage(sums["prompt"] or 0, sums["cached"], sums["completion"] or 0, written=sums["written"])
    return prices.cost(usage, tariff.price) or Decimal(0)


def _rate(source: str) -> Decimal:
    return Decimal(source.removesuffix(_HOUR))


def _added(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    return {name: add(one.get(name), value) for name, value in other.items()}
