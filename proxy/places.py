"""Where things are kept on this machine."""

from __future__ import annotations

import os
from pathlib import Path

from proxy.errors import ConfigError

_ACCEPTED = (
    "accepted are `sqlite` (a file under the user's state folder), `sqlite:///file` (relative to the working folder), "
    "`sqlite:////folder/file` (absolute) and `memory` (nothing on disk)"
)


def sqlite_path(url: str) -> Path | None:
    """The file that a store's URL means; None for `memory`. Raises ConfigError for any other URL."""
    if url == "memory":
        return None
    if url == "sqlite":
        return state_folder() / "proxy.db"
    scheme, _, name = url.partition(":///")
    if scheme == "sqlite" and name and not name.endswith("/") and "\0" not in name:
        return Path(name)
    if url.startswith(("postgresql:", "postgres:")):
        raise ConfigError(f"this version does not have PostgreSQL yet; {_ACCEPTED}")
    # Only the scheme is repeated: the URL of a database server carries a password.
    shown = f"{url.partition('://')[0]}://…" if "://" in url else url
    raise ConfigError(f"{shown!r} is no such store; {_ACCEPTED}")


def state_folder() -> Path:
    """The user's folder for what programs remember, by the XDG rules: a relative $XDG_STATE_HOME does not count."""
    named = os.environ.get("XDG_STATE_HOME", "")
    home = os.path.expanduser("~")  # Path.home() raises for a user that has none
    return Path(named if os.path.isabs(named) else os.path.join(home, ".local", "state"), "reasoning-proxy")
