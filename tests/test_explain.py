"""`reasoning-proxy explain`: what it shows is what a request gets, and nothing is sent or written."""

# ruff: noqa: ASYNC240 - small files of their own, which nobody waits for

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import shutil
import sqlite3
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from proxy import cli, config, explain, normalise
from proxy.demo.server import free_port
from proxy.dialects import DIALECTS
from proxy.doors import Call, Reply
from proxy.errors import ProxyError
from proxy.jsons import splice, table
from proxy.messages import Entry
from proxy.pipeline import Pipeline
from proxy.store import Store, open_store
from proxy.testing import FakeBackend, answer, document

CHAT = "/v1/chat/completions"
ASKED = {"role": "user", "content": "What is here?"}
SAID = {"role": "assistant", "content": "Two files."}
AGAIN = {"role": "user", "content": "And now?"}


def toml(url: str, more: str = "", *, engine: str = "kimi", store: str = "sqlite:///proxy.db") -> str:
    """Settings for one backend, with further tables."""
    return f"""[backends.local]
url = "{url}"
engine = "{engine}"
family = "kimi-k3"
models = ["m"]
slow = false
[store]
url = "{store}"
{more}
"""


def write(text: str) -> config.Settings:
    """./config.toml with this text, and the settings that it gives."""
    Path("config.toml").write_text(text, "utf-8")
    return config.load(environ={})


async def run(*arguments: str, body: Any = None, **fields: Any) -> Result:
    """The command as a user calls it, in a thread of its own, with a body on stdin."""
    body = {"model": "m", "messages": [ASKED], **fields} if body is None else body
    sent = body if isinstance(body, bytes) else json.dumps(body, ensure_ascii=False).encode()
    result = await asyncio.to_thread(CliRunner().invoke, cli.main, ["explain", "-", *arguments], input=sent)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


async def shown(*arguments: str, **fields: Any) -> dict[str, Any]:
    """What `--json` prints."""
    result = await run("--json", *arguments, **fields)
    assert result.exit_code == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@contextlib.asynccontextmanager
async def proxied(settings: config.Settings) -> AsyncIterator[Pipeline]:
    """A pipeline as `serve` has it, that measures nothing by itself."""
    pipeline = Pipeline.open(settings)
    try:
        pipeline.backends.learn(pipeline.store.recent_speeds(), pipeline.store.recent_thoughts())
        pipeline.backends.start()
        yield pipeline
    finally:
        await pipeline.aclose()


async def sent(pipeline: Pipeline, body: Any, headers: Mapping[str, str] | None = None) -> tuple[Reply, bytes]:
    """The reply to a request, and the whole of its body."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    reply = await pipeline.handle(Call("POST", CHAT, headers or {}, content))
    if isinstance(reply.body, bytes):
        return reply, reply.body
    pieces: list[bytes] = []

    async def write(piece: bytes) -> None:
        pieces.append(piece)

    try:
        await reply.body.feed(write)
        return reply, b"".join(pieces)
    finally:
        await reply.body.aclose()


async def remembered(settings: config.Settings, headers: Mapping[str, str] | None = None) -> None:
    """Put one turn, with a thought, into the store of the settings."""
    async with proxied(settings) as pipeline:
        await sent(pipeline, {"model": "m", "messages": [ASKED]}, headers)


@contextlib.contextmanager
def opened(url: str = "sqlite:///proxy.db") -> Iterator[Store]:
    """The store, for writing."""
    store = open_store(url)
    try:
        yield store
    finally:
        store.close()


# What is shown ---------------------------------------------------------------------------------------------------


async def test_each_decision_stands_on_a_line_with_its_reason():
    """So that `grep floor` finds why the cap is another."""
    async with FakeBackend(style="kimi") as backend:
        write(toml(backend.url, '[[rules]]\nname = "cheap"\nwhen = { model = "m" }\nset = { effort = "low" }'))
        text = (await run(max_tokens=16, stop=["END"])).stdout
    lines = text.partition("upstream body")[0].splitlines()
    assert "  floor           raised from 16" in lines
    found = dict(line.split(maxsplit=1) for line in lines if line.startswith("  ") and " " in line[2:])
    assert found["rule:cheap"] == "effort low"
    assert found["effort"] == "rule"
    assert found["stop"] == "looked for in the visible text alone"
    assert found["speed"] == "not measured: does not count as slow"
    assert found["room"] == "at effort low: not enough thoughts yet: the floor is used"


async def test_the_head_says_where_it_goes_and_what_the_headers_say():
    """Backend, engine, model, family, kind, and the values of the response headers."""
    async with FakeBackend(style="kimi") as backend:
        write(toml(backend.url, '[models.alias]\nupstream = "m"\nbackend = "local"'))
        result = await run(max_tokens=16, stop="END", body={"model": "alias", "max_tokens": 16, "messages": [ASKED]})
        found = await shown(body={"model": "alias", "max_tokens": 16, "messages": [ASKED]})
    head = dict(line.split(maxsplit=1) for line in result.stdout.split("\n\n")[0].splitlines())
    assert head["request"] == "chat, model alias"
    assert head["backend"] == "local, engine kimi"
    assert head["upstream"] == "model    m, family kimi-k3"
    assert head["effort"] == "-; reason=auto"
    assert head["max-tokens"] == found["headers"]["x-proxy-max-tokens"]
    assert head["thinking-budget"] == "-"
    assert head["history"] == found["headers"]["x-proxy-history"]


async def test_stop_strings_visible_caps_and_streams_are_told():
    """They make the proxy end the answer by itself, on a stream that the client did not ask for."""
    async with FakeBackend(style="kimi") as backend:
        write(toml(backend.url, '[policy]\ncompletion_tokens_mode = "visible"'))
        result = await run(max_tokens=1600, stop=["END"])
        found = await shown(max_tokens=1600, stop=["END"])
    assert 'stop strings      ["END"], looked for by the proxy\n' in result.stdout
    assert "visible cap       1,600 tokens, counted by the proxy\n" in result.stdout
    assert "streamed          yes, though the client does not ask for it\n" in result.stdout
    assert (found["stops"], found["visible_tokens"], found["streamed"]) == (["END"], 1600, True)


async def test_the_upstream_body_ends_the_text_as_indented_json():
    """Nothing is left out of it, and numbers stand as they came."""
    async with FakeBackend(style="kimi") as backend:
        write(toml(backend.url))
        body = b'{"model": "m", "x": {"y": [1.50, 1e3]}, "messages": [{"role": "user", "content": "\xc3\xa9"}]}'
        result = await run(body=body)
    head, _, shown_body = result.stdout.partition("upstream body\n")
    assert json.loads(shown_body)["messages"] == [{"role": "user", "content": "é"}]
    assert '\n  "x": {\n    "y": [\n      1.50,\n      1e3\n' in shown_body
    assert "{" not in head


async def test_json_has_one_object_with_these_names():
    """A public contract of names."""
    async with FakeBackend(style="kimi") as backend:
        write(toml(backend.url))
        found = await shown(max_tokens=16)
    assert list(found) == [
        *("kind", "backend", "engine", "family", "model", "upstream_model", "effort", "effort_reason"),
        *("max_tokens", "max_tokens_asked", "max_tokens_reason", "thinking_budget", "thinking_budget_reason"),
        *("decisions", "history", "restored", "headers", "learned", "stops", "visible_tokens", "streamed", "body"),
    ]
    assert {"rule": "floor", "reason": "raised from 16"} in found["decisions"]
    assert found["body"]["messages"] == [ASKED]
    assert (found["max_tokens"], found["max_tokens_asked"], found["body"]["max_tokens"]) == (5000, 16, 5000)


async def test_what_a_client_says_does_not_steer_the_terminal():
    """Escapes, C1 controls and marks of direction are written as JSON writes them, also in errors; values stay."""
    said = "a\x1b[31m\x9b2J\u202eb\x7f\ud7ff"
    async with FakeBackend(style="kimi") as backend:
        write(toml(backend.url))
        messages = [{"role": "user", "content": said}]
        texts = [await run(body={"model": "m", "messages": messages, "stop": said})]
        texts.append(await run("--json", body={"model": "m", "messages": messages, "stop": said}))
        texts.append(await run(body={"model": "m", "max_tokens": said, "messages": messages}))
        texts.append(await run(body={"model": said, "messages": messages}))
    assert [each.exit_code for each in texts] == [0, 0, 1, 1]
    for each in texts:
        assert all(letter.isprintable() or letter == "\n" for letter in each.output)
    assert json.loads(texts[0].stdout.partition("upstream body\n")[2])["messages"] == messages
    assert json.loads(texts[1].stdout)["body"]["messages"] == messages


# What the store knows --------------------------------------------------------------------------------------------


async def test_dropped_thoughts_are_shown_as_they_go_back():
    """Position and size of each, the counts, and the thought itself in the body."""
    async with FakeBackend(answer("Two files.", reasoning="Ünder here."), style="kimi") as backend:
        await remembered(write(toml(backend.url)))
        history = [ASKED, SAID, AGAIN]
        result, found = await run(messages=history), await shown(messages=history)
    assert "  messages[1]     12 bytes\n" in result.stdout
    assert "history           present=0; restored=1; missing=0; filled=0; dropped=0\n" in result.stdout
    assert (found["restored"], found["history"]["restored"]) == ([1], 1)
    assert found["body"]["messages"][1] == {**SAID, "reasoning_content": "Ünder here."}


async def test_nothing_is_written_and_nothing_is_generated():
    """No row, no turn, no mark that a turn was used, and no request for an answer: the file stays as it is."""
    async with FakeBackend(answer("Two files.", reasoning="T"), style="llama-server") as backend:
        text = toml(backend.url, engine="llama-server").replace("slow = false", "")
        await remembered(write(text))
        with contextlib.closing(sqlite3.connect("proxy.db")) as connection:
            connection.execute("UPDATE turns SET used = 1")
            connection.execute("DELETE FROM speeds")  # so that `serve` would measure
            connection.commit()
        before = Path("proxy.db").read_bytes()
        assert (await shown(messages=[ASKED, SAID, AGAIN]))["restored"] == [1]
        assert Path("proxy.db").read_bytes() == before
        assert not Path("proxy.db-wal").exists() or not Path("proxy.db-wal").stat().st_size
        assert len(backend.requests) == 1
        assert backend.others


async def test_a_running_proxy_is_not_disturbed():
    """It has the store open and writes to it; what it wrote is seen."""
    async with FakeBackend(answer("Two files.", reasoning="T"), style="kimi") as backend:
        async with proxied(write(toml(backend.url))) as pipeline:
            await sent(pipeline, {"model": "m", "messages": [ASKED]})
            await asyncio.to_thread(pipeline.store.flush)
            assert (await shown(messages=[ASKED, SAID, AGAIN]))["restored"] == [1]
            await sent(pipeline, {"model": "m", "messages": [ASKED, SAID, AGAIN]})
            assert len(await asyncio.to_thread(pipeline.store.entries)) == 2


async def test_no_store_is_made_where_there_is_none():
    """It is said, and the plan is made without one."""
    async with FakeBackend(style="kimi") as backend:
        write(toml(backend.url))
        result = await run(messages=[ASKED, SAID, AGAIN])
    assert result.exit_code == 0
    assert "there is no store yet at proxy.db" in result.stderr
    assert "missing=1" in result.stdout
    assert [path.name for path in Path().iterdir()] == ["config.toml"]


async def test_a_store_in_memory_cannot_be_seen():
    """It is said."""
    async with FakeBackend(style="kimi") as backend:
        write(toml(backend.url, store="memory"))
        result = await run()
    assert (result.exit_code, result.stderr.count("\n")) == (0, 1)
    assert "kept in memory" in result.stderr


async def test_a_store_that_cannot_be_read_is_named():
    """Exit code 2, and no traceback: a file that is none, and one of an older version."""
    write(toml("http://127.0.0.1:9/v1"))
    Path("proxy.db").write_bytes(b"this is no database" * 100)
    damaged = await run()
    Path("proxy.db").unlink()
    with opened():
        pass
    with contextlib.closing(sqlite3.connect("proxy.db")) as connection:
        connection.execute("PRAGMA user_version = 1")
    older = await run()
    assert (damaged.exit_code, older.exit_code) == (2, 2)
    assert "is damaged, or no SQLite database" in damaged.stderr
    assert "older reasoning-proxy: start `reasoning-proxy serve` once" in older.stderr


async def test_turns_in_postgresql_are_found(postgres_url):
    """The store that several proxies share is read in the same way, and stays as it is."""
    async with FakeBackend(answer("Two files.", reasoning="T"), style="kimi") as backend:
        settings = write(toml(backend.url, store=postgres_url))
        empty = await run()
        await remembered(settings)
        found = await shown(messages=[ASKED, SAID, AGAIN])
    assert (empty.exit_code, "there is no store yet" in empty.stderr) == (0, True)
    assert found["restored"] == [1]
    with opened(postgres_url) as store:
        assert len(store.entries()) == 1


def thought(tokens: int, **fields: Any) -> Entry:
    """A row of an answer that thought."""
    told: dict[str, Any] = {"backend": "local", "upstream_model": "m", "family": "kimi-k3", "effort_sent": "low"}
    counts = {"completion_tokens": 100, "reasoning_tokens": tokens}
    return Entry(ts="2026-11-30T00:00:00Z", **{**told, **counts, **fields})


async def test_what_earlier_answers_taught_is_shown():
    """Speeds, whether they count as slow, and the room that thoughts take, with the number of thoughts."""
    with opened() as store:
        for number in range(25):
            store.put_entry(thought(100 + number, decode_tokens_per_second=2.0, prefill_tokens_per_second=None))
    async with FakeBackend(style="kimi") as backend:
        write(toml(backend.url).replace("slow = false", "context_limit = 20000"))
        result, found = await run(), await shown()
    assert "  speed           2 tokens a second written: counts as slow\n" in result.stdout
    assert "  room            at effort low: 95 % of 25 took 123 tokens or fewer\n" in result.stdout
    assert "  context         20,000 tokens\n" in result.stdout
    assert (found["effort"], found["effort_reason"]) == ("low", "slow-backend")
    assert found["learned"] == {
        "decode_tokens_per_second": 2.0,
        "prefill_tokens_per_second": None,
        "slow": True,
        "context_limit": 20000,
        "thoughts": {"low": {"tokens": 123, "thoughts": 25}},
    }


# Who asks --------------------------------------------------------------------------------------------------------

CLIENTS = """
[clients.ui]
api_key = "key-of-ui"
[clients.agent]
api_key = "key-of-agent"
[[rules]]
name = "agents"
when = { client = "agent" }
set = { effort = "low" }
[[rules]]
name = "apps"
when = { header = { x-app = "ti*" } }
set = { effort = "high" }
"""


async def test_a_clients_own_turns_and_rules_count():
    """The turns of one client are not shown to another, by name or by key."""
    async with FakeBackend(answer("Two files.", reasoning="T"), style="kimi") as backend:
        await remembered(write(toml(backend.url, CLIENTS)), {"authorization": "Bearer key-of-agent"})
        history = [ASKED, SAID, AGAIN]
        named = await shown("--client", "agent", messages=history)
        keyed = await shown("--header", "Authorization: Bearer key-of-agent", messages=history)
        other = await shown("--client", "ui", messages=history)
    assert named == keyed
    assert (named["restored"], other["restored"]) == ([1], [])
    assert "rule:agents" in [each["rule"] for each in named["decisions"]]
    assert "rule:agents" not in [each["rule"] for each in other["decisions"]]


async def test_without_a_client_the_first_one_asks():
    """It is said which, and that there are others."""
    async with FakeBackend(style="kimi") as backend:
        write(toml(backend.url, CLIENTS, store="memory"))
        first = await run()
        write(toml(backend.url, '[clients.only]\napi_key = "k"', store="memory"))
        only = await run()
    assert first.stderr.splitlines()[0] == "asked as client ui, the first of 2: --client chooses another"
    assert only.stderr.splitlines()[0] == "asked as client only"


async def test_headers_count():
    """For rules, whatever the case of their names, and for the user whose turns are kept apart."""
    async with FakeBackend(answer("Two files.", reasoning="T"), style="kimi") as backend:
        settings = write(toml(backend.url, CLIENTS))
        await remembered(settings, {"authorization": "Bearer key-of-ui", "x-openwebui-user-id": "u1"})
        history = [ASKED, SAID, AGAIN]
        found = await shown("--header", "X-App: titles", "--header", "x-openwebui-user-id:u1", messages=history)
        other = await shown("--header", "x-openwebui-user-id: u2", messages=history)
    assert "rule:apps" in [each["rule"] for each in found["decisions"]]
    assert (found["restored"], other["restored"]) == ([1], [])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--client", "uj"), "there is no client 'uj'; known: ui, agent"),
        (("--client", "ui", "--header", "authorization: Bearer key-of-ui"), "one is enough"),
        (("--header", "nonsense"), "it looks like --header 'x-session-id: 42'"),
        (("--config", "absent.toml"), "absent.toml"),
    ],
)
async def test_wrong_options(arguments: tuple[str, ...], said: str):
    """Exit code 2, and a line on stderr that says what helps."""
    write(toml("http://127.0.0.1:9/v1", CLIENTS, store="memory"))
    result = await run(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr


async def test_a_client_where_none_is_configured():
    """The remedy is to leave it out."""
    write(toml("http://127.0.0.1:9/v1", store="memory"))
    result = await run("--client", "ui")
    assert result.exit_code == 2
    assert "leave --client out" in result.stderr


@pytest.mark.parametrize("name", ["absent.json", ".", "a\0b"])
def test_a_file_that_cannot_be_read(name: str):
    """Exit code 2, and what is expected."""
    write(toml("http://127.0.0.1:9/v1", store="memory"))
    result = CliRunner().invoke(cli.main, ["explain", name])
    assert result.exit_code == 2
    assert "cannot be read" in result.stderr
    assert "or - for stdin" in result.stderr


async def test_a_file_is_read():
    """As well as stdin."""
    async with FakeBackend(style="kimi") as backend:
        write(toml(backend.url, store="memory"))
        Path("request.json").write_text('{"model": "m", "messages": [{"role": "user", "content": "x"}]}', "utf-8")
        result = await asyncio.to_thread(CliRunner().invoke, cli.main, ["explain", "request.json"])
    assert result.exit_code == 0


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b'{"model": "m"}',
        b'{"model": "m", "max_tokens": "x", "messages": [{"role": "user", "content": "x"}]}',
        b'{"model": "m", "reasoning_effort": "turbo", "messages": [{"role": "user", "content": "x"}]}',
        b'{"model": "m", "messages": [{"role": "user", "content": "%b"}]}' % (b"word " * 3000),
    ],
)
async def test_what_the_proxy_would_refuse(body: bytes):
    """Exit code 1, and the words of the HTTP error."""
    async with FakeBackend(style="kimi") as backend:
        settings = write(toml(backend.url, store="memory").replace("slow = false", "context_limit = 1000"))
        result = await run(body=body)
        async with proxied(settings) as pipeline:
            reply, content = await sent(pipeline, body)
    assert (reply.status, result.exit_code, result.stdout) == (400, 1, "")
    assert f"error: {json.loads(content)['error']['message']}\n" in result.stderr


async def test_a_key_that_no_client_has():
    """Exit code 1, as the proxy would answer 401."""
    write(toml("http://127.0.0.1:9/v1", CLIENTS, store="memory"))
    result = await run("--header", "authorization: Bearer wrong")
    assert result.exit_code == 1
    assert "this key belongs to no configured client" in result.stderr


# Backends --------------------------------------------------------------------------------------------------------


async def test_a_backend_that_is_down_is_told():
    """It takes no time, and the plan is made of what the settings say."""
    started = time.monotonic()
    write(toml(f"http://127.0.0.1:{free_port()}/v1", engine="llama-server", store="memory"))
    result = await run(max_tokens=16)
    assert time.monotonic() - started < 2
    assert result.exit_code == 0
    assert "does not answer: its models, their window and template are assumed" in result.stderr
    assert "backend           local, engine llama-server\n" in result.stdout


async def test_a_backend_that_hangs_does_not_hold_up(monkeypatch):
    """After a few looks the plan is made without it."""
    monkeypatch.setattr("proxy.backend.PROBE_WAIT", 0.05)
    silent = document({}).after(asyncio.Event())
    async with FakeBackend(paths={"/v1/models": silent}) as backend:
        write(toml(backend.url, engine="auto", store="memory"))
        started = time.monotonic()
        result = await run()
    assert time.monotonic() - started < 2
    assert result.exit_code == 0
    assert "does not answer: that it is openai and its models, their window and template are assumed" in result.stderr


async def test_what_a_backend_tells_counts():
    """Engine and window are asked from it, as `serve` does."""
    async with FakeBackend(style="llama-server", model="m", context=4096) as backend:
        write(toml(backend.url, engine="auto", store="memory"))
        found = await shown(max_tokens=16)
        assert not backend.requests
    assert (found["engine"], found["learned"]["context_limit"]) == ("llama-server", 4096)
    assert found["body"]["thinking_budget_tokens"] == found["thinking_budget"]


# What is explained is what is sent, and the client's word holds ----------------------------------------------------

CAPS = ("n_predict", "max_completion_tokens", "max_tokens")
EFFORTS = frozenset({"reasoning_effort", "reasoning", "thinking", "enable_thinking", "think", "chat_template_kwargs"})
BUDGETS = ("thinking_budget_tokens", "reasoning_budget_tokens", "thinking_token_budget", "thinking_budget")
THOUGHTS = ("reasoning_content", "reasoning", "reasoning_details")

TOUCHES: Mapping[str, frozenset[str]] = {
    "route": frozenset({"model"}),
    "probe": frozenset(),
    "effort": EFFORTS,
    "side": frozenset(CAPS),
    "floor": frozenset(CAPS),
    "clamp": frozenset(CAPS),
    "thinking_budget": frozenset(BUDGETS),
    "stop": frozenset({"stop"}),
    "sampling": frozenset({"temperature", "top_p"}),
    "tool_choice": frozenset({"tool_choice"}),
    **dict.fromkeys(("developer_role", "restore", "restore_calls", "lift", "filler", "strip", "window"), frozenset()),
}
"""Decision → the fields of the body that it may touch, beside `messages`, which are compared by themselves."""
REMEMBERED = frozenset({"restore", "restore_calls", "lift", "filler", "strip", "window"})

WORDS = ("none", "minimal", "low", "medium", "high", "xhigh", "max", "turbo")
ENGINES = ("kimi", "llama-server", "vllm", "openai", "deepseek")
FAMILIES = ("kimi-k3", "kimi-k2", "deepseek-v4", "deepseek-r1", "qwen3", "glm", "gpt-oss", "generic", "plain")
TITLE = "### Task:\nGenerate a concise, 3-5 word title for the chat.\n### Output:\n<chat_history>\nhi\n</chat_history>"

tokens = st.one_of(st.integers(0, 40), st.integers(0, 9000), st.integers(0, 10**6))
words = st.sampled_from(WORDS)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def some(**each: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """A table with any of these keys."""
    return st.fixed_dictionaries({}, optional=each)


policies = some(
    default_effort=st.sampled_from(["auto", "off", "low", "medium", "high", "max"]),
    min_completion_tokens=tokens | st.dictionaries(st.sampled_from(["low", "high", "max"]), tokens, min_size=1),
    completion_tokens_mode=st.sampled_from(["floor", "visible"]),
    thinking_budget=st.sampled_from(["auto", "off"]) | tokens,
    answer_reserve_tokens=tokens,
    thinking_seconds=st.sampled_from([0, 600]),
    probe=some(max_tokens=st.integers(0, 20), messages=st.integers(0, 3)),
    side_max_tokens=tokens,
    side_patterns=st.sampled_from([[], ["^Name this"]]),
    sampling=st.sampled_from(["recommended", "client"]),
    stop=st.sampled_from(["visible", "backend"]),
    developer_role=st.sampled_from(["auto", "keep", "system"]),
    forced_tool_choice=st.sampled_from(["forward", "auto"]),
)
rules = st.fixed_dictionaries(
    {
        "when": some(
            model=st.sampled_from(["*", "m", "alias"]),
            kind=st.sampled_from(["chat", "side", "probe"]),
            tools=st.booleans(),
            text=st.sampled_from(["next", "Task"]),
            header=st.sampled_from([{"x-app": "titles"}, {"x-app": "other"}]),
            prompt_tokens_over=st.sampled_from([0, 50]),
        ),
        "set": some(
            model=st.sampled_from(["other", "alias"]),
            effort=st.sampled_from(["low", "high", "max", "none", "off"]),
            min_completion_tokens=tokens,
            thinking_budget=st.sampled_from(["auto", "off"]) | tokens,
            temperature=st.sampled_from([0.0, 0.5, 2.0]),
            top_p=st.sampled_from([0.1, 1.0]),
        ).filter(bool),
    }
)


@st.composite
def configurations(draw: st.DrawFn) -> dict[str, Any]:
    """Settings without store and URL: one backend of any engine and family."""
    backend = {
        "engine": draw(st.sampled_from(ENGINES)),
        "family": draw(st.sampled_from(FAMILIES)),
        "models": ["m", "other"],
        "slow": draw(st.sampled_from([True, False, "auto"])),
        "context_limit": draw(st.sampled_from([0, 0, 3000, 20_000])),
    }
    alias = {"upstream": "m", **draw(some(effort=st.sampled_from(["low", "high", "none"])))}
    history = draw(some(restore=st.sampled_from(["auto", "all", "never"]), filler=st.sampled_from(["off", "(gone)"])))
    tables = {"policy": draw(policies), "rules": draw(st.lists(rules, max_size=2)), "models": {"alias": alias}}
    return {"backends": {"local": backend}, "history": history, **tables}


def spelled(word: str) -> st.SearchStrategy[dict[str, Any]]:
    """An effort in one of its spellings."""
    off = [{"thinking": {"type": "disabled"}}, {"enable_thinking": False}, {"think": False}]
    off += [{"chat_template_kwargs": {"enable_thinking": False, "own": 1}}, {"reasoning": {"enabled": False}}]
    said: list[dict[str, Any]] = [
        {"reasoning_effort": word},
        {"reasoning": {"effort": word, "own": [1]}},
        {"thinking": {"type": "enabled", "effort": word, "own": {"a": None}}},
        {"think": word},
        {"chat_template_kwargs": {"thinking_effort": word, "own": 1.5}},
        {"chat_template_kwargs": {"reasoning_effort": word}},
    ]
    return st.sampled_from(said + (off if word == "none" else []))


thinking = st.one_of(
    st.just({}),
    words.flatmap(spelled),
    st.tuples(words.flatmap(spelled), words.flatmap(spelled)).map(lambda both: {**both[0], **both[1]}),
    st.sampled_from([{"thinking": {"type": "enabled", "keep": "all"}}, {"enable_thinking": True}, {"think": True}]),
    st.builds(lambda name, count: {name: count}, st.sampled_from(BUDGETS), tokens),
)
openings = st.lists(
    st.builds(lambda role: {"role": role, "content": f"Be {role}."}, st.sampled_from(["system", "developer"])),
    max_size=2,
)
histories = st.sampled_from(
    [
        [],
        [ASKED, SAID],
        [ASKED, {**SAID, "reasoning": "My own."}],
        [ASKED, {"role": "assistant", "content": "<think>Mine.</think>Two files."}],
        [{"role": "user", "content": "x" * 4000}, {"role": "assistant", "content": None, "refusal": None}],
    ]
)
lasts = st.sampled_from(["What next?", TITLE, "Name this chat"]).map(lambda text: {"role": "user", "content": text})
TOOL = {"type": "function", "function": {"name": "ls", "parameters": {"type": "object", "own": [1.0]}}}
plain_fields = some(
    tools=st.sampled_from([[], [TOOL]]),
    tool_choice=st.sampled_from(["auto", "required", {"type": "function", "function": {"name": "ls"}}]),
    stop=st.sampled_from([None, "", "END", ["END", "\n\nUser:"], ["a"] * 6, [1], "x" * 50]),
    include_stop_str_in_output=st.booleans(),
    temperature=st.none() | st.floats(0, 2),
    top_p=st.none() | st.floats(0.1, 1),
    stream=st.booleans(),
    stream_options=st.sampled_from([None, {"include_usage": True}, {"include_usage": False, "own": 1}, {"own": [2]}]),
    n=st.integers(1, 3),
    metadata=values,
    response_format=values,
    logit_bias=values,
    **dict.fromkeys(CAPS, st.none() | st.just(-1) | tokens),
)


@st.composite
def requests(draw: st.DrawFn) -> dict[str, Any]:
    """A body as some front end might send it, its fields in any order."""
    messages = draw(openings) + draw(histories) + [draw(lasts)]
    fields = {"model": draw(st.sampled_from(["m", "m", "alias"])), "messages": messages}
    own = draw(st.dictionaries(st.text("abc", min_size=1).map("x_{}".format), values, max_size=2))
    body = {**fields, **draw(plain_fields), **draw(thinking), **own}
    return {name: body[name] for name in draw(st.permutations(list(body)))}


async def compared(tables: Mapping[str, Any], body: bytes) -> tuple[explain.Explained, bytes] | None:
    """What is explained and what is sent of one request, once both agree; None where both refuse it."""
    headers = {"x-app": "titles", "authorization": "Bearer k"}
    engine = tables["backends"]["local"]["engine"]
    folder = tempfile.mkdtemp()
    try:
        async with FakeBackend(answer("Two files.", reasoning="T"), style=engine, model="m", context=30_000) as backend:
            overrides = {**tables, "store": {"url": f"sqlite:///{folder}/proxy.db"}}
            overrides["backends"] = {"local": {**tables["backends"]["local"], "url": backend.url}}
            settings = config.load(overrides=overrides, environ={}, read_file=False)
            await remembered(settings, headers)
            earlier = len(backend.requests)
            try:
                made = await explain.run(settings, body, headers, say=lambda _: None)
            except ProxyError as error:
                refused, made = error, None
            async with proxied(settings) as pipeline:
                reply, content = await sent(pipeline, body, headers)
                row = (await asyncio.to_thread(pipeline.store.entries))[-1]
            if made is None:
                assert len(backend.requests) == earlier
                assert (reply.status, json.loads(content)["error"]["message"]) == (refused.status, refused.message)
                return None
            assert reply.status == 200
            _agree(made, reply, row)
            assert backend.requests[earlier].raw == made.body
            assert len(backend.requests) == earlier + 1
            return made, backend.requests[-1].raw
    finally:
        shutil.rmtree(folder)


def _agree(made: explain.Explained, reply: Reply, row: Mapping[str, Any]) -> None:
    """Headers and ledger row tell what is explained."""
    told = json.loads(explain.document(made))
    assert {name: value for name, value in reply.headers if name in told["headers"]} == told["headers"]
    assert row["decisions"] == list(dict.fromkeys(each["rule"] for each in told["decisions"]))
    assert (row["kind"], row["upstream_model"], row["family"]) == (told["kind"], told["upstream_model"], told["family"])
    assert (row["effort_sent"], row["effort_reason"]) == (told["effort"], told["effort_reason"])
    assert (row["max_tokens_asked"], row["max_tokens_sent"]) == (told["max_tokens_asked"], told["max_tokens"])
    assert (row["thinking_budget_sent"], row["turns_restored"]) == (
        told["thinking_budget"],
        told["history"]["restored"],
    )
    lines = explain.text(made).splitlines()
    assert all(any(line.startswith(f"  {each['rule']} ") for line in lines) for each in told["decisions"])


@hypothesis_settings(max_examples=60, deadline=None)
@given(configurations(), requests())
def test_what_is_explained_is_sent_and_the_clients_word_holds(tables, request):
    """The decisions, headers and bytes of `explain` are those of the same request when it is sent.

    No cap is lowered; no effort, budget or sampling of the client's is replaced; no field is touched that no decision
    speaks of.
    """
    body = json.dumps(request).encode()
    found = asyncio.run(compared(tables, body))
    if found is None:
        return
    made, raw = found
    upstream = json.loads(raw)
    _caps_hold(made, request, upstream)
    _efforts_hold(made, raw)
    _budgets_hold(request, upstream)
    _sampling_holds(made, request, upstream)
    _fields_hold(made, body, raw)
    _messages_hold(made, request["messages"], upstream["messages"])


def _caps_hold(made: explain.Explained, request: Mapping[str, Any], upstream: Mapping[str, Any]) -> None:
    """At most one, and none below what the client means: an engine obeys the first of several, and -1 is no limit."""
    asked = next((request[name] for name in CAPS if request.get(name) is not None), None)
    sent_caps = [upstream[name] for name in CAPS if upstream.get(name) is not None]
    if asked == -1:
        assert sent_caps in ([], [-1])
    elif asked is not None:
        assert len(sent_caps) == 1
        assert sent_caps[0] >= asked


def _efforts_hold(made: explain.Explained, raw: bytes) -> None:
    """The client's word, fitted to the family; and the backend is told one word, the one that is decided."""
    plan, family = made.plan, made.plan.facts.family
    ask = plan.request.effort
    if ask is not None and ask.word != "none":
        assert plan.effort in (ask.word, family.fitted(ask.word))
    elif ask is not None:
        nearest = {"none"} if not plan.facts.thinks_always or not family.thinks else {*family.efforts[:1], None}
        assert plan.effort in nearest
    if plan.request.contradicted and DIALECTS[plan.facts.engine].effort_places is None:
        return  # nobody knows which of the words counts there, so all are left
    fields = table(raw)
    if not plan.facts.takes_options or (ask is not None and ask.where.startswith("chat_template_kwargs")):
        fields.pop("chat_template_kwargs", None)  # a client's own stay there, whoever reads them
    again = normalise.read(splice(fields))
    if again.effort is not None and plan.effort is not None:
        assert again.effort.word == plan.effort
        assert not again.contradicted or DIALECTS[plan.facts.engine].effort_places is None


def _budgets_hold(request: Mapping[str, Any], upstream: Mapping[str, Any]) -> None:
    """One that the client says is the only one."""
    asked = {request[name] for name in BUDGETS if name in request}
    if asked:
        assert {upstream[name] for name in BUDGETS if name in upstream} == asked


def _sampling_holds(made: explain.Explained, request: Mapping[str, Any], upstream: Mapping[str, Any]) -> None:
    """Where the client says either value, both stay, but for those that the family's own service refuses."""
    own = {name for name in ("temperature", "top_p") if request.get(name) is not None}
    fixed = made.plan.facts.is_service and made.plan.facts.family.sampling_fixed
    for name in ("temperature", "top_p") if own else ():
        assert upstream.get(name) == request.get(name) or (fixed and name not in upstream)


def _fields_hold(made: explain.Explained, body: bytes, raw: bytes) -> None:
    """Every field is there as the bytes that came, but for those that a decision is about."""
    plan, came, gone = made.plan, table(body), table(raw)
    touched = {"messages"}
    for decision in plan.decisions:
        touched |= frozenset() if decision.rule.startswith("rule:") else TOUCHES[decision.rule]
    if plan.request.effort or plan.request.switched_on or plan.request.keeps_all:
        touched |= EFFORTS  # in the words that engine and family know
    touched |= {name for name in CAPS if name in came}  # one of them, under the name that the engine knows
    touched |= set(CAPS) if plan.max_tokens is not None else set()
    if plan.streamed:
        touched |= {"stream", "stream_options"}
    touched |= {"timings_per_token"} if plan.cuts else set()
    touched |= {"reasoning_control"} if plan.controlled else set()
    touched |= {"return_progress"} if plan.progress else set()
    assert {name for name in came if name not in touched and gone.get(name) != came[name]} == set()
    assert gone.keys() - came.keys() <= touched
    before, after = json.loads(body), json.loads(raw)
    for name in (*EFFORTS, "stream_options"):
        inner = before.get(name)
        for key in ("own", "keep") if isinstance(inner, dict) else ():
            if key in inner:
                assert after[name][key] == inner[key]


def _messages_hold(made: explain.Explained, came: list[dict[str, Any]], gone: list[dict[str, Any]]) -> None:
    """Only roles, heads that are joined, and assistant turns change, each by a decision of its own."""
    decided = {decision.rule for decision in made.plan.decisions}
    if "developer_role" in decided:
        assert all(message["role"] != "developer" for message in gone)
        joined = "\n\n".join(each["content"] for each in came if each["role"] in ("system", "developer"))
        heads = [message for message in gone if message["role"] == "system"]
        assert "\n\n".join(each["content"] for each in heads) == joined
        came = [message for message in came if message["role"] not in ("system", "developer")]
        gone = [message for message in gone if message["role"] != "system"]
    for before, after in itertools.zip_longest(came, gone):
        if before["role"] != "assistant":
            assert after == before
        elif not REMEMBERED & decided:
            assert _spoken(after) == _spoken(before)


def _spoken(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message without its thought, whose name is the engine's; no content is none in either spelling."""
    said = {name: value for name, value in message.items() if name not in THOUGHTS}
    return {**said, "content": said.get("content") or ""}
