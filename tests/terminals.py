"""A command on a pseudo-terminal: what people see, apart from what a pipe gets."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import proxy

ROOT = Path(proxy.__file__).parent.parent
# As `-m proxy`, at the terminal: else Ctrl-C reaches nobody.
_START = """import fcntl, runpy, signal, termios
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job may have switched it off
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
runpy.run_module("proxy", run_name="__main__")"""
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class OnTerminal:
    """A child that writes to a terminal; `wait` gives its exit code, `shown` all that the terminal got by then."""

    def __init__(self, process: subprocess.Popen[bytes], master: int) -> None:
        self.process = process
        self._master = master
        self._got = bytearray()
        self._changed = threading.Condition()
        self._ended = False
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    @property
    def shown(self) -> str:
        """With line ends as programs write them."""
        with self._changed:
            return self._got.decode().replace("\r\n", "\n")

    def wait_for(self, text: str, seconds: float = 30) -> None:
        """Until the terminal got it."""
        with self._changed:
            assert self._changed.wait_for(lambda: text.encode() in self._got or self._ended, seconds), self._got
            assert text.encode() in self._got, self._got

    def press_ctrl_c(self) -> None:
        """As a user does."""
        os.write(self._master, b"\x03")

    def wait(self, seconds: float = 30) -> int:
        """Until it has ended."""
        code = self.process.wait(seconds)
        self._thread.join(seconds)
        return code

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._master, 65536)
            except OSError:  # the last writer has left
                data = b""
            with self._changed:
                self._got += data
                self._ended = not data
                self._changed.notify_all()
            if not data:
                return


@contextmanager
def on_terminal(*arguments: str, columns: int = 80, stdout: Any = None, **environ: str) -> Iterator[OnTerminal]:
    """`reasoning-proxy` with stderr, and without a `stdout` that too, on a terminal of so many columns."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    given = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    process = subprocess.Popen(  # noqa: S603 - our own words
        [sys.executable, "-c", _START, *arguments],
        stdin=slave,
        stdout=slave if stdout is None else stdout,
        stderr=slave,
        env={**given, "TERM": "xterm-256color", "PYTHONPATH": str(ROOT), **environ},
        start_new_session=True,
    )
    os.close(slave)
    try:
        yield OnTerminal(process, master)
    finally:
        process.kill()
        process.wait()
        os.close(master)
