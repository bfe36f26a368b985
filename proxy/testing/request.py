"""What a scripted backend received."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from proxy.messages import Json

Fields = dict[str, Any]
"""A JSON object that is being written."""


@dataclass(eq=False)
class Request:
    """One request as it arrived. Names of headers are in lower case; `raw` is the body, byte for byte.

    `number` counts the chat requests from 0. `closed_by_peer` is certain when the exchange is over: see `hung_up`.
    `writes` of the answer's body have left, each an event of a stream. `thought_ended`: another request came and ended
    the thought of this one.
    """

    method: str
    path: str
    query: str
    headers: dict[str, str]
    raw: bytes
    number: int = 0
    closed_by_peer: bool = False
    writes: int = 0
    thought_ended: bool = False
    over: asyncio.Event = field(default_factory=asyncio.Event, repr=False)
    _more: asyncio.Event = field(default_factory=asyncio.Event, repr=False)

    @cached_property
    def body(self) -> Json:
        """The decoded body; None where it is no JSON."""
        try:
            return json.loads(self.raw)
        except ValueError:
            return None

    def get(self, name: str, default: Json = None) -> Json:
        """A field of the body, if the body is an object and has it."""
        return self.body.get(name, default) if isinstance(self.body, dict) else default

    @property
    def messages(self) -> list[Fields]:
        """The chat messages of the body."""
        return [message for message in self.get("messages") or [] if isinstance(message, dict)]

    @property
    def include_usage(self) -> bool:
        """Whether a stream shall end with a usage chunk."""
        options = self.get("stream_options")
        return isinstance(options, dict) and bool(options.get("include_usage"))

    def wrote(self) -> None:
        """One more write has left."""
        self.writes += 1
        self._more.set()
        self._more = asyncio.Event()

    async def written(self, writes: int, within: float = 5.0) -> None:
        """Wait until so many writes have left."""
        async with asyncio.timeout(within):
            while self.writes < writes:
                await self._more.wait()

    async def hung_up(self, within: float = 5.0) -> bool:
        """Wait until the exchange is over; true if the peer left before the answer was complete."""
        await asyncio.wait_for(self.over.wait(), within)
        return self.closed_by_peer
