"""DeepSeek's own API."""

from __future__ import annotations

from proxy.dialects.fields import Fields, merge
from proxy.dialects.plain import Dialect
from proxy.messages import Plan


class DeepSeek(Dialect):
    """Knows the cap as `max_tokens`, and thinks unless `thinking.type` says otherwise."""

    name = "deepseek"
    prices_of = "deepseek"
    hosts = ("deepseek.com",)
    is_service = True
    cap_fields = ("max_tokens",)
    effort_places = frozenset({"reasoning_effort"})
    off_places = frozenset({"thinking.type"})

    def _switch_off(self, fields: Fields, plan: Plan) -> None:
        merge(fields, "thinking", {"type": "disabled"})
