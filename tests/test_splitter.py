"""An answer that comes as one text is parted into thought and said, for every family's mark-up and every cut."""

from __future__ import annotations

import itertools
import re
import time
import tracemalloc
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
from cutting import CUTS, cut, shared, texts
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.events import Event, Part
from proxy.families import Family, load
from proxy.shape import Shaper, Thinking
from proxy.splitter import Splitter, Trailing
from proxy.thinking import TAGS

# Openers that begin others, and a closer that ends in another: harder than any real tags.
HARD = (("<a>", "</a>"), ("<a", "[/a"), ("<a b>", "</a b>"), ("[A]", "x</a>"))
BOTH = pytest.mark.parametrize("tags", [TAGS, HARD], ids=["real", "hard"])
FEW = tuple(tag for tag in TAGS if tag[0] in {"<think>", "<thinking>", "[THINK]"})
HUGE = 5_000_000
LONG = 1_000_000


class Form(NamedTuple):
    """The mark-up of a family."""

    tags: Sequence[tuple[str, str]]
    answers: Sequence[str] = ()
    calls: Sequence[str] = ()
    ends: Sequence[str] = ()

    @property
    def marks(self) -> list[str]:
        """All of them."""
        return [*itertools.chain(*self.tags), *self.answers, *self.calls, *self.ends]

    def splitter(self, opened: bool = False) -> Splitter:
        """As the product makes one."""
        return Splitter(opened, self.tags, answers=self.answers, calls=self.calls)


def form(family: Family) -> Form:
    """A family's own."""
    return Form(family.tags or TAGS, family.answer_tags, family.call_tags, family.end_markers)


FAMILIES = {name: load().named(name) for name in load().names}
FORMS: dict[str, Form] = {}
for name, family in reversed(FAMILIES.items()):
    if (family.tags or name == "generic") and form(family) not in FORMS.values():  # several have the same
        FORMS[name] = form(family)
K2, K3, OSS, QWEN = (FORMS[name] for name in ("kimi-k2", "kimi-k3", "gpt-oss", "qwen3"))
FORMS["hard"] = Form(HARD, ("<r>", "q<r>"), ("<c>", "[c"), ("<e>", "e>", "<e>y"))
# gpt-oss with short words: the opener, the answers and the calls share a beginning, and one answer ends in another.
FORMS["short"] = Form([("C:a", "E")], ["SC:f", "C:f"], ["SC:c", "C:c"], ["R", "E"])
EACH = pytest.mark.parametrize("name", FORMS)
ENDING = [name for name in FORMS if FORMS[name].ends]


def split(
    pieces: Sequence[str],
    opened: bool = False,
    tags: Sequence[tuple[str, str]] = TAGS,
    answers: Sequence[str] = (),
    calls: Sequence[str] = (),
) -> tuple[str, str]:
    """(thought, said) of an answer that comes in these pieces."""
    splitter = Splitter(opened, tags, answers=answers, calls=calls)
    left = [*(splitter.feed(piece) for piece in pieces), splitter.end()]
    return "".join(thought for thought, _ in left), "".join(said for _, said in left)


def trimmed(pieces: Sequence[str], markers: Sequence[str]) -> str:
    """A text that comes in these pieces, without the markers at its end."""
    trailing = Trailing(markers)
    return "".join([*(trailing.feed(piece) for piece in pieces), trailing.end()])


def reference(
    text: str,
    opened: bool = False,
    tags: Sequence[tuple[str, str]] = TAGS,
    answers: Sequence[str] = (),
    calls: Sequence[str] = (),
) -> tuple[str, str]:
    """The same from the whole text, read as the rules are told."""
    thoughts: list[str] = []
    head = True
    while True:
        visible = text.lstrip()
        kinds = sorted((tag for tag in tags if visible.startswith(tag[0])), key=lambda tag: -len(tag[0]))
        answer = next((mark for mark in answers if visible.startswith(mark)), "")
        if kinds:
            text, closers = visible.removeprefix(kinds[0][0]), [kinds[0][1]]
        elif answer:
            return "\n\n".join(filter(None, thoughts)), visible.removeprefix(answer)
        elif opened and head:
            closers = [closer for _, closer in tags]
        else:
            return "\n\n".join(filter(None, thoughts)), text if head else visible
        head = False
        marks = [*closers, *answers, *calls]
        ends = sorted((text.index(mark) + len(mark), -len(mark), at) for at, mark in enumerate(marks) if mark in text)
        if not ends:
            return "\n\n".join(filter(None, [*thoughts, text])), ""
        end, size, at = ends[0]
        thought = text[: end + size]
        thoughts.append(thought if thought.strip() else "")
        if at >= len(closers):
            is_call = at >= len(closers) + len(answers)
            return "\n\n".join(filter(None, thoughts)), text[end + size if is_call else end :]
        text = text[end:]


def without_end(text: str, markers: Sequence[str]) -> str:
    """A whole text without the markers at its end; behind a whole one goes half of the next, which a cap has cut."""
    any_of = "|".join(map(re.escape, sorted(markers, key=len, reverse=True)))
    halves = "|".join(re.escape(marker[:size]) for marker in markers for size in range(1, len(marker)))
    found = re.search(rf"(?:(?:{any_of})\s*)+(?:{halves})?\Z", text)
    return text[: found.start()] if found else text


def whole(form: Form, text: str, opened: bool = False) -> tuple[str, str]:
    """What a client is to see of a whole text."""
    thought, said = reference(text, opened, *form[:3])
    return thought, without_end(said, form.ends) if form.ends else said


# every family's mark-up


@EACH
@settings(max_examples=60, deadline=None)
@given(data=st.data(), opened=st.booleans(), places=CUTS)
def test_no_cut_changes_a_familys_thought_and_text(name, data, opened, places):
    """Tags, openers of answers and of calls: in every way of cutting, both are those of the whole text."""
    form = FORMS[name]
    text = data.draw(texts(form.marks))
    expected = reference(text, opened, *form[:3])
    assert split([text], opened, *form[:3]) == expected
    assert split(list(text), opened, *form[:3]) == expected
    assert split(cut(text, places), opened, *form[:3]) == expected


@pytest.mark.parametrize("name", ENDING)
@settings(max_examples=40, deadline=None)
@given(data=st.data(), places=CUTS)
def test_no_cut_changes_which_markers_are_an_end(name, data, places):
    """What is dropped is what is dropped of the whole text, and a text without markers is not touched."""
    markers = FORMS[name].ends
    text = data.draw(texts(markers))
    expected = without_end(text, markers)
    assert trimmed([text], markers) == trimmed(list(text), markers) == trimmed(cut(text, places), markers) == expected


@pytest.mark.parametrize("name", ["kimi-k3", "qwen3", "hard", "short"])
@settings(max_examples=20, deadline=None)
@given(data=st.data(), opened=st.booleans())
def test_nothing_of_a_familys_answer_is_held_back_that_is_decided(name, data, opened):
    """After every character all has left that is the same however the text goes on, and no more."""
    form = FORMS[name]
    text = data.draw(texts(form.marks, most=4))
    marks = [*itertools.chain(*form.tags), *form.answers, *form.calls]
    rests = {mark[size:] + end for mark in marks for size in range(len(mark)) for end in ("", "y")}
    rests |= {"", "y", *(mark + "y" for mark in marks)}
    splitter, thought, said = form.splitter(opened), "", ""
    for size, character in enumerate(text, 1):
        left = splitter.feed(character)
        thought, said = thought + left[0], said + left[1]
        possible = [reference(text[:size] + rest, opened, *form[:3]) for rest in rests]
        assert thought == shared([one for one, _ in possible])
        assert said == shared([other for _, other in possible])


@pytest.mark.parametrize("name", ["glm", "hard", "short"])
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_nothing_is_held_back_that_is_no_end(name, data):
    """After every character all has left that stays however the text goes on, and no more."""
    markers = FORMS[name].ends
    text = data.draw(texts(markers, most=3))
    rests = {marker[size:] + end for marker in markers for size in range(len(marker)) for end in ("", "y")} | {"", "y"}
    trailing, left = Trailing(markers), ""
    for size, character in enumerate(text, 1):
        left += trailing.feed(character)
        assert left == shared([without_end(text[:size] + rest, markers) for rest in rests])


@EACH
@settings(max_examples=40, deadline=None)
@given(data=st.data(), opened=st.booleans())
def test_no_character_is_lost_or_invented(name, data, opened):
    """What leaves is the text in its order, and all that is missing from it are marks and blanks."""
    form = FORMS[name]
    text = data.draw(texts(form.marks))
    thought, said = split(list(text), opened, *form[:3])
    rest = iter(text)
    assert all(character in rest for character in thought.replace("\n\n", "") + said)
    signs = set("".join(form.marks))
    foreign = [character for character in text if character not in signs and not character.isspace()]
    kept = [character for character in thought + said if character not in signs and not character.isspace()]
    assert kept == foreign
    dropped = len(text) - len(thought.replace("\n\n", "")) - len(said)
    assert dropped <= sum(len(mark) * text.count(mark) for mark in form.marks) + sum(map(str.isspace, text))


@EACH
def test_thought_said_and_dropped_marks_are_the_text(name):
    """Of an answer as a model writes it, nothing else is dropped."""
    form = FORMS[name]
    for (opener, closer), answer in itertools.product(form.tags, ["", *form.answers]):
        text = f"{opener}\nI look. {closer}{answer}It is so.{''.join(form.ends)}"
        assert whole(form, text) == ("\nI look. ", "It is so.")
        thought, said = split(list(text), False, *form[:3])
        said = trimmed(list(said), form.ends) if form.ends else said
        assert opener + thought + closer + answer + said + "".join(form.ends) == text


@EACH
@pytest.mark.parametrize("front", ["x ", "`", "```\n", "> ", "Write: "])
def test_mark_up_behind_visible_text_is_text(name, front):
    """In code, in quotes and in sentences, whatever the family."""
    form = FORMS[name]
    for opener, closer in form.tags:
        text = f"{front}{opener}a{closer}{''.join(form.answers)}b"
        assert split([text], False, *form[:3]) == split(list(text), False, *form[:3]) == ("", text)


class Stream:
    """What a client gathers of an answer of several choices."""

    def __init__(self, family: Family, tags: Any) -> None:
        self.shaper = Shaper(Thinking(tags=tags), family, filler="", new_id=lambda: "id")
        self.got: dict[int, list[str]] = {}

    def add(self, choice: int, **part: Any) -> None:
        """One event of one choice."""
        event = Event(b"", [Part(choice, **part)])
        self.shaper.apply(event)
        self._gather(event)

    def whole(self, answers: Sequence[str]) -> dict[int, list[str]]:
        """All choices in one event."""
        event = Event(b"", [Part(at, text=text, finish="stop") for at, text in enumerate(answers)])
        self.shaper.apply(event, whole=True)
        self._gather(event)
        return self.got

    def _gather(self, event: Event) -> None:
        for part in event.parts:
            texts = self.got.setdefault(part.choice, ["", ""])
            texts[0] += part.reasoning
            texts[1] += part.text


@EACH
@pytest.mark.parametrize("tags", ["parse", "parse-prefilled"])
@settings(max_examples=12, deadline=None)
@given(data=st.data(), order=st.randoms(use_true_random=False))
def test_choices_are_parted_each_for_itself_however_they_interleave(name, tags, data, order):
    """Thought, text and markers of three choices, in pieces that come in any order, are those of each whole answer."""
    if name not in FAMILIES:
        names = ("tags", "answer_tags", "call_tags", "end_markers")
        family = FAMILIES["generic"].model_copy(update=dict(zip(names, FORMS[name], strict=True)))
    else:
        family = FAMILIES[name]
    answers = [data.draw(texts(FORMS[name].marks, most=6)) for _ in range(3)]
    expected = {at: list(whole(FORMS[name], text, tags == "parse-prefilled")) for at, text in enumerate(answers)}
    queues = [[*cut(text, data.draw(CUTS)), None] for text in answers]
    stream = Stream(family, tags)
    while due := [at for at, queue in enumerate(queues) if queue]:
        at = order.choice(due)
        piece = queues[at].pop(0)
        stream.add(at, **({"finish": "stop"} if piece is None else {"text": piece}))
    assert stream.got == expected
    assert Stream(family, tags).whole(answers) == expected


@pytest.mark.parametrize("name", [name for name in FORMS if name in FAMILIES])
@settings(max_examples=25, deadline=None)
@given(data=st.data(), places=CUTS)
def test_a_stream_that_breaks_off_loses_nothing(name, data, places):
    """Without a finish the rest comes out as that of a whole text."""
    text = data.draw(texts(FORMS[name].marks))
    stream = Stream(FAMILIES[name], "parse")
    for piece in cut(text, places):
        stream.add(0, text=piece)
    stream._gather(Event(b"", stream.shaper.rest()))
    assert stream.got == {0: list(whole(FORMS[name], text))}


# Kimi K3, Kimi K2, gpt-oss

THINK, CLOSE, RESPONSE = "<|open|>think<|sep|>", "<|close|>think<|sep|>", "<|open|>response<|sep|>"
TOOLS, DONE = "<|open|>tools<|sep|>", "<|close|>response<|sep|><|close|>message<|sep|><|end_of_msg|>"
CALL = '<|open|>call tool="ls" index="1"<|sep|><|close|>call<|sep|><|close|>tools<|sep|>'


@pytest.mark.parametrize(
    ("text", "thought", "said"),
    [
        pytest.param(f"I look.{CLOSE}{RESPONSE}It is.{DONE}", "I look.", "It is.", id="as it is written"),
        pytest.param(f"{THINK}I look.{CLOSE}{RESPONSE}It is.{DONE}", "I look.", "It is.", id="opener once more"),
        pytest.param(f"I look.{RESPONSE}It is.", "I look.", "It is.", id="closer forgotten"),
        pytest.param(f"{RESPONSE}It is.{DONE}", "", "It is.", id="no thought"),
        pytest.param(f"{CLOSE}{RESPONSE}It is.{DONE}", "", "It is.", id="empty thought"),
        pytest.param(f"I look.{TOOLS}{CALL}", "I look.", TOOLS + CALL, id="ends at the tools"),
        pytest.param(f"I look.{CLOSE}{TOOLS}{CALL}", "I look.", TOOLS + CALL, id="tools behind the closer"),
        pytest.param("I look.", "I look.", "", id="cut in the thought"),
        pytest.param("I look.<|close|>thi", "I look.<|close|>thi", "", id="cut inside the closer"),
        pytest.param("I look.<|open|>resp", "I look.<|open|>resp", "", id="cut inside the opener of the answer"),
        pytest.param(f"I look.{CLOSE}<|open|>resp", "I look.", "<|open|>resp", id="cut before the answer"),
        pytest.param(f"I look.{CLOSE}{RESPONSE}", "I look.", "", id="cut at the answer"),
        pytest.param(
            f"I look.{CLOSE}{RESPONSE}It is.<|close|>resp", "I look.", "It is.<|close|>resp", id="half an end"
        ),
        pytest.param(
            f"I look.{CLOSE}{RESPONSE}It is.<|close|>response<|sep|><|clo", "I look.", "It is.", id="half a second end"
        ),
        pytest.param(f"a <|close|> b<|sep|>{CLOSE}{RESPONSE}c", "a <|close|> b<|sep|>", "c", id="single tokens"),
    ],
)
def test_kimi_k3_opened_by_the_prompt(text, thought, said):
    """The generation prompt opens the thought; an answer and a section of tools end it as its closer does."""
    assert whole(K3, text, opened=True) == (thought, said)
    for pieces in ([text], list(text), re.findall(r"<\|\w+\|>|\w+|.", text)):
        left = split(pieces, True, *K3[:3])
        assert (left[0], trimmed([left[1]], K3.ends)) == (thought, said)


@pytest.mark.parametrize(
    ("text", "thought", "said"),
    [
        ("<think>I look.</think>It is.<|im_end|>", "I look.", "It is."),
        ("<think>I look.<|tool_calls_section_begin|>x", "I look.", "<|tool_calls_section_begin|>x"),
        ("<think>I look.</think><|tool_calls_section_begin|>x", "I look.", "<|tool_calls_section_begin|>x"),
        ("<think>\n<|tool_calls_section_begin|>x", "", "<|tool_calls_section_begin|>x"),
        ("<think>I look.<|tool_calls_sec", "I look.<|tool_calls_sec", ""),
        ("◁think▷I look.◁/think▷It is.", "I look.", "It is."),
        ("I look.</think>It is.", "", "I look.</think>It is."),
    ],
)
def test_kimi_k2_ends_a_thought_at_its_tools(text, thought, said):
    """It calls tools without closing the thought; a closer alone is text where the prompt did not open one."""
    assert whole(K2, text) == (thought, said)
    left = split(list(text), False, *K2[:3])
    assert (left[0], trimmed(list(left[1]), K2.ends)) == (thought, said)


FINAL = "<|start|>assistant<|channel|>final<|message|>"
ANALYSIS = "<|channel|>analysis<|message|>"


@pytest.mark.parametrize(
    ("text", "thought", "said"),
    [
        (f"{ANALYSIS}I look.<|end|>{FINAL}It is.<|return|>", "I look.", "It is."),
        (f"{ANALYSIS}I look.{FINAL}It is.<|return|>", "I look.", "It is."),
        (f"{ANALYSIS}I look.<|channel|>final<|message|>It is.", "I look.", "It is."),
        ("<|channel|>final<|message|>It is.<|return|>", "", "It is."),
        (f"{FINAL}It is.<|end|>", "", "It is."),
        (f"{ANALYSIS}I look.<|end|><|start|>assistant<|chan", "I look.", "<|start|>assistant<|chan"),
        (
            f"{ANALYSIS}I look.<|channel|>commentary to=functions.ls x<|call|>",
            "I look.",
            "<|channel|>commentary to=functions.ls x",
        ),
    ],
)
def test_gpt_oss_channels(text, thought, said):
    """`analysis` is the thought, `final` the answer, with or without the words that begin a message."""
    assert whole(OSS, text) == (thought, said)
    left = split(list(text), False, *OSS[:3])
    assert (left[0], trimmed(list(left[1]), OSS.ends)) == (thought, said)


def test_gpt_oss_may_think_twice():
    """Harmony begins each message of a turn anew; a second `analysis` is no answer."""
    text = f"{ANALYSIS}a<|end|><|start|>assistant{ANALYSIS}b<|end|>{FINAL}It is.<|return|>"
    thought, said = split([text], False, *OSS[:3])
    assert (thought, trimmed([said], OSS.ends)) == ("a\n\nb", "It is.")


# what leaves when, character by character


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("<b", ["", "<b"]),
        ("< 5", ["", "< ", "5"]),
        ("<tho", ["", "", "", ""]),
        ("<thx", ["", "", "", "<thx"]),
        (" <x", ["", "", " <x"]),
        ("a<think>", list("a<think>")),
        ("<<think>", ["", "<<", *"think>"]),
    ],
)
def test_a_lone_bracket_is_held_back_as_long_as_it_can_be_a_tag(text, left):
    """And no character longer."""
    splitter = Splitter()
    assert [splitter.feed(character) for character in text] == [("", each) for each in left]


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("a<b", ["a", "", "<b"]),
        ("<|im", ["", "", "", ""]),
        ("<|ix", ["", "", "", "<|ix"]),
        ("<<|im_end|>", ["", "<", *[""] * 9]),
        ("<|im_end|> \nx", [*[""] * 12, "<|im_end|> \nx"]),
        ("<|im_end|><x", [*[""] * 11, "<|im_end|><x"]),
    ],
)
def test_a_lone_bracket_is_held_back_as_long_as_it_can_be_an_end(text, left):
    """And what is none leaves at once, with the markers and blanks before it."""
    trailing = Trailing(["<|im_end|>", "<|endoftext|>"])
    assert [trailing.feed(character) for character in text] == left


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("It is.<|user|>", "It is."),
        ("It is. \n<|user|>", "It is. \n"),
        ("It is.<|user|> \n\u00a0<|observation|>\t<|endoftext|>\n", "It is."),
        ("<|user|>", ""),
        ("<|user|>\n<|user|>", ""),
        ("It is.<|user|><|obs", "It is."),
        ("It is.<|user|>\n<", "It is."),
        ("The marker <|user|> begins a turn.", "The marker <|user|> begins a turn."),
        ("`<|user|>`<|user|>", "`<|user|>`"),
        ("It is.<|user|>x<|user|>", "It is.<|user|>x"),
        ("It is.<|obs", "It is.<|obs"),
        ("It is.<|user", "It is.<|user"),
        ("It is.<|USER|>", "It is.<|USER|>"),
        ("It is.<| user|>", "It is.<| user|>"),
        ("a < b", "a < b"),
        (" \n", " \n"),
        ("", ""),
    ],
)
def test_markers_are_dropped_only_at_the_very_end(text, said):
    """Several, with blanks between and behind them; in the middle, or only alike, they leave in full."""
    markers = FORMS["glm"].ends
    assert trimmed([text], markers) == trimmed(list(text), markers) == said


def test_a_marker_that_begins_another_depends_on_no_cut():
    """None of the shipped ones does; a user's table may."""
    assert trimmed(["x<e><e>y", ""], ["<e>y", "<e>"]) == trimmed(["x<e>", "<e>", "y"], ["<e>y", "<e>"])


# hostile and long


class Counted(Splitter):
    """A splitter that counts the characters that it looks at."""

    work = 0

    def _advance(self, text: str, last: bool) -> tuple[str, str]:
        self.work += len(text) + sum(map(len, self._held))
        return super()._advance(text, last)


@EACH
@pytest.mark.parametrize("opened", [False, True])
def test_the_work_for_single_characters_grows_with_the_text_alone(name, opened):
    """Whatever is pending, a character is looked at again no more often than the longest mark is long."""
    form = FORMS[name]
    longest = max(map(len, form.marks))
    units = ["<", " ", "\n<", *(mark[:-1] or mark for mark in form.marks), *(f"{opener} \n" for opener, _ in form.tags)]
    units += [f"{opener}a{closer} " for opener, closer in form.tags]
    for front, unit in itertools.product(["", form.tags[0][0]], units):
        text = front + unit * (600 // len(unit) + 1)
        splitter = Counted(opened, form.tags, answers=form.answers, calls=form.calls)
        for character in text:
            splitter.feed(character)
        splitter.end()
        assert splitter.work <= (longest + 2) * len(text), unit


def seconds(form: Form, blocks: int) -> float:
    """What many thoughts in one piece cost, at the best of three."""
    (opener, closer), found = form.tags[0], []
    for _ in range(3):
        splitter, begin = form.splitter(), time.process_time()
        splitter.feed(f"{opener}x{closer}" * blocks)
        found.append(time.process_time() - begin)
    return min(found)


def test_many_blocks_in_one_piece_cost_as_much_as_they_are():
    """Sixteen times the text is not a hundred times the time (searches are not ours to count)."""
    assert seconds(OSS, 3200) < 64 * seconds(OSS, 200)


@EACH
def test_a_huge_answer_in_one_piece(name):
    """Five megabytes of thought, then of text: all of it leaves."""
    form = FORMS[name]
    (opener, closer), answer = form.tags[-1], "".join(form.answers[:1])
    body = "So < it is. \n" * (HUGE // 13)
    text = f"{opener}{body}{closer}{answer}{body}x"
    thought, said = split([text], False, *form[:3])
    assert (thought == body, said.lstrip() == body + "x") == (True, True)
    if form.ends:
        assert trimmed([said + form.ends[0]], form.ends) == said


def test_five_megabytes_of_text_in_single_characters():
    """What is told is passed on, and what can be no end as well."""
    unit = "x <|im_en It is.\n"
    text = unit * (HUGE // len(unit))
    splitter = K2.splitter()
    assert "".join([splitter.feed(character)[1] for character in text]) == text
    assert trimmed(text[:LONG], K2.ends) == text[:LONG]


@pytest.mark.parametrize("name", ["kimi-k3", "gpt-oss"])
def test_a_long_thought_in_single_characters(name):
    """Half a closer in every line delays nothing for good."""
    form = FORMS[name]
    opener, closer = form.tags[0]
    unit = f"It is <|close|>th {closer[:-1]}\n"
    body = unit * (LONG // 10 // len(unit))
    assert split(opener + body + closer + form.answers[0] + "x", False, *form[:3]) == (body, "x")


@pytest.mark.parametrize("unit", [" ", "<|im_end|>", "<|im_end|> ", "<|im_en", "<", "x<|im_end|>"])
def test_a_huge_end_in_one_piece_and_in_single_characters(unit):
    """Megabytes of markers, of blanks and of what is neither are read in one pass."""
    markers = FORMS["qwen3"].ends
    text = unit * (LONG // 10 // len(unit))
    front = "" if unit.startswith("<|im_end|>") else text
    expected = text.removesuffix("<|im_end|>") if unit == "x<|im_end|>" else front
    assert (trimmed([text], markers) == expected, trimmed(list(text), markers) == expected) == (True, True)


@pytest.mark.parametrize("name", ENDING)
def test_an_end_takes_no_memory_before_it_comes(name):
    """A text that never ends in a marker is not kept."""
    trailing = Trailing(FORMS[name].ends)
    piece = FORMS[name].ends[0] + "x" + FORMS[name].ends[0][:-1] + "y"
    trailing.feed(piece)
    tracemalloc.start()
    try:
        for _ in range(1_000):
            trailing.feed(piece)
        assert tracemalloc.get_traced_memory()[1] < 5_000
    finally:
        tracemalloc.stop()


# the plain kinds of tags


@BOTH
@settings(max_examples=300, deadline=None)
@given(data=st.data(), opened=st.booleans(), places=CUTS)
def test_no_cut_changes_what_is_thought_and_what_is_said(tags, data, opened, places):
    """In every way of cutting, thought and text are those of the whole text."""
    text = data.draw(texts([mark for tag in tags for mark in tag]))
    expected = reference(text, opened, tags)
    assert split([text], opened, tags) == expected
    assert split(list(text), opened, tags) == expected
    assert split(cut(text, places), opened, tags) == expected


@pytest.mark.parametrize("tags", [FEW, HARD], ids=["real", "hard"])
@settings(deadline=None)
@given(data=st.data(), opened=st.booleans())
def test_nothing_is_held_back_that_is_decided(tags, data, opened):
    """After every character all has left that is the same however the text goes on, and no more."""
    text = data.draw(texts([mark for tag in tags for mark in tag]))
    rests = {mark[size:] + end for tag in tags for mark in tag for size in range(len(mark)) for end in ("", "y")}
    rests |= {"", *(opener + "y" for opener, _ in tags)}
    splitter, thought, said = Splitter(opened, tags), "", ""
    for size, character in enumerate(text, 1):
        left = splitter.feed(character)
        thought, said = thought + left[0], said + left[1]
        possible = [reference(text[:size] + rest, opened, tags) for rest in rests]
        assert thought == shared([one for one, _ in possible])
        assert said == shared([other for _, other in possible])


@settings(deadline=None)
@given(texts([mark for tag in TAGS for mark in tag]), st.booleans())
def test_nothing_is_invented_or_reordered(text, opened):
    """What leaves are characters of the text in their order, but for the blank line between two thoughts."""
    rest = iter(text)
    thought, said = split([text], opened)
    assert all(character in rest for character in thought.replace("\n\n", "") + said)


@pytest.mark.parametrize(("opener", "closer"), TAGS)
def test_every_kind_of_tag_is_read_and_closed_by_its_own_closer(opener, closer):
    """A thought of any kind ends at its own closer and at no other kind's."""
    others = "".join(other for _, other in TAGS if other != closer)
    text = f"{opener}a{others}b{closer}c"
    assert split([text]) == split(list(text)) == (f"a{others}b", "c")


@pytest.mark.parametrize(
    ("text", "thought", "said"),
    [
        ("<think>plan</think>\n\nAnswer", "plan", "Answer"),
        ("<think>weighing it</think>Answer 5 < 6.", "weighing it", "Answer 5 < 6."),
        ("<think>zero</think>A", "zero", "A"),
        ("<think>a</think>b", "a", "b"),
        ("<think>cut off", "cut off", ""),
        ("<think>almost</th", "almost</th", ""),
        ("<thi", "", "<thi"),
        ("Answer <thi", "", "Answer <thi"),
        ("<think>a</think>\n <thi", "a", "<thi"),
    ],
)
def test_the_collected_cases(text, thought, said):
    """B19, B26, B28, B30 and B31: tags whole, cut, unclosed and half, in one piece and in single characters."""
    assert split([text]) == split(list(text)) == (thought, said)


@pytest.mark.parametrize(
    "text",
    [
        "Write <think>x</think> inline.",
        "`<think>`x`</think>`",
        "```\n<think>x</think>\n```",
        "</think>x",
        "  \n x<think>y</think>",
        "<THINK>x</THINK>",
        "< think>x</think>",
        "< 5",
        " \n ",
        "<<think>x</think>",
    ],
)
def test_a_tag_that_does_not_begin_the_answer_is_text(text):
    """Tags behind visible text, in code, in other letters, or closers alone are text, blanks in front included."""
    assert split([text]) == split(list(text)) == ("", text)


def test_blanks_before_the_opener_and_behind_the_closer_are_dropped():
    """Blanks around a thought belong to the mark-up; those within and behind the answer do not."""
    assert split([" \n<think>a b </think>\n\n \tx \n"]) == ("a b ", "x \n")


def test_line_feeds_directly_inside_the_tags_are_thought():
    """The thought that is stored is what the model wrote between the tags, so that it can go back to the byte."""
    assert split(["<think>\nplan\n\n</think>\n\nx"]) == ("\nplan\n\n", "x")


def test_a_closed_block_of_blanks_is_no_thought():
    """The empty block that Qwen3 writes where it does not think shows nothing, and joins nothing."""
    assert split(["<think>\n\n</think>\n\nx"]) == ("", "x")
    assert split(["<think> </think><think>a</think> <think>\n</think><think>b</think>x"]) == ("a\n\nb", "x")


def test_a_thought_that_stays_open_is_thought_to_the_last_blank():
    """The end of the stream closes nothing and takes nothing away."""
    assert split(["<think>", " ", "\n"]) == (" \n", "")
    assert split(["<think>a<think>b</thinking>\n"]) == ("a<think>b</thinking>\n", "")


def test_a_second_thought_directly_behind_is_joined_by_a_blank_line():
    """Two thoughts with only blanks between are one; behind visible text a tag is text."""
    text = "<think>a</think>\n<thinking>b</thinking>x<think>c</think>"
    assert split([text]) == split(list(text)) == ("a\n\nb", "x<think>c</think>")


@pytest.mark.parametrize("opener", ["", "<think>", "\n<think>"])
def test_an_opener_in_the_prompt_begins_inside_the_thought(opener):
    """The text up to the closer is thought; an opener that the model writes once more is none of it."""
    text = f"{opener}\nplan</think>\n\nAnswer"
    assert split([text], opened=True) == split(list(text), opened=True) == ("\nplan", "Answer")


def test_an_opener_in_the_prompt_is_closed_by_any_kind_unless_the_tags_tell_it():
    """Without an own opener the first closer of `tags` ends the thought; with one, or with one pair, only that does."""
    assert split(["a[/THINK]b</think>c"], opened=True) == ("a", "b</think>c")
    assert split(["a[/THINK]b</think>c"], opened=True, tags=TAGS[:1]) == ("a[/THINK]b", "c")
    assert split(["<think>a[/THINK]b</think>c"], opened=True) == ("a[/THINK]b", "c")


def test_an_opener_in_the_prompt_and_no_closer_is_all_thought():
    """An answer that ends before the closer shows nothing."""
    assert split([" no closer <thi"], opened=True) == (" no closer <thi", "")
    assert split(["  "], opened=True) == ("  ", "")
    assert split(["</think>x"], opened=True) == ("", "x")


def test_no_tags_make_no_thought():
    """An empty table of tags leaves the text as it is, or as the thought that the prompt opened."""
    assert split(list(" <think>a</think>b"), tags=()) == ("", " <think>a</think>b")
    assert split(list(" <think>a</think>b"), opened=True, tags=()) == (" <think>a</think>b", "")


@pytest.mark.parametrize(
    ("unit", "opened"),
    [("<", False), (" ", False), (" ", True), ("<think>\n</", False), ("<think>a</think> ", False)],
)
def test_a_megabyte_in_single_characters_is_read_in_one_pass(unit, opened):
    """A hostile stream ends in time, in which a tag, a blank or a half tag is always pending."""
    text = unit * (LONG // len(unit))
    assert split(text, opened) == split([text], opened)


def test_a_beginning_of_a_tag_leaves_as_soon_as_it_is_none():
    """The character that ends the doubt frees what was held, be it visible or a blank."""
    splitter = Splitter()
    assert [
        splitter.feed(piece)
        for piece in [" ", "<", "think>", "\n", "</", " ", "</think", "x", "</think>", " ", "<", "b"]
    ] == [
        *[("", "")] * 5,
        ("\n</ ", ""),
        ("", ""),
        ("</thinkx", ""),
        *[("", "")] * 3,
        ("", "<b"),
    ]


@pytest.mark.parametrize("front", ["x", "<think>x", "<think>x</think>"])
def test_what_has_left_or_is_dropped_takes_no_memory(front):
    """A splitter does not grow with the text, with the thought, or with the blanks behind a closer."""
    splitter = Splitter()
    splitter.feed(front)
    tracemalloc.start()
    try:
        for _ in range(100_000):
            splitter.feed(" ")
        assert tracemalloc.get_traced_memory()[1] < 20_000
    finally:
        tracemalloc.stop()


def test_many_possible_closers_are_sought_in_one_pass():
    """Where any closer may end the thought, many beginnings in single characters end in time."""
    text = "</t" * (LONG // 20)
    assert split(text, opened=True) == (text, "")


@pytest.mark.parametrize("unit", ["<think>", "<think></think>", "<think>a</think>\n", "< ", " ", "</think>"])
@pytest.mark.parametrize("opened", [False, True])
def test_a_huge_piece_is_read_once(unit, opened):
    """Megabytes of tags in one piece end in time, with and without an opener in the prompt."""
    text = unit * (HUGE // len(unit))
    thought, said = split([text], opened)
    assert len(thought) + len(said) <= len(text)
