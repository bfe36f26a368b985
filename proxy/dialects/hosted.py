"""Hosted services: Moonshot (Kimi), DeepSeek and OpenRouter."""

from __future__ import annotations

from proxy.dialects.plain import Dialect, Fields, merge


class Kimi(Dialect):
    """Moonshot's own API. Both `reasoning_effort` and the official client's `thinking.effort` are understood."""

    name = "kimi"
    refuses_overflow = True
    effort_places = frozenset({"reasoning_effort", "thinking.effort"})


class DeepSeek(Dialect):
    """DeepSeek's own API knows the cap as `max_tokens`."""

    name = "deepseek"
    cap_fields = ("max_tokens",)
    effort_places = frozenset({"reasoning_effort"})


class OpenRouter(Dialect):
    """The effort stands in `reasoning`, and the cap is `max_tokens`."""

    name = "openrouter"
    reasoning_field = "reasoning"
    keeps = frozenset({"reasoning_details"})
    cap_fields = ("max_tokens",)
    effort_places = frozenset({"reasoning.effort"})

    def _set_effort(self, fields: Fields, word: str) -> None:
        merge(fields, "reasoning", "effort", word)
