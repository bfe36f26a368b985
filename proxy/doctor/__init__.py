"""`reasoning-proxy doctor`: asks each backend what it is and does, and says what to do about it.

`examine.py` asks and gathers a `Seen`, `checks.py` makes findings of it, `show.py` writes them. What helps on an engine
stands beside its dialect (`proxy/dialects/advice.py`).
"""

from __future__ import annotations

from collections.abc import Callable

from proxy import config, families
from proxy.doctor.checks import findings
from proxy.doctor.examine import GENERATE_SECONDS, examine
from proxy.doctor.show import Report, document, report, text

__all__ = ["GENERATE_SECONDS", "Report", "document", "run", "text"]


async def run(
    settings: config.Settings,
    names: list[str] | None = None,
    *,
    generate: bool | None = None,
    seconds: float = GENERATE_SECONDS,
    say: Callable[[str], object] = lambda _: None,
) -> list[Report]:
    """A report of each backend, or of those with these names, one after the other: they may share a machine.

    `generate` None asks for short answers where they cost nothing; `seconds` bound them, for each backend.
    """
    known = families.load(settings.families)
    reports = []
    for name in names or settings.backends:
        say(f"looking at {name}, {settings.backends[name].shown_url}")
        seen = await examine(name, settings, known, generate=generate, seconds=seconds)
        reports.append(report(seen, findings(seen)))
    return reports
