"""The HTTP door: an ASGI application around the pipeline, and the process that serves it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any

import uvicorn
from fastapi import FastAPI
from fastapi.responses import JSONResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from proxy import __version__, config
from proxy.errors import BodyTooLarge
from proxy.messages import Call, Reply
from proxy.pipeline import Pipeline

log = logging.getLogger(__name__)

_METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"]


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
            call = replace(call, body=await self._body(scope, receive))
        except BodyTooLarge as error:
            await _send(send, self._pipeline.refuse(call, error))
            return
        except _ClientLeft:
            return
        reply = await _unless_gone(self._pipeline.handle(call), receive)
        if reply is not None:
            await _deliver(reply, receive, send)

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


async def _unless_gone(work: Any, receive: Receive) -> Any:
    """The result of `work`; None when the client leaves first, and then the work is cancelled."""
    doing = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait({doing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        return doing.result() if doing.done() else None
    finally:
        for task in (doing, leaving):
            task.cancel()
        await asyncio.gather(doing, leaving, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _deliver(reply: Reply, receive: Receive, send: Send) -> None:
    """Send a reply. A streamed body is closed on every way out, which ends the backend's work when the client left."""
    if isinstance(reply.body, bytes):
        await _send(send, reply)
        return
    try:
        await _unless_gone(_send(send, reply), receive)
    finally:
        await reply.body.aclose()


async def _send(send: Send, reply: Reply) -> None:
    headers = [(name.encode("latin-1"), value.encode("latin-1", "replace")) for name, value in reply.headers]
    if isinstance(reply.body, bytes):
        headers.append((b"content-length", b"%d" % len(reply.body)))
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        await send({"type": "http.response.body", "body": reply.body})
        return
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    async for piece in reply.body:
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


def create_app(pipeline: Pipeline) -> FastAPI:
    """The ASGI application. Its lifespan starts the pipeline and ends it."""

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        pipeline.start()
        for name, backend in pipeline.settings.backends.items():
            log.info("backend %s is at %s", name, backend.shown_url)
        try:
            yield
        finally:
            await pipeline.aclose()

    app = FastAPI(title="reasoning-proxy", version=__version__, lifespan=lifespan, openapi_url=None)

    @app.get("/health")
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

    app.router.routes.append(Route("/{path:path}", ApiDoor(pipeline), methods=_METHODS))
    return app


def serve(settings: config.Settings) -> None:
    """Run the server until SIGTERM or SIGINT; open streams get `server.drain_seconds`."""
    logging.basicConfig(
        level=settings.store.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    for noisy in ("httpx", "asyncio", "aiohttp"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    server = settings.server
    wanted = uvicorn.Config(
        create_app(Pipeline.open(settings)),
        host=server.host,
        port=server.port,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=math.ceil(server.drain_seconds),
    )
    try:
        _Server(wanted).run()
    except SystemExit:
        raise SystemExit(1) from None  # uvicorn has said why; its own codes are not ours


class _Server(uvicorn.Server):
    """Ends with exit code 0 after a signal: uvicorn raises it again, which looks like a crash to a supervisor."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        with super().capture_signals():
            yield
            self._captured_signals.clear()
