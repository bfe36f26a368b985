"""A backend's refusal: its status and words in OpenAI's shape, with advice on sending the request again."""

from __future__ import annotations

from collections.abc import Mapping

from proxy.backend import LOADING
from proxy.errors import ContextLengthExceeded, UpstreamError, UpstreamRefusal, error_body
from proxy.jsons import JsonError, dumps, loads
from proxy.messages import Json
from proxy.record import Record
from proxy.wire import Answer

_JSON = ("content-type", "application/json")


def inside(error: Mapping[str, Json] | None) -> UpstreamError:
    """An error inside an answer of status 200, whose code is the status that it should have had; without one, that the
    answer says nothing."""
    if error is None:
        return UpstreamError("the backend answered without a choice")
    kind, code = error.get("type"), error.get("code")
    status = code if isinstance(code, int) and 400 <= code <= 599 else UpstreamError.status
    message = str(error.get("message") or "the backend reported an error without a message")
    return UpstreamRefusal(message, status=status, type=kind if isinstance(kind, str) else "upstream_error", code=code)


_TOO_LONG = (
    "exceed_context_size",
    "context_length_exceeded",
    "context length",
    "context size",
    "context window",
    "exceeded model token limit",
    "input token length too long",
    "tokens in request more than max tokens allowed",
    "tokens to keep from the initial prompt",
    "when context the overflows",
)
"""How engines say that a prompt does not fit: llama-server, OpenAI, vLLM and SGLang, Moonshot, Z.ai, LM Studio."""

_QUOTA = ("exceeded_current_quota", "insufficient_quota", "insufficient_balance", "insufficient balance")
"""How services say that there is no money left; waiting brings none (Moonshot says so with 429, DeepSeek with 402)."""
_MOST_WORDS = 2000
"""Characters of a backend's error that go on."""
_BEFORE_ANY_WORK = frozenset({503, 529})
"""Loading or overloaded: nothing was generated, and it will be better later."""


async def overflows(answer: Answer) -> bool:
    """Whether the backend refused the prompt because it is too long for the window."""
    return answer.status == 400 and _is_too_long(await answer.read())


async def is_loading(answer: Answer) -> bool:
    """Whether llama.cpp's server, or one that is built on it, has not got its model yet."""
    return answer.status == LOADING and b"loading model" in (await answer.read()).lower()


def _is_too_long(body: bytes) -> bool:
    text = body.decode("utf-8", "replace").lower()
    return any(phrase in text for phrase in _TOO_LONG)


async def refused(answer: Answer, record: Record) -> tuple[list[tuple[str, str]], bytes]:
    """A backend's own error: its words in OpenAI's shape, with the headers that go along."""
    body = await _read(answer)
    message, kind, param, code = error_fields(body, answer.status)
    if answer.status == 400 and _is_too_long(body):
        code = ContextLengthExceeded.code  # the word that clients know, to shorten their history by themselves
    record.entry.error = record.safe(message)
    record.finish("upstream_error")
    told = record.safe(error_body(message, kind, code, param).decode()).encode()
    return [_JSON, *_advice(answer, body)], told


async def _read(answer: Answer) -> bytes:
    """The body of a refusal, which is one though its words break off."""
    try:
        return await answer.read()
    except UpstreamError:
        return b""


def _advice(answer: Answer, body: bytes) -> list[tuple[str, str]]:
    """Whether the openai SDK shall send the request again, as it does by itself for 408, 409, 429 and from 500 on.

    A 5xx may have cost tokens, and llama-server says 500 for mistakes of the caller too.
    """
    text, status = body.decode("utf-8", "replace").lower(), answer.status
    own = answer.headers.get("x-should-retry", "").lower() == "false"
    may_have_cost = status == 408 or (status >= 500 and status not in _BEFORE_ANY_WORK)
    if own or may_have_cost or any(word in text for word in _QUOTA):
        return [("x-should-retry", "false")]
    return []


async def refused_raw(answer: Answer, record: Record) -> tuple[list[tuple[str, str]], bytes]:
    """The body of an error that passes through, without keys, and the advice on sending again.

    What has an `error` object stays as it is, in OpenAI's shape or Anthropic's; what has none is put into the first.
    """
    body = await _read(answer)
    message, kind, param, code = error_fields(body, answer.status)
    record.entry.error = record.safe(message)
    record.finish("upstream_error")
    if not _has_shape(body):
        return [_JSON, *_advice(answer, body)], record.safe(error_body(message, kind, code, param).decode()).encode()
    kept = [("content-type", answer.headers["content-type"])] if "content-type" in answer.headers else []
    return [*kept, *_advice(answer, body)], record.safe(body.decode("utf-8", "replace")).encode()


def _has_shape(body: bytes) -> bool:
    try:
        found = loads(body)
    except JsonError:
        return False
    return isinstance(found, dict) and isinstance(found.get("error"), dict)


def error_fields(body: bytes, status: int) -> tuple[str, str | None, object, object]:
    """(message, type, param, code) from the shapes that engines use: nested, flat, a bare text, or no JSON at all."""
    try:
        found = loads(body)
    except JsonError:
        found = body.decode("utf-8", "replace").strip()[:_MOST_WORDS]
    if isinstance(found, dict) and found.get("error"):
        found = found["error"]
    if not isinstance(found, dict):
        return str(found or f"the backend answered {status} without a body"), "upstream_error", None, status
    message = str(found.get("message") or found.get("detail") or dumps(found).decode())[:_MOST_WORDS]
    kind = found.get("type")
    return message, kind if isinstance(kind, str) else "upstream_error", found.get("param"), found.get("code")


async def expect(answer: Answer, *kinds: str) -> None:
    """Close the answer and raise UpstreamError where it has no body, or is of none of these media types.

    A missing type is forgiven. What an error in JSON says is repeated.
    """
    status = answer.status
    if status < 300 and status != 204 and answer.kind in (*kinds, ""):
        return
    words = error_fields(await answer.read(), status)[0] if answer.kind == "application/json" else ""
    await answer.aclose()
    if status >= 300:
        place = answer.headers.get("location", "nowhere")
        raise UpstreamError(f"the backend answered {status} and points to {place}: is its `url` right?")
    if status == 204:
        raise UpstreamError("the backend answered 204, without a body")
    raise UpstreamError(f"the backend answered with {answer.kind} where {kinds[0]} was expected: {words}".rstrip(": "))
