"""Where things are kept: on this machine, or on a database server."""

from __future__ import annotations

import os
import re
from pathlib import Path

from proxy.errors import ConfigError

_ACCEPTED = (
    "accepted are `sqlite` (a file under the user's state folder), `sqlite:///file` (relative to the working folder), "
    "`sqlite:////folder/file` (absolute), `memory` (nothing on disk) and `postgresql://user:password@host/database`"
)
# What libpq reads, but for what it takes for a host or port although a user meant it as part of a password.
_POSTGRES = re.compile(
    r"postgres(ql)?://([^@/]*@)?([^@/?#:\[\]]|\[[0-9A-Fa-f:.]+\]|:[0-9]*(?=[,/?]|$))*(/[^/?@#]*)?"
    r"(\?[a-z_]+=[^&?#]*(&[a-z_]+=[^&?#]*)*)?"
)


def sqlite_path(url: str) -> Path | None:
    """The file that a store's URL means; None for `memory` and for a PostgreSQL server.

    Raises ConfigError for any other URL.
    """
    if url == "memory" or is_postgres(url):
        return None
    if url == "sqlite":
        return state_folder() / "proxy.db"
    scheme, _, name = url.partition(":///")
    if scheme == "sqlite" and name and not name.endswith("/") and "\0" not in name:
        return Path(name)
    # Only the scheme is repeated: the URL of a database server carries a password.
    shown = f"{url.partition('://')[0]}://…" if "://" in url else url
    raise ConfigError(f"{shown!r} is no such store; {_ACCEPTED}")


def is_postgres(url: str) -> bool:
    """Whether the URL names a PostgreSQL server. Raises ConfigError where it begins so and cannot be read."""
    if not url.startswith(("postgresql:", "postgres:")):
        return False
    good = _POSTGRES.fullmatch(url) and not re.search(r"[\s\x00-\x1f\x7f]|%(?![0-9A-Fa-f]{2})|%00", url)
    if not good:
        raise ConfigError(
            "this is no URL of a PostgreSQL server; it looks like postgresql://user:password@host:5432/database, and "
            "in a password @ / % and blanks are written as % and two hex digits: @ as %40"
        )
    return True


def hide_password(text: str) -> str:
    """The text with what stands before the @ of a URL, and a password among its options, replaced by three stars."""
    text = re.sub(r"(?<=://).*@", "***@", text, flags=re.DOTALL)
    return re.sub(r"(?<=[?&])((?:ssl)?password=)[^&]*", r"\1***", text) if "://" in text else text


def hide_in_bad_url(text: str) -> str:
    """What should have been a URL, with what may be a password or a key in it replaced by three stars."""
    if re.match(r"postgres(ql)?:", text):
        return f"{text.partition(':')[0]}://***"  # without its @, or with a second one, any part may be the password's
    text = re.sub(r"^(\w+:/*)?.*@", r"\1***@", text, flags=re.DOTALL)
    return re.sub(r"\?.*", "?***", text, flags=re.DOTALL)


def state_folder() -> Path:
    """The user's folder for what programs remember, by the XDG rules: a relative $XDG_STATE_HOME does not count."""
    named = os.environ.get("XDG_STATE_HOME", "")
    home = os.path.expanduser("~")  # Path.home() raises for a user that has none
    return Path(named if os.path.isabs(named) else os.path.join(home, ".local", "state"), "reasoning-proxy")
