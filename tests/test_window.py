"""How much of a window a prompt takes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from chats import Memory, asks, request

from proxy import window
from proxy.errors import ContextLengthExceeded
from proxy.messages import History, Plan


def plan(*contents, limit: int | None = 1000, density: float = 3.0, **changes) -> Plan:
    """A plan for user messages with these contents."""
    asked = request(*map(asks, contents))
    facts = replace(Memory().facts, context_limit=limit, bytes_per_token=density)
    return replace(Plan(asked, facts, asked.messages), **changes)


def test_room_is_what_the_prompt_leaves():
    """Messages, tools, restored thoughts and the template's own tokens count; without a known window there is none."""
    assert window.room(plan("x" * 300)) == pytest.approx(1000 - 110 - 40, abs=5)
    assert window.room(plan("x" * 300, restored={1: 600})) == pytest.approx(1000 - 310 - 40, abs=5)
    assert window.room(plan("x" * 300, limit=None)) is None


def test_a_picture_counts_at_a_fixed_size():
    """Its file's megabytes are no tokens."""
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 3_000_000}}
    left = window.room(plan([{"type": "text", "text": "what is this?"}, picture], limit=10_000))
    assert left is not None
    assert left > 8000


def test_nothing_is_left_out_where_there_is_room():
    """Or where the window is unknown."""
    assert window.left_out(plan("x", restored={0: 100}), 1, 500) == []
    assert window.left_out(plan("x" * 9000, limit=None, restored={0: 100}), 1, 500) == []


def test_the_oldest_go_first_and_the_tool_loop_last():
    """Until an answer fits, in steps of an eighth of the window."""
    sizes = {1: 300, 3: 300, 5: 300, 7: 300}
    crowded = plan("x" * 700, restored=sizes)  # 245 + 400 tokens of 1000
    assert window.left_out(crowded, 7, 500) == [1, 3, 5]  # 145 tokens are missing: two steps of 125
    assert window.left_out(crowded, 3, 500) == [1, 3, 5]
    assert window.left_out(plan("x" * 3000, restored=sizes), 5, 500) == [1, 3, 5, 7]
    assert window.left_out(plan("x" * 3000, restored=sizes), 1, 500) == [1, 3, 5, 7]
    mixed = plan("x" * 700, restored={1: 900, 3: 300})
    assert window.left_out(mixed, 3, 500) == [1]


def test_an_answer_never_asks_for_more_than_half_of_the_window():
    """A floor above the window would leave out everything always."""
    assert window.left_out(plan("x" * 900, restored={1: 300}), 5, 5000) == []


def test_a_prompt_is_refused_only_where_it_cannot_fit():
    """The estimate for that is on the other side: no text in use has more bytes to a token."""
    window.check(plan("x" * 5800))
    window.check(plan("x" * 99_000, limit=None))
    with pytest.raises(ContextLengthExceeded, match=r"tokens or more.*takes 1000: shorten `messages`"):
        window.check(plan("x" * 6500))
    with pytest.raises(ContextLengthExceeded, match="even without the thoughts that were left out"):
        window.check(plan("x" * 6500, history=History(dropped=2)))
