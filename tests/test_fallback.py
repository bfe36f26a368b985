"""A server that loads its model is waited for; another backend stands in where nothing can have been generated, and
nowhere else."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from running import events
from test_keepalive import (
    LOCAL,
    SOON,
    TEXT,
    THOUGHT,
    USER,
    Fields,
    Served,
    _kept,
    asking,
    comments,
    faked,
    said,
    served,
    until,
)

from proxy.testing import FakeBackend, Reply, Request, answer, document, error, raw, wire
from proxy.testing import events as script

__all__ = ["_kept"]  # a fixture of every test here, too

pytestmark = pytest.mark.asyncio(loop_scope="module")

LOADING = error(503, {"error": {"message": "Loading model", "type": "unavailable_error", "code": 503}})
LLAMA = {**LOCAL, "engine": "llama-server"}
OTHER = {"engine": "kimi", "family": "kimi-k3", "models": ["n"], "slow": False}
PRICE = {"input": 1.0, "output": 2.0}
HI = {"role": "user", "content": "hi"}


class Loader:
    """A llama-server that loads its model until it is `ready`: 503 to everything."""

    def __init__(self, then: Reply | None = None) -> None:
        self.ready = False
        self.then = then or answer(TEXT, reasoning=THOUGHT)

    def __call__(self, request: Request) -> Reply:
        return self.then if self.ready else LOADING

    def models(self, request: Request) -> Reply:
        """The list of models."""
        return document({"object": "list", "data": [{"id": "m"}]}) if self.ready else LOADING


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The proxy looks more often than once a second whether the model is there."""
    monkeypatch.setattr("proxy.asking.LOADING_PAUSE", 0.04)


@contextlib.asynccontextmanager
async def loading(
    then: Reply | None = None, *, server: Fields | None = None, **local: Any
) -> AsyncIterator[tuple[Loader, FakeBackend, Served]]:
    """A server that loads, and the proxy in front of it."""
    loader = Loader(then)
    async with faked(rules=loader, name="loader") as backend:
        backend.paths["/v1/models"] = loader.models
        tables: Fields = {"backends": {"local": {**LOCAL, "url": backend.url, **local}}}
        async with served(backend, **tables, server=server or {}) as proxy:
            yield loader, backend, proxy


def looks(backend: FakeBackend) -> int:
    """How often it was looked whether the model is there."""
    return sum(request.path == "/v1/models" for request in backend.others)


# A server that loads -------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("_impatient")
@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_waits_until_the_model_is_there(stream):
    """It is looked for, and the request is sent once more when it is there; both sends are counted."""
    async with loading() as (loader, backend, proxy):
        asked = asyncio.create_task(proxy.chat(USER, stream=stream))
        await until(lambda: looks(backend) >= 3)
        assert len(backend.requests) == 1
        assert not asked.done()
        loader.ready = True
        response = await asked
        (row,) = await proxy.rows()
    assert response.status_code == 200
    assert len(backend.requests) == 2
    assert backend.requests[0].raw == backend.requests[1].raw
    assert TEXT in response.text or said(response.text)[:2] == (THOUGHT, TEXT)
    assert (row["outcome"], row["status"], row["attempts"]) == ("ok", 200, 2)


@pytest.mark.usefixtures("_impatient")
async def test_a_server_that_says_that_it_is_ready_and_loads_again_is_waited_for_again():
    """Its word is not enough: each send is counted."""
    async with loading() as (loader, backend, proxy):
        backend.paths["/v1/models"] = document({"object": "list", "data": []})
        asked = asyncio.create_task(proxy.chat(USER))
        await until(lambda: len(backend.requests) >= 3)
        loader.ready = True
        assert (await asked).status_code == 200
        (row,) = await proxy.rows()
    assert row["attempts"] == len(backend.requests) >= 4


@pytest.mark.usefixtures("_impatient")
@pytest.mark.parametrize("stream", [False, True])
async def test_after_loading_timeout_its_503_passes_on(stream):
    """In its own words, and an SDK may send the request again."""
    async with loading(loading_timeout=0.3) as (_, backend, proxy):
        began = time.monotonic()
        response = await proxy.chat(USER, stream=stream)
        took = time.monotonic() - began
        (row,) = await proxy.rows()
    assert (response.status_code, response.json()["error"]["message"]) == (503, "Loading model")
    assert "x-should-retry" not in response.headers
    assert "x-proxy-error" not in response.headers
    assert 0.3 <= took < 2
    assert looks(backend) >= 1
    assert (row["outcome"], row["status"], row["attempts"]) == ("upstream_error", 503, 1)


async def test_no_longer_than_loading_timeout_is_waited():
    """Also where that is less than a second, or no whole number of seconds."""
    async with loading(loading_timeout=0.2) as (_, _, proxy):
        began = time.monotonic()
        assert (await proxy.chat(USER)).status_code == 503
        assert time.monotonic() - began < 0.7


async def test_a_loading_timeout_of_0_passes_the_503_on_at_once():
    """Nobody looks again."""
    async with loading(loading_timeout=0) as (_, backend, proxy):
        before = looks(backend)
        response = await proxy.chat(USER)
        (row,) = await proxy.rows()
        assert looks(backend) == before
    assert (response.status_code, len(backend.requests), row["attempts"]) == (503, 1, 1)


async def test_another_503_is_not_waited_for():
    """Overloaded, or in maintenance: its words go on at once; and no other status is, whatever it says."""
    async with loading() as (loader, _, proxy):
        loader.ready = True
        for status, message in ((503, "overloaded"), (500, "Loading model"), (429, "Loading model")):
            loader.then = error(status, {"error": {"message": message}})
            response = await asyncio.wait_for(proxy.chat(USER), 1)
            assert (response.status_code, response.json()["error"]["message"]) == (status, message)
        rows = await proxy.rows(3)
    assert {row["attempts"] for row in rows} == {1}


@pytest.mark.usefixtures("_impatient")
async def test_who_waits_for_the_model_is_told_so():
    """In comments; then the answer comes."""
    async with loading(server=SOON) as (loader, _, proxy):
        async with asking(proxy) as reading:
            await reading.until(": the backend loads its model\n\n", 2)
            loader.ready = True
            text = await reading.rest()
    assert set(comments(text)) <= {"keep-alive", "the backend loads its model"}
    assert said(text) == (THOUGHT, TEXT, ["stop"], 1)


@pytest.mark.usefixtures("_impatient")
async def test_a_503_after_the_first_comment_comes_in_the_stream():
    """The stream is open by then."""
    async with loading(server=SOON, loading_timeout=0.3) as (_, _, proxy):
        response = await proxy.chat(USER, stream=True)
        (row,) = await proxy.rows()
    told, done = events(response.text)
    assert (response.status_code, done) == (200, "[DONE]")
    assert json.loads(told)["error"]["message"] == "Loading model"
    assert "the backend loads its model" in comments(response.text)
    assert (row["outcome"], row["status"]) == ("upstream_error", 503)


@pytest.mark.usefixtures("_impatient")
async def test_when_the_model_is_there_nobody_is_told_that_it_loads():
    """llama-server's headers come with its first token: reading a long prompt is not loading."""
    go = asyncio.Event()
    async with loading(answer(TEXT).after(go), server=SOON) as (loader, backend, proxy):
        async with asking(proxy) as reading:
            await reading.until(": the backend loads its model\n\n")
            loader.ready = True
            await until(lambda: len(backend.requests) == 2)
            asyncio.get_running_loop().call_later(0.3, go.set)
            text = await reading.rest()
    assert comments(text)[-1] == "keep-alive"


@pytest.mark.usefixtures("_impatient")
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_while_the_model_loads_ends_the_waiting(stream):
    """Nobody looks any more, the place is free, and nothing was generated that could be kept (`detach`)."""
    async with loading(max_concurrency=1, detach=True) as (loader, backend, proxy):
        leaves = asyncio.create_task(proxy.chat(USER, stream=stream))
        await until(lambda: looks(backend) >= 2)
        leaves.cancel()
        (row,) = await proxy.rows()
        await until(lambda: proxy.line().running == 0)
        await asyncio.sleep(0.05)
        before = looks(backend)
        await asyncio.sleep(0.15)
        assert looks(backend) == before
        loader.ready = True
        assert (await proxy.chat(USER)).status_code == 200
    assert (row["outcome"], row["attempts"], row["flags"]) == ("client_disconnected", 1, [])
    assert len(backend.requests) == 2


@pytest.mark.usefixtures("_impatient")
async def test_a_server_that_dies_while_it_loads_is_an_error_and_no_longer_waited_for():
    """No connection is made then, or one that is reset at once; nobody asks a third time."""
    loader = Loader()
    async with faked() as front:
        async with FakeBackend(rules=loader) as backend:
            backend.paths["/v1/models"] = loader.models
            url = backend.url
            async with served(front, backends={"local": {**LOCAL, "url": url}}) as proxy:
                asked = asyncio.create_task(proxy.chat(USER))
                await until(lambda: looks(backend) >= 2)
                await backend.__aexit__(None, None, None)
                response = await asked
                (row,) = await proxy.rows()
    assert response.status_code == 502
    assert response.json()["error"]["code"] == row["outcome"]
    assert row["outcome"] in ("upstream_unreachable", "upstream_error")
    assert row["attempts"] == 2


# Another backend -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def nobody() -> Iterator[str]:
    """A URL at which no connection is made, and which nobody else takes meanwhile."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}/v1"


@contextlib.asynccontextmanager
async def pair(
    first: Fields, other: Fields | None = None, *replies: Reply, style: str = "openai", **tables: Any
) -> AsyncIterator[tuple[FakeBackend, Served]]:
    """A backend with this table, and another one that stands in for it and replies so."""
    async with faked(*(replies or [answer(TEXT, reasoning=THOUGHT)]), style=style, name="other") as backend:
        local = {**LOCAL, "fallback": ["other"], **first}
        both = {"local": local, "other": {**OTHER, "url": backend.url, **(other or {})}}
        async with served(backend, backends=both, **tables) as proxy:
            yield backend, proxy


@contextlib.asynccontextmanager
async def full(**table: Any) -> AsyncIterator[tuple[Fields, asyncio.Event, FakeBackend]]:
    """The table of a backend that takes one request, and nobody waits; it answers when the event is set."""
    go = asyncio.Event()
    async with faked(answer("first").after(go), name="full") as backend:
        yield {"url": backend.url, "max_concurrency": 1, "queue_limit": 0, **table}, go, backend


def stood_in(response: Any, row: Fields, attempts: int) -> None:
    """The other one answered: the client and the row are told so."""
    assert response.status_code == 200
    assert TEXT.split()[0] in response.text
    assert response.headers["x-proxy-backend"] == row["backend"] == "other"
    assert "route" in response.headers["x-proxy-decisions"].split(",")
    assert "route" in row["decisions"]
    assert (row["outcome"], row["status"], row["attempts"], row["error"]) == ("ok", 200, attempts, None)


@pytest.mark.parametrize("stream", [False, True])
async def test_another_backend_stands_in_where_no_connection_is_made(stream):
    """Both sends are counted; the first one cost nothing."""
    with nobody() as url:
        async with pair({"url": url}) as (other, proxy):
            response = await proxy.chat(USER, stream=stream)
            (row,) = await proxy.rows()
    stood_in(response, row, attempts=2)
    assert (row["model"], row["upstream_model"], len(other.requests)) == ("m", "n", 1)


@pytest.mark.parametrize("stream", [False, True])
async def test_another_backend_stands_in_while_the_model_loads(stream):
    """At once: nobody waits."""
    loader = Loader()
    async with faked(rules=loader, name="loader") as first, pair({"url": first.url}) as (other, proxy):
        response = await asyncio.wait_for(proxy.chat(USER, stream=stream), 1)
        (row,) = await proxy.rows()
        stood_in(response, row, attempts=2)
        assert (len(first.requests), len(other.requests)) == (1, 1)


@pytest.mark.parametrize("stream", [False, True])
async def test_another_backend_stands_in_where_the_line_is_full(stream):
    """Nothing was sent to the first one; it is asked again when it has room."""
    async with full() as (table, go, first), pair(table) as (_, proxy):
        busy = asyncio.create_task(proxy.chat(USER))
        await until(lambda: len(first.requests) == 1)
        response = await proxy.chat(USER, stream=stream)
        (row,) = await proxy.rows()
        go.set()
        assert (await busy).headers["x-proxy-backend"] == "local"
        assert (await proxy.chat(USER)).headers["x-proxy-backend"] == "local"
        stood_in(response, row, attempts=1)


async def test_after_anything_else_nobody_stands_in():
    """Errors of every status, resets, silence, answers that are none: the first one may have begun."""
    half = script({"choices": [{"index": 0, "delta": {"role": "assistant", "content": "a"}}]})
    statuses = (400, 401, 404, 408, 413, 429, 500, 502, 503, 504, 529)
    faults = [error(status, {"error": {"message": "no"}}) for status in statuses]
    faults += [wire(), raw(b"<html>", headers={"content-type": "text/html"}), half.then_abort(), half.then_cut()]
    faults += [document({"error": {"message": "boom", "code": 503}}), answer(TEXT).after(asyncio.Event())]
    ways = [{}, {"stream": True}]
    async with faked(*(fault for fault in faults for _ in ways), name="first") as first:
        async with pair({"url": first.url, "read_timeout": 0.15}) as (other, proxy):
            for _ in faults:
                for way in ways:
                    response = await proxy.chat(USER, **way)
                    assert response.status_code >= 400 or '"error"' in response.text
            rows = await proxy.rows(len(faults) * len(ways))
        assert (len(first.requests), len(other.requests)) == (len(faults) * len(ways), 0)
    assert {(row["backend"], row["attempts"], row["outcome"]) for row in rows} == {("local", 1, "upstream_error")}


async def test_the_other_engine_is_spoken_to_in_its_own_dialect():
    """Effort, thoughts, budgets and cap as llama-server wants them, and not as the first one does; its own family."""
    said_before = {"role": "assistant", "content": "One.", "reasoning_content": "R"}
    with nobody() as url:
        other = {"engine": "llama-server", "family": "qwen3", "models": ["q"]}
        async with pair({"url": url, "engine": "vllm"}, other, style="llama-server") as (fake, proxy):
            fields: Fields = {"reasoning_effort": "high", "max_tokens": 9000, "stream": True}
            text = (await proxy.chat(HI, said_before, HI, **fields)).text
            (row,) = await proxy.rows()
        async with faked(answer(TEXT), style="llama-server", name="alone") as alone:
            table = {**other, "url": alone.url, "slow": False, "models": ["q", "m"]}
            async with served(alone, backends={"local": table}) as direct:
                await direct.chat(HI, said_before, HI, **fields)
            expected = alone.requests[0].body
        assert {**fake.requests[0].body, "model": "m"} == expected
    assert said(text)[:2] == (THOUGHT, TEXT)
    assert (row["engine"], row["family"], row["upstream_model"]) == ("llama-server", "qwen3", "q")


@pytest.mark.parametrize(
    ("serves", "sent"),
    [(["n"], "n"), (["m"], "m"), (["m", "n"], "m"), (["n", "m"], "m")],
)
async def test_the_other_one_is_asked_for_the_model_under_a_name_that_it_serves(serves, sent):
    """Under the client's name where it has that, its only one where it has but one."""
    with nobody() as url:
        async with pair({"url": url}, {"models": serves}) as (other, proxy):
            await proxy.chat(USER)
            (row,) = await proxy.rows()
            assert (other.requests[0].body["model"], row["upstream_model"], row["model"]) == (sent, sent, "m")


@pytest.mark.parametrize(
    ("prices", "cost"),
    [
        ({"m": {"backend": "local", "upstream": "big", "price": PRICE}}, None),
        (
            {
                "m": {"backend": "local", "upstream": "big", "price": {"input": 100.0, "output": 100.0}},
                "n": {"backend": "other", "price": PRICE},
            },
            (1 * 1.0 + 6 * 2.0) / 1_000_000,
        ),
    ],
)
async def test_the_price_is_that_of_the_model_that_answered(prices, cost):
    """And unknown where nobody has told it: never the price of the one that did not answer."""
    with nobody() as url:
        async with pair({"url": url, "models": ["big"]}, models=prices) as (_, proxy):
            response = await proxy.chat(USER)
            (row,) = await proxy.rows()
    stood_in(response, row, attempts=2)
    assert row["upstream_model"] == "n"
    assert (row["cost_usd"] is None) == (cost is None)
    if cost is None:
        assert "x-proxy-cost-usd" not in response.headers
    else:
        assert float(row["cost_usd"]) == pytest.approx(cost)


async def test_the_family_is_that_of_the_one_that_stands_in():
    """Also where `[models]` says of which family the first one's model is, and the other takes any name."""
    with nobody() as url:
        aliases = {"m": {"backend": "local", "upstream": "big", "family": "kimi-k3"}}
        other = {"models": [], "engine": "vllm", "family": "qwen3"}
        async with pair({"url": url, "models": ["big"]}, other, models=aliases) as (_, proxy):
            await proxy.chat(USER)
            (row,) = await proxy.rows()
    assert (row["backend"], row["engine"], row["family"]) == ("other", "vllm", "qwen3")


@pytest.mark.parametrize("detach", [False, True])
async def test_whether_an_answer_outlives_its_client_is_for_the_one_that_makes_it_to_say(detach):
    """`detach` of the first one, which has nothing to do with it, does not count."""
    go = asyncio.Event()
    with nobody() as url:
        reply = answer(TEXT, reasoning=THOUGHT).hold(go, after=3)
        async with pair({"url": url, "detach": not detach}, {"detach": detach}, reply) as (other, proxy):
            async with asking(proxy) as reading:
                await reading.until("two")
            with contextlib.suppress(TimeoutError):
                await other.requests[0].hung_up(0.4)
            left = other.requests[0].closed_by_peer
            go.set()
            (row,) = await proxy.rows()
    assert left is not detach
    assert (row["outcome"], row["flags"]) == (("ok", ["detached"]) if detach else ("client_disconnected", []))


async def test_who_stands_in_the_line_of_the_other_one_is_told_its_position_there():
    """In the comments and in the header; who leaves it has reached nobody."""
    go = asyncio.Event()
    with nobody() as url:
        reply = answer(TEXT).after(go)
        async with pair({"url": url}, {"max_concurrency": 1}, reply, server=SOON) as (other, proxy):
            busy = asyncio.create_task(proxy.chat(USER))
            await other.request_arrived()
            async with asking(proxy) as reading:
                await reading.until(": queued, position 1 of 1\n\n")
            timing = reading.response.headers["server-timing"]
            await until(lambda: proxy.line("other").waiting == 0)
            (row,) = await proxy.rows()
            go.set()
            assert (await busy).status_code == 200
            await until(lambda: proxy.line("other").running == 0)
            assert len(other.requests) == 1
    assert timing.startswith('queue;desc="position 1";dur=')
    assert (row["outcome"], row["attempts"]) == ("client_disconnected", 1)


async def test_the_key_of_the_first_one_is_not_sent_to_the_other():
    """Each gets its own."""
    with nobody() as url:
        keys = {"api_key": "sk-of-the-first"}, {"api_key": "sk-of-the-other"}
        async with pair({"url": url, **keys[0]}, keys[1]) as (other, proxy):
            assert (await proxy.chat(USER, headers={"authorization": "Bearer of-the-client"})).status_code == 200
            sent = other.requests[0].headers
    assert sent["authorization"] == "Bearer sk-of-the-other"
    assert "first" not in json.dumps(sent)


async def test_one_that_is_known_to_serve_other_models_is_not_asked():
    """Its 404 would hide why the first one did not answer."""
    with nobody() as url:
        async with faked(answer(TEXT), name="other") as other:
            elsewhere = {**OTHER, "url": other.url, "models": ["a", "b"]}
            tables = {"local": {**LOCAL, "url": url, "fallback": ["other"]}, "other": elsewhere}
            async with served(other, backends=tables) as proxy:
                response = await proxy.chat(USER)
            assert (response.status_code, response.json()["error"]["code"]) == (502, "upstream_unreachable")
            assert other.requests == []


async def test_of_several_the_first_that_can_stands_in():
    """In the order of the list: one that is down, one that loads, one that is there, one that is not asked."""
    loader = Loader()
    with nobody() as url, nobody() as another:
        async with faked(rules=loader, name="loader") as loads, faked(answer("no"), name="last") as last:
            more = {"down": {**OTHER, "url": another}, "loads": {**OTHER, "url": loads.url}}
            more["last"] = {**OTHER, "url": last.url}
            async with faked(answer(TEXT), name="other") as other:
                local = {**LOCAL, "url": url, "fallback": ["down", "loads", "other", "last"]}
                tables = {"local": local, **more, "other": {**OTHER, "url": other.url}}
                async with served(other, backends=tables) as proxy:
                    response = await proxy.chat(USER)
                    (row,) = await proxy.rows()
            stood_in(response, row, attempts=4)
            assert (len(loads.requests), len(other.requests), len(last.requests)) == (1, 1, 0)


async def test_an_error_of_the_one_that_stands_in_is_the_answer():
    """It had the request: nobody is asked after it."""
    with nobody() as url:
        async with faked(answer("no"), name="last") as last:
            async with faked(error(500, {"error": {"message": "broke"}}), name="other") as other:
                local = {**LOCAL, "url": url, "fallback": ["other", "last"]}
                tables = {"local": local, "other": {**OTHER, "url": other.url}, "last": {**OTHER, "url": last.url}}
                async with served(other, backends=tables) as proxy:
                    response = await proxy.chat(USER)
                    (row,) = await proxy.rows()
            assert not last.requests
    assert (response.status_code, response.headers["x-proxy-backend"]) == (500, "other")
    assert response.headers["x-should-retry"] == "false"
    assert (row["backend"], row["outcome"], row["attempts"]) == ("other", "upstream_error", 2)


@pytest.mark.parametrize("stream", [False, True])
async def test_where_none_is_there_the_first_ones_error_is_told(stream):
    """Not reachable: 502 that names the first one; the row is of the first one too."""
    with nobody() as url, nobody() as another:
        async with pair({"url": url}, {"url": another}) as (_, proxy):
            response = await proxy.chat(USER, stream=stream)
            (row,) = await proxy.rows()
    assert (response.status_code, response.headers["x-proxy-error"]) == (502, "upstream_unreachable")
    assert "backend local" in response.json()["error"]["message"]
    assert "x-should-retry" not in response.headers
    assert (row["backend"], row["outcome"], row["attempts"]) == ("local", "upstream_unreachable", 2)
    assert "route" not in row["decisions"]


async def test_where_the_first_ones_line_is_full_and_none_is_there_429_is_told():
    """With the time after which it has room again."""
    with nobody() as another:
        async with full() as (table, go, first), pair(table, {"url": another}) as (_, proxy):
            busy = asyncio.create_task(proxy.chat(USER))
            await until(lambda: len(first.requests) == 1)
            response = await proxy.chat(USER)
            (row,) = await proxy.rows()
            go.set()
            await busy
    assert (response.status_code, response.headers["x-proxy-error"]) == (429, "queue_full")
    assert int(response.headers["retry-after"]) >= 1
    assert (row["backend"], row["outcome"]) == ("local", "rejected")


@pytest.mark.usefixtures("_impatient")
@pytest.mark.parametrize("stream", [False, True])
async def test_a_first_one_that_loads_is_waited_for_where_no_other_is_there(stream):
    """And then answers."""
    with nobody() as another:
        loader = Loader()
        async with faked(rules=loader, name="loader") as first:
            first.paths["/v1/models"] = loader.models
            async with pair({"url": first.url, "max_concurrency": 1}, {"url": another}) as (_, proxy):
                asked = asyncio.create_task(proxy.chat(USER, stream=stream))
                await until(lambda: looks(first) >= 2)
                loader.ready = True
                response = await asked
                (row,) = await proxy.rows()
    assert (response.status_code, response.headers["x-proxy-backend"]) == (200, "local")
    assert (row["backend"], row["outcome"], row["attempts"]) == ("local", "ok", 4)


async def test_the_place_of_the_first_one_is_free_when_another_stands_in():
    """While the other one still answers: and that one's own line holds."""
    go = asyncio.Event()
    loader = Loader()
    async with faked(rules=loader, name="loader") as first:
        table = {"url": first.url, "max_concurrency": 1}
        async with pair(table, {"max_concurrency": 1}, answer(TEXT).after(go)) as (other, proxy):
            asked = [asyncio.create_task(proxy.chat(USER)) for _ in range(2)]
            await until(lambda: len(other.requests) == proxy.line("other").waiting == 1)
            assert (proxy.line().running, proxy.line().waiting, proxy.line("other").running) == (0, 0, 1)
            go.set()
            assert [(await each).headers["x-proxy-backend"] for each in asked] == ["other"] * 2
        assert len(other.requests) == 2


@pytest.mark.parametrize("why", ["down", "loads"])
@pytest.mark.parametrize("detail", ["first down", "first full"])
async def test_the_place_at_one_that_cannot_stand_in_is_given_back(why, detail):
    """When it is there at last, it serves on its one place."""
    loader, go = Loader(answer(TEXT)), asyncio.Event()
    async with contextlib.AsyncExitStack() as stack:
        other_url = (await stack.enter_async_context(faked(rules=loader, name="loader"))).url
        if why == "down":
            other_url = stack.enter_context(nobody())
        first = await stack.enter_async_context(faked(answer("first").after(go), name="full"))
        full_one = {"url": first.url, "max_concurrency": 1, "queue_limit": 0}
        table = {"url": stack.enter_context(nobody())} if detail == "first down" else full_one
        other = {**OTHER, "url": other_url, "max_concurrency": 1}
        tables = {"local": {**LOCAL, **table, "fallback": ["other"]}, "other": other}
        async with served(first, backends=tables) as proxy:
            if detail == "first full":
                busy = asyncio.create_task(proxy.chat(USER))
                await until(lambda: len(first.requests) == 1)
            assert (await proxy.chat(USER)).status_code in (429, 502)
            go.set()
            if detail == "first full":
                await busy
            held = proxy.line("other").running
            proxy.line("other")._running.clear()  # or no test after this one could tell
    assert held == 0
