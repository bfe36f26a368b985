"""TokenSpeed, whose HTTP side is the Shepherd Model Gateway (SMG, 2026-05 and later)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from proxy.dialects.advice import Advice
from proxy.dialects.plain import Answers, Dialect
from proxy.messages import Json


class _Advice(Advice):
    """Names of parsers from SMG's `crates/reasoning_parser`. Without one it goes by the model's name."""

    parser = "--reasoning-parser {name}"
    parser_list = "`tokenspeed serve --help` tells more"
    parsers: ClassVar[Mapping[str, str]] = {
        "kimi-k3": "kimi_k3",
        "kimi-k3.1-pro": "kimi_k3",
        "kimi-k2": "kimi_thinking",
        "deepseek-v4": "deepseek_v4",
        "deepseek-v3.2": "deepseek_v31",
        "deepseek-r1": "deepseek_r1",
        "qwen3": "qwen3",
        "qwen3.5": "qwen3",
        "qwen3.8": "qwen3",
        "glm": "glm45",
        "glm-5.3": "glm45",
        "minimax-m2": "minimax",
        "minimax-m3": "minimax_m3",
    }
    preserve = "a chat template that writes past thoughts (--chat-template)"
    effort = "a chat template that reads `reasoning_effort` (--chat-template)"

    def window(self, tokens: int, row: Mapping[str, Json], answers: Answers) -> str:
        return f"--max-model-len {tokens}"


class TokenSpeed(Dialect):
    """Reads past thoughts under either name, but refuses both with different texts; its list of models tells no
    windows. `thinking.type` and `reasoning_effort: "none"` set the template options of all families."""

    name = "tokenspeed"
    advice = _Advice()
    owners = ("self_hosted",)
    door = ("/readiness", "healthy_workers")
    is_own = True
    refuses_missing = False
    tells_properties = True
    takes_template_options = True
    effort_places = frozenset({"reasoning_effort"})
    off_places = frozenset({"reasoning_effort", "thinking.type"})
