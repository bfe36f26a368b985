"""What `test_trouble.py` leaves over: oddities, refusals, silence, size, kept connections, TLS and the other paths."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import subprocess
import threading
from dataclasses import replace
from typing import Any

import httpx
import pytest
from running import serving, settings
from test_trouble import (
    ALL_SAID,
    CHUNKED,
    GOOD,
    LOCAL,
    TEXT,
    THOUGHT,
    USER,
    WAYS,
    WHOLE,
    Fault,
    Front,
    _no_fault_of_ours,
    chunk,
    framed,
    gzip,
    http,
    sse,
    told_of,
    trouble,
)

from proxy.sse import EVENT_LIMIT
from proxy.testing import FakeBackend, Reply, Request, answer, document, error, raw, wire
from proxy.testing import events as script

__all__ = ["_no_fault_of_ours", "trouble"]  # fixtures

pytestmark = pytest.mark.asyncio(loop_scope="module")

STOP = {"index": 0, "delta": {}, "finish_reason": "stop"}
JSON = {"content-type": "application/json"}


def in_turn(*faults: Fault) -> Fault:
    """Each request meets the next one."""

    def fault(request: Request) -> Reply:
        found = faults[request.number]
        return found(request) if callable(found) else found

    return fault


# What is no trouble --------------------------------------------------------------------------------------------------


def as_it_stands(request: Request) -> Reply:
    """No content type, no length, no framing."""
    return wire(b"HTTP/1.1 200 OK\r\n\r\n", GOOD if request.get("stream") else WHOLE)


def byte_by_byte(request: Request) -> Reply:
    """Each byte in a write of its own."""
    data, headers = (GOOD, {}) if request.get("stream") else (WHOLE, JSON)
    return raw(*(bytes([byte]) for byte in data), headers=headers)


INFORMED = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\nHTTP/1.1 200 OK"
LONGER = "content-length: 9999"
NO_TROUBLE: dict[str, tuple[Fault, tuple[str, ...]]] = {
    "HTTP/1.0 without a length": (http(start="HTTP/1.0 200 OK"), tuple(WAYS)),
    "HTTP/1.0 with Connection: close": (http("connection: close", start="HTTP/1.0 200 OK"), tuple(WAYS)),
    "100 and 103 first": (http(start=INFORMED), tuple(WAYS)),
    "no content type": (as_it_stands, tuple(WAYS)),
    "headers beyond ASCII": (http("x-name: J\xf6rg", "x-other: J\xc3\xb6rg"), tuple(WAYS)),
    "gzip that nobody asked for": (http("content-encoding: gzip", body=gzip), tuple(WAYS)),
    "every byte by itself": (byte_by_byte, tuple(WAYS)),
    "JSON named text/plain": (raw(WHOLE, headers={"content-type": "text/plain"}), ("whole",)),
    "no last chunk behind the finish": (http(CHUNKED, body=framed), ("stream", "gathered")),
    "a shorter body behind the finish": (http(LONGER), ("stream", "gathered")),
    "a reset behind the finish": (script(*ALL_SAID).then_abort(), ("stream", "gathered")),
    "no [DONE]": (script(*ALL_SAID), ("stream", "gathered")),
    "no end of the last line": (http(said=sse(*ALL_SAID).rstrip()), ("stream", "gathered")),
    "[DONE] without a finish": (script(*ALL_SAID[:-1], "[DONE]"), ("stream", "gathered")),
    "[DONE], and then nothing more": (script(*ALL_SAID, "[DONE]").then_stall(), ("stream", "gathered")),
}


@pytest.mark.parametrize(("fault", "ways"), NO_TROUBLE.values(), ids=NO_TROUBLE)
async def test_what_is_only_odd_is_a_whole_answer_that_is_remembered(trouble, fault, ways):
    """Whatever its frame lacks, all was said."""
    async with trouble(fault) as (_, front):
        for way in ways:
            (await front.ask(way)).is_good()


TRANSLATED = http(start="HTTP/1.1 200 Erf\xfcllt")


async def test_a_reason_phrase_beyond_ascii_is_no_trouble(trouble):
    """Servers translate them."""
    async with trouble(TRANSLATED) as (_, front):
        for way in WAYS:
            (await front.ask(way)).is_good()


async def test_a_stream_of_nothing_but_done_is_an_error(trouble):
    """Nothing was said, and there is no event that could tell the client a finish."""
    async with trouble(script(b": ping\n\n", "[DONE]")) as (_, front):
        told = await front.ask("stream")
    assert (list(told.said[-1]), told.row["outcome"]) == (["error"], "upstream_error")


async def test_bytes_that_are_no_text_leave_as_what_they_are_or_as_replacements(trouble):
    """A NUL as it came, what is no UTF-8 as U+FFFD: nothing ends for it."""
    said = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":"a\0b\xff\\u0000"}}]}\n\n'
    reply = raw(said + sse({"choices": [STOP]}, "[DONE]"))
    async with trouble(reply) as (_, front):
        streamed, gathered = await front.ask("stream"), await front.ask("gathered")
    assert "a\0b\ufffd\\u0000" in streamed.response.text
    assert gathered.heard == ("", "a\0b\ufffd\0", ["stop"])
    assert [(told.row["outcome"], told.turns) for told in (streamed, gathered)] == [("ok", 1)] * 2


# The backend says no -------------------------------------------------------------------------------------------------

SLOW_DOWN = {"error": {"message": "slow down", "type": "rate_limit_reached_error"}}
ADVICE = {"retry-after": "7", "x-ratelimit-remaining": "0", "x-trace-id": "t", "www-authenticate": "Bearer"}


@pytest.mark.parametrize(
    ("status", "again"), [(401, None), (429, None), (503, None), (529, None), (500, "false"), (504, "false")]
)
async def test_a_refusal_keeps_its_status_words_and_headers(trouble, status, again):
    """However it was asked; the SDK may send again what certainly cost nothing. The proxy is not the origin."""
    async with trouble(error(status, SLOW_DOWN, ADVICE)) as (_, front):
        for way in WAYS:
            told = await front.ask(way)
            headers = told.response.headers
            assert (told.way, told.response.status_code) == (way, status)
            assert told.response.json()["error"] == {**SLOW_DOWN["error"], "param": None, "code": None}
            assert {name: headers[name] for name in ADVICE} == ADVICE
            assert (headers.get("x-should-retry"), headers.get("x-proxy-error")) == (again, None)
            assert headers["x-proxy-backend"] == "local"
            row = told.row
            assert (row["outcome"], row["status"], row["error"]) == ("upstream_error", status, "slow down")
            assert (row["attempts"], row["completion_tokens"], told.turns) == (1, None, 0)


LONG = "x" * 1_000_000


@pytest.mark.parametrize(
    "body",
    [
        f"<html>{LONG}".encode(),
        pytest.param(
            {"error": {"message": LONG}},
        ),
    ],
    ids=["HTML", "JSON"],
)
async def test_a_refusal_of_a_megabyte_is_cut(trouble, body):
    """A row of the ledger is no place for it."""
    async with trouble(error(500, body)) as (_, front):
        told = await front.ask("whole")
    assert len(told.response.json()["error"]["message"]) <= 2000
    assert len(told.row["error"]) <= 2000


async def test_a_refusal_whose_body_breaks_off_is_a_refusal(trouble):
    """The status and the headers came; only the words are incomplete."""
    headers = {**JSON, "content-length": "99", "retry-after": "7"}
    async with trouble(raw(b'{"error": {"mess', status=429, headers=headers).then_cut()) as (_, front):
        response = (await front.ask("whole")).response
    assert (response.status_code, response.headers.get("retry-after")) == (429, "7")


async def test_a_second_attempt_that_breaks_is_the_last():
    """A prompt that was too long with what was put back is sent once more without it, and then never again."""
    said = {"role": "assistant", "content": "Two files."}

    def rules(request: Request) -> Reply:
        replies = [answer("Two files.", reasoning="T"), error(400, "exceeds the available context size"), wire()]
        return replies[request.number]

    async with FakeBackend(rules=rules) as backend, serving(settings(backend.url)) as proxy:
        await proxy.chat(USER)
        response = await proxy.chat(USER, said, USER)
        row = (await proxy.rows(2))[1]
    assert (response.status_code, response.headers["x-should-retry"]) == (502, "false")
    assert (row["outcome"], row["attempts"], len(backend.requests)) == ("upstream_error", 2, 3)


async def asked_of_another(*faults: Fault) -> int:
    """How many requests went to the backend that is named for the case. Each fault meets each way of asking."""
    async with FakeBackend(answer("not for you")) as other:
        async with FakeBackend(rules=in_turn(*(fault for fault in faults for _ in WAYS))) as first:
            local = {**LOCAL, "url": first.url, "fallback": ["other"]}
            tables = {"local": local, "other": {**LOCAL, "url": other.url, "models": ["n"]}}
            async with serving(settings(first.url, backends=tables)) as proxy:
                for _ in faults:
                    for way in WAYS.values():
                        await proxy.chat(USER, **way)
            assert len(first.requests) == len(faults) * len(WAYS)
    return len(other.requests)


async def test_no_other_backend_is_asked_where_this_one_may_have_begun():
    """`fallback` is for what cannot have been generated."""
    html = raw(b"<html>", headers={"content-type": "text/html"})
    inside = document({"error": {"message": "boom", "code": 502}})
    broken = http(said=sse(*TEXT), whole=WHOLE[:40])
    assert await asked_of_another(wire(), error(500, SLOW_DOWN), error(429, SLOW_DOWN), html, inside, broken) == 0


async def test_no_other_backend_is_asked_for_a_reason_phrase_beyond_ascii():
    """The answer is there, and paid for."""
    assert await asked_of_another(TRANSLATED) == 0


# What errors say -----------------------------------------------------------------------------------------------------

UNNAMED: list[tuple[str, Fault]] = [
    ("stream", script(*TEXT)),
    ("stream", raw(b"<html>", headers={"content-type": "text/html"})),
    ("whole", document("moved", 301, {"location": "/v2"})),
    ("whole", raw(WHOLE[:40], headers=JSON)),
    ("whole", wire(b"HTTP/1.1 204 No Content\r\n\r\n")),
    ("whole", document({"choices": []})),
]


async def test_an_error_of_the_proxy_names_the_backend(trouble):
    """With several of them, who shall be looked at?"""
    async with trouble(in_turn(*(fault for _, fault in UNNAMED))) as (_, front):
        told = [(await front.ask(way)).row["error"] for way, _ in UNNAMED]
    assert [message for message in told if "local" not in message] == []


async def test_an_answer_without_a_choice_is_an_error_of_the_proxy(trouble):
    """The backend said 200: the words are ours, and so `x-proxy-error` tells."""
    async with trouble(in_turn(document({}), document({}), script("[DONE]"))) as (_, front):
        for way in WAYS:
            (await front.ask(way)).is_refused()


async def test_a_broken_answer_has_cost_its_prompt_and_what_came():
    """Prefill was paid for before the first token; the report would leave it out."""
    price = {"m": {"backend": "local", "price": {"input": 1.0, "output": 2.0}}}
    async with FakeBackend(script(*TEXT).then_abort()) as backend:
        async with serving(settings(backend.url, models=price)) as proxy:
            front = Front(proxy)
            rows = [(await front.ask(way)).row for way in ("stream", "gathered")]
    assert [row["completion_tokens"] for row in rows] == [5, 5]
    assert all(row["prompt_tokens"] and row["cost_usd"] for row in rows)


# Silence -------------------------------------------------------------------------------------------------------------


async def test_silence_before_the_headers_is_504_after_read_timeout(trouble):
    """For each way of asking; and the backend is left."""
    async with trouble(answer("late").after(asyncio.Event()), read_timeout=0.1) as (backend, front):
        for way in WAYS:
            told = (await front.ask(way)).is_refused(504, "upstream_timeout")
            assert "backend local" in told["message"]
            assert "`read_timeout`" in told["message"]
        assert all([await request.hung_up() for request in backend.requests])


async def test_silence_in_the_middle_is_an_error_after_read_timeout(trouble):
    """What came before it is delivered and counted."""
    stuck = http(said=sse(*TEXT), whole=WHOLE[:40])

    async with trouble(lambda request: replace(stuck(request), end="stall"), read_timeout=0.1) as (backend, front):
        streamed = await front.ask("stream")
        streamed.is_broken(TEXT, 504, "upstream_timeout")
        streamed.has_spent("Two names.", "Two ")
        for way in ("whole", "gathered"):
            (await front.ask(way)).is_refused(504, "upstream_timeout")
        assert all([await request.hung_up() for request in backend.requests])


async def test_a_refusal_whose_body_never_ends_is_an_error_after_read_timeout(trouble):
    """Also there the client gets an answer."""
    stuck = raw(b"half", status=500, headers={"content-length": "100"}).then_stall()
    async with trouble(stuck, read_timeout=0.1) as (backend, front):
        response = (await front.ask("whole")).response
        assert (response.status_code in (500, 504), response.headers["x-should-retry"]) == (True, "false")
        assert await backend.requests[0].hung_up()


async def test_read_timeout_counts_from_byte_to_byte(trouble):
    """An answer may take longer than that, and a comment is a byte."""
    slow = script(*THOUGHT, b": ping\n\n", b": ping\n\n", *ALL_SAID[2:], "[DONE]", gap=0.08)
    async with trouble(slow, read_timeout=0.4) as (_, front):
        told = await front.ask("stream")
        told.is_good()
    assert told.row["duration_ms"] > 400


async def test_trouble_behind_a_keep_alive_is_told_in_a_body_of_status_200():
    """A stream has comments, an error and `[DONE]`, a whole answer blanks and the error; the row tells the status."""
    inside = document({"error": {"message": "boom", "code": 402}})
    html = raw(b"<html>", headers={"content-type": "text/html"})
    faults = [(wire(), 502), (html, 502), (error(429, SLOW_DOWN), 429), (inside, 402)]
    kept_alive = {"keepalive_seconds": 0.04, "nonstream_keepalive_seconds": 0.04}
    async with FakeBackend(rules=in_turn(*(fault.after(0.1) for fault, _ in faults for _ in WAYS))) as backend:
        async with serving(settings(backend.url, server=kept_alive)) as proxy:
            front = Front(proxy)
            for status, way in [(status, way) for _, status in faults for way in WAYS]:
                told = await front.ask(way)
                begins, failure = (":", told.said[-1]) if way == "stream" else (" ", told.response.json())
                assert (status, way, told.response.status_code, told.response.text[0]) == (status, way, 200, begins)
                row = told.row
                assert (set(failure), failure["error"]["message"]) == ({"error"}, row["error"])
                assert (row["outcome"], row["status"], row["attempts"]) == ("upstream_error", status, 1)
    assert len(backend.requests) == len(faults) * len(WAYS)


@pytest.mark.parametrize(
    ("fault", "writes", "tokens"),
    [(raw(*[b": ping\n\n"] * 200_000), 100, None), (script(*TEXT), len(TEXT), 5)],
    ids=["comments", "half an answer"],
)
async def test_an_answer_that_never_ends_is_left_when_the_client_leaves(fault, writes, tokens):
    """Comments keep a connection alive and are no answer; what came of one is counted."""
    async with FakeBackend(fault.then_stall()) as backend, serving(settings(backend.url)) as proxy:
        for count, way in enumerate(("stream", "gathered"), 1):
            asking = asyncio.create_task(proxy.chat(USER, **WAYS[way]))
            request = await backend.request_arrived()
            await request.written(writes)
            await asyncio.sleep(0.05)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            assert await request.hung_up()
            row = (await proxy.rows(count))[-1]
            assert (way, row["outcome"], row["completion_tokens"]) == (way, "client_disconnected", tokens)
            assert row["reasoning_source"] == ("estimated" if tokens else "unknown")
            assert request.writes < 200_000


# Size ----------------------------------------------------------------------------------------------------------------

MEGABYTE = b"x" * (1 << 20)


async def test_a_line_without_end_is_an_error_and_is_not_kept(trouble):
    """The backend is left at the limit of an event, not at the end of the memory."""
    async with trouble(raw(sse(*TEXT), b"data: ", *[MEGABYTE] * 200)) as (backend, front):
        told = (await front.ask("stream")).is_broken(TEXT)
        assert await backend.requests[0].hung_up()
    assert str(EVENT_LIMIT) in told["message"]
    assert backend.requests[0].writes < EVENT_LIMIT / len(MEGABYTE) + 20


async def test_a_whole_answer_without_end_is_not_kept(trouble):
    """As an event of a stream is not."""
    async with trouble(raw(b'"', *[MEGABYTE] * 90, headers=JSON)) as (backend, front):
        await front.ask("whole")
        assert await backend.requests[0].hung_up()


async def test_an_event_of_five_megabytes_leaves_as_it_came(trouble):
    """An image, or a whole file in the arguments of a call."""
    big = chunk(role="assistant", content="word " * (1 << 20))
    usage = {"prompt_tokens": 1, "completion_tokens": 9, "completion_tokens_details": {"reasoning_tokens": 0}}
    async with trouble(script(big, {**chunk("stop"), "usage": usage}, "[DONE]")) as (_, front):
        told = await front.ask("stream", stream_options={"include_usage": True})
    assert told.said[0] == big
    assert (told.row["outcome"], told.row["completion_tokens"], told.turns) == ("ok", 9, 1)


# Connections ---------------------------------------------------------------------------------------------------------


class Counting(FakeBackend):
    """Knows how many connections its chat requests came by."""

    @property
    def connections(self) -> int:
        """Of chat requests."""
        return len({id(peer) for peer in self._peers})

    _peers: list[Any]

    async def _answer(self, request: Request, peer: Any) -> bool:
        if request.method == "POST":
            self._peers = [*getattr(self, "_peers", []), peer]
        return await super()._answer(request, peer)


async def test_a_server_that_closes_after_each_answer_costs_no_request():
    """It does not say so, and the next request comes at once: none fails, and none is sent twice."""
    for reply, reused in ((answer("a"), True), (answer("a").then_close(), False)):
        async with Counting(reply) as backend, serving(settings(backend.url)) as proxy:
            told = [await proxy.chat(USER, **way) for _ in range(8) for way in WAYS.values()]
        assert [response.status_code for response in told] == [200] * 24
        assert all("error" not in response.text for response in told)
        assert len(backend.requests) == 24
        assert (backend.connections < 24) == reused


async def test_a_connection_to_llama_server_is_never_used_again():
    """It closes them without notice, after a stream."""
    async with Counting(answer("a"), style="llama-server") as backend:
        local = {"local": {**LOCAL, "url": backend.url, "engine": "llama-server"}}
        async with serving(settings(backend.url, backends=local)) as proxy:
            for way in [*WAYS, *WAYS]:
                assert (await proxy.chat(USER, **WAYS[way])).status_code == 200
    assert (len(backend.requests), backend.connections) == (6, 6)


async def test_a_request_that_meets_the_close_is_an_error_and_not_sent_again():
    """The server read of it before it closed: nobody knows what it did."""
    async with Counting(answer("a"), wire()) as backend, serving(settings(backend.url)) as proxy:
        assert (await proxy.chat(USER)).status_code == 200
        response = await proxy.chat(USER)
    assert (response.status_code, response.headers["x-should-retry"]) == (502, "false")
    assert (len(backend.requests), backend.connections) == (2, 1)


def one_and_another(*between: Any) -> Fault:
    """Two answers to the first request, and the connection is kept; a good one to the next."""
    lost = WHOLE.replace(b"Two files.", b"FOREIGN")
    answers = [b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body) for body in (WHOLE, lost)]
    steps = [answers[0], *between, answers[1]] if between else [b"".join(answers)]
    return lambda request: http()(request) if request.number else replace(wire(*steps), end="complete")


async def test_a_second_answer_behind_the_first_is_nobodys(trouble):
    """It came with the first one: the connection is not used again."""
    async with trouble(one_and_another()) as (_, front):
        for _ in range(2):
            (await front.ask("whole")).is_good()


async def test_an_answer_that_comes_while_nobody_has_asked_is_nobodys(trouble):
    """Else the next caller reads what was said to another one."""
    gate = asyncio.Event()
    async with trouble(one_and_another(gate)) as (backend, front):
        (await front.ask("whole")).is_good()
        gate.set()
        await backend.requests[0].written(2)
        await asyncio.sleep(0.05)
        (await front.ask("whole")).is_good()


GARBLED = {
    "a size that is none": b"zz\r\n",
    "an answer of a gateway": b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n",
}


def garbled(end: bytes, *said: dict[str, Any]) -> Fault:
    """Good headers and chunks, and then, a moment later, what is no chunk."""

    def reply(request: Request) -> Reply:
        kind, data = (b"text/event-stream", sse(*said)) if request.get("stream") else (b"application/json", WHOLE[:40])
        head = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\n%b\r\n\r\n" % (kind, CHUNKED.encode())
        return wire(head, 0.02, framed(data), 0.02, end, 0.02)

    return reply


PATIENCE = 5
"""Seconds after which a test calls it a hang."""


@pytest.mark.parametrize("end", GARBLED.values(), ids=GARBLED)
async def test_chunks_that_turn_into_garbage_are_an_error_in_the_stream(trouble, end):
    """What came before is delivered; the connection is closed, and the client must learn of it."""
    async with trouble(garbled(end, *TEXT), read_timeout=0.3) as (_, front):
        (await front.ask("stream", within=PATIENCE)).is_broken(TEXT)


@pytest.mark.parametrize("way", ["whole", "gathered"])
async def test_a_whole_answer_whose_chunks_turn_into_garbage_is_502(trouble, way):
    """Whether the backend streams it or not."""
    async with trouble(garbled(b"zz\r\n", *TEXT)) as (_, front):
        (await front.ask(way, within=PATIENCE)).is_refused()


async def test_garbage_behind_the_finish_is_no_trouble(trouble):
    """All was said."""
    async with trouble(garbled(b"zz\r\n", *ALL_SAID)) as (_, front):
        (await front.ask("stream", within=PATIENCE)).is_good()


async def test_a_look_that_is_garbled_ends(monkeypatch):
    """The next one finds out what stands there; else it stays unknown till a restart."""
    monkeypatch.setattr("proxy.backend.PROBE_AGAIN", 0.0)
    monkeypatch.setattr("proxy.backend.PROBE_WAIT", 0.1)
    async with FakeBackend(answer("a"), style="vllm") as backend:
        good, backend.paths["/v1/models"] = backend.paths["/v1/models"], garbled(b"zz\r\n")
        tables = {"backends": {"local": {"url": backend.url}}}
        async with serving(settings(backend.url, engine="auto", **tables)) as proxy:
            await proxy.chat(USER, model="fake")
            backend.paths["/v1/models"] = good
            async with asyncio.timeout(PATIENCE):
                while proxy.pipeline.backends.first.engine != "vllm":
                    await proxy.chat(USER, model="fake")
                    await asyncio.sleep(0.02)


async def test_a_name_that_is_looked_up_for_too_long_ends_after_connect_timeout(monkeypatch):
    """A resolver that does not answer takes half a minute."""
    over = threading.Event()

    def slow(host, *rest, asks=socket.getaddrinfo, **options):
        if host == "backend.invalid":
            over.wait(5)
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return asks(host, *rest, **options)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    url = "http://backend.invalid/v1"
    try:
        async with serving(settings(url, backends={"local": {**LOCAL, "url": url, "connect_timeout": 0.1}})) as proxy:
            told = await Front(proxy).ask("whole", within=0.5)
            told.is_refused(code="upstream_unreachable", outcome="upstream_unreachable")
    finally:
        over.set()


# TLS -----------------------------------------------------------------------------------------------------------------


async def test_tls_to_a_port_that_speaks_plain_http_may_be_tried_again():
    """`https` in the place of `http`: no request was sent."""

    async def refuses(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(refuses, "127.0.0.1", 0) as server:
        url = "https://{}:{}/v1".format(*server.sockets[0].getsockname())
        assert all("SSL" in message for message in await told_of(url))


async def test_a_handshake_that_is_not_answered_ends_after_connect_timeout():
    """A plain server waits for the end of the line."""
    async with FakeBackend(answer("a")) as backend:
        url = backend.url.replace("http:", "https:")
        assert all("timeout" in message for message in await told_of(url, connect_timeout=0.1))


@pytest.fixture
def certificate(tmp_path) -> ssl.SSLContext:
    """Of this machine, signed by nobody else."""
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("the program `openssl` makes the certificate")
    made = [program, "req", "-x509", "-nodes", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    made += ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    made += ["-days", "2", "-keyout", "key.pem", "-out", "cert.pem"]
    subprocess.run(made, check=True, capture_output=True, cwd=tmp_path)  # noqa: S603
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    return context


async def test_a_certificate_that_nobody_signed_is_told(certificate):
    """The prompt does not leave, and the reason is named."""
    async with await asyncio.start_server(lambda *_: None, "127.0.0.1", 0, ssl=certificate) as server:
        url = "https://{}:{}/v1".format(*server.sockets[0].getsockname())
        assert all("self-signed certificate" in message for message in await told_of(url))


# Other paths ---------------------------------------------------------------------------------------------------------

ELSEWHERE: dict[str, tuple[Fault, dict[str, float], int, str]] = {
    "closed before the headers": (wire(), {}, 502, "upstream_error"),
    "no HTTP": (wire(b"SSH-2.0-OpenSSH_9.9\r\n\r\n"), {}, 502, "upstream_error"),
    "silence": (document({}).after(asyncio.Event()), {"read_timeout": 0.1}, 504, "upstream_timeout"),
}


@pytest.mark.parametrize(("fault", "local", "status", "code"), ELSEWHERE.values(), ids=ELSEWHERE)
async def test_trouble_on_another_path_is_told_in_the_same_way(trouble, fault, local, status, code):
    """Embeddings and the like have cost tokens, too."""
    async with trouble(answer("a"), **local) as (backend, front):
        backend.paths["/v1/embeddings"] = fault
        response = await front.proxy.http.post(f"{front.proxy.url}/embeddings", json={"model": "m", "input": "x"})
        row = await front.row(response)
    assert (response.status_code, response.json()["error"]["code"]) == (status, code)
    assert (response.headers["x-proxy-error"], response.headers["x-should-retry"]) == (code, "false")
    assert (row["kind"], row["outcome"], row["status"], row["attempts"]) == ("passthrough", "upstream_error", status, 1)
    assert "backend local" in row["error"]
    assert len(backend.others) == 1


async def test_a_backend_that_is_down_is_told_on_another_path():
    """It may be tried again."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = "http://{}:{}/v1".format(*taken.getsockname())
    async with serving(settings(url)) as proxy:
        response = await proxy.http.post(f"{proxy.url}/embeddings", json={"model": "m", "input": "x"})
        row = (await proxy.rows())[0]
    assert (response.status_code, response.headers["x-proxy-error"]) == (502, "upstream_unreachable")
    assert "x-should-retry" not in response.headers
    assert (row["kind"], row["outcome"]) == ("passthrough", "upstream_unreachable")


async def test_a_redirect_on_another_path_is_passed_on_and_not_followed(trouble):
    """What it means is between the client and the backend."""
    async with trouble(answer("a")) as (backend, front):
        backend.paths["/v1/files"] = document("moved", 307, {"location": "https://elsewhere.invalid/"})
        response = await front.proxy.http.get(f"{front.proxy.url}/files", follow_redirects=False)
    assert (response.status_code, response.headers["location"]) == (307, "https://elsewhere.invalid/")


async def test_a_body_on_another_path_that_is_reset_is_delivered_as_far_as_it_came(trouble):
    """Without its end, so that the client sees that it is not complete."""
    async with trouble(answer("a")) as (backend, front):
        backend.paths["/v1/audio/speech"] = raw(b"half of it", headers={"content-type": "audio/mpeg"}).then_abort()
        proxy = front.proxy
        async with proxy.http.stream("POST", f"{proxy.url}/audio/speech", json={"model": "m"}) as response:
            pieces = response.aiter_raw()
            assert await anext(pieces) == b"half of it"
            with pytest.raises(httpx.RemoteProtocolError):
                await anext(pieces)
        row = await front.row(response)
        await front.lets_go()
    assert (row["outcome"], row["status"], len(backend.others)) == ("upstream_error", 502, 1)


async def test_a_deletion_is_not_sent_twice(trouble):
    """The second one would find nothing to delete; and the row knows of one attempt."""
    async with trouble(answer("a")) as (backend, front):
        backend.paths["/v1/files/1"] = lambda request: document({}) if request.method == "GET" else wire()
        assert (await front.proxy.http.get(f"{front.proxy.url}/files/1")).status_code == 200
        await front.proxy.http.delete(f"{front.proxy.url}/files/1")
    assert [request.method for request in backend.others] == ["GET", "DELETE"]


async def test_a_refusal_on_another_path_keeps_its_advice(trouble):
    """Retry-After, and the words in OpenAI's shape where they were HTML."""
    async with trouble(answer("a")) as (backend, front):
        backend.paths["/v1/embeddings"] = error(503, b"<html>busy", {"retry-after": "3"})
        response = await front.proxy.http.post(f"{front.proxy.url}/embeddings", json={"input": "x"})
    assert (response.status_code, response.headers["retry-after"]) == (503, "3")
    assert response.json()["error"]["message"] == "<html>busy"
