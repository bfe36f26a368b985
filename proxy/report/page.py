"""A report as one HTML file: no script, nothing from elsewhere, light and dark."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader

from proxy.report.bars import Bars
from proxy.report.shown import HEADS, cell, notes

if TYPE_CHECKING:
    from jinja2 import Template

    from proxy.report.shown import Shown


@functools.cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("proxy.report", "."), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.globals["cell"] = cell
    return environment.get_template("report.html.jinja")


def page(found: Shown, days: Sequence[dict[str, Any]]) -> str:
    """The file's text. `days` are rows of the report by day."""
    columns = {name: head for name, head in HEADS.items() if name in found.columns}
    whole = {**found.total, "compare_usd": found.compare["compare_usd"] if found.compare else None}
    return _template().render(found=found, total=whole, columns=columns, notes=notes(found), bars=Bars.of(days, "day"))
