"""What a client is shown: strict, under its names, and untouched where nothing needs a change."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy import sse
from proxy.dialects import DIALECTS
from proxy.events import Usage
from proxy.fold import Fold
from proxy.messages import ToolCall
from proxy.render import Shown, View
from proxy.thinking import lifted

DIALECT = DIALECTS["openai"]


def chunk(*choices: dict[str, Any], **fields: Any) -> bytes:
    """One event with these choices."""
    return json.dumps({"id": "c", "model": "m", "choices": list(choices), **fields}, ensure_ascii=False).encode()


def delta(index: Any = 0, finish: str | None = None, **said: Any) -> dict[str, Any]:
    """One choice with this delta."""
    return {"index": index, "delta": said, "finish_reason": finish}


def shown(payloads: list[bytes], names: Shown = "reasoning_content", *, usage: bool = False) -> list[bytes]:
    """What leaves for each event."""
    view = View(names, include_usage=usage)
    return [view.event(DIALECT.decode(payload)) for payload in payloads]


def folded(*payloads: bytes) -> Fold:
    """What the events add up to."""
    fold = Fold()
    for payload in payloads:
        fold.add(DIALECT.decode(payload))
    return fold


@pytest.mark.parametrize(
    "payload",
    [
        chunk(delta(role="assistant", content=None)),
        chunk(delta(reasoning_content="x", content=None)),
        chunk(delta(content="é\u2028", reasoning_content=None), unknown={"a": 1}),
        chunk(delta(finish="stop"), timings={"predicted_n": 3}),
        chunk(delta(content="a"), delta(1, content="b")),
    ],
)
def test_an_event_that_needs_no_change_leaves_as_the_bytes_that_came(payload):
    """Byte for byte, unknown fields included."""
    assert shown([payload]) == [sse.encode(payload)]


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ("reasoning_content", {"reasoning_content": "x"}),
        ("reasoning", {"reasoning": "x"}),
        ("both", {"reasoning_content": "x", "reasoning": "x"}),
    ],
)
@pytest.mark.parametrize(
    "came", [{"reasoning": "x"}, {"reasoning_content": "x"}, {"reasoning": "x", "reasoning_content": "x"}]
)
def test_a_client_gets_the_thought_under_its_own_name(names, said, came):
    """vLLM and Ollama write `reasoning`, llama-server `reasoning_content`; a client sees what it asked for, once."""
    (event,) = shown([chunk(delta(**came))], names)
    assert json.loads(event[6:])["choices"][0]["delta"] == said


def test_a_hidden_thought_leaves_no_event():
    """A client that wants no thoughts gets only the text."""
    events = shown([chunk(delta(reasoning="x")), chunk(delta(content="a", reasoning="y"))], "hidden")
    assert events[0] == b""
    assert json.loads(events[1][6:])["choices"][0]["delta"] == {"content": "a"}


def test_empty_thoughts_are_not_forwarded():
    """An empty text would open a thinking block in some front ends."""
    events = shown([chunk(delta(reasoning="")), chunk(delta(content="a", reasoning_content=""))])
    assert events[0] == b""
    assert json.loads(events[1][6:])["choices"][0]["delta"] == {"content": "a"}


def test_a_choice_without_a_delta_or_index_is_made_strict():
    """SDKs fail on a missing delta and on an index that is null."""
    events = shown([chunk({"index": 0, "finish_reason": None}), chunk({"delta": {"content": "a"}, "index": None})])
    assert events[0] == b""
    assert json.loads(events[1][6:])["choices"][0]["index"] == 0


def test_usage_goes_only_to_those_who_asked():
    """The proxy asks for usage for its own account."""
    last = chunk(usage={"completion_tokens": 3})
    inside = chunk(delta(content="a"), usage={"completion_tokens": 1})
    assert shown([last]) == [b""]
    (event,) = shown([inside])
    assert "usage" not in json.loads(event[6:])


@pytest.mark.parametrize(
    "tail",
    [
        [chunk(delta(content="a", finish="stop")), chunk(usage={"completion_tokens": 3})],
        [chunk(delta(content="a", finish="stop"), usage={"completion_tokens": 3})],
        [chunk(delta(content="a")), chunk({**delta(finish="stop"), "usage": {"completion_tokens": 3}})],
        [chunk(delta(content="a")), chunk(usage={"completion_tokens": 3}), chunk(delta(finish="stop"))],
        [
            chunk(delta(content="a"), usage={"completion_tokens": 1}),
            chunk(delta(finish="stop"), usage={"completion_tokens": 3}),
        ],
        [chunk(delta(finish="stop")), chunk(usage={"completion_tokens": 3}), chunk(usage={"completion_tokens": 3})],
    ],
)
def test_usage_comes_once_and_last(tail):
    """Wherever the engine puts it: beside the finish, in the choice, on every chunk, too early or twice."""
    view, fold = View("reasoning_content", include_usage=True), Fold()
    sent = []
    for payload in tail:
        event = DIALECT.decode(payload)
        fold.add(event)
        sent.append(view.event(event))
    payloads = sse.Decoder().feed(b"".join([*sent, view.close(fold)]))
    *events, last = [json.loads(payload) for payload in payloads[:-1]]
    assert (last["choices"], last["usage"]) == ([], {"completion_tokens": 3})
    assert not any("usage" in event or "usage" in event["choices"][0] for event in events)


def test_running_totals_go_to_those_who_asked_for_them():
    """vLLM's `continuous_usage_stats` are left on every chunk."""
    inside = chunk(delta(content="a"), usage={"completion_tokens": 1})
    view = View("reasoning_content", include_usage=True, continuous_usage=True)
    assert view.event(DIALECT.decode(inside)) == sse.encode(inside)


def test_thoughts_in_tags_stand_before_the_text():
    """`think_tags` is for front ends that read a thought only in the text; the tag closes before text, call or end."""
    events = [delta(reasoning="a"), delta(reasoning_content="b"), delta(content="c"), delta(finish="stop")]
    sent = b"".join(shown([chunk(event) for event in events], "think_tags"))
    said = [json.loads(payload)["choices"][0]["delta"] for payload in sse.Decoder().feed(sent)]
    assert said == [{"content": "<think>\na"}, {"content": "b"}, {"content": "\n</think>\n\nc"}, {}]
    (_cut, end) = shown([chunk(delta(reasoning="a")), chunk(delta(finish="length"))], "think_tags")
    assert json.loads(end[6:])["choices"][0]["delta"] == {"content": "\n</think>\n\n"}


def test_a_whole_answer_has_its_thought_in_tags():
    """The same as streamed, and a front end that sends it back is understood."""
    message = {"role": "assistant", "content": "c", "reasoning_content": "a"}
    event = DIALECT.decode(chunk({"index": 0, "message": message, "finish_reason": "stop"}), whole=True)
    body = json.loads(View("think_tags", include_usage=False).whole(event))
    text = body["choices"][0]["message"]["content"]
    assert (text, lifted(text)) == ("<think>\na\n</think>\n\nc", ("a", "c"))


def test_a_stream_without_a_finish_gets_the_one_it_lacks():
    """`[DONE]` without a finish is complete: calls end with `tool_calls`, text with `stop`."""
    call = {"index": 0, "id": "a", "function": {"name": "f", "arguments": "{}"}}
    payloads = [chunk(delta(content="a")), chunk(delta(1, tool_calls=[call])), chunk(delta(2, finish="length"))]
    view = View("reasoning_content", include_usage=False)
    fold = Fold()
    for payload in payloads:
        event = DIALECT.decode(payload)
        fold.add(event)
        view.event(event)
    closing, done, rest = view.close(fold).split(b"\n\n")
    assert (done, rest) == (b"data: [DONE]", b"")
    finishes = {choice["index"]: choice["finish_reason"] for choice in json.loads(closing[6:])["choices"]}
    assert finishes == {0: "stop", 1: "tool_calls"}


WORDS = st.lists(st.text(max_size=6), max_size=5)


@given(WORDS, WORDS, st.sampled_from(["reasoning_content", "reasoning"]))
def test_a_stream_and_a_whole_answer_fold_to_the_same(thoughts, texts, name):
    """However an answer comes, it is one thought and one text."""
    pieces = [chunk(delta(**{name: word})) for word in thoughts] + [chunk(delta(content=word)) for word in texts]
    streamed = folded(*pieces, chunk(delta(finish="stop")))
    message = {"role": "assistant", "content": "".join(texts), name: "".join(thoughts)}
    whole = Fold()
    whole.add(DIALECT.decode(chunk({"index": 0, "message": message, "finish_reason": "stop"}), whole=True))
    assert [said[1:] for said in streamed.answers()] == [said[1:] for said in whole.answers()]
    assert (streamed.outcome, streamed.finish) == (whole.outcome, whole.finish)


@given(st.text(max_size=20), st.lists(st.integers(0, 20), max_size=3))
def test_call_fragments_join_to_the_arguments(arguments, cuts):
    """Fragments by index, with the id and name on the first."""
    places = sorted({cut % (len(arguments) + 1) for cut in cuts})
    pieces = [arguments[a:b] for a, b in zip([0, *places], [*places, len(arguments)], strict=True)]
    first = {"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": pieces[0]}}
    rest = [{"index": 0, "function": {"arguments": piece}} for piece in pieces[1:]]
    fold = folded(*(chunk(delta(tool_calls=[fragment])) for fragment in [first, *rest]))
    assert fold.choices[0].tool_calls == (ToolCall("f", arguments, "a"),)


def test_choices_are_kept_apart():
    """With n > 1 each choice has its own thought."""
    fold = folded(
        chunk(delta(0, reasoning="a"), delta(1, reasoning="b")), chunk(delta(1, content="B"), delta(0, content="A"))
    )
    assert [(thought, text) for _, thought, text in fold.answers()] == [("a", "A"), ("b", "B")]


@pytest.mark.parametrize(
    ("choice", "outcome"),
    [
        (delta(finish="stop", content="a", reasoning="t"), "ok"),
        (delta(finish="length", content="a", reasoning="t"), "length"),
        (delta(finish="length", reasoning="t"), "answer_lost"),
        (delta(finish="stop", reasoning="t", content=" \n"), "answer_lost"),
        (delta(finish="stop"), "ok"),
    ],
)
def test_the_outcome_is_what_the_user_got(choice, outcome):
    """An answer that thinking used up is not the same as one that was cut."""
    assert folded(chunk(choice)).outcome == outcome


def test_timings_tell_totals_where_no_usage_came():
    """llama-server's last chunk has exact figures without being asked."""
    fold = folded(chunk(delta(finish="stop"), timings={"cache_n": 5, "prompt_n": 7, "predicted_n": 9}))
    assert fold.reported() == Usage(prompt=12, cached=5, completion=9)
