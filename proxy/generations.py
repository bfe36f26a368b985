"""The answers that are being made, and those whose client left: who may listen to them again, and when they end."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

from proxy import config
from proxy.asking import Asking
from proxy.backend import Backend
from proxy.callers import Caller
from proxy.errors import Ended, NotFound, ProxyError
from proxy.generation import Generation
from proxy.messages import ChatRequest
from proxy.record import Record

MOST_DETACHED = 64
"""Generations without a listener that are kept; the oldest gives way."""
_OF_THE_WAY = frozenset({"stream", "stream_options"})
"""Fields that change how an answer comes, and not what it is."""


class _Left(NamedTuple):
    generation: Generation
    clock: asyncio.TimerHandle


class Generations:
    """All of one pipeline."""

    def __init__(self) -> None:
        self._running: dict[str, Generation] = {}
        self._left: dict[tuple[str, bytes], _Left] = {}  # by caller and request, the one that was left first before

    def begun(self, asking: Asking, record: Record, settings: config.Settings) -> Generation:
        """A new one; whoever has it starts it."""
        generation = Generation(asking, record, settings, keeps=self.keeps, over=self.over)
        self._running[generation.id] = generation
        return generation

    def rejoined(self, caller: Caller, request: ChatRequest) -> Generation | None:
        """The generation of the same request, if its client left it; it is that of the one who asks now."""
        if not self._left:
            return None
        left = self._left.pop((caller.scope, digest(request)), None)
        if left is None:
            return None
        left.clock.cancel()
        return None if left.generation.broken else left.generation

    def keeps(self, generation: Generation) -> bool:
        """Whether it goes on though its client left; it is kept then, until it is asked for again or gets too old."""
        asking = generation.asking
        if not generation.may_detach or not (asking.begun or generation.complete):
            return False
        if not generation.complete and self._is_waited_for(generation):
            return False
        key = (asking.caller.scope, digest(asking.request))
        if key in self._left:  # the same request twice at a time: one of them is enough
            return False
        while len(self._left) >= MOST_DETACHED:
            self._give_up(next(iter(self._left)), "newer ones were left")
        minutes = asking.backend.settings.detach_minutes
        loop = asyncio.get_running_loop()
        clock = loop.call_later(minutes * 60, self._give_up, key, f"nobody came back in {minutes:g} minutes")
        self._left[key] = _Left(generation, clock)
        generation.record.goes_on = True
        generation.record.flag("detached", not generation.complete)
        return True

    def _is_waited_for(self, generation: Generation) -> bool:
        """Whether another question of the same client waits for its slot, in line here or inside the server."""
        asking = generation.asking
        backend, scope = asking.backend, asking.caller.scope
        if backend.line.waits(scope):
            return True
        return backend.is_crowded(asking.made.plan.facts.upstream_model) and any(
            each is not generation and not each.detached and each.asking.backend is backend
            for each in self.of(asking.caller)
            if each.asking.made.plan.kind == "chat"
        )

    def over(self, generation: Generation) -> None:
        """It is made, or broke."""
        self._running.pop(generation.id, None)
        if not generation.finished:
            self._forget(generation)

    def crowded(self, backend: Backend, caller: Caller) -> None:
        """A request waits for a slot: the oldest generation there that the same caller left gives way, for it may have
        been stopped."""
        for key, left in self._left.items():
            asking = left.generation.asking
            if key[0] == caller.scope and asking.backend is backend and not left.generation.complete:
                self._give_up(key, "it gave way to another request of its client")
                return

    def _give_up(self, key: tuple[str, bytes], why: str) -> None:
        left = self._left.pop(key)
        left.clock.cancel()
        self._running.pop(left.generation.id, None)
        left.generation.end(Ended(f"the client left, and {why}"))

    def of(self, caller: Caller) -> list[Generation]:
        """Those of a caller, the oldest first."""
        return sorted(
            (each for each in self.everyone() if each.asking.caller.scope == caller.scope), key=lambda each: each.began
        )

    def named(self, request_id: str, caller: Caller) -> Generation:
        """The one of this id. Raises NotFound where the caller has none."""
        found = next((each for each in self.of(caller) if request_id in each.ids), None)
        if found is None:
            raise NotFound(f"no generation {request_id!r} of yours runs; GET /v1/generations lists them")
        return found

    async def drop(self, generation: Generation, error: ProxyError) -> None:
        """End one, whoever listens."""
        self._running.pop(generation.id, None)
        self._forget(generation)
        await generation.drop(error)

    def _forget(self, generation: Generation) -> None:
        for key, left in list(self._left.items()):
            if left.generation is generation:
                left.clock.cancel()
                del self._left[key]

    async def aclose(self, error: ProxyError) -> None:
        """End all."""
        await asyncio.gather(*(self.drop(each, error) for each in list(self.everyone())))

    def everyone(self) -> Iterable[Generation]:
        """Those that run, and those that were left."""
        return {**self._running, **{left.generation.id: left.generation for left in self._left.values()}}.values()


def shown(generation: Generation) -> dict[str, Any]:
    """What is told of one. Texts are counted in characters, because most engines count tokens only at the end."""
    entry, fold, asking = generation.record.entry, generation.record.fold, generation.asking
    state = "running" if not generation.detached else "detached"
    if asking.position:
        state = "queued"
    elif generation.finished:
        state = "finished"
    return {
        "object": "generation",
        "id": generation.id,
        "request_id": generation.id,
        "state": state,
        "detached": generation.detached,
        "model": entry.model,
        "backend": entry.backend,
        "client": entry.client,
        "stream": entry.stream,
        "created": int(generation.began),
        "seconds": round(time.time() - generation.began, 1),
        "waits_for": generation.hold_up or None,
        "reasoning_characters": len(fold.reasoning_text),
        "visible_characters": len(fold.visible_text),
    }


def digest(request: ChatRequest) -> bytes:
    """What a request asks for, hashed; not whether it wants a stream."""
    found = hashlib.blake2b(digest_size=16)
    for name in sorted(request.fields.keys() - _OF_THE_WAY):
        raw = request.fields[name]
        found.update(b"%d %d " % (len(name), len(raw)) + name.encode("utf-8", "replace") + raw)
    return found.digest()
