"""Neutral events → what one client is shown. Bytes that need no change leave as they came."""

from __future__ import annotations

from typing import Any, Literal

from proxy import sse
from proxy.events import Event, Part
from proxy.fold import Choice, Fold, finish_of
from proxy.jsons import dumps, loads
from proxy.messages import REASONING_FIELDS, Json
from proxy.normalise import details_text

Shown = Literal["reasoning_content", "reasoning", "both", "think_tags", "hidden"]
"""How a client gets thoughts: under which name, or in front of the text in tags. `reasoning_details` goes along with a
name."""

_NAMES: dict[Shown, tuple[str, ...]] = {
    "reasoning_content": ("reasoning_content",),
    "reasoning": ("reasoning",),
    "both": ("reasoning_content", "reasoning"),
    "think_tags": (),
    "hidden": (),
}
_OPENER, _CLOSER = "<think>\n", "\n</think>\n\n"


class View:
    """One client's view of one answer."""

    def __init__(self, shown: Shown, *, include_usage: bool, continuous_usage: bool = False) -> None:
        """`include_usage`: the client gets one chunk with the usage, the last; or, `continuous_usage`, all of them."""
        self._names = _NAMES[shown]
        self._wanted = frozenset(self._names)
        self._in_tags = shown == "think_tags"
        self._thinking: set[int] = set()  # choices with an open tag
        self._include_usage = include_usage
        self._continuous = include_usage and continuous_usage
        self._usage: Json = None  # that the client is still to get
        self._running: set[int] = set()  # choices without a finish
        self._usage_told = False
        self._last: bytes | None = None

    def event(self, event: Event) -> bytes:
        """One event of a stream, ready to leave; empty where this client gets nothing of it."""
        if event.error is not None:
            return b""
        for part in event.parts:
            self._last = event.raw
            if part.finish is None:
                self._running.add(part.choice)
            else:
                self._running.discard(part.choice)
        if event.empty:
            return self._without_choices(event)
        withheld = event.usage is not None and not self._continuous
        if not (withheld or event.odd or event.shaped or self._renames(event)):
            return sse.encode(_one_line(event.raw))
        body = loads(event.raw)
        if withheld:
            self._usage = body.pop("usage", None) or self._usage
            for choice in body["choices"]:
                self._usage = choice.pop("usage", None) or self._usage
        choices = list(zip(body["choices"], event.parts, strict=True))
        body["choices"] = [choice for choice, part in choices if self._choice(choice, part)]
        if not body["choices"]:
            return b""
        ends = [choice for choice, part in choices if event.shaped and part.calls and part.finish]
        return sse.encode(dumps(body)) if not ends else self._before_finish(body, ends)

    def _before_finish(self, body: dict[str, Any], ends: list[dict[str, Any]]) -> bytes:
        """Calls that were held back leave before the finish: the SDK tells of a call when something follows it."""
        finishes = [
            {"index": choice["index"], "delta": {}, "finish_reason": choice["finish_reason"]} for choice in ends
        ]
        for choice in ends:
            choice["finish_reason"] = None
        return sse.encode(dumps(body)) + sse.encode(dumps({**body, "choices": finishes}))

    def _without_choices(self, event: Event) -> bytes:
        """An event beside the choices: mostly the usage, which is due when all of them have their finish."""
        if event.usage is None:
            return sse.encode(_one_line(event.raw))
        if not self._include_usage:
            return b""
        if (self._running or self._last is None) and not self._continuous:
            self._usage = loads(event.raw).get("usage")
            self._last = self._last or event.raw
            return b""
        self._include_usage, self._usage, self._usage_told = self._continuous, None, True
        return sse.encode(_one_line(event.raw))

    def whole(self, event: Event) -> bytes:
        """A whole answer as a JSON body."""
        if not (event.odd or event.shaped or self._renames(event)):
            return event.raw
        body = loads(event.raw)
        for choice, part in zip(body.get("choices") or (), event.parts, strict=True):
            choice["index"] = part.choice
            choice["finish_reason"] = part.finish
            if isinstance(choice.get("message"), dict):
                self._say(choice["message"], part)
        return dumps(body)

    def rest(self, parts: list[Part]) -> bytes:
        """What was held back when the stream broke off or ended without a finish."""
        return self._added([({"index": part.choice, "delta": {}}, part) for part in parts])

    def silence(self, head: dict[str, Any]) -> bytes:
        """An event without a word, in the manner of the latest one; `head` is its own where nothing came yet."""
        if self._usage_told:  # the SDK would forget the usage
            return b""
        last = {} if self._last is None else loads(self._last)
        said = {name: last.get(name, value) for name, value in head.items()}
        return sse.encode(dumps({**said, "choices": [{"index": 0, "delta": {}, "finish_reason": None}]}))

    def close(self, fold: Fold, usage: Json = None) -> bytes:
        """The end of a complete stream: a finish for each choice that lacks one, the usage, then `[DONE]`.

        `usage` is told where the engine has told none.
        """
        self._usage = self._usage or usage
        choices = fold.choices or {0: Choice()}
        lacking = [(at, choice) for at, choice in choices.items() if choice.finish is None]
        ends = [({"index": at, "delta": {}}, Part(at, finish=finish_of(choice))) for at, choice in lacking]
        left = self._added(ends)
        if self._usage is not None and self._include_usage and not self._continuous and self._last is not None:
            left += sse.encode(dumps({**loads(self._last), "choices": [], "usage": self._usage}))
        return left + sse.DONE_EVENT

    def _added(self, choices: list[tuple[dict[str, Any], Part]]) -> bytes:
        """An event of our own in the manner of the latest one."""
        kept = [choice for choice, part in choices if self._choice(choice, part)]
        if not kept or self._last is None:
            return b""
        body = loads(self._last)
        body.pop("usage", None)
        return sse.encode(dumps({**body, "choices": kept}))

    def _renames(self, event: Event) -> bool:
        if self._in_tags:
            return bool(event.names or self._thinking)
        return bool(event.names) and (not self._names or event.names - {"reasoning_details"} != self._wanted)

    def _choice(self, choice: dict[str, Any], part: Part) -> bool:
        """Make one choice of a chunk say what `part` says; false when nothing is left of it."""
        if choice.get("finish_reason") and not (part.finish or part.text or part.reasoning or part.calls):
            return False  # a finish that was said before
        came = choice.get("delta")
        delta = came if isinstance(came, dict) else {}
        said_something = came is not delta or bool(delta or choice.get("finish_reason"))
        self._say(delta, part)
        choice |= {"index": part.choice, "delta": delta, "finish_reason": part.finish}
        return bool(delta or part.finish) or not said_something

    def _say(self, said: dict[str, Any], part: Part) -> None:
        """Write a part's role, its thought under this client's names, once, its text and its calls."""
        if part.role:
            said["role"] = "assistant"
        else:
            said.pop("role", None)
        for name in REASONING_FIELDS:
            if name in said and not (name == "reasoning_details" and self._names and _agrees(said[name], part)):
                del said[name]
        text = self._tagged(part) if self._in_tags else part.text
        _set_text(said, text)
        if part.calls:
            said["tool_calls"] = part.calls
        elif said.get("tool_calls"):
            del said["tool_calls"]
        if part.reasoning:
            for name in self._names:
                said[name] = part.reasoning

    def _tagged(self, part: Part) -> str:
        """The text with the thought in tags before it."""
        thought, ends = part.reasoning, bool(part.text or part.calls or part.finish)
        if thought and part.choice not in self._thinking:
            self._thinking.add(part.choice)
            thought = _OPENER + thought
        if ends and part.choice in self._thinking:
            self._thinking.discard(part.choice)
            thought += _CLOSER
        return thought + part.text


def _agrees(details: Json, part: Part) -> bool:
    """Whether `reasoning_details` can stay: they have no text, or the thought that the part still has."""
    return bool(part.reasoning) or not details_text(details)


def _set_text(said: dict[str, Any], text: str) -> None:
    """Write the visible text. A field that has none stays as the engine wrote it, and one that is emptied goes."""
    had = said.get("content")
    if text == (had if isinstance(had, str) else ""):
        return
    if text or "role" in said:
        said["content"] = text
    else:
        del said["content"]


def failure(message: str, type: str | None, code: object) -> bytes:
    """An error inside a stream that has begun; no finish reason is invented."""
    return (
        sse.encode(dumps({"error": {"message": message, "type": type, "param": None, "code": code}})) + sse.DONE_EVENT
    )


def _one_line(raw: bytes) -> bytes:
    """Line feeds between JSON tokens are white space; inside strings they are escaped."""
    return raw if b"\n" not in raw else raw.replace(b"\n", b" ")
