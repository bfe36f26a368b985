"""Kinds of requests, and the rules of the settings: which are for a request, what they set, and where they stop."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from running import serving, settings

from proxy import normalise
from proxy.families import load
from proxy.messages import Facts, Plan
from proxy.policy import Asked, Policy, Preset, Rule, Terms, decide, kind_of, matching
from proxy.testing import FakeBackend, answer
from proxy.thoughts import Room

FAMILIES = load()
K3 = Facts(
    "local",
    "llama-server",
    FAMILIES.named("kimi-k3"),
    "m",
    effort_option="thinking_effort",
    budget_fields=("thinking_budget_tokens",),
)
TITLE = {"role": "system", "content": "You are a title generator. You output ONLY a thread title. Nothing else."}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
BUDGET_ENGINE = {"engine": "llama-server"}


def request(*messages: dict[str, Any], **fields: Any):
    """A request as the rules read it."""
    said = list(messages) or [{"role": "user", "content": "hello there"}]
    return normalise.read(json.dumps({"model": "kimi-k3", "messages": said, **fields}).encode())


def matched(
    when: dict[str, Any], *messages: dict[str, Any], client: str | None = "web", kind="chat", headers=None, **said
):
    """Whether a rule with these conditions is for a request."""
    rule = Rule(when=when, set={"effort": "low"})
    _, decisions = matching((rule,), Asked(request(*messages, **said), kind, client, headers or {}))
    return bool(decisions)


@pytest.mark.parametrize(
    ("when", "said", "expected"),
    [
        ({}, {}, True),
        ({"model": "kimi-*"}, {}, True),
        ({"model": "qwen*"}, {}, False),
        ({"client": "w?b"}, {}, True),
        ({"client": "agents"}, {}, False),
        ({"client": "*"}, {"client": None}, False),
        ({"kind": "side"}, {"kind": "side"}, True),
        ({"kind": "side"}, {}, False),
        ({"tools": True}, {"tools": TOOLS}, True),
        ({"tools": True}, {}, False),
        ({"tools": False}, {}, True),
        ({"tools": False}, {"tools": TOOLS}, False),
        ({"header": {"X-App": "a*"}}, {"headers": {"x-app": "abc"}}, True),
        ({"header": {"x-app": "a*"}}, {"headers": {"x-app": "bc"}}, False),
        ({"header": {"x-app": "*"}}, {}, False),
        ({"text": "hel+o"}, {}, True),
        ({"text": "^there"}, {}, False),
        ({"prompt_tokens_over": 5}, {}, True),
        ({"prompt_tokens_over": 100}, {}, False),
        ({"model": "kimi-*", "kind": "side"}, {}, False),
    ],
)
def test_a_rule_is_for_requests_that_meet_all_its_conditions(when, said, expected):
    """What it does not speak of does not matter."""
    assert matched(when, **said) is expected


def test_a_text_is_looked_for_in_the_first_message_and_in_the_latest_of_the_user():
    """What was said in between is over."""
    chat = [
        {"role": "system", "content": "You translate."},
        {"role": "user", "content": [{"type": "text", "text": "one"}]},
        {"role": "assistant", "content": "uno"},
        {
            "role": "user",
            "content": [{"type": "text", "text": "two"}, {"type": "image_url", "image_url": {"url": "x"}}],
        },
    ]
    found = [matched({"text": word}, *chat) for word in ("translate", "two", "one", "uno")]
    assert found == [True, True, False, False]


def test_brackets_are_part_of_a_name():
    """Moonshot calls a model `k3[1m]`."""
    assert matched({"model": "kimi-k3"})
    named = request(model="k3[1m]")
    rule = Rule(when={"model": "k3[1m]"}, set={"effort": "low"})
    assert matching((rule,), Asked(named, "chat", None, {}))[1]
    assert not matching((rule,), Asked(request(model="k31"), "chat", None, {}))[1]


def test_a_long_text_is_searched_at_its_ends():
    """A pattern that takes time with the square of the text must not hold up everybody."""
    text = "begins" + "foo word " * 60_000 + "ends"
    long = {"role": "user", "content": text}
    assert matched({"text": "^begins"}, long)
    assert matched({"text": "ends$"}, long)
    assert not matched({"text": "foo.*bar$"}, long)


def test_later_rules_go_over_earlier_ones_key_by_key_and_each_is_named():
    """By its name, else by its number."""
    rules = (
        Rule(name="quick", set={"effort": "low", "temperature": 0.2}),
        Rule(when={"model": "other"}, set={"effort": "max"}),
        Rule(set={"effort": "high", "backend": "b"}),
    )
    preset, decisions = matching(rules, Asked(request(), "chat", None, {}))
    assert preset.given == {"effort": "high", "temperature": 0.2, "backend": "b"}
    assert [(each.rule, each.reason) for each in decisions] == [
        ("rule:quick", "effort low, temperature 0.2"),
        ("rule:3", "backend b, effort high"),
    ]


def decided(preset: dict[str, Any], policy: Policy | None = None, facts: Facts = K3, **said: Any) -> Plan:
    """The plan under a rule that sets these."""
    asked, given = request(**said), policy or Policy(sampling="client")
    kind, _ = kind_of(asked, given)
    return decide(Plan(asked, facts, asked.messages, kind=kind), Terms(given, Preset(**preset)))


@pytest.mark.parametrize(
    ("preset", "said", "effort"),
    [
        ({"effort": "high"}, {}, ("high", "rule")),
        ({"effort": "high"}, {"reasoning_effort": "low"}, ("low", "client")),
        ({"effort": "medium"}, {}, ("high", "rule")),
        ({"effort": "off"}, {}, (None, "rule")),
        ({"effort": "none"}, {}, ("none", "rule")),
        ({"effort": "high"}, {"max_tokens": 3}, ("high", "rule")),
        ({"effort": "high"}, {"thinking_budget_tokens": 50}, (None, "client")),
    ],
)
def test_the_effort_of_a_rule_goes_before_the_defaults_and_behind_the_client(preset, said, effort):
    """Also for probes, and where the conversation had another one."""
    made = decided(preset, facts=replace(K3, slow=True, conversation_effort="max"), **said)
    assert (made.effort, made.effort_reason) == effort


def test_no_thinking_where_nothing_switches_it_off_is_the_lowest_effort():
    """As where a client asks for it."""
    assert decided({"effort": "none"}, facts=replace(K3, thinks_always=True)).effort == "low"


def test_a_rule_has_a_floor_and_a_budget_of_its_own():
    """0 switches them off; the client's cap is never lowered, and its own budget stays."""
    assert decided({"min_completion_tokens": 512}, max_tokens=100).max_tokens == 512
    assert decided({"min_completion_tokens": 0}, max_tokens=100).max_tokens == 100
    assert decided({"min_completion_tokens": 512}, max_tokens=9000).max_tokens == 9000
    made = decided({"thinking_budget": 0}, max_tokens=9000)
    assert (made.thinking_budget, made.thinking_budget_reason) == (0, "rule")
    assert decided({"thinking_budget": "off"}, max_tokens=9000).thinking_budget is None
    assert decided({"thinking_budget": 70}, max_tokens=9000, reasoning={"max_tokens": 300}).thinking_budget == 300


def test_a_budget_that_leaves_no_answer_is_kept_below_the_reserve():
    """A cap of 5000 has no room for a thought of 6000 tokens and a word."""
    made = decided({}, Policy(sampling="client", thinking_budget=6000), max_tokens=16)
    assert (made.max_tokens, made.thinking_budget, made.thinking_budget_reason) == (5000, 5000 - 1024, "reserve")


def test_a_rules_temperature_goes_where_the_client_set_none():
    """Beside what the family recommends; a service that takes one value alone is not asked for another."""
    generic = Facts("local", "llama-server", FAMILIES.named("generic"), "m")
    assert decided({"temperature": 0.2}, facts=generic).fields == {"temperature": b"0.2"}
    assert decided({"temperature": 0.2}, facts=generic, top_p=0.5).fields == {}
    recommended = decided({"temperature": 0.2}, Policy())
    assert recommended.fields == {"temperature": b"0.2", "top_p": b"0.95"}
    service = replace(K3, is_service=True, family=FAMILIES.named("kimi-k3"))
    assert "temperature" not in decided({"temperature": 0.2}, facts=service).fields


# Side requests


def side(facts: Facts = K3, policy: Policy | None = None, **said: Any) -> Plan:
    """The plan for opencode's title request."""
    given = policy or Policy(sampling="client")
    asked = request(TITLE, {"role": "user", "content": "Generate a title for this conversation:\n"}, **said)
    kind, _ = kind_of(asked, given)
    return decide(Plan(asked, facts, asked.messages, kind=kind), Terms(given))


def test_a_side_request_has_the_lowest_effort_and_a_cap_where_it_has_none():
    """Whatever the default is, and however fast the backend."""
    made = side(policy=Policy(sampling="client", default_effort="max"))
    assert (made.kind, made.effort, made.effort_reason) == ("side", "low", "side")
    assert (made.max_tokens, made.max_tokens_reason) == (2048, "side")
    assert made.thinking_budget == 1024
    assert side(policy=Policy(default_effort="off")).effort == "low"
    assert side(policy=Policy(side_max_tokens=0)).max_tokens is None
    assert side(max_tokens=-1).max_tokens is None, "it says that there be no limit"


def test_a_side_request_does_not_think_where_the_template_can_be_told():
    """A title needs no thought; then its cap is left alone too."""
    made = side(replace(K3, switch_off={"enable_thinking": False}), max_tokens=50)
    assert (made.effort, made.max_tokens, made.thinking_budget) == ("none", 50, None)
    assert side(replace(K3, switch_off={"enable_thinking": False}, thinks_always=True)).effort == "low"


def test_the_cap_of_a_side_request_is_raised_only_a_little():
    """A title within 1000 tokens gets 2048 and not 5000; a larger cap stays."""
    assert side(max_tokens=1000).max_tokens == 2048
    assert side(max_tokens=32000).max_tokens == 32000
    assert side(policy=Policy(min_completion_tokens=500), max_tokens=100).max_tokens == 500


@pytest.mark.parametrize("said", [{"reasoning_effort": "max"}, {"thinking_budget_tokens": 9}])
def test_what_a_side_request_says_itself_stays(said):
    """A front end that knows better is believed."""
    assert side(**said).effort == said.get("reasoning_effort")


def test_patterns_of_ones_own_make_side_requests():
    """On the first message."""
    policy = Policy(side_patterns=("^Name this chat",))
    assert kind_of(request({"role": "user", "content": "Name this chat: hi"}), policy) == ("side", "own pattern")
    assert kind_of(request({"role": "user", "content": "Name this chat: hi"}), Policy()) == ("chat", "")


# Visible caps


def visible(asked: int, facts: Facts = K3, **policy: Any) -> Plan:
    """The plan for a cap that counts the visible text alone."""
    given = Policy(sampling="client", completion_tokens_mode="visible", **policy)
    return decided({}, given, facts, max_tokens=asked)


def test_a_visible_cap_gets_room_for_a_thought_on_top():
    """As much as the floor; all of the client's cap is kept for the answer."""
    made = visible(300)
    assert (made.max_tokens, made.max_tokens_reason, made.visible_tokens) == (5300, "visible", 300)
    assert made.thinking_budget == 5000 - 8, "the marks of the thought's end are no part of the answer"
    assert visible(20000).max_tokens == 25000
    assert decided({}, Policy(completion_tokens_mode="visible")).visible_tokens is None


def test_a_visible_cap_of_a_model_that_does_not_think_is_the_cap():
    """There is nothing to make room for."""
    plain = Facts("local", "openai", FAMILIES.named("plain"), "m")
    assert (visible(300, plain).max_tokens, visible(300, plain).visible_tokens) == (300, None)


def test_the_room_is_what_thoughts_took_here_once_that_is_known():
    """For the effort that is sent, and only for that."""
    known = replace(K3, rooms={"": Room(700, 40), "low": Room(90, 40)})
    made = visible(300, known)
    assert (made.max_tokens, made.thinking_budget) == (1000, 692)
    assert "95 % of 40 thoughts" in next(each.reason for each in made.decisions if each.rule == "floor")
    assert visible(300, replace(known, slow=True)).max_tokens == 390
    assert visible(300, replace(K3, rooms={"low": Room(90, 40)})).max_tokens == 5300


def test_what_thoughts_leave_of_a_small_cap_is_kept_for_the_answer():
    """Half of it while nothing is known; up to the reserve where thoughts are known to be short."""
    policy = Policy(sampling="client", min_completion_tokens=0)
    assert decided({}, policy, max_tokens=1500).thinking_budget == 750
    assert decided({}, policy, replace(K3, rooms={"": Room(200, 40)}), max_tokens=1500).thinking_budget == 1500 - 1024
    assert decided({}, policy, replace(K3, rooms={"": Room(9000, 40)}), max_tokens=1500).thinking_budget == 750


@given(st.integers(6, 200_000), st.integers(0, 20_000), st.sampled_from(["floor", "visible"]), st.integers(0, 9000))
def test_every_cap_leaves_tokens_for_an_answer(cap, floor, mode, room):
    """And is never lowered: of very small ones all is kept, because the marks of a thought's end count too."""
    given = Policy(sampling="client", min_completion_tokens=floor, completion_tokens_mode=mode)
    facts = replace(K3, rooms={"": Room(room, 50)} if room else {})
    made = decided({}, given, facts, max_tokens=cap)
    assert made.max_tokens is not None
    assert made.thinking_budget is not None
    assert made.max_tokens >= cap
    assert 0 <= made.thinking_budget <= made.max_tokens - min(made.max_tokens, 8)


# Stop strings


def test_stop_strings_are_the_proxys_where_the_model_may_think():
    """An engine would find them in the thought."""
    made = decided({}, stop=["a", "b"])
    assert (made.stops, made.fields, made.streamed) == (("a", "b"), {"stop": None}, True)
    assert decided({}, stop="a").stops == ("a",)
    for odd in ([], "", None, ["a", 1], 5):
        assert (decided({}, stop=odd).stops, decided({}, stop=odd).fields) == ((), {}), odd


def test_what_an_engine_refuses_in_a_stream_is_asked_for_whole():
    """llama-server takes tools and logprobs together only so; the text is cut all the same."""
    engine = replace(K3, whole_only=("tools", "logprobs"))
    made = decided({}, facts=engine, stop="a", tools=TOOLS, logprobs=True)
    assert (made.streamed, made.stops) == (False, ("a",))
    assert decided({}, facts=engine, stop="a", tools=TOOLS, logprobs=False).streamed
    assert decided({}, facts=engine, stop="a", tools=TOOLS, logprobs=True, stream=True).streamed


def test_a_cap_near_the_largest_is_not_raised_over_it():
    """Engines count in 32 bits."""
    assert visible(2**31 - 10).max_tokens == 2**31 - 1


def test_stop_strings_stay_where_there_is_no_thought():
    """The engine ends the answer by itself, and counts it."""
    plain = Facts("local", "openai", FAMILIES.named("plain"), "m")
    for made in (
        decided({}, facts=plain, stop="a"),
        decided({}, stop="a", reasoning_effort="none"),
        decided({}, Policy(stop="backend", sampling="client"), stop="a"),
    ):
        assert (made.stops, made.fields, made.streamed) == ((), {}, False)


# Through the door


async def test_a_rule_sends_side_requests_to_another_backend_under_another_name():
    """The row tells what was asked for, and where it went."""
    one, two = answer("Main.", reasoning="R"), answer("A title")
    async with FakeBackend(one) as main, FakeBackend(two) as small:
        given = settings(
            main.url,
            backends={"small": {"url": small.url, "engine": "openai", "family": "plain", "models": ["tiny"]}},
            models={"titles": {"backend": "small", "upstream": "tiny"}},
        )
        rules = [{"name": "titles", "when": {"kind": "side"}, "set": {"model": "titles"}}]
        given = given.model_copy(update={"rules": tuple(Rule(**rule) for rule in rules)})
        async with serving(given) as proxy:
            title = await proxy.chat(TITLE, {"role": "user", "content": "Generate a title"})
            await proxy.chat({"role": "user", "content": "hello"})
            rows = await proxy.rows(2)
    assert title.json()["choices"][0]["message"]["content"] == "A title"
    assert title.headers["x-proxy-backend"] == "small"
    assert title.headers["x-proxy-decisions"].startswith("rule:titles,side,route")
    assert [request.get("model") for request in small.requests] == ["tiny"]
    assert [(row["kind"], row["model"], row["upstream_model"], row["backend"]) for row in rows] == [
        ("side", "m", "tiny", "small"),
        ("chat", "m", "m", "local"),
    ]


async def test_a_rule_that_names_a_backend_goes_before_the_names_that_are_served():
    """Also for a name that the backend does not list."""
    async with FakeBackend(answer("No.")) as first, FakeBackend(answer("Yes.")) as second:
        given = settings(first.url, backends={"other": {"url": second.url, "engine": "openai", "family": "generic"}})
        given = given.model_copy(update={"rules": (Rule(when={"client": None}, set={"backend": "other"}),)})
        async with serving(given) as proxy:
            got = await proxy.chat()
    assert got.json()["choices"][0]["message"]["content"] == "Yes."
    assert (got.headers["x-proxy-backend"], got.headers["x-proxy-decisions"]) == ("other", "rule:1,route")
