"""aiohttp's side of a connection to a backend, with what aiohttp 3.14 gets wrong for a proxy put right."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator
from typing import Any, Self

import aiohttp
import httpx
from aiohttp.client_proto import ResponseHandler
from aiohttp.http_exceptions import HttpProcessingError
from httpx_aiohttp import AiohttpTransport
from httpx_aiohttp.transport import AiohttpResponseStream

IDLE_SECONDS = 4.0
"""An idle connection is closed before the server does it: uvicorn, and with it vLLM and SGLang, waits for 5 s."""
_MOST_HEADER = 65_536
"""Bytes of one header; a paid answer is not worth less for a long one."""


class _Handler(ResponseHandler):
    """Ends the body when what comes is no HTTP any more; else only the connection is closed, and whoever reads the body
    waits for ever."""

    def set_exception(self, exc: Any, *cause: Any) -> None:
        payload = self._payload
        super().set_exception(exc, *cause)
        if isinstance(exc, HttpProcessingError) and payload is not None and not payload.is_eof():
            payload.set_exception(aiohttp.ClientPayloadError(str(exc)))


class _Connector(aiohttp.TCPConnector):
    """Reuses no connection on which something came while nobody had asked: it would be taken for the next answer, which
    is another caller's."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._factory: Any = functools.partial(_Handler, loop=self._loop)

    async def _get(self, *key: Any, **options: Any) -> Any:
        while (found := await super()._get(*key, **options)) is not None:
            if found.protocol is not None and not found.protocol.should_close:
                return found
            found.close()
        return None


class _Response(aiohttp.ClientResponse):
    """httpx takes a reason phrase in ASCII alone."""

    async def start(self, connection: Any) -> Self:
        await super().start(connection)
        self.reason = (self.reason or "").encode("ascii", "replace").decode()
        return self


class _Received(httpx.AsyncByteStream):
    """A body that hands out all that was received, also when the connection broke: aiohttp raises before that."""

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


def client(*, pooled: bool, connect_seconds: float, read_seconds: float | None) -> httpx.AsyncClient:
    """An HTTP client that sends each request once, on connections of a pool or on a new one each time.

    `connect_seconds` are for the name, the connection and TLS; `read_seconds` between two bytes, None: no limit.
    """
    kept: dict[str, Any] = {"keepalive_timeout": IDLE_SECONDS} if pooled else {"force_close": True}
    session = aiohttp.ClientSession(
        connector=_Connector(limit=0, **kept),
        cookie_jar=aiohttp.DummyCookieJar(),
        response_class=_Response,
        skip_auto_headers={"accept", "accept-encoding", "user-agent", "content-type"},
        max_line_size=_MOST_HEADER,
        max_field_size=_MOST_HEADER,
    )
    session._retry_connection = False  # it would send idempotent methods again, a DELETE too
    limits = httpx.Timeout(read_seconds, connect=connect_seconds, pool=connect_seconds)
    return httpx.AsyncClient(transport=_Transport(client=session), timeout=limits)
