"""From a call to a reply. `Pipeline._chat` is the product in one function; everything else serves it."""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

import msgspec

from proxy import config, families, headers, history, keys, normalise, policy, refusals, relay, render, shape, window
from proxy.backends import Backend, Backends
from proxy.callers import Caller, Callers
from proxy.errors import InternalError, ModelNotFound, NotFound, ProxyError, Stopping, UpstreamError, UpstreamTimeout
from proxy.messages import Call, Plan, Reply
from proxy.places import hide_password, sqlite_path
from proxy.recall import Recalled, Recaller
from proxy.record import Record
from proxy.store import Store, open_store
from proxy.turns import Found
from proxy.wire import Answer

log = logging.getLogger(__name__)

_CHAT = "/chat/completions"
_HOP_BY_HOP = frozenset(
    {"connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer", "transfer-encoding"}
    | {"upgrade", "content-length", "content-type", "x-request-id"}
)
"""Headers of one connection, and those that are written anew for the next."""
_NOT_FORWARDED = _HOP_BY_HOP | {"host", "accept-encoding", "expect", "cookie", "origin", "referer"}
"""A browser's cookies and origin belong to the proxy's own host."""
_NOT_RETURNED = _HOP_BY_HOP | {"content-encoding", "server", "date", "set-cookie", "cache-control"}
_NOT_RETURNED |= {"access-control-allow-origin", "x-accel-buffering", "x-should-retry"}
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
STOPPING = "the proxy is shutting down; send the request again later"
MODELS_SECONDS = 10.0
"""How long a list of models may take; it is asked of every backend."""


class Pipeline:
    """The neutral core behind both doors. `start` and all that follows need a running event loop; `aclose` ends it."""

    def __init__(self, settings: config.Settings, store: Store) -> None:
        self.settings = settings
        self.store = store
        self.backends = Backends(settings, families.load(settings.families))
        self._callers = Callers(settings, store.salt)
        self.draining = False
        """New requests had better go elsewhere."""
        self.stopping = asyncio.Event()
        """What is still running ends now."""
        self._secrets = [secret for backend in settings.backends.values() for secret in backend.secrets]
        self._secrets += [client.key for client in settings.clients.values()]

    @classmethod
    def open(cls, settings: config.Settings) -> Pipeline:
        """A pipeline with the store that the settings name. Raises ConfigError where it cannot be opened."""
        kept, store = settings.history, settings.store
        limits = {"max_age_days": kept.max_age_days, "max_mb": kept.max_mb}
        made = cls(settings, open_store(store.url, store.ledger_jsonl, **limits))
        path = sqlite_path(store.url)
        where = path.absolute() if path else hide_password(store.url)
        log.info("turns and ledger are kept in %s%s", where, ", until this ends" if where == "memory" else "")
        return made

    def start(self) -> None:
        """Begin to look at the backends."""
        self.backends.start(self.store.recent_speeds())

    async def handle(self, call: Call) -> Reply:
        """Answer a call. Errors of the caller and of backends come back as replies; nothing is raised for them."""
        record = self._record(call)
        try:
            reply = await self._routed(call, record)
        except ProxyError as error:
            reply = _failed(record, error)
        except Exception:
            log.exception("request %s failed by a fault of this program", record.entry.request_id)
            reply = _failed(
                record, InternalError("an internal error; the proxy's log says more under this request's id")
            )
        except BaseException as error:
            if not self.stopping.is_set():
                record.failed(error)
                raise
            reply = _failed(record, Stopping(STOPPING))  # cancelled by a door, which still has to answer
        return _identified(reply, call, record)

    def refuse(self, call: Call, error: ProxyError) -> Reply:
        """The reply to a call that a door could not take in; it has its row like any other."""
        record = self._record(call)
        return _identified(_failed(record, error), call, record)

    def _record(self, call: Call) -> Record:
        kind = "chat" if _api_path(call) == _CHAT else "passthrough"
        return Record(self.store, call, "req_" + os.urandom(12).hex(), kind, self._secrets)

    async def _routed(self, call: Call, record: Record) -> Reply:
        path = _api_path(call)
        if path == _CHAT:
            if call.method != "POST":
                raise NotFound(f"{call.method} {call.path} does not exist; use POST")
            return await self._chat(call, record)
        if call.method == "GET" and (path == "/models" or path.startswith("/models/")):
            return await self._models(call, path.removeprefix("/models").strip("/"), record)
        if call.path.startswith("/v1/") and not {".", ".."} & set(path.split("/")):
            return await self._pass_through(call, record)
        raise NotFound(f"there is nothing at {call.path}; the API is at /v1")

    async def _chat(self, call: Call, record: Record) -> Reply:
        """Normalise; pick a backend; put back; decide; say it in the backend's words; send it; pass on the answer."""
        caller = self._caller(call, record)
        request = normalise.read(call.body)
        record.entry.model, record.entry.stream = request.model, request.stream

        route = await self.backends.route(request.model)
        request = request if request.effort or request.switched_on else replace(request, effort=route.effort)
        scope = keys.scope(self.store.salt, caller.credential, caller.end_user, route.family.name)
        chain = keys.Chain(request.messages, scope)
        found = await self._found(chain)
        known = Recaller(chain, request.messages, found, caller.conversation).all()

        facts = route.backend.facts(route.upstream_model, route.family, history.conversation_effort(known))
        plan = self._planned(Plan(request, facts, request.messages), known)
        record.planned(plan, chain, known, route)
        window.check(plan)
        answer = await self._sent(call, plan, route.backend)
        if plan.restored and await refusals.overflows(answer):
            # Nothing was generated, and the client's own messages may fit: only what we added is too much.
            route.backend.note_overflow(route.upstream_model, window.size(plan), facts.context_limit)
            plan = self._planned(Plan(request, facts, request.messages), known, bare=True)
            record.planned(plan, chain, known, route, attempts=2)
            answer = await self._sent(call, plan, route.backend)

        record.answered(answer.status)
        shaper = shape.Shaper(self.settings.thinking, route.family, filler=self._filler(plan), new_id=_call_id)
        usage = {"include_usage": request.include_usage, "continuous_usage": request.continuous_usage}
        view = render.View(caller.shown, **usage)
        told = [*_returned(answer.headers, record), *headers.of_plan(plan)]
        if answer.status >= 400:
            more, error = await refusals.refused(answer, record)
            return Reply(answer.status, told + more, error)
        dialect = route.backend.dialect
        if request.stream:
            body = relay.Stream(await relay.streamed(answer, dialect), dialect, shaper, view, record)
            return Reply(answer.status, told + relay.STREAM_HEADERS, body)
        event = await relay.whole(answer, dialect, shaper, record)
        more = headers.of_answer(record.entry.outcome, record.cost())
        return Reply(answer.status, [*told, relay.JSON, *more], view.whole(event))

    async def _found(self, chain: keys.Chain) -> Found:
        """What the store knows of a history: one query, and one more for what is not found where it stands."""
        found = await self.store.find(list(chain.keys.values()))
        weaker = chain.weaker_than(found.exact)
        return replace(found, sole=(await self.store.find((), weaker)).sole) if weaker else found

    def _planned(self, plan: Plan, known: Mapping[int, Recalled], *, bare: bool = False) -> Plan:
        """What goes to the backend; with `bare`, without the thoughts that are not the client's own."""
        settings = self.settings
        room = policy.answer_room(plan.request, settings.policy)
        return policy.decide(history.restore(plan, known, settings.history, answer=room, bare=bare), settings.policy)

    async def _sent(self, call: Call, plan: Plan, backend: Backend) -> Answer:
        body = backend.dialect.encode(plan)
        return await backend.send("POST", _CHAT, _upstream_headers(call.headers), body, query=call.query)

    def _filler(self, plan: Plan) -> str:
        """The filler, where this request carries it and the model may echo it."""
        filled = any(decision.rule == "filler" for decision in plan.decisions)
        return self.settings.history.filler_text if filled else ""

    def _caller(self, call: Call, record: Record) -> Caller:
        caller = self._callers.of(call.headers)
        record.caller(caller)
        return caller

    async def _models(self, call: Call, name: str, record: Record) -> Reply:
        """All models, or the one of this name."""
        self._caller(call, record)
        rows = {
            name: _model_row(name, alias.backend or "reasoning-proxy") for name, alias in self.settings.models.items()
        }
        trouble: ProxyError | None = None
        for backend in self.backends.by_name.values():
            try:
                served = await self._served(backend, call.headers)
            except ProxyError as error:
                log.warning("%s", record.safe(error.message))
                trouble = error
                served = [_model_row(name, backend.name) for name in backend.models]
            for row in served:
                rows.setdefault(row["id"], row)
        if trouble and not rows:
            raise trouble
        record.entry.status = 200
        if name and name not in rows:
            raise ModelNotFound(f"there is no model {name!r} here; GET /v1/models lists them", param="model")
        record.finish("ok")
        found = rows[name] if name else {"object": "list", "data": list(rows.values())}
        return Reply(200, [relay.JSON], msgspec.json.encode(found))

    async def _served(self, backend: Backend, incoming: Mapping[str, str]) -> list[dict[str, Any]]:
        """What a backend serves: configured names, else its own list, asked with the caller's key if need be."""
        if backend.settings.models:
            return [_model_row(name, backend.name) for name in backend.settings.models]
        try:
            async with asyncio.timeout(MODELS_SECONDS):
                answer = await backend.send("GET", "/models", _upstream_headers(incoming), b"")
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

    async def _pass_through(self, call: Call, record: Record) -> Reply:
        """Any other path of the API: unchanged, streamed, and with a row of its own."""
        self._caller(call, record)
        backend = await self._backend_for(call.body, record)
        record.entry.backend, record.entry.engine = backend.name, backend.engine
        sent = _upstream_headers(call.headers)
        for name in ("accept-encoding", "content-type"):
            if name in call.headers:
                sent[name] = call.headers[name]
        record.entry.attempts = 1
        answer = await backend.send(call.method, call.path.removeprefix("/v1"), sent, call.body, query=call.query)
        record.answered(answer.status)
        told = [("x-proxy-backend", backend.name), *_returned(answer.headers, record)]
        if answer.status >= 400:
            more, error = await refusals.refused_raw(answer, record)
            return Reply(answer.status, told + more, error)
        kept = ("content-type", "cache-control", "content-encoding")
        told += [(name, answer.headers[name]) for name in kept if name in answer.headers]
        return Reply(answer.status, told, relay.Raw(answer, record))

    async def _backend_for(self, body: bytes, record: Record) -> Backend:
        """By the `model` of a JSON body, else the first backend."""
        try:
            model = msgspec.json.decode(body).get("model")
        except (msgspec.DecodeError, AttributeError, RecursionError, UnicodeDecodeError):
            return self.backends.first
        if not isinstance(model, str):
            return self.backends.first
        record.entry.model = model
        return (await self.backends.route(model)).backend

    async def ready(self) -> str | None:
        """None when requests can be served, else what is wrong."""
        if self.draining:
            return "the proxy is shutting down"
        if not self.store.healthy():
            return "the store cannot be written"
        if not any(backend.answered for backend in self.backends.by_name.values()):
            for backend in self.backends.by_name.values():
                backend.start_probe()
            return "no backend has answered yet"
        return None

    async def aclose(self) -> None:
        """Close all connections, and write what is queued."""
        await self.backends.aclose()
        await asyncio.to_thread(self.store.close)


def _api_path(call: Call) -> str:
    """The path below `/v1`, decoded, so that no spelling of a chat request goes around the rules."""
    return unquote(call.path).removeprefix("/v1").rstrip("/")


def _failed(record: Record, error: ProxyError) -> Reply:
    record.failed(error)
    body = record.safe(error.body().decode()).encode()
    return Reply(error.status, [relay.JSON, *error.headers.items()], body)


def _identified(reply: Reply, call: Call, record: Record) -> Reply:
    """Our id of the request, and the caller's own if it can stand in a header."""
    reply.headers.append(("x-request-id", record.entry.request_id))
    theirs = call.headers.get("x-request-id", "")
    if _REQUEST_ID.fullmatch(theirs):
        reply.headers.append(("x-client-request-id", theirs))
    return reply


def _upstream_headers(incoming: Mapping[str, str]) -> dict[str, str]:
    """What a backend is sent: the client's own headers, less those of the connection and of the browser."""
    kept = {
        name: value
        for name, value in incoming.items()
        if name not in _NOT_FORWARDED and not name.startswith(("x-proxy-", "sec-"))
    }
    return {**kept, "accept-encoding": "identity", "content-type": "application/json"}


def _returned(found: Mapping[str, str], record: Record) -> list[tuple[str, str]]:
    """A backend's headers that mean something to the client, such as rate limits and trace ids."""
    return [
        (name, record.safe(value))
        for name, value in found.items()
        if name.lower() not in _NOT_RETURNED and not name.lower().startswith("x-proxy-") and value.isprintable()
    ]


def _call_id() -> str:
    return "call_" + os.urandom(12).hex()


def _model_row(name: str, backend: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": backend}
