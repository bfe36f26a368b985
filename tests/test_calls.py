"""Tool calls leave as strict clients read them, however an engine sends them, and its ids are never changed."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy import calls
from proxy.messages import ToolCall


def fragment(id: Any = None, name: Any = None, arguments: Any = None, **more: Any) -> dict[str, Any]:
    """A tool call, or a piece of one; what is None is not there."""
    function = {key: value for key, value in {"name": name, "arguments": arguments}.items() if value is not None}
    return {**({"id": id} if id is not None else {}), **({"function": function} if function else {}), **more}


def gathered(fragments: list[dict[str, Any]], *, cut: bool = False) -> list[ToolCall]:
    """What a strict client makes of the stream; each rule that it relies on is checked."""
    numbers = itertools.count()
    strict = calls.Calls(lambda: f"new_{next(numbers)}")
    left = [piece for fragment in fragments for piece in strict.take([fragment])] + strict.end(cut=cut)
    found: list[ToolCall] = []
    for piece in left:
        function = piece["function"]
        if piece["index"] == len(found):  # the opening one
            assert piece["type"] == "function"
            assert piece["id"]
            found.append(ToolCall(function["name"], function["arguments"], piece["id"]))
        else:
            assert not {"id", "type"} & piece.keys()
            assert "name" not in function
            known = found[piece["index"]]
            found[piece["index"]] = ToolCall(known.name, known.arguments + function["arguments"], known.id)
    assert bool(strict) == bool(found)
    return found


CUTS = st.lists(st.integers(0, 50), max_size=6)
F, G = ToolCall("f", '{"a":1}', "a"), ToolCall("g", '{"b":2}', "b")


@pytest.mark.parametrize(
    "fragments",
    [
        pytest.param(
            [
                fragment("a", "f", '{"a":1}', index=0),
                fragment("b", "g", '{"b":2}', index=0),
            ],
            id="equal indexes",
        ),
        pytest.param(
            [
                fragment("a", "f", '{"a":1}', index=1),
                fragment("b", "g", '{"b":2}', index=2),
            ],
            id="from one on",
        ),
        pytest.param(
            [fragment("a", "f", '{"a"'), fragment(None, None, ":1}"), fragment("b", "g", '{"b":2}')], id="none"
        ),
        pytest.param([fragment("a", "f", '{"a":1}', index="0"), fragment("b", "g", '{"b":2}', index="1")], id="texts"),
        pytest.param(
            [
                fragment("a", "f", '{"a"', index=0),
                fragment("a", "f", ":1}", index=0),
                fragment("b", "g", '{"b":2}', index=1),
            ],
            id="id and name repeated",
        ),
        pytest.param(
            [
                fragment("a", "f", '{"a"', index=0),
                fragment("", "", ":1}", index=0),
                fragment("b", "g", '{"b":2}', index=1),
            ],
            id="empty id",
        ),
        pytest.param(
            [
                fragment("a", "f", '{"a"'),
                fragment("b", "g", '{"b"'),
                fragment("a", None, ":1}"),
                fragment("b", None, ":2}"),
            ],
            id="by id alone",
        ),
        pytest.param(
            [
                fragment(None, "f", index=0),
                fragment("a", index=0),
                fragment(None, None, '{"a":1}', index=0),
                fragment("b", index=1),
                fragment(None, "g", index=1),
                fragment(None, None, '{"b":2}', index=1),
            ],
            id="id late, name late",
        ),
        pytest.param(
            [
                fragment("a", "f", {"a": 1}, index=0),
                fragment("b", "g", {"b": 2}, index=1),
            ],
            id="objects",
        ),
        pytest.param(
            [
                fragment("a", "f", '{"a":1}', index=0),
                fragment("b", "g", '{"b":2}', index=1),
                fragment("a", "f", '{"a":1}', index=0),
                fragment("b", "g", '{"b":2}', index=1),
            ],
            id="all once more",
        ),
        pytest.param(
            [
                fragment("a", "f", '{"a"', index=0),
                fragment("b", "g", '{"b"', index=1),
                fragment(None, None, ":1}", index=0),
                fragment(None, None, ":2}", index=1),
            ],
            id="interleaved",
        ),
        pytest.param(
            [
                fragment("a", "f", '{"a":1}', index=0),
                {},
                {"index": 7},
                {"function": None},
                fragment("b", "g", '{"b":2}'),
            ],
            id="pieces of nothing",
        ),
    ],
)
def test_odd_fragments_are_the_calls_they_mean(fragments):
    """Indexes that are missing, equal, texts or offset; ids and names that are repeated, empty or late; objects."""
    assert gathered(fragments) == [F, G]


@pytest.mark.parametrize("index", [{}, {"index": 0}])
@pytest.mark.parametrize("names", [("f", "g"), ("f", "f")])
def test_whole_calls_without_ids_are_told_apart(index, names):
    """A name behind whole arguments begins another call, of the same function too; each gets an id of its own."""
    found = gathered([fragment(None, name, '{"a":1}', **index) for name in names])
    assert [(call.name, call.arguments) for call in found] == [(name, '{"a":1}') for name in names]
    assert [call.id for call in found] == ["new_0", "new_1"]


def test_a_call_without_arguments_gets_an_empty_object():
    """Clients parse the text; one that was cut stays as it is."""
    assert gathered([fragment("a", "f", "", index=0)]) == [ToolCall("f", "{}", "a")]
    assert gathered([fragment("a", "f", "", index=0)], cut=True) == [ToolCall("f", "", "a")]


def test_further_fields_of_a_call_go_along():
    """Signatures that a vendor puts beside a call must come back to it."""
    strict = calls.Calls(lambda: "new")
    (first,) = strict.take([{**fragment("a", "f", "{}", index=3), "extra_content": {"google": 1}}])
    assert first["extra_content"] == {"google": 1}


@pytest.mark.parametrize("name", [None, "g"])
def test_a_new_id_in_the_middle_of_arguments_begins_no_call(name):
    """Some servers make an id for each fragment; the first is the call's."""
    pieces = ['{"a"', ": 1", "}"]
    fragments = [fragment(f"t{at}", name if at else "g", piece, index=0) for at, piece in enumerate(pieces)]
    assert gathered(fragments) == [ToolCall("g", '{"a": 1}', "t0")]


def test_a_call_without_a_function_object_is_one():
    """Some servers write name and arguments beside the id."""
    flat = {"index": 0, "id": "a", "name": "f", "arguments": '{"x":1}'}
    assert gathered([flat]) == [ToolCall("f", '{"x":1}', "a")]
    (whole,) = calls.whole([flat], lambda: "new")
    assert whole["function"] == {"name": "f", "arguments": '{"x":1}'}


@given(
    st.dictionaries(st.text(max_size=4), st.text(max_size=6) | st.lists(st.integers(), max_size=2), max_size=3), CUTS
)
def test_arguments_are_known_to_be_whole_exactly_at_their_end(value, cuts):
    """Wherever they are cut, in escapes too: what comes of the next call waits until then, and no longer."""
    text = json.dumps(value)
    places = [0, *sorted({1 + cut % (len(text) - 1) for cut in cuts}), len(text)]
    strict = calls.Calls(lambda: "new")
    first = fragment("a", "f", text[: places[1]], index=0)
    strict.take([first, fragment("b", "g", "{}", index=1)])
    for start, end in itertools.pairwise(places[1:]):
        left = strict.take([fragment(None, None, text[start:end], index=0)])
        assert any(piece["index"] == 1 for piece in left) == (end == len(text))


def test_a_call_of_another_kind_passes_as_it_came():
    """OpenAI's custom tools have no function."""
    custom = {"index": 0, "id": "a", "type": "custom", "custom": {"name": "f", "input": "x"}}
    strict = calls.Calls(lambda: "new")
    assert (strict.take([custom]), strict.end(cut=False), bool(strict)) == ([custom], [], True)


@pytest.mark.parametrize("id", ["functions.f:0", "", None])
def test_each_entry_of_a_whole_answer_is_a_call(id):
    """Kimi's ids repeat and stay; only where there is none, one is made."""
    entries = [fragment(id, "f", {"a": 1}), fragment(id, "f", "")]
    found = calls.whole(entries, lambda: "new")
    assert [(call["id"], call["type"], call["function"]["arguments"]) for call in found] == [
        (id or "new", "function", '{"a":1}'),
        (id or "new", "function", "{}"),
    ]


ANSWERS = st.lists(
    st.tuples(
        st.sampled_from(["f", "g", "functions.x"]),
        st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=5) | st.none(), max_size=3),
    ),
    min_size=1,
    max_size=4,
)


@given(
    ANSWERS, st.lists(st.integers(0, 50), max_size=6), st.sampled_from(["plain", "sglang", "repeats", "bare", "zero"])
)
def test_any_calls_arrive_in_any_manner(answer, cuts, manner):
    """However the arguments are cut, and whatever is left out of or repeated in the fragments."""
    wanted = [ToolCall(name, json.dumps(value), f"id_{at}") for at, (name, value) in enumerate(answer)]
    fragments = []
    for at, call in enumerate(wanted):
        places = [0, *sorted(cut % (len(call.arguments) + 1) for cut in cuts), len(call.arguments)]
        for number, (start, end) in enumerate(itertools.pairwise(places)):
            piece = call.arguments[start:end]
            first = number == 0
            fragments.append(
                {
                    "plain": fragment(call.id if first else None, call.name if first else None, piece, index=at),
                    "sglang": {
                        "id": call.id if first else None,
                        "index": at,
                        "type": "function",
                        "function": {"name": call.name if first else None, "arguments": piece},
                    },
                    "repeats": fragment(call.id, call.name, piece, index=at),
                    "bare": fragment(call.id if first else None, call.name if first else None, piece),
                    "zero": fragment(call.id if first else "", call.name if first else "", piece, index=0),
                }[manner]
            )
    assert gathered(fragments) == wanted


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4), lambda inner: st.lists(inner, max_size=2)
)


@given(
    st.lists(
        st.fixed_dictionaries(
            {},
            optional={
                "index": JUNK,
                "id": JUNK,
                "type": st.sampled_from(["function", "", None]),
                "function": JUNK | st.fixed_dictionaries({}, optional={"name": JUNK, "arguments": JUNK}),
            },
        ),
        max_size=8,
    )
)
def test_what_leaves_is_strict_whatever_comes(fragments):
    """`gathered` checks each rule that clients rely on."""
    gathered(fragments)
