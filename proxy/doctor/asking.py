"""Sending small chat requests to one backend, for so long and no longer, and reading what comes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from proxy import probes, refusals, sse
from proxy.backend import Backend
from proxy.doctor.questions import body
from proxy.doctor.seen import Prompt, Said
from proxy.errors import ProxyError
from proxy.jsons import JsonError, dumps, loads
from proxy.messages import Facts, Json
from proxy.wire import Wire

RENDER_SECONDS = 10.0
"""A prompt is made in no time; a server that takes longer is busy with something else."""
HEADERS = {"accept-encoding": "identity", "content-type": "application/json"}


class Asker:
    """Asks one model of a backend. `seconds` are for everything that is generated; with `silent` nothing is."""

    def __init__(
        self, backend: Backend, wire: Wire, facts: Facts, row: Mapping[str, Json], *, seconds: float, silent: bool
    ) -> None:
        self._backend = backend
        self._wire = wire
        self._facts = facts
        self._dialect = backend.dialect
        self._query = self._dialect.advice.query(row)
        self._deadline = time.monotonic() + seconds
        self._silent = silent

    def written(self, chat: Mapping[str, Any], cap: int, effort: str | None, *, stream: bool = False) -> dict[str, Any]:
        """The request as it goes out."""
        return body(self._dialect, self._facts, chat, cap=cap, effort=effort, stream=stream)

    async def answer(
        self, chat: Mapping[str, Any], cap: int, effort: str | None, *, stream: bool = False
    ) -> Said | None:
        """What comes of a chat request; None where nothing may be generated, or no time is left."""
        longer = self._dialect.advice.longer if cap > 1 else {}
        return await self._said({**self.written(chat, cap, effort, stream=stream), **longer})

    async def prompt(self, chat: Mapping[str, Any], effort: str | None = None) -> Prompt | None:
        """The prompt of a request, or its size; None where nobody tells it."""
        advice, written = self._dialect.advice, self.written(chat, 1, effort)
        asked = advice.prompt_question(written)
        if asked is not None:
            return await self._rendered(asked.path, asked.body or {})
        shown = {advice.shows_prompt[0]: True} if advice.shows_prompt else {}
        said = await self._said({**written, **shown})
        if said is None or said.cut:
            return None
        return Prompt(said.prompt, said.fold.reported().prompt, said.problem)

    async def _rendered(self, path: str, asked: Mapping[str, Json]) -> Prompt | None:
        url = probes.origin(self._backend.settings.base) + path + (f"?{self._query}" if self._query else "")
        found = await self._wire.ask(url, asked, seconds=RENDER_SECONDS)
        if found is None or found[0] == 404:
            return None
        status, _, content = found
        if status != 200:
            return Prompt(problem=refusals.error_fields(dumps(content), status)[0])
        prompt = content.get("prompt") if isinstance(content, dict) else None
        return Prompt(prompt) if isinstance(prompt, str) else None

    async def _said(self, written: Mapping[str, Json]) -> Said | None:
        left = self._deadline - time.monotonic()
        if self._silent or left <= 0:
            return None
        said = Said()
        try:
            async with asyncio.timeout(left):
                await self._send(written, said)
        except TimeoutError:
            said.cut = True
        except ProxyError as error:
            said.problem = error.message
        return said

    async def _send(self, written: Mapping[str, Json], said: Said) -> None:
        start = time.monotonic()
        answer = await self._backend.send("POST", "/chat/completions", HEADERS, dumps(written), query=self._query)
        try:
            if answer.status != 200:
                said.problem = refusals.error_fields(await answer.read(), answer.status)[0]
            elif answer.kind != "text/event-stream":
                content = await answer.read()
                self._take(content, said, time.monotonic() - start, whole=True)
                said.prompt = self._shown(content)
            else:
                codec = sse.Decoder()
                async for chunk in answer.chunks():
                    for payload in codec.feed(chunk):
                        if not payload.startswith(sse.DONE):
                            self._take(payload, said, time.monotonic() - start)
        finally:
            await answer.aclose()

    def _take(self, payload: bytes, said: Said, now: float, *, whole: bool = False) -> None:
        event = self._dialect.decode(payload, whole=whole)
        said.fold.add(event)
        if event.error is not None:
            said.problem = str(event.error.get("message") or event.error)
        if any(part.text or part.reasoning or part.calls for part in event.parts):
            said.pieces += 1
            said.last = now
            said.first = now if said.first is None else said.first

    def _shown(self, content: bytes) -> str | None:
        """The prompt, where the server shows it."""
        shows = self._dialect.advice.shows_prompt
        if shows is None:
            return None
        try:
            found = loads(content)
        except JsonError:
            return None
        value = found.get(shows[1]) if isinstance(found, dict) else None
        return value if isinstance(value, str) else None
