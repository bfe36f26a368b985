"""Bars for work that takes a while: on stderr, where that is a terminal, and gone afterwards."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

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
    """A bar for work on rows, with their number; None where nobody would see it."""
    with _bar(what, least=0, counted=True) as told:
        yield told


@contextlib.contextmanager
def waiting(what: str) -> Iterator[None]:
    """A bar that moves while nobody knows how much is left."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    with _progress(TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()) as progress:
        progress.add_task(what, total=None)
        yield


@contextlib.contextmanager
def _bar(what: str, *, least: int, counted: bool = False) -> Iterator[Told | None]:
    if not sys.stderr.isatty():
        yield None
        return
    from rich.progress import MofNCompleteColumn, Progress  # noqa: PLC0415

    number = [MofNCompleteColumn()] if counted else []
    with _progress(*Progress.get_default_columns(), *number) as progress:
        task = progress.add_task(what, total=None, visible=False)

        def told(done: int, whole: int) -> None:
            progress.update(task, completed=done, total=whole, visible=whole >= least)

        yield told


def _progress(*columns: ProgressColumn) -> Progress:
    from rich.console import Console  # noqa: PLC0415 - 60 ms that only a terminal needs
    from rich.progress import Progress  # noqa: PLC0415

    # stdout stays what it is: rich would send it through the console, which is stderr.
    return Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False)
