"""A visible text ends at its stop string, or after so many tokens, for every cut of the stream."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest
from cutting import CUTS, cut, texts
from hypothesis import example, given, settings
from hypothesis import strategies as st

from proxy import tokens
from proxy.cut import LONGEST, Cut
from proxy.jsons import healed

# They overlap, begin and end one another, and repeat themselves.
STOPS = ("END", "ENDE", "ND", "aa", "aab", "\n\n", "😀", "E", "x\nE")
SOME = st.lists(st.sampled_from(STOPS), max_size=3)
HARD = " \n\r\t'!-_.aEs1½é中。\u0301\u00a0\u3000\u2028\x1c\x85😀\u200d\ud83d\ude00"
ANY = st.one_of(texts(STOPS), st.text(alphabet=HARD, max_size=30), st.text(max_size=30))
PROSE = "Two names. It isn't 12345 (or 6), 中文也是文字。\n\n    def f(x): return '😀' * x  # ends here\n"


def read(pieces: Sequence[str], *stops: str, most: int | None = None, keeps: bool = False) -> tuple[str, str]:
    """(what leaves, why it ended) of a text that comes in these pieces."""
    one = Cut(stops, most_tokens=most, keeps_stop=keeps)
    left = "".join([*(one.feed(piece) for piece in pieces), one.end()])
    ended = one.ended
    if ended:
        assert (one.feed("more"), one.end(), one.ended) == ("", "", ended)
    return left, ended


def reference(text: str, stops: Sequence[str], most: int | None, keeps: bool) -> tuple[str, str]:
    """The same from the whole text, read as the rules are told."""
    text, ended = healed(text), ""
    for end in range(len(text) + 1):
        if found := [stop for stop in stops if stop and text[:end].endswith(stop)]:
            text, ended = text[: end if keeps else end - max(map(len, found))], "stop"
            break
    if most is not None and tokens.count(text) > most:
        text, ended = tokens.first(text, most), "length"
    return text, ended


@settings(deadline=None)
@given(text=ANY, stops=SOME, keeps=st.booleans(), most=st.none() | st.integers(0, 12), places=CUTS)
@example(text="aaab", stops=["aab", "aa"], keeps=False, most=None, places=[1, 2, 3])
@example(text="\ud83d\ude00", stops=["😀"], keeps=False, most=None, places=[1])
@example(text="\ud83d", stops=["\ufffd"], keeps=False, most=0, places=[])
def test_the_cuts_of_the_stream_change_nothing(text, stops, keeps, most, places):
    """At once, in any pieces and character by character, it is what the whole text gives."""
    expected = reference(text, stops, most, keeps)
    for pieces in ([text], cut(text, places), list(text)):
        assert read(pieces, *stops, most=most, keeps=keeps) == expected


@given(text=ANY, places=CUTS)
def test_a_text_without_a_stop_string_is_not_changed(text, places):
    """Nothing is lost, and the text was not ended; a half that found its other half is whole."""
    assert read(cut(text, places), "never said", "", most=1_000) == (healed(text), "")
    assert read(cut(text, places)) == (healed(text), "")


def test_the_stop_string_that_is_complete_first_counts():
    """As for an engine that writes one character after the other; of several that end at one place, the longest."""
    assert read(["one abcd"], "abcd", "c") == ("one ab", "stop")
    assert read(["one END, two END"], "ND", "END") == ("one ", "stop")
    assert read(["one ENDE"], "ENDE", "END", keeps=True) == ("one END", "stop")


def test_only_what_may_be_a_stop_string_is_held_back():
    """The rest leaves at once."""
    one = Cut(["END", "\n\n"])
    assert [one.feed(piece) for piece in ("say E", "N", "A\n", "b", "\n", "\nc")] == ["say ", "", "ENA", "\nb", "", ""]
    assert (one.ended, one.feed("d"), one.end()) == ("stop", "", "")


def test_what_was_held_back_leaves_at_the_end():
    """It has become no stop string."""
    one = Cut(["END"])
    assert (one.feed("the EN"), one.end(), one.ended) == ("the ", "EN", "")


# the cap


@settings(deadline=None)
@given(most=st.integers(0, 60), places=CUTS)
def test_a_text_of_just_so_many_tokens_is_not_cut(most, places):
    """Only one that goes on is, and has at most so many."""
    text = tokens.first(PROSE, most)
    just = tokens.count(text)
    assert just <= most
    assert read(cut(text, places), most=just) == (text, "")
    longer = read(cut(PROSE, places), most=most)
    assert longer == (text, "length" if text != PROSE else "")


def test_none_means_nothing_visible():
    """Not a character leaves; an empty text was not cut."""
    assert read(["a"], most=0) == ("", "length")
    assert read(["", ""], most=0) == ("", "")
    assert read(["END"], "END", most=0) == ("", "stop")


def test_what_comes_first_ends_the_text():
    """A stop string behind the cap is none, and a cap behind the stop string neither."""
    assert read(list("one two three END"), "END", most=2) == ("one two", "length")
    assert read(["one two three END"], "END", most=2) == ("one two", "length")
    assert read(["one END two three"], "END", most=2) == ("one ", "stop")


@settings(deadline=None)
@given(data=st.data(), kind=st.sampled_from("a 中\n-😀é"), most=st.integers(0, 200), places=CUTS)
def test_a_text_without_an_end_meets_its_cap(data, kind, most, places):
    """A model that repeats one character for ever has no word whose end could be waited for."""
    text = kind * data.draw(st.integers(0, 2_000))
    left, ended = read([text], most=most)
    assert read(cut(text, places), most=most) == read(list(text), most=most) == (left, ended)
    assert text.startswith(left)
    assert (ended == "length") == (left != text)
    one, came = Cut(most_tokens=4), 0
    while not one.ended:
        one.feed(kind)
        came += 1
    assert came <= 4 * 20 * LONGEST


def test_the_text_runs_free_until_the_cap_is_near():
    """Where fewer bytes came than tokens are left nothing waits; close to the cap at most a word does."""
    one, sent = Cut(most_tokens=40), ""
    for at, character in enumerate(PROSE):
        sent += one.feed(character)
        if one.ended:
            break
        assert len(sent) >= min(at + 1, 30)
        assert len(PROSE[: at + 1]) - len(sent) <= 12
    assert (sent, one.ended) == (tokens.first(PROSE, 40), "length") if tokens.count(PROSE) > 40 else True


@pytest.mark.parametrize("size", [1, 7, 10**7], ids=["characters", "pieces", "at-once"])
def test_a_long_text_costs_little(size):
    """Each word is counted once, and what is behind the cap not at all."""
    text = PROSE * 2_000
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    for most in (10, 10_000, 10**7):
        began = time.perf_counter()
        left, ended = read(pieces, "never said", most=most)
        assert time.perf_counter() - began < 10
        assert (left == text, ended) == ((True, "") if most == 10**7 else (False, "length"))
        assert text.startswith(left)


# tokens.first


@settings(deadline=None)
@given(text=ANY, most=st.integers(-1, 12))
def test_the_first_tokens_are_a_beginning_that_has_no_more(text, most):
    """Whole characters, at most so many tokens, and all of a text that has no more."""
    left = tokens.first(text, most)
    assert healed(text).startswith(left)
    assert tokens.count(left) <= max(0, most)
    if tokens.count(healed(text)) <= most:
        assert left == healed(text)


def test_a_character_of_several_tokens_is_not_split():
    """The token's end inside it moves before it."""
    assert tokens.count("😀") == 2
    assert [tokens.first("a😀b", most) for most in range(5)] == ["", "a", "a", "a😀", "a😀b"]


def test_the_first_tokens_of_a_long_text():
    """Also where it is counted in stretches."""
    text = PROSE * 500
    for most in (0, 1, 10_000, tokens.count(text) - 1):
        left = tokens.first(text, most)
        assert text.startswith(left)
        assert most - 3 <= tokens.count(left) <= most
    assert tokens.first(text, tokens.count(text)) == text
