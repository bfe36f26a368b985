"""What answers teach: when a model counts as slow, how dense prompts are, how much room thoughts take."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.learned import Learned
from proxy.speeds import Speed
from proxy.thoughts import LEAST, Thought, Thoughts


def learned(*speeds: float, slow="auto") -> Learned:
    """After answers at these speeds, with a limit of 10 tokens a second."""
    made = Learned(slow, 10.0)
    for speed in speeds:
        made.took("m", Speed(speed))
    return made


def test_nothing_is_slow_before_it_was_measured():
    """Nobody knows yet."""
    assert learned().slow("m") is False
    assert learned(0.1).slow("another") is False


@pytest.mark.parametrize("setting", [True, False])
def test_a_setting_goes_before_what_was_measured(setting):
    """Whatever the speed."""
    assert learned(0.1, 0.1, slow=setting).slow("m") is setting
    assert learned(500.0, slow=setting).slow("m") is setting


def test_one_slow_answer_does_not_make_a_fast_model_slow():
    """Speeds are smoothed: a busy moment is not the machine."""
    assert learned(20.0, 20.0, 2.0).slow("m") is False
    assert learned(20.0, *[2.0] * 8).slow("m") is True


def test_a_speed_around_the_limit_does_not_flip_the_answer():
    """What is slow stays so until it is clearly faster; what is not stays so until it is below the limit."""
    slow, fast = learned(9.0), learned(11.0)
    for speed in (9.5, 11.0, 10.5, 11.5, 10.2) * 4:
        slow.took("m", Speed(speed))
        fast.took("m", Speed(max(speed, 10.1)))
        assert (slow.slow("m"), fast.slow("m")) == (True, False)
    for _ in range(20):
        slow.took("m", Speed(14.0))
    assert slow.slow("m") is False


def test_the_record_of_an_earlier_run_counts_at_once():
    """The first request after a restart gets the effort that fits."""
    made = learned()
    made.speed_is("m", Speed(0.1, 7.0))
    assert (made.slow("m"), made.speed("m")) == (True, Speed(0.1, 7.0))


def test_an_answer_without_a_speed_changes_nothing():
    """A whole answer out of a buffer has no pace."""
    made = learned(4.0)
    made.took("m", Speed())
    assert made.speed("m") == Speed(4.0)


@given(st.lists(st.floats(0.01, 1000), min_size=1, max_size=30), st.sampled_from([5.0, 10.0, 40.0]))
def test_slow_is_below_the_limit_but_for_a_band_above_it(speeds, limit):
    """Below it always; a quarter above it never; between, as it was."""
    made, before = Learned("auto", limit), False
    for speed in speeds:
        made.took("m", Speed(speed))
        decode = made.speed("m").decode
        assert decode is not None
        expected = True if decode < limit else False if decode >= limit * 1.25 else before
        before = made.slow("m")
        assert before is expected


def room(*taken: int, family: str = "kimi-k3", effort: str = "low"):
    """The room after thoughts of so many tokens."""
    thoughts = Thoughts()
    for tokens in taken:
        thoughts.add(Thought("b", family, effort, tokens))
    return thoughts.rooms("kimi-k3").get("low")


def test_a_handful_of_thoughts_is_no_experience():
    """Until there are enough, the floors of the family hold."""
    assert room(*[100] * (LEAST - 1)) is None
    found = room(*[100] * LEAST)
    assert found is not None
    assert found == (100, LEAST)


def test_the_room_is_what_nineteen_of_twenty_thoughts_took():
    """One in twenty may be longer."""
    found = room(*range(1, 101))
    assert found is not None
    assert (found.tokens, found.thoughts) == (95, 100)


def test_old_thoughts_are_forgotten():
    """A new version of a model thinks in another way."""
    found = room(*[9000] * 300, *[100] * 200)
    assert found is not None
    assert found.tokens == 100


def test_families_and_efforts_have_rooms_of_their_own():
    """High takes longer than low, and another model something else."""
    assert room(*[100] * 50, family="qwen3") is None
    assert room(*[100] * 50, effort="high") is None
