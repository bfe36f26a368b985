"""What goes back into a history, by whose rule, and what is said about it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from chats import ANSWER, CALL, RESULT, USER, Memory, asks, result, rules, says, thoughts
from hypothesis import given
from hypothesis import strategies as st

from proxy.history import FILLER, conversation_effort
from proxy.messages import History, Plan

FOUR = (USER, ANSWER, USER, CALL, RESULT)


def restored(
    *messages: dict[str, Any], turns: tuple[tuple[int, str], ...] = (), family: str = "kimi-k3", fields=None, **settings
) -> Plan:
    """The plan after restoring, with these (position, thought) pairs known."""
    memory = Memory(family, **settings)
    for at, thought in turns:
        bare = {name: value for name, value in messages[at].items() if not name.startswith("reasoning")}
        memory.answer(*messages[:at], said=bare, thought=thought)
    return memory.plan(*messages, **(fields or {}))


def test_a_dropped_thought_goes_back_on_its_message():
    """The stored bytes, on the right turn, and counted."""
    plan = restored(USER, CALL, RESULT, turns=((1, "I call ls.\n"),))
    assert thoughts(plan) == ["I call ls.\n"]
    assert plan.history == History(restored=1)
    assert rules(plan) == ["restore"]


def test_an_unknown_turn_is_counted_and_left_bare():
    """Never a false thought: nothing is invented for a turn that nobody remembers."""
    plan = restored(USER, CALL, RESULT)
    assert (thoughts(plan), plan.history) == ([None], History(missing=1))


def test_a_turn_that_did_not_think_gets_nothing_and_is_not_missing():
    """Known, and known to have no thought."""
    plan = restored(USER, CALL, RESULT, turns=((1, ""),))
    assert (thoughts(plan), plan.history) == ([None], History())


def test_the_clients_own_thought_wins():
    """A rewritten thought goes as the client sent it."""
    plan = restored(USER, {**CALL, "reasoning_content": "mine"}, RESULT, turns=((1, "stored"),))
    assert (thoughts(plan), plan.history) == (["mine"], History(present=1))


def test_a_trimmed_thought_is_the_stored_one():
    """Equal but for blanks at its ends: the stored bytes go, or the prompt cache breaks on every turn."""
    plan = restored(USER, {**CALL, "reasoning_content": "I call ls."}, RESULT, turns=((1, "\nI call ls.\n"),))
    assert (thoughts(plan), plan.history) == (["\nI call ls.\n"], History(present=1))


def test_a_trailing_assistant_message_gets_nothing():
    """A prefill is the beginning of the answer, not a turn."""
    plan = restored(USER, says("Sure,"), turns=((1, "thought"),))
    assert (thoughts(plan), plan.history) == ([None], History())
    assert plan.messages == plan.request.messages


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
    plan = restored(*FOUR, turns=((1, "T1"), (3, "T3")), family=family, restore=rule, fields=fields)
    assert thoughts(plan) == wanted


def test_without_tools_deepseek_v4_gets_none():
    """Its template drops them, so the bytes are saved."""
    assert thoughts(restored(USER, ANSWER, USER, family="deepseek-v4", turns=((1, "T1"),))) == [None]


@pytest.mark.parametrize("family", ["plain", "deepseek-r1"])
def test_a_family_that_refuses_thoughts_gets_the_clients_own_stripped(family):
    """Strict schemas answer 400 to an unknown field, whatever its name."""
    own = {"reasoning_content": "mine", "reasoning_details": [{"type": "reasoning.text", "text": "mine"}]}
    plan = restored(USER, {**ANSWER, **own}, USER, family=family)
    assert thoughts(plan) == [None]
    assert rules(plan) == ["strip"]
    assert plan.messages[1].fields.keys() == {"role", "content"}


def test_the_effort_of_a_conversation_is_that_of_its_latest_known_turn():
    """A turn where the client chose says nothing about the default."""
    memory = Memory()
    memory.answer(USER, said=ANSWER, thought="T1", effort="low")
    memory.answer(*FOUR[:3], said=CALL, thought="T3")
    memory.plan(*FOUR)
    assert conversation_effort(memory.known) == "low"
    memory.turns[-1] = msgspec.structs.replace(memory.turns[-1], effort="")
    memory.plan(*FOUR)
    assert conversation_effort(memory.known) == ""
    assert conversation_effort({}) is None


@pytest.mark.parametrize("family", ["kimi-k3", "kimi-k3.1-pro", "kimi-k2"])
def test_kimi_gets_a_filler_where_a_call_comes_without_its_thought(family):
    """Moonshot answers 400 to a tool turn without one; a plain turn may lack it."""
    memory = Memory(family, engine_refuses=True)
    plan = memory.plan(*FOUR)
    assert thoughts(plan) == [None, FILLER]
    assert plan.history == History(missing=1, filled=1)
    assert rules(plan) == ["filler"]


def test_deepseek_v4_gets_a_filler_on_every_turn_once_tools_are_in_play():
    """Its service wants all thoughts back then, and none without tools."""
    memory = Memory("deepseek-v4", engine_refuses=True)
    assert thoughts(memory.plan(*FOUR)) == [FILLER, FILLER]
    assert thoughts(memory.plan(USER, ANSWER, USER)) == [None]


def test_no_filler_goes_where_the_engine_does_without():
    """A server of one's own only answers worse, and a filler is no thought."""
    assert thoughts(Memory(engine_refuses=False).plan(*FOUR)) == [None, None]
    assert thoughts(Memory("qwen3", engine_refuses=True).plan(*FOUR)) == [None, None]


def test_the_filler_is_a_setting():
    """Its own text, or none."""
    assert thoughts(Memory(engine_refuses=True, filler="n/a").plan(*FOUR)) == [None, "n/a"]
    plan = Memory(engine_refuses=True, filler="off").plan(*FOUR)
    assert (thoughts(plan), plan.history) == ([None, None], History(missing=2))


def test_a_turn_that_did_not_think_gets_the_filler_where_a_blank_is_refused():
    """An empty field counts as a missing one there (LiteLLM writes a blank for the same reason)."""
    memory = Memory(engine_refuses=True)
    memory.answer(USER, said=CALL, thought="")
    plan = memory.plan(USER, CALL, RESULT)
    assert (thoughts(plan), plan.history) == ([FILLER], History(filled=1))


def test_a_client_that_does_not_think_needs_no_filler():
    """The service asks for thoughts in thinking mode only."""
    assert thoughts(Memory(engine_refuses=True).plan(*FOUR, thinking={"type": "disabled"})) == [None, None]


def test_a_filler_that_a_client_sends_back_is_no_thought():
    """It counts as missing, and gives way to the thought where that is known."""
    echoed = {**CALL, "reasoning_content": f"{FILLER}\n"}
    plan = restored(USER, echoed, RESULT)
    assert (thoughts(plan), plan.history) == ([None], History(missing=1))
    assert thoughts(restored(USER, echoed, RESULT, turns=((1, "T1"),))) == ["T1"]


DETAILS = [{"type": "reasoning.text", "text": "T1", "signature": "s=="}, {"type": "reasoning.encrypted", "data": "x"}]


def test_reasoning_details_go_back_word_for_word():
    """With the thought that they belong to, also where the client kept only its text."""
    memory = Memory()
    memory.answer(USER, said=CALL, thought="T1", details=json.dumps(DETAILS))
    for message in (CALL, {**CALL, "reasoning": "T1"}):
        plan = memory.plan(USER, message, RESULT)
        assert json.loads(plan.messages[1].fields["reasoning_details"]) == DETAILS
    own = {**CALL, "reasoning": "mine", "reasoning_details": [{"type": "reasoning.text", "text": "mine"}]}
    plan = memory.plan(USER, own, RESULT)
    assert json.loads(plan.messages[1].fields["reasoning_details"]) == own["reasoning_details"]


MIRRORED = "<think>\nI look.\n</think>\n\nTwo."


def test_a_mirrored_thought_goes_under_its_own_name():
    """And the text goes without it."""
    plan = restored(USER, says(MIRRORED), USER)
    assert thoughts(plan) == ["I look."]
    assert json.loads(plan.messages[1].fields["content"]) == "Two."
    assert (rules(plan), plan.history) == (["lift"], History(present=1))


def test_a_mirrored_thought_that_is_the_stored_one_goes_with_the_stored_bytes():
    """Front ends quote, escape and trim what they show."""
    details = (
        '<details type="reasoning" done="true" duration="3">\n<summary>Thought for 3 seconds</summary>\n'
        "&gt; a &lt; b\n&gt; \n&gt; so\n</details>\nTwo."
    )
    plan = restored(USER, says(details), USER)
    assert thoughts(plan) == ["a < b\n\nso"]
    memory = Memory()
    memory.answer(USER, said=says("Two."), thought="\na < b\n\n  so\n")
    assert thoughts(memory.plan(USER, says(details), USER)) == ["\na < b\n\n  so\n"]


def test_an_empty_mirrored_block_is_no_thought():
    """It leaves the text, and the stored thought comes back."""
    memory = Memory()
    memory.answer(USER, said=says("Two."), thought="T1")
    plan = memory.plan(USER, says("<think>\n\n</think>\n\nTwo."), USER)
    assert (thoughts(plan), plan.history) == (["T1"], History(restored=1))
    assert json.loads(plan.messages[1].fields["content"]) == "Two."


def test_lifting_can_be_switched_off():
    """Then the text goes as it came, and nothing is put beside it."""
    memory = Memory(lift_think_tags=False)
    memory.answer(USER, said=says("Two."), thought="I look.")
    plan = memory.plan(USER, says(MIRRORED), USER)
    assert plan.messages == plan.request.messages
    assert plan.history == History(present=1)


def test_a_thinking_part_of_a_message_is_a_mirrored_thought():
    """As Mistral and Anthropic-like clients send it."""
    parts = [{"type": "thinking", "thinking": "I look."}, {"type": "text", "text": "Two."}]
    plan = restored(USER, {"role": "assistant", "content": parts}, USER)
    assert thoughts(plan) == ["I look."]
    assert json.loads(plan.messages[1].fields["content"]) == [{"type": "text", "text": "Two."}]


def test_a_mirrored_thought_is_stripped_where_thoughts_are_refused():
    """DeepSeek R1 takes none back in any form."""
    plan = restored(USER, says(MIRRORED), USER, family="deepseek-r1")
    assert json.loads(plan.messages[1].fields["content"]) == "Two."
    assert (thoughts(plan), rules(plan)) == ([None], ["lift", "strip"])


def test_a_text_goes_with_the_blanks_that_the_model_wrote():
    """Clients cut them off in one request and not in the next, and the prompt's beginning must not change."""
    memory = Memory()
    memory.answer(USER, said=says("\n\nOne done. "), thought="T1")
    for content in ("One done.", "One done. ", "\n\nOne done. ", [{"type": "text", "text": "One done."}]):
        plan = memory.plan(USER, {"role": "assistant", "content": content}, USER)
        sent = json.loads(plan.messages[1].fields["content"])
        assert (sent if isinstance(sent, str) else sent[0]["text"]) == "\n\nOne done. "


def test_an_untouched_message_leaves_with_the_bytes_that_came():
    """Nothing to put back, nothing to write."""
    plan = restored(USER, {**CALL, "reasoning_content": "T1"}, RESULT, turns=((1, "T1"),))
    assert [message.fields for message in plan.messages] == [message.fields for message in plan.request.messages]


def long_chat(turns: int, thought: int) -> tuple[Memory, list[dict[str, Any]]]:
    """A chat with a tool loop at its end, whose every turn thought so many characters."""
    memory, messages = Memory(), [USER]
    for at in range(turns):
        said = says(f"Answer {at}.") if at < turns - 2 else says("", (f"c{at}", "ls", {"n": at}))
        memory.answer(*messages, said=said, thought="t" * thought + str(at))
        messages += [said, result(f"c{at}") if at >= turns - 2 else asks(f"Question {at}")]
    return memory, messages


def kept(memory: Memory, messages: list[dict[str, Any]], limit: int) -> list[bool]:
    """Which turns keep their thoughts in a window of so many tokens."""
    memory.facts = replace(memory.facts, context_limit=limit)
    return [thought is not None for thought in thoughts(memory.plan(*messages))]


def test_old_thoughts_are_left_out_first_and_those_of_the_tool_loop_last():
    """So that an answer fits; what goes is counted and named."""
    memory, messages = long_chat(8, 3000)
    assert kept(memory, messages, 20_000) == [True] * 8
    some = kept(memory, messages, 8_000)
    assert some == sorted(some)
    assert 0 < sum(some) < 8
    assert some[-2:] == [True, True]
    plan = memory.plan(*messages)
    assert plan.history == History(restored=sum(some), dropped=8 - sum(some))
    assert "window" in rules(plan)
    assert kept(memory, messages, 1_500) == [False] * 8


def test_what_was_left_out_stays_left_out_while_a_conversation_grows():
    """In steps: were it one thought more each turn, the prompt cache would break each turn."""
    memory, messages = long_chat(12, 1500)
    gone = [kept(memory, messages[: 2 * turns + 1], 6_000).count(False) for turns in range(1, 13)]
    assert gone == sorted(gone)
    assert 1 < len(set(gone)) <= 5


def test_a_thought_that_a_service_requires_makes_room_with_a_filler():
    """It was known and is left out, which is counted as that."""
    memory, messages = long_chat(4, 3000)
    memory.facts = replace(memory.facts, context_limit=1_500, refuses_missing=True)
    plan = memory.plan(*messages)
    assert thoughts(plan) == [None, None, FILLER, FILLER]
    assert plan.history == History(dropped=4)


def test_bare_leaves_out_all_that_was_put_back_and_nothing_else():
    """For a backend that finds the prompt too long: the client's own messages may fit."""
    memory, messages = long_chat(3, 10)
    messages[1] = {**messages[1], "reasoning_content": "mine"}
    plan = memory.plan(*messages, bare=True)
    assert thoughts(plan) == ["mine", None, None]
    assert (plan.history, plan.restored) == (History(present=1, dropped=2), {})


ROLES = st.sampled_from(["user", "assistant", "tool", "system"])
TEXTS = st.sampled_from(["", "a", " b\n", "<think>x</think>y", "<think>", None, [{"type": "text", "text": "p"}], []])
CALLS = st.sampled_from([None, [], [{"id": "c", "function": {"name": "f", "arguments": "{}"}}], [{"id": 1}], "x"])


@given(
    st.lists(st.tuples(ROLES, TEXTS, CALLS, st.sampled_from([None, "", "T"])), min_size=1, max_size=8), st.booleans()
)
def test_any_history_is_counted_once_and_a_second_look_changes_nothing(rows, refuses):
    """For odd messages of every kind: the counts never exceed the turns, and restoring is the same each time."""
    names = ("role", "content", "tool_calls", "reasoning_content")
    messages = [{k: v for k, v in zip(names, row, strict=True) if v is not None} for row in rows]
    memory = Memory(engine_refuses=refuses)
    first, second = memory.plan(*messages), memory.plan(*messages)
    assert first.messages == second.messages
    history = first.history
    counted = history.present + history.restored + history.missing + history.filled + history.dropped
    assert counted <= sum(message["role"] == "assistant" for message in messages)


@pytest.mark.parametrize("thinking", [{"type": "enabled", "keep": "all"}, {"clear_thinking": False}])
def test_a_client_that_keeps_all_thoughts_gets_all_of_them_back(thinking):
    """Where the family itself keeps those of the running tool loop only; a setting counts more."""
    turns = ((1, "plain"), (3, "call"))
    assert thoughts(restored(*FOUR, turns=turns, family="glm")) == [None, "call"]
    assert thoughts(restored(*FOUR, turns=turns, family="glm", fields={"thinking": thinking})) == ["plain", "call"]
    never = restored(*FOUR, turns=turns, family="glm", fields={"thinking": thinking}, restore="never")
    assert thoughts(never) == [None, None]
