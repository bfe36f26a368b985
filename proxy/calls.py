"""Tool calls as strict clients read them, from the fragments that engines send.

What leaves has indexes 0, 1, 2 … in the order in which calls begin; id, type and name once, on the first fragment of a
call; arguments as text. An id of the engine's is never changed: some models are trained on the form of theirs. Only a
call that has none gets one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from proxy.jsons import JsonError, dumps, loads
from proxy.messages import Json

NewId = Callable[[], str]
"""Makes an id for a call that the engine gave none."""

_NO_ARGUMENTS = "{}"


@dataclass(slots=True)
class _Call:
    """One call as it grows. Until its id and name are known, or are not to be expected any more, it is held back."""

    index: int
    said: Json = None
    id: str = ""
    name: str = ""
    open: bool = False
    pieces: list[str] = field(default_factory=list)
    others: dict[str, Json] = field(default_factory=dict)
    others_of_function: dict[str, Json] = field(default_factory=dict)

    @property
    def arguments(self) -> str:
        return "".join(self.pieces)

    @property
    def is_whole(self) -> bool:
        """Whether no argument can follow."""
        if not self.pieces or self.pieces[-1].rstrip()[-1:] != "}":
            return False
        try:
            loads(self.arguments.encode("utf-8", "surrogatepass"))
        except JsonError:
            return False
        return True

    def opening(self, arguments: str) -> dict[str, Json]:
        """The first fragment of the call."""
        self.open = True
        function = {**self.others_of_function, "name": self.name, "arguments": arguments}
        return {**self.others, "index": self.index, "id": self.id, "type": "function", "function": function}


class Calls:
    """The tool calls of one choice of a stream."""

    def __init__(self, new_id: NewId) -> None:
        self._new_id = new_id
        self._calls: list[_Call] = []

    def __bool__(self) -> bool:
        """Whether a call left."""
        return any(call.open for call in self._calls)

    def take(self, fragments: list[dict[str, Json]]) -> list[dict[str, Json]]:
        """The fragments that can leave now."""
        return [strict for fragment in fragments for strict in self._one(fragment)]

    def end(self, *, cut: bool) -> list[dict[str, Json]]:
        """What was held back: the answer is over. Calls without arguments get an empty object, unless it was `cut`."""
        left = self._release()
        for call in self._calls:
            if call.open and not cut and call.said is not _CUSTOM and not call.arguments.strip():
                call.pieces.append(_NO_ARGUMENTS)
                left.append({"index": call.index, "function": {"arguments": _NO_ARGUMENTS}})
        return left

    def _one(self, fragment: dict[str, Json]) -> list[dict[str, Json]]:
        if fragment.get("type") not in (None, "", "function") or "custom" in fragment:
            return [self._custom(fragment)]
        function = fragment.get("function")
        function = function if isinstance(function, dict) else {}
        id, name = _text(fragment.get("id")), _text(function.get("name"))
        index, arguments = _index(fragment.get("index")), arguments_text(function.get("arguments"))
        call = self._continued(index, id, name, arguments)
        left: list[dict[str, Json]] = []
        if call is None:
            if not (id or name or arguments):
                return []
            left = self._release()
            call = _Call(len(self._calls), index)
            self._calls.append(call)
        elif id and name and call.id == id and call.arguments == arguments and call.is_whole:
            return []  # the whole call once more, as some servers end a stream
        call.id, call.name = call.id or id, call.name or name
        call.pieces.append(arguments)
        others = {key: value for key, value in fragment.items() if key not in _OWN}
        others_of_function = {key: value for key, value in function.items() if key not in _OWN_OF_FUNCTION}
        if call.open:
            if arguments or others or others_of_function:
                left.append({**others, "index": call.index, "function": {**others_of_function, "arguments": arguments}})
            return left
        call.others |= others
        call.others_of_function |= others_of_function
        if call.id and call.name:
            left.append(call.opening(call.arguments))
        return left

    def _release(self) -> list[dict[str, Json]]:
        """Those that are held back leave as they are: what they lack does not come any more."""
        left = []
        for call in self._calls:
            if not call.open and (call.name or call.arguments):
                call.id = call.id or self._new_id()
                left.append(call.opening(call.arguments))
        return left

    def _custom(self, fragment: dict[str, Json]) -> dict[str, Json]:
        """A call of another kind than a function (`type: custom`) passes as it came, under an index of its own."""
        index = fragment.get("index")
        if not any(call.said is _CUSTOM and call.index == index for call in self._calls):
            self._calls.append(_Call(len(self._calls), _CUSTOM, open=True))
        return fragment

    def _continued(self, index: int | None, id: str, name: str, arguments: str) -> _Call | None:
        """The call that a fragment goes on with, None where it begins one.

        Engines count from anywhere, give all calls the index 0, or none; they repeat ids and names, or send them late.
        """
        known = self._known(index, id, name)
        if known is None or (id and known.id and id != known.id):
            return None
        if not name or not known.name:
            return known
        if name != known.name:
            return None
        again = arguments.lstrip()[:1] == "{" and known.is_whole
        return None if again and not (id and known.arguments == arguments) else known

    def _known(self, index: int | None, id: str, name: str) -> _Call | None:
        calls = self._calls
        if index is not None:
            return next((call for call in reversed(calls) if call.said == index), None)
        if id:
            known = next((call for call in reversed(calls) if call.id == id), None)
            late = calls[-1] if calls and not name and not calls[-1].id else None
            return known or late
        return calls[-1] if calls else None


_CUSTOM = "custom"
_OWN = frozenset({"index", "id", "type", "function"})
_OWN_OF_FUNCTION = frozenset({"name", "arguments"})


def whole(entries: list[dict[str, Json]], new_id: NewId) -> list[dict[str, Json]]:
    """The calls of a whole answer: each entry is one, whatever ids and indexes say."""
    return [_whole(entry, new_id) for entry in entries]


def _whole(entry: dict[str, Json], new_id: NewId) -> dict[str, Json]:
    function = entry.get("function")
    if not isinstance(function, dict):
        return entry
    text = arguments_text(function.get("arguments"))
    strict = {**function, "name": _text(function.get("name")), "arguments": text if text.strip() else _NO_ARGUMENTS}
    return {**entry, "id": _text(entry.get("id")) or new_id(), "type": "function", "function": strict}


def arguments_text(value: Json) -> str:
    """Arguments as the JSON text that clients expect; some engines send the object itself."""
    if isinstance(value, str):
        return value
    return dumps(value).decode() if isinstance(value, dict | list) else ""


def _index(value: Any) -> int | None:
    """An index as a number; some servers write it as text."""
    if isinstance(value, str) and value.isdecimal() and len(value) < 6:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _text(value: Json) -> str:
    return value if isinstance(value, str) else ""
