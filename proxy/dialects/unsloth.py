"""Unsloth Studio (2026.10): llama-server behind a server of its own, which reads less than llama-server does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from proxy.dialects.advice import Advice, Finding
from proxy.dialects.fields import Fields
from proxy.dialects.plain import About, Answers, Dialect
from proxy.events import count_of
from proxy.families import Family
from proxy.messages import Json, Plan


class _Advice(Advice):
    """From 2026.10: of llama-server's template options it hands on three."""

    effort = "serve the model with llama-server itself, which takes every template option"
    preserve = "serve the model with llama-server itself, with --reasoning-preserve"
    any_name = True

    def window(self, tokens: int, row: Mapping[str, Json], answers: Answers) -> str:
        return f"a context length of {tokens} where the model is loaded in Unsloth Studio"

    def trained(self, row: Mapping[str, Json], answers: Answers) -> int | None:
        return count_of(row.get("native_context_length"))

    def remarks(self, family: Family, row: Mapping[str, Json], answers: Answers) -> list[Finding]:
        if family.effort_option in ("", "reasoning_effort"):
            return []
        text = f"{family.name} reads its effort as {family.effort_option}, which Unsloth does not hand on: no effect"
        return [Finding("hurts", "effort", text, self.effort)]


class Unsloth(Dialect):
    """Of the template options it takes only `enable_thinking`, `reasoning_effort` and `preserve_thinking`, so Kimi K3's
    effort has no effect there. Its list has models that are not loaded."""

    name = "unsloth"
    advice = _Advice()
    servers = ("unsloth-studio",)
    owners = ("unsloth-studio",)
    is_own = True
    slots = 1
    refuses_missing = False
    takes_unlimited = True
    tells_properties = True
    effort_places = frozenset({"reasoning_effort", "chat_template_kwargs.reasoning_effort"})
    off_places = frozenset(
        {"enable_thinking", "thinking.type", "reasoning_effort", "chat_template_kwargs.enable_thinking"}
    )

    def about(self, row: Mapping[str, Json], answers: Answers) -> About:
        """The window, as every list tells it, and whether the model is there."""
        loaded = row.get("loaded")
        return replace(super().about(row, answers), loaded=loaded if isinstance(loaded, bool) else None)

    def _switch_off(self, fields: Fields, plan: Plan) -> None:
        fields["enable_thinking"] = b"false"
