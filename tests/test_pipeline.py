"""The whole way: a client, the served proxy, and a scripted backend, over real sockets."""

from __future__ import annotations

import asyncio
import itertools
import json

import httpx
import pytest
from running import events, serving, settings

from proxy import measuring
from proxy.testing import FakeBackend, Reply, Request, ToolCall, answer, document, error, raw
from proxy.testing import events as script

USER = {"role": "user", "content": "hi"}
SAID = {"role": "assistant", "content": "Two files."}
MORE = {"role": "user", "content": "more"}
THOUGHT = answer("Two files.", reasoning=" Two names\u2028came.\n")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("style", ["llama-server", "vllm", "sglang", "ollama", "kimi"])
async def test_a_dropped_thought_goes_back_byte_for_byte(style, stream):
    """The promise of the product, for every engine's way of writing, streamed and not."""
    async with FakeBackend(THOUGHT, style=style) as backend, serving(settings(backend.url, engine=style)) as proxy:
        first = await proxy.chat(USER, stream=stream)
        assert first.status_code == 200
        second = await proxy.chat(USER, SAID, MORE, stream=stream)
        message = backend.requests[-1].body["messages"][1]
        name = "reasoning" if style == "ollama" else "reasoning_content"
        assert message == {**SAID, name: " Two names\u2028came.\n"}
        assert second.headers["x-proxy-history"] == "present=0; restored=1; missing=0; filled=0; dropped=0"
        assert second.headers["x-proxy-decisions"] == "restore"
        row = (await proxy.rows(2))[1]
        assert (row["turns_restored"], row["turns_missing"], row["stream"]) == (1, 0, stream)


async def test_a_tool_turn_gets_its_thought_back_and_keeps_its_bytes():
    """Arguments, ids and tool schemas leave as the client wrote them."""
    call = {
        "id": "functions.ls:0",
        "type": "function",
        "function": {"name": "ls", "arguments": '{"b":1, "a":"\\u00e9"}'},
    }
    reply = answer(reasoning="I call.", calls=[ToolCall("ls", '{"b":1, "a":"\\u00e9"}', "functions.ls:0")])
    async with FakeBackend(reply) as backend, serving(settings(backend.url)) as proxy:
        tools = [{"function": {"parameters": {"type": "object"}, "name": "ls"}, "type": "function"}]
        first = (await proxy.chat(USER, tools=tools)).json()["choices"][0]["message"]
        assert first["tool_calls"][0]["function"]["arguments"] == '{"b":1, "a":"\\u00e9"}'
        assistant = {"role": "assistant", "content": None, "tool_calls": [call]}
        await proxy.chat(
            USER, assistant, {"role": "tool", "tool_call_id": "functions.ls:0", "content": "-"}, tools=tools
        )
        sent = backend.requests[-1].body
        assert sent["messages"][1] == {**assistant, "reasoning_content": "I call."}
        assert sent["tools"] == tools


async def test_another_clients_turns_stay_its_own():
    """The same words under another key are not restored."""
    async with FakeBackend(THOUGHT) as backend, serving(settings(backend.url)) as proxy:
        await proxy.chat(USER, headers={"authorization": "Bearer anna"})
        await proxy.chat(USER, SAID, MORE, headers={"authorization": "Bearer ben"})
        assert backend.requests[-1].body["messages"][1] == SAID
        await proxy.chat(USER, SAID, MORE, headers={"authorization": "Bearer anna", "x-openwebui-user-id": "7"})
        assert backend.requests[-1].body["messages"][1] == SAID
        await proxy.chat(USER, SAID, MORE, headers={"authorization": "Bearer anna"})
        assert "reasoning_content" in backend.requests[-1].body["messages"][1]


async def test_a_growing_conversation_is_an_exact_prefix():
    """Upstream messages of turn k are the first bytes of turn k+1, though the front end drops every thought."""
    replies = [answer(f"answer {n}", reasoning=f"thought {n}\n") for n in range(5)]
    async with FakeBackend(*replies) as backend, serving(settings(backend.url)) as proxy:
        messages = [{"role": "system", "content": "s"}]
        for turn in range(5):
            messages += [{"role": "user", "content": f"question {turn}"}]
            text = (await proxy.chat(*messages)).json()["choices"][0]["message"]["content"]
            messages += [{"role": "assistant", "content": text}]
        sent = [request.raw.partition(b'"messages":[')[2].rpartition(b"]")[0] for request in backend.requests]
        assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(sent))


async def test_headers_tell_what_was_decided():
    """The names and forms of the contract."""
    slow = {"local": {**_backend("x"), "slow": True}}
    async with FakeBackend(THOUGHT, style="llama-server") as backend:
        slow["local"]["url"] = backend.url
        async with serving(settings(backend.url, backends=slow)) as proxy:
            response = await proxy.chat(USER, max_tokens=16, headers={"x-request-id": "mine"})
    headers = response.headers
    assert headers["x-proxy-backend"] == "local"
    assert headers["x-proxy-effort"] == "low; reason=slow-backend"
    assert headers["x-proxy-max-tokens"] == "5000; asked=16; reason=floor"
    assert headers["x-proxy-thinking-budget"] == "3976; reason=reserve"
    assert headers["x-proxy-history"] == "present=0; restored=0; missing=0; filled=0; dropped=0"
    assert headers["x-proxy-decisions"] == "effort,floor,thinking_budget"
    assert headers["x-proxy-outcome"] == "ok"
    assert headers["x-client-request-id"] == "mine"
    assert headers["x-request-id"].startswith("req_")


def _backend(url: str) -> dict[str, object]:
    return {"url": url, "engine": "llama-server", "family": "kimi-k3", "models": ["m"]}


async def test_a_backend_that_proves_slow_gets_low_effort_from_then_on():
    """Measured from the engine's own timings, without a setting; and the running conversation keeps what it had."""
    timings = {"predicted_per_second": 0.1, "prompt_per_second": 5.5, "predicted_n": 40, "prompt_n": 9, "cache_n": 0}
    lines = [
        {"choices": [{"index": 0, "delta": {"reasoning_content": "T"}, "finish_reason": None}]},
        {"choices": [{"index": 0, "delta": {"content": "Two files."}, "finish_reason": None}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "timings": timings},
        "[DONE]",
    ]

    def answers(request: Request) -> Reply:
        measures = request.get("max_tokens") == measuring.TOKENS  # before the first request: here it shall tell nothing
        return error(500, "not now") if measures else script(*lines)

    async with FakeBackend(rules=answers, style="llama-server") as backend:
        tables = {"local": _backend(backend.url)}
        async with serving(settings(backend.url, backends=tables)) as proxy:
            first = await proxy.chat(USER, stream=True)
            assert first.headers["x-proxy-effort"] == "-"
            same = await proxy.chat(USER, SAID, MORE, stream=True)
            assert same.headers["x-proxy-effort"] == "-"
            other = await proxy.chat(MORE, stream=True)
            assert other.headers["x-proxy-effort"] == "low; reason=slow-backend"
            assert backend.requests[-1].body["chat_template_kwargs"] == {"thinking_effort": "low"}
            row = (await proxy.rows(3))[0]
    assert (row["decode_tokens_per_second"], row["prefill_tokens_per_second"]) == (0.1, 5.5)
    assert (row["prompt_tokens"], row["completion_tokens"]) == (9, 40)


async def test_a_streams_own_pace_tells_a_slow_backend_and_is_known_after_a_restart(tmp_path):
    """An engine without timings is measured from its first token to its last; a new process has the record."""
    tables = {
        "backends": {"local": {"url": "", "engine": "vllm", "family": "kimi-k3", "models": ["m"]}},
        "policy": {"slow_below_tokens_per_second": 1000.0},
        "store": {"url": f"sqlite:///{tmp_path / 'proxy.db'}"},
    }
    reply = answer("one two three four", reasoning="a b c d e f", gap=0.02)
    async with FakeBackend(reply, style="vllm") as backend:
        tables["backends"]["local"]["url"] = backend.url
        async with serving(settings(backend.url, **tables)) as proxy:
            assert (await proxy.chat(USER, stream=True)).headers["x-proxy-effort"] == "-"
            pace = (await proxy.rows())[0]["decode_tokens_per_second"]
        async with serving(settings(backend.url, **tables)) as proxy:
            again = await proxy.chat(MORE, stream=True)
    assert 0 < pace < 1000
    assert again.headers["x-proxy-effort"] == "low; reason=slow-backend"
    assert backend.requests[-1].body["reasoning_effort"] == "low"


async def test_the_ledger_says_how_tokens_were_counted():
    """Reported where the engine counts; estimated where it does not; parts add up."""
    reported = {"prompt_tokens": 9, "completion_tokens": 50, "completion_tokens_details": {"reasoning_tokens": 40}}
    silent = {"prompt_tokens": 9, "completion_tokens": 50}
    zero = {**silent, "completion_tokens_details": {"reasoning_tokens": 0}}
    replies = [answer("said " * 20, reasoning="thought " * 20, usage=usage) for usage in (reported, silent, zero, {})]
    async with FakeBackend(*replies) as backend, serving(settings(backend.url)) as proxy:
        for _ in replies:
            await proxy.chat(USER)
        rows = await proxy.rows(4)
    assert [row["reasoning_source"] for row in rows] == ["reported", "estimated", "estimated", "estimated"]
    assert [row["reported_reasoning_tokens"] for row in rows] == [40, None, 0, None]
    assert rows[0]["reasoning_tokens"] == 40
    assert all(0 < row["reasoning_tokens"] < row["completion_tokens"] for row in rows)
    assert all(row["reasoning_tokens"] + row["visible_tokens"] == row["completion_tokens"] for row in rows)


async def test_an_answer_lost_to_thinking_has_its_own_outcome():
    """Passed on as it is, with a signal that machines can read."""
    async with (
        FakeBackend(answer("", reasoning="T " * 9, finish="length")) as backend,
        serving(settings(backend.url)) as proxy,
    ):
        response = await proxy.chat(USER)
        assert response.headers["x-proxy-outcome"] == "answer_lost"
        assert response.json()["choices"][0]["finish_reason"] == "length"
        assert (await proxy.rows())[0]["outcome"] == "answer_lost"


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (400, {"error": {"message": "nested", "type": "t", "code": 400}}, "nested"),
        (400, {"object": "error", "message": "flat", "type": "t", "param": None, "code": 400}, "flat"),
        (401, {"error": "Unauthorized"}, "Unauthorized"),
        (500, b"<html>oops</html>", "<html>oops</html>"),
        (503, b"", "the backend answered 503 without a body"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_backends_error_keeps_its_status_and_words_in_one_shape(status, body, message, stream):
    """Whatever shape an engine uses, a client sees OpenAI's."""
    async with FakeBackend(error(status, body)) as backend, serving(settings(backend.url)) as proxy:
        response = await proxy.chat(USER, stream=stream)
        assert response.status_code == status
        assert response.json()["error"]["message"] == message
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}
        assert ("x-should-retry" in response.headers) == (status == 500)
        assert "x-proxy-error" not in response.headers
        assert len(backend.requests) == 1
        row = (await proxy.rows())[0]
        assert (row["outcome"], row["status"], row["error"]) == ("upstream_error", status, message)


async def test_a_backend_that_is_down_is_named_and_may_be_tried_again():
    """Nothing was sent, so nothing can have been generated."""
    async with FakeBackend(THOUGHT) as backend:
        url = backend.url
    async with serving(settings(url)) as proxy:
        response = await proxy.chat(USER)
        assert response.status_code == 502
        assert response.json()["error"]["code"] == "upstream_unreachable"
        assert "local" in response.json()["error"]["message"]
        assert response.headers["x-proxy-error"] == "upstream_unreachable"
        assert "x-should-retry" not in response.headers
        assert (await proxy.rows())[0]["outcome"] == "upstream_unreachable"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_connection_that_breaks_is_reported_and_never_repeated(stream):
    """Tokens may have been spent: one request upstream, and the client is told not to send it again."""
    async with (
        FakeBackend(answer("abc", reasoning="T").first(0).then_abort()) as backend,
        serving(settings(backend.url)) as proxy,
    ):
        response = await proxy.chat(USER, stream=stream)
        if stream:
            *_, failure, done = events(response.text)
            assert (json.loads(failure)["error"]["code"], done) == ("upstream_error", "[DONE]")
        else:
            assert (response.status_code, response.headers["x-should-retry"]) == (502, "false")
        assert len(backend.requests) == 1
        assert (await proxy.rows())[0]["outcome"] == "upstream_error"


async def test_a_stream_that_ends_in_the_middle_is_an_error_and_no_turn():
    """No finish reason is invented, and half a thought is never restored."""
    async with (
        FakeBackend(answer("Two files.", reasoning="half", split=3).first(6), THOUGHT) as backend,
        serving(settings(backend.url)) as proxy,
    ):
        response = await proxy.chat(USER, stream=True)
        assert "error" in json.loads(events(response.text)[-2])
        await proxy.chat(USER, {"role": "assistant", "content": "Two "}, MORE)
        assert "reasoning_content" not in backend.requests[-1].body["messages"][1]


@pytest.mark.parametrize("broken", ["{garbage", '{"error": {"message": "boom"}}'])
async def test_events_that_came_before_a_broken_one_are_not_lost(broken):
    """Also where they came in the same read."""
    good = json.dumps({"choices": [{"index": 0, "delta": {"role": "assistant", "content": "first words"}}]})
    reply = raw(f"data: {good}\n\ndata: {broken}\n\n".encode())
    async with FakeBackend(reply) as backend, serving(settings(backend.url)) as proxy:
        response = await proxy.chat(USER, stream=True)
    first, failure, done = events(response.text)
    assert (first, done) == (good, "[DONE]")
    assert "error" in json.loads(failure)


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_of_the_wrong_kind_is_an_error_and_its_connection_is_let_go(stream):
    """HTML from something in between, or a stream where none was asked for."""
    reply = raw(b"<html>", headers={"content-type": "text/html"}).then_stall()
    async with FakeBackend(reply) as backend, serving(settings(backend.url)) as proxy:
        response = await proxy.chat(USER, stream=stream)
        assert (response.status_code, response.json()["error"]["code"]) == (502, "upstream_error")
        assert "text/html" in response.json()["error"]["message"]
        assert await backend.requests[0].hung_up()


async def test_an_error_event_reaches_the_client_and_ends_the_stream():
    """llama-server's own words, then `[DONE]`, though the server sends none."""
    failure = {"error": {"code": 500, "message": "boom", "type": "server_error"}}
    async with (
        FakeBackend(script({"choices": [{"index": 0, "delta": {"content": "a"}}]}, failure)) as backend,
        serving(settings(backend.url)) as proxy,
    ):
        response = await proxy.chat(USER, stream=True)
        *_, last, done = events(response.text)
        assert json.loads(last)["error"]["message"] == "boom"
        assert done == "[DONE]"
        assert (await proxy.rows())[0]["outcome"] == "upstream_error"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_ends_the_backends_work(stream):
    """Before the headers or in mid-stream: the slot is free, and the row is written."""
    reply = answer("abc", reasoning="T")
    reply = reply.first(2).then_stall() if stream else reply.after(asyncio.Event())
    async with FakeBackend(reply) as backend, serving(settings(backend.url)) as proxy:
        task = asyncio.create_task(proxy.chat(USER, stream=stream))
        request = await backend.request_arrived()
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await request.hung_up()
        assert (await proxy.rows())[0]["outcome"] == "client_disconnected"


async def test_a_turn_is_found_before_its_done_has_been_read():
    """An agent that answers as soon as it sees `[DONE]` finds its turn."""
    async with FakeBackend(THOUGHT) as backend, serving(settings(backend.url)) as proxy:
        for round_ in range(20):
            user = {"role": "user", "content": f"round {round_}"}
            async with proxy.http.stream(
                "POST", f"{proxy.url}/chat/completions", json={"model": "m", "messages": [user], "stream": True}
            ) as response:
                async for line in response.aiter_lines():
                    if line == "data: [DONE]":
                        break
                second = await proxy.chat(user, SAID, MORE)
            assert "restored=1" in second.headers["x-proxy-history"]


async def test_events_leave_when_they_come():
    """The next event is sent only when the client has seen the last."""
    gate = asyncio.Event()
    async with (
        FakeBackend(answer("late", reasoning="T").hold(gate, after=2)) as backend,
        serving(settings(backend.url)) as proxy,
    ):
        body = {"model": "m", "messages": [USER], "stream": True}
        async with proxy.http.stream("POST", f"{proxy.url}/chat/completions", json=body) as response:
            assert response.headers["content-type"] == "text/event-stream"
            assert response.headers["cache-control"] == "no-cache"
            assert response.headers["x-accel-buffering"] == "no"
            assert "content-length" not in response.headers
            text = ""
            async for piece in response.aiter_text():
                text += piece
                if "T" in text:
                    gate.set()
        assert "late" in text


async def test_models_are_listed_with_their_aliases():
    """`/v1/models` and `/models`, one model, and an unknown one."""
    tables = {"models": {"k3": {"backend": "local", "upstream": "m"}}}
    async with FakeBackend(THOUGHT) as backend, serving(settings(backend.url, **tables)) as proxy:
        for url in (proxy.url, proxy.url.removesuffix("/v1")):
            listed = (await proxy.http.get(f"{url}/models")).json()
            assert [row["id"] for row in listed["data"]] == ["k3", "m"]
        assert (await proxy.http.get(f"{proxy.url}/models/k3")).json()["id"] == "k3"
        missing = await proxy.http.get(f"{proxy.url}/models/nope")
        assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")


async def test_an_unknown_model_is_refused_with_the_known_ones():
    """Nothing is sent, and the caller learns the names."""
    async with FakeBackend(THOUGHT) as backend, serving(settings(backend.url)) as proxy:
        response = await proxy.chat(USER, model="gpt-9")
        assert (response.status_code, response.json()["error"]["param"]) == (404, "model")
        assert "known: m" in response.json()["error"]["message"]
        assert backend.requests == []
        assert (await proxy.rows())[0]["outcome"] == "rejected"


async def test_other_paths_pass_through_unchanged():
    """Embeddings and whatever comes next: same bytes both ways, and a row."""
    vectors = {"data": [{"embedding": [0.5]}]}
    async with (
        FakeBackend(paths={"/v1/embeddings": document(vectors, headers={"x-trace-id": "t"})}) as backend,
        serving(settings(backend.url)) as proxy,
    ):
        raw = b'{"model": "m",  "input": "x"}'
        response = await proxy.http.post(f"{proxy.url}/embeddings?a=b", content=raw)
        assert (response.status_code, response.json(), response.headers["x-trace-id"]) == (200, vectors, "t")
        (sent,) = backend.others
        assert (sent.raw, sent.path) == (raw, "/v1/embeddings")
        row = (await proxy.rows())[0]
        assert (row["kind"], row["endpoint"], row["outcome"]) == ("passthrough", "/v1/embeddings", "ok")


@pytest.mark.parametrize("path", ["/", "/nope", "/v2/chat/completions", "/v1/../props", "/v1/%2e%2e/props"])
async def test_what_is_not_part_of_the_api_is_404_and_goes_nowhere(path):
    """No path leads out of `/v1` at the backend."""
    async with FakeBackend(THOUGHT, style="llama-server") as backend, serving(settings(backend.url)) as proxy:
        origin = httpx.URL(proxy.url.removesuffix("/v1"))
        reader, writer = await asyncio.open_connection("127.0.0.1", origin.port)
        writer.write(f"GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        assert b" 404 " in head.split(b"\r\n")[0]
        assert json.loads(body)["error"]["code"] == "not_found"
        assert [request.path for request in backend.others if request.path != "/v1/models"] == []


async def test_a_body_above_the_limit_is_refused_with_the_limits_name():
    """413 in the API's shape; the backend is not bothered."""
    async with FakeBackend(THOUGHT) as backend, serving(settings(backend.url, server={"max_body_mb": 1})) as proxy:
        response = await proxy.chat({"role": "user", "content": "x" * 1_100_000})
        assert (response.status_code, response.json()["error"]["code"]) == (413, "request_too_large")
        assert "server.max_body_mb" in response.json()["error"]["message"]
        assert backend.requests == []


async def test_clients_are_told_apart_and_strangers_refused():
    """With a [clients] table a key is needed; with a backend key the client's own is not passed on."""
    tables = {
        "clients": {"webui": {"api_key": "sk-webui-secret", "reasoning": "hidden"}},
        "backends": {"local": {"url": "", "engine": "kimi", "models": ["m"], "api_key": "sk-backend-secret"}},
    }
    echo = error(401, {"error": {"message": "Incorrect API key provided: sk-backend-secret"}})
    async with FakeBackend(THOUGHT, echo) as backend:
        tables["backends"]["local"]["url"] = backend.url
        async with serving(settings(backend.url, **tables)) as proxy:
            for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic sk-webui-secret"}):
                refused = await proxy.chat(USER, headers=headers)
                assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key")
            assert backend.requests == []
            headers = {"authorization": "Bearer sk-webui-secret"}
            message = (await proxy.chat(USER, headers=headers)).json()["choices"][0]["message"]
            assert "reasoning_content" not in message
            assert backend.requests[0].headers["authorization"] == "Bearer sk-backend-secret"
            leaked = await proxy.chat(USER, headers=headers)
            rows = await proxy.rows(5)
    assert rows[3]["client"] == "webui"
    assert "secret" not in leaked.text + json.dumps(rows)


async def test_health_ready_and_version_answer_without_a_key():
    """`/health` needs nothing; `/ready` needs a backend that answered."""
    tables = {"clients": {"a": {"api_key": "sk-123456"}}}
    async with FakeBackend(THOUGHT, style="llama-server") as backend:
        url = backend.url
        async with serving(settings(url, engine="llama-server", **tables)) as proxy:
            origin = proxy.url.removesuffix("/v1")
            assert (await proxy.http.get(f"{origin}/health")).json() == {"status": "ok"}
            assert "version" in (await proxy.http.get(f"{origin}/version")).json()
            for _ in range(100):
                ready = await proxy.http.get(f"{origin}/ready")
                if ready.status_code == 200:
                    break
                await asyncio.sleep(0.02)
            assert ready.json() == {"status": "ready"}
    async with serving(settings(url, engine="llama-server")) as proxy:
        ready = await proxy.http.get(f"{proxy.url.removesuffix('/v1')}/ready")
        assert (ready.status_code, ready.json()["status"]) == (503, "no backend has answered yet")


@pytest.mark.parametrize("path", ["/chat/completions/", "/chat%2Fcompletions", "/%63hat/completions"])
async def test_no_spelling_of_the_path_goes_around_the_rules(path):
    """A chat request is a chat request, however its path is written."""
    async with FakeBackend(THOUGHT) as backend, serving(settings(backend.url)) as proxy:
        body = {"model": "m", "messages": [USER], "max_tokens": 16}
        response = await proxy.http.post(proxy.url + path, json=body)
        assert response.headers["x-proxy-max-tokens"] == "5000; asked=16; reason=floor"
        assert backend.requests[0].body["max_tokens"] == 5000


async def test_a_refused_body_has_its_row_and_id():
    """One row a request, also for those that were never read."""
    async with FakeBackend(THOUGHT) as backend, serving(settings(backend.url, server={"max_body_mb": 1})) as proxy:
        response = await proxy.chat({"role": "user", "content": "x" * 1_100_000}, headers={"x-request-id": "mine"})
        row = (await proxy.rows())[0]
    assert row["request_id"] == response.headers["x-request-id"]
    assert (row["outcome"], row["status"], row["kind"]) == ("rejected", 413, "chat")
    assert response.headers["x-client-request-id"] == "mine"


async def test_a_redirect_is_not_followed_but_told():
    """A wrong scheme or path in `url` is the operator's to mend."""
    reply = document("moved", status=301, headers={"location": "https://elsewhere.invalid/v1"})
    async with FakeBackend(reply) as backend, serving(settings(backend.url)) as proxy:
        response = await proxy.chat(USER)
    assert response.status_code == 502
    assert "https://elsewhere.invalid/v1" in response.json()["error"]["message"]


async def test_a_fault_of_ours_is_an_error_in_shape_and_never_a_stack_trace(monkeypatch):
    """The caller learns the id to look for; the traceback is in the log."""

    def broken(*_: object) -> None:
        raise KeyError("secret detail")

    async with FakeBackend(THOUGHT) as backend, serving(settings(backend.url)) as proxy:
        monkeypatch.setattr("proxy.policy.decide", broken)
        response = await proxy.chat(USER)
        row = (await proxy.rows())[0]
    assert (response.status_code, response.json()["error"]["code"]) == (500, "internal_error")
    assert "secret detail" not in response.text
    assert response.headers["x-should-retry"] == "false"
    assert (row["outcome"], row["status"]) == ("rejected", 500)


async def test_models_of_a_backend_that_is_down_are_an_error_and_not_an_empty_list():
    """A front end would show an empty menu without a word."""
    async with FakeBackend(THOUGHT) as backend:
        tables = {"backends": {"local": {"url": backend.url, "engine": "kimi"}}}
    async with serving(settings(backend.url, **tables)) as proxy:
        response = await proxy.http.get(f"{proxy.url}/models")
    assert (response.status_code, response.json()["error"]["code"]) == (502, "upstream_unreachable")


async def test_an_engine_is_found_and_asked_for_its_properties():
    """`auto` finds llama-server, its window and the option that its template reads, and the one model's family."""
    async with FakeBackend(THOUGHT, style="llama-server", model="Kimi-K3-UD-IQ1_S", context=9000) as backend:
        tables = {"backends": {"local": {"url": backend.url, "slow": True}}}
        async with serving(settings(backend.url, engine="auto", family="auto", **tables)) as proxy:
            response = await proxy.chat(USER, model="anything", max_tokens=20_000)
            row = (await proxy.rows())[0]
    assert (row["engine"], row["family"]) == ("llama-server", "kimi-k3")
    assert backend.requests[0].body["chat_template_kwargs"] == {"thinking_effort": "low"}
    assert 7000 < backend.requests[0].body["thinking_budget_tokens"] < 9000 - 1024
    assert response.headers["x-proxy-effort"] == "low; reason=slow-backend"


@pytest.mark.parametrize("style", ["vllm", "sglang", "ollama", "kimi"])
async def test_every_engine_is_told_from_the_others(style):
    """By headers, owners and side doors."""
    async with FakeBackend(THOUGHT, style=style) as backend:
        tables = {"backends": {"local": {"url": backend.url}}}
        async with serving(settings(backend.url, engine="auto", **tables)) as proxy:
            await proxy.chat(USER, model="fake")
            assert (await proxy.rows())[0]["engine"] == style


async def test_the_first_request_after_a_start_knows_the_family(tmp_path):
    """A server of one model answers to any name; who asks before the probe has ended waits for it."""
    store = {"url": f"sqlite:///{tmp_path / 'proxy.db'}"}
    async with FakeBackend(THOUGHT, style="llama-server", model="Kimi-K3-UD-IQ1_S") as backend:
        tables = {"backends": {"local": {"url": backend.url}}, "store": store}
        given = settings(backend.url, engine="auto", family="auto", **tables)
        async with serving(given) as proxy:
            await proxy.chat(USER, model="gpt-4o")
        async with serving(given) as proxy:
            second = await proxy.chat(USER, SAID, MORE, model="gpt-4o")
            rows = await proxy.rows(2)
    assert {row["family"] for row in rows} == {"kimi-k3"}
    assert "restored=1" in second.headers["x-proxy-history"]


async def test_two_backends_that_are_asked_for_their_models_serve_from_the_first_request_on():
    """A 404 would not be tried again by any SDK."""
    async with FakeBackend(THOUGHT, model="one") as one, FakeBackend(THOUGHT, model="two") as two:
        tables = {name: {"url": url} for name, url in {"local": one.url, "other": two.url}.items()}
        given = settings(one.url, backends=tables)
        async with serving(given) as proxy:
            assert (await proxy.chat(USER, model="two")).headers["x-proxy-backend"] == "other"
            assert (await proxy.chat(USER, model="three")).status_code == 404


async def test_a_backend_that_tells_nothing_is_not_asked_before_every_request():
    """With the client's own key `/v1/models` is a 401 to the proxy."""
    paths = {"/v1/models": error(401, "no key")}
    async with FakeBackend(THOUGHT, paths=paths) as backend:
        async with serving(settings(backend.url, backends={"local": {"url": backend.url}})) as proxy:
            for _ in range(5):
                await proxy.chat(USER)
            asked = [request.path for request in backend.others]
    assert asked.count("/v1/models") == 1


@pytest.mark.parametrize("end", ["then_cut", "then_abort"])
async def test_an_answer_that_lacks_only_its_end_is_complete(end):
    """After the last finish reason everything was said."""
    lines = [
        {"choices": [{"index": 0, "delta": {"reasoning_content": "T"}}]},
        {"choices": [{"index": 0, "delta": {"content": "Two files."}, "finish_reason": "stop"}]},
    ]
    async with FakeBackend(getattr(script(*lines), end)(), THOUGHT) as backend, serving(settings(backend.url)) as proxy:
        response = await proxy.chat(USER, stream=True)
        assert events(response.text)[-1] == "[DONE]"
        assert (await proxy.rows())[0]["outcome"] == "ok"
        assert "restored=1" in (await proxy.chat(USER, SAID, MORE)).headers["x-proxy-history"]


@pytest.mark.parametrize("name", ["x-api-key", "api-key", "authorization"])
async def test_callers_are_told_apart_by_whichever_key_they_send(name):
    """Without a [clients] table too."""
    async with FakeBackend(THOUGHT) as backend, serving(settings(backend.url)) as proxy:
        await proxy.chat(USER, headers={name: "Bearer key-one"})
        other = await proxy.chat(USER, SAID, MORE, headers={name: "Bearer key-two"})
        same = await proxy.chat(USER, SAID, MORE, headers={name: "Bearer key-one"})
    assert "restored=0" in other.headers["x-proxy-history"]
    assert "restored=1" in same.headers["x-proxy-history"]


async def test_a_server_that_comes_later_or_is_another_one_is_found(monkeypatch):
    """Started after the proxy, or swapped on the same port: it is looked at again, and told things in its own words."""
    monkeypatch.setattr("proxy.backend.PROBE_AGAIN", 0.0)
    async with FakeBackend(THOUGHT, style="vllm", model="qwen3-30b") as first:
        url, port = first.url, first.port
    tables = {"backends": {"local": {"url": url}, "other": {"url": "http://127.0.0.1:9/v1"}}}
    async with serving(settings(url, engine="auto", family="auto", **tables)) as proxy:
        assert (await proxy.chat(USER, model="qwen3-30b")).status_code == 404
        async with FakeBackend(THOUGHT, style="vllm", model="qwen3-30b", port=port):
            assert (await proxy.chat(USER, model="qwen3-30b")).status_code == 200
        assert (await proxy.chat(USER, model="qwen3-30b")).status_code == 502
        async with FakeBackend(THOUGHT, style="llama-server", model="kimi-k3", port=port) as second:
            assert (await proxy.chat(USER, model="kimi-k3")).status_code == 200
            assert second.requests
        rows = await proxy.rows(4)
    assert [row["engine"] for row in rows] == [None, "vllm", "vllm", "llama-server"]
    assert rows[3]["family"] == "kimi-k3"


async def test_a_backend_that_does_not_answer_is_logged_with_its_address(caplog):
    """Whoever mistyped a URL sees it at the start."""
    async with serving(
        settings("http://127.0.0.1:9/v1", engine="auto", backends={"local": {"url": "http://127.0.0.1:9/v1"}})
    ) as proxy:
        await proxy.chat(USER)
    assert "backend local at http://127.0.0.1:9/v1 does not answer" in caplog.text


@pytest.mark.parametrize("engine", ["llama-server", "auto"])
async def test_a_look_that_fails_does_not_forget_what_was_known(monkeypatch, engine):
    """A busy server that does not answer a later look keeps its window and template."""
    monkeypatch.setattr("proxy.backend.PROBE_AGAIN", 0.0)
    monkeypatch.setattr("proxy.backend.PROBE_AGE", 0.0)
    busy = error(503, "Loading model")
    async with FakeBackend(THOUGHT, style="llama-server", model="kimi-k3", context=9000) as backend:
        tables = {"backends": {"local": {"url": backend.url, "slow": True}}}
        async with serving(settings(backend.url, engine=engine, family="auto", **tables)) as proxy:
            await proxy.chat(USER, max_tokens=20_000)
            known, doors = proxy.pipeline.backends.first, backend.paths
            for paths in ({"/v1/models": busy}, {"/props": busy}, {"/v1/models": busy, "/props": busy}):
                backend.paths = {**doors, **paths}
                await known.look_again()
            await proxy.chat(USER, max_tokens=20_000)
    first, *_, last = backend.requests
    assert first.body == last.body
    assert last.body["thinking_budget_tokens"] < 9000


async def test_a_list_of_models_that_takes_too_long_is_let_go(monkeypatch):
    """The menu of a front end does not hang with one backend, nor does the connection stay."""
    monkeypatch.setattr("proxy.models.SECONDS", 0.2)
    stuck = raw(b'{"data": [', headers={"content-type": "application/json"}).then_stall()
    async with FakeBackend(THOUGHT, paths={"/v1/models": stuck}) as backend:
        tables = {"backends": {"local": {"url": backend.url, "engine": "kimi"}}}
        async with serving(settings(backend.url, **tables)) as proxy:
            response = await proxy.http.get(f"{proxy.url}/models")
            assert (response.status_code, response.json()["error"]["code"]) == (504, "upstream_timeout")
            assert all([await request.hung_up() for request in backend.others])


async def test_a_backend_that_wants_a_key_is_not_called_dead(caplog):
    """It answered, with a 401 to a question without a key; and once is enough."""
    async with FakeBackend(THOUGHT, paths={"/v1/models": error(401, "no key")}) as backend:
        tables = {"backends": {"local": {"url": backend.url}}}
        async with serving(settings(backend.url, **tables)) as proxy:
            await proxy.chat(USER)
    told = [record.getMessage() for record in caplog.records if "backend local" in record.getMessage()]
    assert not any("does not answer" in line for line in told)
    assert sum("does not tell what it is" in line for line in told) == 1
