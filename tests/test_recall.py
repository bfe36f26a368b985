"""What is recalled of a history that came back trimmed, merged, ambiguous or without its calls."""

from __future__ import annotations

import json
from typing import Any

import pytest
from chats import CALL, LONG, RESULT, USER, Memory, asks, result, rules, says, thoughts

from proxy.messages import History

LS = says("", ("c1", "ls", {}))
CAT = says("", ("c2", "cat", {"f": "a"}))


def test_after_a_regeneration_with_the_same_words_the_newest_thought_is_recalled():
    """The answer that stands there was written last."""
    memory = Memory()
    for thought in ("T1", "T2"):
        memory.answer(USER, said=says("Two."), thought=thought)
    assert thoughts(memory.plan(USER, says("Two."), USER)) == ["T2"]


def test_of_equal_chats_the_one_under_the_same_system_prompt_is_recalled():
    """System prompts are no key, but tell two turns of one key apart."""
    memory = Memory()
    first, second = ({"role": "system", "content": text} for text in ("One.", "Two."))
    memory.answer(first, USER, said=says("Hi."), thought="T1")
    memory.answer(second, USER, said=says("Hi."), thought="T2")
    assert thoughts(memory.plan(first, USER, says("Hi."), USER)) == ["T1"]
    assert thoughts(memory.plan(second, USER, says("Hi."), USER)) == ["T2"]
    assert thoughts(memory.plan(USER, says("Hi."), USER)) == ["T2"]


def test_of_equal_chats_the_one_of_the_same_conversation_is_recalled():
    """A conversation's name is no key either, and tells more than the system prompt."""
    memory = Memory()
    memory.answer(USER, said=says("Hi."), thought="T1", conversation="a")
    memory.answer(USER, said=says("Hi."), thought="T2", conversation="b")
    assert thoughts(memory.plan(USER, says("Hi."), USER, conversation="a")) == ["T1"]


def test_a_thought_that_went_upstream_stays_although_another_chat_repeats_the_words():
    """Each turn tells which thought went before it, so the prompt's beginning does not change."""
    memory = Memory()
    memory.answer(USER, said=says("Hi."), thought="T1")
    memory.answer(USER, says("Hi."), asks("more"), said=says("Yes."), thought="T3")
    memory.answer(USER, said=says("Hi."), thought="T2")
    assert thoughts(memory.plan(USER, says("Hi."), asks("more"), says("Yes."), asks("?"))) == ["T1", "T3"]
    assert thoughts(memory.plan(USER, says("Hi."), asks("else"))) == ["T2"]


BEFORE = (asks("Hello."), says("Hi."))
"""The beginning of a chat, which a client cuts off later."""


def test_a_call_is_recalled_after_the_front_of_the_history_was_trimmed():
    """Its name and arguments lead to one thought."""
    memory = Memory()
    memory.answer(*BEFORE, USER, said=CALL, thought="I call ls.")
    assert thoughts(memory.plan(asks("continue"), CALL, RESULT)) == ["I call ls."]


def test_a_call_is_recalled_under_a_summary_in_the_system_prompt():
    """The history is as long as it was, and the system prompt tells that it was summarised."""
    memory = Memory()
    memory.answer({"role": "system", "content": "long"}, USER, said=CALL, thought="T1")
    summary = {"role": "system", "content": "summary: the user asks for files"}
    assert thoughts(memory.plan(summary, asks("continue"), CALL, RESULT)) == ["T1"]


def test_a_history_with_a_changed_word_is_not_a_trimmed_one():
    """As long as before, under the same system prompt: it was edited, or is another chat that begins alike."""
    memory = Memory()
    memory.answer(USER, said=CALL, thought="T1")
    memory.answer(USER, CALL, RESULT, said=says(LONG), thought="T2")
    plan = memory.plan(asks("And in /etc?"), CALL, RESULT, says(LONG), USER)
    assert (thoughts(plan), plan.history) == ([None, None], History(missing=2))


def test_an_early_message_that_changes_with_each_turn_hides_no_turn_with_two_untouched_ones_before_it():
    """Some clients put the state of files, or the time, into the first messages."""
    memory = Memory()
    state = [(asks(f"files: {at}"), says("Ok.")) for at in range(3)]
    memory.answer(*state[0], asks("Do."), said=says("1" + LONG), thought="T1")
    memory.answer(*state[1], asks("Do."), says("1" + LONG), asks("More."), said=says("2" + LONG), thought="T2")
    plan = memory.plan(*state[2], asks("Do."), says("1" + LONG), asks("More."), says("2" + LONG), asks("?"))
    assert thoughts(plan) == [None, "T1", "T2"]


def test_tools_that_say_something_else_now_hide_no_turn():
    """Agents clear old results, and some put them in another order."""
    memory = Memory()
    two = says("", ("c1", "ls", {}), ("c2", "cat", {}))
    memory.answer(USER, said=two, thought="T1")
    memory.answer(USER, two, result("c1", "a"), result("c2", "b"), said=CALL, thought="T2")
    memory.answer(USER, two, result("c1", "a"), result("c2", "b"), CALL, RESULT, said=says("Two."), thought="T3")
    for results in ((result("c2", "b"), result("c1", "a")), (result("c1", "[cleared]"), result("c2", "[cleared]"))):
        assert thoughts(memory.plan(USER, two, *results, CALL, RESULT, says("Two."), USER)) == ["T1", "T2", "T3"]


def test_a_turn_whose_text_beside_its_calls_was_dropped_is_recalled_where_it_stands():
    """Some clients keep only the calls."""
    memory = Memory()
    memory.answer(USER, said=says("I look.", ("c1", "ls", {})), thought="T1")
    assert thoughts(memory.plan(USER, says(None, ("c1", "ls", {})), result("c1"))) == ["T1"]
    assert thoughts(memory.plan(USER, says("I watch.", ("c1", "ls", {})), result("c1"))) == [None]


def test_a_call_that_was_made_with_two_thoughts_is_not_recalled_without_its_place():
    """When in doubt nothing is injected; at its own place it is found all the same."""
    memory = Memory()
    memory.answer(USER, said=CALL, thought="T1")
    memory.answer(asks("other"), said=CALL, thought="T2")
    plan = memory.plan(asks("continue"), CALL, RESULT)
    assert (thoughts(plan), plan.history) == ([None], History(missing=1))
    assert thoughts(memory.plan(USER, CALL, RESULT)) == ["T1"]


def test_a_call_without_a_thought_is_a_thought_of_its_own():
    """Made once with and once without one, it leads nowhere."""
    memory = Memory()
    memory.answer(USER, said=CALL, thought="T1")
    memory.answer(asks("other"), said=CALL, thought="")
    assert thoughts(memory.plan(asks("continue"), CALL, RESULT)) == [None]


def test_a_long_text_is_recalled_without_its_place_and_a_short_one_is_not():
    """A summary in front of the last turns hides where they stood."""
    memory = Memory()
    memory.answer(*BEFORE, USER, said=says(LONG), thought="T1")
    memory.answer(*BEFORE, USER, said=says("Two."), thought="T2")
    assert thoughts(memory.plan(asks("summary"), says(LONG), USER)) == ["T1"]
    assert thoughts(memory.plan(asks("summary"), says("Two."), USER)) == [None]
    assert thoughts(memory.plan(asks("summary"), says(LONG.replace("chance", "luck", 1)), USER)) == [None]


def test_a_turn_of_another_conversation_is_not_recalled_by_a_weaker_key():
    """Where the names differ, or one of them has none, it is another chat."""
    memory = Memory()
    memory.answer(*BEFORE, USER, said=CALL, thought="T1", conversation="a")
    assert thoughts(memory.plan(asks("go on"), CALL, RESULT, conversation="b")) == [None]
    assert thoughts(memory.plan(asks("go on"), CALL, RESULT, conversation="a")) == ["T1"]
    assert thoughts(memory.plan(asks("go on"), CALL, RESULT)) == [None]


def test_two_merged_turns_get_both_thoughts_in_order():
    """One message with the calls of two turns."""
    memory = Memory()
    memory.answer(USER, said=LS, thought="T-one")
    memory.answer(USER, LS, result("c1"), said=CAT, thought="T-two")
    merged = says("", ("c1", "ls", {}), ("c2", "cat", {"f": "a"}))
    assert thoughts(memory.plan(USER, merged, result("c1"), result("c2"))) == ["T-one\n\nT-two"]


def test_a_merged_message_with_a_call_that_nobody_knows_gets_nothing():
    """Half a thought would be a false one."""
    memory = Memory()
    memory.answer(USER, said=LS, thought="T-one")
    merged = says("", ("c1", "ls", {}), ("c2", "cat", {"f": "a"}))
    assert thoughts(memory.plan(USER, merged, result("c1"), result("c2"))) == [None]


def test_the_calls_of_one_turn_under_another_text_are_not_recalled():
    """Somebody changed the text."""
    memory = Memory()
    two: Any = (("c1", "ls", {}), ("c2", "cat", {"f": "a"}))
    memory.answer(*BEFORE, USER, said=says("I look.", *two), thought="T1")
    assert thoughts(memory.plan(asks("x"), says("I look.", *two), result("c1"), result("c2"))) == ["T1"]
    assert thoughts(memory.plan(asks("x"), says("I watch.", *two), result("c1"), result("c2"))) == [None]
    assert thoughts(memory.plan(asks("x"), says("", *two), result("c1"), result("c2"))) == ["T1"]


def test_lost_calls_come_back_with_the_ids_of_their_results():
    """The text and the results are there: the calls stand between them again, ids as the client writes them."""
    memory = Memory()
    arguments = {"path": "/data"}
    memory.answer(USER, said=says("I look.", ("functions.ls:0", "ls", arguments)), thought="T1")
    plan = memory.plan(USER, says("I look."), result("functions_ls_0"))
    assert thoughts(plan) == ["T1"]
    assert rules(plan) == ["restore", "restore_calls"]
    calls = json.loads(plan.messages[1].fields["tool_calls"])
    assert calls == says("", ("functions_ls_0", "ls", arguments))["tool_calls"]


@pytest.mark.parametrize(
    "behind",
    [
        (result("c1"), result("c9")),
        (result("c1"),),
        (result("c8"), result("c9")),
        (asks("so?"),),
        ({"role": "tool", "content": "-"}, {"role": "tool", "content": "-"}),
    ],
)
def test_lost_calls_stay_lost_where_the_results_are_others(behind):
    """Without results that fit, the calls would be a guess."""
    memory = Memory()
    memory.answer(USER, said=says("I look.", ("c1", "ls", {}), ("c2", "cat", {})), thought="T1")
    plan = memory.plan(USER, says("I look."), *behind)
    assert thoughts(plan) == [None]
    assert "tool_calls" not in plan.messages[1].fields


def test_a_lone_lost_call_comes_back_whatever_the_client_calls_it():
    """Its result's id is the call's id then."""
    memory = Memory()
    memory.answer(USER, said=says("", ("c1", "ls", {})), thought="T1")
    plan = memory.plan(USER, says(None), result("n1"))
    assert thoughts(plan) == ["T1"]
    assert [call["id"] for call in json.loads(plan.messages[1].fields["tool_calls"])] == ["n1"]


def test_lost_calls_come_back_in_every_turn_of_a_client_that_loses_them():
    """Later turns are stored as that client tells its history."""
    memory = Memory()
    first, second = says("I look.", ("c1", "ls", {})), says("I read.", ("c2", "cat", {}))
    memory.answer(USER, said=first, thought="T1")
    memory.answer(USER, says("I look."), result("c1"), said=second, thought="T2")
    plan = memory.plan(USER, says("I look."), result("c1"), says("I read."), result("c2"))
    assert thoughts(plan) == ["T1", "T2"]
    assert [len(json.loads(plan.messages[at].fields["tool_calls"])) for at in (1, 3)] == [1, 1]


def test_a_continued_text_gets_the_thought_of_both_of_its_parts():
    """A front end's "continue" sends the beginning as a trailing message and keeps one message of both."""
    memory = Memory()
    memory.answer(USER, said=says("One, two,"), thought="T1")
    memory.answer(USER, says("One, two,"), said=says(" three."), thought="T2")
    assert thoughts(memory.plan(USER, says("One, two, three."), USER)) == ["T1\n\nT2"]


def test_a_thought_in_the_text_of_an_answer_is_its_thought():
    """An engine without a parser: the front end shows the block, and sends the text back with or without it."""
    memory = Memory()
    memory.answer(USER, said=says("<think>\nI look.\n</think>\n\nTwo."), thought="")
    assert thoughts(memory.plan(USER, says("Two."), USER)) == ["I look."]


def test_what_a_weaker_key_led_to_keeps_its_place():
    """The prompt's beginning does not change when another chat makes the key lead to a second thought."""
    memory = Memory()
    memory.answer(*BEFORE, USER, said=CALL, thought="T1")
    trimmed = (asks("summary"), CALL, RESULT)
    memory.answer(*trimmed, said=says("Two."), thought="T2")
    memory.answer(asks("other"), said=CALL, thought="T3")
    assert thoughts(memory.plan(*trimmed, says("Two."), USER)) == ["T1", "T2"]
    assert thoughts(memory.plan(asks("another summary"), CALL, RESULT)) == [None]
    assert thoughts(memory.plan(*trimmed)) == [None]


def test_the_place_that_a_weaker_key_made_is_that_of_its_conversation():
    """Another chat that is cut down to the same words may have another thought there."""
    memory = Memory()
    short = (asks("Is it?"), says("No."), asks("Sure?" + LONG), says("Yes."), asks("Why?"))
    memory.answer(asks("A"), *short[:1], said=short[1], thought="A1", conversation="a")
    memory.answer(asks("A"), *short[:3], said=short[3], thought="A2", conversation="a")
    assert thoughts(memory.answer(*short[1:], said=says("So."), thought="A3", conversation="a")) == [None, "A2"]
    memory.answer(asks("B"), *short[:1], said=short[1], thought="B1", conversation="b")
    memory.answer(asks("B"), *short[:3], said=short[3], thought="B2", conversation="b")
    assert thoughts(memory.plan(*short[1:], conversation="b")) == [None, None]
    assert thoughts(memory.plan(*short[1:])) == [None, None]
    assert thoughts(memory.plan(*short[1:], conversation="a")) == [None, "A2"]


def test_a_turn_that_the_store_missed_once_comes_back():
    """A database that was away for one request does not cost the thought for good."""
    memory = Memory()
    memory.answer(USER, said=says("Two."), thought="T1")
    away, memory.turns = memory.turns, []
    memory.answer(USER, says("Two."), USER, said=says("Three."), thought="T2")
    memory.turns = away + memory.turns
    assert thoughts(memory.plan(USER, says("Two."), USER, says("Three."), USER)) == ["T1", "T2"]


def test_a_turn_that_nobody_knew_stays_unknown_when_its_words_are_generated_later():
    """The prompt went on without a thought there, and the later one belongs to another chat."""
    memory = Memory()
    memory.answer(USER, says("Two."), USER, said=says("Three."), thought="T2")
    memory.answer(USER, said=says("Two."), thought="T3")
    assert thoughts(memory.plan(USER, says("Two."), USER, says("Three."), USER)) == [None, "T2"]
    assert thoughts(memory.plan(USER, says("Two."), USER)) == ["T3"]


def test_lost_calls_keep_their_place_too():
    """The same words and ids with other arguments do not take them away again."""
    memory = Memory()
    memory.answer(USER, said=says("I look.", ("f:0", "ls", {"a": 1})), thought="T1")
    memory.answer(USER, says("I look."), result("f:0"), said=says("Two."), thought="T2")
    memory.answer(USER, said=says("I look.", ("f:0", "ls", {"a": 2})), thought="T3")
    plan = memory.plan(USER, says("I look."), result("f:0"), says("Two."), USER)
    assert thoughts(plan) == ["T1", "T2"]
    assert '{\\"a\\": 1}' in plan.messages[1].raw.decode()


def test_a_turn_is_not_recalled_for_two_messages():
    """One of them is another turn, which nobody knows."""
    memory = Memory()
    memory.answer(*BEFORE, USER, CALL, RESULT, asks("again"), said=CALL, thought="T1")
    plan = memory.plan(*BEFORE, USER, CALL, RESULT, asks("again"), CALL, RESULT)
    assert thoughts(plan) == [None, None, "T1"]
    assert thoughts(memory.plan(asks("cut"), CALL, RESULT, asks("cut"), CALL, RESULT)) == [None, None]


@pytest.mark.parametrize("dropped", [(0,), (0, 1), (1,), (0, 1, 2, 3)])
def test_texts_that_were_dropped_beside_old_calls_hide_no_later_turn(dropped):
    """A client that thins out its history: each turn says what was seen before it."""
    memory, history = Memory(), [USER]
    for at in range(4):
        said = says(f"{at}: {LONG}", (f"c{at}", "cat", {"file": at}))
        memory.answer(*history, said=said, thought=f"t{at}")
        history += [said, result(f"c{at}", f"{at}")]
    thinned = [{**said, "content": None} if at in dropped else said for at, said in enumerate(history[1::2])]
    pairs = [line for pair in zip(thinned, history[2::2], strict=True) for line in pair]
    assert thoughts(memory.plan(USER, *pairs)) == ["t0", "t1", "t2", "t3"]


def test_calls_that_one_turn_lost_hide_no_later_turn():
    """The loss explains why the turns behind are not found in their places."""
    memory, history = Memory(), [USER]
    for at in range(3):
        said = says(f"{at}: {LONG}", (f"c{at}", "cat", {"file": at}))
        memory.answer(*history, said=said, thought=f"t{at}")
        history += [said, result(f"c{at}", f"{at}")]
    history[1] = says(f"0: {LONG}")
    assert thoughts(memory.plan(*history)) == ["t0", "t1", "t2"]
