"""Bars for work that takes a while: on stderr, where that is a terminal, and gone afterwards."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

_LONG_BYTES = 20_000_000
"""A file below is read before anybody looks."""

Told = Callable[[int, int], None]
"""Called with how much is done, and of how much."""


@contextlib.contextmanager
def bytes_read(what: str) -> Iterator[Told | None]:
    """A bar for reading a file; None where nobody would see it."""
    with _bar(what, least=_LONG_BYTES) as told:
        yield told


@contextlib.contextmanager
def rows_done(what: str) -> Iterator[Told | None]:
    """A bar for work on rows; None where nobody would see it."""
    with _bar(what, least=0) as told:
        yield told


@contextlib.contextmanager
def _bar(what: str, *, least: int) -> Iterator[Told | None]:
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console  # noqa: PLC0415 - 60 ms that only a terminal needs
    from rich.progress import Progress  # noqa: PLC0415

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=None, visible=False)

        def told(done: int, whole: int) -> None:
            progress.update(task, completed=done, total=whole, visible=whole >= least)

        yield told
