"""From a call to a reply. `Pipeline._chat` is the product in one function; everything else serves it."""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from urllib.parse import unquote

import msgspec

from proxy import (
    config,
    families,
    generations,
    headers,
    measuring,
    models,
    normalise,
    refusals,
    relay,
    render,
    spans,
    spent,
    tokens,
    watched,
    window,
)
from proxy.accounting import Books
from proxy.asking import CHAT, Asking, enter
from proxy.backend import Backend
from proxy.backends import Backends
from proxy.budgets import Budgets
from proxy.callers import Caller, Callers, Onlooker
from proxy.doors import Call, Reply
from proxy.errors import Draining, Ended, InternalError, ModelNotFound, NotFound, ProxyError, Stopping
from proxy.generation import Generation
from proxy.generations import Generations
from proxy.listeners import Listener, Streaming, Whole
from proxy.messages import ChatRequest, Json
from proxy.places import hide_password, sqlite_path
from proxy.planning import PROGRESS, Planned, Planner
from proxy.record import Record
from proxy.store import Store, open_store
from proxy.telemetry import Telemetry
from proxy.wire import Answer

log = logging.getLogger(__name__)

_WORK = ("/completions", "/responses", "/messages", "/embeddings", "/rerank", "/reranking", "/score", "/infill")
"""Paths, beside chat, whose POST makes an engine work on its models."""
_ANSWER_NOW = re.compile(rf"{CHAT}/([^/]+)/answer-now")
_GENERATIONS = re.compile(r"/generations(?:/([^/]+))?")
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
STOPPING = "the proxy is shutting down; send the request again later"


class Pipeline:
    """The neutral core behind both doors. `start` and all that follows need a running event loop; `aclose` ends it."""

    def __init__(self, settings: config.Settings, store: Store) -> None:
        self.settings = settings
        self.store = store
        self.books = Books(settings, store)
        self.budgets = Budgets(settings)
        self._rereading: asyncio.Task[None] | None = None
        self.backends = Backends(settings, families.load(settings.families))
        self._callers = Callers(settings, store.salt)
        self._planner = Planner(settings, store, self.backends)
        self.generations = Generations()
        self.telemetry = Telemetry(
            lambda: watched.gauges(self.backends, self.generations, store),
            lambda model, backend: watched.known_as(self.backends, settings, model, backend),
        )
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
        """Begin to look at the backends, with the experience of earlier runs."""
        self.backends.learn(self.store.recent_speeds(), self.store.recent_thoughts())
        self.backends.start()
        self.books.tariffs.warm()
        self.books.told += [self.budgets.settle, self.telemetry.row]
        if self.budgets:
            self.budgets.load(partial(spent.by_client, self.store))
            if self.store.shared:
                again = spent.reread(self.budgets, self.store)
                self._rereading = asyncio.create_task(again, name="what other proxies spent")
        if self.settings.policy.default_effort == "auto":
            for backend in self.backends.by_name.values():
                backend.measuring = asyncio.create_task(measuring.measured(backend), name=f"speed of {backend.name}")
        if self.settings.policy.completion_tokens_mode == "visible":  # who counts tokens had better not wait then
            asyncio.get_running_loop().run_in_executor(None, tokens.count, "")

    async def handle(self, call: Call) -> Reply:
        """Answer a call. Errors of the caller and of backends come back as replies; nothing is raised for them."""
        record = self._record(call)
        if record.entry.kind == "chat" and (span := spans.begin(call.headers)) is not None:
            record.span, call = span, replace(call, headers=span.headers(call.headers))
        try:
            if self.draining:
                raise Draining(STOPPING)
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
                if not record.goes_on:
                    record.failed(error)
                raise
            reply = _failed(record, Stopping(STOPPING))  # cancelled by a door, which still has to answer
        return _identified(reply, call, record)

    async def explain(self, call: Call) -> Planned:
        """The plan for a chat request, which is not sent. Raises what `handle` would answer with."""
        caller = self._callers.of(call.headers)
        made = await self._planner.plan(normalise.read(call.body), caller, call.headers)
        window.check(made.plan)
        return made

    def refuse(self, call: Call, error: ProxyError) -> Reply:
        """The reply to a call that a door could not take in; it has its row like any other."""
        record = self._record(call)
        return _identified(_failed(record, error), call, record)

    def _record(self, call: Call) -> Record:
        kind = "chat" if _api_path(call) == CHAT else "passthrough"
        return Record(self.books, call, "req_" + os.urandom(12).hex(), kind, self._secrets)

    async def _routed(self, call: Call, record: Record) -> Reply:
        path = _api_path(call)
        if path == CHAT:
            if call.method != "POST":
                raise NotFound(f"{call.method} {call.path} does not exist; use POST")
            return await self._chat(call, record)
        if call.method == "POST" and (found := _ANSWER_NOW.fullmatch(path)):
            return await self._answer_now(call, found[1], record)
        if found := _GENERATIONS.fullmatch(path):
            return await self._generations(call, found[1], record)
        if call.method == "GET" and (path == "/models" or path.startswith("/models/")):
            return await self._models(call, path.removeprefix("/models").strip("/"), record)
        if call.path.startswith("/v1/") and not {".", ".."} & set(path.split("/")):
            return await self._pass_through(call, record)
        raise NotFound(f"there is nothing at {call.path}; the API is at /v1")

    async def _chat(self, call: Call, record: Record) -> Reply:
        """Read the request; plan it; let its answer be made, or find it half made; reply with it as it comes."""
        caller = self._caller(call, record)
        request = normalise.read(call.body)
        record.entry.model, record.entry.stream = request.model, request.stream
        generation = self.generations.rejoined(caller, request)
        if generation is not None:
            record.rejoined(generation.record)
            listener = self._listener(generation, call, caller, request, record)
            generation.join(listener)
        else:
            made = await self._planner.plan(request, caller, call.headers)
            record.planned(made)
            window.check(made.plan)
            self.budgets.hold(caller.client, record.entry.request_id, self.books.most(made))
            asking = Asking(self._planner, call, caller, request, made, record=record, crowded=self.generations.crowded)
            generation = self.generations.begun(asking, record, self.settings)
            listener = self._listener(generation, call, caller, request, record)
            generation.start(listener)
        try:
            reply = await listener.reply()
        except BaseException:
            if self.stopping.is_set():
                listener.interrupt(Stopping(STOPPING))
            await listener.aclose()
            raise
        if isinstance(reply.body, bytes):
            await listener.aclose()
        return reply

    def _listener(
        self, generation: Generation, call: Call, caller: Caller, request: ChatRequest, record: Record
    ) -> Listener:
        """The client's side of a generation."""
        usage = {"include_usage": request.include_usage, "continuous_usage": request.continuous_usage}
        view, server = render.View(caller.shown, **usage), self.settings.server
        if not request.stream:
            return Whole(generation, record, view, server)
        return Streaming(generation, record, view, server, progress=call.headers.get(PROGRESS) == "1")

    async def _answer_now(self, call: Call, request_id: str, record: Record) -> Reply:
        """End the thought of a running request of the same caller."""
        caller = self._caller(call, record)
        status = await self.generations.named(request_id, caller).answer_now()
        return _told(record, {"request_id": request_id, "status": status})

    async def _generations(self, call: Call, request_id: str | None, record: Record) -> Reply:
        """Those of the caller, or one of them; DELETE ends it, whether somebody listens or not."""
        caller = self._caller(call, record)
        if call.method == "GET" and request_id is None:
            found = self.generations.of(caller)
            return _told(record, {"object": "list", "data": [generations.shown(each) for each in found]})
        if request_id is None or call.method not in ("GET", "DELETE"):
            raise NotFound(f"{call.method} {call.path} does not exist; use GET, or DELETE with an id")
        generation = self.generations.named(request_id, caller)
        if call.method == "GET":
            return _told(record, generations.shown(generation))
        await self.generations.drop(generation, Ended("this generation was ended by DELETE"))
        return _told(record, {"object": "generation", "id": request_id, "deleted": True})

    def _caller(self, call: Call, record: Record) -> Caller:
        caller = self._callers.of(call.headers)
        record.caller(caller)
        return caller

    async def _models(self, call: Call, name: str, record: Record) -> Reply:
        """All models, or the one of this name."""
        self._caller(call, record)
        rows = await models.listed(self.settings, self.backends, call.headers, record.safe)
        if name and name not in rows:
            raise ModelNotFound(f"there is no model {name!r} here; GET /v1/models lists them", param="model")
        return _told(record, rows[name] if name else {"object": "list", "data": list(rows.values())})

    async def _pass_through(self, call: Call, record: Record) -> Reply:
        """Any other path of the API: unchanged, streamed, and with a row of its own."""
        caller = self._caller(call, record)
        backend = await self._backend_for(call.body, record)
        record.entry.backend, record.entry.engine = backend.name, backend.engine
        sent = headers.upstream(call.headers)
        for name in ("accept-encoding", "content-type"):
            if name in call.headers:
                sent[name] = call.headers[name]
        leave = await self._place(call, caller, backend, record)
        try:
            record.entry.attempts = 1
            await backend.give_way()
            answer = await backend.send(call.method, call.path.removeprefix("/v1"), sent, call.body, query=call.query)
            reply = await self._passed(answer, backend, record, leave)
        except BaseException:
            leave()
            raise
        return reply

    async def _place(self, call: Call, caller: Caller, backend: Backend, record: Record) -> Callable[[], None]:
        """A place at the backend for what lets it work; how it is given back."""
        if call.method != "POST" or _api_path(call) not in _WORK:
            return lambda: None
        self.budgets.check(caller.client)
        ticket = await enter(backend, caller)
        record.holds(backend.line, ticket)
        return partial(backend.line.leave, ticket)

    async def _passed(self, answer: Answer, backend: Backend, record: Record, leave: Callable[[], None]) -> Reply:
        record.answered(answer.status)
        told = [("x-proxy-backend", backend.name), *headers.returned(answer.headers, record.safe)]
        if answer.status >= 400:
            more, error = await refusals.refused_raw(answer, record)
            leave()
            return Reply(answer.status, told + more, error)
        kept = ("content-type", "cache-control", "content-encoding")
        told += [(name, answer.headers[name]) for name in kept if name in answer.headers]
        return Reply(answer.status, told, relay.Raw(answer, record, leave))

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

    def onlooker(self, headers: Mapping[str, str]) -> Onlooker:
        """Who asks for what was spent; see `Callers.onlooker`."""
        return self._callers.onlooker(headers)

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
        await self.generations.aclose(Stopping(STOPPING))
        if self._rereading is not None:
            self._rereading.cancel()
            await asyncio.gather(self._rereading, return_exceptions=True)
        await self.backends.aclose()
        await asyncio.to_thread(self.store.close)
        await asyncio.to_thread(self.books.close)


def _api_path(call: Call) -> str:
    """The path below `/v1`, decoded, so that no spelling of a chat request goes around the rules."""
    return unquote(call.path).removeprefix("/v1").rstrip("/")


def _told(record: Record, body: Json) -> Reply:
    """An answer of our own."""
    record.entry.status = 200
    record.finish("ok")
    return Reply(200, [headers.JSON], msgspec.json.encode(body))


def _failed(record: Record, error: ProxyError) -> Reply:
    record.failed(error)
    body = record.safe(error.body().decode()).encode()
    told = [("x-proxy-backend", name)] if (name := record.entry.backend) else []
    return Reply(error.status, [headers.JSON, *error.headers.items(), *told], body)


def _identified(reply: Reply, call: Call, record: Record) -> Reply:
    """Our id of the request, and the caller's own if it can stand in a header."""
    reply.headers.append(("x-request-id", record.entry.request_id))
    theirs = call.headers.get("x-request-id", "")
    if _REQUEST_ID.fullmatch(theirs):
        reply.headers.append(("x-client-request-id", theirs))
    return reply
