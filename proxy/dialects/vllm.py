"""vLLM. Facts from 0.32.0; what it reads of past thoughts from 0.15.1, 0.16.0, 0.21.0 and 0.22.0."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar

from proxy.dialects.advice import Advice
from proxy.dialects.plain import Answers, Dialect, Question, Rows, text_at
from proxy.messages import Json

_ONLY_REASONING = ((0, 16), (0, 22))
"""From the first of these versions on and before the second, past thoughts are read as `reasoning` alone."""


class _Advice(Advice):
    """Names of parsers from `vllm/reasoning/__init__.py` of 0.32.0."""

    parser = "--reasoning-parser {name}"
    parser_list = "`vllm serve --help=reasoning-parser` lists the names"
    parsers: ClassVar[Mapping[str, str]] = {
        "kimi-k3": "kimi_k3",
        "kimi-k3.1-pro": "kimi_k3",
        "kimi-k2": "kimi_k2",
        "deepseek-v4": "deepseek_v4",
        "deepseek-v3.2": "deepseek_v3",
        "deepseek-r1": "deepseek_r1",
        "qwen3": "qwen3",
        "qwen3.5": "qwen3",
        "qwen3.8": "qwen3",
        "glm": "glm45",
        "glm-5.3": "glm47",
        "gpt-oss": "openai_gptoss",
        "minimax-m2": "minimax_m2",
        "minimax-m3": "minimax_m3",
        "mistral": "mistral",
        "hunyuan": "hy_v3",
    }
    preserve = "a chat template that writes past thoughts (--chat-template)"
    cached = "--enable-prompt-tokens-details"
    effort = "a chat template that reads `reasoning_effort` (--chat-template)"
    longer: ClassVar[Mapping[str, Json]] = {"min_tokens": 16}
    shows_prompt = ("return_prompt_text", "prompt_text")

    def window(self, tokens: int, row: Mapping[str, Json], answers: Answers) -> str:
        return f"--max-model-len {tokens}"


class VLLM(Dialect):
    """A cap above the window is refused; so is a thinking budget where no reasoning parser is configured."""

    name = "vllm"
    advice = _Advice()
    owners = ("vllm",)
    door = ("/version", "version")
    is_own = True
    refuses_missing = False
    tells_properties = True
    tokenizes = "prompt"
    takes_template_options = True
    budget_fields = ("thinking_token_budget",)
    budget_needs_parser = True
    refuses_overflow = True
    effort_places = frozenset({"reasoning_effort"})
    off_places = frozenset({"reasoning_effort"})
    running_counts: ClassVar[Mapping[str, Json]] = {"stream_options": {"continuous_usage_stats": True}}

    def questions(self, rows: Rows, answers: Answers) -> list[Question]:
        """The version."""
        return [Question("/version")]

    def version(self, headers: Mapping[str, str], answers: Answers) -> str:
        """As it says it."""
        return text_at(answers, "/version", "version")

    def field_for(self, version: str) -> str:
        """Both names from 0.22 on and up to 0.15."""
        numbers = re.match(r"v?(\d+)\.(\d+)", version)
        first, end = _ONLY_REASONING
        return "reasoning" if numbers and first <= (int(numbers[1]), int(numbers[2])) < end else self.reasoning_field
