"""What a scripted backend does with a request: values, made by functions, changed by modifiers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Literal, NamedTuple

from proxy.messages import Json, ToolCall
from proxy.testing.request import Fields, Request
from proxy.testing.styles import Said, Style

Step = bytes | float | asyncio.Event
"""What comes next: write these bytes, pause for seconds, or wait until the event is set."""

SSE = "text/event-stream"


class Content(NamedTuple):
    """The body of an answer. A `whole` one tells its length beforehand, another leaves in chunks as they are made."""

    type: str
    steps: Iterable[Step]
    whole: bool = False


@dataclass(frozen=True)
class Reply:
    """What the backend does with one request. Each modifier gives a changed copy."""

    content: Callable[[Request, Style], Content]
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    gap: float = 0.0
    start: float | asyncio.Event = 0.0
    limit: int | None = None
    holds: tuple[tuple[int, asyncio.Event], ...] = ()
    end: Literal["complete", "close", "cut", "abort", "stall"] = "complete"
    compress: bool = False
    bare: bool = False

    def after(self, start: float | asyncio.Event) -> Reply:
        """Silence before the first header: for seconds, or until the event is set."""
        return replace(self, start=start)

    def hold(self, event: asyncio.Event, after: int = 0) -> Reply:
        """Wait for the event when so many writes of the body were made. A test needs no clock then."""
        return replace(self, holds=(*self.holds, (after, event)))

    def first(self, writes: int) -> Reply:
        """Only so many writes of the body (events of a stream), then the end."""
        return replace(self, limit=writes)

    def gzipped(self) -> Reply:
        """Compressed where the request accepts it; each write is flushed."""
        return replace(self, compress=True)

    def then_close(self) -> Reply:
        """Complete the answer, then close the connection without having said so."""
        return replace(self, end="close")

    def then_cut(self) -> Reply:
        """Close the connection after the last write, the answer incomplete."""
        return replace(self, end="cut")

    def then_abort(self) -> Reply:
        """Reset the connection after the last write."""
        return replace(self, end="abort")

    def then_stall(self) -> Reply:
        """Nothing more after the last write, until the peer leaves."""
        return replace(self, end="stall")

    def steps(self, content: Content) -> Iterator[Step]:
        """The steps of the body, with pauses, holds and the limit worked in."""
        held = dict[int, list[asyncio.Event]]()
        for after, event in self.holds:
            held.setdefault(after, []).append(event)
        written = 0
        for step in content.steps:
            if isinstance(step, bytes):
                yield from held.pop(written, ())
                if written == self.limit:
                    break
                if written and self.gap:
                    yield self.gap
                written += 1
            yield step
        for events in held.values():
            yield from events


def answer(
    text: str = "",
    *,
    reasoning: str | None = None,
    calls: Sequence[ToolCall] = (),
    finish: str | None = None,
    usage: Fields | None = None,
    field: str | None = None,
    split: int | None = None,
    gap: float = 0.0,
) -> Reply:
    """A model's answer, whole or streamed as the request asks, written in the manner of the backend's style.

    `reasoning` None is no thought, "" an empty one; `field` gives it another name than the style does. `usage` is sent
    as it stands, {} is none, None counts. A delta is a word, or `split` characters, and comes `gap` seconds after the
    one before.
    """
    said = Said(text, reasoning, tuple(calls), finish or ("tool_calls" if calls else "stop"), usage, field, split)

    def content(request: Request, style: Style) -> Content:
        if not request.get("stream"):
            return _document(style.whole(said, request), style.before_whole)
        before = [style.before_stream] if style.before_stream else []
        return Content(SSE, chain(before, map(_event, style.stream(said, request)), [_event("[DONE]")]))

    return Reply(content, gap=gap)


def events(*items: Fields | str | Step, gap: float = 0.0, headers: Mapping[str, str] | None = None) -> Reply:
    """A stream of exactly these events; no `[DONE]` is added.

    A dict or a str is the data of one event, bytes go out as they are (comments, odd line ends). A number is a pause in
    seconds, an `asyncio.Event` holds the stream until it is set.
    """
    steps = [_event(item) if isinstance(item, dict | str) else item for item in items]
    return Reply(lambda request, style: Content(SSE, steps), headers=headers or {}, gap=gap)


def raw(*chunks: Step, status: int = 200, headers: Mapping[str, str] | None = None) -> Reply:
    """A body of exactly these bytes, a write each: an event stream in chunks, unless the headers say otherwise."""
    return Reply(lambda request, style: Content(SSE, chunks), status, headers or {})


def document(body: Json = None, status: int = 200, headers: Mapping[str, str] | None = None) -> Reply:
    """One JSON value. A str or bytes goes out as it is, None is an empty body."""
    return Reply(lambda request, style: _document(body), status, headers or {})


def error(status: int, body: Fields | bytes | str, headers: Mapping[str, str] | None = None) -> Reply:
    """An error. A str is its message, in the shape that the style has for errors; else the body is exactly this."""

    def content(request: Request, style: Style) -> Content:
        return _document(style.error(status, body) if isinstance(body, str) else body)

    return Reply(content, status, headers or {})


def wire(*chunks: Step) -> Reply:
    """Exactly these bytes in place of an HTTP answer, then the connection is closed. `wire()` is no answer at all."""
    return Reply(lambda request, style: Content("", chunks), end="cut", bare=True)


def echo(request: Request, gap: float = 0.0) -> Reply:
    """The answer of a backend without a script: the last message, after a thought about the past thoughts."""
    past = [message for message in request.messages if message.get("role") == "assistant"]
    kept = sum(bool(message.get("reasoning_content") or message.get("reasoning")) for message in past)
    words = request.messages[-1].get("content") if request.messages else ""
    if isinstance(words, list):
        words = " ".join(str(part.get("text", "")) for part in words if isinstance(part, dict))
    thought = f"I only repeat. Of {len(past)} earlier answers, {kept} came back with their thought."
    return answer(f"You said: {words}", reasoning=thought, gap=gap)


def _event(data: Fields | str) -> bytes:
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return ("".join(f"data: {line}\n" for line in text.split("\n")) + "\n").encode()


def _document(body: Json, before: bytes = b"") -> Content:
    if body is None or isinstance(body, str | bytes):
        return Content("text/plain", [body.encode() if isinstance(body, str) else body or b""], whole=True)
    return Content("application/json", [before + json.dumps(body, ensure_ascii=False).encode()], whole=True)
