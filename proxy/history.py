"""The keys of assistant turns, and putting back what a front end dropped."""

from __future__ import annotations

from typing import Literal

from proxy.section import Section


class Restoring(Section):
    """`[history]`: which assistant turns get their thought back. `auto` is the family's own rule."""

    restore: Literal["auto", "all", "tools", "current", "never"] = "auto"
