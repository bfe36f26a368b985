"""`/spend`: the page, and the same figures as JSON and CSV."""

from __future__ import annotations

import asyncio
import base64
import csv
import io
import re
from html import unescape
from typing import Any

import pytest
from running import Running, serving, settings

from proxy.report.shown import cell
from proxy.testing import FakeBackend, answer

USAGE = {
    "prompt_tokens": 1000,
    "completion_tokens": 500,
    "total_tokens": 1500,
    "completion_tokens_details": {"reasoning_tokens": 400},
}
HOSTILE = '<script>alert(1)</script>"><img src=x onerror=alert(1)>'
PRICED = {"m": {"backend": "local", "price": {"input": 3, "output": 10}}}
CLIENTS = {
    "one": {"api_key": "key-of-one"},
    "two": {"api_key": "key-of-two"},
    "admin": {"api_key": "key-of-admin", "spend": "all"},
}


async def get(proxy: Running, path: str, key: str = "", **more):
    """A path beside the API."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return await proxy.http.get(proxy.url.removesuffix("/v1") + path, headers=headers, **more)


async def test_the_page_shows_the_figures_of_the_json() -> None:
    """Sums, shares and costs, as people read them; nothing is loaded from anywhere, and no script may run."""
    async with FakeBackend(answer("ok", reasoning="hm", usage=USAGE), style="kimi") as backend:
        async with serving(settings(backend.url, models=PRICED)) as proxy:
            for count in (1, 2, 3):
                await proxy.chat(max_tokens=10)
                await proxy.rows(count)
            page, found = await get(proxy, "/spend"), (await get(proxy, "/spend.json")).json()
            rows = await proxy.rows(3)
    assert page.status_code == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    policy = page.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'")
    assert "script" not in policy
    assert "unsafe" not in policy
    assert "<script" not in page.text
    total = found["total"]
    assert (total["requests"], total["reasoning_tokens"], total["visible_tokens"]) == (3, 1200, 300)
    assert total["cost_usd"] == "0.024"
    for name in ("cost_usd", "reasoning_tokens", "visible_tokens", "reasoning_share"):
        assert cell(name, total[name]) in page.text
    assert found["by_model"][0]["model"] == "m"
    assert found["decisions"] == [{"decision": "floor", "requests": 3}]
    assert found["backends"][0]["backend"] == "local"
    assert len(rows) == 3, "looking at it is no request"


async def test_names_that_clients_choose_are_text() -> None:
    """In the page, and no formula in the CSV."""
    async with FakeBackend(answer("ok"), style="kimi") as backend:
        local = {"url": backend.url, "engine": "kimi", "slow": False, "models": []}
        async with serving(settings(backend.url, backends={"local": local})) as proxy:
            await proxy.chat(model=HOSTILE)
            await proxy.chat(model="=1+1")
            await proxy.rows(2)
            page, table = await get(proxy, "/spend"), await get(proxy, "/spend.csv?by=model")
    assert "<img" not in page.text
    assert "<script" not in page.text
    assert HOSTILE in unescape(page.text)
    rows = list(csv.DictReader(io.StringIO(table.text)))
    assert {row["model"] for row in rows} == {HOSTILE, "'=1+1"}
    assert table.headers["content-disposition"] == 'attachment; filename="spend-by-model.csv"'


@pytest.mark.parametrize("query", ["since=yesterdy", "by=colour", "since=2026-12-02&until=2026-12-01"])
async def test_a_bad_query_is_told_in_words(query: str) -> None:
    """As an error of the API, and on the page above all rows."""
    async with FakeBackend(answer("ok"), style="kimi") as backend, serving(settings(backend.url)) as proxy:
        found = await get(proxy, f"/spend.json?{query}")
        page = await get(proxy, f"/spend?{query}")
    assert found.status_code == 400
    error = found.json()["error"]
    assert error["param"] in ("since", "by", "until")
    assert page.status_code == 400
    assert error["message"] in unescape(page.text)


async def test_a_client_sees_its_own_and_who_may_sees_all() -> None:
    """By key, as Bearer or as the password for which browsers ask."""
    async with FakeBackend(answer("ok", usage=USAGE), style="kimi") as backend:
        async with serving(settings(backend.url, clients=CLIENTS)) as proxy:
            for count, name in enumerate(("one", "two", "two"), 1):
                await proxy.chat(headers={"authorization": f"Bearer key-of-{name}"})
                await proxy.rows(count)
            seen = {
                name: (await get(proxy, "/spend.json", f"key-of-{name}")).json()["total"]["requests"]
                for name in CLIENTS
            }
            pair = base64.b64encode(b"whoever:key-of-two").decode()
            url = proxy.url.removesuffix("/v1")
            basic = await proxy.http.get(f"{url}/spend.json", headers={"authorization": f"Basic {pair}"})
            refused = await get(proxy, "/spend")
    assert seen == {"one": 1, "two": 2, "admin": 3}
    assert basic.json()["total"]["requests"] == 2
    assert refused.status_code == 401
    assert refused.headers["www-authenticate"].startswith("Basic ")


async def test_a_running_request_is_shown() -> None:
    """With its state, until it is over."""
    async with FakeBackend(answer("ok").after(3), style="kimi") as backend, serving(settings(backend.url)) as proxy:
        asked = asyncio.create_task(proxy.chat(stream=True))
        found: list[dict[str, Any]] = []
        async with asyncio.timeout(10):
            while not found:
                found = (await get(proxy, "/spend.json")).json()["live"]
        await asked
        await proxy.rows(1)
        after = (await get(proxy, "/spend.json")).json()["live"]
    assert [(each["model"], each["state"], each["backend"]) for each in found] == [("m", "running", "local")]
    assert after == []


async def test_a_period_of_hours_is_shown_by_the_hour() -> None:
    """And a longer one by the day; every grouping has its page."""
    async with FakeBackend(answer("ok", usage=USAGE), style="kimi") as backend, serving(settings(backend.url)) as proxy:
        await proxy.chat()
        await proxy.rows(1)
        steps = [(await get(proxy, f"/spend.json?since={since}")).json()["step"] for since in ("24h", "30d", "")]
        pages = [await get(proxy, f"/spend?by={key}&since=7d") for key in ("conversation", "day", "hour", "client")]
        head = await proxy.http.head(proxy.url.removesuffix("/v1") + "/spend")
        post = await proxy.http.post(proxy.url.removesuffix("/v1") + "/spend")
    assert steps == ["hour", "day", "day"]
    assert [page.status_code for page in pages] == [200] * 4
    assert all(re.search(r"<option selected>7d", page.text) for page in pages)
    assert head.status_code == 200
    assert post.status_code in (404, 405)
