"""From a request to the plan for it: what `serve` sends, and what `explain` shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from proxy import config, history, keys, policy
from proxy.backends import Backends, Route
from proxy.callers import Caller
from proxy.keys import Chain
from proxy.messages import ChatRequest, Decision, Plan
from proxy.recall import Recalled, Recaller
from proxy.store import Store
from proxy.turns import Found

PROGRESS = "x-proxy-progress"
"""A request with `1` in this header is told how far its prompt is read."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan, and what it was made from: the request's place among the turns, what is known of them, the way, and the
    terms. `start` is the plan before anything was put back or decided."""

    plan: Plan
    start: Plan
    chain: Chain
    known: Mapping[int, Recalled]
    route: Route
    terms: policy.Terms


class Instead(NamedTuple):
    """Another backend than the one that the request is for, and why."""

    backend: str
    reason: str


class Planner:
    """Makes plans; nothing is sent by it but the questions of probes."""

    def __init__(self, settings: config.Settings, store: Store, backends: Backends) -> None:
        self._settings = settings
        self._store = store
        self._backends = backends

    async def plan(
        self, request: ChatRequest, caller: Caller, headers: Mapping[str, str], *, instead: Instead | None = None
    ) -> Planned:
        """Find out what it is and where it goes; put back what the front end dropped; decide.

        Raises ModelNotFound, and InvalidRequest for what the model cannot be asked.
        """
        settings = self._settings
        kind, why = policy.kind_of(request, settings.policy)
        preset, decisions = policy.matching(settings.rules, policy.Asked(request, kind, caller.client, headers))
        if kind != "chat":
            decisions += (Decision(kind, why),)
        model = preset.model or request.model
        if instead is None:
            route, why = await self._backends.route(model, to=preset.backend), ""
        else:
            route, why = await self._backends.stand_in(model, instead.backend), f": {instead.reason}"
        if route.upstream_model != request.model or preset.backend is not None or why:
            decisions += (Decision("route", f"{route.upstream_model} on {route.backend.name}{why}"),)
        request = request if request.effort or request.switched_on else replace(request, effort=route.effort)

        chain = Chain(
            request.messages, keys.scope(self._store.salt, caller.credential, caller.end_user, route.family.name)
        )
        known = Recaller(chain, request.messages, await self._found(chain), caller.conversation).all()
        facts = route.backend.facts(route.upstream_model, route.family, history.conversation_effort(known))
        start = Plan(request, facts, request.messages, kind=kind, decisions=decisions)
        made = Planned(
            start, start, chain, known, route, policy.Terms(settings.policy, preset, headers.get(PROGRESS) == "1")
        )
        return self.decided(made)

    def decided(self, made: Planned, *, bare: bool = False) -> Planned:
        """With the plan for the backend; a `bare` one has no thoughts but the client's own."""
        room = policy.answer_room(made.start.request, self._settings.policy)
        restored = history.restore(made.start, made.known, self._settings.history, answer=room, bare=bare)
        return replace(made, plan=policy.decide(restored, made.terms))

    async def _found(self, chain: Chain) -> Found:
        """What the store knows of a history: one query, and one more for what is not found where it stands."""
        found = await self._store.find(list(chain.keys.values()))
        weaker = chain.weaker_than(found.exact)
        return replace(found, sole=(await self._store.find((), weaker)).sole) if weaker else found
