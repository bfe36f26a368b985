"""Thought mark-up is found where it counts, for every cut, and nothing else is touched."""

from __future__ import annotations

import html
import re

import pytest
from cutting import CUTS, cut, shared, texts
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.thinking import TAGS, Echo, lifted, same_thought

HUGE = 5_000_000
LONG = 1_000_000
MARKED = texts([mark for tag in TAGS for mark in tag])


# lifted


@pytest.mark.parametrize(
    ("text", "thought", "rest"),
    [
        ("<think>plan</think>\n\nAnswer", "plan", "Answer"),
        ("<think>\nstep one\nstep two\n</think>\n\nSecond answer", "step one\nstep two", "Second answer"),
        ("<think>old</think>a cat", "old", "a cat"),
        (
            '<details type="reasoning" done="true" duration="3">\n<summary>Thought for 3 seconds</summary>\n'
            "> because of the third\n</details>\nThird answer",
            "because of the third",
            "Third answer",
        ),
    ],
)
def test_the_collected_cases_of_mirrored_thoughts(text, thought, rest):
    """B21 and B32: what front ends fold into the text is thought again."""
    assert lifted(text) == (thought, rest)


@pytest.mark.parametrize(("opener", "closer"), TAGS)
def test_every_kind_of_tag_is_lifted_up_to_its_first_own_closer(opener, closer):
    """A nested block of the same kind ends the outer one; the rest is not changed but for the blanks before it."""
    others = "".join(mark for tag in TAGS for mark in tag if mark not in {opener, closer})
    assert lifted(f" \n{opener}a {opener}b{others}{closer}\n\n x {closer} \n") == (
        f"a {opener}b{others}",
        f"x {closer} \n",
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        " \n",
        "Write <think>x</think> inline.",
        "```\n<think>x</think>\n```",
        "`<think>x</think>`",
        "<think>unclosed",
        "<think>x</thinking>",
        "<THINK>x</THINK>",
        "</think>x",
        "< think>x</think>",
        '<details type="tool_calls" done="true">\n<summary>Ran</summary>\n</details>\nx',
        "<details>\n<summary>More</summary>x</details>",
        '<details type="reasoning"',
        '<details type="reasoning">\n> unclosed',
        '<detailstype="reasoning">x</details>',
        '<details data-type="reasoning">x</details>',
    ],
)
def test_what_is_no_closed_thought_at_the_head_is_left_alone(text):
    """Text, code, unclosed thoughts and other details blocks are no thoughts."""
    assert lifted(text) is None


def test_several_blocks_are_joined_and_what_is_behind_an_open_one_is_text():
    """Thoughts are joined by a blank line, empty blocks removed, and the first thing that is no block ends it."""
    details = '<details type="reasoning"><summary>s</summary>\n> c\n</details>'
    text = f"<think>a</think> \n<think>\n \n</think>[THINK]b[/THINK]{details}\n<think>d"
    assert lifted(text) == ("a\n\nb\n\nc", "<think>d")


def test_an_empty_block_is_removed():
    """A block of blanks is no thought, but still no part of the text."""
    assert lifted("<think>\n\n</think>\n\nx") == ("", "x")
    assert lifted("<think></think>") == ("", "")


def test_line_ends_inside_the_tags_are_the_front_ends_own():
    """One line end at each side goes, LF or CRLF; further ones, and other blanks, are thought."""
    assert lifted("<think>\n\n a \n\n</think>x") == ("\n a \n", "x")
    assert lifted("<think>\r\na\r\n</think>\r\nx") == ("a", "x")


@pytest.mark.parametrize(
    "attributes",
    [
        ' type="reasoning"',
        ' done="true" duration="3" type="reasoning"',
        '\n  duration="3"\n  type="reasoning"\n',
        " type='reasoning' open",
        ' type="reasoning" done="true" duration="14" view="" last_tool_call_name=""',
        ' type="reasoning" done="false"',
    ],
)
def test_attributes_of_a_details_block_come_in_any_order(attributes):
    """Order, other attributes and line breaks do not matter."""
    assert lifted(f"<details{attributes}>\n<summary>Thought</summary>\n> a\n</details>\nx") == ("a", "x")


def test_a_details_block_is_unquoted_and_unescaped_once():
    """One quote mark goes from each line that has one, and escapes are read once, so that escaped escapes stay."""
    inner = (
        "&gt; if a &lt; b &amp;&amp; c:\n&gt;   say(&quot;it&#x27;s&quot;)\n&gt;\n&gt; &amp;lt; &amp;copy; &copy;\n>> q"
    )
    assert lifted(f'<details type="reasoning">\n<summary>&lt;</summary>\n{inner}\n</details>\n\nx &lt; y') == (
        'if a < b && c:\n  say("it\'s")\n\n&lt; &copy; &copy;\n> q',
        "x &lt; y",
    )


def test_a_details_block_needs_no_summary():
    """Without a summary, or with an unclosed one, all within is thought."""
    assert lifted('<details type="reasoning">\n> a\n> b\n</details>x') == ("a\nb", "x")
    assert lifted('<details type="reasoning"><summary>a</details>x') == ("<summary>a", "x")


def details(thought, escape=html.escape):
    """The block that Open WebUI makes of a thought (old versions without the escape)."""
    lines = [line if line.startswith(">") else f"> {line}" for line in thought.strip().splitlines()]
    quote = escape("\n".join(lines))
    head = '<details type="reasoning" done="true" duration="3">\n<summary>Thought for 3 seconds</summary>'
    return f"{head}\n{quote}\n</details>"


THOUGHTS = st.lists(
    st.one_of(
        st.sampled_from(["\n", "\r\n", " ", "> ", ">", ">>> ", "&lt;", "&amp;", "&", "<", '"', "'", "\u2028", "```"]),
        st.sampled_from(["<think>", "</think>", "</details>", "</summary>", "a", "word"]),
        st.text(max_size=4),
    ),
    max_size=12,
).map("".join)


@settings(deadline=None)
@given(THOUGHTS)
def test_what_open_webui_makes_of_a_thought_is_known_again(thought):
    """Whatever the thought, its mirror is lifted and is the same thought."""
    block = lifted(details(thought) + "\nAnswer")
    assert block is not None
    assert block[1] == "Answer"
    assert same_thought(block[0], thought)


@settings(deadline=None)
@given(st.text("ab &lt;gamp>\n", max_size=20))
def test_what_an_old_open_webui_makes_of_a_thought_is_known_again(thought):
    """Before it escaped, entities of the thought itself stood in the block as they were."""
    block = lifted(details(thought, escape=str) + "\nAnswer")
    assert block is not None
    assert same_thought(block[0], thought)


@settings(deadline=None)
@given(THOUGHTS, st.sampled_from(TAGS), st.sampled_from(["", "\n", "\r\n"]))
def test_a_thought_in_tags_is_lifted_to_the_byte(thought, tag, line_end):
    """A thought without its closer comes back as it was, if it has no line ends of its own at the ends."""
    thought = thought.replace(tag[1], "").strip()
    block = lifted(f"{tag[0]}{line_end}{thought}{line_end}{tag[1]}\n\nAnswer")
    assert block == (thought, "Answer")


@settings(deadline=None)
@given(MARKED)
def test_lifting_takes_no_visible_character_of_the_rest(text):
    """The rest is always an end of the text, and lifting it again, or adding text in front, gives nothing."""
    block = lifted(text)
    if block is not None:
        assert text.endswith(block[1])
        assert lifted(block[1]) is None
    assert lifted("x" + text) is None


@pytest.mark.parametrize(
    "unit",
    [
        "<think>",
        "<think></think>",
        "<think>a</think>\n",
        "<details ",
        '<details type="reasoning">',
        '<details type="reasoning"></details>',
        '<details type="reasoning"><summary></details>',
        ' type="reasoning"',
        " ",
        "\n>",
        "&",
        "&amp;",
        "</summary>",
    ],
)
@pytest.mark.parametrize("front", ["", '<details type="reasoning"><summary>'])
def test_a_huge_hostile_text_is_read_once(front, unit):
    """Five megabytes of mark-up end in time, closed or not."""
    text = front + unit * (HUGE // len(unit))
    for end in ("", "</details></think>"):
        block = lifted(text + end)
        assert block is None or len(block[0]) + len(block[1]) < len(text + end)


# same_thought


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("a b", " a b\n"),
        ("a\r\nb", "a\nb"),
        ("> a\n>> b", "a\nb"),
        ("a\n\n\nb", "a\nb"),
        ("a  b", "a b"),
        ("a &lt; b", "a < b"),
        ("", " \n> "),
    ],
)
def test_what_mirroring_changes_makes_no_other_thought(a, b):
    """Blanks, line ends, quote marks at the beginnings of lines and escapes do not matter."""
    assert same_thought(a, b)
    assert same_thought(b, a)


@pytest.mark.parametrize(("a", "b"), [("a", "b"), ("a b", "ab"), ("a > b", "a b"), ("a", ""), ("a", "A"), ("a.", "a")])
def test_another_word_makes_another_thought(a, b):
    """Any other change does, quote marks within a line included."""
    assert not same_thought(a, b)
    assert not same_thought(b, a)


@pytest.mark.parametrize("unit", ["> ", "\n>", "&lt;", "a "])
def test_huge_thoughts_are_compared_in_one_pass(unit):
    """A megabyte of quote marks, blanks or escapes is compared in time."""
    text = unit * (LONG // len(unit))
    assert same_thought(text + "x", text + "x ")
    assert not same_thought(text + "x", text + "y")


# Echo

FILLER = "(thought not kept)"


def heard(pieces, filler=FILLER):
    """What an echo filter passes on, and whether it heard the filler."""
    echo = Echo(filler)
    return "".join([*(echo.feed(piece) for piece in pieces), echo.end()]), echo.heard


def without_echo(thought, filler):
    """The same from the whole thought."""
    match = re.match(rf"(?:\s*{re.escape(filler.strip())})+\s*", thought) if filler.strip() else None
    return (thought[match.end() :], True) if match else (thought, False)


@pytest.mark.parametrize("filler", ["aab", "a", "a b", "..", " ab\n", " ", ""])
@settings(deadline=None)
@given(thought=st.text("ab. \nc", max_size=14), places=CUTS)
def test_no_cut_changes_what_is_an_echo(filler, thought, places):
    """In every way of cutting, what is dropped is what is dropped of the whole thought."""
    expected = without_echo(thought, filler)
    assert heard([thought], filler) == heard(list(thought), filler) == heard(cut(thought, places), filler) == expected


@settings(deadline=None)
@given(st.text("ab \n", max_size=10))
def test_an_echo_is_held_back_only_while_it_may_become_one(thought):
    """After every character all has left that is the same however the thought goes on."""
    filler = "aab"
    echo, left = Echo(filler), ""
    for size, character in enumerate(thought, 1):
        left += echo.feed(character)
        rests = ["", "y", *(filler[start:] + end for start in range(len(filler)) for end in ("", "y"))]
        assert left == shared([without_echo(thought[:size] + rest, filler)[0] for rest in rests])


@pytest.mark.parametrize(
    ("thought", "left"),
    [
        (FILLER, ""),
        (f"\n {FILLER}\n\nI see", "I see"),
        (f"{FILLER}{FILLER}\n{FILLER} I see\n", "I see\n"),
        (f"{FILLER} (thought not known)", "(thought not known)"),
        (f"{FILLER}\n(thought not", "(thought not"),
    ],
)
def test_echoes_at_the_start_are_dropped_with_the_blanks_around(thought, left):
    """Once or several times, alone or before a thought, the filler and its blanks go and all else stays."""
    assert heard([thought]) == heard(list(thought)) == (left, True)


@pytest.mark.parametrize(
    "thought", ["", " \n", "(thought not", " (thought not known) x", f"x {FILLER}", "(Thought not kept)"]
)
def test_what_only_begins_like_the_filler_leaves_unchanged(thought):
    """No thought of the model's own is lost, not even its blanks."""
    assert heard([thought]) == heard(list(thought)) == (thought, False)


def test_a_blank_filler_is_never_heard():
    """There is nothing to hear where nothing was sent."""
    assert heard(["  a"], " ") == ("  a", False)


@pytest.mark.parametrize("unit", [FILLER, " ", FILLER + "\n", FILLER[:-1], "("])
def test_a_huge_echo_is_read_once(unit):
    """Five megabytes in one piece and one in single characters end in time."""
    text = unit * (HUGE // len(unit))
    assert heard([text]) == without_echo(text, FILLER)
    assert heard(text[:LONG]) == without_echo(text[:LONG], FILLER)
