"""Finding out what stands behind a URL, without loading a model or waking a sleeping one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

from proxy.dialects import DIALECTS, About, Dialect
from proxy.families import ORDER
from proxy.jsons import objects
from proxy.messages import Json

Ask = Callable[[str, Mapping[str, Json] | None], Awaitable[tuple[dict[str, str], Json] | None]]
"""GET of an absolute URL, or POST of a JSON body: lower-case headers and decoded JSON, which is None for anything but a
200 with JSON; None where nobody answers."""

_MOST_MISSES = 4
"""Questions that may stay without an answer; each may have waited for its whole time."""
_MOST_QUESTIONS = 64
"""A server of more models than that is not asked for each of them."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a probe found. `models` are the rows of `/v1/models`, `about` what is known of each, by name.

    `answers` are those of the engine's own paths. `guessed`: nothing told the engine, so it is any other.
    """

    engine: str
    version: str = ""
    models: tuple[dict[str, Any], ...] = ()
    about: Mapping[str, About] = field(default_factory=dict)
    answers: Mapping[str, Json] = field(default_factory=dict)
    guessed: bool = False

    @property
    def known(self) -> tuple[str, str, Mapping[str, About]]:
        """What of it is worth a word when it changes; raw answers change with each look."""
        return self.engine, self.version, self.about

    def of(self, model: str) -> About:
        """What is known of a model; a server of one model answers to any name."""
        if len(self.about) == 1:
            return next(iter(self.about.values()))
        return self.about.get(model, About())

    def over(self, earlier: Found | None) -> Found:
        """What is known now: of the same engine, what this look did not bring stays as it was.

        The same models behind a door that was silent for once are the same engine.
        """
        if earlier is not None and self.guessed and self.about.keys() == earlier.about.keys():
            return earlier
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
    ask = _once(ask)
    headers, body = await ask(f"{url}/models", None) or ({}, None)
    rows = objects(body.get("data")) if isinstance(body, dict) else []
    models = tuple(row for row in rows if isinstance(row.get("id"), str))
    known: str | None = engine
    if engine == "auto":
        known = hosted(url) or await _told(ask, origin(url), headers, models)
    if body is None and known in (None, "openai"):
        return None
    dialect = DIALECTS[known or "openai"]
    answers = await _asked(ask, origin(url), dialect, models)
    told = body is not None or bool(answers) or headers.get("server", "") in dialect.servers
    if not told and hosted(url) is None:
        return None
    about = {row["id"]: _rising(dialect.about(row, answers)) for row in models}
    return Found(dialect.name, dialect.version(headers, answers), models, about, answers, guessed=known is None)


def _once(ask: Ask) -> Ask:
    """The same questions, each asked once."""
    known: dict[tuple[str, str], tuple[dict[str, str], Json] | None] = {}

    async def asked(url: str, body: Mapping[str, Json] | None) -> tuple[dict[str, str], Json] | None:
        key = (url, repr(body))
        if key not in known:
            known[key] = await ask(url, body)
        return known[key]

    return asked


def _rising(about: About) -> About:
    """The efforts from the lowest on, in whichever order the server lists them."""
    return replace(about, efforts=tuple(sorted(about.efforts, key=(*ORDER, *about.efforts).index)))


async def _asked(ask: Ask, base: str, dialect: Dialect, models: tuple[dict[str, Any], ...]) -> dict[str, Json]:
    """The answers to the engine's own questions, by path."""
    answers: dict[str, Json] = {}
    asked: set[str] = set()
    missed = 0
    while due := [each for each in dialect.questions(models, answers) if each.path not in asked]:
        for question in due[: _MOST_QUESTIONS - len(asked)]:
            if missed == _MOST_MISSES:
                return answers
            found = await ask(base + question.path.partition("#")[0], question.body)
            if found is not None and found[1] is not None:
                answers[question.path] = found[1]
            else:
                missed += 1
        asked |= {question.path for question in due}
    return answers


def hosted(url: str) -> str | None:
    """The engine of a known service, by its host name."""
    host = f".{urlsplit(url).hostname or ''}"
    return next(
        (each.name for each in DIALECTS.values() if any(host.endswith(f".{name}") for name in each.hosts)), None
    )


def origin(url: str) -> str:
    """The URL without its `/v1`: where engines keep their own paths."""
    return url.removesuffix("/v1")


async def _told(ask: Ask, base: str, headers: dict[str, str], models: tuple[dict[str, Any], ...]) -> str | None:
    """The engine by what the server says of itself, else by a path that one engine alone has.

    SGLang and llama-server answer to other engines' paths too, and Ollama's models are owned by whoever made them: an
    owner counts where its engine's own door, if it has one, does not say otherwise.
    """
    server, owners = headers.get("server", ""), {str(row.get("owned_by")) for row in models}
    by_header = next((each for each in DIALECTS.values() if server in each.servers), None)
    by_owner = next((each for each in DIALECTS.values() if not owners.isdisjoint(each.owners)), None)
    found = by_header or by_owner
    if found is None or (found is by_owner and found.door and not await _opens(ask, base, found)):
        for each in DIALECTS.values():
            if each.door and each is not found and await _opens(ask, base, each):
                return each.name
    return found.name if found else None


async def _opens(ask: Ask, base: str, dialect: Dialect) -> bool:
    """Whether the path that tells an engine is there."""
    path, name = dialect.door or ("", "")
    answer = await ask(base + path, None)
    return answer is not None and isinstance(answer[1], dict) and name in answer[1]
