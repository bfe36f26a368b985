"""Ledger rows → what was thought, what was said, and what it cost, by one key.

    from proxy import Report
    Report.from_ledger("sqlite").by("model")

Days and hours are UTC, as the ledger's times are. A sum over rows of which none knows the number is None; a row that
knows none (a passed-through request has no tokens) still counts as a request.
"""

from __future__ import annotations

import csv
import io
import re
import shutil
import sqlite3
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import TYPE_CHECKING, Any

import msgspec

from proxy.errors import ConfigError, InvalidRequest
from proxy.messages import Entry
from proxy.store.ledger import load, open_ledger

if TYPE_CHECKING:
    from rich.table import Table

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

FORMATS = ("table", "json", "jsonl", "csv")

_SUMS = {
    "requests": "count(*)",
    "prompt_tokens": "sum(prompt_tokens)",
    "cached_tokens": "sum(cached_tokens)",
    "completion_tokens": "sum(completion_tokens)",
    "reasoning_tokens": "sum(reasoning_tokens)",
    "visible_tokens": "sum(visible_tokens)",
    # Only of the rows that know both: a thought of unknown length is not a short one.
    "reasoning_share": """round(1.0 * sum(CASE WHEN completion_tokens IS NOT NULL THEN reasoning_tokens END)
        / sum(CASE WHEN reasoning_tokens IS NOT NULL THEN completion_tokens END), 4)""",
    "answers_lost": "count(CASE WHEN outcome = 'answer_lost' THEN 1 END)",
    "turns_restored": "sum(turns_restored)",
    "cost": "coalesce(exact_sum(cost_usd), '0 0')",
}
COLUMNS = (*list(_SUMS)[:-1], "cost_usd", "rows_without_cost")
"""The names in a row of the report after its key."""

_HEADS = ("requests", "prompt", "cached", "completion", "reasoning", "visible", "share", "lost", "restored")
_TABLE = dict(zip(COLUMNS, (*_HEADS, "USD", "unpriced"), strict=True))
_LEFT_OUT_FIRST = (
    "cached_tokens",
    "turns_restored",
    "prompt_tokens",
    "visible_tokens",
    "rows_without_cost",
    "reasoning_tokens",
)
_WIDTH = 120

_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:\d\d)?")
_AGO = re.compile(r"(\d+)([dhm])")
_UNITS = {"d": "days", "h": "hours", "m": "minutes"}


class Report:
    """Sums over the rows from `since` (inclusive) to `until` (exclusive), both RFC 3339 in UTC or None for no bound.

    A ledger in a SQLite file is read whenever the report is asked; of others it knows what was there when it was made.
    """

    def __init__(self, connection: sqlite3.Connection, since: str | None, until: str | None) -> None:
        self.since, self.until = since, until
        self._connection = connection
        self._lock = threading.RLock()
        self._close = weakref.finalize(self, connection.close)  # notebooks never close a report
        connection.create_aggregate("exact_sum", 1, _ExactSum)  # type: ignore[arg-type]

    @classmethod
    def from_ledger(cls, url: str, *, since: str | None = None, until: str | None = None) -> Report:
        """The report of a store's URL, of `jsonl:///file` (as `sqlite:///`), or of the path of either file.

        `since` and `until` are `YYYY-MM-DD`, `YYYY-MM`, RFC 3339, `today`, `yesterday`, or `7d`, `24h`, `30m` ago. A
        day or a month as `until` is meant with all its hours: `until="2026-11-30"` includes that day.
        Raises NotFound where there is no ledger yet, InvalidRequest for a bad time, ConfigError for a bad URL or file.
        """
        bounds = _bounds(since, until)
        return cls(open_ledger(url, _within(*bounds), *bounds), *bounds)

    @classmethod
    def from_rows(
        cls, rows: Iterable[Mapping[str, Any]], *, since: str | None = None, until: str | None = None
    ) -> Report:
        """The report of rows as `Store.entries` gives them: the way to a ledger that is only in memory."""
        bounds = _bounds(since, until)
        return cls(load((msgspec.convert(row, Entry) for row in rows), _within(*bounds)), *bounds)

    def by(self, key: str) -> list[dict[str, Any]]:
        """One row for each value of `key`: the value under the key's own name, then COLUMNS.

        Days and hours come in order, all else by completion tokens, the most first. `cost_usd` is the exact sum as a
        decimal text. Raises InvalidRequest for an unknown key.
        """
        if key not in KEYS:
            raise InvalidRequest(f"`by` {key!r} is unknown; known are {', '.join(KEYS)}", param="by")
        order = "1" if key in ("day", "hour") else "completion_tokens DESC, requests DESC, 1"
        return self._ask([key], f"{KEYS[key]}, ", f"GROUP BY 1 ORDER BY {order}")

    def total(self) -> dict[str, Any]:
        """COLUMNS over all rows."""
        return self._ask([], "", "")[0]

    def render(self, by: str, format: str = "table") -> str:
        """The report as text, without a line end at its end: `table`, `json`, `jsonl` or `csv`.

        JSON is an object with `by`, `since`, `until` (exclusive), `rows` and `total`. Missing is `-` in the table, null
        in JSON and empty in CSV. The table is as wide as the terminal, or 120 columns without colours where stdout is
        none; a narrow one leaves out columns. Raises InvalidRequest for an unknown key or format.
        """
        if format not in FORMATS:
            raise InvalidRequest(f"`format` {format!r} is unknown; known are {', '.join(FORMATS)}", param="format")
        rows, total = self._both(by)
        if format == "json":
            whole = {"by": by, "since": self.since, "until": self.until, "rows": rows, "total": total}
            return msgspec.json.format(msgspec.json.encode(whole), indent=2).decode()
        if format == "jsonl":
            return "\n".join(msgspec.json.encode(row).decode() for row in rows)
        if format == "csv":
            return _csv(by, rows)
        period = f"{self.since or 'the first row'} to {self.until or 'now'}"
        return _text(by, rows, total, period if self.since or self.until else "all rows")

    def close(self) -> None:
        """Close the ledger. Closing again does nothing."""
        self._close()

    def _both(self, by: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Rows and total of the same moment, although a proxy may be writing."""
        with self._lock:
            self._connection.execute("BEGIN")
            try:
                return self.by(by), self.total()
            finally:
                self._connection.execute("ROLLBACK")

    def _ask(self, names: list[str], first: str, last: str) -> list[dict[str, Any]]:
        bounds = {"ts >= ?": self.since, "ts < ?": self.until}
        given = {condition: _prefix(bound) for condition, bound in bounds.items() if bound is not None}
        where = f"WHERE {' AND '.join(given)}" if given else ""
        sums = ", ".join(f"{sql} AS {name}" for name, sql in _SUMS.items())
        sql = f"SELECT {first}{sums} FROM requests {where} {last}"  # noqa: S608 - our own words; values are bound
        with self._lock:
            try:
                rows = self._connection.execute(sql, list(given.values())).fetchall()
            except sqlite3.Error as error:
                raise ConfigError(f"the ledger cannot be read ({error}): is it reasoning-proxy's own file?") from None
        return [_row(names, row) for row in rows]


class _ExactSum:
    """SQL aggregate over decimal texts: "count sum". SQL's own sum is binary, where 0.1 + 0.2 is not 0.3."""

    # Enough digits for every text that `step` takes; Decimal rounds to 28 otherwise.
    _exact = Context(prec=1300, traps=[Inexact, InvalidOperation])

    def __init__(self) -> None:
        self._count = 0
        self._sum = Decimal(0)

    def step(self, value: str | None) -> None:
        if value is None:
            return
        try:
            cost = Decimal(value)
        except InvalidOperation:
            return  # no number: the row counts as one without a cost
        # What lies outside is no sum of money either, and an exact sum of it would fill the memory.
        if cost.is_finite() and abs(cost.adjusted()) <= 500 and len(value) <= 200:
            self._sum = self._exact.add(self._sum, cost)
            self._count += 1

    def finalize(self) -> str:
        return f"{self._count} {self._sum:f}"


def _row(names: list[str], values: Sequence[Any]) -> dict[str, Any]:
    found = dict(zip([*names, *_SUMS], values, strict=True))
    count, cost = found.pop("cost").split(" ")
    found["cost_usd"] = cost if count != "0" else None
    found["rows_without_cost"] = found["requests"] - int(count)
    return found


# Times


def _bounds(since: str | None, until: str | None) -> tuple[str | None, str | None]:
    """Both as RFC 3339 in UTC. Raises InvalidRequest where one cannot be read or nothing lies between them."""
    now = datetime.now(UTC).replace(microsecond=0)
    start, end = _moment("since", since, now)[0], _moment("until", until, now)[1]
    if start and end and start >= end:
        raise InvalidRequest(f"nothing lies between `since` {since!r} and `until` {until!r}", param="until")
    return _rfc3339(start), _rfc3339(end)


def _moment(name: str, text: str | None, now: datetime) -> tuple[datetime | None, datetime | None]:
    """Beginning and end of the time that `text` names; a moment is both."""
    if text is None:
        return None, None
    word = text.strip()
    midnight = now.replace(hour=0, minute=0, second=0)
    try:
        if word in ("today", "yesterday"):
            start = midnight - timedelta(days=word == "yesterday")
            return start, start + timedelta(days=1)
        if ago := _AGO.fullmatch(word):
            moment = now - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
            return moment, moment
        if re.fullmatch(r"\d{4}-\d\d-\d\d", word):
            start = datetime.fromisoformat(word).replace(tzinfo=UTC)
            return start, start + timedelta(days=1)
        if re.fullmatch(r"\d{4}-\d\d", word):
            start = datetime.fromisoformat(f"{word}-01").replace(tzinfo=UTC)
            return start, (start + timedelta(days=31)).replace(day=1)
        if _TIME.fullmatch(word.upper()):
            moment = datetime.fromisoformat(word.upper())
            moment = moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
            return moment, moment
    except (ValueError, OverflowError):
        pass  # the 31st of February, or a year that no calendar has
    raise InvalidRequest(
        f"`{name}` {text!r} is no time. Accepted are 2026-11-30, 2026-11, 2026-11-30T15:00:00Z, today, yesterday, "
        "and 7d, 24h or 30m for so long ago; all in UTC",
        param=name,
    )


def _rfc3339(moment: datetime | None) -> str | None:
    return None if moment is None else f"{moment.replace(tzinfo=None).isoformat()}Z"


def _prefix(bound: str) -> str:
    """What times are compared with. Without the zone, because `15:00:00.250Z` sorts before `15:00:00Z`."""
    return bound.removesuffix("Z")


def _within(since: str | None, until: str | None) -> Callable[[Entry], bool]:
    """A test of rows, for loading no more than is asked for."""
    start, end = _prefix(since or ""), _prefix(until or "\U0010ffff")
    return lambda entry: start <= entry.ts < end


# Text


def _csv(by: str, rows: list[dict[str, Any]]) -> str:
    file = io.StringIO()
    writer = csv.DictWriter(file, [by, *COLUMNS], lineterminator="\n")
    writer.writeheader()
    writer.writerows({**row, by: _plain(row[by])} for row in rows)
    return file.getvalue().rstrip("\n")


def _plain(name: str | None) -> str | None:
    """A name that clients chose, as a cell that no spreadsheet takes for a formula, without control characters."""
    shown = None if name is None else _printable(name)
    return f"'{shown}" if shown and shown[0] in "=+-@" else shown


def _text(by: str, rows: list[dict[str, Any]], total: dict[str, Any], period: str) -> str:
    from rich.console import Console  # noqa: PLC0415 - 60 ms that no other format needs

    terminal = sys.stdout.isatty()
    file = io.StringIO()
    console = Console(
        file=file,
        width=shutil.get_terminal_size((_WIDTH, 0)).columns if terminal else _WIDTH,
        force_terminal=terminal,
        color_system="auto" if terminal else None,
    )
    names, wide = [by, *COLUMNS], console.options.update(width=10_000)
    table = _table(names, rows, total)
    for name in _LEFT_OUT_FIRST:
        if console.measure(table, options=wide).minimum <= console.width:
            break
        names.remove(name)
        table = _table(names, rows, total)
    console.print(table)
    lines = [f"{period}, times in UTC", *file.getvalue().splitlines()]
    return "\n".join(line.rstrip() for line in lines)


def _table(names: list[str], rows: list[dict[str, Any]], total: dict[str, Any]) -> Table:
    from rich.box import SIMPLE_HEAD  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    by, *columns = names
    cells = [[_cell(name, row[name]) for name in names] for row in rows]
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_footer=True)
    table.add_column(by, footer="total", min_width=8, overflow="fold")
    for at, name in enumerate(columns, 1):
        head, foot = _TABLE[name], _cell(name, total[name])
        # Without it rich cuts numbers to fit.
        widest = max(len(text) for text in (head, foot, *(row[at] for row in cells)))
        table.add_column(head, footer=foot, justify="right", min_width=widest)
    for row in cells:
        table.add_row(*map(Text, row))
    return table


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if name == "reasoning_share":
        return f"{value:.1%}"
    if name == "cost_usd":
        cost = Decimal(value)
        return "<0.0001" if 0 < cost < Decimal("0.0001") else f"{cost:,.4f}"
    if isinstance(value, int):
        return f"{value:,}"
    return _printable(str(value))


def _printable(name: str) -> str:
    """The name of a model is what a client wrote: it must not steer the terminal."""
    return "".join(letter if letter.isprintable() else "�" for letter in name)
