"""The lines of a file that other programs append to, cut short, move away and make anew."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

LONGEST = 4_194_304
"""Bytes of a line; a longer one is none of ours and is left out."""
_READ = 4_194_304
_BLOCK = 65_536
_HEAD = 512
"""By its first bytes a file is known: time and id of the first row stand there."""
_TOO_LONG = b"\0"
"""Stands for the rest of such a line: no JSON has it."""


class GrowingFile:
    """Where one is in the file at `path`, which is opened by `open`, or by `more` when it is there.

    Lines come without their ends. The last one is not given until its end is written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = -1
        self._known: tuple[int, int] | None = None
        self._offset, self._rest, self._skips, self._head = 0, b"", False, b""

    @property
    def is_open(self) -> bool:
        """Whether there was a file when it was looked at last."""
        return self._file >= 0

    @property
    def ending(self) -> bytes:
        """The beginning of a line whose end is not written yet."""
        return self._rest

    def open(self) -> None:
        """Begin at the file's beginning. Raises OSError."""
        self.close()
        self._file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe there must not block

    def close(self) -> None:
        """Let go of the file. Closing again does nothing."""
        if self.is_open:
            os.close(self._file)
        self._file = -1
        self._clear()

    def backwards(self, block: int = _BLOCK) -> Iterator[bytes]:
        """The lines of the open file from the last one up; `more` goes on behind that."""
        self._offset = at = os.fstat(self._file).st_size
        self._head = os.pread(self._file, min(_HEAD, at), 0)
        rest, is_last = b"", True
        while at:
            start = max(0, at - block)
            first, *lines = (os.pread(self._file, at - start, start) + rest).split(b"\n")
            at, rest = start, first if len(first) <= LONGEST else _TOO_LONG
            if lines and is_last:
                self._begin_with(lines.pop())
                is_last = False
            yield from reversed(lines)
        if is_last:
            self._begin_with(rest)
        else:
            yield rest

    def more(self) -> list[bytes]:
        """The lines that were written since, as many as are read at once; none while there is no file. Raises OSError.

        Of a file that was moved away or deleted the rest comes first, then all of the new one.
        """
        if self.is_open:
            is_left = not self._is_current()
            if self._was_cut():
                self._clear()
            lines = self._read()
            is_read = is_left and self._offset >= os.fstat(self._file).st_size
            if is_read:
                # It ends with a whole row, if its writer was not cut off.
                lines += [self._rest] if self._rest else []
                self.close()
            if lines or not is_read:
                return lines
        try:
            self.open()
        except FileNotFoundError:
            return []
        return self._read()

    def _read(self) -> list[bytes]:
        data = os.pread(self._file, _READ, self._offset)
        self._offset += len(data)
        self._head += data[: _HEAD - len(self._head)]
        first, *lines = data.split(b"\n")
        if not lines:
            self._begin_with(self._rest + first)
            return []
        whole, self._skips = [] if self._skips else [self._rest + first], False
        self._begin_with(lines.pop())
        return [*whole, *lines]

    def _begin_with(self, rest: bytes) -> None:
        self._skips = self._skips or len(rest) > LONGEST or rest.endswith(_TOO_LONG)
        self._rest = b"" if self._skips else rest

    def _clear(self) -> None:
        self._offset, self._rest, self._skips, self._head = 0, b"", False, b""

    def _is_current(self) -> bool:
        try:
            named = self._path.stat()
        except OSError:
            return False
        return os.path.samestat(named, os.fstat(self._file))

    def _was_cut(self) -> bool:
        """Whether other lines stand where those stood that were read: it may have grown again already."""
        now = os.fstat(self._file)
        if now.st_size < self._offset:
            return True
        known, self._known = self._known, (now.st_size, now.st_mtime_ns)
        return known != self._known and os.pread(self._file, len(self._head), 0) != self._head
