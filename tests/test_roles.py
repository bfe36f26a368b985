"""Messages leave with the roles that the engine knows, their texts whole and in order."""

from __future__ import annotations

import json

import pytest

from proxy import normalise
from proxy.dialects.roles import system_only


def fitted(*messages):
    """The messages as they leave."""
    request = normalise.read(json.dumps({"model": "m", "messages": list(messages)}).encode())
    return [json.loads(message.raw) for message in system_only(request.messages)]


SYSTEM, DEVELOPER, USER = ({"role": role, "content": role[0]} for role in ("system", "developer", "user"))


def test_developer_is_system_wherever_it_stands():
    """Also in mid-conversation, and with what else the message has."""
    named = {"role": "developer", "name": "n", "content": "d"}
    assert fitted(USER, named) == [USER, {"role": "system", "name": "n", "content": "d"}]


@pytest.mark.parametrize("first", [SYSTEM, DEVELOPER])
@pytest.mark.parametrize("second", [SYSTEM, DEVELOPER])
def test_several_at_the_head_are_one(first, second):
    """With a blank line between them; later ones stay where they are."""
    texts = first["content"] + "\n\n" + second["content"]
    assert fitted(first, second, USER, SYSTEM) == [{"role": "system", "content": texts}, USER, SYSTEM]


def test_lists_of_parts_are_joined_as_parts():
    """Their pictures and cache marks are kept."""
    part = {"type": "text", "text": "b", "cache_control": {"type": "ephemeral"}}
    (joined, _) = fitted(SYSTEM, {"role": "developer", "content": [part]}, USER)
    assert joined["content"] == [{"type": "text", "text": "s"}, {"type": "text", "text": "\n\n"}, part]


def test_one_alone_keeps_its_bytes():
    """Nothing is written anew without need."""
    raw = b'{"content" : "s", "role": "system"}'
    request = normalise.read(b'{"model":"m","messages":[' + raw + b"]}")
    assert system_only(request.messages)[0].raw == raw
