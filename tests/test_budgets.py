"""What clients may spend: by the day and the month, held before a call and settled after it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from given import load
from running import serving, settings

from proxy.budgets import Budgets, Spent
from proxy.errors import InsufficientQuota
from proxy.messages import Entry
from proxy.testing import FakeBackend, answer

NOW = datetime(2026, 12, 31, 23, 59, 30, tzinfo=UTC)
USAGE = {"prompt_tokens": 60, "completion_tokens": 40, "total_tokens": 100}
PRICED = {"m": {"backend": "local", "price": {"input": 10_000, "output": 10_000}}}
"""A cent a token."""


def budgets(now: datetime = NOW, **limits) -> Budgets:
    """Those of one client."""
    text = "\n".join(f"{name} = {value}" for name, value in limits.items())
    return Budgets(load(f'[backends.a]\nurl = "http://h/v1"\n[clients.c]\napi_key = "k-of-c"\n{text}\n'), lambda: now)


def spent(tokens: int = 0, usd: str | None = None, ts: str = "2026-12-31T10:00:00.000Z", **more) -> Entry:
    """A settled row."""
    return Entry(**({"ts": ts, "client": "c", "completion_tokens": tokens, "cost_usd": usd} | more))


def test_a_day_s_tokens_are_used_up_and_come_again_at_midnight() -> None:
    """The error says when; so does its header."""
    found = budgets(max_tokens_per_day=100)
    found.settle(spent(tokens=99))
    found.check("c")
    found.settle(spent(tokens=1))
    with pytest.raises(InsufficientQuota, match=r"max_tokens_per_day of 100 tokens.*2027-01-01T00:00:00Z") as caught:
        found.check("c")
    assert caught.value.headers["retry-after"] == "30"


def test_a_month_is_longer_than_a_day() -> None:
    """What was spent yesterday counts for the month alone, what was spent last month for nothing."""
    found = budgets(budget_usd_per_day=1, budget_usd_per_month=2)
    for day in ("2026-12-30", "2026-12-29"):
        found.settle(spent(usd="0.99", ts=f"{day}T10:00:00.000Z"))
    found.settle(spent(usd="5", ts="2026-11-30T10:00:00.000Z"))
    found.check("c")
    found.settle(spent(usd="0.02"))
    with pytest.raises(InsufficientQuota, match="budget_usd_per_month of 2 USD"):
        found.check("c")


def test_what_runs_is_held_until_it_is_settled() -> None:
    """Many at once cannot all slip in before the first is settled."""
    found = budgets(max_tokens_per_day=100)
    found.hold("c", "r1", Spent(100))
    with pytest.raises(InsufficientQuota):
        found.hold("c", "r2", Spent(1))
    found.settle(spent(tokens=10, request_id="r1"))
    found.hold("c", "r3", Spent(1))


def test_others_have_no_limit() -> None:
    """Nor has whoever is no client."""
    found = budgets(max_tokens_per_day=1)
    found.settle(spent(tokens=5))
    found.check("d")
    found.check(None)


def test_the_ledger_tells_what_was_spent_before() -> None:
    """Asked for the day and for the month."""
    asked, found = list[str](), budgets(budget_usd_per_month=1)

    def read(since: str) -> dict[str, Spent]:
        asked.append(since)
        return {"c": Spent(5, Decimal(2))}

    found.load(read)
    assert asked == ["2026-12-31T00:00:00Z", "2026-12-01T00:00:00Z"]
    with pytest.raises(InsufficientQuota):
        found.check("c")


def clients(**limits) -> dict[str, Any]:
    """One with limits and one without."""
    return {"c": {"api_key": "key-of-c", **limits}, "d": {"api_key": "key-of-d"}}


async def test_a_client_that_has_spent_its_day_is_refused_and_the_backend_is_not_asked(tmp_path: Path) -> None:
    """429 in OpenAI's words, also after a restart; others go on."""
    mine, other = ({"authorization": f"Bearer key-of-{name}"} for name in "cd")
    async with FakeBackend(answer("ok", usage=USAGE), style="kimi") as backend:
        given = settings(
            backend.url,
            clients=clients(budget_usd_per_day=1.5),
            models=PRICED,
            store={"url": f"sqlite:///{tmp_path / 'proxy.db'}"},
        )
        async with serving(given) as proxy:
            for count in (1, 2):
                assert (await proxy.chat(headers=mine)).status_code == 200
                await proxy.rows(count)
        async with serving(given) as proxy:
            refused = await proxy.chat(headers=mine)
            assert (await proxy.chat(headers=other)).status_code == 200
            rows = await proxy.rows(4)
        asked = [request for request in backend.requests if request.path.endswith("/chat/completions")]
    assert refused.status_code == 429
    error = refused.json()["error"]
    assert (error["type"], error["code"]) == ("insufficient_quota", "insufficient_quota")
    assert "budget_usd_per_day of 1.5 USD" in error["message"]
    assert 0 < int(refused.headers["retry-after"]) <= 86_400
    assert "x-should-retry" not in refused.headers
    assert len(asked) == 3
    assert sorted(row["outcome"] for row in rows) == ["ok", "ok", "ok", "rejected"]


async def test_ten_at_once_do_not_overdraw_by_ten() -> None:
    """The first holds what it may come to."""
    async with FakeBackend(answer("ok", usage=USAGE).after(0.3), style="kimi") as backend:
        given = settings(backend.url, clients=clients(max_tokens_per_day=150), models=PRICED)
        async with serving(given) as proxy:
            mine = {"authorization": "Bearer key-of-c"}
            found = await asyncio.gather(*(proxy.chat(headers=mine) for _ in range(10)))
    assert sorted(response.status_code for response in found) == [200, *[429] * 9]


async def test_other_work_of_a_client_without_budget_is_refused_too() -> None:
    """Embeddings cost, though nobody counts them; lists of models do not."""
    async with FakeBackend(answer("ok", usage=USAGE), style="kimi") as backend:
        async with serving(settings(backend.url, clients=clients(max_tokens_per_day=50))) as proxy:
            mine = {"authorization": "Bearer key-of-c"}
            await proxy.chat(headers=mine)
            await proxy.rows(1)
            work = await proxy.http.post(f"{proxy.url}/embeddings", json={"model": "m", "input": "x"}, headers=mine)
            models = await proxy.http.get(f"{proxy.url}/models", headers=mine)
    assert (work.status_code, models.status_code) == (429, 200)
