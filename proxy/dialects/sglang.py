"""SGLang 0.5.23. Reads past thoughts as `reasoning_content` only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from proxy.dialects.advice import Advice, Finding
from proxy.dialects.plain import Answers, Dialect, Question, Rows, text_at
from proxy.families import Family
from proxy.messages import Json


class _Advice(Advice):
    """Names of parsers from `srt/parser/reasoning_parser.py` of 0.5.23."""

    parser = "--reasoning-parser {name}"
    parser_list = "`python -m sglang.launch_server --help` lists the names"
    parsers: ClassVar[Mapping[str, str]] = {
        "kimi-k3": "kimi_k3",
        "kimi-k3.1-pro": "kimi_k3",
        "kimi-k2": "kimi_k2",
        "deepseek-v4": "deepseek-v4",
        "deepseek-v3.2": "deepseek-v3",
        "deepseek-r1": "deepseek-r1",
        "qwen3": "qwen3",
        "qwen3.5": "qwen3",
        "qwen3.8": "qwen3",
        "glm": "glm45",
        "glm-5.3": "glm45",
        "gpt-oss": "gpt-oss",
        "minimax-m2": "minimax",
        "minimax-m3": "minimax-m3",
        "mistral": "mistral",
        "hunyuan": "hunyuan",
    }
    preserve = "a chat template that writes past thoughts (--chat-template)"
    cached = "--enable-cache-report"
    effort = "a chat template that reads `reasoning_effort` (--chat-template)"
    longer: ClassVar[Mapping[str, Json]] = {"min_tokens": 16}
    any_name = True

    def window(self, tokens: int, row: Mapping[str, Json], answers: Answers) -> str:
        return f"--context-length {tokens}"

    def remarks(self, family: Family, row: Mapping[str, Json], answers: Answers) -> list[Finding]:
        """It says how it was started, so that nothing need be generated."""
        found = []
        model, server = answers.get("/model_info"), answers.get("/server_info")
        if family.thinks and isinstance(model, dict) and model.get("reasoning_parser", "") is None:
            text = "the server was started without a reasoning parser: thoughts stand in the text"
            found.append(Finding("hurts", "thought", text, self.parser_option(family.name)))
        if isinstance(server, dict) and server.get("enable_cache_report") is False:
            text = "the server was started without a report of cached tokens: the ledger has none"
            found.append(Finding("note", "cached tokens", text, self.cached))
        return found


class SGLang(Dialect):
    """Folds `reasoning.effort` into the effort by itself; refuses prompt plus cap beyond the window."""

    name = "sglang"
    advice = _Advice()
    owners = ("sglang",)
    door = ("/model_info", "model_path")
    is_own = True
    refuses_missing = False
    tells_properties = True
    tokenizes = "prompt"
    takes_template_options = True
    refuses_overflow = True
    effort_places = frozenset({"reasoning_effort", "reasoning.effort"})
    off_places = frozenset({"reasoning_effort", "reasoning.effort", "reasoning.enabled"})
    running_counts: ClassVar[Mapping[str, Json]] = {"stream_options": {"continuous_usage_stats": True}}

    def questions(self, rows: Rows, answers: Answers) -> list[Question]:
        """The version, and whether a reasoning parser is configured."""
        return [Question("/server_info"), Question("/model_info")]

    def version(self, headers: Mapping[str, str], answers: Answers) -> str:
        """As it says it."""
        return text_at(answers, "/server_info", "version")
