"""The HTTP door: an ASGI application around the pipeline, and the process that serves it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import math
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Iterator
from dataclasses import replace
from typing import TypeVar

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from proxy import __version__, config, dashboard
from proxy.doors import Body, Call, Gone, Reply
from proxy.errors import BodyTooLarge, Forbidden, NotFound, ProxyError, Stopping, Unauthorized
from proxy.pipeline import STOPPING, Pipeline

log = logging.getLogger(__name__)

_OFFERS_H2C = re.compile(rb"\r\nupgrade:[ \t]*h2c[ \t]*(?=\r\n|$)", re.IGNORECASE)
_METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"]


_DRAIN_LOOK = 0.5
"""Seconds after which a second signal is seen while requests are waited for."""
LAST_WORDS_SECONDS = 5
"""How long the last event of a stream may take to leave after the drain time."""

T = TypeVar("T")


class _ClientLeft(Exception):
    """The client closed its connection before its request was complete."""


class ApiDoor:
    """Every path of the API, as a bare ASGI application: bytes come in, and the reply leaves as it is made."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._limit = pipeline.settings.server.max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = Call(
            method=scope["method"],
            path=scope.get("raw_path", scope["path"].encode()).decode("latin-1"),
            headers={name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]},
            query=scope["query_string"].decode("latin-1"),
        )
        try:
            body = await self._unless_ended(self._body(scope, receive))
            if body is None:
                raise Stopping(STOPPING)
        except _ClientLeft:
            return
        except ProxyError as error:
            await self._deliver(self._pipeline.refuse(call, error), receive, send)
            return
        reply = await self._unless_ended(self._pipeline.handle(replace(call, body=body)), _gone(receive))
        if reply is not None:
            await self._deliver(reply, receive, send)

    async def _deliver(self, reply: Reply, receive: Receive, send: Send) -> None:
        """Send a reply. A streamed body is closed on every way out, which ends the backend's work."""
        body = reply.body
        if isinstance(body, bytes):
            await _send(send, reply, body)
            return
        left = asyncio.ensure_future(_gone(receive))
        try:
            await self._unless_ended(_stream(send, reply, body, left), left)
            if self._pipeline.stopping.is_set() and (last := body.interrupt(Stopping(STOPPING))):
                await send({"type": "http.response.body", "body": last})
        finally:
            await body.aclose()

    async def _unless_ended(self, work: Awaitable[T], *ends: Awaitable[None]) -> T | None:
        """The result of `work`. When one of `ends` comes before, or the proxy stops, it is cancelled, and what it then
        still returns is the result, None where that is nothing."""
        doing = asyncio.ensure_future(work)
        watching = [*map(asyncio.ensure_future, ends), asyncio.ensure_future(self._pipeline.stopping.wait())]
        try:
            await asyncio.wait({doing, *watching}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (doing, *watching):
                task.cancel()
            await asyncio.gather(doing, *watching, return_exceptions=True)
        return None if doing.cancelled() else doing.result()

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        declared = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        if declared.isdigit() and int(declared) > self._limit:
            raise self._too_large()
        pieces, size = [], 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise _ClientLeft
            pieces.append(message.get("body", b""))
            size += len(pieces[-1])
            if size > self._limit:
                raise self._too_large()
            if not message.get("more_body"):
                return b"".join(pieces)

    def _too_large(self) -> BodyTooLarge:
        megabytes = self._limit // 1_048_576
        return BodyTooLarge(f"the request body is larger than {megabytes} MB; raise `server.max_body_mb` to allow it")


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _start(send: Send, reply: Reply, *more: tuple[bytes, bytes]) -> None:
    headers = [(name.encode("latin-1"), value.encode("latin-1", "replace")) for name, value in reply.headers]
    await send({"type": "http.response.start", "status": reply.status, "headers": [*headers, *more]})


async def _send(send: Send, reply: Reply, body: bytes) -> None:
    await _start(send, reply, (b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.body", "body": body})


async def _stream(send: Send, reply: Reply, body: Body, left: asyncio.Future[None]) -> None:
    """Send a body as it comes, to a client that has not `left`: sending to nobody is no error."""
    await _start(send, reply)

    async def write(piece: bytes) -> None:
        await send({"type": "http.response.body", "body": piece, "more_body": True})
        if left.done():
            raise Gone

    try:
        await body.feed(write)
    except ProxyError:
        return  # a body that passes through broke: without its end the client sees that it is not complete
    await send({"type": "http.response.body", "body": b""})
    if not left.done():
        body.delivered()


def create_app(pipeline: Pipeline) -> FastAPI:
    """The ASGI application. Its lifespan starts the pipeline and ends it."""

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        pipeline.start()
        for name, backend in pipeline.settings.backends.items():
            log.info("backend %s is at %s", name, backend.shown_url)
        for hint in config.hints(pipeline.settings):
            log.warning("%s", hint)
        try:
            yield
        finally:
            await pipeline.aclose()

    app = FastAPI(title="reasoning-proxy", version=__version__, lifespan=lifespan, openapi_url=None)

    @app.exception_handler(ProxyError)
    async def refused(_: Request, error: ProxyError) -> Response:
        headers = dict(error.headers)
        if isinstance(error, Unauthorized):
            headers["www-authenticate"] = 'Basic realm="reasoning-proxy", charset="UTF-8"'
        return Response(error.body(), error.status, headers, "application/json")

    @app.exception_handler(405)
    async def no_such_method(request: Request, _: Exception) -> Response:
        error = NotFound(f"{request.method} {request.url.path} does not exist")
        return Response(error.body(), 405, error.headers, "application/json")

    @app.api_route("/health", methods=["GET", "HEAD"])
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/ready")
    async def ready() -> JSONResponse:
        problem = await pipeline.ready()
        status = "ready" if problem is None else problem
        return JSONResponse({"status": status}, status_code=200 if problem is None else 503)

    @app.get("/version")
    async def version() -> dict[str, str]:
        return {"version": __version__}

    @app.get("/metrics")
    async def metrics(request: Request) -> Response:
        if pipeline.onlooker(request.headers).client is not None:
            raise Forbidden('metrics are of all clients; they are shown to those with `spend = "all"`')
        body, kind = pipeline.telemetry.exposition(request.headers.get("accept", ""))
        return Response(body, media_type=kind)

    if origins := pipeline.settings.server.cors_origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=origins, allow_methods=["*"], allow_headers=["*"], expose_headers=["*"]
        )
    app.router.routes += dashboard.routes(pipeline)
    app.router.routes.append(Route("/{path:path}", ApiDoor(pipeline), methods=_METHODS))
    return app


class _Protocol(HttpToolsProtocol):
    """Stays at HTTP/1.1 where a client offers HTTP/2.

    Java's HttpClient does so on every plain connection (`Upgrade: h2c`), and the parser reads no body behind an upgrade
    that uvicorn then refuses.
    """

    def data_received(self, data: bytes) -> None:
        head, end, rest = data.partition(b"\r\n\r\n")
        if end and _OFFERS_H2C.search(head):
            data = _OFFERS_H2C.sub(b"\r\nx-upgrade: h2c", head) + end + rest
        super().data_received(data)


class _Formatter(logging.Formatter):
    """One line a message: control characters in what clients wrote would forge lines or steer a terminal."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = "".join(char if char.isprintable() else repr(char)[1:-1] for char in record.message)
        return super().formatMessage(record)


class _Server(uvicorn.Server):
    """Ends with exit code 0 after a signal: uvicorn raises it again, which looks like a crash to a supervisor.

    uvicorn waits for open streams and then cancels them. Before that they get an error as their last event.
    """

    def __init__(self, wanted: uvicorn.Config, pipeline: Pipeline) -> None:
        super().__init__(wanted)
        self._pipeline = pipeline

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        seconds = self._pipeline.settings.server.drain_seconds
        self._pipeline.draining = True
        loop = asyncio.get_running_loop()
        stopping = loop.call_later(seconds, self._pipeline.stopping.set)
        until = loop.time() + seconds
        # uvicorn closes its door first of all, and nobody could read in `/ready` that requests had better go elsewhere.
        while self.server_state.tasks and loop.time() < until and not self.force_exit:
            await asyncio.wait(self.server_state.tasks, timeout=_DRAIN_LOOK)
        await super().shutdown(sockets)
        stopping.cancel()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        with super().capture_signals():
            yield
            self._captured_signals.clear()


def server_of(pipeline: Pipeline) -> uvicorn.Server:
    """The server for a pipeline, at the address of its settings; running it ends the pipeline too."""
    settings = pipeline.settings.server
    return _Server(
        uvicorn.Config(
            create_app(pipeline),
            host=settings.host,
            port=settings.port,
            http=_Protocol,
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=math.ceil(settings.drain_seconds) + LAST_WORDS_SECONDS,
        ),
        pipeline,
    )


def serve(settings: config.Settings) -> None:
    """Run the server until SIGTERM or SIGINT; open streams get `server.drain_seconds`."""
    talk = logging.StreamHandler()
    talk.setFormatter(_Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=settings.store.log_level.upper(), handlers=[talk])
    for noisy in ("httpx", "asyncio", "aiohttp"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    try:
        server = server_of(Pipeline.open(settings))
        gc.collect()
        gc.freeze()  # what is there now stays: to walk it in each full collection holds up all streams
        server.run()
    except SystemExit:
        raise SystemExit(1) from None  # uvicorn has said why; its own codes are not ours
