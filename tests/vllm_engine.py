"""A vLLM server that somebody else runs, for `make test-vllm URL=…`. Without one these tests are skipped.

Any model does whose template opens every turn with `<think>` and keeps past thoughts, served as

    vllm serve MODEL --max-model-len 4096 --reasoning-parser deepseek_r1 --enable-auto-tool-choice \\
        --tool-call-parser hermes --enable-prompt-tokens-details

The facts were found on 0.32.0. The server must have nothing else to do: its counters and its cache are looked at.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import httpx
import msgspec
import pytest
from running import Running, serving, settings

URL = os.environ.get("VLLM_URL", "").rstrip("/")
needed = pytest.mark.skipif(not URL, reason="needs a vLLM server: make test-vllm URL=http://127.0.0.1:8000/v1")

FREE = {"min_completion_tokens": 0, "thinking_budget": "off", "default_effort": "off", "probe": {"max_tokens": 0}}
"""A policy that decides nothing by itself."""
QUESTION = {"role": "user", "content": "Name a colour."}
ANSWER = "Red it is."
THINKS: dict[str, Any] = {
    "temperature": 0,
    "min_tokens": 12,  # a thought that ends at once has nothing to show
    "bad_words": ["<|im_start|>"],  # is not shown where it is written, so no thought with it can be given back
    "structured_outputs": {"choice": [ANSWER]},
}
"""The model thinks until a budget or the cap ends it, and then says ANSWER."""
SHORT = {**THINKS, "max_tokens": 40, "thinking_token_budget": 6}
"""A thought of some six tokens."""


@dataclass(frozen=True)
class Vllm:
    """The server: its `model`, the `window` and the `version` that it tells."""

    model: str
    window: int
    version: str
    address: str = URL.removesuffix("/v1")


@pytest.fixture(scope="module")
def vllm() -> Vllm:
    """What stands at the URL."""
    (row, *_) = httpx.get(f"{URL}/models").raise_for_status().json()["data"]
    version = httpx.get(f"{URL.removesuffix('/v1')}/version").raise_for_status().json()["version"]
    return Vllm(row["id"], row["max_model_len"], version)


@dataclass
class Front:
    """The proxy in front of the server, and the bodies that it sent there."""

    proxy: Running
    server: Vllm
    sent: list[dict[str, Any]] = field(default_factory=list)

    async def ask(self, *messages: dict[str, Any], key: str = "", **fields: Any) -> httpx.Response:
        """The answer through the proxy, a short one unless the fields say otherwise."""
        headers = {"authorization": f"Bearer {key}"} if key else {}
        asked = self.body(*messages, **fields)
        return await self.proxy.http.post(f"{self.proxy.url}/chat/completions", json=asked, headers=headers)

    async def direct(self, *messages: dict[str, Any], **fields: Any) -> httpx.Response:
        """The server's own answer to the same request."""
        return await self.proxy.http.post(f"{URL}/chat/completions", json=self.body(*messages, **fields))

    def body(self, *messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
        """A request; a field that is None is left out."""
        asked = {"model": self.server.model, "messages": list(messages) or [QUESTION], **SHORT, **fields}
        return {name: value for name, value in asked.items() if value is not None}

    async def tokens(self, asked: dict[str, Any]) -> list[int]:
        """The prompt that the server makes of a request, in its tokens.

        Unlike a chat request, this one has past thoughts under one name alone (0.32.0).
        """
        kept = ("model", "tools", "chat_template_kwargs")
        body = {name: asked[name] for name in kept if name in asked}
        names = {"reasoning_content": "reasoning"}
        body["messages"] = [{names.get(name, name): each[name] for name in each} for each in asked["messages"]]
        answer = await self.proxy.http.post(f"{self.server.address}/tokenize", json=body)
        found: list[int] = answer.raise_for_status().json()["tokens"]
        return found

    async def prompt(self, asked: dict[str, Any]) -> str:
        """The same as text."""
        body = {"model": self.server.model, "tokens": await self.tokens(asked)}
        answer = await self.proxy.http.post(f"{self.server.address}/detokenize", json=body)
        return str(answer.raise_for_status().json()["prompt"])

    async def count(self, text: str) -> int:
        """Tokens of a text."""
        body = {"model": self.server.model, "prompt": text, "add_special_tokens": False}
        answer = await self.proxy.http.post(f"{self.server.address}/tokenize", json=body)
        return int(answer.raise_for_status().json()["count"])

    async def metric(self, name: str, label: str = "") -> str:
        """One of the server's counters, or a label of it."""
        text = (await self.proxy.http.get(f"{self.server.address}/metrics")).raise_for_status().text
        (line,) = re.findall(rf"^vllm:{name}\{{.*$", text, re.MULTILINE)
        found = re.search(rf'\b{label}="([^"]*)"' if label else r" (\S+)$", line)
        assert found, line
        return found[1]


@contextlib.asynccontextmanager
async def fronted(server: Vllm, *, family: str = "generic", **tables: Any) -> AsyncIterator[Front]:
    """The proxy with the engine found by itself, and its policy free of decisions unless `tables` say otherwise."""
    table = {"url": URL, "engine": "auto", "family": family, "models": []}
    async with serving(settings(URL, **{"backends": {"local": table}, "policy": FREE, **tables})) as proxy:
        front = Front(proxy, server)
        backend = proxy.pipeline.backends.by_name["local"]
        send = backend.send

        async def noted(method: str, path: str, headers: Any, raw: bytes, **more: Any) -> Any:
            if path == "/chat/completions":
                front.sent.append(msgspec.json.decode(raw))
            return await send(method, path, headers, raw, **more)

        with mock.patch.object(backend, "send", noted):
            yield front


def message(response: httpx.Response) -> dict[str, Any]:
    """The assistant's message of a good answer."""
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()["choices"][0]["message"]
    return found
