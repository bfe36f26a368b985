"""How fast a server of one's own is, found out by a few tokens before the first request comes."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

from proxy import sse
from proxy.backend import Backend
from proxy.errors import ProxyError
from proxy.fold import Fold
from proxy.jsons import dumps
from proxy.speeds import LEAST_DECODED, Span, Speed, decode

log = logging.getLogger(__name__)

TOKENS = 8
SECONDS = 600.0
"""At a tenth of a token a second eight tokens take 80 s, and the prompt as long again."""
_MOST_MODELS = 4
_MOST_PIECES = 4 * TOKENS
_HEADERS = {"accept-encoding": "identity", "content-type": "application/json"}
_NEAR = (".local", ".localdomain", ".lan", ".internal", ".home.arpa", ".localhost")


async def measured(backend: Backend) -> None:
    """Measure what is loaded there and was never measured, as soon as the server is found.

    Nothing is sent to a service, to a server far away, or for a model that would have to be loaded first. A request
    that comes meanwhile ends it, and is measured instead.
    """
    if backend.settings.slow != "auto":
        return
    await backend.found_once.wait()
    if not (backend.dialect.is_own and is_near(backend.settings.base)):
        return
    for model in list(_due(backend))[:_MOST_MODELS]:
        try:
            async with asyncio.timeout(SECONDS):
                speed, names = await _measure(backend, model)
        except (ProxyError, TimeoutError) as error:
            reason = error.message if isinstance(error, ProxyError) else f"no end in {SECONDS:g} s"
            log.info("backend %s: the speed of %s is not known yet: %s", backend.name, model, reason)
            continue
        backend.learned.took(model, speed)
        backend.note_names(model, names)
        if speed.decode is not None:
            slow = ", which counts as slow" if backend.learned.slow(model) else ""
            log.info("backend %s: %s writes %.3g tokens a second%s", backend.name, model, speed.decode, slow)


def is_near(url: str) -> bool:
    """Whether the host is this machine, or one of the same network by its address or name."""
    host = (urlsplit(url).hostname or "").lower().rstrip(".")
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return "." not in host or host.endswith(_NEAR)
    return address.is_private or address.is_loopback or address.is_link_local


def _due(backend: Backend) -> Iterator[str]:
    found = backend.found
    if found is None:
        return
    advice, alone, learned = backend.dialect.advice, backend.is_of_one_model, backend.learned
    for row in found.models:
        name, loaded = str(row["id"]), found.of(str(row["id"])).loaded
        ready = loaded or (loaded is None and alone)
        if learned.speed(learned.measured_as(name, alone=alone)).decode is not None or not ready:
            continue
        if not (advice.is_asleep(row, found.answers) or advice.is_paid(row, found.answers)):
            yield name


async def _measure(backend: Backend, model: str) -> tuple[Speed, frozenset[str]]:
    """Tokens a second of a short answer, by the engine's own figures, else by the pace of the stream; and the names
    under which its thought came."""
    asked = {
        "model": model,
        "messages": [{"role": "user", "content": "Count from one to twenty."}],
        "max_tokens": TOKENS,
        "stream": True,
        "stream_options": {"include_usage": True},
        **dict.fromkeys(backend.dialect.advice.longer, TOKENS),  # `min_tokens`, which may not be above the cap
    }
    fold, codec, span = Fold(), sse.Decoder(), Span()
    answer = await backend.send("POST", "/chat/completions", _HEADERS, dumps(asked))
    try:
        if answer.status != 200 or answer.kind != "text/event-stream":
            return Speed(), frozenset()
        async for chunk in answer.chunks():
            for payload in codec.feed(chunk):
                if payload.strip() and not payload.startswith(sse.DONE):
                    event = backend.dialect.decode(payload)
                    fold.add(event)
                    if any(part.text or part.reasoning for part in event.parts):
                        span.note(time.monotonic())
            if span.count > _MOST_PIECES:  # whoever does not obey the cap may never end
                break
    finally:
        await answer.aclose()
    count = fold.reported().completion or span.count
    return Speed(decode(fold.timings, span, count) if count >= LEAST_DECODED else None), fold.names
