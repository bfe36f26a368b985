"""The library door: transports for the HTTP client inside an SDK, running the same pipeline in this process.

Each serves both `httpx` and `httpx2`: it answers with the response class of the library that the request is of.
"""

from __future__ import annotations

import asyncio
import importlib
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

from proxy import config
from proxy.doors import Body, Call, Reply
from proxy.pipeline import Pipeline

T = TypeVar("T")


class _Door:
    """What both transports are: settings, and a pipeline from the first request on."""

    def __init__(
        self,
        config: config.Settings | None = None,
        *,
        backend: str | None = None,
        engine: str = "auto",
        family: str = "auto",
    ) -> None:
        if (config is None) == (backend is None):
            raise ValueError("give either `config` or `backend`")
        self._settings = config or _settings_for(str(backend), engine, family)
        self._pipeline: Pipeline | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._earlier: list[dict[str, Any]] = []

    @classmethod
    def from_config(cls, path: str | Path) -> Self:
        """A transport with the settings of a file. Raises ConfigError."""
        return cls(config.load(Path(path)))

    @property
    def ledger(self) -> list[dict[str, Any]]:
        """The ledger rows of this process, oldest first, under their public names, also after closing."""
        live = self._pipeline.store.entries(own=True) if self._pipeline else []
        return [*self._earlier, *live]

    async def _handle(self, request: Any) -> Any:
        """Answer a request of either library with a response of the same library."""
        library = _library_of(request)
        call = Call(
            method=request.method,
            path=self._path(request.url.raw_path.partition(b"?")[0].decode("ascii")),
            headers={name.decode("latin-1").lower(): value.decode("latin-1") for name, value in request.headers.raw},
            body=await request.aread(),
            query=request.url.query.decode("ascii"),
        )
        seconds = request.extensions.get("timeout", {}).get("read")
        try:
            async with asyncio.timeout(seconds):
                reply = await self._open().handle(call)
        except TimeoutError:
            raise library.ReadTimeout(f"no answer within {seconds} s", request=request) from None
        return _response(library, reply, request, seconds)

    def _path(self, path: str) -> str:
        """The path at the server: an SDK's base URL may be that of a backend with its API elsewhere than at `/v1`."""
        bases = {urlsplit(backend.url).path for backend in self._settings.backends.values()}
        base = next((base for base in sorted(bases, key=len, reverse=True) if path.startswith(f"{base}/")), "/v1")
        return f"/v1{path.removeprefix(base)}" if path.startswith(f"{base}/") else path

    def _open(self) -> Pipeline:
        if self._pipeline is None:
            self._loop = asyncio.get_running_loop()
            self._pipeline = Pipeline.open(self._settings)
            self._pipeline.start()
        elif self._loop is not asyncio.get_running_loop():
            raise RuntimeError("this transport belongs to another event loop: make one in each `asyncio.run`")
        return self._pipeline

    async def _close(self) -> None:
        """Close the connections and write what is queued."""
        if self._pipeline is not None:
            pipeline, self._pipeline = self._pipeline, None
            self._earlier += await asyncio.to_thread(pipeline.store.entries, own=True)
            await pipeline.aclose()


class AsyncTransport(_Door):
    """Give it to `httpx.AsyncClient(transport=…)` or `httpx2.AsyncClient(transport=…)`.

    Either a whole configuration (`config`) or one backend's URL. Rows and turns go to the store that the configuration
    names; with `backend` alone they stay in memory. Errors come back as HTTP responses, so that an SDK raises its own.
    """

    async def handle_async_request(self, request: Any) -> Any:
        """Answer a request of either library with a response of the same library."""
        return await self._handle(request)

    async def aclose(self) -> None:
        """Close the connections and write what is queued."""
        await self._close()

    async def __aenter__(self) -> AsyncTransport:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()


class Transport(_Door):
    """The same for `httpx.Client(transport=…)` or `httpx2.Client(transport=…)`, and so for the SDK's `OpenAI`.

    The pipeline runs in a thread of its own; requests may come from several threads at a time.
    """

    _thread: threading.Thread | None = None
    _work: asyncio.AbstractEventLoop | None = None
    _starting = threading.Lock()

    def handle_request(self, request: Any) -> Any:
        """Answer a request of either library with a response of the same library."""
        library = _library_of(request)
        request.read()
        response = self._run(self._handle(request))
        if not isinstance(response.stream, library.SyncByteStream):
            response.stream = _pulled_class(library)(response.stream, self._run)
        return response

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        doing = asyncio.run_coroutine_threadsafe(work, self._running())
        try:
            return doing.result()
        except BaseException:  # Ctrl-C, for example: nobody waits any more
            doing.cancel()
            raise

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._starting:
            if self._work is None:
                self._work = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._work.run_forever, name="reasoning-proxy", daemon=True)
                self._thread.start()
            return self._work

    def close(self) -> None:
        """Close the connections and write what is queued."""
        with self._starting:
            loop, self._work = self._work, None
        if loop is None or self._thread is None:
            return
        asyncio.run_coroutine_threadsafe(self._close(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join()
        loop.close()

    def __enter__(self) -> Transport:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def _library_of(request: Any) -> Any:
    return importlib.import_module(type(request).__module__.partition(".")[0])


def _pulled_class(library: Any) -> Any:
    class _Pulled(library.SyncByteStream):  # type: ignore[misc]  # a base that is only known at run time
        """A streamed body of another thread's event loop."""

        def __init__(self, stream: Any, run: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
            self._stream = stream
            self._pieces = aiter(stream)
            self._run = run

        def __iter__(self) -> Iterator[bytes]:
            while (piece := self._run(self._next())) is not None:
                yield piece

        async def _next(self) -> bytes | None:
            return await anext(self._pieces, None)

        def close(self) -> None:
            self._run(self._stream.aclose())

    return _Pulled


def _settings_for(backend: str, engine: str, family: str) -> config.Settings:
    return config.load(
        overrides={
            "backends": {"default": {"url": backend, "engine": engine, "family": family}},
            "store": {"url": "memory"},
        },
        environ={},
        read_file=False,
    )


def _response(library: Any, reply: Reply, request: Any, seconds: float | None) -> Any:
    if isinstance(reply.body, bytes):
        return library.Response(reply.status, headers=reply.headers, content=reply.body, request=request)
    stream = _stream_class(library)(reply.body, request, seconds)
    return library.Response(reply.status, headers=reply.headers, stream=stream, request=request)


def _stream_class(library: Any) -> Any:
    """Both libraries insist on their own base class for a streamed body."""

    class _Stream(library.AsyncByteStream):  # type: ignore[misc]  # a base that is only known at run time
        def __init__(self, body: Body, request: Any, seconds: float | None) -> None:
            self._body = body
            self._request = request
            self._seconds = seconds
            self._pieces: asyncio.Queue[bytes | None] = asyncio.Queue(maxsize=16)
            self._feeding: asyncio.Task[None] | None = None

        async def __aiter__(self) -> AsyncIterator[bytes]:
            self._feeding = asyncio.create_task(self._feed(), name="library body")
            while True:
                try:
                    async with asyncio.timeout(self._seconds):
                        piece = await self._pieces.get()
                except TimeoutError:
                    raise library.ReadTimeout(f"silent for {self._seconds} s", request=self._request) from None
                if piece is None:
                    await self._feeding
                    self._body.delivered()
                    return
                yield piece

        async def _feed(self) -> None:
            try:
                await self._body.feed(self._pieces.put)
            finally:
                await self._pieces.put(None)

        async def aclose(self) -> None:
            if self._feeding is not None:
                self._feeding.cancel()
            while not self._pieces.empty():  # whoever has another one must not wait for ever
                self._pieces.get_nowait()
            await self._body.aclose()

    return _Stream
