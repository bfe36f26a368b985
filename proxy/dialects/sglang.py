"""SGLang 0.5.23. Reads past thoughts as `reasoning_content` only."""

from __future__ import annotations

from collections.abc import Mapping

from proxy.dialects.plain import Answers, Dialect, Question, Rows


class SGLang(Dialect):
    """Folds `reasoning.effort` into the effort by itself; refuses prompt plus cap beyond the window."""

    name = "sglang"
    owners = ("sglang",)
    door = ("/model_info", "model_path")
    refuses_missing = False
    tells_properties = True
    takes_template_options = True
    refuses_overflow = True
    effort_places = frozenset({"reasoning_effort", "reasoning.effort"})
    off_places = frozenset({"reasoning_effort", "reasoning.effort", "reasoning.enabled"})

    def questions(self, rows: Rows, answers: Answers) -> list[Question]:
        """The version, and whether a reasoning parser is configured."""
        return [Question("/server_info"), Question("/model_info")]

    def version(self, headers: Mapping[str, str], answers: Answers) -> str:
        """As it says it."""
        body = answers.get("/server_info")
        return str(body.get("version") or "") if isinstance(body, dict) else ""
