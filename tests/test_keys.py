"""Turns are found by what they say and where they stand, and by nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from chats import CALL, LONG, RESULT, SCOPE, USER, asks, request, result, says
from hypothesis import given
from hypothesis import strategies as st

from proxy import keys
from proxy.keys import LONG_TEXT, Chain, plain_id
from proxy.messages import ToolCall


def found(*messages: dict[str, Any], scope: bytes = SCOPE) -> list[bytes]:
    """The keys of the assistant turns."""
    return list(Chain(request(*messages).messages, scope).keys.values())


def weaker(*messages: dict[str, Any]) -> keys.Weaker:
    """The weaker keys of the last assistant turn."""
    chain = Chain(request(*messages).messages, SCOPE)
    return chain.weaker(max(chain.keys))


def test_an_answer_is_found_as_the_message_that_it_becomes():
    """The key of an answer is the key of the same turn in the next request: one function for store and lookup."""
    chain = Chain(request(USER).messages, SCOPE)
    assert chain.answer("Two files.\n", ())[0] == found(USER, {"role": "assistant", "content": "Two files."})[0]
    call = ToolCall("ls", '{"b": "x", "a": 1}', "another-id")
    assert chain.answer("", (call,))[0] == found(USER, CALL)[0]


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
    assert found(USER, changed) == found(USER, CALL)


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
    assert found(USER, changed) != found(USER, CALL)


def test_system_messages_are_no_part_of_a_turn():
    """A system prompt that changes from day to day does not hide a history."""
    system = {"role": "system", "content": "Today is Monday."}
    developer = {"role": "developer", "content": "Be brief."}
    assert found(system, USER, CALL, developer, RESULT) == found(USER, CALL, RESULT)


def test_a_turn_is_bound_to_what_stands_before_it():
    """The same words after another question are another turn."""
    assert found({"role": "user", "content": "And in /etc?"}, CALL) != found(USER, CALL)


def test_scopes_never_meet():
    """Another key, end user or family is another memory."""
    scopes = [
        keys.scope(b"salt", "key", None, "kimi-k3"),
        keys.scope(b"salt", "key2", None, "kimi-k3"),
        keys.scope(b"salt", "key", "anna", "kimi-k3"),
        keys.scope(b"salt", "key", None, "qwen3"),
        keys.scope(b"other", "key", None, "kimi-k3"),
    ]
    assert len({found(USER, CALL, scope=scope)[0] for scope in scopes}) == len(scopes)


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


@pytest.mark.parametrize(
    "content",
    [
        "  Two files.\n",
        "Two\u0020files.",
        [{"type": "text", "text": "Two files."}],
        [{"type": "text", "text": "Two "}, {"type": "text", "text": "files."}],
        "<think>\nI look.\n</think>\n\nTwo files.",
        "<think></think>Two files.",
        '<details type="reasoning" done="true">\n<summary>Thought</summary>\n&gt; I\n</details>\nTwo files.',
        [{"type": "thinking", "thinking": "I look."}, {"type": "text", "text": "Two files."}],
        [{"type": "reasoning", "text": "I look."}, {"type": "text", "text": "Two files."}],
    ],
)
def test_a_text_is_one_text_whatever_a_front_end_makes_of_it(content):
    """Blanks, parts and mirrored thoughts are no part of what an assistant said."""
    assert found(USER, {"role": "assistant", "content": content}) == found(USER, says("Two files."))


@pytest.mark.parametrize("content", ["Two <think>x</think> files.", "<think>Two files.", "Two files. </think>"])
def test_mark_up_elsewhere_in_a_text_is_text(content):
    """Only a closed thought block at the head of a text is a mirrored thought."""
    assert found(USER, says(content)) != found(USER, says("Two  files."))
    assert len({*found(USER, says(content)), *found(USER, says("Two files."))}) == 2


def test_line_ends_do_not_matter_and_inner_blanks_do():
    """Windows line ends come from front ends; a blank more inside a text is another text."""
    assert found(USER, says("a\r\nb")) == found(USER, says("a\nb"))
    assert found(USER, says("a  b")) != found(USER, says("a b"))


def test_the_names_of_users_in_one_chat_are_part_of_what_they_say():
    """Two people may say the same words; a tool's name comes and goes without meaning."""
    assert found({**USER, "name": "anna"}, CALL) != found({**USER, "name": "ben"}, CALL)
    named = {**RESULT, "name": "ls"}
    assert found(USER, CALL, named, says("Two.")) == found(USER, CALL, RESULT, says("Two."))


def test_a_lone_call_and_a_long_text_have_a_key_of_their_own():
    """A call is found by its name and arguments, a long text by itself, and a short text by neither."""
    assert weaker(CALL).calls == weaker(asks("other"), CALL).calls
    assert weaker(CALL).whole is None
    assert len(LONG) >= LONG_TEXT
    assert weaker(says(LONG)).whole == weaker(asks("other"), says(LONG + "\n")).whole is not None
    assert list(weaker(says("Two."))) == []


def test_a_message_with_text_and_calls_has_a_key_for_all_of_it():
    """The whole message tells more than each of its calls."""
    both = says("I look.", ("a", "ls", {}), ("b", "cat", {"f": 1}))
    other = says("I watch.", ("a", "ls", {}), ("b", "cat", {"f": 1}))
    assert weaker(both).whole != weaker(other).whole
    assert weaker(both).calls == weaker(other).calls
    assert len(set(weaker(both).calls)) == 2


def test_weaker_keys_belong_to_their_scope():
    """Another caller's call is another key."""
    mine, theirs = (Chain(request(USER, CALL).messages, scope).weaker(1) for scope in (SCOPE, b"other scope"))
    assert not set(mine) & set(theirs)


def test_a_message_that_lost_its_calls_is_found_by_the_ids_of_their_results():
    """As the strictest client writes them back, in any order; at another place it is another message."""
    chain = Chain(request(USER).messages, SCOPE)
    _, told = chain.answer("I look.", (ToolCall("ls", "{}", "functions.ls:0"), ToolCall("cat", "{}", "c2")))
    lost = weaker(USER, says("I look."), result("c2"), result("functions_ls_0")).less
    assert lost[0] in told.less
    assert len(lost) == 1
    assert not set(weaker(asks("other"), says("I look."), result("c2"), result("functions.ls:0")).less) & set(lost)
    assert not set(weaker(USER, says("I look."), result("c2"), asks("?")).less) & set(lost)
    assert weaker(USER, says("I look."), asks("?")).less == ()
    assert weaker(USER, says("I look."), {"role": "tool", "content": "-"}).less == ()


def test_a_lone_lost_call_is_found_whatever_its_results_id_is():
    """There is only one call that the result can belong to."""
    _, told = Chain(request(USER).messages, SCOPE).answer("I look.", (ToolCall("ls", "{}", "c1"),))
    same, other = (weaker(USER, says("I look."), result(name)).less for name in ("c1", "n1"))
    assert told.less[:2] == same
    assert (other[0] != same[0], other[1] == same[1]) == (True, True)


def test_an_id_is_plain_as_kimi_code_writes_it():
    """Every other character becomes an underscore, and 64 characters are the most."""
    assert plain_id("functions.read:3") == "functions_read_3"
    assert plain_id("ä" * 70) == "_" * 64


def test_an_answer_that_goes_on_from_a_text_is_found_as_one_with_it():
    """A front end's "continue" makes one message of both."""
    chain = Chain(request(USER, says("The list is: 1.")).messages, SCOPE)
    keys_of_both = chain.continued(" 2. 3.", ())
    for joined in ("The list is: 1. 2. 3.", "The list is: 1.\n2. 3.", "The list is: 1.\n\n2. 3."):
        assert found(USER, says(joined))[0] in keys_of_both
    assert Chain(request(USER).messages, SCOPE).continued("x", ()) == []


@given(st.lists(st.sampled_from([USER, CALL, RESULT, says("Two."), says(LONG)]), max_size=12))
def test_an_answer_is_found_wherever_it_stands(history):
    """For any history the keys of an answer are those of the message that it becomes."""
    chain = Chain(request(USER, *history).messages, SCOPE)
    for said, calls in (("Two.", ()), (LONG, ()), ("", (ToolCall("ls", '{"b":"x","a":1}', "functions.ls:0"),))):
        message = says(said, *((call.id, call.name, {"a": 1, "b": "x"}) for call in calls))
        key, told = chain.answer(said, calls)
        after = Chain(request(USER, *history, message).messages, SCOPE)
        at = len(history) + 1
        assert key == after.keys[at]
        there = after.weaker(at)
        assert told.outline == there.outline
        assert (told.near, told.whole, told.calls) == (there.near, there.whole, there.calls)
