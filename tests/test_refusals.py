"""A backend's errors keep their status and words, and tell SDKs whether the request is worth sending again."""

from __future__ import annotations

import json

import pytest
from running import events, serving, settings

from proxy.testing import FakeBackend, document, error, raw

USER = {"role": "user", "content": "hi"}
LOCAL = {"engine": "kimi", "family": "kimi-k3", "models": ["m"], "slow": False}


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
    async with FakeBackend(reply) as backend:
        given = settings(backend.url)
        local = given.backends["local"].model_copy(update={"loading_timeout": 0.0})
        async with serving(given.model_copy(update={"backends": {"local": local}})) as proxy:
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
    said, end, counted, done = events(response.text)
    assert json.loads(end)["choices"] == [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]
    delta = json.loads(said)["choices"][0]["delta"]
    assert (delta["reasoning_content"], delta["tool_calls"][0]["function"]) == (
        "R",
        {"name": "f", "arguments": '{"x":1}'},
    )
    assert (json.loads(counted)["usage"], done) == (usage, "[DONE]")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "body",
    [
        {"error": "boom"},
        {"object": "error", "message": "boom", "type": "x", "code": 400},
        {"detail": "boom"},
        {"choices": [{"index": 0, "message": {"content": ""}, "finish_reason": "error", "error": {"message": "boom"}}]},
    ],
)
async def test_an_error_in_any_shape_is_one_though_the_status_is_200(body, stream):
    """Bare, flat, or in the choice; streamed requests too."""
    async with FakeBackend(document(body)) as backend, serving(settings(backend.url)) as proxy:
        response = await proxy.chat(USER, stream=stream)
        (row,) = await proxy.rows(1)
    told = response.json()["error"]
    assert (response.status_code >= 400, told["message"], set(told)) == (
        True,
        "boom",
        {"message", "type", "param", "code"},
    )
    assert row["outcome"] == "upstream_error"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("body", [{}, {"choices": None}, {"choices": []}, [], "x"])
async def test_an_answer_without_a_choice_is_an_error(body, stream):
    """Nothing was said, and no client can tell why."""
    async with FakeBackend(document(body)) as backend, serving(settings(backend.url)) as proxy:
        assert (await proxy.chat(USER, stream=stream)).status_code == 502


@pytest.mark.parametrize(
    "failure",
    [
        'data: {"object":"error","message":"boom","type":"x","code":500}',
        'event: error\ndata: {"message":"boom"}',
        "event: error\ndata: boom",
        'data: {"detail":"boom"}',
        'data: {"error":"boom"}',
        'data: {"choices":[{"index":0,"delta":{"content":""},"finish_reason":"error","error":{"message":"boom"}}]}',
    ],
)
async def test_an_error_event_in_any_shape_breaks_the_stream(failure):
    """The client gets the words, `[DONE]`, and no invented finish; a call that had no arguments yet gets none."""
    call = {"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": ""}}
    begun = json.dumps({"choices": [{"index": 0, "delta": {"role": "assistant", "tool_calls": [call]}}]})
    reply = raw(f"data: {begun}\n\n{failure}\n\ndata: [DONE]\n\n".encode())
    async with FakeBackend(reply) as backend, serving(settings(backend.url)) as proxy:
        response = await proxy.chat(USER, stream=True)
        (row,) = await proxy.rows(1)
    first, told, done = events(response.text)
    assert (first, json.loads(told)["error"]["message"], done) == (begun, "boom", "[DONE]")
    assert row["outcome"] == "upstream_error"


async def test_no_key_leaves_in_any_field_of_an_error():
    """Also not in its type or code, or in a header that quotes it."""
    begun = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": "a"}}]}
    failure = {"error": {"message": "m", "type": "sk-SECRET-1", "code": "sk-SECRET-1"}}
    lines = "".join(f"data: {json.dumps(each)}\n\n" for each in (begun, failure))
    reply = raw(lines.encode(), headers={"content-type": "text/event-stream", "www-authenticate": "sk-SECRET-1"})
    given = {"local": {"api_key": "sk-SECRET-1"}}
    async with FakeBackend(reply) as backend:
        base = settings(backend.url, backends={"local": {**LOCAL, "url": backend.url, **given["local"]}})
        async with serving(base) as proxy:
            response = await proxy.chat(USER, stream=True)
    assert "SECRET" not in response.text + str(response.headers)


async def test_errors_of_other_paths_get_the_shape_that_they_lack():
    """vLLM's `detail`; what has an error object stays as it is."""
    replies = {"/v1/embeddings": document({"detail": "Not Found"}, 404)}
    replies["/v1/messages"] = document({"type": "error", "error": {"type": "x", "message": "m"}}, 529)
    async with FakeBackend(paths=replies) as backend, serving(settings(backend.url)) as proxy:
        shaped = await proxy.http.post(f"{proxy.url}/embeddings", json={})
        kept = await proxy.http.post(f"{proxy.url}/messages", json={})
    assert (shaped.status_code, shaped.json()["error"]["message"]) == (404, "Not Found")
    assert (kept.status_code, kept.json()) == (529, {"type": "error", "error": {"type": "x", "message": "m"}})
