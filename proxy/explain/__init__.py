"""`reasoning-proxy explain`: the plan for a request, by the same code as `serve`, and nothing is sent.

`looked.py` reads the store, `show.py` writes what was planned.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from proxy import config
from proxy.backend import Backend
from proxy.doors import Call
from proxy.errors import ConfigError, ProxyError
from proxy.explain import looked
from proxy.explain.show import Explained, document, printable, text
from proxy.pipeline import Pipeline
from proxy.planning import Planned

__all__ = ["Explained", "as_client", "document", "run", "text"]

Say = Callable[[str], object]

LOOKS = 4
"""Each waits two seconds at the most; a probe takes as long as the server does."""

# A backend that is down is told with what follows from it; the probe's own warning would say half of that again.
logging.getLogger("proxy.backends").addHandler(logging.NullHandler())


def as_client(settings: config.Settings, name: str | None, headers: Mapping[str, str], say: Say) -> dict[str, str]:
    """The headers with the key of a configured client: the one named, else the first where no key is given.

    Raises ConfigError for an unknown name.
    """
    known = list(settings.clients)
    if name is None:
        if not known or "authorization" in headers:
            return dict(headers)
        name, *others = known
        say(f"asked as client {name}" + (f", the first of {len(known)}: --client chooses another" if others else ""))
    elif name not in known:
        which = f"known: {', '.join(known)}" if known else "the settings have no [clients] table, so leave --client out"
        raise ConfigError(f"there is no client {name!r}; {which}")
    return {**headers, "authorization": f"Bearer {settings.clients[name].key}"}


async def run(settings: config.Settings, body: bytes, headers: Mapping[str, str], say: Say) -> Explained:
    """What a proxy that has just started with these settings would make of a chat request.

    Raises what the proxy would answer with, and ConfigError where the store cannot be used.
    """
    try:
        with looked.opened(settings.store.url, say) as store:
            pipeline = Pipeline(settings, store)
            try:
                # Not `start`, which also has servers generate a few tokens to see how fast they are.
                pipeline.backends.learn(store.recent_speeds(), store.recent_thoughts())
                await asyncio.gather(*(_look(backend, say) for backend in pipeline.backends.by_name.values()))
                return _explained(await pipeline.explain(Call("POST", "/v1/chat/completions", headers, body)))
            finally:
                await pipeline.aclose()
    except ProxyError as error:
        error.message = printable(error.message)
        raise


async def _look(backend: Backend, say: Say) -> None:
    """Find out what stands there, as `serve` does; the looks of a proxy that runs were over long ago."""
    if not backend.needs_probe:
        return
    for _ in range(LOOKS):
        await backend.look_again()
        if backend.found is not None:
            return
    what = "does not tell what it is" if backend.answered else "does not answer"
    engine = "" if backend.settings.engine != "auto" else f"that it is {backend.engine} and "
    url = backend.settings.shown_url
    say(f"backend {backend.name} at {url} {what}: {engine}its models, their window and template are assumed")


def _explained(made: Planned) -> Explained:
    backend, model = made.route.backend, made.route.upstream_model
    measured_as = backend.learned.measured_as(model, alone=backend.is_of_one_model)
    return Explained(made.plan, backend.dialect.encode(made.plan), backend.learned.speed(measured_as))
