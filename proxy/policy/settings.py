"""`[policy]` and `[[rules]]`: what the proxy decides where the client is silent."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, MinLen
from pydantic import Field, field_validator

from proxy.asks import MOST_TOKENS
from proxy.families import Family
from proxy.section import Section, check_pattern

Tokens = Annotated[int, Ge(0), Le(MOST_TOKENS)]
Seconds = Annotated[float, Ge(0), Field(allow_inf_nan=False)]
Kind = Literal["chat", "side", "probe"]


class Probe(Section):
    """A request at or below both numbers is a front end's connection test. `max_tokens = 0` switches the rule off."""

    max_tokens: Tokens = 5
    messages: Tokens = 1


class Policy(Section):
    """`[policy]`: what holds for every request."""

    default_effort: str = "auto"
    slow_below_tokens_per_second: Annotated[float, Ge(0)] = 10.0
    min_completion_tokens: Tokens | dict[str, Tokens] = 5000
    completion_tokens_mode: Literal["floor", "visible"] = "floor"
    thinking_budget: Tokens | Literal["auto", "off"] = "auto"
    answer_reserve_tokens: Tokens = 1024
    thinking_seconds: Seconds = 0.0
    probe: Probe = Probe()
    side_max_tokens: Tokens = 2048
    side_patterns: tuple[str, ...] = ()
    sampling: Literal["recommended", "client"] = "recommended"
    stop: Literal["visible", "backend"] = "visible"
    developer_role: Literal["auto", "keep", "system"] = "auto"
    forced_tool_choice: Literal["forward", "auto"] = "forward"
    rescue: Literal["off", "retry"] = "off"

    @field_validator("side_patterns")
    @classmethod
    def _compile(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in patterns:
            check_pattern(pattern)
        return patterns


class When(Section, strict=True):
    """What a rule wants of a request; what it does not say matches all. Names and values take `*` and `?`."""

    model: str | None = None
    client: str | None = None
    kind: Kind | None = None
    tools: bool | None = None
    prompt_tokens_over: Tokens | None = None
    text: str | None = None
    header: Mapping[str, str] = {}

    @field_validator("text")
    @classmethod
    def _compiles(cls, pattern: str | None) -> str | None:
        if pattern is not None:
            check_pattern(pattern)
        return pattern

    @field_validator("header")
    @classmethod
    def _lower_case(cls, header: Mapping[str, str]) -> dict[str, str]:
        lower = {name.lower(): value for name, value in header.items()}
        if secret := next((name for name in lower if name in _SECRET), None):
            raise ValueError(f"{secret} holds a key, which belongs in no rule: say `client`")
        return lower


class Preset(Section, strict=True):
    """What a rule sets, where the client does not say it: None leaves it to the rest of the policy."""

    backend: str | None = None
    model: Annotated[str, MinLen(1)] | None = None
    effort: str | None = None
    min_completion_tokens: Tokens | None = None
    thinking_budget: Tokens | Literal["auto", "off"] | None = None
    temperature: Annotated[float, Ge(0), Le(2)] | None = None
    top_p: Annotated[float, Gt(0), Le(1)] | None = None

    @property
    def given(self) -> dict[str, Any]:
        """What is set."""
        return {name: value for name, value in self if value is not None}

    def over(self, earlier: Preset) -> Preset:
        """Both, this one first."""
        return Preset(**{**earlier.given, **self.given})


class Rule(Section):
    """`[[rules]]`: what is set for which requests. A rule without a name goes by its number, from 1 on."""

    name: str | None = None
    when: When = When()
    set: Preset

    @field_validator("name")
    @classmethod
    def _stands_in_a_header(cls, name: str | None) -> str | None:
        if name is not None and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name):
            raise ValueError("a name has at most 64 letters and digits, and may have . _ - after the first")
        return name

    @field_validator("set")
    @classmethod
    def _sets_something(cls, preset: Preset) -> Preset:
        if not preset.given:
            raise ValueError(f"nothing is set; the keys are {', '.join(Preset.model_fields)}")
        return preset


Rules = tuple[Rule, ...]


@dataclass(frozen=True, slots=True)
class Terms:
    """What holds for one request: the policy, and over it what the rules that match set. `progress`: the client wants
    to know how far its prompt is read."""

    policy: Policy
    preset: Preset = field(default_factory=Preset)
    progress: bool = False

    def floor(self, family: Family, effort: str | None) -> int:
        """The least cap for an effort: a rule's, else the configured one, else the family's, else the default."""
        if self.preset.min_completion_tokens is not None:
            return self.preset.min_completion_tokens
        table = self.policy.min_completion_tokens
        if "min_completion_tokens" not in self.policy.model_fields_set and family.floors:
            table = dict(family.floors)
        if isinstance(table, int):
            return table
        word = effort or (family.efforts[-1] if family.efforts else "")
        return table.get(word, max(table.values(), default=0))

    @property
    def thinking_budget(self) -> int | str:
        """Tokens, "auto" or "off"."""
        preset = self.preset.thinking_budget
        return self.policy.thinking_budget if preset is None else preset


_SECRET = ("authorization", "proxy-authorization", "x-api-key", "api-key", "cookie")
