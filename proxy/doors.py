"""What the doors, HTTP and library, give to the pipeline and get from it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from proxy.errors import ProxyError


@dataclass(frozen=True, slots=True)
class Call:
    """One request at a door. `headers` has lower-case names; `path` is still percent-encoded and has no query."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes = b""
    query: str = ""


class Gone(Exception):
    """Nobody reads a body any more."""


Write = Callable[[bytes], Awaitable[None]]
"""Takes a piece of a body; returns when there is room for another. Raises Gone."""


class Body(Protocol):
    """A streamed body. Whoever holds it must call `aclose`, also when it was not written to its end.

    `feed` gives all of it to `write`, and returns at its end; it raises ProxyError where the end is missing.
    `delivered` is told when the reader has it. `interrupt` ends it for a reason of ours, and gives the last bytes that
    tell the reader so.
    """

    async def feed(self, write: Write) -> None: ...

    def delivered(self) -> None: ...

    def interrupt(self, error: ProxyError) -> bytes: ...

    async def aclose(self) -> None: ...


@dataclass(slots=True)
class Reply:
    """The answer to a Call. `body` is bytes, or a stream that its holder closes."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes | Body = b""
