"""Effort, floors and budgets: the right decision, with its reason, and nothing else touched."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy import normalise
from proxy.errors import InvalidRequest
from proxy.families import load
from proxy.messages import Facts, Plan
from proxy.policy import Policy, Preset, Probe, Terms, decide, kind_of

FAMILIES = load()
K3 = Facts(
    "local",
    "llama-server",
    FAMILIES.named("kimi-k3"),
    "m",
    effort_option="thinking_effort",
    budget_fields=("thinking_budget_tokens",),
)


def plan(facts: Facts = K3, policy: Policy | None = None, preset: Preset | None = None, **fields: Any) -> Plan:
    """The plan for a request with these fields."""
    fields.setdefault("messages", [{"role": "system", "content": "s"}, {"role": "user", "content": "x"}])
    request = normalise.read(json.dumps({"model": "m", **fields}).encode())
    settings = policy or Policy(sampling="client")
    kind, _ = kind_of(request, settings)
    return decide(Plan(request, facts, request.messages, kind=kind), Terms(settings, preset or Preset()))


def rules(made: Plan) -> list[str]:
    """The names of the decisions, in order."""
    return [decision.rule for decision in made.decisions]


def test_a_slow_backend_gets_the_lowest_effort_where_the_client_is_silent():
    """`auto` means low when slow, and says so."""
    made = plan(replace(K3, slow=True))
    assert (made.effort, made.effort_reason, rules(made)) == ("low", "slow-backend", ["effort"])


def test_a_fast_backend_gets_no_effort_by_itself():
    """`auto` adds nothing when the backend is not slow."""
    assert plan(K3).effort is None


@pytest.mark.parametrize("sent", [{"reasoning_effort": "max"}, {"chat_template_kwargs": {"thinking_effort": "max"}}])
def test_a_default_never_overrides_the_client(sent):
    """The client's own word goes, in whichever spelling it came."""
    made = plan(replace(K3, slow=True), Policy(default_effort="low"), **sent)
    assert (made.effort, made.effort_reason, made.effort_changed) == ("max", "client", False)


def test_the_effort_of_a_conversation_stays():
    """What the default chose in an earlier turn holds, also when the backend became fast or slow since."""
    assert plan(replace(K3, slow=False, conversation_effort="low")).effort == "low"
    assert plan(replace(K3, slow=True, conversation_effort="")).effort is None


def test_a_word_of_another_family_is_fitted():
    """Front ends send `medium` unasked; Kimi K3 knows no medium."""
    made = plan(K3, reasoning_effort="medium")
    assert (made.effort, made.effort_changed, rules(made)) == ("high", True, ["effort"])


def test_an_unknown_effort_is_refused_with_the_known_ones():
    """A typo costs a 400, not a day of thinking at the highest effort."""
    with pytest.raises(InvalidRequest, match="low, high, max") as caught:
        plan(K3, reasoning_effort="extreme")
    assert caught.value.param == "reasoning_effort"


def test_a_default_that_the_family_does_not_know_is_not_sent():
    """A word of another family would be a 500 from some engines."""
    made = plan(K3, Policy(default_effort="turbo"))
    assert (made.effort, made.effort_reason) == (None, "unknown-word")
    assert plan(K3, Policy(default_effort="medium")).effort == "high"


def test_a_default_can_be_switched_off():
    """`off` sends nothing, however slow the backend is."""
    assert plan(replace(K3, slow=True), Policy(default_effort="off")).effort is None


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_a_cap_below_the_floor_is_raised_under_either_name(name):
    """Sixteen tokens give no answer from a thinking model."""
    made = plan(K3, **{name: 16})
    assert (made.max_tokens, made.max_tokens_reason) == (5000, "floor")


def test_no_cap_stays_no_cap():
    """Nothing is added where the client set no limit."""
    made = plan(K3)
    assert (made.max_tokens, made.max_tokens_reason, made.thinking_budget) == (None, None, None)


def test_the_floor_follows_the_effort():
    """A table by effort is read by the effort that is sent, and by the model's own where none is."""
    table = Policy(min_completion_tokens={"low": 2048, "high": 5000, "max": 16384})
    assert plan(replace(K3, slow=True), table, max_tokens=16).max_tokens == 2048
    assert plan(K3, table, max_tokens=16, reasoning_effort="high").max_tokens == 5000
    assert plan(K3, table, max_tokens=16).max_tokens == 16384


def test_a_model_that_does_not_think_keeps_its_cap():
    """Floors are for thinking models only."""
    assert plan(replace(K3, family=FAMILIES.named("plain")), max_tokens=16).max_tokens == 16


def test_a_client_that_switched_thinking_off_keeps_its_cap():
    """Without a thought there is nothing to leave room for."""
    assert plan(K3, max_tokens=16, chat_template_kwargs={"thinking": False}).max_tokens == 16


def test_a_raised_cap_is_clamped_to_the_window_where_the_engine_refuses_more():
    """Prompt plus cap beyond the window is a 400 on vLLM, SGLang and Moonshot."""
    vllm = replace(K3, engine="vllm", context_limit=1000, refuses_overflow=True, budget_fields=())
    made = plan(vllm, max_tokens=16)
    assert 16 < made.max_tokens < 1000
    assert rules(made) == ["floor", "clamp"]
    full = plan(vllm, max_tokens=16, messages=[{"role": "user", "content": "word " * 2000}])
    assert (full.max_tokens, full.max_tokens_reason) == (16, "clamp")


def test_a_connection_test_is_answered_as_it_was_asked():
    """One message with a cap of five or less: lowest effort, cap untouched."""
    made = plan(K3, max_tokens=5, messages=[{"role": "user", "content": "ping"}])
    assert (made.kind, made.max_tokens, made.effort) == ("probe", 5, "low")
    assert plan(K3, max_tokens=6, messages=[{"role": "user", "content": "ping"}]).kind == "chat"
    assert plan(K3, Policy(probe=Probe(max_tokens=0)), max_tokens=1, messages=[{"role": "user"}]).kind == "chat"


def test_the_thinking_budget_leaves_room_for_an_answer():
    """The cap minus the reserve may be thought."""
    made = plan(K3, max_tokens=16)
    assert (made.thinking_budget, made.thinking_budget_reason) == (3976, "reserve")
    assert plan(K3, Policy(min_completion_tokens=0), max_tokens=64).thinking_budget == 32


def test_the_thinking_budget_respects_the_window():
    """A cap beyond the window would let the thought run to its end."""
    made = plan(replace(K3, context_limit=4000), max_tokens=8000)
    assert 2900 < made.thinking_budget < 4000 - 1024


def test_a_budget_of_the_client_stays():
    """A field that the client set is not replaced."""
    assert plan(K3, max_tokens=16, thinking_budget_tokens=7).thinking_budget is None


def test_an_engine_without_a_budget_is_sent_none():
    """Only engines that enforce a budget are told one."""
    assert plan(replace(K3, budget_fields=()), max_tokens=16).thinking_budget is None


EFFORTS = st.sampled_from([None, "none", "minimal", "low", "medium", "high", "xhigh", "max"])


@given(
    cap=st.none() | st.integers(0, 40_000),
    effort=EFFORTS,
    floor=st.integers(0, 20_000),
    reserve=st.integers(0, 5000),
    default=st.sampled_from(["auto", "off", "low", "max"]),
    slow=st.booleans(),
    window=st.none() | st.integers(1, 30_000),
    refuses=st.booleans(),
    family=st.sampled_from(FAMILIES.names),
)
def test_no_rule_ever_takes_something_away(cap, effort, floor, reserve, default, slow, window, refuses, family):
    """A cap is never lowered, an explicit effort never becomes a default, a budget always leaves room under the cap."""
    facts = replace(K3, family=FAMILIES.named(family), slow=slow, context_limit=window, refuses_overflow=refuses)
    policy = Policy(min_completion_tokens=floor, answer_reserve_tokens=reserve, default_effort=default)
    fields = {"max_tokens": cap, "reasoning_effort": effort}
    try:
        made = plan(facts, policy, **{name: value for name, value in fields.items() if value is not None})
    except InvalidRequest:
        assert effort not in (facts.family.efforts, None)
        return
    assert made.max_tokens is None if cap is None else made.max_tokens >= cap
    assert effort is None or made.effort_reason in ("client", "always-thinks")
    if made.thinking_budget is not None:
        assert 0 <= made.thinking_budget <= made.max_tokens


RECOMMENDED = Policy(sampling="recommended")
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]


def test_the_familys_sampling_is_sent_where_the_client_sets_none():
    """Single-step work and tool loops differ; one value of the client's own keeps both out."""
    assert plan(K3, RECOMMENDED).fields == {"temperature": b"1.0", "top_p": b"0.95"}
    assert plan(K3, RECOMMENDED, tools=TOOLS).fields == {"temperature": b"1.0", "top_p": b"1.0"}
    for own in ({"temperature": 0.2}, {"top_p": 1}):
        assert plan(K3, RECOMMENDED, **own).fields == {}
    assert plan(replace(K3, family=FAMILIES.named("generic")), RECOMMENDED).fields == {}


def test_sampling_that_a_service_refuses_is_not_sent():
    """Moonshot pins temperature and top_p; what it would take anyway stays, and nothing is added there."""
    hosted = replace(K3, engine="kimi", is_service=True)
    made = plan(hosted, RECOMMENDED, temperature=0.2, top_p=0.95)
    assert (made.fields, rules(made)) == ({"temperature": None}, ["sampling"])
    assert plan(hosted, RECOMMENDED).fields == {}
    assert plan(hosted, Policy(sampling="client"), temperature=0.2).fields == {}


@pytest.mark.parametrize(
    ("family", "choice", "sent"),
    [
        ("deepseek-v4", "required", "auto"),
        ("deepseek-v4", {"type": "function", "function": {"name": "f"}}, "auto"),
        ("kimi-k3", {"type": "function", "function": {"name": "f"}}, "auto"),
        ("kimi-k3", "required", None),
        ("deepseek-v4", "auto", None),
        ("deepseek-v4", "none", None),
        ("generic", "required", None),
    ],
)
def test_a_forced_tool_choice_that_the_family_refuses_becomes_auto(family, choice, sent):
    """Only where that is wanted, only where it would be refused, and thinking is not switched off for it."""
    hosted = replace(K3, family=FAMILIES.named(family), refuses_missing=True)
    made = plan(hosted, Policy(sampling="client", forced_tool_choice="auto"), tools=TOOLS, tool_choice=choice)
    assert made.fields == ({"tool_choice": f'"{sent}"'.encode()} if sent else {})
    assert plan(hosted, tools=TOOLS, tool_choice=choice).fields == {}
    own = replace(hosted, refuses_missing=False)
    assert plan(own, Policy(sampling="client", forced_tool_choice="auto"), tool_choice=choice).fields == {}


@pytest.mark.parametrize("stop", [["a"] * 6, "x" * 33, ["\u00e9" * 17]])
def test_stop_strings_that_a_service_refuses_are_refused_with_its_limits(stop):
    """Five of 32 bytes at Moonshot; the same model on a server of one's own has no such limit."""
    policy = Policy(sampling="client", stop="backend")
    with pytest.raises(InvalidRequest, match="5 stop strings of 32 bytes") as caught:
        plan(replace(K3, is_service=True), policy, stop=stop)
    assert caught.value.param == "stop"
    assert plan(K3, policy, stop=stop).fields == {}
    assert plan(replace(K3, is_service=True), policy, stop=["a"] * 5).fields == {}
    assert plan(replace(K3, is_service=True), stop=stop).fields == {"stop": None}, "the proxy finds them by itself"


def test_the_familys_floors_hold_where_none_is_configured():
    """Kimi K3.1 thinks longer at low than 5,000 tokens; a configured floor is believed."""
    facts = replace(K3, family=FAMILIES.named("kimi-k3.1-pro"))
    assert plan(facts, max_tokens=16, reasoning_effort="low").max_tokens == 8192
    assert plan(facts, max_tokens=16).max_tokens == 16000
    assert plan(facts, Policy(min_completion_tokens=5000), max_tokens=16).max_tokens == 5000


DEVELOPER = {"role": "developer", "content": "B"}


@pytest.mark.parametrize(
    ("setting", "takes", "messages", "role"),
    [
        ("auto", False, [DEVELOPER, {"role": "user", "content": "x"}], "system"),
        ("auto", True, [DEVELOPER, {"role": "user", "content": "x"}], "keep"),
        ("keep", False, [DEVELOPER, {"role": "user", "content": "x"}], "keep"),
        ("system", True, [DEVELOPER, {"role": "user", "content": "x"}], "system"),
        ("system", True, [{"role": "system", "content": "A"}, {"role": "system", "content": "B"}], "system"),
        ("auto", False, [{"role": "system", "content": "A"}, {"role": "system", "content": "B"}], "keep"),
    ],
)
def test_the_developer_role_is_sent_as_the_engine_knows_it(setting, takes, messages, role):
    """By itself only where the engine does not know it; said where it was done."""
    made = plan(
        replace(K3, takes_developer=takes), Policy(sampling="client", developer_role=setting), messages=messages
    )
    assert made.developer_role == role
    assert ("developer_role" in rules(made)) == (role == "system")
