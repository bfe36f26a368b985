"""Client JSON is read without being changed, and mistakes are named."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy import normalise
from proxy.dialects import DIALECTS
from proxy.errors import InvalidRequest
from proxy.families import load
from proxy.messages import Facts, Plan

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def body(**fields: object) -> bytes:
    """A small request with these fields over it."""
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": "x"}], **fields}).encode()


@pytest.mark.parametrize(
    ("sent", "param", "words"),
    [
        (b"", None, "not valid JSON"),
        (b"{", None, "not valid JSON"),
        (b"[]", None, "JSON object"),
        (b'"x"', None, "JSON object"),
        (b"{}", "model", "`model` is missing"),
        (body(model=7), "model", "`model`"),
        (body(model=" "), "model", "`model`"),
        (b'{"model":"m"}', "messages", "`messages` is missing"),
        (body(messages=[]), "messages", "at least one message"),
        (body(messages="hi"), "messages", "list of objects"),
        (body(messages=["hi"]), "messages.0", "object with `role`"),
        (body(messages=[{"content": "x"}]), "messages.0.role", "role"),
        (body(messages=[{"role": 3}]), "messages.0.role", "role"),
        (body(stream="yes"), "stream", "true or false"),
        (body(stream_options=[], stream=True), "stream_options", "object"),
        (body(max_tokens="16"), "max_tokens", "whole number"),
        (body(max_tokens=1.5), "max_tokens", "whole number"),
        (body(max_tokens=True), "max_tokens", "whole number"),
        (body(max_completion_tokens=-2), "max_completion_tokens", "whole number"),
        (body(chat_template_kwargs="x"), "chat_template_kwargs", "object"),
    ],
)
def test_a_mistake_is_named_with_its_field(sent, param, words):
    """A 400 says which field is wrong and what it takes."""
    with pytest.raises(InvalidRequest, match=words) as caught:
        normalise.read(sent)
    assert caught.value.param == param
    assert caught.value.status == 400


@given(st.dictionaries(st.text(max_size=8), JSON, max_size=6), st.sampled_from([None, (1, 2)]))
def test_unknown_fields_go_on_unchanged_and_in_place(extra, indent):
    """Whatever else a body holds leaves with the same values in the same order."""
    known = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
    spoken = {"stream", "stream_options", "max_tokens", "max_completion_tokens", "chat_template_kwargs"}
    sent = {**known, **{name: value for name, value in extra.items() if name not in known.keys() | spoken}}
    request = normalise.read(json.dumps(sent, indent=indent and 2).encode())
    facts = Facts("b", "openai", load().named("plain"), "m")
    upstream = json.loads(DIALECTS["openai"].encode(Plan(request, facts, request.messages)))
    assert list(upstream.items()) == list(sent.items())


@given(st.binary(max_size=60))
def test_arbitrary_bytes_are_refused_or_read_but_never_crash(data):
    """No body makes the reader raise anything but the caller's error."""
    try:
        read = normalise.read(data)
    except InvalidRequest:
        return
    assert read.messages


@pytest.mark.parametrize(
    ("fields", "word", "where"),
    [
        ({"reasoning_effort": "high"}, "high", "reasoning_effort"),
        ({"reasoning": {"effort": "low"}}, "low", "reasoning.effort"),
        ({"reasoning": {"enabled": False}}, "none", "reasoning.enabled"),
        ({"thinking": {"type": "enabled", "effort": "max", "keep": "all"}}, "max", "thinking.effort"),
        ({"thinking": {"type": "disabled"}}, "none", "thinking.type"),
        ({"enable_thinking": False}, "none", "enable_thinking"),
        ({"think": "low"}, "low", "think"),
        ({"think": False}, "none", "think"),
        ({"chat_template_kwargs": {"thinking_effort": "max"}}, "max", "chat_template_kwargs.thinking_effort"),
        ({"chat_template_kwargs": {"reasoning_effort": "low"}}, "low", "chat_template_kwargs.reasoning_effort"),
        ({"chat_template_kwargs": {"enable_thinking": False}}, "none", "chat_template_kwargs.enable_thinking"),
        ({"chat_template_kwargs": {"thinking": False}}, "none", "chat_template_kwargs.thinking"),
        ({"reasoning_effort": 0.5}, "0.5", "reasoning_effort"),
    ],
)
def test_effort_is_understood_in_every_spelling(fields, word, where):
    """Each way in which a client can speak of effort is one wish with one place."""
    ask = normalise.read(body(**fields)).effort
    assert ask is not None
    assert (ask.word, ask.where) == (word, where)


@pytest.mark.parametrize("fields", [{}, {"reasoning_effort": None}, {"thinking": {"type": "enabled"}}, {"think": True}])
def test_silence_about_effort_is_no_wish(fields):
    """A client that only says "think" leaves the effort to the default."""
    assert normalise.read(body(**fields)).effort is None


@pytest.mark.parametrize(
    ("fields", "cap", "name"),
    [
        ({}, None, None),
        ({"max_tokens": 16}, 16, "max_tokens"),
        ({"max_completion_tokens": 16}, 16, "max_completion_tokens"),
        ({"max_tokens": 16, "max_completion_tokens": 99}, 99, "max_completion_tokens"),
        ({"max_tokens": None}, None, None),
        ({"max_tokens": -1}, None, "max_tokens"),
    ],
)
def test_the_cap_is_the_one_that_engines_obey(fields, cap, name):
    """Of two names `max_completion_tokens` wins; -1 is no cap."""
    request = normalise.read(body(**fields))
    assert (request.max_tokens, request.max_tokens_field) == (cap, name)


@pytest.mark.parametrize(
    ("message", "thought"),
    [
        ({"reasoning_content": "a"}, "a"),
        ({"reasoning": "b"}, "b"),
        ({"reasoning_content": "", "reasoning": "b"}, "b"),
        ({"reasoning_details": [{"type": "reasoning.text", "text": "x"}, {"summary": "y"}]}, "xy"),
        ({"reasoning_content": None}, None),
        ({"reasoning_content": "  \n"}, None),
        ({"reasoning_content": []}, None),
        ({}, None),
    ],
)
def test_a_thought_is_found_under_any_name_and_blank_is_none(message, thought):
    """Blank and non-text values count as absent."""
    request = normalise.read(body(messages=[{"role": "assistant", "content": "x", **message}]))
    assert request.messages[0].reasoning == thought
