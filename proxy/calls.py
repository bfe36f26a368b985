"""Tool calls as strict clients read them, from the fragments that engines send.

What leaves has indexes 0, 1, 2 … in the order in which calls begin; id, type and name once, on the first fragment of a
call; arguments as text. An id of the engine's is never changed: some models are trained on the form of theirs. Only a
call that has none gets one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from proxy.jsons import dumps
from proxy.messages import Json

NewId = Callable[[], str]
"""Makes an id for a call that the engine gave none."""

_NO_ARGUMENTS = "{}"
_MARKS = re.compile(r'\\.?|["{}\[\]]', re.DOTALL)
"""What tells where a JSON text ends."""


@dataclass(slots=True)
class _Call:
    """One call as it grows. `index` is the strict one, once it is open; `unsent` are arguments that wait, with `others`
    of its fields."""

    index: int = -1
    id: str = ""
    name: str = ""
    pieces: list[str] = field(default_factory=list)
    unsent: list[str] = field(default_factory=list)
    seen: int = 0
    depth: int = -1  # before the first bracket
    quoted: bool = False
    escape: str = ""
    others: dict[str, Json] = field(default_factory=dict)
    others_of_function: dict[str, Json] = field(default_factory=dict)

    @property
    def open(self) -> bool:
        """Its first fragment left."""
        return self.index >= 0

    @property
    def arguments(self) -> str:
        return "".join(self.pieces)

    @property
    def is_whole(self) -> bool:
        """Whether no argument can follow: the object has ended. Each piece is looked at once."""
        if self.seen < len(self.pieces):
            text = self.escape + "".join(self.pieces[self.seen :])
            self.seen, self.escape = len(self.pieces), ""
            for mark in _MARKS.findall(text):
                self._read(mark)
        return self.depth == 0 and not self.quoted

    def _read(self, mark: str) -> None:
        if mark.startswith("\\"):
            self.escape = mark if len(mark) == 1 else ""  # what it escapes is still to come
        elif self.quoted:
            self.quoted = mark != '"'
        elif mark == '"':
            self.quoted = True
        elif mark in "{[":
            self.depth = max(self.depth, 0) + 1
        elif mark in "}]":
            self.depth -= 1

    def grow(self, fragment: dict[str, Json], function: dict[str, Json], arguments: str) -> None:
        """Take a fragment in."""
        self.id, self.name = self.id or _text(fragment.get("id")), self.name or _text(function.get("name"))
        self.others |= {key: value for key, value in fragment.items() if key not in _OWN}
        self.others_of_function |= {key: value for key, value in function.items() if key not in _OWN_OF_FUNCTION}
        if arguments:
            self.pieces.append(arguments)
            self.unsent.append(arguments)

    def left(self, index: int) -> list[dict[str, Json]]:
        """The fragment that says what is unsent, if anything is; `index` is for the first one."""
        arguments, opening = "".join(self.unsent), not self.open
        if not (arguments or opening or self.others or self.others_of_function):
            return []
        if opening:
            self.index = index
        function: dict[str, Json] = {"arguments": arguments, **self.others_of_function}
        strict: dict[str, Json] = {"index": self.index, "function": function, **self.others}
        if opening:
            strict |= {"id": self.id, "type": "function"}
            function["name"] = self.name
        self.unsent, self.others, self.others_of_function = [], {}, {}
        return [strict]


class Calls:
    """The tool calls of one choice of a stream.

    They leave one behind the other, because the openai SDK reads the arguments of a call when the next one begins: what
    comes of a later call waits until the one before is whole. A call waits for its id and its name as long.
    """

    def __init__(self, new_id: NewId) -> None:
        self._new_id = new_id
        self._calls: list[_Call] = []
        self._by_index: dict[int, _Call] = {}
        self._by_id: dict[str, _Call] = {}
        self._custom = False
        self._at = 0  # of the call that is leaving
        self._opened = 0

    def __bool__(self) -> bool:
        """Whether a call left."""
        return self._custom or self._opened > 0

    def take(self, fragments: list[dict[str, Json]]) -> list[dict[str, Json]]:
        """The fragments that can leave now."""
        return [strict for fragment in fragments for strict in self._one(fragment)]

    def end(self, *, cut: bool) -> list[dict[str, Json]]:
        """What was held back: the answer is over. Calls without arguments get an empty object, unless it was `cut`."""
        left = []
        for call in self._calls[self._at :]:
            if not cut and call.name and not call.arguments.strip():
                call.grow({}, {}, _NO_ARGUMENTS)
            if call.open or call.name or call.arguments:
                left += self._leave(call)
        self._at = len(self._calls)
        return left

    def _one(self, fragment: dict[str, Json]) -> list[dict[str, Json]]:
        if fragment.get("type") not in (None, "", "function") or "custom" in fragment:
            self._custom = True
            return [fragment]  # OpenAI's custom tools have no function: they pass as they came
        function = _function(fragment)
        id, name = _text(fragment.get("id")), _text(function.get("name"))
        index, arguments = _index(fragment.get("index")), arguments_text(function.get("arguments"))
        call = self._continued(index, id, name, arguments)
        if call is None:
            if not (id or name or arguments):
                return []
            call = _Call()
            self._calls.append(call)
        elif id and name and call.id == id and call.is_whole and call.arguments == arguments:
            return []  # the whole call once more, as some servers end a stream
        call.grow(fragment, function, arguments)
        if index is not None:
            self._by_index[index] = call
        if call.id:
            self._by_id[call.id] = call
        return self._due()

    def _due(self) -> list[dict[str, Json]]:
        """What of the call that is leaving, and of those behind it, can leave."""
        left = []
        while self._at < len(self._calls):
            call = self._calls[self._at]
            if call.open or (call.id and call.name):
                left += self._leave(call)
            if self._at + 1 == len(self._calls) or not call.is_whole:
                break
            left += self._leave(call)
            self._at += 1
        return left

    def _leave(self, call: _Call) -> list[dict[str, Json]]:
        call.id = call.id or self._new_id()
        left = call.left(self._opened)
        self._opened = max(self._opened, call.index + 1)
        return left

    def _continued(self, index: int | None, id: str, name: str, arguments: str) -> _Call | None:
        """The call that a fragment goes on with, None where it begins one.

        Engines count from anywhere, give all calls the index 0, or none; they repeat ids and names, or send them late.
        """
        known = self._known(index, id, name)
        if known is None:
            return None
        if id and known.id and id != known.id and (name or known.is_whole):
            # Another id alone, in the middle of arguments, is one of the servers that make a new one each time.
            return known if name == known.name and known.pieces and not known.is_whole else None
        if not name or not known.name:
            return known
        if name != known.name:
            return None
        again = arguments.lstrip()[:1] == "{" and known.is_whole
        return None if again and not (id and known.arguments == arguments) else known

    def _known(self, index: int | None, id: str, name: str) -> _Call | None:
        if index is not None:
            return self._by_index.get(index)
        last = self._calls[-1] if self._calls else None
        if not id:
            return last
        late = last if last is not None and not name and not last.id else None
        return self._by_id.get(id) or late


_OWN_OF_FUNCTION = frozenset({"name", "arguments"})
_OWN = frozenset({"index", "id", "type", "function"}) | _OWN_OF_FUNCTION


def _function(fragment: dict[str, Json]) -> dict[str, Json]:
    """The function of a call; some servers write its fields beside the id."""
    function = fragment.get("function")
    if isinstance(function, dict):
        return function
    return {name: fragment[name] for name in _OWN_OF_FUNCTION if name in fragment}


def whole(entries: list[dict[str, Json]], new_id: NewId) -> list[dict[str, Json]]:
    """The calls of a whole answer: each entry is one, whatever ids and indexes say."""
    return [_whole(entry, new_id) for entry in entries]


def _whole(entry: dict[str, Json], new_id: NewId) -> dict[str, Json]:
    function = _function(entry)
    if not function:
        return entry
    entry = {name: value for name, value in entry.items() if name not in _OWN_OF_FUNCTION}
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
