"""The library door runs the same pipeline, inside both HTTP libraries and the real SDK."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import httpx2
import openai
import pytest
from running import serving, settings

from proxy import AsyncTransport, Transport
from proxy.testing import FakeBackend, ToolCall, answer, error

USER = {"role": "user", "content": "hi"}
MORE = {"role": "user", "content": "more"}
TOOLS = [{"type": "function", "function": {"name": "ls", "parameters": {"type": "object", "properties": {}}}}]


def client(transport: AsyncTransport, library: Any = httpx2) -> openai.AsyncOpenAI:
    """The real SDK on the transport."""
    http = library.AsyncClient(transport=transport)
    return openai.AsyncOpenAI(base_url="http://proxy.invalid/v1", api_key="unused", http_client=http, max_retries=0)


async def converse(sdk: openai.AsyncOpenAI) -> list[str | None]:
    """A plain turn, a streamed one and one with a call, as an agent that drops thoughts plays them."""
    first = await sdk.chat.completions.create(model="m", messages=[USER], max_tokens=16)
    said: list[Any] = [USER, {"role": "assistant", "content": first.choices[0].message.content}, MORE]
    text = ""
    async for chunk in await sdk.chat.completions.create(model="m", messages=said, stream=True, tools=TOOLS):
        text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
    said += [{"role": "assistant", "content": text}, USER]
    third = await sdk.chat.completions.create(model="m", messages=said, tools=TOOLS)
    call = third.choices[0].message.tool_calls[0]
    said += [
        {"role": "assistant", "content": None, "tool_calls": [call.model_dump()]},
        {"role": "tool", "tool_call_id": call.id, "content": "a.txt"},
    ]
    last = await sdk.chat.completions.create(model="m", messages=said, tools=TOOLS)
    return [first.choices[0].message.content, text, call.function.arguments, last.choices[0].message.content]


def replies() -> list[Any]:
    """What the backend says in `converse`."""
    return [
        answer("one", reasoning="T1\n"),
        answer("two words", reasoning="T2"),
        answer(reasoning="T3", calls=[ToolCall("ls", '{"path": "/"}', "functions.ls:0")]),
        answer("done", reasoning="T4"),
    ]


VARIES = {"ts", "request_id", "first_byte_ms", "first_reasoning_ms", "first_visible_ms", "duration_ms"} | {
    "prefill_tokens_per_second",
    "decode_tokens_per_second",
}


async def test_both_doors_send_the_same_bytes_and_write_the_same_rows():
    """One conversation through the server and through the library: nothing differs but ids and times."""
    sent, rows, heard = [], [], []
    for door in ("server", "library"):
        async with FakeBackend(*replies(), style="llama-server") as backend:
            given = settings(backend.url, engine="llama-server")
            if door == "library":
                transport = AsyncTransport(given)
                async with client(transport) as sdk:
                    heard.append(await converse(sdk))
                    found = transport.ledger
            else:
                async with serving(given) as proxy:
                    async with openai.AsyncOpenAI(base_url=proxy.url, api_key="unused", max_retries=0) as sdk:
                        heard.append(await converse(sdk))
                    found = await proxy.rows(4)
            sent.append([request.raw for request in backend.requests])
            rows.append([{name: value for name, value in row.items() if name not in VARIES} for row in found])
    assert heard[0] == heard[1] == ["one", "two words", '{"path": "/"}', "done"]
    assert sent[0] == sent[1]
    assert rows[0] == rows[1]
    assert [row["turns_restored"] for row in rows[0]] == [0, 1, 2, 3]


@pytest.mark.parametrize("library", [httpx, httpx2])
async def test_one_transport_serves_both_http_libraries(library):
    """The response is of the library that the request is of, streamed and whole."""
    async with FakeBackend(*replies()) as backend:
        async with library.AsyncClient(transport=AsyncTransport(backend=backend.url)) as http:
            url = "http://proxy.invalid/v1/chat/completions"
            whole = await http.post(url, json={"model": "m", "messages": [USER]})
            assert isinstance(whole, library.Response)
            assert whole.json()["choices"][0]["message"]["content"] == "one"
            async with http.stream("POST", url, json={"model": "m", "messages": [USER], "stream": True}) as streamed:
                assert "data: [DONE]" in "".join([piece async for piece in streamed.aiter_text()])


@pytest.mark.parametrize("base", ["/v1", "/api/v1", "/some/where"])
async def test_a_base_url_may_be_the_backends_own(base):
    """OpenRouter's API lies at /api/v1; the SDK keeps the base URL that it had without the proxy."""
    async with FakeBackend(rules=lambda _: replies()[0], paths={}) as backend:
        url = backend.url.removesuffix("/v1") + base
        transport = AsyncTransport(backend=url, engine="openai")
        async with httpx.AsyncClient(transport=transport) as http:
            await http.post(f"{url}/chat/completions", json={"model": "m", "messages": [USER]})
        assert transport.ledger[0]["kind"] == "chat"
        asked = [request.path for request in [*backend.requests, *backend.others]]
        assert f"{base}/chat/completions" in asked


async def test_a_transport_takes_a_whole_configuration(tmp_path):
    """With its backends, prices and store."""
    async with FakeBackend(*replies()) as backend:
        file = tmp_path / "config.toml"
        file.write_text(f'[backends.x]\nurl = "{backend.url}"\n[store]\nurl = "sqlite:///{tmp_path / "a.db"}"\n')
        transport = AsyncTransport.from_config(file)
        async with client(transport) as sdk:
            await sdk.chat.completions.create(model="m", messages=[USER])
        assert transport.ledger[0]["backend"] == "x"
        assert (tmp_path / "a.db").exists()


async def test_errors_reach_agent_code_as_the_sdks_own():
    """The transport answers with HTTP errors, so the SDK raises what agents catch."""
    async with FakeBackend(error(400, "bad tool")) as backend, client(AsyncTransport(backend=backend.url)) as sdk:
        with pytest.raises(openai.BadRequestError, match="bad tool"):
            await sdk.chat.completions.create(model="m", messages=[USER])
    async with client(AsyncTransport(backend=backend.url)) as sdk:
        with pytest.raises(openai.InternalServerError, match="cannot be reached"):
            await sdk.chat.completions.create(model="m", messages=[USER])


async def test_a_stream_that_is_left_early_ends_the_backends_work():
    """Agent code that breaks out of its loop frees the slot."""
    reply = answer("one two three", reasoning="T").first(2).then_stall()
    async with FakeBackend(reply) as backend:
        transport = AsyncTransport(backend=backend.url)
        async with client(transport) as sdk:
            stream = await sdk.chat.completions.create(model="m", messages=[USER], stream=True)
            async for _ in stream:
                break
            await stream.close()
            assert await backend.requests[0].hung_up()
        assert transport.ledger[0]["outcome"] == "client_disconnected"


@pytest.mark.parametrize("library", [httpx, httpx2])
@pytest.mark.parametrize("stream", [False, True])
async def test_the_callers_own_timeout_counts(library, stream):
    """Agent code that sets a time-out gets its library's error, and the backend is let go."""
    reply = answer("late", reasoning="T")
    reply = reply.first(2).then_stall() if stream else reply.after(asyncio.Event())
    body = {"model": "m", "messages": [USER], "stream": stream}
    async with FakeBackend(reply) as backend:
        transport = AsyncTransport(backend=backend.url)
        async with library.AsyncClient(transport=transport, timeout=0.5) as http:
            with pytest.raises(library.ReadTimeout):
                await http.post("http://x.invalid/v1/chat/completions", json=body)
        assert await backend.requests[0].hung_up()
        assert transport.ledger[0]["outcome"] == "client_disconnected"


async def test_a_transport_of_another_event_loop_says_so():
    """Scripts call `asyncio.run` more than once; connections belong to one of them."""
    async with AsyncTransport(backend="http://127.0.0.1:9/v1", engine="openai") as transport:
        request = httpx.Request("POST", "http://x.invalid/v1/chat/completions", json={"model": "m", "messages": [USER]})
        assert (await transport.handle_async_request(request)).status_code == 502
        with pytest.raises(RuntimeError, match="another event loop"):
            await asyncio.to_thread(asyncio.run, transport.handle_async_request(request))


def test_a_transport_wants_one_source_of_settings():
    """Neither, or both, is a mistake that is told at once."""
    with pytest.raises(ValueError, match="either"):
        AsyncTransport()


# Without asyncio -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def apart(backend: FakeBackend) -> Iterator[FakeBackend]:
    """The backend in an event loop of another thread, for callers that block theirs."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    asyncio.run_coroutine_threadsafe(backend.__aenter__(), loop).result()
    try:
        yield backend
    finally:
        asyncio.run_coroutine_threadsafe(backend.__aexit__(None, None, None), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.mark.parametrize("library", [httpx, httpx2])
def test_the_sync_sdk_has_its_thoughts_given_back(library):
    """`OpenAI` on `Transport`: whole, streamed, and with a row each; the second request carries the first thought."""
    with apart(FakeBackend(*replies())) as backend:
        transport = Transport(backend=backend.url, engine="kimi", family="kimi-k3")
        http = library.Client(transport=transport)
        with openai.OpenAI(base_url="http://proxy.invalid/v1", api_key="unused", http_client=http) as sdk:
            first = sdk.chat.completions.create(model="m", messages=[USER])
            said: list[Any] = [USER, {"role": "assistant", "content": first.choices[0].message.content}, MORE]
            chunks = list(sdk.chat.completions.create(model="m", messages=said, stream=True))
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert (first.choices[0].message.content, text) == ("one", "two words")
        assert backend.requests[1].body["messages"][1]["reasoning_content"] == "T1\n"
        assert [row["turns_restored"] for row in transport.ledger] == [0, 1]


def test_a_sync_stream_that_is_left_ends_the_backends_work():
    """A `break` and a close, as in `with` blocks, free the slot; time-outs and errors are the library's own."""
    reply = answer("one two three", reasoning="T").first(2).then_stall()
    with apart(FakeBackend(reply, reply, error(400, "bad tool"))) as backend:
        with Transport(backend=backend.url, engine="openai") as transport, httpx.Client(transport=transport) as http:
            url, body = "http://x.invalid/v1/chat/completions", {"model": "m", "messages": [USER], "stream": True}
            with http.stream("POST", url, json=body) as response:
                assert next(response.iter_text())
            with pytest.raises(httpx.ReadTimeout):
                http.post(url, json=body, timeout=0.5)
            assert http.post(url, json=body).json()["error"]["message"] == "bad tool"
        assert [row["outcome"] for row in transport.ledger] == ["client_disconnected"] * 2 + ["upstream_error"]


def test_a_transport_that_was_never_used_can_be_closed():
    """And closed again; sources of settings are checked as in the other one."""
    transport = Transport(backend="http://127.0.0.1:9/v1")
    transport.close()
    transport.close()
    with pytest.raises(ValueError, match="either"):
        Transport()
