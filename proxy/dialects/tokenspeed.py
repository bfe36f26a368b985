"""TokenSpeed, whose HTTP side is the Shepherd Model Gateway (SMG, 2026-05 and later)."""

from __future__ import annotations

from proxy.dialects.plain import Dialect


class TokenSpeed(Dialect):
    """Reads past thoughts under either name, but refuses both with different texts; its list of models tells no
    windows. `thinking.type` and `reasoning_effort: "none"` set the template options of all families."""

    name = "tokenspeed"
    owners = ("self_hosted",)
    door = ("/readiness", "healthy_workers")
    refuses_missing = False
    tells_properties = True
    takes_template_options = True
    effort_places = frozenset({"reasoning_effort"})
    off_places = frozenset({"reasoning_effort", "thinking.type"})
