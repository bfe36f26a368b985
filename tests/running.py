"""The product, running: in this process on a real port, or as the process that users start."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from proxy import config
from proxy.app import server_of
from proxy.demo.server import free_port, healthy
from proxy.pipeline import Pipeline


@dataclass(frozen=True)
class Running:
    """A served proxy: its `url` ends in `/v1`."""

    url: str
    pipeline: Pipeline
    http: httpx.AsyncClient

    async def chat(self, *messages: dict[str, Any], headers: dict[str, str] | None = None, **fields: Any):
        """POST a chat request and read the whole response."""
        body = {"model": "m", "messages": list(messages) or [{"role": "user", "content": "hi"}], **fields}
        return await self.http.post(f"{self.url}/chat/completions", json=body, headers=headers)

    async def rows(self, count: int = 1) -> list[dict[str, Any]]:
        """The ledger, once it has that many rows."""
        for _ in range(200):
            rows = list(await asyncio.to_thread(self.pipeline.store.entries))
            if len(rows) >= count:
                return rows
            await asyncio.sleep(0.02)
        raise AssertionError(f"{len(rows)} rows instead of {count}")


def settings(backend: str, *, engine: str = "kimi", family: str = "kimi-k3", **tables: Any) -> config.Settings:
    """Settings for one backend, in memory, with further tables over them."""
    base = {
        "backends": {"local": {"url": backend, "engine": engine, "family": family, "models": ["m"], "slow": False}},
        "server": {"port": 0},
        "store": {"url": "memory"},
        "policy": {"sampling": "client"},
    }
    for name, table in tables.items():
        base[name] = {**base.get(name, {}), **table}
    return config.load(overrides=base, environ={})


@contextlib.asynccontextmanager
async def serving(given: config.Settings) -> AsyncIterator[Running]:
    """The proxy on a free port of this process."""
    pipeline = Pipeline.open(given)
    server = server_of(pipeline)
    task = asyncio.create_task(server.serve())
    while not server.started:
        if task.done():
            task.result()
        await asyncio.sleep(0.005)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        async with httpx.AsyncClient(timeout=30) as http:
            yield Running(f"http://127.0.0.1:{port}/v1", pipeline, http)
    finally:
        server.should_exit = True
        await task


@contextlib.contextmanager
def process(folder: Path, toml: str, *, signalled: bool = False, code: int = 0) -> Iterator[str]:
    """`reasoning-proxy serve` with this configuration; gives its URL, and ends it with SIGTERM.

    A test that sends a signal by itself (to the number in the file `pid`) says `signalled`, and with which `code` the
    process ends then.
    """
    file = folder / "config.toml"
    file.write_text(toml)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("REASONING_PROXY_")}
    for _ in range(3):  # another program may take the free port first
        port = free_port()
        command = [sys.executable, "-m", "proxy", "serve", "--config", str(file), "--port", str(port)]
        with (folder / "log.txt").open("ab") as log:
            child = subprocess.Popen(command, stdout=log, stderr=log, env=environ, cwd=folder)  # noqa: S603 - our own
        (folder / "pid").write_text(str(child.pid))
        try:
            if healthy(port, child):
                yield f"http://127.0.0.1:{port}/v1"
                return
        finally:
            if not signalled:
                child.terminate()
            assert child.wait(20) == code
    raise AssertionError((folder / "log.txt").read_text())


def events(text: str) -> list[str]:
    """The `data` of a stream's events."""
    return [block.removeprefix("data: ") for block in text.split("\n\n") if block.startswith("data: ")]
