"""What each model family wants, read from `families.toml` and from the user's own `[families]` tables."""

from __future__ import annotations

import difflib
import functools
import re
import tomllib
from collections.abc import Mapping
from importlib import resources
from typing import Annotated, Any, Literal

from annotated_types import Ge, MinLen
from pydantic import ValidationError, field_validator

from proxy.errors import ConfigError
from proxy.section import Section, check_pattern

Words = tuple[str, ...]
HistoryRule = Literal["all", "tools", "current", "never"]
RequiredRule = Literal["never", "calls", "tools"]
ORDER = ("minimal", "low", "medium", "high", "xhigh", "max", "ultra")
"""Effort words that clients use, in rising order."""
SAMPLED = ("temperature", "top_p")
Mark = Annotated[str, MinLen(1)]
FALLBACK = "generic"


class Family(Section):
    """A row of `families.toml`; the keys are explained at the top of that file."""

    models: tuple[str, ...] = ()
    like: str = ""
    thinks: bool = True
    history: HistoryRule = "all"
    required: RequiredRule = "never"
    efforts: Words = ()
    effort_words: Mapping[str, str] = {}
    effort_option: str = ""
    on: Mapping[str, bool | str] = {}
    off: Mapping[str, bool | str] = {}
    keep: Mapping[str, bool | str] = {}
    always: Literal["", "service", "everywhere"] = ""
    floors: Mapping[str, Annotated[int, Ge(0)]] = {}
    sampling: Mapping[str, float] = {}
    agentic: Mapping[str, float] = {}
    sampling_fixed: bool = False
    forced_tool_choice: Literal["any", "required", "none"] = "any"
    stops: tuple[Annotated[int, Ge(1)], Annotated[int, Ge(1)]] | None = None
    developer_role: bool = False
    tags: tuple[tuple[Mark, Mark], ...] = ()
    answer_tags: tuple[Mark, ...] = ()
    call_tags: tuple[Mark, ...] = ()
    end_markers: tuple[Mark, ...] = ()
    token_pattern: str = ""
    source: str = ""
    date: str = ""
    name: str = ""

    @field_validator("models")
    @classmethod
    def _patterns_compile(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in patterns:
            check_pattern(pattern)
        return patterns

    @field_validator("sampling", "agentic")
    @classmethod
    def _is_sampling(cls, values: Mapping[str, float]) -> Mapping[str, float]:
        if unknown := [name for name in values if name not in SAMPLED]:
            raise ValueError(f"{unknown[0]!r} is none of {', '.join(SAMPLED)}")
        return values

    def fitted(self, word: str) -> str | None:
        """The family's own word for one that a client says; None for one that is none.

        A word of the table, or the next higher one of the usual order, else the highest; in any case of letters.
        """
        if not self.efforts or word in self.efforts:
            return word
        word = word.lower()
        word = self.effort_words.get(word, word)
        if word in self.efforts or word not in ORDER:
            return word if word in self.efforts else None
        above = (known for known in ORDER[ORDER.index(word) :] if known in self.efforts)
        return next(above, self.efforts[-1])


class Families:
    """All families by name; `for_model` finds one by a model's name."""

    def __init__(self, rows: Mapping[str, Family]) -> None:
        self._rows = dict(rows)
        self._patterns = [(re.compile(pattern), family) for family in self._rows.values() for pattern in family.models]

    @property
    def names(self) -> list[str]:
        return list(self._rows)

    @property
    def words(self) -> list[str]:
        """Every effort word that some family knows."""
        rows = self._rows.values()
        return list(dict.fromkeys(word for row in rows for word in (*row.efforts, *row.effort_words)))

    def named(self, name: str) -> Family:
        """The family of that name. Raises ConfigError for an unknown one."""
        try:
            return self._rows[name]
        except KeyError:
            raise ConfigError(f"unknown family {name!r}; known: {', '.join(self._rows)}") from None

    def for_model(self, model: str) -> Family:
        """The first family with a pattern in the model's name, else `generic`."""
        name = model.lower()
        return next((family for pattern, family in self._patterns if pattern.search(name)), self._rows[FALLBACK])


_OWN = ("models", "source", "date", "like")
"""Keys that a family does not take from the one that it is like."""


def _inherited(name: str, tables: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """A family's values over those of the family that it is `like`. Raises ConfigError where that leads nowhere."""
    found = dict(tables[name])
    seen, like = [name], found.get("like")
    while like:
        if not isinstance(like, str) or like not in tables or like in seen:
            near = difflib.get_close_matches(str(like), [each for each in tables if each != name], 1)
            guess = f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(tables)}"
            what = "is like itself" if like in seen else f"is like {like!r}, which is no family{guess}"
            raise ConfigError(f"families.{name}.like: {seen[-1]} {what}")
        found = {**{key: value for key, value in tables[like].items() if key not in _OWN}, **found}
        seen.append(like)
        like = tables[like].get("like")
    return found


@functools.cache
def _shipped() -> dict[str, dict[str, Any]]:
    return tomllib.loads(resources.files("proxy").joinpath("families.toml").read_text("utf-8"))


def load(extra: Mapping[str, Mapping[str, Any]] | None = None) -> Families:
    """The shipped families with the user's tables over them, key by key.

    A user's own families are asked first. Raises ConfigError that names the family, the key and what is wrong.
    """
    extra = extra or {}
    shipped = _shipped()
    order = [*(name for name in extra if name not in shipped), *shipped]
    own = {name: {**shipped.get(name, {}), **extra.get(name, {})} for name in order}
    rows = {}
    for name in order:
        try:
            rows[name] = Family(**{**_inherited(name, own), "name": name})
        except ValidationError as error:
            problem = error.errors()[0]
            place = ".".join(["families", name, *map(str, problem["loc"])])
            known = ", ".join(key for key in Family.model_fields if key != "name")
            raise ConfigError(f"{place}: {problem['msg']}; the keys are {known}") from None
    return Families(rows)
