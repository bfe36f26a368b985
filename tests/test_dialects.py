"""Each engine is told things in the words that it obeys, and its answers are read under any name."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from proxy import normalise
from proxy.dialects import DIALECTS
from proxy.errors import UpstreamError
from proxy.events import Usage
from proxy.families import load
from proxy.messages import Facts, Plan
from proxy.policy import Policy, Terms, decide

FAMILY = load().named("kimi-k3")
USER = {"role": "user", "content": "x"}


def sent(engine: str, policy: Policy | None = None, *, slow: bool = False, template: str | None = None, **fields: Any):
    """The body that this engine gets for a request."""
    dialect = DIALECTS[engine]
    option = dialect.effort_option(FAMILY.effort_option, template)
    facts = Facts("b", engine, FAMILY, "m", slow=slow, effort_option=option, budget_fields=dialect.budget_fields)
    body = json.dumps({"model": "m", "messages": [USER], **fields}).encode()
    request = normalise.read(body)
    return json.loads(
        dialect.encode(decide(Plan(request, facts, request.messages), Terms(policy or Policy(sampling="client"))))
    )


@pytest.mark.parametrize(
    ("engine", "place"),
    [
        ("llama-server", {"chat_template_kwargs": {"thinking_effort": "low"}}),
        ("vllm", {"reasoning_effort": "low"}),
        ("sglang", {"reasoning_effort": "low"}),
        ("kimi", {"reasoning_effort": "low"}),
        ("deepseek", {"reasoning_effort": "low"}),
        ("ollama", {"reasoning_effort": "low"}),
        ("openrouter", {"reasoning": {"effort": "low"}}),
        ("openai", {"reasoning_effort": "low"}),
    ],
)
def test_a_default_effort_stands_where_the_engine_reads_it(engine, place):
    """llama-server reads Kimi K3's effort only from the template options, OpenRouter only from `reasoning`."""
    assert sent(engine, slow=True) == {"model": "m", "messages": [USER], **place}


def test_llama_server_is_told_what_its_template_reads():
    """The template that the server really has decides, not the model's name."""
    body = sent("llama-server", slow=True, template="{{ reasoning_effort }}")
    assert body["reasoning_effort"] == "low"
    assert "chat_template_kwargs" not in body


def test_the_clients_effort_is_translated_for_an_engine_that_would_ignore_it():
    """A top-level field has no effect on llama-server with Kimi K3, so the word moves."""
    body = sent("llama-server", reasoning_effort="medium", chat_template_kwargs={"a": 1})
    assert body["chat_template_kwargs"] == {"a": 1, "thinking_effort": "high"}
    assert "reasoning_effort" not in body


def test_an_effort_that_the_engine_understands_stays_where_the_client_put_it():
    """Nothing is moved without need."""
    assert sent("kimi", thinking={"type": "enabled", "effort": "max", "keep": "all"})["thinking"]["effort"] == "max"
    assert "reasoning_effort" not in sent("kimi", thinking={"type": "enabled", "effort": "max"})


def test_a_moved_effort_leaves_the_rest_of_its_object():
    """Only the word is taken out; other keys of `reasoning` are the client's."""
    body = sent("kimi", reasoning={"effort": "low", "exclude": True})
    assert (body["reasoning"], body["reasoning_effort"]) == ({"exclude": True}, "low")


def test_switching_thinking_off_is_left_as_the_client_said_it():
    """No second, conflicting instruction is added."""
    body = sent("kimi", Policy(default_effort="high"), thinking={"type": "disabled"})
    assert body == {"model": "m", "messages": [USER], "thinking": {"type": "disabled"}}


@pytest.mark.parametrize(
    ("engine", "came", "name"),
    [
        ("llama-server", "max_completion_tokens", "max_completion_tokens"),
        ("vllm", "max_tokens", "max_tokens"),
        ("ollama", "max_completion_tokens", "max_tokens"),
        ("deepseek", "max_completion_tokens", "max_tokens"),
    ],
)
def test_a_raised_cap_has_one_name_that_the_engine_obeys(engine, came, name):
    """Ollama ignores `max_completion_tokens`; two names with two values are never sent."""
    body = sent(engine, **{came: 16, "top_k": 5})
    caps = {field: body[field] for field in ("max_tokens", "max_completion_tokens") if field in body}
    assert caps == {name: 5000}
    assert list(body)[2:4] == [name, "top_k"]


def test_two_caps_become_one():
    """Of two names the engine would obey one; the other does not go."""
    body = sent("vllm", max_tokens=9000, max_completion_tokens=8000)
    assert body["max_completion_tokens"] == 8000
    assert "max_tokens" not in body
    for engine, left in (("kimi", {}), ("llama-server", {"max_completion_tokens": -1})):
        body = sent(engine, max_completion_tokens=-1, max_tokens=9)
        assert {name: body[name] for name in ("max_completion_tokens", "max_tokens") if name in body} == left, engine


def test_usage_is_asked_for_in_streams():
    """Accounting needs it; other stream options are the client's."""
    assert sent("kimi", stream=True)["stream_options"] == {"include_usage": True}
    assert sent("kimi", stream=True, stream_options={"a": 1})["stream_options"] == {"a": 1, "include_usage": True}
    assert "stream_options" not in sent("kimi")


def test_untouched_messages_keep_their_bytes():
    """Escapes, blanks and number spellings inside a message leave as they came."""
    raw = b'{"role": "user","content":[ {"type":"text", "text":"\\u00e9 1.0"} ],"weight":1.50}'
    request = normalise.read(b'{"model":"m","messages":[' + raw + b"]}")
    body = DIALECTS["openai"].encode(Plan(request, Facts("b", "openai", FAMILY, "m"), request.messages))
    assert raw in body


@pytest.mark.parametrize(("engine", "field"), [("kimi", "reasoning_content"), ("ollama", "reasoning")])
def test_a_thought_goes_back_once_under_the_name_that_the_engine_reads(engine, field):
    """Whatever name the client used, and only one."""
    message = {
        "role": "assistant",
        "reasoning": "T",
        "reasoning_content": None,
        "content": "a",
        "reasoning_details": [{"type": "reasoning.text", "text": "T"}],
    }
    request = normalise.read(json.dumps({"model": "m", "messages": [USER, message, USER]}).encode())
    body = json.loads(DIALECTS[engine].encode(Plan(request, Facts("b", engine, FAMILY, "m"), request.messages)))
    assert body["messages"][1] == {"role": "assistant", "content": "a", field: "T"}


def test_openrouters_details_go_back_word_for_word():
    """They may be signed or encrypted."""
    details = [{"type": "reasoning.encrypted", "data": "xyz"}]
    message = {"role": "assistant", "content": "a", "reasoning_details": details}
    request = normalise.read(json.dumps({"model": "m", "messages": [USER, message, USER]}).encode())
    facts = Facts("b", "openrouter", FAMILY, "m")
    body = json.loads(DIALECTS["openrouter"].encode(Plan(request, facts, request.messages)))
    assert body["messages"][1]["reasoning_details"] == details


def test_an_alias_is_sent_under_its_upstream_name():
    """The client's name for a model is the proxy's affair."""
    request = normalise.read(json.dumps({"model": "k3", "messages": [USER]}).encode())
    facts = replace(Facts("b", "kimi", FAMILY, "m"), upstream_model="kimi-k3")
    assert json.loads(DIALECTS["kimi"].encode(Plan(request, facts, request.messages)))["model"] == "kimi-k3"


def delta(**fields: Any) -> bytes:
    """One event with this delta."""
    return json.dumps({"choices": [{"index": 0, "delta": fields, "finish_reason": None}]}).encode()


@pytest.mark.parametrize(
    "fields",
    [
        {"reasoning_content": "T"},
        {"reasoning": "T"},
        {"reasoning_details": [{"type": "reasoning.text", "text": "T"}]},
        {"reasoning": "T", "reasoning_content": "T"},
        {"reasoning_content": "", "reasoning": "T"},
    ],
)
def test_a_thought_is_read_under_any_name_and_once(fields):
    """Mirrored fields are one thought."""
    (part,) = DIALECTS["openai"].decode(delta(**fields)).parts
    assert (part.reasoning, part.text) == ("T", "")


THINKING = {"type": "thinking", "thinking": [{"type": "text", "text": "T"}]}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"content": [THINKING, {"type": "text", "text": "yes"}]}, ("T", "yes")),
        ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, ("", "ab")),
        ({"reasoning_content": [{"type": "text", "text": "T"}]}, ("T", "")),
        ({"reasoning": {"text": "T"}}, ("T", "")),
        ({"content": [{"type": "image_url", "image_url": {}}]}, ("", "")),
    ],
)
def test_texts_in_parts_are_texts(fields, said):
    """Mistral answers with a list; what has pictures passes as it is."""
    (part,) = DIALECTS["openai"].decode(delta(**fields)).parts
    assert (part.reasoning, part.text) == said


@pytest.mark.parametrize(
    ("usage", "wanted"),
    [
        ({"prompt_tokens": 9, "completion_tokens": 5}, Usage(9, None, 5, None)),
        ({"prompt_tokens": 9, "completion_tokens": 5, "cached_tokens": 8}, Usage(9, 8, 5, None)),
        ({"prompt_tokens": 9, "prompt_cache_hit_tokens": 3, "completion_tokens": 5}, Usage(9, 3, 5, None)),
        (
            {
                "prompt_tokens": 9,
                "completion_tokens": 5,
                "prompt_tokens_details": {"cached_tokens": 7},
                "completion_tokens_details": {"reasoning_tokens": 4},
            },
            Usage(9, 7, 5, 4),
        ),
        ({"prompt_tokens": 9, "completion_tokens": 5, "reasoning_tokens": 0}, Usage(9, None, 5, 0)),
        ({"prompt_tokens": None, "completion_tokens": -1}, Usage()),
    ],
)
def test_usage_is_read_wherever_an_engine_puts_it(usage, wanted):
    """Not reported is None, never 0."""
    top = json.dumps({"choices": [], "usage": usage}).encode()
    inside = json.dumps({"choices": [{"index": 0, "delta": {}, "usage": usage}]}).encode()
    assert DIALECTS["kimi"].decode(top).usage == wanted
    assert DIALECTS["kimi"].decode(inside).usage == wanted


@pytest.mark.parametrize(
    "payload", [b"", b"{", b"[]", b'"x"', b"\xff", b'{"choices": 3}', b'{"choices":[{"delta":7}]}']
)
def test_an_answer_that_cannot_be_read_is_the_backends_error(payload):
    """Garbage is a 502 of ours, not a crash."""
    with pytest.raises(UpstreamError):
        DIALECTS["openai"].decode(payload)
