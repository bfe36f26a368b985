"""The speed of a server of one's own is known before its first request; nothing is ever spent elsewhere for that."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import real_engine
from running import Running, serving, settings

from proxy.backend import Backend
from proxy.engine import BUNDLED, Engine
from proxy.measuring import TOKENS, is_near
from proxy.testing import FakeBackend, answer, error

engine = real_engine.engine
SAID = answer("seven eight nine ten", reasoning="one two three four five six", gap=0.03)
EVERYTHING_IS_SLOW = {"slow_below_tokens_per_second": 1e9}


@contextlib.asynccontextmanager
async def started(backend: str, *, local: dict[str, Any] | None = None, **tables: Any) -> AsyncIterator[Running]:
    """The proxy in front of it, with the speed left to be found out."""
    given = {"url": backend, "engine": "auto", "family": "auto", "models": [], "slow": "auto", **(local or {})}
    async with serving(settings(backend, backends={"local": given}, **tables)) as proxy:
        yield proxy


def first(proxy: Running) -> Backend:
    """Its one backend."""
    return proxy.pipeline.backends.first


async def ended(proxy: Running) -> None:
    """Wait for the measurement to come to its end."""
    task = first(proxy).measuring
    assert task is not None
    await asyncio.wait_for(asyncio.shield(task), 20)


async def test_a_slow_server_of_ones_own_is_known_before_its_first_request():
    """A few tokens tell, and the first request already has the lowest effort, under whatever name it asks."""
    async with FakeBackend(SAID, style="llama-server", model="kimi-k3") as backend:
        async with started(backend.url, policy=EVERYTHING_IS_SLOW) as proxy:
            await ended(proxy)
            assert [request.get("max_tokens") for request in backend.requests] == [TOKENS]
            got = await proxy.chat(model="any-name-at-all")
            assert got.headers["x-proxy-effort"] == "low; reason=slow-backend"
            assert len(await proxy.rows()) == 1, "what is asked on our own account is no request of anybody's"


@pytest.mark.parametrize(
    "tables",
    [
        {"local": {"slow": True}},
        {"local": {"slow": False}},
        {"policy": {"default_effort": "high"}},
        {"policy": {"default_effort": "off"}},
    ],
)
async def test_where_the_speed_decides_nothing_it_is_not_measured(tables):
    """Configured as slow or not, or with an effort that does not go by it."""
    async with FakeBackend(SAID, style="llama-server", model="kimi-k3") as backend:
        async with started(backend.url, **tables) as proxy:
            await asyncio.wait_for(first(proxy).found_once.wait(), 20)
            if (task := first(proxy).measuring) is not None:
                await asyncio.wait_for(asyncio.shield(task), 20)
            assert not backend.requests


@pytest.mark.parametrize("style", ["openai", "kimi", "deepseek", "openrouter"])
async def test_a_service_is_never_asked_for_tokens_of_our_own(style):
    """They cost money."""
    async with FakeBackend(SAID, style=style, model="kimi-k3") as backend:
        async with started(backend.url, local={"engine": style}) as proxy:
            first(proxy).start_probe()
            await asyncio.wait_for(first(proxy).found_once.wait(), 20)
            await ended(proxy)
            assert not backend.requests


async def test_what_was_measured_in_an_earlier_run_is_not_measured_again(tmp_path: Path):
    """The record is kept with the ledger."""
    kept = {"url": f"sqlite:///{tmp_path}/proxy.db"}
    async with FakeBackend(SAID, style="llama-server", model="kimi-k3") as backend:
        async with started(backend.url, store=kept, policy=EVERYTHING_IS_SLOW) as proxy:
            await ended(proxy)
            await proxy.chat(model="kimi-k3", stream=True)
        count = len(backend.requests)
        async with started(backend.url, store=kept, policy=EVERYTHING_IS_SLOW) as proxy:
            await ended(proxy)
            assert len(backend.requests) == count
            assert (await proxy.chat(model="kimi-k3")).headers["x-proxy-effort"] == "low; reason=slow-backend"


async def test_what_is_measured_tells_too_that_the_server_parts_thoughts():
    """vLLM refuses a budget where no parser is configured: the first request already has one."""
    async with FakeBackend(SAID, style="vllm", model="kimi-k3") as backend:
        async with started(backend.url) as proxy:
            await ended(proxy)
            await proxy.chat(model="kimi-k3", max_tokens=9000)
            assert backend.requests[-1].get("thinking_token_budget") == 9000 - 1024


async def test_a_request_does_not_wait_behind_a_measurement():
    """The measurement is ended, and the request tells the speed as well."""
    never = asyncio.Event()
    async with FakeBackend(SAID.after(never), SAID, style="llama-server", model="kimi-k3") as backend:
        async with started(backend.url) as proxy:
            await backend.request_arrived()
            got = await proxy.chat(max_tokens=7000, stream=True)
            assert (got.status_code, len(backend.requests)) == (200, 2)
            assert first(proxy).measuring is None


async def test_a_server_that_refuses_stays_unknown():
    """That is no reason to fail."""
    async with FakeBackend(error(500, "no"), style="llama-server", model="kimi-k3") as backend:
        async with started(backend.url) as proxy:
            await ended(proxy)
            assert not any(first(proxy).learned.speed("kimi-k3"))


@pytest.mark.engine
async def test_the_real_engine_is_measured_by_its_own_figures(engine: Engine):
    """Decoding of the bundled model on a core or two."""
    async with started(engine.url) as proxy:
        await ended(proxy)
        decode = first(proxy).learned.speed(BUNDLED).decode
        assert decode is not None
        assert 1 < decode < 2000


NEAR = """127.0.0.1:80 [::1]:80 localhost 192.168.1.7 10.0.0.2 172.20.0.3 gpu-box gpu.local llm.internal box.lan
[fd00::1] 169.254.3.4 host.docker.internal"""


@pytest.mark.parametrize("host", NEAR.split())
def test_near_is_this_machine_and_its_network(host):
    """By the address, or by a name that no name server of the world has."""
    assert is_near(f"http://{host}/v1")


@pytest.mark.parametrize(
    "host", ["api.moonshot.ai", "8.8.8.8", "llm.example.com", "[2001:4860:4860::8888]", "172.40.0.1"]
)
def test_all_else_is_far(host):
    """A server of one's company may be paid by the token too."""
    assert not is_near(f"https://{host}/v1")
