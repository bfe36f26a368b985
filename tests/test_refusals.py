"""A backend's errors keep their status and words, and tell SDKs whether the request is worth sending again."""

from __future__ import annotations

import json

import pytest
from running import events, serving, settings

from proxy.testing import FakeBackend, document, error

USER = {"role": "user", "content": "hi"}


@pytest.mark.parametrize(
    ("reply", "retried"),
    [
        (error(500, {"error": {"code": 500, "message": "Failed to parse messages", "type": "server_error"}}), False),
        (error(529, {"error": {"message": "overloaded", "type": "overloaded_error"}}), True),
        (error(503, {"error": {"message": "Loading model", "type": "unavailable_error", "code": 503}}), True),
        (
            error(429, {"error": {"type": "engine_overloaded_error", "message": "The engine is currently overloaded"}}),
            True,
        ),
        (error(429, {"error": {"type": "exceeded_current_quota_error", "message": "please recharge"}}), False),
        (
            error(
                402, {"error": {"message": "Insufficient Balance", "type": "unknown_error", "code": "invalid_request"}}
            ),
            False,
        ),
        (error(408, {"error": {"message": "timed out", "code": 408}}), False),
    ],
)
async def test_an_error_is_sent_again_only_where_that_helps(reply, retried):
    """A caller's mistake that llama-server calls 500, work that may have cost tokens, and an empty quota are not."""
    async with FakeBackend(reply) as backend, serving(settings(backend.url)) as proxy:
        response = await proxy.chat(USER)
    assert response.headers.get("x-should-retry") == (None if retried else "false")
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    assert "x-proxy-error" not in response.headers


@pytest.mark.parametrize("stream", [False, True])
async def test_an_error_inside_an_answer_of_status_200_gets_the_status_that_it_means(stream):
    """OpenRouter sends the status as the code, in JSON also where a stream was asked for."""
    body = {"error": {"code": 402, "message": "Insufficient credits"}, "choices": None}
    async with FakeBackend(document(body)) as backend, serving(settings(backend.url)) as proxy:
        response = await proxy.chat(USER, stream=stream)
        (row,) = await proxy.rows(1)
    assert (response.status_code, response.json()["error"]["message"]) == (402, "Insufficient credits")
    assert (row["outcome"], row["status"]) == ("upstream_error", 402)


async def test_a_backend_that_does_not_stream_is_streamed_all_the_same():
    """A whole answer to a request for a stream leaves as events, calls and usage too."""
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}
    message = {"role": "assistant", "content": None, "reasoning_content": "R", "tool_calls": [call]}
    body = {"id": "c", "object": "chat.completion", "created": 1, "model": "m"}
    body |= {"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}
    usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    async with FakeBackend(document({**body, "usage": usage})) as backend, serving(settings(backend.url)) as proxy:
        response = await proxy.chat(USER, stream=True, stream_options={"include_usage": True})
    said, counted, done = events(response.text)
    delta = json.loads(said)["choices"][0]["delta"]
    assert (delta["reasoning_content"], delta["tool_calls"][0]["function"]) == (
        "R",
        {"name": "f", "arguments": '{"x":1}'},
    )
    assert (json.loads(counted)["usage"], done) == (usage, "[DONE]")
