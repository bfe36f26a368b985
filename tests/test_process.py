"""The process that users start: restarts, signals, and what it writes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from running import events, process

from proxy.testing import FakeBackend, answer

USER = {"role": "user", "content": "hi"}


def configuration(url: str, folder: Path) -> str:
    """One hosted-style backend, and files in `folder`."""
    return f"""
[backends.local]
url = "{url}"
engine = "kimi"
models = ["kimi-k3"]
[store]
url = "sqlite:///{folder / "state" / "proxy.db"}"
ledger_jsonl = "{folder / "ledger.jsonl"}"
log_level = "debug"
"""


async def ask(url: str, *messages: dict[str, str]) -> httpx.Response:
    """POST a chat with a key."""
    headers = {"authorization": "Bearer sk-very-secret"}
    async with httpx.AsyncClient(timeout=30, headers=headers) as http:
        return await http.post(f"{url}/chat/completions", json={"model": "kimi-k3", "messages": messages})


async def test_a_thought_survives_a_restart_and_no_key_is_written(tmp_path):
    """Turns and rows are in files that only their owner may read, and hold neither keys nor prompts in the log."""
    async with FakeBackend(answer("Two.", reasoning="exact thought \n")) as backend:
        toml = configuration(backend.url, tmp_path)
        with process(tmp_path, toml) as url:
            await ask(url, {"role": "user", "content": "PROMPT-TEXT"})
        with process(tmp_path, toml) as url:
            second = await ask(
                url, {"role": "user", "content": "PROMPT-TEXT"}, {"role": "assistant", "content": "Two."}, USER
            )
        assert backend.requests[-1].body["messages"][1]["reasoning_content"] == "exact thought \n"
        assert "restored=1" in second.headers["x-proxy-history"]
    rows = [json.loads(line) for line in (tmp_path / "ledger.jsonl").read_text().splitlines()]
    assert [row["turns_restored"] for row in rows] == [0, 1]
    for name in ("state/proxy.db", "ledger.jsonl"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
    written = b"".join(
        path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.name != "config.toml"
    )
    assert b"very-secret" not in written
    assert b"PROMPT-TEXT" not in (tmp_path / "log.txt").read_bytes()


def serve(*options: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """`reasoning-proxy serve` where it cannot start."""
    command = [sys.executable, "-m", "proxy", "serve", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, cwd=cwd, check=False)  # noqa: S603


def test_a_port_that_is_taken_ends_with_one_and_says_so(tmp_path):
    """Exit code 1, and the address in the message."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = serve("--backend", "http://127.0.0.1:9/v1", "--port", str(port), cwd=tmp_path)
    assert ended.returncode == 1
    assert "address already in use" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_damaged_store_ends_with_two_and_is_kept(tmp_path):
    """The message names the file and what to do; no stack trace."""
    (tmp_path / "proxy.db").write_bytes(b"this is no database" * 100)
    (tmp_path / "config.toml").write_text(configuration("http://127.0.0.1:9/v1", tmp_path).replace("state/", ""))
    ended = serve(cwd=tmp_path)
    assert ended.returncode == 2
    assert "is damaged" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert (tmp_path / "proxy.db").read_bytes() == b"this is no database" * 100


@pytest.mark.parametrize("stream", [False, True])
async def test_what_outlasts_the_drain_time_gets_an_error_and_a_row(tmp_path, stream):
    """SIGTERM: a stream that goes on ends with an error event and `[DONE]`, a whole answer with a 503; no traceback."""
    reply = answer("abc", reasoning="T")
    reply = reply.first(3).then_stall() if stream else reply.after(asyncio.Event())
    async with FakeBackend(reply) as backend, httpx.AsyncClient(timeout=30) as http:
        toml = configuration(backend.url, tmp_path) + "[server]\ndrain_seconds = 0.5\n"
        with process(tmp_path, toml, signalled=True) as url:
            body = {"model": "kimi-k3", "messages": [USER], "stream": stream}
            asking = asyncio.create_task(http.post(f"{url}/chat/completions", json=body))
            request = await backend.request_arrived()
            await asyncio.sleep(0.2)
            os.kill(int((tmp_path / "pid").read_text()), signal.SIGTERM)
            response = await asking
            assert await request.hung_up()
    if stream:
        *_, failure, done = events(response.text)
        assert (json.loads(failure)["error"]["code"], done) == ("shutting_down", "[DONE]")
    else:
        assert (response.status_code, response.json()["error"]["code"]) == (503, "shutting_down")
        assert response.headers["x-should-retry"] == "false"
    (row,) = [json.loads(line) for line in (tmp_path / "ledger.jsonl").read_text().splitlines()]
    assert (row["outcome"], row["error"][:27]) == ("rejected", "the proxy is shutting down;")
    assert "Traceback" not in (tmp_path / "log.txt").read_text()


async def test_a_stream_that_ends_in_the_drain_time_is_complete(tmp_path):
    """SIGTERM does not cut an answer that is about to come."""
    go = asyncio.Event()
    async with FakeBackend(answer("late", reasoning="T").hold(go, after=2)) as backend, httpx.AsyncClient() as http:
        with process(tmp_path, configuration(backend.url, tmp_path), signalled=True) as url:
            body = {"model": "kimi-k3", "messages": [USER], "stream": True}
            asking = asyncio.create_task(http.post(f"{url}/chat/completions", json=body, timeout=30))
            await backend.request_arrived()
            os.kill(int((tmp_path / "pid").read_text()), signal.SIGTERM)
            await asyncio.sleep(0.2)
            go.set()
            response = await asking
    assert "late" in response.text
    assert events(response.text)[-1] == "[DONE]"


async def test_while_it_drains_ready_says_so_and_new_requests_are_refused(tmp_path):
    """SIGTERM with a stream that goes on: a balancer sees it, and nothing that comes now is begun."""
    go = asyncio.Event()
    async with FakeBackend(answer("late", reasoning="T").hold(go, after=2)) as backend, httpx.AsyncClient() as http:
        with process(tmp_path, configuration(backend.url, tmp_path), signalled=True) as url:
            body = {"model": "kimi-k3", "messages": [USER], "stream": True}
            asking = asyncio.create_task(http.post(f"{url}/chat/completions", json=body, timeout=30))
            await backend.request_arrived()
            os.kill(int((tmp_path / "pid").read_text()), signal.SIGTERM)
            await asyncio.sleep(0.3)
            ready = await http.get(url.removesuffix("/v1") + "/ready")
            refused = await http.post(f"{url}/chat/completions", json=body)
            go.set()
            response = await asking
    assert (ready.status_code, "shutting down" in ready.text) == (503, True)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
    assert "x-should-retry" not in refused.headers
    assert "late" in response.text
    assert len(backend.requests) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_a_kill_loses_no_answer_that_took_its_time(tmp_path, stream):
    """SIGKILL in the moment in which a long answer's last byte is there: its turn and its row are on disk."""
    body = {"model": "kimi-k3", "messages": [USER], "stream": stream}
    reply = answer("Two.", reasoning="exact thought", gap=0.2 if stream else 0).after(0 if stream else 0.6)
    async with FakeBackend(reply) as backend, httpx.AsyncClient(timeout=30) as http:
        toml = configuration(backend.url, tmp_path)
        with process(tmp_path, toml, signalled=True, code=-signal.SIGKILL) as url:
            said = await http.post(f"{url}/chat/completions", json=body)
            os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
        assert "Two." in said.text
        with process(tmp_path, toml) as url:
            history = [USER, {"role": "assistant", "content": "Two."}, USER]
            second = await http.post(f"{url}/chat/completions", json={"model": "kimi-k3", "messages": history})
    assert "restored=1" in second.headers["x-proxy-history"]
    rows = [json.loads(line) for line in (tmp_path / "ledger.jsonl").read_text().splitlines()]
    assert rows[0]["request_id"] == said.headers["x-request-id"]
    assert (rows[0]["outcome"], rows[0]["turns_restored"], rows[1]["turns_restored"]) == ("ok", 0, 1)


def test_a_log_line_cannot_be_forged(tmp_path):
    """Line breaks and escapes in a model's name are shown as what they are."""
    with process(tmp_path, configuration("http://127.0.0.1:9/v1", tmp_path)) as url:
        body = {"model": "x\n2026-11-30 INFO forged \x1b[31m", "messages": [USER]}
        assert httpx.post(f"{url}/chat/completions", json=body).status_code == 404
    log = (tmp_path / "log.txt").read_text()
    assert "\\n2026-11-30 INFO forged \\x1b[31m" in log
    assert "\x1b" not in log
