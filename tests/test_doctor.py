"""The command `doctor`: what it asks of each engine, what it finds, and what it leaves alone."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import real_engine
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from proxy import cli, config, doctor, families
from proxy.dialects import DIALECTS, About
from proxy.doctor import questions
from proxy.doctor.checks import findings
from proxy.doctor.examine import is_public
from proxy.doctor.seen import Efforts, Past, Prompt, Said, Seen
from proxy.events import Event, Part, Usage
from proxy.messages import Facts
from proxy.probes import Found
from proxy.testing import FakeBackend, Reply, Request, answer, document, error, events, wire

FAMILIES = families.load()
THOUGHT = "Both begin with nine. So the fraction decides, and ninety hundredths are more than eleven."
SAID = answer("9.9 is larger.", reasoning=THOUGHT)
engine = real_engine.engine  # the fixture


# Helpers ---------------------------------------------------------------------------------------------------------


def settings(**tables: Any) -> config.Settings:
    """Settings of these tables alone."""
    return config.load(overrides=tables, environ={}, read_file=False)


def by_topic(found: Any) -> dict[str, Any]:
    """The last finding about each thing."""
    return {each.about: each for each in found}


def levels(found: Any) -> dict[str, str]:
    """The level of each."""
    return {about: each.level for about, each in by_topic(found).items()}


async def look(backend: FakeBackend | str, *, generate: bool | None = None, seconds: float = 60, **own: Any):
    """The report of one backend; tables beside `backends` come with their names in capitals."""
    tables = {name.lower(): own.pop(name) for name in list(own) if name.isupper()}
    url = backend if isinstance(backend, str) else backend.url
    given = settings(backends={"local": {"url": url, **own}}, **tables)
    [report] = await doctor.run(given, generate=generate, seconds=seconds)
    return report


def said(text: str = "", reasoning: str = "", usage: Usage | None = None, names: Any = ("reasoning",), **more: Any):
    """An answer that came."""
    made = Said(**{"first": 0.1, "last": 1.1, "pieces": 40, **more})
    part = Part(reasoning=reasoning, text=text)
    counts = usage or Usage(prompt=20, cached=0, completion=40, reasoning=9)
    made.fold.add(Event(b"", [part], frozenset(names if reasoning else ()), usage=counts))
    return made


def seen(
    engine: str = "vllm",
    family: str = "kimi-k3",
    told: About | None = None,
    tables: Any = None,
    row: Any = None,
    answers: Any = None,
    **found: Any,
):
    """What was seen of a backend where all is well, but for what is given here."""
    given = settings(backends={"local": {"url": "http://127.0.0.1:1/v1"}}, **(tables or {}))
    row = {"id": "m", **(row or {})}
    about = told or About(context_limit=65536, thinks=True)
    facts = Facts("local", engine, FAMILIES.named(family), "m", context_limit=about.context_limit)
    made = Seen("local", given, DIALECTS[engine], FAMILIES.named(family), listed=(row,), row=row, facts=facts)
    made.found = Found(engine, "1", (row,), {"m": about}, answers or {})
    made.answer = said("yes", THOUGHT)
    made.past = Past(Prompt(f"{questions._PLAIN_MARK} {questions._TOOL_MARK}"))
    made.efforts = Efforts("low", "max", "reasoning_effort", Prompt("a"), Prompt("b"))
    return replace(made, **found)


# Findings, without a socket --------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine_name", sorted(DIALECTS))
def test_nothing_is_wrong_where_all_is_well(engine_name):
    """No engine has a remark for a server that does all that is wanted, but Unsloth for Kimi K3's effort."""
    family = "qwen3.8" if engine_name == "unsloth" else "kimi-k3"
    assert set(levels(findings(seen(engine_name, family))).values()) == {"ok"}


@pytest.mark.parametrize(
    ("engine_name", "family", "option"),
    [
        ("vllm", "kimi-k3", "--reasoning-parser kimi_k3"),
        ("vllm", "gpt-oss", "--reasoning-parser openai_gptoss"),
        ("sglang", "deepseek-r1", "--reasoning-parser deepseek-r1"),
        ("tokenspeed", "minimax-m3", "--reasoning-parser minimax_m3"),
        ("vllm", "generic", "--reasoning-parser NAME (`vllm serve"),
        ("llama-server", "qwen3", "--reasoning-format deepseek"),
    ],
)
def test_mark_up_in_the_text_names_the_servers_own_parser(engine_name, family, option):
    """A closer without an opener is parted by nobody; the remedy is the flag with the parser's name, or our setting."""
    closer = FAMILIES.named(family).tags[0][1] if FAMILIES.named(family).tags else "</think>"
    found = by_topic(findings(seen(engine_name, family, answer=said(f"They differ.{closer}9.9"))))["thought"]
    assert found.level == "hurts"
    assert closer in found.text
    assert option in found.remedy
    assert 'thinking.tags = "parse-prefilled"' in found.remedy


@pytest.mark.parametrize(
    ("tags", "text", "level"),
    [
        ("auto", "<think>They differ.</think>9.9", "note"),
        ("off", "<think>They differ.</think>9.9", "hurts"),
        ("auto", "They differ.</think>9.9", "hurts"),
        ("parse-prefilled", "They differ.</think>9.9", "note"),
    ],
)
def test_mark_up_that_this_proxy_parts_is_a_note(tags, text, level):
    """What hurts depends on what `thinking.tags` does with the very text that came."""
    given = seen("vllm", "qwen3", tables={"thinking": {"tags": tags}}, answer=said(text))
    assert levels(findings(given))["thought"] == level


def test_a_prompt_that_opens_a_thought_gives_away_a_text_that_is_one():
    """The answer was cut before its closer; where the thought came apart, the same prompt is no fault."""
    cut = seen("llama-server", "qwen3.5", answer=said("Well, they both begin with"), opened=True)
    found = by_topic(findings(cut))["thought"]
    assert (found.level, "parse-prefilled" in found.remedy) == ("hurts", True)
    assert levels(findings(replace(cut, answer=said("", THOUGHT))))["thought"] == "ok"


def test_an_answer_without_a_thought_tells_nothing():
    """A family that thinks gets a note, an unknown one none."""
    assert levels(findings(seen(answer=said("9.9"))))["thought"] == "note"
    assert levels(findings(seen(family="generic", answer=said("9.9"))))["thought"] == "ok"


def test_a_thought_of_an_unknown_family_is_a_note_and_of_a_plain_one_hurts():
    """The settings do not know what the model is, or say that it is something else."""
    for family, level in (("generic", "note"), ("plain", "hurts"), ("qwen3", None)):
        found = by_topic(findings(seen(family=family))).get("settings")
        assert (found and found.level) == level
        assert found is None or "backends.local.family" in found.remedy


@pytest.mark.parametrize(
    ("family", "kept", "level"),
    [
        ("kimi-k3", (True, True), "ok"),
        ("kimi-k3", (False, False), "hurts"),
        ("kimi-k3", (True, False), "hurts"),
        ("kimi-k2", (False, True), "note"),
        ("qwen3", (False, True), "ok"),
        ("qwen3", (False, False), "hurts"),
        ("generic", (False, False), "note"),
        ("deepseek-r1", (False, False), "ok"),
    ],
)
@pytest.mark.parametrize("shown", [True, False])
def test_past_thoughts_by_what_the_family_wants(family, kept, level, shown):
    """From the prompt itself, or from how many tokens longer the thoughts make it."""
    marks = [mark for mark, there in zip((questions._PLAIN_MARK, questions._TOOL_MARK), kept, strict=True) if there]
    more = sum(size for size, there in zip((84, 148), kept, strict=True) if there)
    past = Past(Prompt(" ".join(marks))) if shown else Past(Prompt(tokens=50 + more), Prompt(tokens=50))
    found = by_topic(findings(seen("llama-server", family, past=past)))["past thoughts"]
    assert found.level == level
    assert level == "ok" or "--reasoning-preserve" in found.remedy


@given(st.floats(0.87, 1.25), st.integers(0, 5), st.booleans(), st.booleans())
def test_the_size_of_a_prompt_tells_which_thoughts_are_in_it(scale, frame, plain, tool):
    """For tokenizers that are a quarter coarser or finer, and templates that write some tags around a thought."""
    more = round((84 * plain + 148 * tool) * scale) + frame * (plain or tool)
    assert questions.kept_in_tokens(more) == (plain, tool)


@pytest.mark.parametrize(
    ("engine_name", "size", "level", "remedy"),
    [
        ("llama-server", 1024, "hurts", "-c 131072 (its 4 slots share it), or -c 32768 -np 1"),
        ("vllm", 4096, "hurts", "--max-model-len 32768"),
        ("sglang", 16384, "note", "--context-length 32768"),
        ("ollama", 4096, "hurts", "OLLAMA_CONTEXT_LENGTH=32768"),
        ("lmstudio", 8191, "hurts", "--context-length 32768"),
        ("kimi", 32768, "ok", ""),
        ("openai", 8192, "note", "a larger window"),
        ("openai", None, "note", "backends.local.context_limit = N"),
    ],
)
def test_a_small_window_names_the_engines_option(engine_name, size, level, remedy):
    """Too few tokens for prompt, thought and answer hurt; llama-server's count is per slot."""
    props = {"/props": {"total_slots": 4}}
    found = by_topic(findings(seen(engine_name, told=About(size, thinks=True), answers=props)))["context"]
    assert found.level == level
    assert remedy in found.remedy


def test_a_window_depends_on_the_floor_and_on_the_model():
    """A higher floor needs more; a model that was made for no more is not asked for it."""
    given = seen(told=About(16384, thinks=True), tables={"policy": {"min_completion_tokens": {"max": 16000}}})
    assert levels(findings(given))["context"] == "hurts"
    small = seen("llama-server", told=About(8192), row={"meta": {"n_ctx_train": 8192}})
    assert "min_completion_tokens" in by_topic(findings(small))["context"].remedy
    larger = seen("llama-server", told=About(8192), row={"meta": {"n_ctx_train": 16384}})
    assert by_topic(findings(larger))["context"].remedy == "-c 16384"


def test_ollama_says_that_messages_are_dropped():
    """Nobody else is told."""
    assert "dropped" in by_topic(findings(seen("ollama", told=About(4096, thinks=True))))["context"].text


def test_a_configured_window_above_the_servers_hurts():
    """Prompts would be sent that it refuses."""
    given = seen(told=About(65536, thinks=True))
    given.settings = settings(backends={"local": {"url": "http://127.0.0.1:1/v1", "context_limit": 100_000}})
    assert [each.level for each in findings(given) if each.about == "context"] == ["hurts", "ok"]


@pytest.mark.parametrize(
    ("low", "high", "level"),
    [
        (Prompt("effort=low"), Prompt("effort=max"), "ok"),
        (Prompt("x"), Prompt("x"), "hurts"),
        (Prompt(tokens=5), Prompt(tokens=6), "ok"),
        (Prompt(tokens=5), Prompt(tokens=5), "ok"),
        (Prompt(tokens=5), None, "ok"),
        (Prompt("x"), Prompt(problem="Unsupported thinking_effort"), "hurts"),
    ],
)
def test_the_effort_is_told_from_the_prompt(low, high, level):
    """The same prompt for both ends is an effort without effect; the same size proves nothing."""
    found = by_topic(findings(seen(efforts=Efforts("low", "max", "reasoning_effort", low, high))))["effort"]
    assert found.level == level
    assert "`reasoning_effort`" in found.text


def test_no_words_for_a_slow_backend_is_a_note():
    """A fast one needs none."""
    slow = said("9.9", THOUGHT, first=1.0, last=40.0)
    assert levels(findings(seen(family="qwen3", efforts=None, answer=slow)))["effort"] == "note"
    assert levels(findings(seen(family="qwen3", efforts=None)))["effort"] == "ok"


@pytest.mark.parametrize(
    ("engine_name", "option"), [("vllm", "--enable-prompt-tokens-details"), ("sglang", "--enable-cache-report")]
)
def test_cached_tokens_have_a_flag(engine_name, option):
    """Not reported even for a prompt that was sent before; where the second report has them, all is well."""
    silent = Usage(prompt=20, completion=40, reasoning=9)
    given = seen(engine_name, answer=said("", THOUGHT, silent), again=said("", THOUGHT, silent))
    found = by_topic(findings(given))["cached tokens"]
    assert (found.level, found.remedy) == ("note", option)
    assert levels(findings(replace(given, again=said("", THOUGHT))))["cached tokens"] == "ok"


def test_an_engine_without_that_flag_gets_no_note():
    """Nobody could do anything about it."""
    given = seen("ollama", answer=said("", THOUGHT, Usage(prompt=20, completion=40)))
    assert levels(findings(given))["cached tokens"] == "ok"


def test_zero_reasoning_tokens_beside_a_thought():
    """Nothing is to be done about them; no usage at all is a note."""
    for count in (0, None, 9):
        usage = Usage(prompt=20, cached=0, completion=40, reasoning=count)
        assert levels(findings(seen(answer=said("", THOUGHT, usage))))["reasoning tokens"] == "ok"
    assert levels(findings(seen(answer=said("", THOUGHT, Usage()))))["tokens"] == "note"


@pytest.mark.parametrize(
    ("slow", "seconds", "level"),
    [("auto", 1, "ok"), ("auto", 60, "note"), (True, 60, "ok"), (False, 60, "hurts"), (True, 1, "note")],
)
def test_the_speed_is_compared_with_the_settings(slow, seconds, level):
    """A setting that says the opposite of what was measured is named."""
    given = seen(answer=said("9.9", THOUGHT, first=0.1, last=0.1 + seconds))
    given.settings = settings(backends={"local": {"url": "http://127.0.0.1:1/v1", "slow": slow}})
    found = by_topic(findings(given))["speed"]
    assert found.level == level
    assert level == "ok" or "backends.local.slow" in found.remedy


def test_ollamas_community_models_that_do_not_say_that_they_think():
    """A known family that the server takes for one that does not think is refused every effort."""
    given = seen("ollama", "kimi-k3", told=About(65536, thinks=False), answer=said("9.9"))
    found = by_topic(findings(given))["thought"]
    assert (found.level, "llama-server" in found.remedy) == ("hurts", True)
    plain = seen("ollama", "generic", told=About(65536, thinks=False), answer=said("9.9"))
    assert levels(findings(plain))["thought"] == "ok"


def test_unsloth_does_not_hand_the_effort_of_kimi_k3_on():
    """Whatever the prompts said."""
    assert levels(findings(seen("unsloth", "kimi-k3")))["effort"] == "hurts"


def test_sglang_tells_how_it_was_started():
    """Nothing need be generated to know."""
    answers = {"/model_info": {"reasoning_parser": None}, "/server_info": {"enable_cache_report": False}}
    found = by_topic(findings(seen("sglang", "kimi-k3", answers=answers, answer=None)))
    assert (found["thought"].level, found["thought"].remedy) == ("hurts", "--reasoning-parser kimi_k3")
    assert found["cached tokens"].remedy == "--enable-cache-report"


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tokenspeed"])
def test_parsers_are_named_for_families_that_there_are(engine):
    """And for a family without one of its own, the option says where their names stand."""
    advice = DIALECTS[engine].advice
    assert advice.parsers.keys() <= set(FAMILIES.names)
    assert advice.parsers["kimi-k3"] in advice.parser_option("kimi-k3")
    assert "NAME" in advice.parser_option("a new one")


def test_names_that_the_server_does_not_have():
    """Hurt where the server knows its models by name; llama-server answers to any, but as a router."""
    for engine_name, row, level in (
        ("vllm", {}, "hurts"),
        ("llama-server", {}, "note"),
        ("llama-server", {"status": {"value": "loaded"}}, "hurts"),
    ):
        assert levels(findings(seen(engine_name, row=row, denied=("kimi",))))["models"] == level


@pytest.mark.parametrize(
    ("url", "public"),
    [
        ("https://api.example.com/v1", True),
        ("https://8.8.8.8/v1", True),
        ("http://10.1.2.3:8080/v1", False),
        ("http://[::1]:8080/v1", False),
        ("http://localhost/v1", False),
        ("http://llama:8080/v1", False),
        ("http://box.lan/v1", False),
        ("http://host.docker.internal/v1", False),
    ],
)
def test_public_hosts(url, public):
    """Somebody else's host may cost money; a name without a dot, and private ones, are one's own."""
    assert is_public(url) is public


# Asked on a real port --------------------------------------------------------------------------------------------


def rendering(request: Request) -> Reply:
    """Kimi K3's way: the effort in front, then all messages with their thoughts."""
    effort = (request.get("chat_template_kwargs") or {}).get("thinking_effort", "max")
    lines = [f"{message.get('reasoning_content', '')}|{message.get('content')}" for message in request.messages]
    return document({"prompt": "\n".join([f"effort={effort}", *lines, "<|open|>think<|sep|>"])})


async def test_a_llama_server_that_does_all():
    """Past thoughts and the effort are read from `/apply-template`; one answer is generated, with a small cap."""
    async with FakeBackend(
        SAID, style="llama-server", model="kimi-k3", paths={"/apply-template": rendering}
    ) as backend:
        report = await look(backend, max_concurrency=1)
        assert levels(report.findings) == dict.fromkeys(levels(report.findings), "ok")
        assert "the others wait in line here" in by_topic(report.findings)["line"].text
        assert "chat_template_kwargs.thinking_effort" in by_topic(report.findings)["effort"].text
        [request] = backend.requests
    assert request.body["max_tokens" if "max_tokens" in request.body else "max_completion_tokens"] <= 48
    assert request.body["chat_template_kwargs"] == {"thinking_effort": "low"}
    assert request.get("stream") is True
    assert (report.engine, report.version, report.context) == ("llama-server", "b11434-fake", 131072)
    assert [model["name"] for model in report.models] == ["kimi-k3"]


async def test_a_llama_server_that_ignores_and_drops():
    """The template reads no effort and writes no thoughts."""
    paths = {
        "/apply-template": document({"prompt": "<|open|>think<|sep|>"}),
        "/props": document(
            {"default_generation_settings": {"n_ctx": 2048}, "total_slots": 4, "chat_template": "{{ x }}"}
        ),
    }
    async with FakeBackend(answer("They both"), style="llama-server", model="kimi-k3", paths=paths) as backend:
        report = await look(backend)
    found = by_topic(report.findings)
    hurting = [about for about, each in found.items() if each.level == "hurts"]
    assert hurting == ["context", "thought", "past thoughts", "effort"]
    assert "-np 1" in found["context"].remedy
    assert "--reasoning-preserve" in found["past thoughts"].remedy
    assert "thinking_effort" in found["effort"].remedy
    assert (found["line"].level, found["line"].remedy[-19:]) == ("note", "max_concurrency = 4")


async def test_a_template_without_tools_is_asked_for_plain_turns():
    """A refusal of tools does not keep the rest from being told."""

    def no_tools(request: Request) -> Reply:
        return error(500, "tools are not supported") if request.get("tools") else rendering(request)

    async with FakeBackend(SAID, style="llama-server", model="kimi-k3", paths={"/apply-template": no_tools}) as backend:
        assert levels((await look(backend)).findings)["past thoughts"] == "ok"


async def test_vllm_shows_prompts_only_for_answers():
    """A token each, and where the text does not come, by its size; no more than eight requests in all."""
    async with FakeBackend(SAID, style="vllm", model="kimi-k3") as backend:
        report = await look(backend)
        caps = [request.get("max_tokens") or request.get("max_completion_tokens") for request in backend.requests]
        assert sum(request.get("return_prompt_text") is True for request in backend.requests) >= 4
    found = by_topic(report.findings)
    assert caps[0] == 48
    assert len(caps) <= 8
    assert all(cap <= 48 for cap in caps)
    assert found["past thoughts"].level == "ok"
    assert "as `reasoning`" in found["thought"].text
    assert found["cached tokens"].remedy == "--enable-prompt-tokens-details"


async def test_vllm_with_the_prompts_text():
    """The effort is seen in it."""

    def shown(request: Request) -> Reply:
        if request.get("stream"):
            return SAID
        body = {"choices": [{"index": 0, "message": {"role": "assistant", "content": None}, "finish_reason": "length"}]}
        return document(
            {**body, "usage": {"prompt_tokens": 9, "completion_tokens": 1}, "prompt_text": "always the same"}
        )

    async with FakeBackend(rules=shown, style="vllm", model="kimi-k3") as backend:
        found = levels((await look(backend)).findings)
    assert (found["effort"], found["past thoughts"]) == ("hurts", "hurts")


async def test_no_generation_where_it_is_switched_off():
    """`/apply-template` generates nothing, so it is asked all the same."""
    async with FakeBackend(
        SAID, style="llama-server", model="kimi-k3", paths={"/apply-template": rendering}
    ) as backend:
        found = levels((await look(backend, generate=False)).findings)
        assert not backend.requests
    assert (found["past thoughts"], found["effort"], found["answer"]) == ("ok", "ok", "ok")
    assert "speed" not in found
    async with FakeBackend(SAID, style="vllm", model="kimi-k3") as backend:
        assert "past thoughts" not in levels((await look(backend, generate=False)).findings)
        assert not backend.requests


async def test_a_service_is_not_asked_to_generate_unless_one_says_so():
    """It costs money; with --generate it is asked like the others."""
    async with FakeBackend(SAID, style="kimi", model="kimi-k3") as backend:
        report = await look(backend, engine="kimi", api_key="sk-1")
        assert not backend.requests
        assert by_topic(report.findings)["answer"].remedy == "--generate"
        report = await look(backend, engine="kimi", api_key="sk-1", generate=True)
        assert backend.requests
        assert backend.requests[0].headers["authorization"] == "Bearer sk-1"
    assert levels(report.findings)["thought"] == "ok"


async def test_a_router_loads_and_wakes_nothing():
    """Models that are not loaded are listed, and the one that is loaded is tried, with a query that loads none."""
    async with FakeBackend(
        SAID, style="llama-router", model="kimi-k3", paths={"/apply-template": rendering}
    ) as backend:
        report = await look(backend)
        assert {request.get("model") for request in backend.requests} == {"kimi-k3"}
        asked = [request for request in backend.others if request.path in ("/props", "/apply-template")]
        assert all("autoload=false" in request.query for request in [*asked, *backend.requests])
        assert not {"sleeper", "idler"} & {request.get("model") for request in backend.others}
    assert {model["name"]: model["loaded"] for model in report.models} == {
        "kimi-k3": True,
        "sleeper": False,
        "idler": False,
    }
    assert levels(report.findings)["thought"] == "ok"


async def test_a_router_with_nothing_loaded():
    """Said so, with how to go on; nothing is sent to any model."""
    rows = [{"id": "a", "owned_by": "llamacpp", "status": {"value": word}} for word in ("unloaded", "sleeping")]
    paths = {"/v1/models": document({"data": rows}), "/props": document({"role": "router"})}
    async with FakeBackend(SAID, style="llama-server", paths=paths) as backend:
        report = await look(backend)
        assert not backend.requests
        assert not any(request.path == "/apply-template" for request in backend.others)
    found = by_topic(report.findings)["models"]
    assert (found.level, "send one request" in found.remedy) == ("note", True)
    assert not report.hurts


async def test_a_sleeping_server_of_one_model_is_left_asleep():
    """Only `/props` tells it."""
    props = document({"is_sleeping": True, "default_generation_settings": {"n_ctx": 8192}})
    async with FakeBackend(SAID, style="llama-server", paths={"/props": props}) as backend:
        report = await look(backend)
        assert not backend.requests
    assert report.models[0]["loaded"] is False


async def test_ollama_takes_the_running_model_and_not_the_clouds():
    """The others would be loaded, or paid for; the window is the running one."""
    async with FakeBackend(SAID, style="ollama", model="kimi-k3", context=4096) as backend:
        report = await look(backend)
        assert {request.get("model") for request in backend.requests} == {"kimi-k3"}
    found = by_topic(report.findings)["context"]
    assert (found.level, "OLLAMA_CONTEXT_LENGTH=" in found.remedy) == ("hurts", True)


async def test_ollamas_cloud_models_are_services():
    """Where no other model is awake, nothing is generated."""
    paths = {"/api/ps": document({"models": []})}
    async with FakeBackend(SAID, style="ollama", model="kimi-k3", paths=paths) as backend:
        report = await look(backend)
        assert not backend.requests
    assert by_topic(report.findings)["answer"].remedy == "--generate"


@pytest.mark.parametrize("style", ["lmstudio", "unsloth", "tokenspeed", "sglang", "openai", "deepseek", "openrouter"])
async def test_every_style_is_looked_at(style):
    """No engine's answers break a check, and each is found by what it says of itself."""
    async with FakeBackend(SAID, style=style, model="kimi-k3") as backend:
        report = await look(
            backend, generate=True, **({"engine": style} if style in ("deepseek", "openrouter") else {})
        )
        assert all(request.get("model") == "kimi-k3" for request in backend.requests)
    assert report.engine == style
    assert levels(report.findings)["thought"] == "ok"


async def test_a_slow_backend_is_ended_with_the_speed_seen():
    """The time limit ends the answer; what came until then is told, and the rest is not tried."""
    never = asyncio.Event()
    slow = answer("9.9 is larger.", reasoning=THOUGHT).hold(never, after=6)
    async with FakeBackend(slow, style="vllm", model="kimi-k3") as backend:
        report = await look(backend, seconds=0.5)
        assert len(backend.requests) == 1
        assert await backend.requests[0].hung_up()
    found = by_topic(report.findings)
    assert found["speed"].level == "note"
    assert "backends.local.slow = true" in found["speed"].remedy
    assert found["thought"].level == "ok"


async def test_a_backend_that_says_nothing_in_time():
    """No token is a slow backend too, and its prompt is not sent again."""
    async with FakeBackend(SAID.after(asyncio.Event()), style="llama-server", model="kimi-k3") as backend:
        report = await look(backend, seconds=0.2)
        assert len(backend.requests) == 1
    found = by_topic(report.findings)
    assert (found["speed"].level, "no token came" in found["speed"].text) == ("note", True)
    assert "thought" not in found


async def test_a_url_without_its_path():
    """Hurts, with the URL that is meant."""
    async with FakeBackend(SAID, style="vllm", model="kimi-k3") as backend:
        report = await look(backend.url.removesuffix("/v1"))
        [found] = report.findings
        assert (found.level, found.remedy) == ("hurts", f'backends.local.url = "{backend.url}"')
    moved = document({}, 301, {"location": "https://elsewhere/v1/models"})
    async with FakeBackend(SAID, paths={"/v1/models": moved}) as backend:
        [found] = (await look(backend)).findings
        assert (found.level, "https://elsewhere/v1/models" in found.text) == ("hurts", True)


async def test_nobody_is_there():
    """Hurts, with the reason and what to do."""
    report = await look("http://127.0.0.1:1/v1")
    [found] = report.findings
    assert (found.level, found.about) == ("hurts", "reachable")
    assert "start the server" in found.remedy


@pytest.mark.parametrize(
    ("reply", "own", "level", "words"),
    [
        (error(401, "Unauthorized"), {}, "note", "api_key_env"),
        (error(401, "Invalid sk-secret"), {"api_key": "sk-secret"}, "hurts", "api_key_env"),
        (error(503, "Loading model"), {}, "hurts", "wait"),
        (wire(), {}, "hurts", "log"),
        (wire(b"nonsense\r\n\r\n"), {}, "hurts", "log"),
    ],
)
async def test_a_server_that_does_not_let_one_in(reply, own, level, words):
    """Each with its own remedy; the key is not repeated, also where the server does it."""
    async with FakeBackend(SAID, paths={"/v1/models": reply}) as backend:
        report = await look(backend, **own)
    [found] = report.findings
    assert (found.level, found.about) == (level, "reachable")
    assert words in found.remedy
    assert "sk-secret" not in doctor.document([report]).decode() + doctor.text([report])


@pytest.mark.parametrize(
    "reply",
    [
        document("<html>"),
        document(None),
        document([]),
        document({"data": None}),
        document({"data": [None, {"id": 7}, {"id": ""}]}),
        document({"data": [{"id": "x\x1b[2J"}]}),
        error(404, "File Not Found"),
    ],
)
async def test_lists_of_models_that_are_none(reply):
    """Nothing breaks, and what a server says does not steer the terminal."""
    async with FakeBackend(SAID, paths={"/v1/models": reply}) as backend:
        report = await look(backend)
    assert report.findings
    assert "\x1b" not in doctor.text([report])


@pytest.mark.parametrize(
    "reply",
    [
        error(500, "out of memory"),
        events({"error": {"message": "broken"}}),
        events("no JSON"),
        wire(),
        SAID.first(2).then_abort(),
        document({"choices": None, "usage": 7, "prompt_text": 9}),
        document(["no", "object"]),
        answer(""),
    ],
)
@pytest.mark.parametrize("style", ["vllm", "llama-server"])
async def test_answers_that_are_none(style, reply):
    """What fails while generating is a finding."""
    async with FakeBackend(reply, style=style, model="kimi-k3", paths={"/apply-template": document([])}) as backend:
        found = levels((await look(backend)).findings)
    assert "hurts" in {found.get("answer"), found.get("thought")} or found["thought"] == "note" or "tokens" in found


async def test_the_wrong_engine_and_the_wrong_names():
    """The settings say what the server does not; the rest is tried where a model is left to try."""
    async with FakeBackend(
        SAID, style="llama-server", model="kimi-k3", paths={"/apply-template": rendering}
    ) as backend:
        report = await look(backend, engine="vllm")
        found = by_topic(report.findings)["engine"]
        assert (found.level, found.remedy) == ("hurts", 'backends.local.engine = "auto"')
        report = await look(backend, MODELS={"fast": {"upstream": "nobody", "backend": "local"}})
        assert by_topic(report.findings)["models"].level == "note"
        assert levels(report.findings)["thought"] == "ok"
    async with FakeBackend(SAID, style="vllm", model="kimi-k3") as backend:
        report = await look(backend, models=["nobody"])
        assert levels(report.findings)["models"] == "hurts"
        assert not backend.requests


async def test_a_family_of_an_alias_counts():
    """As it does for requests."""
    async with FakeBackend(SAID, style="vllm", model="mine") as backend:
        report = await look(backend, MODELS={"k3": {"upstream": "mine", "family": "kimi-k3"}})
    assert report.models[0]["family"] == "kimi-k3"
    assert "low to max" in by_topic(report.findings)["effort"].text


# The command -----------------------------------------------------------------------------------------------------


def run(*arguments: str, env: Any = None):
    """The command as a user calls it."""
    result = CliRunner().invoke(cli.main, ["doctor", *arguments], env=env)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


async def test_the_command_tells_people_and_programs():
    """Text or one JSON document on stdout, talk on stderr, 0 where nothing hurts, no secret anywhere."""
    async with FakeBackend(
        SAID, style="llama-server", model="kimi-k3", paths={"/apply-template": rendering}
    ) as backend:
        url = backend.url.replace("//", "//user:PASSWORD@")
        result = await asyncio.to_thread(run, "--backend", url)
        assert (result.exit_code, "nothing hurts" in result.stdout) == (0, True)
        assert result.stderr == f"looking at default, {backend.url.replace('//', '//***@')}\n"
        assert "PASSWORD" not in result.output
        result = await asyncio.to_thread(run, "--backend", url, "--json", "--no-generate")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert found["ok"] is True
    [backend_found] = found["backends"]
    assert list(backend_found) == ["name", "url", "engine", "version", "models", "context", "findings"]
    assert all(list(each) == ["level", "about", "text", "remedy"] for each in backend_found["findings"])
    assert "PASSWORD" not in result.output


def test_exit_codes():
    """1 for a backend that is down, beside one that is well or not; 2 for settings and options."""
    Path("f.toml").write_text(
        '[backends.a]\nurl = "http://127.0.0.1:1/v1"\n[backends.b]\nurl = "http://127.0.0.1:2/v1"\n'
    )
    result = run("--config", "f.toml", "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert ([each["name"] for each in found["backends"]], found["ok"]) == (["a", "b"], False)
    result = run("--config", "f.toml")
    assert "→ start the server" in result.stdout
    assert "2 things hurt, 0 notes" in result.stdout
    assert run("--config", "absent.toml").exit_code == 2
    assert run("--backend", "nonsense").exit_code == 2
    assert run("--generate=no").exit_code == 2
    result = run()
    assert (result.exit_code, result.stdout) == (2, "")
    assert "none is configured" in result.stderr


def test_one_backend_needs_no_keys_of_the_others():
    """`--backend` looks at that one alone, with the file's policy and families."""
    Path("config.toml").write_text('[backends.a]\nurl = "http://127.0.0.1:1/v1"\napi_key_env = "ABSENT"\n')
    result = run("--backend", "http://127.0.0.1:2/v1", "--json")
    assert [each["name"] for each in json.loads(result.stdout)["backends"]] == ["default"]


# The real engine -------------------------------------------------------------------------------------------------


@pytest.mark.engine
async def test_a_real_llama_server(engine):
    """It thinks, keeps thoughts, obeys the effort and reports what it caches; its window is small, and it says so."""
    report = await look(engine.url)
    found = by_topic(report.findings)
    assert (report.engine, report.context) == ("llama-server", 4096)
    assert found["thought"].text == "comes separated from the text, as `reasoning_content`"
    for about in ("past thoughts", "effort", "cached tokens", "reasoning tokens"):
        assert found[about].level == "ok"
    assert "in tokens a second" in found["speed"].text
    assert "chat_template_kwargs.thinking_effort" in found["effort"].text
    assert (found["context"].level, found["context"].remedy) == ("hurts", "-c 8192")
    assert found["settings"].level == "note"
