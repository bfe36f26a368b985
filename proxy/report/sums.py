"""What a report adds up, and what follows from the sums."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any

from proxy.store.ledger import Row, Sum, add

KEYS = {
    "day": "nullif(substr(ts, 1, 10), '')",
    "hour": "nullif(substr(ts, 1, 13), '') || ':00Z'",
    "model": "model",
    "backend": "backend",
    "client": "client",
    "effort": "effort_sent",
    "kind": "kind",
    "outcome": "outcome",
    "conversation": "conversation",
}
"""What rows can be grouped by, and how it is read from a ledger row."""

_MAY_HAVE_COST = (
    "(attempts > 0 OR completion_tokens IS NOT NULL) AND outcome NOT IN ('upstream_unreachable', 'rejected')"
    " AND NOT (outcome = 'upstream_error' AND completion_tokens IS NULL)"
)
_KNOWN = "completion_tokens IS NOT NULL AND reasoning_tokens IS NOT NULL"
SUMS = (
    Sum("requests", "1"),
    Sum("prompt_tokens", "prompt_tokens"),
    Sum("cached_tokens", "cached_tokens"),
    Sum("cache_write_tokens", "cache_write_tokens"),
    Sum("completion_tokens", "completion_tokens"),
    Sum("reasoning_tokens", "reasoning_tokens"),
    Sum("visible_tokens", "visible_tokens"),
    # Only of the rows that know both: a thought of unknown length is not a short one.
    Sum("_reasoning", "reasoning_tokens", _KNOWN),
    Sum("_completion", "completion_tokens", _KNOWN),
    Sum("answers_lost", "1", "outcome = 'answer_lost'"),
    Sum("turns_restored", "turns_restored"),
    Sum("restored_cached_tokens", "cached_tokens", "turns_restored > 0"),
    Sum("cost_usd", "cost_usd", exact=True),
    Sum("lost_usd", "cost_usd", "outcome = 'answer_lost'", exact=True),
    Sum("restored_saved_usd", "cache_saved_usd", "turns_restored > 0", exact=True),
    Sum("rows_without_cost", "1", f"cost_usd IS NULL AND {_MAY_HAVE_COST}"),
)
COUNTS = ("requests", "answers_lost", "rows_without_cost")
COLUMNS = (
    *("requests", "prompt_tokens", "cached_tokens", "cache_write_tokens", "completion_tokens", "reasoning_tokens"),
    *("visible_tokens", "reasoning_share", "answers_lost", "lost_usd", "turns_restored", "restored_cached_tokens"),
    *("restored_saved_usd", "cost_usd", "cost_share", "rows_without_cost"),
)
"""The names in a row of the report after its key."""
PERCENTILES = {"p50": 50, "p90": 90, "p99": 99}


def folded(rows: Iterable[Row], wanted: Sequence[Sum]) -> dict[Row, dict[str, Any]]:
    """The sums of each group by name, however many parts it came in; a group is known by its keys."""
    found: dict[Row, dict[str, Any]] = {}
    for each in rows:
        keys, values = each[: -len(wanted)], each[-len(wanted) :]
        group = found.setdefault(keys, dict.fromkeys(one.name for one in wanted))
        for one, value in zip(wanted, values, strict=True):
            group[one.name] = add(group[one.name], value)
    return found


def total(groups: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """All groups as one."""
    whole: dict[str, Any] = {each.name: None for each in SUMS}
    for group in groups:
        for name, value in group.items():
            whole[name] = add(whole.get(name), value)
    return whole


def row(sums: dict[str, Any], cost: Decimal | None) -> dict[str, Any]:
    """COLUMNS of a group; `cost` is that of all groups."""
    found = {name: sums.get(name) for name in COLUMNS}
    for name in COUNTS:
        found[name] = found[name] or 0
    thought, whole = sums["_reasoning"], sums["_completion"]
    found["reasoning_share"] = round(thought / whole, 4) if thought is not None and whole else None
    own = sums["cost_usd"]
    found["cost_share"] = round(float(own / cost), 4) if own is not None and cost else None
    for name in ("cost_usd", "lost_usd", "restored_saved_usd"):
        found[name] = None if sums[name] is None else money(sums[name])
    return found


def money(amount: Decimal) -> str:
    """An exact amount in plain digits."""
    text = f"{amount:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def percentiles(counts: Counter[int]) -> dict[str, int]:
    """The number of values, the nearest-rank percentiles, and the most, from how often each value comes."""
    values, whole = sorted(counts.items()), counts.total()
    found, seen, at = {"requests": whole}, 0, iter(values)
    value = 0
    for name, percent in PERCENTILES.items():
        while seen * 100 < whole * percent:
            value, count = next(at)
            seen += count
        found[name] = value
    return {**found, "max": values[-1][0]}
