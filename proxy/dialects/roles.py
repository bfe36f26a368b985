"""The roles of messages, for engines and templates that know fewer of them than OpenAI does."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

import msgspec

from proxy.jsons import dumps, splice
from proxy.messages import Message

_JOINT = "\n\n"


def system_only(messages: Sequence[Message]) -> list[Message]:
    """`developer` as `system`, and several of them at the head as one, with a blank line between their texts."""
    renamed = [_renamed(message) if message.role == "developer" else message for message in messages]
    leading = list(takewhile(lambda message: message.role == "system", renamed))
    if len(leading) < 2:
        return renamed
    return [_joined(leading), *renamed[len(leading) :]]


def _renamed(message: Message) -> Message:
    return msgspec.structs.replace(message, role="system", raw=splice({**message.fields, "role": b'"system"'}))


def _joined(messages: list[Message]) -> Message:
    contents = [message.content for message in messages if message.content is not None]
    content: Any = _JOINT.join(contents) if all(isinstance(each, str) for each in contents) else _parts(contents)
    first = messages[0]
    return msgspec.structs.replace(first, content=content, raw=splice({**first.fields, "content": dumps(content)}))


def _parts(contents: list[Any]) -> list[Any]:
    """Contents of which some are lists of parts, as one list."""
    parts: list[Any] = []
    for at, content in enumerate(contents):
        blank = [{"type": "text", "text": _JOINT}] if at else []
        parts += [*blank, *(content if isinstance(content, list) else [{"type": "text", "text": content}])]
    return parts
