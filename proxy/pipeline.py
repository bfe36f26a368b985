"""From a call to a reply. `Pipeline._chat` is the product in one function; everything else serves it."""

from __future__ import annotations

import asyncio
import logging
import os
import re
from functools import partial
from urllib.parse import unquote

import msgspec

from proxy import (
    config,
    families,
    headers,
    measuring,
    models,
    normalise,
    policy,
    refusals,
    relay,
    render,
    shape,
    tokens,
    window,
)
from proxy.backends import Backend, Backends
from proxy.callers import Caller, Callers
from proxy.cut import Cut
from proxy.doors import Call, Reply
from proxy.errors import InternalError, ModelNotFound, NotFound, ProxyError, Stopping
from proxy.incoming import Again, Incoming, Second, streamed
from proxy.live import Live
from proxy.messages import Plan
from proxy.places import hide_password, sqlite_path
from proxy.planning import Planned, Planner
from proxy.record import Record
from proxy.store import Store, open_store
from proxy.wire import Answer

log = logging.getLogger(__name__)

_CHAT = "/chat/completions"
_ANSWER_NOW = re.compile(rf"{_CHAT}/([^/]+)/answer-now")
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
STOPPING = "the proxy is shutting down; send the request again later"


class Pipeline:
    """The neutral core behind both doors. `start` and all that follows need a running event loop; `aclose` ends it."""

    def __init__(self, settings: config.Settings, store: Store) -> None:
        self.settings = settings
        self.store = store
        self.backends = Backends(settings, families.load(settings.families))
        self._callers = Callers(settings, store.salt)
        self._planner = Planner(settings, store, self.backends)
        self.running: dict[str, Live] = {}
        """The streamed answers that are under way, by the id of their request."""
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
        if self.settings.policy.default_effort == "auto":
            for backend in self.backends.by_name.values():
                backend.measuring = asyncio.create_task(measuring.measured(backend), name=f"speed of {backend.name}")
        if self.settings.policy.completion_tokens_mode == "visible":  # who counts tokens had better not wait then
            asyncio.get_running_loop().run_in_executor(None, tokens.count, "")

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
        kind = "chat" if _api_path(call) == _CHAT else "passthrough"
        return Record(self.store, call, "req_" + os.urandom(12).hex(), kind, self._secrets)

    async def _routed(self, call: Call, record: Record) -> Reply:
        path = _api_path(call)
        if path == _CHAT:
            if call.method != "POST":
                raise NotFound(f"{call.method} {call.path} does not exist; use POST")
            return await self._chat(call, record)
        if call.method == "POST" and (found := _ANSWER_NOW.fullmatch(path)):
            return await self._answer_now(call, found[1], record)
        if call.method == "GET" and (path == "/models" or path.startswith("/models/")):
            return await self._models(call, path.removeprefix("/models").strip("/"), record)
        if call.path.startswith("/v1/") and not {".", ".."} & set(path.split("/")):
            return await self._pass_through(call, record)
        raise NotFound(f"there is nothing at {call.path}; the API is at /v1")

    async def _chat(self, call: Call, record: Record) -> Reply:
        """Read the request; plan it; say it in the backend's words; send it; pass on the answer."""
        caller = self._caller(call, record)
        request = normalise.read(call.body)
        record.entry.model, record.entry.stream = request.model, request.stream
        made = await self._planner.plan(request, caller, call.headers)
        record.planned(made)
        window.check(made.plan)
        answer = await self._sent(call, made.plan, made.route.backend)
        if made.plan.restored and await refusals.overflows(answer):
            # Nothing was generated, and the client's own messages may fit: only what we added is too much.
            size, limit = window.size(made.plan), made.plan.facts.context_limit
            made.route.backend.learned.overflowed(made.route.upstream_model, size, limit)
            made = self._planner.decided(made, bare=True)
            record.planned(made, attempts=2)
            answer = await self._sent(call, made.plan, made.route.backend)

        record.answered(answer.status)
        told = headers.returned(answer.headers, record.safe)
        if answer.status >= 400:
            more, error = await refusals.refused(answer, record)
            return Reply(answer.status, told + headers.of_plan(made.plan) + more, error)
        usage = {"include_usage": request.include_usage, "continuous_usage": request.continuous_usage}
        view = render.View(caller.shown, **usage)
        if not made.plan.streamed:
            again = self._again(call, made, record)
            event = await relay.whole(answer, made.route.backend.dialect, self._hearing(made), record, again=again)
        else:
            incoming = await self._incoming(call, caller, made, answer, record)
            if request.stream:
                told += headers.of_plan(made.plan) + relay.STREAM_HEADERS
                return Reply(answer.status, told, relay.Stream(incoming, view, record))
            event = await relay.gathered(incoming, record)
        told += headers.of_plan(record.plan or made.plan)
        more = headers.of_answer(record.entry.outcome, record.cost())
        return Reply(answer.status, [*told, relay.JSON, *more], view.whole(event))

    def _hearing(self, made: Planned) -> shape.Shaper:
        """What makes the answer to this plan what the engine should have sent."""
        plan, settings = made.plan, self.settings
        # A filler is listened for where this request carries one that the model may echo.
        filled = any(decision.rule == "filler" for decision in plan.decisions)
        return shape.Shaper(
            settings.thinking,
            made.route.family,
            filler=settings.history.filler_text if filled else "",
            new_id=_call_id,
            cut=partial(Cut, plan.stops, most_tokens=plan.visible_tokens, keeps_stop=plan.keeps_stop)
            if plan.cuts
            else None,
            choices=plan.request.choices,
        )

    async def _incoming(self, call: Call, caller: Caller, made: Planned, answer: Answer, record: Record) -> Incoming:
        """The answer as it comes, and as one whose thought can be ended."""
        backend, seconds = made.route.backend, self.settings.policy.thinking_seconds
        stream = await streamed(answer, backend.dialect)
        live = Live(self.running, made, record, caller=caller, headers=call.headers, seconds=seconds)
        again = self._again(call, made, record)
        return Incoming(stream, backend.dialect, self._hearing(made), record, live=live, again=again)

    def _again(self, call: Call, made: Planned, record: Record) -> Again | None:
        """How one more answer is asked for where this one is lost to thinking; None where none shall be."""
        plan = policy.rescued(made.plan, made.terms)
        if plan is None:
            return None

        async def again() -> Second | None:
            record.entry.attempts += 1
            try:
                answer = await self._sent(call, plan, made.route.backend)
            except ProxyError as error:
                log.warning("request %s: there is no second answer: %s", record.entry.request_id, error.message)
                return None
            if answer.status >= 400:
                reason = refusals.error_fields(await answer.read(), answer.status)[0]
                log.warning("request %s: there is no second answer: %s", record.entry.request_id, record.safe(reason))
                return None
            return Second(answer, plan)

        return again

    async def _sent(self, call: Call, plan: Plan, backend: Backend) -> Answer:
        body = backend.dialect.encode(plan)
        await backend.give_way()
        return await backend.send("POST", _CHAT, headers.upstream(call.headers), body, query=call.query)

    async def _answer_now(self, call: Call, request_id: str, record: Record) -> Reply:
        """End the thought of a running request of the same caller."""
        caller = self._caller(call, record)
        live = self.running.get(request_id)
        if live is None or not live.is_of(caller):
            raise NotFound(f"no streamed answer {request_id!r} of yours runs; the id is in its header x-request-id")
        status = await live.answer_now()
        record.entry.status = 200
        record.finish("ok")
        return Reply(200, [relay.JSON], msgspec.json.encode({"request_id": request_id, "status": status}))

    def _caller(self, call: Call, record: Record) -> Caller:
        caller = self._callers.of(call.headers)
        record.caller(caller)
        return caller

    async def _models(self, call: Call, name: str, record: Record) -> Reply:
        """All models, or the one of this name."""
        self._caller(call, record)
        rows = await models.listed(self.settings, self.backends, call.headers, record.safe)
        record.entry.status = 200
        if name and name not in rows:
            raise ModelNotFound(f"there is no model {name!r} here; GET /v1/models lists them", param="model")
        record.finish("ok")
        found = rows[name] if name else {"object": "list", "data": list(rows.values())}
        return Reply(200, [relay.JSON], msgspec.json.encode(found))

    async def _pass_through(self, call: Call, record: Record) -> Reply:
        """Any other path of the API: unchanged, streamed, and with a row of its own."""
        self._caller(call, record)
        backend = await self._backend_for(call.body, record)
        record.entry.backend, record.entry.engine = backend.name, backend.engine
        sent = headers.upstream(call.headers)
        for name in ("accept-encoding", "content-type"):
            if name in call.headers:
                sent[name] = call.headers[name]
        record.entry.attempts = 1
        await backend.give_way()
        answer = await backend.send(call.method, call.path.removeprefix("/v1"), sent, call.body, query=call.query)
        record.answered(answer.status)
        told = [("x-proxy-backend", backend.name), *headers.returned(answer.headers, record.safe)]
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


def _call_id() -> str:
    return "call_" + os.urandom(12).hex()
