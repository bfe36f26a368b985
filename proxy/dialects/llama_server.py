"""llama-server (llama.cpp). Facts from b11434, see `docs/engines.md`."""

from __future__ import annotations

from proxy.dialects.plain import Dialect


class LlamaServer(Dialect):
    """Reads the effort from the template option that the model's template names, and enforces a thinking budget.

    The OpenAI field reaches the template only as `reasoning_effort`, which Kimi K3's does not read. A connection must
    not be used again after a stream: the server closes it without notice (25 to 31 of 100 requests failed).
    """

    name = "llama-server"
    refuses_missing = False
    tells_properties = True
    takes_template_options = True
    budget_field = "thinking_budget_tokens"
    reuses_connections = False
    effort_places = frozenset({"reasoning_effort"})

    def effort_option(self, family_option: str, template: str | None) -> str:
        """What the template really reads; the family's own word where the template is not known."""
        if template is None:
            return family_option
        return next((name for name in ("thinking_effort", "reasoning_effort") if name in template), "")
