"""Settings from the text of a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from proxy import config

BACKEND = '[backends.local]\nurl = "http://127.0.0.1:8080/v1"\n'


def load(text: str = BACKEND, /, *, environ: dict[str, str] | None = None, **options: Any) -> config.Settings:
    """The settings that a file with this text gives."""
    path = Path("given.toml")
    path.write_text(text, "utf-8")
    return config.load(path, environ=environ or {}, **options)
