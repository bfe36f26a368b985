"""A truly slow engine, in real time: nothing is lost or asked for twice, and nobody waits without a sign of life."""

from __future__ import annotations

import itertools
import json
import time
from typing import Any

import httpx
import openai
import pytest
from running import events, serving, settings

from proxy.testing import FakeBackend, answer
from proxy.testing import events as script

pytestmark = pytest.mark.timeout(180)

USER: Any = {"role": "user", "content": "hi"}
WORDS = {"reasoning_content": ["It ", "is ", "a ", "long ", "way."], "content": ["At ", "last, ", "the ", "end."]}
GAP, PACE, EVERY = 20.0, 0.5, 5.0


def chunk(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    """An event of the engine."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "slow-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}


def slowly() -> list[Any]:
    """Two words a second, and 20 s of silence in the middle of the thought."""
    thought = [chunk(reasoning_content=word) for word in WORDS["reasoning_content"]]
    said = [chunk(content=word) for word in WORDS["content"]]
    timed = [step for event in (*thought[:3], GAP, *thought[3:], *said) for step in (event, PACE)]
    usage = {"prompt_tokens": 1, "completion_tokens": 9, "total_tokens": 10}
    return [chunk(role="assistant", content=""), *timed, chunk("stop"), {**chunk(), "choices": [], "usage": usage}]


async def test_two_tokens_a_second_and_silences_of_20_seconds_reach_the_sdk_whole():
    """Its default time-out and retries; all in order, one request upstream, one row, and never silent above 6 s."""
    arrivals: list[float] = []
    heard: list[tuple[str, str]] = []

    async def times(response: httpx.Response) -> None:
        """When bytes come, as they stand on the wire."""
        arrivals.append(time.monotonic())
        stream = response.stream

        class Timed(httpx.AsyncByteStream):
            async def __aiter__(self):
                async for piece in stream:
                    arrivals.append(time.monotonic())
                    yield piece

            async def aclose(self) -> None:
                await stream.aclose()

        response.stream = Timed()

    reply = script(*slowly(), "[DONE]").after(GAP)
    async with FakeBackend(reply) as backend:
        async with serving(settings(backend.url, server={"keepalive_seconds": EVERY})) as proxy:
            defaults = openai.AsyncOpenAI(base_url=proxy.url, api_key="unused")
            http = httpx.AsyncClient(event_hooks={"response": [times]}, timeout=openai.DEFAULT_TIMEOUT)
            async with defaults.copy(http_client=http) as sdk:
                assert (sdk.max_retries, sdk.timeout) == (openai.DEFAULT_MAX_RETRIES, openai.DEFAULT_TIMEOUT)
                arrivals.append(time.monotonic())
                usage: Any = {"include_usage": True}
                stream = await sdk.chat.completions.create(
                    model="m", messages=[USER], stream=True, stream_options=usage
                )
                async for each in stream:
                    delta = each.choices[0].delta.model_dump(exclude_unset=True) if each.choices else {}
                    heard += [(name, delta[name]) for name in WORDS if delta.get(name)]
                arrivals.append(time.monotonic())
            await defaults.close()
            (row,) = await proxy.rows()
    assert heard == [(name, word) for name, words in WORDS.items() for word in words]
    assert len(backend.requests) == 1
    assert (row["outcome"], row["attempts"], row["completion_tokens"]) == ("ok", 1, 9)
    assert row["duration_ms"] > 2 * GAP * 1000
    assert max(later - earlier for earlier, later in itertools.pairwise(arrivals)) < EVERY + 1


async def test_a_client_that_waits_two_seconds_between_bytes_survives_four_seconds_of_silence():
    """Streaming, before the first byte and in the middle, with `keepalive_seconds` of 1."""
    reply = script(chunk(role="assistant", content="a"), 4.0, chunk(content="b"), chunk("stop"), "[DONE]").after(4.0)
    async with FakeBackend(reply) as backend:
        async with serving(settings(backend.url, server={"keepalive_seconds": 1})) as proxy:
            async with httpx.AsyncClient(timeout=httpx.Timeout(5, read=2)) as http:
                body = {"model": "m", "messages": [USER], "stream": True}
                text = (await http.post(f"{proxy.url}/chat/completions", json=body)).text
            (row,) = await proxy.rows()
    *told, done = events(text)
    assert done == "[DONE]"
    assert "".join(json.loads(each)["choices"][0]["delta"].get("content") or "" for each in told) == "ab"
    assert text.count(": keep-alive\n\n") >= 6
    assert (row["outcome"], row["attempts"], len(backend.requests)) == ("ok", 1, 1)


async def test_a_client_that_waits_two_seconds_survives_without_streaming_too():
    """With `nonstream_keepalive_seconds` of 1; without it, it does not, and the backend is left."""
    async with FakeBackend(answer("at last").after(4.0)) as backend:
        body = {"model": "m", "messages": [USER]}
        async with httpx.AsyncClient(timeout=httpx.Timeout(5, read=2)) as http:
            async with serving(settings(backend.url, server={"nonstream_keepalive_seconds": 1})) as proxy:
                response = await http.post(f"{proxy.url}/chat/completions", json=body)
                (row,) = await proxy.rows()
            assert response.json()["choices"][0]["message"]["content"] == "at last"
            assert response.text.startswith("  ")
            assert (row["outcome"], row["attempts"], len(backend.requests)) == ("ok", 1, 1)
            async with serving(settings(backend.url)) as proxy:
                with pytest.raises(httpx.ReadTimeout):
                    await http.post(f"{proxy.url}/chat/completions", json=body)
                assert await backend.requests[1].hung_up()
                (row,) = await proxy.rows()
    assert row["outcome"] == "client_disconnected"
