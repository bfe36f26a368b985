"""A streamed answer, gathered, is the whole answer that the engine would have given."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion
from test_transcripts import TRANSCRIPTS, Transcript, assert_counts, assert_says, message_of

from proxy import sse
from proxy.dialects import DIALECTS
from proxy.events import Event
from proxy.families import load
from proxy.fold import Fold, finish_of
from proxy.gather import Gather
from proxy.jsons import healed
from proxy.render import Shown, View
from proxy.shape import Shaper, Thinking

DIALECT = DIALECTS["openai"]
HEAD = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m"}


def shaper() -> Shaper:
    """A shaper of a model that thinks."""
    numbers = itertools.count()
    return Shaper(Thinking(), load().named("generic"), filler="", new_id=lambda: f"call_{next(numbers)}")


def gathered(payloads: Iterable[bytes], *, usage: Any = None) -> tuple[Event, Fold]:
    """The whole answer of a stream of these payloads, and the fold that had the same events."""
    gather, fold, one = Gather(), Fold(), shaper()
    events = [DIALECT.decode(payload) for payload in payloads]
    for event in events:
        one.apply(event)
    for event in [*events, Event(b"", one.rest())]:
        fold.add(event)
        gather.add(event)
    if usage is not None:
        gather.usage = usage
    return gather.whole(fold), fold


def body(*chunks: dict[str, Any], shown: Shown = "reasoning_content", **options: Any) -> dict[str, Any]:
    """What a client reads of a stream of these chunks."""
    event, _ = gathered((json.dumps({**HEAD, **chunk}).encode() for chunk in chunks), **options)
    read: dict[str, Any] = json.loads(View(shown, include_usage=False).whole(event))
    return read


def said(*deltas: dict[str, Any], **options: Any) -> dict[str, Any]:
    """The message of a stream of these deltas."""
    whole = body(*({"choices": [{"index": 0, "delta": delta}]} for delta in deltas), **options)
    message: dict[str, Any] = whole["choices"][0]["message"]
    return message


def payloads_of(transcript: Transcript) -> list[bytes]:
    """The events of a transcript's stream."""
    codec = sse.Decoder()
    found = [*codec.feed(transcript.stream), *codec.end()]
    return [payload for payload in found if payload.strip() and not payload.startswith(sse.DONE)]


@pytest.mark.parametrize("transcript", TRANSCRIPTS.values(), ids=TRANSCRIPTS)
def test_a_stream_gathered_is_the_message_that_it_is(transcript):
    """For every engine: thought, text, calls, finish and usage, read by the SDK's types."""
    event, _ = gathered(payloads_of(transcript))
    found = json.loads(View("reasoning_content", include_usage=False).whole(event))
    heard = ChatCompletion.model_validate({"id": "", "created": 0, "model": "", **found})
    assert heard.object == "chat.completion"
    assert_says([message_of(choice) for choice in heard.choices], transcript)
    assert_counts(heard.usage, transcript)


LIKE = ["llama-server-b11434", "vllm-0.32.0", "sglang-0.5.23", "moonshot", "openai", "deepseek", "openrouter"]
SAME = [name for name in TRANSCRIPTS if name.split("/")[0] in LIKE and not name.endswith("named-call")]


@pytest.mark.parametrize("name", SAME)
def test_it_has_the_fields_that_the_engine_writes_in_a_whole_answer(name):
    """Those of the stream that a whole answer has too are there with its values, and none that only a stream has."""
    whole, event = json.loads(TRANSCRIPTS[name].whole), gathered(payloads_of(TRANSCRIPTS[name]))[0]
    found = json.loads(event.raw)
    streamed = {field for payload in payloads_of(TRANSCRIPTS[name]) for field in json.loads(payload)}
    for field in whole.keys() & streamed - {"choices", "usage", "timings"}:
        assert found[field] == whole[field]
    assert not found.keys() - whole.keys() - {"system_fingerprint", "service_tier", "provider"}
    assert (event.usage, event.names) == (DIALECT.decode(TRANSCRIPTS[name].whole, whole=True).usage, event.names)


def test_a_call_without_text_has_no_content():
    """`content` is null beside calls and "" where nothing was said, as OpenAI writes it."""
    call = {"index": 0, "id": "x", "type": "function", "function": {"name": "ls", "arguments": "{}"}}
    assert said({"role": "assistant", "content": ""}, {"tool_calls": [call]}) == {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "x", "type": "function", "function": {"name": "ls", "arguments": "{}"}}],
    }
    assert said({"content": "I look."}, {"tool_calls": [call]})["content"] == "I look."
    assert said({"role": "assistant", "content": None}) == {"role": "assistant", "content": ""}


def test_fields_of_calls_that_nobody_knows_are_kept():
    """Gemini wants its `extra_content` back; a custom call has no function, and its input grows."""
    call = {"index": 0, "id": "x", "function": {"name": "ls", "arguments": "{"}, "extra_content": {"google": {"s": 1}}}
    more = {"index": 0, "function": {"arguments": "}", "odd": 2}}
    assert said({"tool_calls": [call]}, {"tool_calls": [more]})["tool_calls"] == [
        {
            "id": "x",
            "type": "function",
            "function": {"name": "ls", "arguments": "{}", "odd": 2},
            "extra_content": {"google": {"s": 1}},
        }
    ]
    custom = {"index": 0, "id": "x", "type": "custom", "custom": {"name": "sh", "input": ""}}
    pieces = [{"index": 0, "custom": {"input": text}} for text in ("l", "s")]
    assert said({"tool_calls": [custom]}, *({"tool_calls": [piece]} for piece in pieces))["tool_calls"] == [
        {"id": "x", "type": "custom", "custom": {"name": "sh", "input": "ls"}}
    ]


def test_details_stay_whole_beside_the_thought():
    """And go where the thought was taken out of the answer."""
    pieces = [{"type": "reasoning.text", "index": 0, "text": text} for text in ("Two", " names.")]
    deltas = [{"reasoning": piece["text"], "reasoning_details": [piece]} for piece in pieces]
    details = [{"type": "reasoning.text", "index": 0, "text": "Two names."}]
    assert said(*deltas, {"content": "a"}) == {
        "role": "assistant",
        "content": "a",
        "reasoning_content": "Two names.",
        "reasoning_details": details,
    }
    assert said(*deltas, {"content": "a"}, shown="hidden") == {"role": "assistant", "content": "a"}
    assert said(*deltas, {"content": "a"}, shown="think_tags")["content"] == "<think>\nTwo names.\n</think>\n\na"


def test_a_refusal_and_annotations_are_said():
    """A refusal grows, lists are joined, and text takes the place of neither."""
    assert said({"refusal": "I"}, {"refusal": " won't."}) == {
        "role": "assistant",
        "content": None,
        "refusal": "I won't.",
    }
    assert said({"content": "", "refusal": ""})["content"] == ""
    cited = said({"content": "a", "annotations": [1], "name": "M"}, {"annotations": [2], "refusal": None})
    assert cited == {"role": "assistant", "content": "a", "annotations": [1, 2]}


def test_what_stands_beside_the_choices_is_kept():
    """The last value that is not null; objects are merged; what only a stream has is left out."""
    choices = [{"index": 0, "delta": {"content": "a"}, "stop_reason": None, "token_ids": [1]}]
    ends = [{"index": 0, "delta": {}, "finish_reason": "stop", "stop_reason": "END", "token_ids": [2]}]
    whole = body(
        {"choices": choices, "system_fingerprint": "f", "service_tier": "auto", "ext": {"a": 1}, "obfuscation": "x"},
        {"choices": ends, "service_tier": "default", "ext": {"b": 2}, "prompt_progress": {"total": 1}},
        {"choices": [], "usage": {"prompt_tokens": 1}, "system_fingerprint": None, "timings": {"predicted_n": 1}},
    )
    assert whole == {
        **HEAD,
        "object": "chat.completion",
        "system_fingerprint": "f",
        "service_tier": "default",
        "ext": {"a": 1, "b": 2},
        "timings": {"predicted_n": 1},
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "a"},
                "finish_reason": "stop",
                "stop_reason": "END",
                "token_ids": [1, 2],
            }
        ],
        "usage": {"prompt_tokens": 1},
    }


def test_logprobs_are_joined():
    """Those of the text and those of a refusal, each choice's own, in the order of the choices."""
    one = {"index": 1, "delta": {"content": "a"}, "logprobs": {"content": [{"token": "a"}], "refusal": None}}
    two = {"index": 1, "delta": {"content": "b"}, "logprobs": {"content": [{"token": "b"}], "refusal": []}}
    other = {"index": 0, "delta": {"content": "c"}, "logprobs": None}
    first, second = body({"choices": [one]}, {"choices": [other, two]})["choices"]
    assert "logprobs" not in first
    assert second["logprobs"] == {"content": [{"token": "a"}, {"token": "b"}], "refusal": []}


def test_the_usage_is_the_last_one_or_the_callers():
    """Wherever the engine wrote it; none where it gave none."""
    chunk = {"choices": [{"index": 0, "delta": {"content": "a"}, "usage": {"prompt_tokens": 1}}]}
    later = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 2}}
    assert body(chunk)["usage"] == {"prompt_tokens": 1}
    assert body(chunk, later, {"choices": [], "usage": None})["usage"] == {"prompt_tokens": 2}
    assert body(chunk, later, usage={"prompt_tokens": 3})["usage"] == {"prompt_tokens": 3}
    assert "usage" not in body({"choices": [{"index": 0, "delta": {}}]})


def test_an_error_is_no_part_of_the_answer():
    """Whoever reads the stream tells it; what came before stays what it was."""
    whole = body({"choices": [{"index": 0, "delta": {"content": "a"}}]}, {"error": {"message": "x"}, "odd": 1})
    assert (whole["choices"][0]["message"]["content"], "odd" in whole) == ("a", False)


def test_what_was_held_back_comes_at_the_end():
    """Like any other event, to the fold and here."""
    gather, fold, one = Gather(), Fold(), shaper()
    event = DIALECT.decode(json.dumps({**HEAD, "choices": [{"index": 0, "delta": {"content": "<thi"}}]}).encode())
    one.apply(event)
    fold.add(event)
    gather.add(event)
    assert gather.whole(fold).parts[0].text == ""
    assert next(fold.answers())[2] == ""
    held = Event(b"", one.rest())
    fold.add(held)
    gather.add(held)
    assert gather.whole(fold).parts[0].text == "<thi"


def test_a_stream_without_choices_gives_none():
    """Its caller says so."""
    event, _ = gathered([json.dumps({**HEAD, "choices": []}).encode()])
    assert (event.parts, event.empty) == ([], True)


# any stream

TEXT = st.one_of(st.text(max_size=6), st.sampled_from(["<think>", "</think>", "\ud83d", "\ude00", " ", "中"]))
CALL = st.fixed_dictionaries(
    {"index": st.integers(0, 2), "function": st.fixed_dictionaries({"arguments": TEXT}, optional={"name": TEXT})},
    optional={"id": st.sampled_from(["x", "y", "", None])},
)
DETAIL = st.fixed_dictionaries({"type": st.just("reasoning.text"), "text": TEXT}, optional={"index": st.just(0)})
DELTA = st.fixed_dictionaries(
    {},
    optional={
        "role": st.sampled_from(["assistant", None]),
        "content": st.none() | TEXT,
        "reasoning_content": st.none() | TEXT,
        "reasoning": TEXT,
        "reasoning_details": st.lists(DETAIL, max_size=2),
        "tool_calls": st.lists(CALL, max_size=2),
        "refusal": st.none(),
    },
)
FINISH = st.sampled_from([None, None, None, "stop", "length", "tool_calls", "eos"])
CHOICE = st.fixed_dictionaries({"index": st.integers(0, 1), "delta": DELTA}, optional={"finish_reason": FINISH})
STREAM = st.lists(st.lists(CHOICE, max_size=2), min_size=1, max_size=8)


@settings(deadline=None)
@given(stream=STREAM, shown=st.sampled_from(["reasoning_content", "reasoning", "both", "hidden"]))
def test_whatever_was_streamed_is_what_the_fold_says(stream: Sequence[Any], shown: Any):
    """Read by the SDK's types, under the client's names."""
    event, fold = gathered(json.dumps({**HEAD, "choices": choices}).encode() for choices in stream)
    heard = ChatCompletion.model_validate_json(View(shown, include_usage=False).whole(event))
    answers = dict(zip(fold.choices, fold.answers(), strict=True))
    assert [choice.index for choice in heard.choices] == sorted(fold.choices)
    for told in heard.choices:
        choice, thought, text = answers[told.index]
        assert (told.message.role, told.message.content or "") == ("assistant", text)
        assert (told.message.content is None) == (not text and bool(choice.calls))
        for name in ("reasoning_content", "reasoning"):
            wanted = shown in (name, "both") and thought
            assert (getattr(told.message, name, None) or "") == (thought if wanted else "")
        called = [(call.id, call.function.name, call.function.arguments) for call in told.message.tool_calls or []]
        assert called == [(call.id, healed(call.name), healed(call.arguments)) for call in choice.tool_calls]
        assert told.finish_reason == finish_of(choice)
