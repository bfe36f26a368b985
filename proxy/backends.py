"""The model servers: one pooled client each, what is known about them, and which of them serves a model."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
import httpx
from httpx_aiohttp import AiohttpTransport
from httpx_aiohttp.transport import AiohttpResponseStream

from proxy import config, probes
from proxy.dialects import DIALECTS, Dialect
from proxy.errors import ModelNotFound, UpstreamError, UpstreamTimeout, UpstreamUnreachable
from proxy.families import Families, Family
from proxy.jsons import JsonError, loads
from proxy.messages import Facts
from proxy.prices import Price

log = logging.getLogger(__name__)

PROBE_SECONDS = 3.0
"""A probe asks for small JSON bodies; a server that takes longer is asked again later."""
FIRST_PROBE_WAIT = 2.0
"""How long a request waits for the very first probe, so that it is not sent in the wrong dialect."""
_SMOOTHING = 0.3
_LEAST_TOKENS = 4

# Both kinds mean that no connection came about. httpx-aiohttp 0.2 gives the same httpx error for a connection that
# broke later, so the cause decides.
# A URL that no connection can be made to is a ValueError.
_NO_CONNECTION = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, httpx.InvalidURL, ValueError)


class _Received(httpx.AsyncByteStream):
    """A body that hands out all that was received, also when the connection broke: aiohttp 3.14 raises before that."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        content = self._response.content
        try:
            async for chunk in content.iter_any():
                yield chunk
        except aiohttp.ClientError:
            if rest := b"".join(content._buffer):
                yield rest
            raise

    async def aclose(self) -> None:
        self._response.close()


class _Transport(AiohttpTransport):
    """httpx on aiohttp's engine. Errors of a body come as aiohttp's own, which tell more than their httpx names."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await super().handle_async_request(request)
        assert isinstance(response.stream, AiohttpResponseStream)  # noqa: S101 - what the class above returns
        response.stream = _Received(response.stream._aiohttp_response)
        return response


class Answer:
    """A backend's response whose body is still to come. Whoever holds it must call `aclose`."""

    def __init__(self, response: httpx.Response, name: str) -> None:
        self._response = response
        self._name = name
        self.status = response.status_code
        self.headers: Mapping[str, str] = response.headers

    @property
    def kind(self) -> str:
        """The media type, without parameters."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    async def chunks(self) -> AsyncIterator[bytes]:
        """The decoded body as it arrives. Raises UpstreamError when it breaks."""
        with _told(self._name):
            async for chunk in self._response.aiter_bytes():
                yield chunk

    async def raw_chunks(self) -> AsyncIterator[bytes]:
        """The body as it stands on the wire, still compressed."""
        with _told(self._name):
            async for chunk in self._response.aiter_raw():
                yield chunk

    async def read(self) -> bytes:
        """The whole body, decoded."""
        with _told(self._name):
            return await self._response.aread()

    async def aclose(self) -> None:
        """Let the connection go; one whose body was not read to its end is closed, which stops the generation."""
        await self._response.aclose()


class Backend:
    """One model server."""

    def __init__(self, name: str, settings: config.Backend, slow_below: float) -> None:
        self.name = name
        self.settings = settings
        self._slow_below = slow_below
        self._clients: dict[bool, httpx.AsyncClient] = {}
        self._probe: asyncio.Task[None] | None = None
        self._found: probes.Found | None = None
        self._speeds: dict[str, float] = {}
        self.answered = False
        """The latest contact went well."""

    @property
    def engine(self) -> str:
        """The engine's name: configured, found, or the plain one until it is found."""
        if self.settings.engine != "auto":
            return self.settings.engine
        return self._found.engine if self._found else probes.hosted(self.settings.base) or "openai"

    @property
    def dialect(self) -> Dialect:
        return DIALECTS[self.engine]

    @property
    def models(self) -> tuple[str, ...]:
        """Names that are known to be served here."""
        if self.settings.models:
            return tuple(self.settings.models)
        return tuple(row["id"] for row in self._found.models) if self._found else ()

    def start_probe(self) -> asyncio.Task[None]:
        """Look again at what stands there, in the background."""
        if self._probe is None or self._probe.done():
            self._probe = asyncio.create_task(self._look(), name=f"probe {self.name}")
        return self._probe

    async def known(self) -> None:
        """Wait a little for the first probe; a backend that was found once is never waited for."""
        if self._found is None and self.needs_probe:
            await asyncio.wait({self.start_probe()}, timeout=FIRST_PROBE_WAIT)

    @property
    def needs_probe(self) -> bool:
        """A hosted service that is fully described is not asked: it may want a key that only clients have."""
        return self.settings.engine == "auto" or self.dialect.tells_properties or not self.settings.models

    async def _look(self) -> None:
        try:
            found = await probes.look(self._get, self.settings.base, self.settings.engine)
        except Exception:  # a probe is never a reason to fail
            log.exception("the probe of backend %s failed", self.name)
            return
        if found is not None:
            self._found = found
            log.info("backend %s: %s, context %s", self.name, found.engine, found.context_limit or "unknown")

    async def _get(self, url: str) -> tuple[dict[str, str], Any] | None:
        given = self.settings.authorization
        headers = {"authorization": given} if given else {}
        try:
            response = await self._http().get(url, headers=headers, timeout=PROBE_SECONDS)
            self.answered = True
            if response.status_code != httpx.codes.OK:
                return None
            return dict(response.headers), loads(response.content)
        except (httpx.HTTPError, httpx.InvalidURL, aiohttp.ClientError, OSError, *JsonError):
            return None

    def facts(self, upstream_model: str, family: Family, conversation_effort: str | None) -> Facts:
        """What the rules need to know for a request to this backend."""
        dialect, found = self.dialect, self._found
        limit = self.settings.context_limit or (found.context_limit if found else None)
        return Facts(
            backend=self.name,
            engine=self.engine,
            family=family,
            upstream_model=upstream_model,
            slow=self.slow(upstream_model),
            context_limit=limit,
            effort_option=dialect.effort_option(family.effort_option, found.template if found else None),
            budget_enforced=dialect.budget_field is not None,
            refuses_overflow=dialect.refuses_overflow,
            conversation_effort=conversation_effort,
        )

    def slow(self, upstream_model: str) -> bool:
        """Configured, or measured below `policy.slow_below_tokens_per_second`."""
        if isinstance(self.settings.slow, bool):
            return self.settings.slow
        speed = self._speeds.get(upstream_model)
        return speed is not None and speed < self._slow_below

    def note_speed(self, upstream_model: str, tokens_per_second: float, tokens: int) -> None:
        """Take a measured decode speed into the record; a handful of tokens is too few to judge by."""
        if tokens < _LEAST_TOKENS or tokens_per_second <= 0:
            return
        known = self._speeds.get(upstream_model, tokens_per_second)
        self._speeds[upstream_model] = known + _SMOOTHING * (tokens_per_second - known)

    def remember_speed(self, upstream_model: str, tokens_per_second: float) -> None:
        """A speed from an earlier run."""
        self._speeds.setdefault(upstream_model, tokens_per_second)

    async def send(self, method: str, path: str, headers: Mapping[str, str], body: bytes, *, query: str = "") -> Answer:
        """Send a request and return when the headers are there. `path` begins below `/v1`.

        Raises UpstreamUnreachable when no connection was made, UpstreamError or UpstreamTimeout when it broke later.
        Nothing is ever sent twice.
        """
        client = self._http()
        url = f"{self.settings.base}{path}" + (f"?{query}" if query else "")
        sent = {**headers, "authorization": self.settings.authorization or headers.get("authorization", "")}
        raw = [(name.encode(), value.encode("latin-1")) for name, value in sent.items() if value]
        with _told(self.name):
            response = await client.send(client.build_request(method, url, headers=raw, content=body), stream=True)
        self.answered = True
        if not 200 <= response.status_code <= 599:
            await response.aclose()
            raise UpstreamError(f"backend {self.name} answered with the status {response.status_code}, which is none")
        return Answer(response, self.name)

    def _http(self) -> httpx.AsyncClient:
        """The client of this backend: with a pool, or with a new connection each time where the engine needs it."""
        pooled = self.dialect.reuses_connections
        if pooled not in self._clients:
            settings = self.settings
            session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, force_close=not pooled),
                skip_auto_headers={"accept", "accept-encoding", "user-agent", "content-type"},
            )
            self._clients[pooled] = httpx.AsyncClient(
                transport=_Transport(client=session),
                timeout=httpx.Timeout(settings.read_timeout or None, connect=settings.connect_timeout, pool=None),
            )
        return self._clients[pooled]

    async def aclose(self) -> None:
        if self._probe is not None:
            self._probe.cancel()
            await asyncio.gather(self._probe, return_exceptions=True)
        for client in self._clients.values():
            await client.aclose()


@contextlib.contextmanager
def _told(name: str) -> Any:
    """Network errors as ours, by whether a connection was made."""
    try:
        yield
    except (httpx.HTTPError, httpx.InvalidURL, aiohttp.ClientError, OSError, ValueError) as error:
        cause = error.__cause__ if isinstance(error, httpx.HTTPError) else error
        if isinstance(cause, _NO_CONNECTION):
            reason = getattr(cause, "strerror", None) or str(error) or "no answer within `connect_timeout`"
            text = f"backend {name} cannot be reached: {reason}; is it running, and is its `url` right?"
            raise UpstreamUnreachable(text) from error
        if isinstance(error, httpx.TimeoutException | TimeoutError) and isinstance(cause, TimeoutError):
            raise UpstreamTimeout(f"backend {name} said nothing for longer than its `read_timeout`") from error
        text = f"the connection to backend {name} broke: {type(cause or error).__name__}"
        raise UpstreamError(text) from error


@dataclass(frozen=True, slots=True)
class Route:
    """Where a request for a model goes."""

    backend: Backend
    upstream_model: str
    family: Family
    price: Price | None


class Backends:
    """All configured backends."""

    def __init__(self, settings: config.Settings, families: Families) -> None:
        self._settings = settings
        self._families = families
        slow_below = settings.policy.slow_below_tokens_per_second
        self.by_name = {name: Backend(name, table, slow_below) for name, table in settings.backends.items()}

    def start(self, speeds: Mapping[tuple[str, str], float]) -> None:
        """Begin to find out what stands behind each, with the speeds of earlier runs."""
        for (name, model), speed in speeds.items():
            if name in self.by_name:
                self.by_name[name].remember_speed(model, speed)
        for backend in self.by_name.values():
            if backend.needs_probe:
                backend.start_probe()

    @property
    def first(self) -> Backend:
        return next(iter(self.by_name.values()))

    def route(self, model: str) -> Route:
        """The backend for a model, by alias, by the names that backends serve, or the only one that takes any name.

        Raises ModelNotFound that lists the known names.
        """
        alias = self._settings.models.get(model)
        upstream = (alias.upstream if alias else None) or model
        name = alias.backend if alias else None
        backend = self.by_name[name] if name else self._serving(upstream, model)
        family = (alias.family if alias else None) or backend.settings.family
        found = self._family(upstream, backend) if family == "auto" else self._families.named(family)
        return Route(backend, upstream, found, alias.price if alias else None)

    def _family(self, model: str, backend: Backend) -> Family:
        """By the model's name; a server of one model answers to any name, so there its own name decides."""
        served = backend.models
        return self._families.for_model(served[0] if len(served) == 1 else model)

    def _serving(self, upstream: str, asked: str) -> Backend:
        everyone = list(self.by_name.values())
        for backend in everyone:
            if upstream in backend.models:
                return backend
        open_to_any = [backend for backend in everyone if not backend.settings.models]
        if len(open_to_any) == 1:
            return open_to_any[0]
        known = sorted({*self._settings.models, *(name for backend in everyone for name in backend.models)})
        raise ModelNotFound(
            f"no backend serves the model {asked!r}; known: {', '.join(known) or 'none yet'}", param="model"
        )

    async def aclose(self) -> None:
        await asyncio.gather(*(backend.aclose() for backend in self.by_name.values()))
