"""The base of all settings: read-only, and strict about names."""

from __future__ import annotations

import re

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A table of the configuration file. It lives in the module that obeys it; `config/` puts the tables together."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def check_pattern(pattern: str) -> None:
    """Raise ValueError for what is no regular expression, or an empty one, which is found in every text."""
    if not pattern:
        raise ValueError("an empty pattern is found in every text")
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        shown = pattern if len(pattern) <= _SHOWN else f"{pattern[:_SHOWN]}…"
        raise ValueError(f"{shown!r} is no regular expression: {error}") from None


_SHOWN = 60
