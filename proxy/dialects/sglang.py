"""SGLang 0.5.23. Reads past thoughts as `reasoning_content` only."""

from __future__ import annotations

from proxy.dialects.plain import Dialect


class SGLang(Dialect):
    """Folds `reasoning.effort` into the effort by itself; refuses prompt plus cap beyond the window."""

    name = "sglang"
    refuses_missing = False
    tells_properties = True
    takes_template_options = True
    refuses_overflow = True
    effort_places = frozenset({"reasoning_effort", "reasoning.effort"})
