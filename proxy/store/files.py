"""Files that only their owner reads: thoughts and bills are private."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def make_private(path: Path) -> None:
    """Make the file, if there is none, with mode 0600, and the folders that it lacks with 0700. Raises OSError.

    What is there already keeps its mode: its owner may have opened it to a group on purpose. It is not opened either:
    closing a file takes all locks of the process from it, also those of SQLite, and then another process that closes
    the database deletes the log that this one still writes to (sqlite.org/howtocorrupt.html, 2.2).
    """
    for folder in reversed(path.absolute().parents):
        folder.mkdir(mode=0o700, exist_ok=True)
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
