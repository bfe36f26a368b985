"""vLLM. Facts from 0.32.0; what it reads of past thoughts from 0.15.1, 0.16.0, 0.21.0 and 0.22.0."""

from __future__ import annotations

import re
from collections.abc import Mapping

from proxy.dialects.plain import Answers, Dialect, Question, Rows

_ONLY_REASONING = ((0, 16), (0, 22))
"""From the first of these versions on and before the second, past thoughts are read as `reasoning` alone."""


class VLLM(Dialect):
    """A cap above the window is refused; so is a thinking budget where no reasoning parser is configured."""

    name = "vllm"
    owners = ("vllm",)
    door = ("/version", "version")
    refuses_missing = False
    tells_properties = True
    takes_template_options = True
    budget_fields = ("thinking_token_budget",)
    budget_needs_parser = True
    refuses_overflow = True
    effort_places = frozenset({"reasoning_effort"})
    off_places = frozenset({"reasoning_effort"})

    def questions(self, rows: Rows, answers: Answers) -> list[Question]:
        """The version."""
        return [Question("/version")]

    def version(self, headers: Mapping[str, str], answers: Answers) -> str:
        """As it says it."""
        body = answers.get("/version")
        return str(body.get("version") or "") if isinstance(body, dict) else ""

    def field_for(self, version: str) -> str:
        """Both names from 0.22 on and up to 0.15."""
        numbers = re.match(r"v?(\d+)\.(\d+)", version)
        first, end = _ONLY_REASONING
        return "reasoning" if numbers and first <= (int(numbers[1]), int(numbers[2])) < end else self.reasoning_field
