"""A silent stream is kept alive, by the proxy's own clock and in the manner of the settings, and nothing else changes.

Scripted backends and proxies are started once and kept for the tests of a file: `faked`, `served`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import httpx
import openai
import pytest
import pytest_asyncio
from running import Running, events, serving, settings

from proxy import AsyncTransport, config
from proxy.line import Line
from proxy.testing import FakeBackend, Reply, Rules, ToolCall, answer, document, error, raw, wire
from proxy.testing import events as script

pytestmark = pytest.mark.asyncio(loop_scope="module")

Fields = dict[str, Any]

USER = {"role": "user", "content": "hi"}
TEXT, THOUGHT = "So it is.", "one two three"
SOON = {"keepalive_seconds": 0.05}
CHUNKS = {"keepalive": "chunk", **SOON}
BLANKS = {"nonstream_keepalive_seconds": 0.05}
NEVER = [{"keepalive": "off", **SOON}, {"keepalive_seconds": 0}]
LOCAL = {"engine": "kimi", "family": "kimi-k3", "models": ["m"], "slow": False}
BUSY = {"message": "slow down", "type": "rate_limit_reached_error"}


# What is started once ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Served(Running):
    """A proxy that was there before; `earlier` rows are of other tests."""

    earlier: int = 0

    async def rows(self, count: int = 1) -> list[dict[str, Any]]:
        """Those of this test."""
        return (await super().rows(self.earlier + count))[self.earlier :]

    def line(self, name: str = "local") -> Line:
        """Who waits for a backend."""
        return self.pipeline.backends.by_name[name].line


class Kept:
    """What runs already, by what it was made from."""

    backends: dict[tuple[str, str], FakeBackend]
    proxies: dict[str, Running]
    started: list[contextlib.AbstractAsyncContextManager[Any]]


@pytest_asyncio.fixture(loop_scope="module", scope="module", autouse=True)
async def _kept() -> AsyncIterator[None]:
    """For the tests of one file."""
    Kept.backends, Kept.proxies, Kept.started = {}, {}, []
    yield
    await asyncio.gather(*(each.__aexit__(None, None, None) for each in Kept.started))


async def started(context: contextlib.AbstractAsyncContextManager[Any]) -> Any:
    """It ends with the others."""
    Kept.started.append(context)
    return await context.__aenter__()


@contextlib.asynccontextmanager
async def faked(
    *replies: Reply, rules: Rules | None = None, style: str = "openai", name: str = "local"
) -> AsyncIterator[FakeBackend]:
    """A scripted backend with these replies, to which nobody has said anything yet."""
    if (style, name) not in Kept.backends:
        Kept.backends[style, name] = await started(FakeBackend(answer("?"), style=style))
    backend = Kept.backends[style, name]
    backend.replies, backend.rules = replies, rules or (lambda request: replies[min(request.number, len(replies) - 1)])
    backend.requests.clear()
    backend.others.clear()
    backend._arrivals = asyncio.Queue()
    yield backend
    assert not backend._failures


@contextlib.asynccontextmanager
async def served(backend: FakeBackend, **tables: Any) -> AsyncIterator[Served]:
    """The proxy with these settings in front of it. Every place at `local` is given back when a test is over."""
    key = json.dumps([backend.url, tables], sort_keys=True)
    if key not in Kept.proxies:
        Kept.proxies[key] = await started(serving(settings(backend.url, **tables)))
    running = Kept.proxies[key]
    earlier = len(list(await asyncio.to_thread(running.pipeline.store.entries)))
    proxy = Served(running.url, running.pipeline, running.http, earlier)
    yield proxy
    await until(lambda: not (proxy.line().running or proxy.line().waiting))


async def until(holds: Callable[[], bool], within: float = 5.0) -> None:
    """Wait until something holds."""
    async with asyncio.timeout(within):
        while not holds():  # noqa: ASYNC110 - what is waited for sets no event
            await asyncio.sleep(0.005)


class Reading:
    """A streamed answer of the proxy that is being read."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self.text = ""
        self._pieces = response.aiter_text()

    async def until(self, words: str, times: int = 1) -> None:
        """Read on until these words have come so often."""
        async with asyncio.timeout(10):
            while self.text.count(words) < times:
                self.text += await anext(self._pieces)

    async def rest(self) -> str:
        """All of it."""
        async for piece in self._pieces:
            self.text += piece
        return self.text


@contextlib.asynccontextmanager
async def asking(proxy: Running, headers: dict[str, str] | None = None, **fields: Any) -> AsyncIterator[Reading]:
    """A streamed request, as soon as the stream is open."""
    body = {"model": "m", "messages": [USER], "stream": True, **fields}
    async with proxy.http.stream("POST", f"{proxy.url}/chat/completions", json=body, headers=headers) as response:
        yield Reading(response)


def blocks(text: str) -> list[str]:
    """What an event stream consists of: each an event or a comment, and complete."""
    *found, end = text.split("\n\n")
    assert end == ""
    assert all(block.startswith((": ", "data: ")) for block in found)
    return found


def comments(text: str) -> list[str]:
    """The words of a stream's comments."""
    return [block.removeprefix(": ") for block in blocks(text) if block.startswith(":")]


def chunks(text: str) -> list[Any]:
    """A complete stream's events."""
    *found, done = events(text)
    assert done == "[DONE]"
    return [json.loads(each) for each in found]


def said(text: str) -> tuple[str, str, list[str], int]:
    """The thought, the text, the finishes of a complete stream, and how often it names the role."""
    deltas = [choice for chunk in chunks(text) for choice in chunk["choices"]]
    return (
        "".join(choice["delta"].get("reasoning_content") or "" for choice in deltas),
        "".join(choice["delta"].get("content") or "" for choice in deltas),
        [choice["finish_reason"] for choice in deltas if choice["finish_reason"]],
        sum("role" in choice["delta"] for choice in deltas),
    )


GOOD = (THOUGHT, TEXT, ["stop"], 1)


def is_silent(chunk: Fields) -> bool:
    """Whether an event says nothing at all."""
    return bool(chunk["choices"] == [{"index": 0, "delta": {}, "finish_reason": None}])


# Comments ------------------------------------------------------------------------------------------------------------


async def test_comments_every_15_seconds_are_the_default_and_blanks_are_off():
    """What holds where the file says nothing."""
    server = config.load(overrides={"backends": {"b": {"url": "http://127.0.0.1:1/v1"}}}, environ={}).server
    assert (server.keepalive, server.keepalive_seconds, server.nonstream_keepalive_seconds) == ("comment", 15, 0)


async def test_a_backend_that_says_nothing_yet_opens_the_stream_with_a_comment():
    """Again and again; then the answer follows as ever, asked for once."""
    go = asyncio.Event()
    async with faked(answer(TEXT, reasoning=THOUGHT).after(go)) as backend:
        async with served(backend, server=SOON) as proxy, asking(proxy) as reading:
            await reading.until(": keep-alive\n\n", 3)
            go.set()
            text = await reading.rest()
            (row,) = await proxy.rows()
    head = reading.response.headers
    assert (reading.response.status_code, head["content-type"]) == (200, "text/event-stream")
    assert head["cache-control"] == "no-cache"
    assert head["x-accel-buffering"] == "no"
    assert head["x-proxy-backend"] == "local"
    assert "content-length" not in head
    assert set(comments(text)) == {"keep-alive"}
    assert said(text) == GOOD
    assert (row["outcome"], row["status"], row["attempts"], len(backend.requests)) == ("ok", 200, 1, 1)


@pytest.mark.parametrize("after", [1, 2, 5])
async def test_silence_in_the_middle_of_an_answer_is_broken(after):
    """After the role, in the thought and in the text."""
    go = asyncio.Event()
    async with faked(answer(TEXT, reasoning=THOUGHT).hold(go, after=after)) as backend:
        async with served(backend, server=SOON) as proxy, asking(proxy) as reading:
            await reading.until(": keep-alive\n\n", 2)
            assert len(events(reading.text)) == after
            go.set()
            assert said(await reading.rest()) == GOOD


async def test_silence_between_the_finish_and_the_end_is_broken():
    """The usage may take its time."""
    go = asyncio.Event()
    reply = answer(TEXT, reasoning=THOUGHT).hold(go, after=8)
    async with faked(reply) as backend:
        async with served(backend, server=SOON) as proxy, asking(proxy) as reading:
            await reading.until('"finish_reason":"stop"')
            await reading.until(": keep-alive\n\n", 2)
            go.set()
            assert said(await reading.rest()) == GOOD
            assert (await proxy.rows())[0]["outcome"] == "ok"


async def test_comments_of_the_backend_are_neither_output_nor_passed_on():
    """Silence is broken by the proxy's own, however many come."""
    go = asyncio.Event()

    async def pinged(proxy: Running) -> str:
        async with asking(proxy) as reading:
            await reading.until(": keep-alive\n\n", 3)
            go.set()
            return await reading.rest()

    first = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    begun = {
        **first,
        "choices": [{"index": 0, "delta": {"role": "assistant", "content": "So "}, "finish_reason": None}],
    }
    ends = {**first, "choices": [{"index": 0, "delta": {"content": "it is."}, "finish_reason": "stop"}]}
    pings = [step for _ in range(20) for step in (b": ping\n\n", 0.01)]
    async with faked(script(*pings, begun, *pings, go, b": ping\n\n", ends, "[DONE]")) as backend:
        async with served(backend, server=SOON) as proxy:
            text = await pinged(proxy)
    before, _, between = text.partition("data: ")
    assert ": keep-alive" in before
    assert ": keep-alive" in between
    assert set(comments(text)) == {"keep-alive"}
    assert said(text)[1:] == (TEXT, ["stop"], 1)


async def test_a_thought_that_the_client_is_not_shown_is_silence():
    """The engine writes all the time, the client gets none of it, and its connection lives."""
    reply = answer(TEXT, reasoning="word " * 20, gap=0.02)
    async with faked(reply) as backend:
        async with served(backend, server=SOON, defaults={"client_reasoning": "hidden"}) as proxy:
            text = (await proxy.chat(USER, stream=True)).text
    assert said(text)[:2] == ("", TEXT)
    assert comments(text).count("keep-alive") >= 3


async def test_while_the_engine_writes_nothing_is_added():
    """No comment in an answer of a second whose words come every 0.02 s."""
    async with faked(answer("word " * 50, gap=0.02)) as backend:
        async with served(backend, server={"keepalive_seconds": 0.7}) as proxy:
            text = (await proxy.chat(USER, stream=True)).text
            assert (await proxy.rows())[0]["duration_ms"] > 900
    assert comments(text) == []


async def test_no_event_is_torn_reordered_or_lost_by_comments_that_come_between():
    """Keep-alives as often as events: without them the stream is the one without them."""
    reply = answer("word " * 40, reasoning="so " * 40, split=3, gap=0.004)
    async with faked(reply) as backend:
        async with served(backend, server={"keepalive_seconds": 0.003}) as proxy:
            kept = (await proxy.chat(USER, stream=True)).text
        async with served(backend, server=NEVER[0]) as proxy:
            plain = (await proxy.chat(USER, stream=True)).text.replace("chatcmpl-1", "chatcmpl-0")
    assert "keep-alive" in comments(kept)
    assert [block for block in blocks(kept) if block.startswith("data: ")] == blocks(plain)


async def test_nothing_follows_the_end_though_a_sign_of_life_was_due_with_it():
    """A clock of a thousandth of a second, and a hundred answers that end when it strikes."""
    async with faked(answer("So.", reasoning="one two", gap=0.001)) as backend:
        async with served(backend, server={"keepalive_seconds": 0.001}) as proxy:
            found = await asyncio.gather(*(proxy.chat(USER, stream=True) for _ in range(100)))
    assert {response.text.endswith("data: [DONE]\n\n") for response in found} == {True}
    assert {response.text.count("[DONE]") for response in found} == {1}


async def test_a_client_that_leaves_a_stream_that_only_a_comment_opened_ends_the_work():
    """The backend is left though it has not answered, and the row says so."""
    async with faked(answer(TEXT).after(asyncio.Event())) as backend:
        async with served(backend, server=SOON) as proxy:
            async with asking(proxy) as reading:
                await reading.until(": keep-alive\n\n")
            assert await backend.requests[0].hung_up()
            (row,) = await proxy.rows()
    assert (row["outcome"], row["attempts"]) == ("client_disconnected", 1)


# Chunks and nothing --------------------------------------------------------------------------------------------------


async def test_a_chunk_without_a_word_has_the_answers_own_id_once_it_is_known():
    """Before that one of the proxy's; no comment at all, and no finish but the answer's own."""
    first, then = asyncio.Event(), asyncio.Event()
    reply = answer(TEXT, reasoning=THOUGHT).after(first).hold(then, after=3)
    async with faked(reply) as backend:
        async with served(backend, server=CHUNKS) as proxy, asking(proxy) as reading:
            await reading.until('"delta":{}', 2)
            first.set()
            await reading.until("two")
            heard = reading.text.count('"delta":{}')
            await reading.until('"delta":{}', heard + 2)
            then.set()
            text = await reading.rest()
    assert comments(text) == []
    assert said(text) == GOOD
    silent = [chunk for chunk in chunks(text) if is_silent(chunk)]
    assert all(chunk.keys() == {"id", "object", "created", "model", "choices"} for chunk in silent)
    assert {(chunk["object"], chunk["model"]) for chunk in silent} == {("chat.completion.chunk", "m")}
    assert all(isinstance(chunk["created"], int) for chunk in silent)
    request_id = reading.response.headers["x-request-id"]
    assert [chunk["id"] for chunk in silent[:2]] == [f"chatcmpl-{request_id}"] * 2
    assert [chunk["id"] for chunk in silent[-2:]] == ["chatcmpl-0"] * 2


@pytest.mark.parametrize("server", [CHUNKS, SOON], ids=["chunk", "comment"])
async def test_the_sdks_accumulator_reads_a_stream_that_was_kept_alive(server):
    """Thought, text and calls, with silence before and between all of them, also between a call's fragments."""
    calls = [ToolCall("ls", '{"path": "/"}', "a"), ToolCall("cat", '{"file": "b"}', "b")]
    reply = answer("Two files.", reasoning="I look.", calls=calls, gap=0.07).after(0.12)
    tools: list[Any] = [
        {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in ("ls", "cat")
    ]
    pieces, finishes = "", []
    async with faked(reply) as backend:
        async with served(backend, server=server) as proxy:
            async with openai.AsyncOpenAI(base_url=proxy.url, api_key="unused", max_retries=0) as sdk:
                asked = sdk.chat.completions.stream(
                    model="m", messages=[USER], tools=tools, stream_options={"include_usage": True}
                )
                async with asked as stream:
                    async for event in stream:
                        if event.type == "content.delta":
                            pieces += event.delta
                        if event.type == "tool_calls.function.arguments.done":
                            finishes.append((event.name, event.arguments))
                    final = await stream.get_final_completion()
            (row,) = await proxy.rows()
    (choice,) = final.choices
    assert (pieces, choice.message.content, choice.finish_reason) == ("Two files.", "Two files.", "tool_calls")
    assert choice.message.model_dump()["reasoning_content"] == "I look."
    assert [(call.id, call.function.name, call.function.arguments) for call in choice.message.tool_calls or []] == [
        (call.id, call.name, call.arguments) for call in calls
    ]
    assert finishes == [(call.name, call.arguments) for call in calls]
    assert choice.message.role == "assistant"
    assert (row["outcome"], len(backend.requests)) == ("ok", 1)


async def test_the_sdks_accumulator_reads_chunks_that_follow_the_finish():
    """The usage comes late; the finish stays, and the text is told to be done once."""
    go, done = asyncio.Event(), []
    async with faked(answer(TEXT).hold(go, after=5)) as backend:
        async with served(backend, server=CHUNKS) as proxy:
            async with openai.AsyncOpenAI(base_url=proxy.url, api_key="unused", max_retries=0) as sdk:
                usage: Any = {"include_usage": True}
                asked = sdk.chat.completions.stream(model="m", messages=[USER], stream_options=usage)
                late = 0
                async with asked as stream:
                    async for event in stream:
                        if event.type == "content.done":
                            done.append(event.content)
                        if event.type == "chunk" and done and event.chunk.choices:
                            late += 1
                            if late == 3:
                                go.set()
                    final = await stream.get_final_completion()
    assert (done, final.choices[0].finish_reason, final.choices[0].message.content) == ([TEXT], "stop", TEXT)
    assert final.usage is not None


async def test_the_sdks_accumulator_keeps_the_usage_where_the_end_comes_late():
    """Its latest chunk says what was spent, and nothing at all where that one has no usage."""
    go = asyncio.Event()
    async with faked(answer(TEXT).hold(go, after=6)) as backend:
        async with served(backend, server=CHUNKS) as proxy:
            async with openai.AsyncOpenAI(base_url=proxy.url, api_key="unused", max_retries=0) as sdk:
                asyncio.get_running_loop().call_later(0.2, go.set)
                usage: Any = {"include_usage": True}
                asked = sdk.chat.completions.stream(model="m", messages=[USER], stream_options=usage)
                async with asked as stream:
                    final = await stream.get_final_completion()
    assert final.choices[0].message.content == TEXT
    assert final.usage is not None


@pytest.mark.parametrize("server", NEVER, ids=["off", "never"])
async def test_where_keep_alives_are_off_nothing_is_added_and_a_late_error_keeps_its_status(server):
    """`off`, and an interval of 0: only the backend opens the stream."""
    async with faked(answer(TEXT, reasoning=THOUGHT).after(0.2), error(429, {"error": BUSY}).after(0.2)) as one:
        async with served(one, server=server) as proxy:
            kept = (await proxy.chat(USER, stream=True)).text
            late = await proxy.chat(USER, stream=True)
    assert comments(kept) == []
    assert not any(map(is_silent, chunks(kept)))
    assert said(kept) == GOOD
    assert (late.status_code, late.json()["error"]["message"]) == (429, "slow down")


# Errors --------------------------------------------------------------------------------------------------------------

FAULTS: list[tuple[Reply, int]] = [
    (error(400, {"error": {"message": "no", "type": "invalid_request_error"}}), 400),
    (error(429, {"error": BUSY}), 429),
    (error(500, {"error": {"message": "broke", "type": "server_error"}}), 500),
    (wire(), 502),
    (raw(b"<html>", headers={"content-type": "text/html"}), 502),
    (document({"error": {"message": "poor", "code": 402}}), 402),
]


@pytest.mark.parametrize("server", [{}, CHUNKS], ids=["comment", "chunk"])
async def test_an_error_before_the_first_keep_alive_keeps_its_status(server):
    """An answer in JSON, not a stream; whole answers too."""
    kept = {**server, "keepalive_seconds": 5, "nonstream_keepalive_seconds": 5}
    async with faked(*(fault for fault, _ in FAULTS for _ in range(2))) as backend:
        async with served(backend, server=kept) as proxy:
            for _, status in FAULTS:
                for stream in (True, False):
                    response = await proxy.chat(USER, stream=stream)
                    assert (response.status_code, response.headers["content-type"]) == (status, "application/json")
                    assert response.json()["error"]["message"]
    assert len(backend.requests) == 2 * len(FAULTS)


@pytest.mark.parametrize("server", [SOON, CHUNKS], ids=["comment", "chunk"])
async def test_an_error_after_the_first_keep_alive_comes_in_the_stream(server):
    """Its words, then `[DONE]`; no finish is invented, and the row has the status that it means."""
    async with faked(*(fault.after(0.12) for fault, _ in FAULTS)) as backend:
        async with served(backend, server=server) as proxy:
            for count, (_, status) in enumerate(FAULTS, 1):
                response = await proxy.chat(USER, stream=True)
                *silent, told, done = events(response.text)
                assert (response.status_code, done) == (200, "[DONE]")
                assert all(is_silent(json.loads(each)) for each in silent)
                assert bool(silent) == (server == CHUNKS)
                assert bool(comments(response.text)) == (server == SOON)
                row = (await proxy.rows(count))[-1]
                assert json.loads(told).keys() == {"error"}
                assert json.loads(told)["error"].keys() == {"message", "type", "param", "code"}
                assert json.loads(told)["error"]["message"] == row["error"]
                assert (row["outcome"], row["status"], row["attempts"]) == ("upstream_error", status, 1)
    assert len(backend.requests) == len(FAULTS)


@pytest.mark.parametrize("server", [SOON, CHUNKS], ids=["comment", "chunk"])
async def test_a_reset_after_a_silence_in_the_middle_is_told_in_the_stream(server):
    """What came is delivered, and no finish is invented."""
    go = asyncio.Event()
    reply = answer(TEXT, reasoning=THOUGHT).hold(go, after=3).first(3).then_abort()
    async with faked(reply) as backend:
        async with served(backend, server=server) as proxy, asking(proxy) as reading:
            await reading.until("two")
            await asyncio.sleep(0.15)
            go.set()
            text = await reading.rest()
            (row,) = await proxy.rows()
    *told, failure = chunks(text)
    assert failure["error"]["code"] == "upstream_error"
    finishes = [choice.get("finish_reason") for chunk in told for choice in chunk["choices"]]
    assert set(finishes) == {None}
    assert bool(comments(text)) == (server == SOON)
    assert (row["outcome"], row["attempts"]) == ("upstream_error", 1)


# Whole answers -------------------------------------------------------------------------------------------------------


async def test_by_default_nothing_of_a_whole_answer_is_sent_early():
    """Not a header, so that a late error keeps its status; its length is told."""
    go = asyncio.Event()
    late = error(429, {"error": BUSY})
    async with faked(answer(TEXT).after(go), late.after(0.2)) as backend:
        async with served(backend, server=SOON) as proxy:
            host, port = proxy.url.removeprefix("http://").removesuffix("/v1").split(":")
            body = json.dumps({"model": "m", "messages": [USER]})
            reader, writer = await asyncio.open_connection(host, int(port))
            head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {host}\r\ncontent-length: {len(body)}\r\n\r\n"
            writer.write((head + body).encode())
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(reader.read(1), 0.3)
            go.set()
            got = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
            length = int(got.decode().lower().partition("content-length: ")[2].split()[0])
            assert json.loads(await reader.readexactly(length))["choices"][0]["message"]["content"] == TEXT
            writer.close()
            response = await proxy.chat(USER)
    assert (response.status_code, response.json()["error"]["message"]) == (429, "slow down")


@pytest.mark.parametrize("style", ["openai", "llama-server"])
async def test_a_whole_answer_is_kept_alive_by_blanks_before_it(style):
    """Where that is wanted; also where the engine streams it. JSON all the same, and good for the SDK."""
    engine = "kimi" if style == "openai" else style
    async with faked(answer(TEXT, reasoning=THOUGHT).after(0.2), style=style) as backend:
        async with served(backend, engine=engine, server=BLANKS) as proxy:
            response = await proxy.chat(USER)
            async with openai.AsyncOpenAI(base_url=proxy.url, api_key="unused", max_retries=0) as sdk:
                heard = await sdk.chat.completions.create(model="m", messages=[USER])
            rows = await proxy.rows(2)
    blanks = len(response.text) - len(response.text.lstrip(" "))
    assert (response.status_code, response.headers["content-type"]) == (200, "application/json")
    assert blanks >= 2
    assert "content-length" not in response.headers
    assert response.json()["choices"][0]["message"]["content"] == heard.choices[0].message.content == TEXT
    assert [(row["outcome"], row["stream"]) for row in rows] == [("ok", False)] * 2


async def test_a_whole_answer_that_comes_before_the_first_blank_has_none():
    """And all of its headers."""
    async with faked(answer(TEXT)) as backend:
        async with served(backend, server={"nonstream_keepalive_seconds": 5}) as proxy:
            response = await proxy.chat(USER)
    assert response.content.startswith(b"{")
    assert int(response.headers["content-length"]) == len(response.content)
    assert response.headers["x-proxy-outcome"] == "ok"


async def test_an_error_behind_blanks_is_the_error_in_json():
    """The status is 200 by then; the row has the true one."""
    async with faked(*(fault.after(0.12) for fault, _ in FAULTS)) as backend:
        async with served(backend, server=BLANKS) as proxy:
            for count, (_, status) in enumerate(FAULTS, 1):
                response = await proxy.chat(USER)
                row = (await proxy.rows(count))[-1]
                assert (response.status_code, response.text[0], row["status"]) == (200, " ", status)
                assert response.json().keys() == {"error"}
                assert response.json()["error"]["message"] == row["error"]


async def test_a_stream_has_no_blanks_and_a_whole_answer_no_comments():
    """Each has its own clock."""
    both = {**SOON, "nonstream_keepalive_seconds": 5}
    async with faked(answer(TEXT).after(0.15)) as backend:
        async with served(backend, server=both) as proxy:
            assert (await proxy.chat(USER)).content.startswith(b"{")
        async with served(backend, server={**BLANKS, "keepalive": "off"}) as proxy:
            assert blocks((await proxy.chat(USER, stream=True)).text)[0].startswith("data: {")


# How far the prompt is read ------------------------------------------------------------------------------------------

WANTS = {"x-proxy-progress": "1"}
HEAD: Fields = {"id": "chatcmpl-0", "object": "chat.completion.chunk", "created": 1, "model": "m"}


def chunk(finish: str | None = None, **delta: Any) -> Fields:
    """An event of llama-server."""
    return {"choices": [{"finish_reason": finish, "index": 0, "delta": delta}], **HEAD}


def read_to(processed: int, milliseconds: int, *, cached: int = 0, total: int = 1000) -> Fields:
    """An event that tells how far the prompt is read: the role again."""
    told = {"total": total, "cache": cached, "processed": processed, "time_ms": milliseconds}
    return chunk(role="assistant", content=None) | {"prompt_progress": told}


async def test_a_client_that_wants_it_is_told_at_once_when_the_progress_changes():
    """Long before a keep-alive is due, in comments alone; the role is told once, with the first word."""
    steps = [read_to(0, 0), read_to(450, 262_000), read_to(900, 524_000)]
    words = [chunk(role="assistant", content=None), chunk(content="So "), chunk(content="it is."), chunk("stop")]
    holds = [asyncio.Event() for _ in steps]
    held = [step for pair in zip(steps, holds, strict=True) for step in pair]
    shown = ["prompt read to 0 %", "prompt read to 45 %, about 320 s left", "prompt read to 90 %, about 58 s left"]
    async with faked(script(*held, *words, "[DONE]"), style="llama-server") as backend:
        async with served(backend, engine="llama-server") as proxy:
            async with asking(proxy, WANTS) as reading:
                for told, hold in zip(shown, holds, strict=True):
                    await reading.until(f": {told}\n\n")
                    hold.set()
                text = await reading.rest()
    assert backend.requests[0].body["return_progress"] is True
    assert comments(text) == shown
    assert "prompt_progress" not in text
    assert said(text)[1:] == (TEXT, ["stop"], 1)


async def test_the_role_is_told_once_where_the_engine_tells_it_only_with_the_progress():
    """As llama-server does: no event has the role alone."""
    words = [read_to(500, 10), read_to(1000, 20), chunk(content="So "), chunk(content="it is."), chunk("stop")]
    async with faked(script(*words, "[DONE]"), style="llama-server") as backend:
        async with served(backend, engine="llama-server") as proxy:
            text = (await proxy.chat(USER, stream=True, headers=WANTS)).text
    assert said(text)[1:] == (TEXT, ["stop"], 1)
    assert chunks(text)[0]["choices"][0]["delta"]["role"] == "assistant"


async def test_what_came_from_the_cache_is_not_counted_as_pace():
    """900 of 1000 from the cache, 50 read in a second: one second is left."""
    words = [read_to(950, 1000, cached=900), chunk(content=TEXT), chunk("stop")]
    async with faked(script(*words, "[DONE]"), style="llama-server") as backend:
        async with served(backend, engine="llama-server") as proxy:
            text = (await proxy.chat(USER, stream=True, headers=WANTS)).text
    assert comments(text) == ["prompt read to 95 %, about 1 s left"]


@pytest.mark.parametrize("slow", [True, False])
async def test_without_the_header_only_a_slow_backend_is_asked_and_told_of_by_the_clock(slow):
    """A comment when it is due says how far it is; none comes before."""
    go = asyncio.Event()
    words = [*(read_to(at, at) for at in range(0, 1000, 100)), go, chunk(content=TEXT), chunk("stop")]
    plain = [chunk(role="assistant", content=None), go, chunk(content=TEXT), chunk("stop")]
    async with faked(script(*(words if slow else plain), "[DONE]"), style="llama-server") as backend:
        local = {**LOCAL, "url": backend.url, "engine": "llama-server", "slow": slow}
        tables = {"backends": {"local": local}, "server": {"keepalive_seconds": 0.15}}
        async with served(backend, **tables) as proxy, asking(proxy) as reading:
            await reading.until("\n\n: " if not slow else ": ")
            go.set()
            text = await reading.rest()
    assert backend.requests[0].get("return_progress", "absent") == (True if slow else "absent")
    assert set(comments(text)) == {"prompt read to 90 %, about 0 s left" if slow else "keep-alive"}
    assert len(comments(text)) < 9
    assert said(text)[1:] == (TEXT, ["stop"], 1)


async def test_after_the_first_word_the_prompt_is_no_longer_talked_of():
    """Silence in the answer is a mere keep-alive."""
    go = asyncio.Event()
    words = [read_to(450, 1000), chunk(reasoning_content="so"), go, chunk(content=TEXT), chunk("stop")]
    async with faked(script(*words, "[DONE]"), style="llama-server") as backend:
        async with served(backend, engine="llama-server", server=SOON) as proxy:
            async with asking(proxy, WANTS) as reading:
                await reading.until("so")
                await reading.until(": keep-alive\n\n", 2)
                go.set()
                text = await reading.rest()
    assert "prompt read" not in text.partition('"so"')[2]


async def test_a_client_that_asked_the_engine_itself_gets_the_engines_own_chunks():
    """`return_progress` in its request: nothing is held back or said in comments."""
    async with faked(answer(TEXT), style="llama-server") as backend:
        async with served(backend, engine="llama-server") as proxy:
            for headers in ({}, WANTS):
                text = (await proxy.chat(USER, stream=True, return_progress=True, headers=headers)).text
                told = [each["prompt_progress"]["processed"] for each in chunks(text) if "prompt_progress" in each]
                assert (len(told), comments(text), said(text)[1]) == (3, [], TEXT)
    assert [request.body["return_progress"] for request in backend.requests] == [True, True]


@pytest.mark.parametrize("server", [{"keepalive": "chunk"}, {"keepalive": "off"}], ids=["chunk", "off"])
async def test_where_comments_are_not_wanted_no_progress_is_told(server):
    """Neither in comments nor in chunks, whatever the header says."""
    async with faked(answer(TEXT, reasoning=THOUGHT), style="llama-server") as backend:
        async with served(backend, engine="llama-server", server=server) as proxy:
            text = (await proxy.chat(USER, stream=True, headers=WANTS)).text
    assert comments(text) == []
    assert "prompt_progress" not in text
    assert said(text) == GOOD


async def test_engines_that_cannot_tell_are_not_asked():
    """No field goes to them that they do not know, and the header is for the proxy alone."""
    async with faked(answer(TEXT, reasoning=THOUGHT)) as backend, served(backend) as proxy:
        text = (await proxy.chat(USER, stream=True, headers=WANTS)).text
    assert "return_progress" not in backend.requests[0].body
    assert "x-proxy-progress" not in backend.requests[0].headers
    assert said(text) == GOOD


# In the library ------------------------------------------------------------------------------------------------------


async def test_a_client_of_the_library_with_a_short_read_timeout_survives_a_silent_backend():
    """0.4 s between bytes are all that it allows; the backend takes 0.5 s before the first one, and between two."""
    go = asyncio.Event()
    reply = answer(TEXT, reasoning=THOUGHT).after(0.5).hold(go, after=3)
    async with faked(reply) as backend:
        transport = AsyncTransport(settings(backend.url, server=SOON))
        async with httpx.AsyncClient(transport=transport, timeout=0.4) as http:
            body = {"model": "m", "messages": [USER], "stream": True}
            asyncio.get_running_loop().call_later(1.0, go.set)
            text = (await http.post("http://proxy.invalid/v1/chat/completions", json=body)).text
        rows = transport.ledger
    assert said(text) == GOOD
    assert "keep-alive" in comments(text)
    assert [(row["outcome"], row["attempts"]) for row in rows] == [("ok", 1)]


async def test_a_client_of_the_library_can_have_blanks_too():
    """And without them its time-out holds."""
    async with faked(answer(TEXT).after(0.5)) as backend:
        body = {"model": "m", "messages": [USER]}
        transport = AsyncTransport(settings(backend.url, server=BLANKS))
        async with httpx.AsyncClient(transport=transport, timeout=0.4) as http:
            response = await http.post("http://proxy.invalid/v1/chat/completions", json=body)
        async with httpx.AsyncClient(transport=AsyncTransport(settings(backend.url)), timeout=0.4) as http:
            with pytest.raises(httpx.ReadTimeout):
                await http.post("http://proxy.invalid/v1/chat/completions", json=body)
    assert response.text.startswith(" ")
    assert response.json()["choices"][0]["message"]["content"] == TEXT
