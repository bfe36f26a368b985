"""Moonshot's own services: the open platform, and the coding endpoint of the Kimi subscription."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from proxy.dialects.fields import Fields, merge
from proxy.dialects.plain import About, Answers, Dialect
from proxy.messages import Json, Plan


class Kimi(Dialect):
    """Both `reasoning_effort` and the official client's `thinking.effort` are understood; K2.5 and K2.6 are switched
    off by `thinking.type`, K3 never."""

    name = "kimi"
    prices_of = "moonshotai"
    hosts = ("moonshot.ai", "moonshot.cn", "kimi.com", "kimi.ai")
    owners = ("moonshot",)
    is_service = True
    refuses_overflow = True
    effort_places = frozenset({"reasoning_effort", "thinking.effort"})
    off_places = frozenset({"thinking.type"})

    def about(self, row: Mapping[str, Json], answers: Answers) -> About:
        """Both endpoints tell the efforts that a model takes, in one of two shapes."""
        told = row.get("think_efforts")
        words = told.get("valid_efforts") if isinstance(told, dict) else row.get("support_efforts")
        found = tuple(word for word in words if isinstance(word, str)) if isinstance(words, list) else ()
        return replace(super().about(row, answers), efforts=found)

    def _switch_off(self, fields: Fields, plan: Plan) -> None:
        merge(fields, "thinking", {"type": "disabled"})
