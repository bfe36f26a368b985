"""An async, reasoning-aware, OpenAI-compatible proxy for thinking models.

Names are imported when they are first used, so that the command line starts fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from proxy.report import Report
    from proxy.transport import AsyncTransport, Transport

__version__ = "0.1.0"

__all__ = ["AsyncTransport", "Report", "Transport", "__version__"]

_HOMES = {"AsyncTransport": "proxy.transport", "Report": "proxy.report", "Transport": "proxy.transport"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
