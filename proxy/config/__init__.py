"""Settings: command line over environment over TOML file over defaults, checked as a whole.

    settings = load()                              # ./config.toml and the environment
    settings.backends["local"].key                 # resolved; None where the client's own is passed on

Everything that is wrong is told at once, in one ConfigError, a line for each problem.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from proxy.config import checks, problems, sources
from proxy.config.checks import hints
from proxy.config.show import show
from proxy.config.tables import Backend, Client, Defaults, Engine, Model, Server, Settings, Store
from proxy.errors import ConfigError

__all__ = [
    "Backend",
    "Client",
    "Defaults",
    "Engine",
    "Model",
    "Server",
    "Settings",
    "Store",
    "hints",
    "load",
    "show",
]


def load(
    path: Path | str | None = None,
    *,
    overrides: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    require_backends: bool = True,
    read_file: bool = True,
) -> Settings:
    """The effective settings. Raises ConfigError with every problem, a line each.

    `overrides` are nested tables from the command line. Without `require_backends` nothing will be served: backends may
    be absent, and the variables that hold keys need not be set. Without `read_file` no file is looked for, so that with
    `environ={}` only the overrides count.
    """
    environ = os.environ if environ is None else environ
    overrides = {} if overrides is None else overrides
    file = sources.find_file(path, environ) if read_file else None
    written = sources.read_file(file) if file else {}
    environment = sources.Environment(Settings, environ, written)
    tables = sources.merged(overrides, environment, written)

    settings, found = checks.validated(tables)
    if settings is not None:
        settings._file = file
        checks.read_keys(settings, environ)
        for place, line in checks.across(settings, tables, environ, serving=require_backends):
            found.setdefault(place, line)
    found |= environment.refused
    if settings is None or found:
        raise ConfigError("\n".join(_line(place, line, environment, overrides) for place, line in found.items()))
    return settings


def _line(place: problems.Place, line: str, environment: sources.Environment, overrides: Mapping[str, Any]) -> str:
    """The problem with its path, and with the variable where one is to blame."""
    for path, name in reversed(environment.names.items()):  # a key's own variable lies over that of its table
        if _given(overrides, path):
            continue
        if place[: len(path)] == path or path[: len(place)] == place:
            return f"{problems.dotted(place)} (from {name}): {line}"
    return f"{problems.dotted(place)}: {line}"


def _given(tables: Mapping[str, Any], path: problems.Place) -> bool:
    """Whether the command line gave this place, so that the variable was not read."""
    value: Any = tables
    for key in path:
        if not isinstance(value, Mapping) or key not in value:
            return False
        value = value[key]
    return True
