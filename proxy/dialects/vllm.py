"""vLLM 0.32. Reads past thoughts under both names, writes `reasoning`."""

from __future__ import annotations

from proxy.dialects.plain import Dialect


class VLLM(Dialect):
    """A cap above the window is refused; the effort has a field of its own that beats nothing the client set."""

    name = "vllm"
    refuses_missing = False
    tells_properties = True
    takes_template_options = True
    refuses_overflow = True
    effort_places = frozenset({"reasoning_effort"})
