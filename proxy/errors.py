"""Every error that a caller can meet.

    ProxyError
    ├── ConfigError            a setting is wrong (command line: exit code 2)
    ├── EngineError            the embedded engine does not start, or is missing (`engine.py`)
    ├── DemoFailed             the demo did not see what it shows (`demo/`)
    ├── InternalError          500  a fault of this program; its traceback is in the log
    ├── Stopping               503  the proxy was told to end, and the drain time is over
    │   └── Draining           503  it was told to end before the request came: nothing was sent
    ├── Ended                  410  the caller ended the generation by DELETE, or it gave way
    ├── QueueFull              429  too many wait for the backend already: nothing was sent
    ├── RequestError           the caller's mistake, found before anything was sent
    │   ├── InvalidRequest     400  a field has the wrong type or value
    │   ├── ContextLengthExceeded 400  the prompt is longer than the model's window
    │   ├── Unauthorized       401  no key, or an unknown one
    │   ├── Forbidden          403  a key that may not see this
    │   ├── InsufficientQuota  429  the client's budget is used up: nothing was sent
    │   ├── ModelNotFound      404  no backend serves this model
    │   ├── NotFound           404  no such path here
    │   ├── AlreadyAnswering   409  the thought that shall end has ended
    │   ├── NotSupported       501  the engine cannot do it
    │   └── BodyTooLarge       413  above `server.max_body_mb`
    └── UpstreamError          502  the backend broke after it had the request
        ├── UpstreamUnreachable 502 no connection was made: nothing was sent
        ├── UpstreamTimeout    504  silent for longer than the backend's `read_timeout`
        └── UpstreamRefusal    its  the backend's own error, inside an answer of status 200

Bodies have the shape that OpenAI's servers use. An error that may have cost tokens carries
`x-should-retry: false`, because the openai SDK repeats every 5xx otherwise.
"""

from __future__ import annotations

import msgspec


class ProxyError(Exception):
    """Base of all errors of this package.

    `message` names the field and the remedy; `param` is the path of the field in the request, if one is to blame.
    """

    status: int = 500
    type: str = "server_error"
    code: object = "internal_error"
    may_have_cost: bool = False

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param

    @property
    def headers(self) -> dict[str, str]:
        """Response headers that go with the error."""
        found = {"x-proxy-error": str(self.code)}
        if self.may_have_cost:
            found["x-should-retry"] = "false"
        return found

    def body(self) -> bytes:
        """The error as a JSON body in OpenAI's shape."""
        return error_body(self.message, self.type, self.code, self.param)


class ConfigError(ProxyError):
    """A setting is missing, unknown or out of range."""

    code = "invalid_configuration"


class InternalError(ProxyError):
    """A fault of this program. Tokens may have been spent."""

    may_have_cost = True


class Stopping(ProxyError):
    """The proxy was told to end and the request did not within `server.drain_seconds`. Tokens may have been spent."""

    status = 503
    code = "shutting_down"
    may_have_cost = True


class Draining(Stopping):
    """A request came after the proxy was told to end; nothing was sent."""

    may_have_cost = False


class Ended(ProxyError):
    """A generation was ended on purpose while somebody listened. Tokens may have been spent."""

    status = 410
    code = "generation_ended"
    may_have_cost = True


class QueueFull(ProxyError):
    """Too many requests wait for the backend; nothing was sent. `retry_after` is in seconds."""

    status = 429
    type = "rate_limit_error"
    code = "queue_full"

    def __init__(self, message: str, *, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after

    @property
    def headers(self) -> dict[str, str]:
        return {**super().headers, "retry-after": str(self.retry_after)}


class RequestError(ProxyError):
    """The caller's mistake; nothing was sent to a backend."""

    status = 400
    type = "invalid_request_error"
    code: object = "invalid_request"


class InvalidRequest(RequestError):
    """A field has a wrong type or value."""


class ContextLengthExceeded(RequestError):
    """The prompt does not fit into the model's window, whatever is left out; the code is the one of OpenAI."""

    code = "context_length_exceeded"


class Unauthorized(RequestError):
    """No key, or a key that no configured client has."""

    status = 401
    type = "authentication_error"
    code = "invalid_api_key"


class Forbidden(RequestError):
    """The key belongs to a client that may not see this."""

    status = 403
    type = "permission_error"
    code = "forbidden"


class InsufficientQuota(RequestError):
    """The client has spent what it may; nothing was sent. `retry_after` is in seconds."""

    status = 429
    type = "insufficient_quota"
    code = "insufficient_quota"

    def __init__(self, message: str, *, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after

    @property
    def headers(self) -> dict[str, str]:
        return {**super().headers, "retry-after": str(self.retry_after)}


class ModelNotFound(RequestError):
    """No configured backend serves the model."""

    status = 404
    code = "model_not_found"


class NotFound(RequestError):
    """There is nothing at this path."""

    status = 404
    code = "not_found"


class AlreadyAnswering(RequestError):
    """A thought shall be ended, and there is none any more."""

    status = 409
    code = "already_answering"


class NotSupported(RequestError):
    """The engine behind the proxy cannot do what is asked for."""

    status = 501
    code = "not_supported"


class BodyTooLarge(RequestError):
    """The request body exceeds `server.max_body_mb`."""

    status = 413
    code = "request_too_large"


class UpstreamError(ProxyError):
    """The backend broke after it had the request; tokens may have been spent."""

    status = 502
    type = "upstream_error"
    code: object = "upstream_error"
    may_have_cost = True

    def name(self, backend: str) -> None:
        """Say whose fault it is, where the message does not yet."""
        if backend not in self.message:
            self.message = f"backend {backend}: {self.message}"


class UpstreamUnreachable(UpstreamError):
    """No connection to the backend was made, so nothing was sent and nothing can have been generated."""

    code = "upstream_unreachable"
    may_have_cost = False


class UpstreamTimeout(UpstreamError):
    """The backend said nothing for longer than its `read_timeout`."""

    status = 504
    code = "upstream_timeout"


class UpstreamRefusal(UpstreamError):
    """The backend's own error, in its words, though the status of its answer was 200 (OpenRouter, LM Studio)."""

    def __init__(self, message: str, *, status: int, type: str, code: object) -> None:
        super().__init__(message)
        self.status, self.type = status, type
        self.code = code

    def name(self, backend: str) -> None:
        """These are the backend's own words, and stay as they are."""

    @property
    def headers(self) -> dict[str, str]:
        """Only the advice: the proxy is not the origin."""
        return {"x-should-retry": "false"}


def error_body(message: str, type: str | None, code: object, param: object = None) -> bytes:
    """An error in OpenAI's shape, as JSON bytes."""
    return msgspec.json.encode({"error": {"message": message, "type": type, "param": param, "code": code}})
