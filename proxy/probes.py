"""Finding out what stands behind a URL, without loading a model or waking a sleeping one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from proxy.dialects import DIALECTS, About, Dialect
from proxy.messages import Json

Ask = Callable[[str, Mapping[str, Json] | None], Awaitable[tuple[dict[str, str], Json] | None]]
"""GET of an absolute URL, or POST of a JSON body: lower-case headers and decoded JSON, None for anything but a 200 with
JSON."""

_MOST_QUESTIONS = 64
"""A server of more models than that is not asked for each of them."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a probe found. `models` are the rows of `/v1/models`, `about` what is known of each, by name.

    `answers` are those of the engine's own paths.
    """

    engine: str
    version: str = ""
    models: tuple[dict[str, Any], ...] = ()
    about: Mapping[str, About] = field(default_factory=dict)
    answers: Mapping[str, Json] = field(default_factory=dict)

    def of(self, model: str) -> About:
        """What is known of a model; a server of one model answers to any name."""
        if len(self.about) == 1:
            return next(iter(self.about.values()))
        return self.about.get(model, About())

    def over(self, earlier: Found | None) -> Found:
        """What is known now: of the same engine, what this look did not bring stays as it was."""
        if earlier is None or earlier.engine != self.engine:
            return self
        about = self.about if self.models else earlier.about
        return Found(
            self.engine,
            self.version or earlier.version,
            self.models or earlier.models,
            {name: told.over(earlier.about.get(name, About())) for name, told in about.items()},
            {**earlier.answers, **self.answers},
        )


async def look(ask: Ask, url: str, engine: str) -> Found | None:
    """Probe the backend at `url` (with its `/v1`). A configured `engine` is believed. None: nothing was learned."""
    answer = await ask(f"{url}/models", None)
    headers, body = answer or ({}, None)
    rows = body.get("data") if isinstance(body, dict) else None
    models = tuple(row for row in rows or () if isinstance(row, dict) and isinstance(row.get("id"), str))
    if engine == "auto":
        known = hosted(url) or _by_answer(headers, models) or await _by_door(ask, origin(url))
        if known is None and answer is None:
            return None
        engine = known or "openai"
    dialect = DIALECTS[engine]
    if answer is None and engine == "openai":
        return None
    answers = await _asked(ask, origin(url), dialect, models)
    if answer is None and not answers and hosted(url) is None:
        return None
    about = {row["id"]: dialect.about(row, answers) for row in models}
    return Found(engine, dialect.version(headers, answers), models, about, answers)


async def _asked(ask: Ask, base: str, dialect: Dialect, models: tuple[dict[str, Any], ...]) -> dict[str, Json]:
    """The answers to the engine's own questions, by path."""
    answers: dict[str, Json] = {}
    asked: set[str] = set()
    while due := [each for each in dialect.questions(models, answers) if each.path not in asked]:
        for question in due[: _MOST_QUESTIONS - len(asked)]:
            found = await ask(base + question.path.partition("#")[0], question.body)
            if found is not None:
                answers[question.path] = found[1]
        asked |= {question.path for question in due}
    return answers


def hosted(url: str) -> str | None:
    """The engine of a known service, by its host name."""
    host = urlsplit(url).hostname or ""
    return next((dialect.name for dialect in DIALECTS.values() if any(name in host for name in dialect.hosts)), None)


def origin(url: str) -> str:
    """The URL without its `/v1`: where engines keep their own paths."""
    return url.removesuffix("/v1")


def _by_answer(headers: dict[str, str], models: tuple[dict[str, Any], ...]) -> str | None:
    """By what a server says of itself: SGLang and llama-server answer to other engines' paths too."""
    server, owners = headers.get("server", ""), [row.get("owned_by") for row in models]
    by_header = (dialect.name for dialect in DIALECTS.values() if server in dialect.servers)
    by_owner = (dialect.name for dialect in DIALECTS.values() if any(owner in dialect.owners for owner in owners))
    return next(by_header, None) or next(by_owner, None)


async def _by_door(ask: Ask, base: str) -> str | None:
    for dialect in DIALECTS.values():
        if dialect.door is not None:
            path, name = dialect.door
            answer = await ask(base + path, None)
            if answer is not None and isinstance(answer[1], dict) and name in answer[1]:
                return dialect.name
    return None
