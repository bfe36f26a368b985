"""The line in front of a backend, through the doors: who is next, what those who wait are told, and that every place is
given back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from running import events, settings
from test_keepalive import (
    LOCAL,
    SOON,
    TEXT,
    THOUGHT,
    USER,
    Fields,
    Reading,
    Served,
    _kept,
    asking,
    chunks,
    comments,
    faked,
    served,
    until,
)

from proxy import AsyncTransport
from proxy.testing import FakeBackend, Reply, Request, answer, document, error, raw, wire
from proxy.testing import events as script

__all__ = ["_kept"]  # a fixture of every test here, too

pytestmark = pytest.mark.asyncio(loop_scope="module")

TITLE = "### Task:\nGenerate a concise, 3-5 word title with an emoji summarizing the chat history.\n### Output:\nJSON"
SIDE = f"{TITLE}\n### Chat History:\n<chat_history>\nUSER: Say one\n</chat_history>"
PATHS = ["/completions", "/responses", "/messages", "/embeddings", "/rerank", "/score"]


def one_place(url: str, limit: int = 1, **backend: Any) -> dict[str, Any]:
    """Settings of a backend that takes so many at a time."""
    return {"backends": {"local": {**LOCAL, "url": url, "max_concurrency": limit, **backend}}, "server": SOON}


class Held:
    """A backend that answers each request when the test says so. A request is named by the text of its question."""

    def __init__(self) -> None:
        self.doors: dict[str, asyncio.Event] = {}
        self.came: list[str] = []

    def __call__(self, request: Request) -> Reply:
        name = request.messages[-1]["content"] if request.messages else request.path.removeprefix("/v1")
        name = "side" if name == SIDE else name
        self.came.append(name)
        return answer(f"{name} done").after(self.door(name))

    def door(self, name: str) -> asyncio.Event:
        """What its answer waits for."""
        return self.doors.setdefault(name, asyncio.Event())

    async def lets(self, name: str, then: int | None = None) -> None:
        """Let it go, and wait until so many have come."""
        if then is None:
            then = len(self.came) + 1
        self.door(name).set()
        await self.have_come(then)

    async def all(self, count: int) -> list[str]:
        """Let so many go, one after the other, in the order in which they come; that order."""
        for at in range(count):
            await self.have_come(at + 1)
            self.door(self.came[at]).set()
        return self.came

    async def have_come(self, count: int) -> None:
        """Wait until so many are here."""
        await until(lambda: len(self.came) >= count)


@contextlib.asynccontextmanager
async def crowd(limit: int = 1, **backend: Any) -> AsyncIterator[tuple[Held, Served]]:
    """A backend that holds what it gets, and the proxy in front of it."""
    held = Held()
    async with faked(rules=held) as fake, served(fake, **one_place(fake.url, limit, **backend)) as proxy:
        held.came.clear()
        yield held, proxy


class Crowd:
    """Requests that are under way."""

    def __init__(self, proxy: Served) -> None:
        self.proxy = proxy
        self.tasks: dict[str, asyncio.Task[httpx.Response]] = {}

    async def asks(self, name: str, *, key: str = "", user: str = "", queued: bool = True, **fields: Any) -> None:
        """One more; returns when it is in the line, or at the backend."""
        headers = {"authorization": f"Bearer {key or 'anna-key'}"} | ({"x-openwebui-user-id": user} if user else {})
        line = self.proxy.line()
        before = line.waiting if queued else line.running
        question = {"role": "user", "content": SIDE if name == "side" else name}
        self.tasks[name] = asyncio.create_task(self.proxy.chat(question, headers=headers, **fields))
        await until(lambda: (line.waiting if queued else line.running) > before)

    async def first(self, name: str = "first", **more: Any) -> None:
        """One that finds a free place."""
        await self.asks(name, queued=False, **more)

    async def answers(self) -> dict[str, httpx.Response]:
        """What all of them got."""
        return dict(zip(self.tasks, await asyncio.gather(*self.tasks.values()), strict=True))


def seconds(response: httpx.Response) -> float:
    """How long it was in line."""
    return float(response.headers["server-timing"].partition("dur=")[2]) / 1000


# Who is next ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 2])
async def test_no_more_are_at_the_backend_than_may(limit):
    """The next goes when one comes back; without a limit nobody waits."""
    async with crowd(limit) as (held, proxy):
        all_of_them = Crowd(proxy)
        for name in "abcd"[:limit]:
            await all_of_them.first(name)
        await held.have_come(limit)
        for name in "abcd"[limit:]:
            await all_of_them.asks(name)
        assert (proxy.line().running, proxy.line().waiting, len(held.came)) == (limit, 4 - limit, limit)
        assert await held.all(4) == list("abcd")
        responses = await all_of_them.answers()
        rows = await proxy.rows(4)
    assert {response.status_code for response in responses.values()} == {200}
    assert [(row["outcome"], row["attempts"]) for row in rows] == [("ok", 1)] * 4


async def test_without_a_limit_nobody_waits_and_no_header_tells_of_a_line():
    """0 is the default."""
    async with crowd(0) as (held, proxy):
        all_of_them = Crowd(proxy)
        for name in "abcdef":
            await all_of_them.first(name)
        await held.have_come(6)
        await held.all(6)
        assert not any("server-timing" in each.headers for each in (await all_of_them.answers()).values())


@pytest.mark.parametrize("how", ["key", "user"])
async def test_clients_take_turns_whether_keys_or_end_users_tell_them_apart(how):
    """Ten requests of one do not hold up another's."""
    anna, ben = {how: "anna-secret"}, {how: "ben-secret"}
    async with crowd() as (held, proxy):
        all_of_them = Crowd(proxy)
        await all_of_them.first("a1", **anna)
        for name, whose in (("a2", anna), ("a3", anna), ("a4", anna), ("b1", ben), ("b2", ben)):
            await all_of_them.asks(name, **whose)
        assert await held.all(6) == ["a1", "b1", "a2", "b2", "a3", "a4"]
        await all_of_them.answers()


@pytest.mark.parametrize("limit", [1, 2])
async def test_a_question_goes_before_a_title_that_waits_longer(limit):
    """A side request of the same or of another user; it is served last, and is served."""
    async with crowd(limit) as (held, proxy):
        all_of_them = Crowd(proxy)
        for number in range(limit):
            await all_of_them.first(f"first {number}")
        await held.have_come(limit)
        await all_of_them.asks("side")
        await all_of_them.asks("mine")
        await all_of_them.asks("another's", key="ben-secret")
        order = (await held.all(limit + 3))[limit:]
        responses = await all_of_them.answers()
        rows = await proxy.rows(3 + limit)
    assert (sorted(order[:2]), order[2]) == (["another's", "mine"], "side")
    assert responses["side"].json()["choices"][0]["message"]["content"] == "side done"
    assert sorted(row["kind"] for row in rows) == ["chat"] * (2 + limit) + ["side"]


async def test_a_title_before_its_question_lets_it_pass_though_the_place_is_free():
    """Held back about a second on a server of one place; the question comes within that time and is first."""
    async with crowd() as (held, proxy):
        all_of_them = Crowd(proxy)
        await all_of_them.asks("side")
        assert proxy.line().running == 0
        await asyncio.sleep(0.3)
        await all_of_them.first("question")
        await held.lets("question", then=2)
        assert held.came == ["question", "side"]
        held.door("side").set()
        waited = seconds((await all_of_them.answers())["side"])
    assert 0.7 < waited < 2.5


async def test_with_two_places_a_title_does_not_wait():
    """Nothing of it would hold up the question."""
    async with crowd(2) as (held, proxy):
        all_of_them = Crowd(proxy)
        await all_of_them.first("side")
        await held.all(1)
        assert "server-timing" not in (await all_of_them.answers())["side"].headers


# What they are told --------------------------------------------------------------------------------------------------


async def test_who_waits_reads_its_position_in_the_comments():
    """It moves up as the line does; then the stream is an ordinary one."""
    async with crowd() as (held, proxy):
        all_of_them = Crowd(proxy)
        await all_of_them.first()
        await all_of_them.asks("second")
        question = {"role": "user", "content": "third"}
        async with asking(proxy, {"authorization": "Bearer anna-key"}, messages=[question]) as reading:
            await all_of_them.asks("fourth")
            await reading.until(": queued, position 2 of 3\n\n")
            await held.lets("first")
            await reading.until(": queued, position 1 of 2\n\n")
            await held.lets("second")
            await reading.until(": keep-alive\n\n")
            held.door("third").set()
            text = await reading.rest()
            timing = reading.response.headers["server-timing"]
        await held.all(4)
        await all_of_them.answers()
    told = comments(text)
    assert "queued" not in "".join(told[told.index("keep-alive") :])
    assert timing.startswith('queue;desc="position 2";dur=')
    assert "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks(text)) == "third done"


async def test_in_chunk_mode_who_waits_gets_chunks_and_no_word_of_the_line():
    """The header alone tells of it."""
    held = Held()
    async with faked(rules=held) as fake:
        tables = {**one_place(fake.url), "server": {**SOON, "keepalive": "chunk"}}
        async with served(fake, **tables) as proxy:
            all_of_them = Crowd(proxy)
            await all_of_them.first()
            async with asking(proxy) as reading:
                await reading.until('"delta":{}', 2)
                assert proxy.line().waiting == 1
                held.door("hi").set()
                held.door("first").set()
                text = await reading.rest()
            await all_of_them.answers()
    assert comments(text) == []
    assert reading.response.headers["server-timing"].startswith('queue;desc="position 1";dur=')


@pytest.mark.parametrize("stream", [False, True])
async def test_the_header_says_where_an_answer_stood_and_for_how_long(stream):
    """In milliseconds; who did not wait has none. An error has it too."""
    held = Held()

    def rules(request: Request) -> Reply:
        reply = held(request)
        refused = request.messages[-1]["content"] == "third"
        return error(400, {"error": {"message": "no"}}) if refused else reply

    async with faked(rules=rules) as fake:
        tables = {**one_place(fake.url), "server": {"keepalive_seconds": 5}}
        async with served(fake, **tables) as proxy:
            all_of_them = Crowd(proxy)
            await all_of_them.first(stream=stream)
            await all_of_them.asks("second", stream=stream)
            await all_of_them.asks("third", stream=stream)
            await asyncio.sleep(0.25)
            await held.all(3)
            responses = await all_of_them.answers()
    assert "server-timing" not in responses["first"].headers
    assert responses["third"].status_code == 400
    for name, position in (("second", 1), ("third", 2)):
        assert responses[name].headers["server-timing"].startswith(f'queue;desc="position {position}";dur=')
        assert 0.2 < seconds(responses[name]) < 3


@pytest.mark.parametrize("stream", [False, True])
async def test_above_the_limit_of_the_line_429_says_when_to_come_again(stream):
    """Nothing is sent, SDKs may try again, and the row says `rejected`; those in line are served."""
    async with crowd(queue_limit=1) as (held, proxy):
        all_of_them = Crowd(proxy)
        await all_of_them.first()
        await all_of_them.asks("second")
        refused = await proxy.chat({"role": "user", "content": "third"}, stream=stream)
        assert (len(held.came), proxy.line().waiting) == (1, 1)
        (row,) = await proxy.rows(1)
        await held.all(2)
        assert {each.status_code for each in (await all_of_them.answers()).values()} == {200}
        again = asyncio.create_task(proxy.chat({"role": "user", "content": "second"}, stream=stream))
        assert (await again).status_code == 200
    told = refused.json()["error"]
    assert (refused.status_code, refused.headers["content-type"]) == (429, "application/json")
    assert told.keys() == {"message", "type", "param", "code"}
    assert (told["code"], refused.headers["x-proxy-error"]) == ("queue_full", "queue_full")
    assert "x-should-retry" not in refused.headers
    assert 1 <= int(refused.headers["retry-after"]) <= 3600
    assert "queue_limit" in told["message"]
    assert (row["outcome"], row["status"], row["attempts"], row["error"]) == ("rejected", 429, 0, told["message"])


async def test_with_a_limit_of_0_nobody_waits():
    """Who finds no place is refused; who finds one is served."""
    async with crowd(queue_limit=0) as (held, proxy):
        all_of_them = Crowd(proxy)
        await all_of_them.first()
        assert (await proxy.chat(USER)).status_code == 429
        await held.all(1)
        assert (await all_of_them.answers())["first"].status_code == 200
        held.door("hi").set()
        assert (await proxy.chat(USER)).status_code == 200


# Leaving -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["whole", "stream", "open stream", "kept alive"])
@pytest.mark.parametrize("detach", [False, True])
async def test_who_leaves_the_line_never_reaches_the_backend(way, detach):
    """Whether its stream was open or not; not even where answers outlive their clients. The next one moves up."""
    held = Held()
    silent = {"keepalive_seconds": 0.05 if way == "open stream" else 5}
    if way == "kept alive":
        silent["nonstream_keepalive_seconds"] = 0.05
    async with faked(rules=held) as fake:
        async with served(fake, **{**one_place(fake.url, detach=detach), "server": silent}) as proxy:
            all_of_them = Crowd(proxy)
            await all_of_them.first()
            if way == "open stream":
                async with asking(proxy) as reading:
                    await reading.until(": queued, position 1 of 1\n\n")
            elif way == "kept alive":
                body = {"model": "m", "messages": [USER]}
                async with proxy.http.stream("POST", f"{proxy.url}/chat/completions", json=body) as response:
                    assert response.status_code == 200
            else:
                await all_of_them.asks("leaves", stream=way == "stream")
                await all_of_them.asks("next")
                all_of_them.tasks.pop("leaves").cancel()
            await until(lambda: proxy.line().waiting == len(all_of_them.tasks) - 1)
            (row,) = await proxy.rows(1)
            order = await held.all(len(all_of_them.tasks))
            await all_of_them.answers()
            assert len(await proxy.rows(2)) == 1 + len(all_of_them.tasks)
    assert order == list(all_of_them.tasks)
    assert (row["outcome"], row["attempts"], row["status"]) == ("client_disconnected", 0, None)
    assert row["flags"] == []


HEAD: Fields = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
BEGUN = {**HEAD, "choices": [{"index": 0, "delta": {"role": "assistant", "content": "a"}, "finish_reason": None}]}
BROKEN = {"error": {"message": "boom", "code": 500}}
ENDS: dict[str, tuple[Reply, Reply]] = {  # what a whole answer and a stream come to
    "success": (answer("x"), answer("x")),
    "refused": (error(400, "no"),) * 2,
    "busy": (error(429, "slow down"),) * 2,
    "error": (error(500, "broke"),) * 2,
    "no answer": (wire(),) * 2,
    "another kind": (raw(b"<html>", headers={"content-type": "text/html"}),) * 2,
    "error inside": (document(BROKEN), script(BEGUN, BROKEN)),
    "nothing inside": (document({"choices": []}), script("[DONE]")),
    "cut": (wire(b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{"), script(BEGUN).then_cut()),
    "reset": (answer("x").first(0).then_abort(), script(BEGUN).then_abort()),
}


async def test_the_place_is_given_back_however_an_answer_ends():
    """On a server of one place each is followed by one that is served at once."""
    async with faked(*(reply for pair in ENDS.values() for reply in pair)) as fake:
        async with served(fake, **one_place(fake.url)) as proxy:
            for name in ENDS:
                for stream in (False, True):
                    await asyncio.wait_for(proxy.chat(USER, stream=stream), 5)
                    await until(lambda: proxy.line().running == 0, within=1)
                    assert proxy.line().waiting == 0, name
            rows = await proxy.rows(2 * len(ENDS))
    assert len(fake.requests) == 2 * len(ENDS)
    assert {row["attempts"] for row in rows} == {1}


async def test_the_place_is_given_back_where_no_connection_is_made():
    """Nothing stands there."""
    fake = FakeBackend(answer("x"))
    async with fake:
        url = fake.url
    async with faked() as any_one:
        async with served(any_one, **one_place(url)) as proxy:
            for stream in (False, True):
                assert (await asyncio.wait_for(proxy.chat(USER, stream=stream), 5)).status_code == 502
                assert proxy.line().running == 0


async def left_in(reply: Reply, *, stream: bool, until_text: str = "", **fields: Any) -> None:
    """A client leaves while this answer is being made, and the next one gets the place."""
    async with faked(reply, answer("next")) as fake:
        async with served(fake, **one_place(fake.url, loading_timeout=20), policy={"rescue": "retry"}) as proxy:
            if until_text:
                async with asking(proxy, **fields) as reading:
                    await reading.until(until_text)
            else:
                leaves = asyncio.create_task(proxy.chat(USER, stream=stream, **fields))
                await fake.request_arrived()
                await asyncio.sleep(0.02)
                leaves.cancel()
            assert await fake.requests[0].hung_up()
            response = await asyncio.wait_for(proxy.chat({"role": "user", "content": "next"}), 5)
            rows = await proxy.rows(2)
    assert response.json()["choices"][0]["message"]["content"] == "next"
    assert [row["outcome"] for row in rows] == ["client_disconnected", "ok"]


async def test_the_place_is_given_back_in_whatever_phase_the_client_leaves():
    """Before the headers, in a thought, in a text, in a refusal whose body does not end, in half a whole answer."""
    stuck = raw(b'{"error": ', status=400, headers={"content-length": "99", "content-type": "application/json"})
    half = raw(b'{"id": ', headers={"content-length": "99", "content-type": "application/json"})
    never = asyncio.Event()
    await left_in(answer(TEXT).after(never), stream=False)
    await left_in(answer(TEXT, reasoning=THOUGHT).hold(never, after=3), stream=True, until_text="two")
    await left_in(answer(TEXT).hold(never, after=2), stream=True, until_text="So ")
    for reply in (stuck, half):
        await left_in(reply.then_stall(), stream=False)
    await left_in(stuck.then_stall(), stream=True)


async def test_the_place_is_given_back_where_a_client_leaves_in_the_second_try_of_a_lost_answer():
    """The second one is left like the first, and the next request is served."""
    lost = answer(reasoning="lost", finish="length")
    second = answer(TEXT, reasoning=THOUGHT).hold(asyncio.Event(), after=3)
    async with faked(lost, second, answer("next")) as fake:
        async with served(fake, **one_place(fake.url), policy={"rescue": "retry"}) as proxy:
            async with asking(proxy, max_tokens=5000) as reading:
                await reading.until("two")
            assert await fake.requests[1].hung_up()
            response = await asyncio.wait_for(proxy.chat(USER), 5)
            rows = await proxy.rows(2)
    assert response.json()["choices"][0]["message"]["content"] == "next"
    assert [(row["outcome"], row["attempts"]) for row in rows] == [("client_disconnected", 2), ("ok", 1)]


# Two sends, one place ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_the_second_try_of_a_lost_answer_keeps_the_place(stream):
    """Who waits goes after it."""
    go = asyncio.Event()
    replies = answer(reasoning="lost", finish="length").after(go), answer(TEXT), answer("next")
    async with faked(*replies) as fake:
        async with served(fake, **one_place(fake.url), policy={"rescue": "retry"}) as proxy:
            all_of_them = Crowd(proxy)
            await all_of_them.first(max_tokens=5000, stream=stream)
            await all_of_them.asks("second")
            go.set()
            await all_of_them.answers()
            rows = await proxy.rows(2)
    assert [request.messages[-1]["content"] for request in fake.requests] == ["first", "first", "second"]
    assert {row["attempts"]: row["flags"] for row in rows} == {2: ["rescued"], 1: []}


async def test_a_prompt_that_was_too_long_with_what_was_put_back_keeps_the_place():
    """It is sent once more without that, before whoever waits."""
    go = asyncio.Event()
    too_long = error(400, "exceeds the available context size").after(go)
    said = {"role": "assistant", "content": "An answer that is not given twice."}
    async with faked(answer(said["content"], reasoning="T"), too_long, answer(TEXT), answer("next")) as fake:
        async with served(fake, **one_place(fake.url)) as proxy:
            await proxy.chat({"role": "user", "content": "long"})
            key = {"authorization": "Bearer anna-key"}
            history = [{"role": "user", "content": "long"}, said, {"role": "user", "content": "more"}]
            first = asyncio.create_task(proxy.chat(*history))
            await until(lambda: len(fake.requests) == 2)
            second = asyncio.create_task(proxy.chat({"role": "user", "content": "second"}, headers=key))
            await until(lambda: proxy.line().waiting == 1)
            go.set()
            assert {(await each).status_code for each in (first, second)} == {200}
            rows = await proxy.rows(3)
    assert [request.messages[-1]["content"] for request in fake.requests] == ["long", "more", "more", "second"]
    assert sorted(row["attempts"] for row in rows) == [1, 1, 2]


# Other paths ---------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def other_paths(reply: Reply, path: str, **backend: Any) -> AsyncIterator[tuple[FakeBackend, Served]]:
    """A backend of one place that answers a path so, and chats at once."""
    async with faked(answer("x"), name="paths") as fake:
        fake.paths[f"/v1{path}"] = reply
        async with served(fake, **one_place(fake.url, **backend)) as proxy:
            yield fake, proxy


@pytest.mark.parametrize("path", PATHS)
async def test_whatever_lets_the_engine_work_waits_in_the_same_line(path):
    """A chat waits for it, it waits for a chat, and what only reads does not wait."""
    go = asyncio.Event()
    async with other_paths(document({"ok": 1}).after(go), path) as (fake, proxy):
        first = asyncio.create_task(proxy.http.post(f"{proxy.url}{path}", json={"model": "m"}))
        await until(lambda: len(fake.others) == 1)
        chat = asyncio.create_task(proxy.chat(USER))
        await until(lambda: proxy.line().waiting == 1)
        second = asyncio.create_task(proxy.http.post(f"{proxy.url}{path}", json={"model": "m"}))
        await until(lambda: proxy.line().waiting == 2)
        assert (await proxy.http.get(f"{proxy.url}/models")).status_code == 200
        assert (await proxy.http.get(f"{proxy.url}/models/m")).status_code == 200
        assert (await proxy.http.get(f"{proxy.url}/files")).status_code == 404
        assert len([request for request in fake.others if request.path == f"/v1{path}"]) == 1
        assert not fake.requests
        go.set()
        assert [(await each).status_code for each in (first, chat, second)] == [200, 200, 200]


async def test_on_other_paths_too_a_full_line_is_429_and_who_leaves_it_was_never_there():
    """With the same headers and rows."""
    go = asyncio.Event()
    async with other_paths(document({"ok": 1}).after(go), "/embeddings", queue_limit=1) as (fake, proxy):
        url = f"{proxy.url}/embeddings"
        first = asyncio.create_task(proxy.http.post(url, json={"model": "m"}))
        await until(lambda: len(fake.others) == 1)
        leaves = asyncio.create_task(proxy.http.post(url, json={"model": "m"}))
        await until(lambda: proxy.line().waiting == 1)
        full = await proxy.http.post(url, json={"model": "m"})
        leaves.cancel()
        await until(lambda: proxy.line().waiting == 0)
        rows = await proxy.rows(2)
        go.set()
        assert (await first).json() == {"ok": 1}
    assert (full.status_code, full.headers["x-proxy-error"]) == (429, "queue_full")
    assert int(full.headers["retry-after"]) >= 1
    assert "x-should-retry" not in full.headers
    told = [(row["outcome"], row["attempts"], row["kind"]) for row in rows]
    assert told == [("rejected", 0, "passthrough"), ("client_disconnected", 0, "passthrough")]
    assert len(fake.others) == 1


async def test_on_other_paths_too_the_place_is_given_back_however_it_ends():
    """Success, refusals, errors, resets, and clients that leave before the headers or in the body."""
    path = "/completions"
    half = raw(b"data: 1\n\n").then_stall()
    stuck = raw(b"{", status=400, headers={"content-length": "99"}).then_stall()
    ends = [document({"ok": 1}), error(400, "no"), error(500, "broke"), wire(), raw(b"data: 1\n\n").then_abort()]
    for reply in [*ends, half, stuck, document({}).after(asyncio.Event())]:
        async with other_paths(reply, path) as (fake, proxy):
            asked = proxy.http.post(f"{proxy.url}{path}", json={"model": "m"})
            if reply in ends:
                with contextlib.suppress(httpx.RemoteProtocolError):
                    await asyncio.wait_for(asked, 5)
            else:
                leaves = asyncio.create_task(asked)
                while not fake.others:  # noqa: ASYNC110 - it sets no event
                    await asyncio.sleep(0.005)
                await asyncio.sleep(0.05)
                leaves.cancel()
                assert await fake.others[0].hung_up()
            assert (await asyncio.wait_for(proxy.chat(USER), 5)).status_code == 200


# In the library ------------------------------------------------------------------------------------------------------


async def test_clients_of_the_library_wait_in_line_and_may_leave_it():
    """The same comments, header, refusal and rows as over HTTP."""
    held = Held()
    url = "http://proxy.invalid/v1/chat/completions"

    def body(text: str, *, stream: bool = False) -> dict[str, Any]:
        return {"model": "m", "messages": [{"role": "user", "content": text}], "stream": stream}

    async with faked(rules=held) as fake:
        transport = AsyncTransport(settings(fake.url, **one_place(fake.url, queue_limit=1)))
        async with httpx.AsyncClient(transport=transport, timeout=5) as http:
            first = asyncio.create_task(http.post(url, json=body("first")))
            await until(lambda: held.came == ["first"])
            async with http.stream("POST", url, json=body("leaves", stream=True)) as response:
                reading = Reading(response)
                await reading.until(": queued, position 1 of 1\n\n")
                full = await http.post(url, json=body("full"))
            second = asyncio.create_task(http.post(url, json=body("second", stream=True)))
            await asyncio.sleep(0.15)
            await held.lets("first")
            held.door("second").set()
            answers = [await first, await second]
            rows = transport.ledger
    assert (full.status_code, full.headers["x-proxy-error"]) == (429, "queue_full")
    assert response.headers["server-timing"].startswith('queue;desc="position 1";dur=')
    assert [each.status_code for each in answers] == [200, 200]
    assert "queued, position 1 of 1" in comments(answers[1].text)
    assert "done" in events(answers[1].text)[-3] + events(answers[1].text)[-4]
    assert held.came == ["first", "second"]
    told = sorted((row["outcome"], row["attempts"]) for row in rows)
    assert told == [("client_disconnected", 0), ("ok", 1), ("ok", 1), ("rejected", 0)]
