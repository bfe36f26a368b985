"""A report as text: a table for the terminal, JSON, JSON lines, CSV, or a page that stands alone."""

from __future__ import annotations

import csv
import io
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import msgspec

from proxy.report.sums import COLUMNS

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

HEADS = {
    "requests": "requests",
    "prompt_tokens": "prompt",
    "cached_tokens": "cached",
    "completion_tokens": "completion",
    "reasoning_tokens": "reasoning",
    "visible_tokens": "visible",
    "reasoning_share": "share",
    "answers_lost": "lost",
    "turns_restored": "restored",
    "cost_usd": "USD",
    "cost_share": "of cost",
    "compare_usd": "compared",
    "rows_without_cost": "unpriced",
}
"""The columns of the table and their heads; JSON and CSV have more."""
_LEFT_OUT_FIRST = (
    *("cached_tokens", "cost_share", "turns_restored", "prompt_tokens", "visible_tokens", "rows_without_cost"),
    "reasoning_tokens",
)
_WIDTH = 120
_SHARES = ("reasoning_share", "cost_share")


@dataclass(slots=True)
class Shown:
    """What there is to show."""

    by: str
    since: str | None
    until: str | None
    rows: list[dict[str, Any]]
    total: dict[str, Any]
    thinking: list[dict[str, Any]] | None = None
    compare: dict[str, Any] | None = None
    repriced: str | None = None

    @property
    def period(self) -> str:
        """In words."""
        named = f"{self.since or 'the first row'} to {self.until or 'now'}"
        return named if self.since or self.until else "all rows"

    @property
    def columns(self) -> list[str]:
        """Those of the rows after the key."""
        return [*COLUMNS, *(["compare_usd"] if self.compare else [])]


def text(found: Shown, format: str, *, days: Sequence[dict[str, Any]] = ()) -> str:
    """In one of the formats; a page shows the `days` too."""
    if format == "json":
        return msgspec.json.format(msgspec.json.encode(_document(found)), indent=2).decode()
    if format == "jsonl":
        return "\n".join(msgspec.json.encode(row).decode() for row in found.rows)
    if format == "csv":
        return _csv(found)
    if format == "html":
        from proxy.report.page import page  # noqa: PLC0415 - jinja2 is needed for nothing else here

        return page(found, days)
    return _table_text(found)


def _document(found: Shown) -> dict[str, Any]:
    whole = {"by": found.by, "since": found.since, "until": found.until, "rows": found.rows, "total": found.total}
    more = {"thinking": found.thinking, "compare": found.compare, "repriced": found.repriced}
    whole |= {name: value for name, value in more.items() if value is not None}
    if found.compare is not None:
        whole["compare"] = {name: value for name, value in found.compare.items() if name != "by"}
    return whole


def _csv(found: Shown) -> str:
    file = io.StringIO()
    writer = csv.DictWriter(file, [found.by, *found.columns], lineterminator="\n")
    writer.writeheader()
    writer.writerows({**row, found.by: _plain(row[found.by])} for row in found.rows)
    return file.getvalue().rstrip("\n")


def _plain(name: str | None) -> str | None:
    """A name that clients chose, as a cell that no spreadsheet takes for a formula, without control characters."""
    shown = None if name is None else printable(name)
    return f"'{shown}" if shown and shown[0] in "=+-@" else shown


def notes(found: Shown) -> list[str]:
    """What the figures do not say by themselves, a line each."""
    whole, lines = found.total, []
    if whole["lost_usd"] is not None and Decimal(whole["lost_usd"]):
        money = cell("cost_usd", whole["lost_usd"])
        lines.append(f"answers lost to thinking: {whole['answers_lost']:,}, which cost {money} USD")
    if whole["restored_cached_tokens"]:
        saved = whole["restored_saved_usd"]
        money = f" and {cell('cost_usd', saved)} USD" if saved is not None and Decimal(saved) else ""
        lines.append(
            f"cache hits on requests with restored thoughts saved {whole['restored_cached_tokens']:,} tokens{money}"
        )
    if whole["rows_without_cost"]:
        lines.append(f"rows without a price, which are not in the sum: {whole['rows_without_cost']:,}")
    if found.repriced:
        lines.append(f"repriced on {found.repriced}: by the prices of that day, not by those of each row")
    return lines + (_compared(found.compare) if found.compare else [])


def _compared(told: dict[str, Any]) -> list[str]:
    with_hits, without = (cell("cost_usd", told[name]) for name in ("compare_usd", "compare_usd_without_cache"))
    lines = [
        f"at the price of {told['model']} ({told['price_source']}) this costs {with_hits} USD with the cache hits that "
        f"were seen, {without} without any"
    ]
    if told["rows_without_tokens"]:
        lines.append(f"rows without token counts, which are not compared: {told['rows_without_tokens']:,}")
    for each in told["machines"]:
        line = (
            f"{each['backend']}: {each['busy_hours']:,.2f} busy hours at {each['usd_per_hour']} USD cost "
            f"{cell('cost_usd', each['cost_usd'])} USD; the same at {told['model']}'s price "
            f"{cell('cost_usd', each['compare_usd'])}"
        )
        share = each["break_even_share"]
        if share is None:
            lines.append(line)
        elif share > 1:
            lines.append(f"{line}; paid around the clock it is never cheaper at this speed")
        else:
            day = each["break_even_tokens_per_day"]
            when = f"from {share:.1%} of the hours on ({day:,} tokens a day)"
            lines.append(f"{line}; paid around the clock it is cheaper {when}")
    return lines


def _table_text(found: Shown) -> str:
    from rich.console import Console  # noqa: PLC0415 - 60 ms that no other format needs

    terminal = sys.stdout.isatty()
    file = io.StringIO()
    console = Console(
        file=file,
        width=shutil.get_terminal_size((_WIDTH, 0)).columns if terminal else _WIDTH,
        force_terminal=terminal,
        color_system="auto" if terminal else None,
    )
    console.print(_fitting(found, console))
    if found.thinking:
        console.print(_thinking(found.thinking))
    lines = [f"{found.period}, times in UTC", *file.getvalue().splitlines()]
    return "\n".join(line.rstrip() for line in [*lines, *map(printable, notes(found))])


def _fitting(found: Shown, console: Console) -> Table:
    """The table without the columns that have no room."""
    names, wide = [found.by, *(name for name in HEADS if name in found.columns)], console.options.update(width=10_000)
    table = _table(names, found)
    for name in _LEFT_OUT_FIRST:
        if console.measure(table, options=wide).minimum <= console.width:
            break
        names.remove(name)
        table = _table(names, found)
    return table


def _table(names: list[str], found: Shown) -> Table:
    from rich.box import SIMPLE_HEAD  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    by, *columns = names
    whole = {**found.total, "compare_usd": found.compare["compare_usd"] if found.compare else None}
    cells = [[cell(name, row[name]) for name in names] for row in found.rows]
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_footer=True)
    table.add_column(by, footer="total", min_width=8, overflow="fold")
    for at, name in enumerate(columns, 1):
        head, foot = HEADS[name], cell(name, whole[name])
        # Without it rich cuts numbers to fit.
        widest = max(len(text) for text in (head, foot, *(row[at] for row in cells)))
        table.add_column(head, footer=foot, justify="right", min_width=widest)
    for row in cells:
        table.add_row(*map(Text, row))
    return table


def _thinking(rows: list[dict[str, Any]]) -> Table:
    from rich.box import SIMPLE_HEAD  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), title="tokens of a thought", title_justify="left")
    for name in rows[0]:
        table.add_column(name, justify="left" if name == "effort" else "right", min_width=8)
    for row in rows:
        table.add_row(*(Text(cell(name, value)) for name, value in row.items()))
    return table


def cell(name: str, value: Any) -> str:
    """A figure as people read it."""
    if value is None:
        return "-"
    if name in _SHARES:
        return f"{value:.1%}"
    if name.endswith("_usd"):
        cost = Decimal(value)
        return "<0.0001" if 0 < cost < Decimal("0.0001") else f"{cost:,.4f}"
    if isinstance(value, int):
        return f"{value:,}"
    return printable(str(value))


def printable(name: str) -> str:
    """The name of a model is what a client wrote: it must not steer the terminal."""
    return "".join(letter if letter.isprintable() else "�" for letter in name)
