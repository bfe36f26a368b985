"""Finding out what stands behind a URL, without loading a model or waking a sleeping one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from proxy.messages import Json

Get = Callable[[str], Awaitable[tuple[dict[str, str], Json] | None]]
"""GET of an absolute URL: lower-case headers and decoded JSON, None for anything but a 200 with JSON."""

_HOSTED = {"moonshot": "kimi", "kimi.com": "kimi", "deepseek.com": "deepseek", "openrouter.ai": "openrouter"}
_OWNERS = {"llamacpp": "llama-server", "vllm": "vllm", "sglang": "sglang", "moonshot": "kimi", "library": "ollama"}
_SIDE_DOORS = (
    ("/version", "version", "vllm"),
    ("/model_info", "model_path", "sglang"),
    ("/get_model_info", "model_path", "sglang"),
    ("/api/version", "version", "ollama"),
    ("/api/v0/models", "data", "lmstudio"),
)


@dataclass(frozen=True, slots=True)
class Found:
    """What a probe found. `models` are the rows of `/v1/models`; `context_limit` is per slot, in tokens."""

    engine: str
    models: tuple[dict[str, Any], ...] = ()
    context_limit: int | None = None
    template: str | None = None

    def over(self, earlier: Found | None) -> Found:
        """What is known now: of the same engine, what this look did not bring stays as it was."""
        if earlier is None or earlier.engine != self.engine or (self.models and self.models != earlier.models):
            return self
        return Found(
            self.engine,
            earlier.models,
            self.context_limit or earlier.context_limit,
            self.template if self.template is not None else earlier.template,
        )


async def look(get: Get, url: str, engine: str) -> Found | None:
    """Probe the backend at `url` (with its `/v1`). A configured `engine` is believed. None: nothing was learned."""
    answer = await get(f"{url}/models")
    if answer is None:
        found = (hosted(url) or await _by_side_door(get, origin(url))) if engine == "auto" else None
        return Found(found) if found else None
    headers, body = answer
    rows = body.get("data") if isinstance(body, dict) else None
    models = tuple(row for row in rows or () if isinstance(row, dict) and isinstance(row.get("id"), str))
    if engine == "auto":
        engine = hosted(url) or _by_answer(headers, models) or await _by_side_door(get, origin(url)) or "openai"
    template, context_limit = None, _context(models)
    if engine == "llama-server" and (props := await get(f"{origin(url)}/props")):
        template, context_limit = _props(props[1], context_limit)
    return Found(engine, models, context_limit, template)


def hosted(url: str) -> str | None:
    """The engine of a known service, by its host name."""
    host = urlsplit(url).hostname or ""
    return next((engine for name, engine in _HOSTED.items() if name in host), None)


def origin(url: str) -> str:
    """The URL without its `/v1`: where engines keep their own paths."""
    return url.removesuffix("/v1")


def _by_answer(headers: dict[str, str], models: tuple[dict[str, Any], ...]) -> str | None:
    if headers.get("server") == "llama.cpp":
        return "llama-server"
    owners = (row.get("owned_by") for row in models)
    return next((_OWNERS[owner] for owner in owners if isinstance(owner, str) and owner in _OWNERS), None)


async def _by_side_door(get: Get, base: str) -> str | None:
    for path, field, engine in _SIDE_DOORS:
        answer = await get(base + path)
        if answer is not None and isinstance(answer[1], dict) and field in answer[1]:
            return engine
    return None


def _context(models: tuple[dict[str, Any], ...]) -> int | None:
    """vLLM and SGLang say `max_model_len`, Moonshot `context_length`; the smallest holds for all models."""
    found = [row.get(name) for row in models for name in ("max_model_len", "context_length")]
    return min((size for size in found if isinstance(size, int) and size > 0), default=None)


def _props(props: Json, known: int | None) -> tuple[str | None, int | None]:
    if not isinstance(props, dict):
        return None, known
    settings = props.get("default_generation_settings")
    size = settings.get("n_ctx") if isinstance(settings, dict) else None
    template = props.get("chat_template")
    return template if isinstance(template, str) else None, size if isinstance(size, int) and size > 0 else known
