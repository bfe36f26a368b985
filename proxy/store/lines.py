"""The ledger as a file of JSON lines, beside the store."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path

from proxy.errors import ConfigError
from proxy.messages import Entry
from proxy.store.files import make_private
from proxy.store.rows import to_line

LIMIT = 64_000_000
"""Bytes that wait in memory while the file cannot be written; above it the oldest lines are lost, and logged."""

log = logging.getLogger(__name__)


class Lines:
    """Appends rows to a file, whole lines at a time, from one thread.

    The file is opened for each batch, so that it may be rotated, with O_APPEND, so that several processes may share it.
    `waiting` holds the bytes that are not in the file yet. Raises ConfigError if the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._mend = b""
        self.waiting = b""
        self.good = True
        try:
            make_private(path)
            os.close(self._open())
            if path.is_file() and path.stat().st_size:
                with path.open("rb") as file:
                    file.seek(-1, os.SEEK_END)
                    # The machine went down in the middle of a line: ours must not become its end.
                    self._mend = b"" if file.read() == b"\n" else b"\n"
        except OSError as error:
            raise ConfigError(f"store.ledger_jsonl: {path} cannot be written ({error})") from error

    def append(self, entries: Sequence[Entry] = ()) -> None:
        """Write rows, after those that wait from before. Never raises for a full disk: `good` turns false."""
        self.waiting += b"".join(map(_line, entries))
        if not self.waiting:
            return
        self.waiting, self._mend = self._mend + self.waiting, b""
        try:
            self._write()
        except OSError as error:
            if self.good:
                log.error("%s cannot be written (%s): rows wait in memory", self._path, error)
            self.good = False
            self._shorten()
            return
        if not self.good:
            log.warning("%s is written again", self._path)
        self.good = True

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def _write(self) -> None:
        file = self._open()
        try:
            while self.waiting:
                # A full disk may take half a line; its rest goes first next time.
                self.waiting = self.waiting[os.write(file, self.waiting) :]
        finally:
            os.close(file)

    def _shorten(self) -> None:
        if len(self.waiting) <= LIMIT:
            return
        # From one line end on, kept because half a line may be in the file already.
        start = self.waiting.index(b"\n", len(self.waiting) - LIMIT)
        log.error("%s cannot be written: %d rows are lost", self._path, self.waiting.count(b"\n", 0, start))
        self.waiting = self.waiting[start:]


def _line(entry: Entry) -> bytes:
    try:
        return to_line(entry)
    except Exception as error:
        log.error("the row of %s is lost, because it cannot be JSON: %s", entry.request_id, error)
        return b""
