"""What the doors, HTTP and library, give to the pipeline and get from it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
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


class Body(Protocol):
    """A streamed body. Whoever holds it must call `aclose`, also when it was not read to its end.

    `interrupt` ends it for a reason of ours, and gives the last bytes that tell the reader so.
    """

    def __aiter__(self) -> AsyncIterator[bytes]: ...

    def interrupt(self, error: ProxyError) -> bytes: ...

    async def aclose(self) -> None: ...


@dataclass(slots=True)
class Reply:
    """The answer to a Call. `body` is bytes, or a stream that its holder closes."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes | Body = b""
