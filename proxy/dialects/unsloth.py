"""Unsloth Studio (2026.10): llama-server behind a server of its own, which reads less than llama-server does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from proxy.dialects.fields import Fields
from proxy.dialects.plain import About, Answers, Dialect
from proxy.messages import Json, Plan


class Unsloth(Dialect):
    """Of the template options it takes only `enable_thinking`, `reasoning_effort` and `preserve_thinking`, so Kimi K3's
    effort has no effect there. Its list has models that are not loaded."""

    name = "unsloth"
    servers = ("unsloth-studio",)
    owners = ("unsloth-studio",)
    refuses_missing = False
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
