"""Model families: each has its source, is found by the names of its models, and keeps efforts in order."""

from __future__ import annotations

import datetime
import itertools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.errors import ConfigError
from proxy.families import ORDER, Family, load

FAMILIES = load()
BY_NAME = [FAMILIES.named(name) for name in FAMILIES.names]
EACH = pytest.mark.parametrize("family", BY_NAME, ids=lambda family: family.name)
PROMISED = """kimi-k3 kimi-k3.1-pro kimi-k2 deepseek-v4 deepseek-v3.2 deepseek-r1 qwen3 qwen3.5 glm gpt-oss minimax-m2
minimax-m3 mistral hunyuan generic plain"""

MODELS = {
    "kimi-k3": """moonshotai/Kimi-K3 RedHatAI/Kimi-K3-NVFP4 Kimi-K3-UD-IQ1_S kimi-k3 kimi-k3-fast kimi-k3:cloud
        moonshotai:kimi@k3 k3 k3[1m] k3-256k""",
    "kimi-k3.1-pro": """moonshotai/Kimi-K3.1-Pro kimi-k3.1-pro kimi-k3.1-pro-highspeed kimi-k3-1-pro k3.1-pro""",
    "kimi-k2": """moonshotai/Kimi-K2.7-Code moonshotai/Kimi-K2.6 moonshotai/Kimi-K2.5 moonshotai/Kimi-K2-Thinking
        moonshotai/Kimi-Linear-48B-A3B-Instruct kimi-k2.7-code kimi-k2.7-code-highspeed kimi-k2-thinking
        kimi-k2-thinking-turbo
        kimi-latest moonshot.kimi-k2-thinking kimi-k2.6:cloud k2p5 k2p6 k2p7 kimi-for-coding
        kimi-for-coding-highspeed""",
    "kimi-k2-instruct": """moonshotai/Kimi-K2-Instruct moonshotai/Kimi-K2-Instruct-0905 kimi-k2-0711-preview
        kimi-k2-0905-preview kimi-k2-turbo-preview""",
    "qwen3-instruct": "Qwen/Qwen3-Next-80B-A3B-Instruct Qwen/Qwen3-Coder-30B-A3B-Instruct qwen3-coder-plus",
    "glm": """zai-org/GLM-4.5 zai-org/GLM-4.5V zai-org/GLM-4.6 zai-org/GLM-4.6V zai-org/GLM-4.7 zai-org/GLM-5
        zai-org/GLM-5.1 zai-org/GLM-5.2 ~z-ai/glm-latest glm-5.1:cloud glm-5.2:cloud""",
    "glm-5.3": "zai-org/GLM-5.3 zai-org/GLM-5.3-Flash zai-org/GLM-5.3-Flash-BF16 z-ai/glm-5.3 GLM-5.4",
    "deepseek-r1": """deepseek-ai/DeepSeek-R1 deepseek-ai/DeepSeek-R1-0528 deepseek-ai/DeepSeek-R1-Distill-Llama-70B
        deepseek-ai/DeepSeek-R1-Distill-Qwen-32B deepseek-ai/DeepSeek-R1-0528-Qwen3-8B""",
    "deepseek-v3.2": """deepseek-ai/DeepSeek-V3.1 deepseek-ai/DeepSeek-V3.2 deepseek-ai/DeepSeek-V3.2-Exp
        deepseek-reasoner""",
    "deepseek-v4": """deepseek-ai/DeepSeek-V4-Flash deepseek-ai/DeepSeek-V4-Flash-Vision-Exp
        deepseek-ai/DeepSeek-V4-Pro deepseek-ai/DeepSeek-V4-Pro-0813 deepseek-ai/DeepSeek-V4-Pro-DSpark
        deepseek-ai/DeepSeek-V4.1-Flash deepseek-flash deepseek-v4-flash deepseek-v4-pro deepseek-v4-pro:preview
        deepseek-v4-flash:0731""",
    "qwen3": "Qwen/Qwen3-Next-80B-A3B-Thinking Qwen/Qwen3-30B-A3B qwen3-30b qwen3:8b Qwen/QwQ-32B",
    "qwen3.5": "Qwen/Qwen3.5-122B-A10B Qwen/Qwen3.6-27B Qwen/Qwen3.6-35B-A3B qwen3.5-plus qwen3.5:397b",
    "qwen3.8": """Qwen/Qwen3.8-27B Qwen/Qwen3.8-2.4T-A95B Qwen/Qwen3.8-Flash-Next qwen3.8-max
        qwen3.8-max-preview""",
    "minimax-m2": """MiniMaxAI/MiniMax-M2 MiniMaxAI/MiniMax-M2.1 MiniMaxAI/MiniMax-M2.5 MiniMaxAI/MiniMax-M2.7""",
    "minimax-m3": "MiniMaxAI/MiniMax-M3 minimax-m3",
    "gpt-oss": "gpt-oss:120b gpt-oss:120b-cloud openai/gpt-oss-20b",
    "mistral": """mistral-small-2603 mistral-small-latest mistralai/Mistral-Small-4-119B-2603 mistral-medium-2604
        mistralai/Mistral-Medium-3.5-128B magistral-small-latest mistralai/Magistral-Small-2507""",
    "hunyuan": "tencent/Hy3 tencent/Hy3-FP8 hy3-preview hy3-preview:free hy3-preview-20260421 tencent/Hy4",
    "generic": """IFM/K2-Horizon-100B deepseek-chat deepseek-ai/DeepSeek-V3 mistral-medium-2508 nemotron-3-super gpt-4o
        gpt-5 claude-opus-4 llama3.3:70b Qwen/Qwen2.5-7B-Instruct gemma-4-26b-a4b mixtral-8x7b smollm2 k3s""",
}


@pytest.mark.parametrize("name", PROMISED.split())
def test_each_promised_family_exists(name):
    """The names are public: a configuration may use them."""
    assert FAMILIES.named(name).name == name


@EACH
def test_each_row_says_where_it_comes_from_and_when(family):
    """A fact without a source cannot be checked again."""
    assert family.source, f"{family.name} needs a source"
    assert datetime.date(2025, 1, 1) < datetime.date.fromisoformat(family.date) < datetime.date(2100, 1, 1)


@pytest.mark.parametrize(("name", "model"), [(name, model) for name in MODELS for model in MODELS[name].split()])
def test_a_model_is_found_by_its_name(name, model):
    """In the spelling of hub, service, relay and Ollama, in any case."""
    assert [FAMILIES.for_model(each).name for each in (model, model.upper(), model.lower())] == [name] * 3


def test_the_last_two_families_are_nobodys_by_name():
    """One is what an unknown name gets, the other is set by hand."""
    assert [family.name for family in BY_NAME if not family.models] == ["generic", "plain"]


@pytest.mark.parametrize("family", [FAMILIES.named(name) for name in MODELS], ids=lambda family: family.name)
def test_every_pattern_finds_something(family):
    """A pattern that no known name needs is a slip."""
    known = [model.lower() for model in MODELS[family.name].split()]
    unknown = {"kimi-thinking", "hunyuan", "r1-distill"}  # names of their own, not met on the lists of 2026
    for pattern in family.models:
        assert pattern in unknown or any(re.search(pattern, model) for model in known), pattern


# effort words


@EACH
def test_every_word_becomes_one_that_the_family_has(family):
    """Or stays as it is where the family's words are not known."""
    for word in (*ORDER, *family.effort_words):
        assert family.fitted(word) in (family.efforts or (word,))


@EACH
def test_efforts_keep_their_order(family):
    """A higher word never gives a lower effort."""
    if family.efforts:
        places = [family.efforts.index(family.fitted(word)) for word in ORDER]
        assert places == sorted(places)
        assert (places[0], places[-1]) == (0, len(family.efforts) - 1)


@EACH
def test_efforts_rise_and_stay_as_they_are(family):
    """The first is the lowest: a slow box gets it. Words of the family's own are not changed."""
    assert list(family.efforts) == sorted(family.efforts, key=ORDER.index)
    assert [family.fitted(word) for word in family.efforts] == list(family.efforts)
    assert set(family.effort_words.values()) <= set(family.efforts)
    assert set(family.floors) <= set(family.efforts)


@settings(deadline=None)
@given(st.sets(st.sampled_from(ORDER), min_size=1))
def test_any_rising_words_keep_the_order(words):
    """Words that a server tells, or a user's table: the next higher one is taken, else the highest."""
    family = Family(efforts=tuple(sorted(words, key=ORDER.index)))
    for low, high in itertools.pairwise(ORDER):
        found = [family.efforts.index(family.fitted(word)) for word in (low, high)]
        assert found == sorted(found)
    for word in ORDER:
        above = [known for known in family.efforts if ORDER.index(known) >= ORDER.index(word)]
        assert family.fitted(word) == (above[0] if above else family.efforts[-1])


@EACH
@pytest.mark.parametrize(
    "told", [words for size in (1, 2, 3) for words in itertools.combinations(("low", "medium", "high"), size)]
)
def test_words_that_lm_studio_tells_keep_the_order_too(family, told):
    """The server's words take the place of the family's; what others mean there fits."""
    found = [told.index(family.model_copy(update={"efforts": told}).fitted(word)) for word in ORDER]
    assert found == sorted(found)


@pytest.mark.parametrize("name", ["kimi-k3", "kimi-k3.1-pro", "kimi-k2"])
@settings(deadline=None)
@given(words=st.sets(st.sampled_from(ORDER), min_size=1))
def test_words_that_kimis_services_tell_keep_the_order_too(name, words):
    """Whichever they will be."""
    told = tuple(sorted(words, key=ORDER.index))
    family = FAMILIES.named(name).model_copy(update={"efforts": told})
    found = [told.index(family.fitted(word)) for word in ORDER]
    assert found == sorted(found)


@EACH
def test_an_unknown_word_is_none(family):
    """Unless nobody knows the family's words."""
    assert family.fitted("turbo") == (None if family.efforts else "turbo")


# thinking off and on


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"thinking": False}, "kimi-k3 kimi-k3.1-pro kimi-k2 deepseek-v4 deepseek-v3.2"),
        ({"enable_thinking": False}, "qwen3 qwen3.5 qwen3.8 glm"),
        ({"thinking_mode": "disabled"}, "minimax-m3"),
        ({"reasoning_effort": "no_think"}, "hunyuan"),
        ({}, "deepseek-r1 gpt-oss glm-5.3 minimax-m2 mistral generic plain"),
    ],
)
def test_thinking_is_switched_off_by_the_templates_own_option(options, names):
    """GLM reads `enable_thinking` and not `thinking`, DeepSeek the other way round."""
    assert {name: dict(FAMILIES.named(name).off) for name in names.split()} == dict.fromkeys(names.split(), options)


def test_only_deepseeks_templates_must_be_told_to_think():
    """In open-weights engines they do not by themselves."""
    told = {family.name: dict(family.on) for family in BY_NAME if family.on}
    assert told == {"deepseek-v4": {"thinking": True}, "deepseek-v3.2": {"thinking": True}}


def test_what_cannot_be_switched_off_is_known():
    """Everywhere, or at its maker's own service."""
    always = {family.name: family.always for family in BY_NAME if family.always}
    everywhere = dict.fromkeys(["deepseek-r1", "gpt-oss", "glm-5.3", "minimax-m2"], "everywhere")
    assert always == everywhere | dict.fromkeys(["kimi-k3", "kimi-k3.1-pro"], "service")
    assert not any(FAMILIES.named(name).off for name in everywhere)


@EACH
def test_mark_up_is_complete(family):
    """An opener is no closer, and no marker of an end opens anything."""
    openers = {opener for opener, _ in family.tags} | {*family.answer_tags, *family.call_tags}
    closers = {closer for _, closer in family.tags}
    assert not openers & closers
    assert not openers & set(family.end_markers)
    assert all(mark == mark.strip() for mark in (*openers, *closers, *family.end_markers))


# a user's own tables


def test_a_users_family_is_added_and_asked_first():
    """Its pattern wins over the shipped ones."""
    mine = load({"mine": {"models": ["kimi-k3-mine"], "history": "never"}})
    assert mine.names == ["mine", *FAMILIES.names]
    assert mine.for_model("Kimi-K3-Mine").name == mine.named("mine").name == "mine"
    assert mine.for_model("kimi-k3").name == "kimi-k3"
    assert mine.named("mine").history == "never"
    assert load().names == FAMILIES.names


def test_a_users_table_changes_only_the_keys_that_it_names():
    """The rest, the order among the families included, stays as shipped."""
    changed = load({"kimi-k3": {"efforts": ["low", "high"], "date": "2030-01-01"}})
    was, now = FAMILIES.named("kimi-k3"), changed.named("kimi-k3")
    assert now == was.model_copy(update={"efforts": ("low", "high"), "date": "2030-01-01"})
    assert changed.names == FAMILIES.names
    assert changed.for_model("k3").efforts == ("low", "high")


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ({"effort": ["low"]}, r"families\.mine\.effort\b.*the keys are models, like, thinks"),
        ({"history": "some"}, r"families\.mine\.history: "),
        ({"models": ["kimi-("]}, r"families\.mine\.models: .*'kimi-\(' is no regular expression"),
        ({"tags": [["<think>", ""]]}, r"families\.mine\.tags\.0\.1: "),
        ({"floors": {"low": -1}}, r"families\.mine\.floors\.low: "),
        ({"stops": [0, 1]}, r"families\.mine\.stops\.0: "),
        ({"always": "never"}, r"families\.mine\.always: "),
    ],
)
def test_a_mistake_in_a_table_is_an_error_that_names_it(table, told):
    """The family, the key, and what is wrong."""
    with pytest.raises(ConfigError, match=told):
        load({"mine": table})


def test_an_unknown_name_is_an_error_that_lists_the_known_ones():
    """In the order in which they are asked."""
    with pytest.raises(ConfigError, match=re.escape(f"unknown family 'kimi'; known: {', '.join(FAMILIES.names)}")):
        FAMILIES.named("kimi")


def test_a_family_takes_from_the_one_that_it_is_like_what_it_does_not_say():
    """Whole keys; models, source and date are its own. A user's family can be like a shipped one."""
    mine = load({"mine": {"models": ["my-k3"], "like": "kimi-k3.1-pro", "sampling": {"top_p": 0.5}}}).named("mine")
    k3 = FAMILIES.named("kimi-k3")
    assert (mine.efforts, mine.tags, mine.history) == (k3.efforts, k3.tags, k3.history)
    assert (mine.floors, mine.sampling) == (FAMILIES.named("kimi-k3.1-pro").floors, {"top_p": 0.5})
    assert (mine.models, mine.source) == (("my-k3",), "")


@pytest.mark.parametrize(
    ("tables", "problem"),
    [
        ({"mine": {"like": "kimi"}}, "families.mine.like: mine is like 'kimi', which is no family"),
        ({"a": {"like": "b"}, "b": {"like": "a"}}, "families.a.like: b is like itself"),
        ({"mine": {"like": "mine"}}, "families.mine.like: mine is like itself"),
        ({"mine": {"like": 3}}, "families.mine.like: mine is like 3, which is no family"),
    ],
)
def test_a_likeness_that_leads_nowhere_is_an_error(tables, problem):
    """It names the family and the key."""
    with pytest.raises(ConfigError, match=re.escape(problem)):
        load(tables)
