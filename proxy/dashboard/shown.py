"""What `/spend` shows, as values: the page and the JSON have the same figures."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from proxy import watched
from proxy.pipeline import Pipeline
from proxy.report import Report
from proxy.report.bars import Bars

GROUPS = ("model", "backend", "client", "effort", "kind", "outcome")
"""What the page has a table for, in their order."""
_HOURS = timedelta(days=2)
"""A period up to this long is shown by the hour."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The query of a request, as it was written."""

    since: str | None = None
    until: str | None = None
    by: str = "model"


@dataclass(frozen=True, slots=True)
class Spend:
    """All that is shown. `over_time` is by the hour or by the day, as `step` says; `rows` is by what was asked for."""

    since: str | None
    until: str | None
    by: str
    rows: list[dict[str, Any]]
    total: dict[str, Any]
    step: str
    over_time: list[dict[str, Any]]
    tables: dict[str, list[dict[str, Any]]]
    thinking: list[dict[str, Any]]
    decisions: list[dict[str, Any]]
    backends: tuple[dict[str, Any], ...] = ()
    live: tuple[dict[str, Any], ...] = ()

    def beside(self, pipeline: Pipeline, client: str | None) -> Spend:
        """With what holds at the moment, for one client or for all."""
        rows = watched.backends(pipeline.backends), watched.live(pipeline.generations, client)
        return replace(self, backends=tuple(rows[0]), live=tuple(rows[1]))

    @property
    def bars(self) -> Bars:
        """The picture of the tokens over time."""
        return Bars.of(self.over_time, self.step)

    @property
    def period(self) -> str:
        """In words."""
        return f"{self.since or 'the first request'} to {self.until or 'now'}"

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "period": {"since": self.since, "until": self.until},
            "by": self.by,
            "rows": self.rows,
            "total": self.total,
            "step": self.step,
            "over_time": self.over_time,
            **{f"by_{name}": rows for name, rows in self.tables.items()},
            "thinking": self.thinking,
            "decisions": self.decisions,
            "backends": list(self.backends),
            "live": list(self.live),
        }


def gathered(asked: Asked, report: Report) -> Spend:
    """From a report; a few looks at the ledger."""
    step = "hour" if _is_short(report) else "day"
    tables = {name: report.by(name) for name in GROUPS}
    rows = tables[asked.by] if asked.by in tables else report.by(asked.by)
    over_time = report.by(step)
    return Spend(
        report.since,
        report.until,
        asked.by,
        rows,
        report.total(),
        step,
        over_time,
        tables,
        report.thinking(),
        report.decisions(),
    )


def _is_short(report: Report) -> bool:
    if report.since is None:
        return False
    start = datetime.fromisoformat(report.since)
    end = datetime.fromisoformat(report.until) if report.until else datetime.now(start.tzinfo)
    return end - start <= _HOURS
