"""The models that all backends serve, as a list of OpenAI's shape."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from proxy import config, headers, refusals
from proxy.backend import Backend
from proxy.backends import Backends
from proxy.errors import ProxyError, UpstreamError, UpstreamTimeout

log = logging.getLogger(__name__)

SECONDS = 10.0
"""How long a list may take; it is asked of every backend."""

Rows = dict[str, dict[str, Any]]


async def listed(
    settings: config.Settings, backends: Backends, incoming: Mapping[str, str], safe: Callable[[str], str]
) -> Rows:
    """Name → row: the aliases, then what each backend serves, asked with the caller's key if need be.

    A backend that does not tell is logged, without keys. Raises its error where nothing at all is known.
    """
    rows = {name: _row(name, alias.backend or "reasoning-proxy") for name, alias in settings.models.items()}
    trouble: ProxyError | None = None
    for backend in backends.by_name.values():
        try:
            served = await _served(backend, incoming)
        except ProxyError as error:
            log.warning("%s", safe(error.message))
            trouble = error
            served = [_row(name, backend.name) for name in backend.models]
        for row in served:
            rows.setdefault(row["id"], row)
    if trouble and not rows:
        raise trouble
    return rows


async def _served(backend: Backend, incoming: Mapping[str, str]) -> list[dict[str, Any]]:
    """What a backend serves: configured names, else its own list, asked with the caller's key if need be."""
    if backend.settings.models:
        return [_row(name, backend.name) for name in backend.settings.models]
    try:
        async with asyncio.timeout(SECONDS):
            answer = await backend.send("GET", "/models", headers.upstream(incoming), b"")
            body = await answer.read()
    except TimeoutError:
        raise UpstreamTimeout(f"backend {backend.name} does not tell its models") from None
    if answer.status != 200:
        reason = refusals.error_fields(body, answer.status)[0]
        raise UpstreamError(f"backend {backend.name} does not tell its models: {reason}")
    try:
        rows = msgspec.json.decode(body)["data"]
        return [row for row in rows if isinstance(row["id"], str)]
    except (msgspec.DecodeError, LookupError, TypeError, RecursionError):
        raise UpstreamError(f"backend {backend.name} sent a list of models that cannot be read") from None


def _row(name: str, backend: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": backend}
