"""All model servers, and which of them serves a model."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from proxy import config
from proxy.backend import Backend
from proxy.errors import ModelNotFound
from proxy.families import Families, Family
from proxy.messages import Ask
from proxy.speeds import Speed
from proxy.thoughts import Thought


@dataclass(frozen=True, slots=True)
class Route:
    """Where a request for a model goes."""

    backend: Backend
    upstream_model: str
    family: Family
    effort: Ask | None = None
    """What the model's name says about it."""


class Backends:
    """All configured backends."""

    def __init__(self, settings: config.Settings, families: Families) -> None:
        self._settings = settings
        self._families = families
        slow_below = settings.policy.slow_below_tokens_per_second
        self.by_name = {name: Backend(name, table, slow_below) for name, table in settings.backends.items()}

    def learn(self, speeds: Mapping[tuple[str, str], Speed], thoughts: Iterable[Thought]) -> None:
        """The experience of earlier runs."""
        for (name, model), speed in speeds.items():
            if name in self.by_name:
                self.by_name[name].learned.speed_is(model, speed)
        for thought in thoughts:
            if thought.backend in self.by_name:
                self.by_name[thought.backend].learned.thoughts.add(thought)

    def start(self) -> None:
        """Begin to find out what stands behind each."""
        for backend in self.by_name.values():
            if backend.needs_probe:
                backend.start_probe()

    @property
    def first(self) -> Backend:
        return next(iter(self.by_name.values()))

    async def route(self, model: str, to: str | None = None) -> Route:
        """The backend for a model, by alias, by the names that backends serve, or the only one that takes any name; or
        the one named `to`.

        Waits a little for backends that are just being looked at: their names and families count.
        Raises ModelNotFound that lists the known names.
        """
        alias = self._settings.models.get(model)
        upstream = (alias.upstream if alias else None) or model
        name = to or (alias.backend if alias else None)
        backend = self.by_name[name] if name else await self._serving(upstream, model)
        await backend.known()
        family = alias.family if alias else None
        found = self._families.named(family) if family not in (None, "auto") else self._own_family(upstream, backend)
        effort = Ask(alias.effort, "") if alias and alias.effort else None
        return Route(backend, upstream, found, effort)

    async def stand_in(self, model: str, name: str) -> Route:
        """The way to a backend that serves a model in the place of another one, under its own name for it. Raises
        ModelNotFound where it is known to serve several others."""
        backend = self.by_name[name]
        route = await self.route(model, to=name)
        served, upstream = backend.models, route.upstream_model
        if served and upstream not in served:
            if model not in served and len(served) > 1:
                raise ModelNotFound(f"backend {name} does not serve the model {model!r}", param="model")
            upstream = model if model in served else served[0]
        family = route.family if upstream == route.upstream_model else self._own_family(upstream, backend)
        return replace(route, upstream_model=upstream, family=family)

    def _own_family(self, model: str, backend: Backend) -> Family:
        family = backend.settings.family
        return self._family(model, backend) if family == "auto" else self._families.named(family)

    def _family(self, model: str, backend: Backend) -> Family:
        """By the model's name; a server of one model answers to any name, so there its own name decides."""
        served = backend.models
        return self._families.for_model(served[0] if len(served) == 1 else model)

    async def _serving(self, upstream: str, asked: str) -> Backend:
        everyone = list(self.by_name.values())
        open_to_any = [backend for backend in everyone if not backend.settings.models]
        for wait in (False, True):
            if wait:
                await asyncio.gather(*(backend.look_again() for backend in open_to_any))
            serving = next((backend for backend in everyone if upstream in backend.models), None)
            if serving is not None:
                return serving
            if len(open_to_any) == 1:
                return open_to_any[0]
        known = sorted({*self._settings.models, *(name for backend in everyone for name in backend.models)})
        raise ModelNotFound(
            f"no backend serves the model {asked!r}; known: {', '.join(known) or 'none yet'}", param="model"
        )

    async def aclose(self) -> None:
        await asyncio.gather(*(backend.aclose() for backend in self.by_name.values()))
