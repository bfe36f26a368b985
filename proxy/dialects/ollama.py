"""Ollama's /v1 (2026-08). Reads past thoughts as `reasoning` only, and only the cap `max_tokens`."""

from __future__ import annotations

from proxy.dialects.plain import Dialect


class Ollama(Dialect):
    """`max_completion_tokens` is not in its request struct and would be ignored."""

    name = "ollama"
    refuses_missing = False
    tells_properties = True
    reasoning_field = "reasoning"
    cap_fields = ("max_tokens",)
    effort_places = frozenset({"reasoning_effort", "reasoning.effort"})
