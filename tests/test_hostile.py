"""Faults that an attack on the served proxy found, and their kin."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest
from running import events, serving, settings

from proxy.testing import FakeBackend, answer, document, error, raw
from proxy.testing import events as script

USER = {"role": "user", "content": "hi"}
SAID = {"role": "assistant", "content": "Two files."}
MORE = {"role": "user", "content": "more"}
THOUGHT = answer("Two files.", reasoning="Two names came.")


SECRET = "sk-backend-secret"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "reply",
    [
        error(401, {"error": {"message": f"bad key {SECRET}", "param": SECRET, "code": SECRET}}),
        document({"error": {"message": f"bad key {SECRET}"}}),
        script({"error": {"message": f"bad key {SECRET}"}}),
    ],
)
async def test_a_key_that_a_backend_quotes_reaches_nobody(reply, stream, caplog):
    """Neither the caller, nor the ledger, nor the log, whatever shape the error has."""
    local = {"url": "", "engine": "kimi", "api_key": SECRET}
    paths = {"/v1/models": error(401, f"bad key {SECRET}"), "/v1/embeddings": error(401, f"bad key {SECRET}")}
    async with FakeBackend(reply, paths=paths) as backend:
        local["url"] = backend.url
        async with serving(settings(backend.url, backends={"local": local})) as proxy:
            chat = await proxy.chat(USER, stream=stream)
            models = await proxy.http.get(f"{proxy.url}/models")
            passed = await proxy.http.post(f"{proxy.url}/embeddings", json={"input": "x"})
            rows = await proxy.rows(3)
    assert "bad key" in chat.text or "was expected" in chat.text
    assert "bad key" in passed.text
    assert SECRET not in chat.text + models.text + passed.text + json.dumps(rows) + caplog.text


@pytest.mark.parametrize("header", ["Bearer sk-client-secret", "bearer sk-client-secret", "sk-client-secret"])
async def test_a_callers_key_that_is_passed_on_and_quoted_is_not_written(header):
    """Under any spelling of the header."""
    quoting = error(401, {"error": {"message": "Incorrect API key provided: sk-client-secret"}})
    async with FakeBackend(quoting) as backend, serving(settings(backend.url)) as proxy:
        await proxy.chat(USER, headers={"authorization": header})
        assert backend.requests[0].headers["authorization"] == header
        assert "client-secret" not in json.dumps(await proxy.rows())


@pytest.mark.parametrize("end", ["then_cut", "then_abort"])
@pytest.mark.parametrize("events_sent", [1, 300])
async def test_events_that_arrived_before_a_connection_broke_are_delivered(end, events_sent):
    """What was received is not dropped with the connection; here the answer was even complete."""
    lines = [{"choices": [{"index": 0, "delta": {"content": f"{n} "}}]} for n in range(events_sent)]
    done = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    sent = [*map(json.dumps, [*lines, done]), "[DONE]"]
    whole = b"".join(f"data: {line}\n\n".encode() for line in sent)
    async with FakeBackend(getattr(raw(whole), end)()) as backend, serving(settings(backend.url)) as proxy:
        response = await proxy.chat(USER, stream=True)
        row = (await proxy.rows())[0]
    assert len(events(response.text)) == events_sent + 2
    assert row["outcome"] == "ok"


@pytest.mark.parametrize("odd", ["oops", "[1]", "null", "", '{"choices": {}}'])
async def test_an_event_that_cannot_be_read_does_not_end_hours_of_work(odd):
    """It is left out and logged; the stream goes on."""
    first = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": "a"}}]}
    last = {"choices": [{"index": 0, "delta": {"content": "b"}, "finish_reason": "stop"}]}
    async with FakeBackend(script(first, odd, last, "[DONE] ")) as backend, serving(settings(backend.url)) as proxy:
        response = await proxy.chat(USER, stream=True)
    assert [json.loads(event) for event in events(response.text)[:2]] == [first, last]
    assert events(response.text)[2:] == ["[DONE]"]


async def test_an_emoji_that_is_cut_between_two_deltas_is_stored_whole():
    """Halves of a surrogate pair are legal JSON escapes; the thought goes back with the whole character."""
    halves = [
        '{"choices":[{"index":0,"delta":{"role":"assistant","reasoning_content":"\\ud83d"}}]}',
        '{"choices":[{"index":0,"delta":{"reasoning_content":"\\ude00"}}]}',
        '{"choices":[{"index":0,"delta":{"content":"Two files."},"finish_reason":"stop"}]}',
        "[DONE]",
    ]
    async with FakeBackend(script(*halves)) as backend, serving(settings(backend.url)) as proxy:
        response = await proxy.chat(USER, stream=True)
        assert events(response.text) == halves
        await proxy.chat(USER, SAID, MORE)
        assert backend.requests[-1].body["messages"][1]["reasoning_content"] == "\U0001f600"


async def test_half_an_emoji_in_a_request_is_replaced_and_not_refused():
    """Front ends cut texts in the middle of a pair; engines refuse what is left."""
    async with FakeBackend(THOUGHT) as backend, serving(settings(backend.url)) as proxy:
        body = '{"model":"m","messages":[{"role":"user","content":"cut \\ud83d"}]}'
        response = await proxy.http.post(f"{proxy.url}/chat/completions", content=body)
        assert response.status_code == 200
        assert backend.requests[0].body["messages"][0]["content"] == "cut \ufffd"


async def test_headers_beyond_ascii_are_passed_on_as_they_came():
    """User names stand in headers."""
    async with FakeBackend(THOUGHT) as backend, serving(settings(backend.url)) as proxy:
        for value in ("Jörg".encode(), "Jörg".encode("latin-1")):
            response = await proxy.http.post(
                f"{proxy.url}/chat/completions", json={"model": "m", "messages": [USER]}, headers=[(b"x-title", value)]
            )
            assert response.status_code == 200


async def test_numbers_that_no_engine_takes_are_refused_and_those_of_backends_left_out():
    """No number loses a ledger row."""
    usage = {"prompt_tokens": 10**30, "completion_tokens": -4, "total_tokens": "x"}
    huge = {"predicted_per_second": 10**400, "prompt_n": -5, "cache_n": 1}
    choice = {"index": 0, "delta": {"content": "a"}, "finish_reason": "stop"}
    line = {"choices": [choice], "usage": usage, "timings": huge}
    async with FakeBackend(script(line, "[DONE]")) as backend, serving(settings(backend.url)) as proxy:
        refused = await proxy.chat(USER, max_tokens=2**63)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "max_tokens")
        await proxy.chat(USER, stream=True)
        row = (await proxy.rows(2))[1]
    assert (row["outcome"], row["prompt_tokens"], row["decode_tokens_per_second"]) == ("ok", None, None)
    assert (row["completion_tokens"], row["reasoning_source"]) == (1, "estimated")


async def test_a_backend_behind_user_and_password_is_reached():
    """A URL's credentials become Basic authorization, and are shown nowhere."""
    async with FakeBackend(THOUGHT) as backend:
        url = backend.url.replace("://", "://anna:pa%20ss-word@")
        async with serving(settings(url)) as proxy:
            assert (await proxy.chat(USER)).status_code == 200
    assert backend.requests[0].headers["authorization"] == "Basic YW5uYTpwYSBzcy13b3Jk"


async def test_a_client_that_offers_http2_is_served():
    """Java's HttpClient sends `Upgrade: h2c` with every plain request."""
    async with FakeBackend(THOUGHT) as backend, serving(settings(backend.url)) as proxy:
        headers = {"connection": "Upgrade, HTTP2-Settings", "upgrade": "h2c", "http2-settings": "AAMAAABk"}
        assert (await proxy.chat(USER, headers=headers)).status_code == 200


@pytest.mark.parametrize("path", ["/chat/./completions", "/chat/%2e/completions", "/a/../chat/completions"])
async def test_dot_segments_lead_nowhere(path):
    """They would reach the backend's chat without any rule."""
    async with FakeBackend(THOUGHT) as backend, serving(settings(backend.url)) as proxy:
        port = httpx.URL(proxy.url).port
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        body = b'{"model":"m","messages":[{"role":"user","content":"x"}]}'
        writer.write(
            f"POST /v1{path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n".encode()
            + body
        )
        assert b" 404 " in (await reader.read()).split(b"\r\n")[0]
        writer.close()
        assert backend.requests == []


async def test_a_client_that_leaves_behind_the_finish_has_its_turn_remembered():
    """Some clients close as soon as they see a finish reason."""
    async with FakeBackend(THOUGHT.first(7).then_stall(), THOUGHT) as backend:
        async with serving(settings(backend.url)) as proxy:
            body = {"model": "m", "messages": [USER], "stream": True}
            async with proxy.http.stream("POST", f"{proxy.url}/chat/completions", json=body) as response:
                async for line in response.aiter_lines():
                    if '"stop"' in line:
                        break
            row = (await proxy.rows())[0]
            assert (row["outcome"], row["finish_reason"]) == ("ok", "stop")
            assert row["prompt_tokens"] > 0, "estimated: the engine was left before it told"
            second = await proxy.chat(USER, SAID, MORE)
            assert "restored=1" in second.headers["x-proxy-history"]


async def test_a_passed_through_body_that_breaks_is_cut_and_not_completed(caplog):
    """The client sees that it is incomplete, and no traceback is logged."""
    half = raw(b"half of it", headers={"content-length": "100"}).then_cut()
    async with FakeBackend(paths={"/v1/files": half}) as backend, serving(settings(backend.url)) as proxy:
        with pytest.raises(httpx.RemoteProtocolError):
            await proxy.http.get(f"{proxy.url}/files")
        assert (await proxy.rows())[0]["outcome"] == "upstream_error"
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("stream", [False, True])
async def test_a_thought_in_details_alone_is_hidden_or_shown_like_any_other(stream):
    """OpenRouter's structured thoughts, also where the text is null and the summary is not."""
    details = [{"type": "reasoning.summary", "text": None, "summary": "the thought"}]
    said = {"role": "assistant", "content": "a", "reasoning_details": details}
    choice = {"index": 0, "finish_reason": "stop", **({"delta": said} if stream else {"message": said})}
    reply = script({"choices": [choice]}, "[DONE]") if stream else document({"choices": [choice]})
    for shown in ("hidden", "reasoning_content"):
        tables = {"defaults": {"client_reasoning": shown}}
        async with FakeBackend(reply) as backend, serving(settings(backend.url, **tables)) as proxy:
            response = await proxy.chat(USER, stream=stream)
            assert ("the thought" in response.text) == (shown != "hidden")
            assert ('"reasoning_content":"the thought"' in response.text) == (shown != "hidden")


async def test_a_cookie_of_one_answer_is_not_sent_with_the_next_request():
    """A backend's session cookie would tie callers together."""
    reply = document({"choices": []}, headers={"set-cookie": "session=anna; Path=/"})
    async with FakeBackend(reply) as backend, serving(settings(backend.url)) as proxy:
        first = await proxy.chat(USER)
        assert "set-cookie" not in first.headers
        await proxy.chat(USER, headers={"cookie": "browser=1"})
        assert all("cookie" not in request.headers for request in backend.requests)
