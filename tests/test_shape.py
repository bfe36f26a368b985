"""Thoughts come apart from texts, and echoes of a filler are not heard, for any cut of a stream."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.dialects import DIALECTS
from proxy.families import load
from proxy.fold import Fold
from proxy.render import Shown, View
from proxy.shape import Shaper, Thinking

DIALECT = DIALECTS["openai"]
FILLER = "(nothing kept)"


def shaper(tags: Any = "auto", *, thinks: bool = True, filler: str = "") -> Shaper:
    """A shaper with these settings."""
    family = load().named("generic" if thinks else "plain")
    return Shaper(Thinking(tags=tags), family, filler=filler, new_id=lambda: "call_new")


def stream(*deltas: dict[str, Any], of: Shaper, shown: Shown = "reasoning_content", index: int = 0) -> dict[str, str]:
    """What a client gathers from a stream of these deltas, the last with a finish; checked against the fold."""
    view, fold = View(shown, include_usage=False), Fold()
    got: dict[str, str] = {}
    payloads = [json.dumps({"choices": [{"index": index, "delta": delta}]}).encode() for delta in deltas]
    payloads.append(json.dumps({"choices": [{"index": index, "delta": {}, "finish_reason": "stop"}]}).encode())
    for payload in payloads:
        event = DIALECT.decode(payload)
        of.apply(event)
        fold.add(event)
        if sent := view.event(event):
            delta = json.loads(sent.removeprefix(b"data: "))["choices"][0]["delta"]
            for name in ("content", "reasoning_content"):
                if name in delta:
                    got[name] = got.get(name, "") + (delta[name] or "")
    choice = fold.choices[index]
    assert (got.get("content", ""), "".join(choice.text)) == ("".join(choice.text),) * 2
    if shown == "reasoning_content":
        assert got.get("reasoning_content", "") == "".join(choice.reasoning)
    return got


def pieces(text: str, cuts: list[int], name: str = "content") -> list[dict[str, str]]:
    """The text in deltas, cut at these places."""
    places = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    return [{name: text[a:b]} for a, b in itertools.pairwise(places)]


CUTS = st.lists(st.integers(0, 60), max_size=8)


@pytest.mark.parametrize("tags", ["auto", "parse"])
@given(cuts=CUTS)
def test_a_leading_thought_block_is_the_thought(tags, cuts):
    """Wherever the stream is cut."""
    said = stream(*pieces("<think>I look.</think>\n\nTwo < three.", cuts), of=shaper(tags))
    assert (said["reasoning_content"], said["content"]) == ("I look.", "Two < three.")


@given(cuts=CUTS)
def test_a_prefilled_thought_begins_at_once(cuts):
    """The prompt has opened it."""
    said = stream(*pieces("I look.</think>Two.", cuts), of=shaper("parse-prefilled"))
    assert (said["reasoning_content"], said["content"]) == ("I look.", "Two.")


@pytest.mark.parametrize(("tags", "thinks"), [("off", True), ("auto", False)])
def test_texts_are_left_alone_where_that_is_wanted(tags, thinks):
    """Switched off, or a model that does not think."""
    text = "<think>I look.</think>Two."
    assert stream({"content": text}, of=shaper(tags, thinks=thinks)) == {"content": text}


def test_an_engine_that_names_the_thought_has_told_them_apart_already():
    """Then a block in the text is text; `parse` looks all the same."""
    deltas = ({"reasoning_content": "R"}, {"content": "<think>x</think>y"})
    assert stream(*deltas, of=shaper())["content"] == "<think>x</think>y"
    assert stream(*deltas, of=shaper("parse"))["content"] == "y"


def test_a_thought_that_never_ends_stays_a_thought():
    """The cap cut it; nothing visible is invented."""
    said = stream({"role": "assistant", "content": "<think>I lo"}, of=shaper())
    assert (said["reasoning_content"], said["content"]) == ("I lo", "")


def test_what_is_held_back_leaves_before_a_call():
    """A lone beginning of a tag is text after all."""
    call = {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}]}
    assert stream({"content": "<thi"}, call, of=shaper()) == {"content": "<thi"}


def test_what_is_held_back_when_a_stream_breaks_off_is_not_lost():
    """The rest is text; a second look finds nothing more."""
    of, view = shaper(), View("both", include_usage=False)
    of.apply(DIALECT.decode(b'{"id":"c","choices":[{"index":1,"delta":{"role":"assistant"}}]}'))
    event = DIALECT.decode(b'{"id":"c","choices":[{"index":1,"delta":{"content":"<thi"}}]}')
    of.apply(event)
    assert view.event(event) == b""
    rest = of.rest()
    sent = json.loads(view.rest(rest).removeprefix(b"data: "))
    assert sent["choices"] == [{"index": 1, "delta": {"content": "<thi"}, "finish_reason": None}]
    assert of.rest() == []
    assert view.rest([]) == b""


@given(cuts=CUTS, names=st.sampled_from(["reasoning_content", "reasoning"]))
def test_an_echo_of_the_filler_is_neither_shown_nor_kept(cuts, names):
    """At the head of a thought, wherever it is cut, and also several times."""
    of = shaper(filler=FILLER)
    said = stream(*pieces(f"\n{FILLER}\n{FILLER}\n\nI look.", cuts, names), {"content": "Two."}, of=of)
    assert said == {"reasoning_content": "I look.", "content": "Two."}
    assert of.heard


@given(cuts=CUTS)
def test_what_only_begins_like_the_filler_is_the_models_own(cuts):
    """It leaves whole."""
    of = shaper(filler=FILLER)
    said = stream(*pieces("(nothing k) is odd", cuts, "reasoning_content"), {"content": "Two."}, of=of)
    assert said == {"reasoning_content": "(nothing k) is odd", "content": "Two."}
    assert not of.heard


def test_half_an_echo_at_the_end_of_a_thought_is_a_thought():
    """The visible text tells that nothing more of it comes."""
    said = stream({"reasoning_content": "(noth"}, {"content": "Two."}, of=shaper(filler=FILLER))
    assert said == {"reasoning_content": "(noth", "content": "Two."}


@pytest.mark.parametrize(("shown", "names"), [("hidden", set()), ("both", {"reasoning", "reasoning_content"})])
def test_a_split_thought_is_shown_under_the_clients_names(shown, names):
    """Or not at all; also in a whole answer."""
    body = {
        "choices": [
            {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "<think>R</think>T"}}
        ]
    }
    event = DIALECT.decode(json.dumps(body).encode(), whole=True)
    shaper().apply(event, whole=True)
    message = json.loads(View(shown, include_usage=True).whole(event))["choices"][0]["message"]
    assert message == {"role": "assistant", "content": "T", **dict.fromkeys(names, "R")}


def test_the_role_is_said_once_and_first():
    """The SDK adds texts up, roles too; some servers repeat it on every chunk, others never say it."""
    for deltas in (
        [{"role": "assistant", "content": "a"}] * 2,
        [{"content": "a"}] * 2,
        [{"role": "", "content": "a"}] * 2,
    ):
        of, view, sent = shaper("off"), View("both", include_usage=False), []
        for delta in deltas:
            event = DIALECT.decode(json.dumps({"choices": [{"index": 0, "delta": delta}]}).encode())
            of.apply(event)
            sent.append(json.loads(view.event(event).removeprefix(b"data: "))["choices"][0]["delta"])
        assert sent == [{"role": "assistant", "content": "a"}, {"content": "a"}]


def test_nothing_is_written_anew_where_nothing_changes():
    """The usual stream passes with the bytes that came."""
    of = shaper(filler=FILLER)
    for delta in (
        {"role": "assistant", "content": None},
        {"reasoning_content": "I"},
        {"content": "T"},
        {"content": "<think>"},
    ):
        event = DIALECT.decode(json.dumps({"choices": [{"index": 0, "delta": delta}]}).encode())
        of.apply(event)
        assert not event.shaped


def test_held_calls_leave_before_the_finish():
    """The openai SDK tells of a call when something follows it."""
    of, view = shaper(), View("both", include_usage=False)
    call = {"index": 0, "function": {"name": "f", "arguments": "{}"}}
    sent = b""
    for choice in (
        {"index": 0, "delta": {"role": "assistant", "tool_calls": [call]}},
        {"index": 0, "delta": {}, "finish_reason": "stop"},
    ):
        event = DIALECT.decode(json.dumps({"choices": [choice]}).encode())
        of.apply(event)
        sent += view.event(event)
    choices = [json.loads(line[6:])["choices"][0] for line in sent.split(b"\n\n") if line]
    assert [choice["finish_reason"] for choice in choices] == [None, None, "tool_calls"]
    assert choices[1]["delta"]["tool_calls"][0]["id"] == "call_new"
    assert choices[2]["delta"] == {}


@pytest.mark.parametrize("delta", [{}, {"content": ""}, {"content": None}])
def test_a_finish_that_is_said_again_leaves_nothing(delta):
    """Nothing stands behind the usage, whatever the second one has beside it."""
    of, view = shaper(), View("both", include_usage=True)
    end = {"choices": [{"index": 0, "delta": delta, "finish_reason": "stop"}]}
    sent = []
    for body in (end, {"choices": [], "usage": {"completion_tokens": 1}}, end):
        event = DIALECT.decode(json.dumps(body).encode())
        of.apply(event)
        sent.append(view.event(event))
    assert (bool(sent[0]), bool(sent[1]), sent[2]) == (True, True, b"")
