"""Neutral events → what one client is shown. Bytes that need no change leave as they came."""

from __future__ import annotations

from typing import Any, Literal

from proxy import sse
from proxy.fold import Fold, finish_of
from proxy.jsons import dumps, loads
from proxy.messages import REASONING_FIELDS, Event, Part
from proxy.normalise import details_text

Shown = Literal["reasoning_content", "reasoning", "both", "hidden"]
"""Under which name a client gets thoughts. `reasoning_details` goes along unless they are hidden."""

_NAMES: dict[Shown, tuple[str, ...]] = {
    "reasoning_content": ("reasoning_content",),
    "reasoning": ("reasoning",),
    "both": ("reasoning_content", "reasoning"),
    "hidden": (),
}


class View:
    """One client's view of one answer."""

    def __init__(self, shown: Shown, *, include_usage: bool) -> None:
        self._hidden = shown == "hidden"
        self._names = _NAMES[shown]
        self._wanted = frozenset(self._names)
        self._include_usage = include_usage
        self._last: bytes | None = None

    def event(self, event: Event) -> bytes:
        """One event of a stream, ready to leave; empty where this client gets nothing of it."""
        if event.parts:
            self._last = event.raw
        if event.error is not None:
            return b""
        withheld = event.usage is not None and not self._include_usage
        if withheld and event.empty:
            return b""
        if not (withheld or event.odd or event.shaped or self._renames(event)):
            return sse.encode(_one_line(event.raw))
        body = loads(event.raw)
        if withheld:
            body.pop("usage", None)
        kept = []
        for at, choice in enumerate(body.get("choices") or []):
            if self._choice(choice, event.parts[at] if event.shaped else None, withheld):
                kept.append(choice)
        if not kept and not event.empty:
            return b""
        body["choices"] = kept
        return sse.encode(dumps(body))

    def whole(self, event: Event) -> bytes:
        """A whole answer as a JSON body."""
        if not (event.odd or event.shaped or self._renames(event)):
            return event.raw
        body = loads(event.raw)
        for at, choice in enumerate(body.get("choices") or []):
            if not isinstance(choice.get("index"), int):
                choice["index"] = at
            if isinstance(choice.get("message"), dict):
                self._rename(choice["message"], event.parts[at] if event.shaped else None)
        return dumps(body)

    def rest(self, parts: list[Part]) -> bytes:
        """What was held back when the stream broke off or ended without a finish."""
        if not parts or self._last is None:
            return b""
        body = loads(self._last)
        body.pop("usage", None)
        choices = [({"index": part.choice, "delta": {}, "finish_reason": None}, part) for part in parts]
        body["choices"] = [choice for choice, part in choices if self._choice(choice, part, False)]
        return sse.encode(dumps(body)) if body["choices"] else b""

    def close(self, fold: Fold) -> bytes:
        """The end of a complete stream: a finish for each choice that lacks one, then `[DONE]`."""
        lacking = [(at, choice) for at, choice in fold.choices.items() if choice.finish is None]
        if not lacking or self._last is None:
            return sse.DONE_EVENT
        body = loads(self._last)
        body.pop("usage", None)
        body["choices"] = [{"index": at, "delta": {}, "finish_reason": finish_of(choice)} for at, choice in lacking]
        return sse.encode(dumps(body)) + sse.DONE_EVENT

    def _renames(self, event: Event) -> bool:
        return bool(event.names) and (self._hidden or event.names - {"reasoning_details"} != self._wanted)

    def _choice(self, choice: dict[str, Any], part: Part | None, withheld: bool) -> bool:
        """Make one choice of a chunk strict, of a shaped event as `part` says; false when nothing is left of it."""
        if withheld:
            choice.pop("usage", None)
        if not isinstance(choice.get("index"), int):
            choice["index"] = 0
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            choice["delta"] = {}
            return bool(choice.get("finish_reason"))
        emptied = self._rename(delta, part)
        return not emptied or bool(delta) or bool(choice.get("finish_reason"))

    def _rename(self, said: dict[str, Any], part: Part | None) -> bool:
        """Put the thought under this client's names, once; true when a field was taken away."""
        texts = {name: said[name] for name in REASONING_FIELDS if name in said}
        found = [details_text(value) if name == "reasoning_details" else value for name, value in texts.items()]
        thought = next((text for text in found if isinstance(text, str) and text), "")
        emptied = bool(texts)
        if part is not None:
            thought = part.reasoning
            emptied = _set_text(said, part.text) or emptied
        for name in texts:
            if name != "reasoning_details" or self._hidden or (part is not None and not thought):
                del said[name]
        if not thought:
            return emptied
        for name in self._names:
            said[name] = thought
        return not self._names


def _set_text(said: dict[str, Any], text: str) -> bool:
    """Write the visible text of a shaped event; true when the whole text was taken away."""
    had = said.get("content")
    if text or not isinstance(had, str) or not had:
        if text or isinstance(had, str):
            said["content"] = text
        return False
    if "role" in said:
        said["content"] = ""
        return False
    del said["content"]
    return True


def failure(message: str, type: str | None, code: object) -> bytes:
    """An error inside a stream that has begun; no finish reason is invented."""
    return (
        sse.encode(dumps({"error": {"message": message, "type": type, "param": None, "code": code}})) + sse.DONE_EVENT
    )


def _one_line(raw: bytes) -> bytes:
    """Line feeds between JSON tokens are white space; inside strings they are escaped."""
    return raw if b"\n" not in raw else raw.replace(b"\n", b" ")
