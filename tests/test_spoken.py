"""What a client says about thinking, in whichever way, reaches each engine in the words that it obeys."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy import config, families, normalise
from proxy.backend import Backend
from proxy.dialects import DIALECTS, About
from proxy.errors import InvalidRequest
from proxy.messages import Ask, Plan
from proxy.policy import Policy, Terms, decide
from proxy.probes import Found

FAMILIES = families.load()
USER = {"role": "user", "content": "x"}
K3_TEMPLATE = "{%- set effort = thinking_effort -%}{% if thinking %}"


def planned(engine: str, family: str, policy: dict[str, Any] | None = None, about: About | None = None, **said: Any):
    """The plan for a request to this engine that says this; `alias` is an effort that the model's name says."""
    alias = said.pop("alias", None)
    backend = Backend("b", config.Backend(url="http://127.0.0.1:1/v1", engine=engine), 10)
    backend._found = Found(engine, about={"m": about or About(thinks=True)})
    facts = backend.facts("m", FAMILIES.named(family), None)
    request = normalise.read(json.dumps({"model": "m", "messages": [USER], **said}).encode())
    plan = Plan(request, facts, request.messages)
    if alias and request.effort is None:
        plan = Plan(replace(request, effort=Ask(alias, "")), facts, request.messages)
    return decide(plan, Terms(Policy(**{"sampling": "client", **(policy or {})})))


def sent(engine: str, family: str, policy: dict[str, Any] | None = None, about: About | None = None, **said: Any):
    """What goes upstream beside the model and the messages, and beside the way in which the answer comes."""
    plan = planned(engine, family, policy, about, **said)
    body = json.loads(DIALECTS[engine].encode(plan))
    way = set() if "stream" in said else {"stream", "stream_options", "reasoning_control"}
    return {name: value for name, value in body.items() if name not in {"model", "messages"} | way}


WAYS = {
    "field": {"reasoning_effort": "WORD"},
    "reasoning": {"reasoning": {"effort": "WORD"}},
    "thinking": {"thinking": {"type": "enabled", "effort": "WORD"}},
    "option": {"chat_template_kwargs": {"thinking_effort": "WORD"}},
    "other option": {"chat_template_kwargs": {"reasoning_effort": "WORD"}},
    "think": {"think": "WORD"},
    "name": {"alias": "WORD"},
}
SPOKEN = {
    "llama-server": ("chat_template_kwargs", "thinking_effort"),
    "vllm": ("reasoning_effort",),
    "sglang": ("reasoning_effort",),
    "tokenspeed": ("reasoning_effort",),
    "unsloth": ("reasoning_effort",),
    "ollama": ("reasoning_effort",),
    "lmstudio": ("reasoning_effort",),
    "kimi": ("reasoning_effort",),
    "deepseek": ("reasoning_effort",),
    "openrouter": ("reasoning", "effort"),
}
NATIVE = {
    ("vllm", "option"),
    ("vllm", "other option"),
    ("sglang", "option"),
    ("sglang", "other option"),
    ("sglang", "reasoning"),
    ("tokenspeed", "option"),
    ("tokenspeed", "other option"),
    ("ollama", "reasoning"),
    ("kimi", "thinking"),
    ("unsloth", "other option"),
}
"""Where the engine understands the client as it is, so that nothing is moved."""


def said(way: str, word: str) -> dict[str, Any]:
    """The request fields that say the word in that way."""
    fields: dict[str, Any] = json.loads(json.dumps(WAYS[way]).replace("WORD", word))
    return fields


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("engine", SPOKEN)
def test_an_effort_is_understood_once_and_spoken_in_the_engines_words(engine, way):
    """However it is said; what the engine understands stays, and no second instruction stands beside it."""
    body = sent(engine, "kimi-k3", **said(way, "low"))
    if (engine, way) in NATIVE:
        assert body == said(way, "low")
        return
    place: Any = body
    for key in SPOKEN[engine]:
        place = place[key]
    assert place == "low"
    own = said(way, "low").get("chat_template_kwargs", {})
    assert body.get("chat_template_kwargs", {}).items() >= own.items()
    assert sum("low" in json.dumps(value) for value in body.values()) <= (2 if own else 1)


@pytest.mark.parametrize("way", WAYS)
def test_an_unknown_engine_gets_what_the_client_wrote(way):
    """Nobody knows what is understood there."""
    body = sent("openai", "kimi-k3", **said(way, "low"))
    assert body == (said(way, "low") if way != "name" else {"reasoning_effort": "low"})


OFF = [
    {"reasoning_effort": "none"},
    {"reasoning": {"effort": "none"}},
    {"reasoning": {"enabled": False}},
    {"thinking": {"type": "disabled"}},
    {"enable_thinking": False},
    {"think": False},
    {"alias": "none"},
]


@pytest.mark.parametrize("way", OFF, ids=json.dumps)
@pytest.mark.parametrize(
    ("engine", "family", "spoken"),
    [
        ("llama-server", "kimi-k3", {"chat_template_kwargs": {"thinking": False}}),
        ("llama-server", "qwen3", {"chat_template_kwargs": {"enable_thinking": False}}),
        ("llama-server", "generic", {"reasoning_effort": "none"}),
        ("vllm", "kimi-k3", {"chat_template_kwargs": {"thinking": False}}),
        ("vllm", "deepseek-v4", {"chat_template_kwargs": {"thinking": False}}),
        ("vllm", "minimax-m3", {"chat_template_kwargs": {"thinking_mode": "disabled"}}),
        ("vllm", "hunyuan", {"chat_template_kwargs": {"reasoning_effort": "no_think"}}),
        ("vllm", "mistral", {"reasoning_effort": "none"}),
        ("sglang", "qwen3", {"chat_template_kwargs": {"enable_thinking": False}}),
        ("ollama", "qwen3", {"reasoning_effort": "none"}),
        ("lmstudio", "qwen3", {"reasoning_effort": "none"}),
        ("unsloth", "qwen3", {"enable_thinking": False}),
        ("deepseek", "deepseek-v4", {"thinking": {"type": "disabled"}}),
        ("kimi", "kimi-k2", {"thinking": {"type": "disabled"}}),
        ("openrouter", "kimi-k2", {"reasoning": {"effort": "none"}}),
        ("kimi", "kimi-k3", {"reasoning_effort": "low"}),
        ("vllm", "gpt-oss", {"reasoning_effort": "low"}),
    ],
)
def test_thinking_is_switched_off_in_the_engines_words(engine, family, spoken, way):
    """In every spelling; where nothing switches it off, the lowest effort is the nearest to it."""
    body = sent(engine, family, {"default_effort": "high"}, **way)
    understood = DIALECTS[engine].off_places or ()
    places = {
        f"{name}.{key}" if isinstance(value, dict) else name
        for name, value in way.items()
        for key in (value if isinstance(value, dict) else [""])
    }
    assert body == spoken or (body == way and places & set(understood))


def test_what_nothing_switches_off_and_has_no_words_is_left_alone():
    """R1 thinks whatever it is told, so its cap is raised all the same."""
    plan = planned("vllm", "deepseek-r1", thinking={"type": "disabled"}, max_tokens=16)
    assert (plan.effort, plan.effort_reason, plan.max_tokens) == (None, "always-thinks", 5000)
    assert [decision.rule for decision in plan.decisions] == ["effort", "floor"]  # that it is not obeyed is told


@pytest.mark.parametrize(
    "way", [{"thinking": {"type": "enabled"}}, {"enable_thinking": True}, {"reasoning_effort": "high"}]
)
def test_a_template_that_does_not_think_by_itself_is_told_to(way):
    """DeepSeek's open weights think only when the option says so; hosted they do by themselves."""
    assert sent("vllm", "deepseek-v4", **way)["chat_template_kwargs"] == {"thinking": True}
    assert "chat_template_kwargs" not in sent("deepseek", "deepseek-v4", **way)


def test_a_default_effort_does_not_switch_thinking_on():
    """A default never overrides what the template does by itself."""
    assert "chat_template_kwargs" not in sent("vllm", "deepseek-v4", {"default_effort": "low"})


@pytest.mark.parametrize("way", [{"keep": "all"}, {"clear_thinking": False}])
def test_keeping_all_thoughts_is_said_to_the_template_too(way):
    """It would drop those of earlier turns otherwise, though they are sent."""
    assert sent("vllm", "glm", thinking=way)["chat_template_kwargs"] == {"clear_thinking": False}
    assert sent("vllm", "deepseek-v4", thinking=way)["chat_template_kwargs"] == {"drop_thinking": False}
    assert "chat_template_kwargs" not in sent("vllm", "kimi-k3", thinking=way)
    assert "chat_template_kwargs" not in sent("vllm", "glm", thinking={"keep": None})


@pytest.mark.parametrize("engine", ["llama-server", "vllm", "sglang"])
def test_the_clients_template_options_stay_as_they_are(engine):
    """Options are merged key by key, and a key that the client set is never replaced."""
    own = {"a": 1, "thinking": False, "enable_thinking": True}
    body = sent(engine, "kimi-k3", {"default_effort": "low"}, chat_template_kwargs=own)
    assert body == {"chat_template_kwargs": own}
    body = sent(engine, "qwen3", chat_template_kwargs={"enable_thinking": True}, reasoning_effort="none")
    assert body["chat_template_kwargs"]["enable_thinking"] is True


def test_llama_server_is_told_what_its_template_reads():
    """The template that the server has decides: which option carries the effort, and whether there is a switch."""
    k3 = About(template=K3_TEMPLATE)
    assert sent("llama-server", "kimi-k3", about=k3, reasoning_effort="max") == {
        "chat_template_kwargs": {"thinking_effort": "max"}
    }
    later = About(template="{{ reasoning_effort }}")
    assert sent("llama-server", "kimi-k3", about=later, reasoning_effort="max") == {"reasoning_effort": "max"}
    off = {"thinking": {"type": "disabled"}}
    assert sent("llama-server", "kimi-k3", about=About(template="{{ enable_thinking }}"), **off) == {
        "reasoning_effort": "none"
    }
    plan = planned("llama-server", "kimi-k3", about=later, max_tokens=16, **off)
    assert (plan.effort, plan.max_tokens) == ("low", 5000)  # nothing in it switches thinking off


@pytest.mark.parametrize(
    "own",
    [
        {"thinking_budget_tokens": 9},
        {"reasoning_budget_tokens": 9},
        {"thinking_token_budget": 9},
        {"thinking_budget": 9},
        {"reasoning": {"max_tokens": 9}},
        {"thinking": {"type": "enabled", "budget_tokens": 9}},
    ],
)
def test_a_budget_of_thought_is_spoken_in_the_engines_name(own):
    """llama-server, vLLM, DashScope, OpenRouter and Anthropic call it differently; no effort is added beside it."""
    body = sent("llama-server", "kimi-k3", {"default_effort": "low"}, max_tokens=100, **own)
    names = {"thinking_budget_tokens", "reasoning_budget_tokens"} & body.keys()
    assert [body[name] for name in names] == [9]
    assert "thinking_effort" not in json.dumps(body)
    assert sent("openrouter", "kimi-k3", {"default_effort": "low"}, **own) == own


def test_no_limit_is_said_only_where_that_is_understood():
    """vLLM refuses a cap of -1, which llama-server takes."""
    assert sent("llama-server", "plain", max_tokens=-1) == {"max_tokens": -1}
    assert sent("vllm", "plain", max_tokens=-1) == {}


def test_llama_servers_own_name_wins():
    """It obeys `n_predict` before the others (b11549)."""
    assert sent("llama-server", "plain", max_tokens=5, n_predict=7) == {"n_predict": 7}


@pytest.mark.parametrize(
    ("engine", "name"),
    [("llama-server", "n_predict"), ("vllm", "max_completion_tokens"), ("ollama", "max_tokens")],
)
def test_llama_servers_own_name_of_the_cap_is_a_cap(engine, name):
    """Other engines ignore `n_predict`, and would answer without end."""
    assert sent(engine, "plain", n_predict=9) == {name: 9}


def test_ollama_is_told_an_effort_only_where_the_model_thinks():
    """It answers 400 otherwise; the client's own word goes all the same."""
    default = {"default_effort": "low"}
    for told in (About(thinks=False), About()):
        assert sent("ollama", "kimi-k3", default, told) == {}
        assert planned("ollama", "kimi-k3", default, told).effort_reason == "no-thinking"
        assert sent("ollama", "kimi-k3", default, told, reasoning_effort="max") == {"reasoning_effort": "max"}
    assert sent("ollama", "kimi-k3", default) == {"reasoning_effort": "low"}


def test_words_that_a_server_tells_count_more_than_those_of_the_family():
    """A new model may know others; what lies between goes to the next higher one."""
    told = About(efforts=("low", "medium"))
    assert sent("kimi", "kimi-k3", about=told, reasoning_effort="medium") == {"reasoning_effort": "medium"}
    assert sent("kimi", "kimi-k2", about=told, reasoning_effort="minimal") == {"reasoning_effort": "low"}
    assert sent("kimi", "kimi-k2", about=told, reasoning_effort="ultra") == {"reasoning_effort": "medium"}
    with pytest.raises(InvalidRequest, match="low, medium"):
        planned("kimi", "kimi-k2", about=told, reasoning_effort="turbo")


def test_contradictions_are_settled_where_the_engine_would_read_both():
    """The word that counts goes; at Moonshot K3 refuses `thinking.type`, and K2 refuses both together."""
    both = {"thinking": {"type": "disabled"}, "reasoning_effort": "high"}
    assert sent("kimi", "kimi-k3", **both) == {"reasoning_effort": "high"}
    assert sent("openai", "kimi-k3", **both) == both
    assert sent("openrouter", "generic", reasoning={"max_tokens": 9}, thinking={"effort": "low"})["reasoning"] == {
        "max_tokens": 9
    }


def test_template_words_are_fitted_where_they_leave_the_template():
    """An engine that reads no template options would refuse a word that only a template knows."""
    option = {"chat_template_kwargs": {"thinking_effort": "medium"}}
    assert sent("kimi", "kimi-k3", **option)["reasoning_effort"] == "high"
    assert sent("llama-server", "kimi-k3", **option) == option
    with pytest.raises(InvalidRequest):
        planned("kimi", "kimi-k3", chat_template_kwargs={"thinking_effort": "bogus"})
    assert sent("kimi", "kimi-k3", reasoning_effort="HIGH") == {"reasoning_effort": "high"}


def test_the_effort_of_a_name_is_a_default_that_the_request_beats():
    """`[models]` can have an alias for each effort; what a request says itself counts more."""
    assert planned("kimi", "kimi-k3", alias="low").effort_reason == "model"
    assert sent("kimi", "kimi-k3", alias="low", reasoning_effort="max") == {"reasoning_effort": "max"}
    with pytest.raises(InvalidRequest) as caught:
        planned("kimi", "kimi-k3", alias="turbo")
    assert caught.value.param == "model"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 9) | st.sampled_from(["low", "none", "enabled", "disabled", "all", ""]),
    lambda inner: st.dictionaries(
        st.sampled_from(["type", "effort", "enabled", "keep", "max_tokens"]), inner, max_size=3
    ),
    max_leaves=4,
)


@given(
    st.sampled_from(sorted(DIALECTS)),
    st.sampled_from(FAMILIES.names),
    st.dictionaries(st.sampled_from(["reasoning_effort", "reasoning", "thinking", "enable_thinking", "think"]), JSON),
    st.dictionaries(st.sampled_from(["thinking", "enable_thinking", "thinking_effort", "a"]), JSON, max_size=3),
)
def test_whatever_is_said_becomes_a_body_or_a_clear_refusal(engine, family, fields, options):
    """No spelling crashes, and the client's template options are all there."""
    try:
        body = sent(engine, family, {"default_effort": "low"}, **fields, chat_template_kwargs=options)
    except InvalidRequest:
        return
    said = {name: value for name, value in options.items() if value is not None}  # null says nothing
    assert body.get("chat_template_kwargs", {}).items() >= said.items()


def test_an_option_that_is_no_word_is_the_clients_all_the_same():
    """A template of its own may take an object; a default does not go over it."""
    options: dict[str, Any] = {"thinking_effort": {}}
    assert sent("llama-server", "kimi-k3", {"default_effort": "low"}, chat_template_kwargs=options) == {
        "chat_template_kwargs": options
    }


def test_a_word_that_is_said_twice_is_fitted_twice():
    """Kimi K3 knows no medium, wherever it stands; both places say one word in the end."""
    said = {"reasoning_effort": "medium", "thinking": {"effort": "medium"}}
    assert sent("kimi", "kimi-k3", **said) == {"reasoning_effort": "high"}
    said = {"reasoning_effort": "low", "thinking": {"effort": "low"}}
    assert sent("kimi", "kimi-k3", **said) == said, "what is understood as it is stays"
