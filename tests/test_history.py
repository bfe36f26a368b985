"""Turns are found by what they say and where they stand, and by nothing else."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy import history, normalise
from proxy.families import load
from proxy.history import Chain, Restoring
from proxy.messages import Facts, History, Plan, ToolCall, Turn

FAMILIES = load()
SCOPE = history.scope(b"salt", "key", None, "kimi-k3")
USER = {"role": "user", "content": "What is in /data?"}
CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {"id": "functions.ls:0", "type": "function", "function": {"name": "ls", "arguments": '{"a":1,"b":"x"}'}}
    ],
}
RESULT = {"role": "tool", "tool_call_id": "functions.ls:0", "content": "a.txt"}


def request(*messages: dict[str, Any], **fields: Any):
    """A request with these messages."""
    return normalise.read(json.dumps({"model": "m", "messages": messages, **fields}).encode())


def keys(*messages: dict[str, Any], scope: bytes = SCOPE) -> list[bytes]:
    """The keys of the assistant turns."""
    return list(Chain(request(*messages).messages, scope).keys.values())


def restored(*messages: dict[str, Any], family: str = "kimi-k3", rule: str = "auto", turns=(), **fields: Any) -> Plan:
    """The plan after restoring, with these (position, thought) pairs known."""
    asked = request(*messages, **fields)
    chain = Chain(asked.messages, SCOPE)
    known = {chain.keys[at]: Turn(chain.keys[at], thought) for at, thought in turns}
    plan = Plan(asked, Facts("b", "kimi", FAMILIES.named(family), "m"), asked.messages)
    return history.restore(plan, chain, known, Restoring(restore=rule))


def thoughts(plan: Plan) -> list[str | None]:
    """What each assistant message will say of its thought."""
    return [message.reasoning for message in plan.messages if message.role == "assistant"]


def test_an_answer_is_found_as_the_message_that_it_becomes():
    """The key of an answer is the key of the same turn in the next request: one function for store and lookup."""
    chain = Chain(request(USER).messages, SCOPE)
    assert chain.answer("Two files.\n", ()) == keys(USER, {"role": "assistant", "content": "Two files."})[0]
    call = ToolCall("ls", '{"b": "x", "a": 1}', "another-id")
    assert chain.answer("", (call,)) == keys(USER, CALL)[0]


@pytest.mark.parametrize(
    "changed",
    [
        {**CALL, "content": None},
        {name: value for name, value in CALL.items() if name != "content"},
        {**CALL, "content": " "},
        {**CALL, "reasoning_content": "anything"},
        {**CALL, "tool_calls": [{**CALL["tool_calls"][0], "id": "functions_ls_0"}]},
        {**CALL, "tool_calls": [{"function": {"name": "ls", "arguments": '{ "b": "x", "a": 1 }'}}]},
        {**CALL, "tool_calls": [{"function": {"name": "ls", "arguments": {"b": "x", "a": 1}}}]},
        {**CALL, "tool_calls": [{"function": {"name": "ls", "arguments": '{"a":1.0,"b":"x"}'}}]},
    ],
)
def test_what_front_ends_change_without_meaning_does_not_matter(changed):
    """Null, empty and absent text beside calls, ids, and the spelling of argument JSON leave the key as it is."""
    assert keys(USER, changed) == keys(USER, CALL)


@pytest.mark.parametrize(
    "changed",
    [
        {**CALL, "content": "I look."},
        {**CALL, "tool_calls": []},
        {**CALL, "tool_calls": CALL["tool_calls"] * 2},
        {**CALL, "tool_calls": [{"function": {"name": "cat", "arguments": '{"a":1,"b":"x"}'}}]},
        {**CALL, "tool_calls": [{"function": {"name": "ls", "arguments": '{"a":2,"b":"x"}'}}]},
    ],
)
def test_a_changed_turn_is_another_turn(changed):
    """Another word, name or argument is another key."""
    assert keys(USER, changed) != keys(USER, CALL)


def test_system_messages_are_no_part_of_a_turn():
    """A system prompt that changes from day to day does not hide a history."""
    system = {"role": "system", "content": "Today is Monday."}
    developer = {"role": "developer", "content": "Be brief."}
    assert keys(system, USER, CALL, developer, RESULT) == keys(USER, CALL, RESULT)


def test_a_turn_is_bound_to_what_stands_before_it():
    """The same words after another question are another turn."""
    assert keys({"role": "user", "content": "And in /etc?"}, CALL) != keys(USER, CALL)


def test_scopes_never_meet():
    """Another key, end user or family is another memory."""
    scopes = [
        history.scope(b"salt", "key", None, "kimi-k3"),
        history.scope(b"salt", "key2", None, "kimi-k3"),
        history.scope(b"salt", "key", "anna", "kimi-k3"),
        history.scope(b"salt", "key", None, "qwen3"),
        history.scope(b"other", "key", None, "kimi-k3"),
    ]
    assert len({keys(USER, CALL, scope=scope)[0] for scope in scopes}) == len(scopes)


@given(
    st.lists(st.tuples(st.sampled_from(["user", "assistant", "tool"]), st.text(max_size=5)), max_size=8),
    st.integers(0, 7),
    st.text(min_size=1, max_size=5).filter(str.strip),
)
def test_a_changed_word_matches_nothing_from_there_on(said, at, word):
    """Turns before an edit keep their keys; the edited one and all after it have new ones."""
    messages = [{"role": role, "content": text} for role, text in said]
    before = Chain(request(USER, *messages).messages, SCOPE).keys
    if not messages:
        return
    at %= len(messages)
    edited = [dict(message) for message in messages]
    edited[at]["content"] += "|" + word
    after = Chain(request(USER, *edited).messages, SCOPE).keys
    assert before.keys() == after.keys()
    assert all((before[place] == after[place]) == (place < at + 1) for place in before)


def test_a_dropped_thought_goes_back_on_its_message():
    """The stored bytes, on the right turn, and counted."""
    plan = restored(USER, CALL, RESULT, turns=[(1, "I call ls.\n")])
    assert thoughts(plan) == ["I call ls.\n"]
    assert plan.history == History(restored=1)
    assert [decision.rule for decision in plan.decisions] == ["restore"]


def test_an_unknown_turn_is_counted_and_left_bare():
    """Never a false thought: nothing is invented for a turn that nobody remembers."""
    plan = restored(USER, CALL, RESULT)
    assert (thoughts(plan), plan.history) == ([None], History(missing=1))


def test_a_turn_that_did_not_think_gets_nothing_and_is_not_missing():
    """Known, and known to have no thought."""
    plan = restored(USER, CALL, RESULT, turns=[(1, "")])
    assert (thoughts(plan), plan.history) == ([None], History())


def test_the_clients_own_thought_wins():
    """A rewritten thought goes as the client sent it."""
    plan = restored(USER, {**CALL, "reasoning_content": "mine"}, RESULT, turns=[(1, "stored")])
    assert (thoughts(plan), plan.history) == (["mine"], History(present=1))


def test_a_trimmed_thought_is_the_stored_one():
    """Equal but for blanks at its ends: the stored bytes go, or the prompt cache breaks on every turn."""
    plan = restored(USER, {**CALL, "reasoning_content": "I call ls."}, RESULT, turns=[(1, "\nI call ls.\n")])
    assert (thoughts(plan), plan.history) == (["\nI call ls.\n"], History(present=1))


def test_a_trailing_assistant_message_gets_nothing():
    """A prefill is the beginning of the answer, not a turn."""
    plan = restored(USER, {"role": "assistant", "content": "Sure,"}, turns=[(1, "thought")])
    assert (thoughts(plan), plan.history) == ([None], History())


ANSWER = {"role": "assistant", "content": "Two."}
FOUR = (USER, ANSWER, USER, CALL, RESULT)
KNOWN = [(1, "T1"), (3, "T3")]


@pytest.mark.parametrize(
    ("family", "rule", "fields", "wanted"),
    [
        ("kimi-k3", "auto", {}, ["T1", "T3"]),
        ("deepseek-v4", "auto", {"tools": [{"type": "function"}]}, ["T1", "T3"]),
        ("qwen3", "auto", {}, [None, "T3"]),
        ("deepseek-r1", "auto", {}, [None, None]),
        ("plain", "auto", {}, [None, None]),
        ("kimi-k3", "current", {}, [None, "T3"]),
        ("kimi-k3", "never", {}, [None, None]),
        ("qwen3", "all", {}, ["T1", "T3"]),
    ],
)
def test_whose_thoughts_go_back_is_the_familys_rule_or_the_setting(family, rule, fields, wanted):
    """All turns, those of a chat with tools, the current tool loop, or none."""
    assert thoughts(restored(*FOUR, family=family, rule=rule, turns=KNOWN, **fields)) == wanted


def test_without_tools_deepseek_v4_gets_none():
    """Its template drops them, so the bytes are saved."""
    assert thoughts(restored(USER, ANSWER, USER, family="deepseek-v4", turns=[(1, "T1")])) == [None]


def test_a_family_that_refuses_thoughts_gets_the_clients_own_stripped():
    """Strict schemas answer 400 to an unknown field."""
    plan = restored(USER, {**ANSWER, "reasoning_content": "mine"}, USER, family="plain")
    assert thoughts(plan) == [None]
    assert [decision.rule for decision in plan.decisions] == ["strip"]


def test_the_effort_of_a_conversation_is_that_of_its_latest_known_turn():
    """A turn where the client chose says nothing about the default."""
    asked = request(*FOUR)
    chain = Chain(asked.messages, SCOPE)
    first, second = chain.keys.values()
    turns = {first: Turn(first, "T1", "low"), second: Turn(second, "T3", None)}
    assert history.conversation_effort(chain, turns) == "low"
    turns[second] = replace(turns[second], effort="")
    assert history.conversation_effort(chain, turns) == ""
    assert history.conversation_effort(chain, {}) is None
