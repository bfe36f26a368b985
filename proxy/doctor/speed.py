"""How fast a backend reads and writes, by its own account or by the clock."""

from __future__ import annotations

from collections.abc import Iterator

from proxy.dialects import Finding, Level
from proxy.doctor.seen import Said, Seen

_LEAST_TOKENS = 4
"""Fewer are too few to judge by."""


def decode(said: Said) -> float | None:
    """Tokens a second of writing."""
    told = said.fold.timings.get("predicted_per_second")
    written = said.fold.reported().completion or said.pieces
    if written < _LEAST_TOKENS:
        return None
    if isinstance(told, int | float) and told > 0:
        return float(told)
    if said.first is None or said.last is None or said.last <= said.first:
        return None
    return (written - 1) / (said.last - said.first)


def prefill(said: Said) -> float | None:
    """Tokens a second of reading."""
    told = said.fold.timings.get("prompt_per_second")
    if isinstance(told, int | float) and told > 0:
        return float(told)
    usage = said.fold.reported()
    fresh = (usage.prompt or 0) - (usage.cached or 0)
    return fresh / said.first if fresh > 0 and said.first else None


def is_slow(seen: Seen) -> bool:
    """As the rules will see it: by the settings, or measured."""
    if isinstance(seen.backend.slow, bool):
        return seen.backend.slow
    if seen.answer is None:
        return False
    rate = decode(seen.answer)
    if rate is None:
        return seen.answer.cut
    return rate < seen.settings.policy.slow_below_tokens_per_second


def check(seen: Seen) -> Iterator[Finding]:
    """The speed, and whether the settings know of a slow one."""
    said, setting = seen.answer, seen.backend.slow
    if said is None or said.problem:
        return
    write, read = decode(said), prefill(said)
    rates = [f"{_shown(rate)} {way}" for rate, way in ((read, "in"), (write, "out")) if rate]
    text, place = f"{', '.join(rates)}, in tokens a second" if rates else "", f"backends.{seen.name}"
    limit = seen.settings.policy.slow_below_tokens_per_second
    if said.cut:
        seen_so_far = text or (f"{said.pieces} pieces of it came" if said.pieces else "no token came")
        text = f"a short answer took too long and was ended, the rest not tried: {seen_so_far}"
        yield Finding("note", "speed", text, f"{place}.slow = true, {place}.read_timeout = 0")
    elif write is None:
        if text:
            yield Finding("ok", "speed", text)
    elif write >= limit:
        level: Level = "note" if setting is True else "ok"
        remedy = f'{place}.slow = "auto"' if setting is True else ""
        yield Finding(level, "speed", text + (": not slow, though the settings say so" if remedy else ""), remedy)
    elif setting is True:
        yield Finding("ok", "speed", f"{text}: slow, as the settings say")
    elif setting is False:
        text = f"{text}: slow, though the settings say that it is not: the effort stays as it is"
        yield Finding("hurts", "speed", text, f'{place}.slow = "auto"')
    else:
        text = f"{text}: slow, so that requests get the lowest effort once a speed is known"
        yield Finding("note", "speed", text, f"{place}.slow = true")


def _shown(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"
