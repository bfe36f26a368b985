"""What was found, as text for people and as JSON for programs."""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from proxy import jsons
from proxy.dialects import Finding
from proxy.doctor.seen import Seen

_WIDTH = 110
_STYLES: Mapping[str, str] = {"ok": "green", "note": "yellow", "hurts": "bold red"}


@dataclass(frozen=True, slots=True)
class Report:
    """What was found about one backend. `models` are its models, each with what is known of it."""

    name: str
    url: str
    engine: str
    version: str
    models: tuple[Mapping[str, Any], ...]
    context: int | None
    findings: tuple[Finding, ...]

    @property
    def hurts(self) -> bool:
        """Something must be done."""
        return any(finding.level == "hurts" for finding in self.findings)


def report(seen: Seen, findings: Iterable[Finding]) -> Report:
    """Of a backend, without its secrets."""
    found, secrets = seen.found, seen.backend.secrets
    rows = tuple(
        {
            "name": _safe(str(row["id"]), secrets),
            "loaded": False if seen.is_asleep(row) else seen.about(str(row["id"])).loaded,
            "context": seen.about(str(row["id"])).context_limit,
            "family": seen.families.get(str(row["id"])),
        }
        for row in seen.listed
    )
    safe = tuple(
        Finding(each.level, each.about, _safe(each.text, secrets), _safe(each.remedy, secrets)) for each in findings
    )
    engine, version = (found.engine, _safe(found.version, secrets)) if found else ("", "")
    return Report(seen.name, seen.backend.shown_url, engine, version, rows, seen.context, safe)


def document(reports: Iterable[Report]) -> bytes:
    """One JSON document."""
    shown = [{**asdict(each), "models": list(each.models)} for each in reports]
    return jsons.dumps({"backends": shown, "ok": not any(each.hurts for each in reports)})


def text(reports: Iterable[Report]) -> str:
    """A list for each backend, and one line at the end."""
    from rich.console import Console  # noqa: PLC0415 - what loads slowly
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    terminal = sys.stdout.isatty()
    file = io.StringIO()
    width = shutil.get_terminal_size((_WIDTH, 0)).columns if terminal else _WIDTH
    console = Console(file=file, width=width, force_terminal=terminal, color_system="auto" if terminal else None)
    found = [finding for each in reports for finding in each.findings]
    for each in reports:
        engine = f"  {each.engine} {each.version}".rstrip()
        console.print(Text(_printable(f"{each.name}  {each.url}{engine}"), style="bold"))
        table = Table.grid(padding=(0, 2, 0, 0))
        for column in range(3):
            table.add_column(no_wrap=column < 2, overflow="fold")
        for finding in each.findings:
            level = finding.level.upper() if finding.level == "hurts" else finding.level
            what = Text(_printable(finding.text))
            if finding.remedy and finding.level != "ok":
                what.append(_printable(f"\n→ {finding.remedy}"), style="cyan")
            table.add_row(Text(f" {level}", style=_STYLES[finding.level]), Text(finding.about), what)
        console.print(table)
        console.print()
    console.print(Text(_summary(found)))
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())


def _summary(found: list[Finding]) -> str:
    hurts, notes = (sum(finding.level == level for finding in found) for level in ("hurts", "note"))
    if not hurts:
        return "nothing hurts" + (f"; {notes} {'note' if notes == 1 else 'notes'}" if notes else "")
    return f"{hurts} {'thing hurts' if hurts == 1 else 'things hurt'}, {notes} {'note' if notes == 1 else 'notes'}"


def _safe(said: str, secrets: tuple[str, ...]) -> str:
    for secret in secrets:
        said = said.replace(secret, "***")
    return said


def _printable(said: str) -> str:
    """What a server says must not steer the terminal; line ends of ours stay."""
    return "".join(letter if letter.isprintable() or letter == "\n" else "�" for letter in said)
