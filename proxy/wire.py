"""The way to one model server: a pooled HTTP client that sends once and names what went wrong."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import aiohttp
import httpx

from proxy import config, connector
from proxy.errors import UpstreamError, UpstreamTimeout, UpstreamUnreachable
from proxy.jsons import JsonError, dumps, loads

# No connection came about. httpx-aiohttp 0.2 gives the same httpx error for one that broke later, so the cause decides.
_NO_CONNECTION = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, httpx.InvalidURL, aiohttp.InvalidURL)
_FAILURES = (httpx.HTTPError, httpx.InvalidURL, aiohttp.ClientError, OSError, ValueError)


_AT_ONCE = 1_048_576
"""Bytes of a body that are written in one go; a larger one would hold up all other requests meanwhile."""
_SLICE = 262_144
_MOST_READ = 64 * 1_048_576
"""Bytes of a whole answer, unpacked; as many as of one event of a stream."""


_NOTHING = httpx.ByteStream(b"")


async def _slices(body: bytes) -> AsyncIterator[bytes]:
    for at in range(0, len(body), _SLICE):
        yield body[at : at + _SLICE]


class Answer:
    """A backend's response whose body is still to come. Whoever holds it must call `aclose`."""

    def __init__(self, response: httpx.Response, name: str) -> None:
        self._response = response
        self._name = name
        self._body: bytes | None = None
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
        """The whole body, decoded. The answer is closed after it, however that ends.

        Raises UpstreamError when it breaks, or is larger than any answer.
        """
        if self._body is not None:
            return self._body
        pieces, size = [], 0
        try:
            async for piece in self.chunks():
                pieces.append(piece)
                size += len(piece)
                if size > _MOST_READ:
                    raise UpstreamError(f"backend {self._name} sent an answer of more than {_MOST_READ >> 20} MB")
        finally:
            await self.aclose()
        self._body = b"".join(pieces)
        return self._body

    async def aclose(self) -> None:
        """Let the connection go; one whose body was not read to its end is closed, which stops the generation."""
        await self._response.aclose()
        self._response.stream = _NOTHING  # httpx's own holds the response, and all that stands in it


class Wire:
    """The HTTP clients of one backend: one with a pool of connections, and one that makes a new one each time."""

    def __init__(self, name: str, settings: config.Backend) -> None:
        self._name = name
        self._settings = settings
        self._clients: dict[bool, httpx.AsyncClient] = {}

    async def send(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes, *, query: str, pooled: bool
    ) -> Answer:
        """Send a request and return when the headers of the answer are there. `path` begins below `/v1`.

        Raises UpstreamUnreachable when no connection was made, UpstreamError or UpstreamTimeout when it broke later.
        Nothing is ever sent twice.
        """
        url = f"{self._settings.base}{path}" + (f"?{query}" if query else "")
        sent = {**headers, "authorization": self._settings.authorization or headers.get("authorization", "")}
        raw = [(name.encode(), value.encode("latin-1")) for name, value in sent.items() if value]
        with _told(self._name, connecting=True):
            client = self._client(pooled)
            if len(body) > _AT_ONCE:
                raw.append((b"content-length", b"%d" % len(body)))
            request = client.build_request(
                method, url, headers=raw, content=body if len(body) <= _AT_ONCE else _slices(body)
            )
            request.headers.pop("cookie", None)  # the client's jar would give one caller's cookies to the next
            response = await client.send(request, stream=True)
        if not 200 <= response.status_code <= 599:
            await response.aclose()
            raise UpstreamError(f"backend {self._name} answered with the status {response.status_code}, which is none")
        return Answer(response, self._name)

    async def ask(
        self, url: str, body: Mapping[str, Any] | None, *, seconds: float
    ) -> tuple[int, dict[str, str], Any] | None:
        """Status, headers and decoded body of a GET, or of a POST of `body`, with the backend's own key.

        The body is None where no JSON came, all is None where nobody answered.
        """
        given = self._settings.authorization
        headers = {"content-type": "application/json"} | ({"authorization": given} if given else {})
        method, content = ("GET", None) if body is None else ("POST", dumps(body))
        try:
            async with asyncio.timeout(seconds):
                response = await self._client(pooled=False).request(method, url, headers=headers, content=content)
        except _FAILURES:
            return None
        try:
            return response.status_code, dict(response.headers), loads(response.content)
        except JsonError:
            return response.status_code, dict(response.headers), None

    def _client(self, pooled: bool) -> httpx.AsyncClient:
        if pooled not in self._clients:
            settings = self._settings
            self._clients[pooled] = connector.client(
                pooled=pooled, connect_seconds=settings.connect_timeout, read_seconds=settings.read_timeout or None
            )
        return self._clients[pooled]

    async def aclose(self) -> None:
        """Close all connections."""
        for client in self._clients.values():
            await client.aclose()


@contextlib.contextmanager
def _told(name: str, *, connecting: bool = False) -> Iterator[None]:
    """Network errors as ours, by whether a connection was made."""
    try:
        yield
    except _FAILURES as error:
        cause = error.__cause__ if isinstance(error, httpx.HTTPError) else error
        if connecting and isinstance(cause, _NO_CONNECTION):
            reason = getattr(cause, "strerror", None) or str(error) or "no answer within `connect_timeout`"
            text = f"backend {name} cannot be reached: {reason}; is it running, and is its `url` right?"
            raise UpstreamUnreachable(text) from error
        if isinstance(error, httpx.TimeoutException | TimeoutError) and isinstance(cause, TimeoutError):
            raise UpstreamTimeout(f"backend {name} said nothing for longer than its `read_timeout`") from error
        text = f"the connection to backend {name} broke: {type(cause or error).__name__}"
        raise UpstreamError(text) from error
