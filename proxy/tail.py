"""Ledger rows as they come, a line each: for people, or the whole row as JSON."""

from __future__ import annotations

import os
import re
import select
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import click
import msgspec
from rich.cells import get_character_cell_size

from proxy.errors import NotFound
from proxy.report.shown import printable
from proxy.store.following import Following, Row, Wanted, open_following
from proxy.store.ledger import amount_of

POLL_SECONDS = 0.3

_COLOURS = {"ok": "green", "length": "yellow", "client_disconnected": "yellow"}
"""Of outcomes; any other is red."""
_TIME = re.compile(r"\d{4}-(\d\d-\d\d)T(\d\d:\d\d:\d\d)")


@dataclass(frozen=True, slots=True)
class Column:
    """A column of so many cells. On a terminal a longer text is cut; elsewhere it moves the rest of its line."""

    head: str
    cells: int
    of: Callable[[Row], str]
    right: bool = False


def tail(url: str, most: int, wanted: Wanted, *, follow: bool, as_json: bool) -> None:
    """Write the last rows to stdout and, with `follow`, those that come, until the terminal or a reader goes away.

    Raises NotFound where there is no ledger yet and none is waited for, ConfigError, KeyboardInterrupt.
    """
    paper = Paper(as_json)
    with closing(open_following(url, _say, goes_on=follow)) as ledger:
        try:
            for rows in _parts(ledger, most, wanted, follow):
                paper.write(rows)
        except BrokenPipeError:
            # What is left in the buffer would be complained about at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if not follow and not paper.is_used and most:
        _say(f"there is no request{_said(wanted)}")


def _parts(ledger: Following, most: int, wanted: Wanted, follow: bool) -> Iterator[list[Row]]:
    """The rows that are wanted; without an end where they are followed, and a pause before each look at nothing new."""
    try:
        yield ledger.last(most, wanted)
    except NotFound:
        if not follow:
            raise
    told = ""
    while follow:
        rows = ledger.new()
        if ledger.waits and ledger.waits != told:
            _say(ledger.waits)
        told = ledger.waits
        yield [row for row in rows if wanted.takes(row["client"], row["outcome"])]
        if not rows and not _paused(POLL_SECONDS):
            return


def _paused(seconds: float) -> bool:
    """Wait; false, and at once, where nobody reads stdout any more."""
    end = time.monotonic() + seconds
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        events = poll.poll(seconds * 1000)
    except OSError:  # no file stands behind it
        events = []
    if any(event & (select.POLLERR | select.POLLHUP) for _, event in events):
        return False
    time.sleep(max(0.0, end - time.monotonic()))  # some systems cannot wait for a terminal
    return True


class Paper:
    """Where the lines go: stdout, as wide as its terminal is at that moment."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._is_terminal = sys.stdout.isatty()
        self._in_colour = self._is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self.is_used = False

    def write(self, rows: list[Row]) -> None:
        """A line for each row, and the head before the first. Raises BrokenPipeError."""
        if not rows:
            return
        width = shutil.get_terminal_size((120, 0)).columns if self._is_terminal else None
        if width is not None and not self.is_used and not self._as_json and sys.stderr.isatty():
            click.echo(click.style(head(width), dim=True) if self._in_colour else head(width), err=True)
        self.is_used = True
        lines = [json_line(row) if self._as_json else line(row, width, colour=self._in_colour) for row in rows]
        text = "".join(f"{each}\n" for each in lines)
        sys.stdout.flush()
        sys.stdout.buffer.write(text.encode("utf-8" if self._as_json else sys.stdout.encoding, "replace"))
        sys.stdout.flush()


def line(row: Row, width: int | None = None, *, colour: bool = False) -> str:
    """A row on one line of `width` cells at the most; None: as long as it is."""
    columns = _columns(width)
    cells = [_fitted(printable(each.of(row)), each, width is not None) for each in columns]
    outcome, notes = printable(str(row["outcome"])), printable(" ".join(_notes(row)))
    before = "  ".join(cells) + "  "
    end = f"{outcome:<{_OUTCOME}}  {notes}".rstrip()
    if width is not None:
        room = width - cells_of(before)
        end = cut(end if room >= _NOTES else outcome, room)
    if not colour:
        return (before + end).rstrip()
    shown, rest = end[: len(outcome)], end[len(outcome) :]
    return before + (click.style(shown, fg=_COLOURS.get(outcome, "red")) if shown else "") + rest


def head(width: int | None) -> str:
    """What the columns are."""
    cells = [_fitted(each.head, each, width is not None) for each in _columns(width)]
    text = "  ".join([*cells, "outcome"])
    notes = f"{text}      what was done"
    return notes if width is None or cells_of(notes) <= width else cut(text, width)


def json_line(row: Row) -> str:
    """All of a row. What could steer a terminal is escaped, which JSON reads as the same."""
    text = msgspec.json.encode(row).decode()
    return text if text.isascii() and text.isprintable() else "".join(map(_escaped, text))


def cells_of(text: str) -> int:
    """How many cells of a terminal a text takes at the most: some draw a sign and what changes it as one."""
    return len(text) if text.isascii() else sum(map(_cells_of_one, text))


def cut(text: str, width: int) -> str:
    """The text, or its beginning with an ellipsis, in `width` cells."""
    if cells_of(text) <= width:
        return text
    taken, room = 0, width - 1
    for at, letter in enumerate(text):
        taken += _cells_of_one(letter)
        if taken > room:
            return text[:at] + "…" if width > 0 else ""
    return text


def _cells_of_one(letter: str) -> int:
    # The variation selector makes an emoji of a letter, two cells wide.
    return 1 if letter == "\ufe0f" else get_character_cell_size(letter)


def _columns(width: int | None) -> list[Column]:
    """Those that have room beside the outcome."""
    columns = list(_COLUMNS)
    for room, head, narrower in _NARROWER:
        if width is None:
            break
        if sum(each.cells + 2 for each in columns) + room > width:
            at = [each.head for each in columns].index(head)
            columns[at : at + 1] = [narrower] if narrower else []
    return columns


def _fitted(text: str, column: Column, cuts: bool) -> str:
    text = cut(text, column.cells) if cuts else text
    blanks = " " * (column.cells - cells_of(text))
    return blanks + text if column.right else text + blanks


def _when(row: Row) -> str:
    found = _TIME.match(str(row["ts"]))
    return f"{found[1]} {found[2]}" if found else str(row["ts"])


def _clock(row: Row) -> str:
    return _when(row).rpartition(" ")[2]


def _minute(row: Row) -> str:
    return _clock(row)[:5]


def _model(row: Row) -> str:
    return str(row["model"] or row["endpoint"] or "-")


def _name(name: str) -> Callable[[Row], str]:
    return lambda row: str(row[name] or "-")


def _tokens(row: Row) -> str:
    reasoning, visible = (_count(row[name]) for name in ("reasoning_tokens", "visible_tokens"))
    about = "~" if row["reasoning_source"] == "estimated" else ""
    return "-" if reasoning == visible == "-" else f"{about}{reasoning}/{visible}"


def _count(value: Any) -> str:
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def _cost(row: Row) -> str:
    amount = amount_of(row["cost_usd"])
    if amount is None:
        return "-"
    return "<$0.0001" if 0 < amount < Decimal("0.0001") else f"${amount:,.4f}"


def _duration(row: Row) -> str:
    value = row["duration_ms"]
    if not isinstance(value, int):
        return "-"
    if value < 999_950:
        return f"{value / 1000:.1f}s"
    minutes, seconds = divmod(value // 1000, 60)
    return f"{minutes}m{seconds:02}s" if minutes < 100 else f"{minutes // 60}h{minutes % 60:02}m"


def _notes(row: Row) -> Iterator[str]:
    """What the proxy did, and what went wrong."""
    for name in ("restored", "missing", "filled", "dropped"):
        if row[f"turns_{name}"]:
            yield f"{name}={row[f'turns_{name}']}"
    for name in ("decisions", "flags"):
        if row[name]:
            yield ",".join(row[name])
    if isinstance(row["status"], int) and row["status"] >= 400:
        yield str(row["status"])
    if row["error"]:
        yield row["error"]


def _escaped(letter: str) -> str:
    if letter.isprintable():
        return letter
    units = letter.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def _said(wanted: Wanted) -> str:
    chosen = [f" of client {wanted.client!r}"] if wanted.client is not None else []
    chosen += [f" with outcome {wanted.outcome}"] if wanted.outcome is not None else []
    return "".join(chosen)


def _say(text: str) -> None:
    click.echo(text, err=True)


_COLUMNS = (
    Column("time (UTC)", 14, _when),
    Column("model", 24, _model),
    Column("backend", 12, _name("backend")),
    Column("effort", 7, _name("effort_sent")),
    Column("thought/said", 15, _tokens, right=True),
    Column("cost", 9, _cost, right=True),
    Column("took", 7, _duration, right=True),
)
_OUTCOME, _NOTES = 11, 24
"""Cells that are left at the end of a line: for the usual outcomes, and for what the proxy did as well."""
_NARROWER = (
    (_NOTES, "backend", None),
    (_NOTES, "time (UTC)", Column("time UTC", 8, _clock)),
    (_NOTES, "model", Column("model", 14, _model)),
    (_OUTCOME, "thought/said", Column("thought/said", 13, _tokens, right=True)),
    (_OUTCOME, "cost", Column("cost", 8, _cost, right=True)),
    (_OUTCOME, "took", None),
    (_OUTCOME, "effort", None),
    (_OUTCOME, "cost", None),
    (_OUTCOME, "thought/said", None),
    (_OUTCOME, "model", Column("model", 8, _model)),
    (_OUTCOME, "model", None),
    (_OUTCOME, "time UTC", Column("UTC", 5, _minute)),
)
"""What changes, one after another, where that much is not left: a column for a narrower one, or for none."""
