"""Looking at one backend: what it is, what it would make of a history and an effort, and a few short answers."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

from proxy import config, probes, refusals
from proxy.backend import Backend
from proxy.dialects import Finding
from proxy.doctor.asking import HEADERS, Asker
from proxy.doctor.questions import ANSWER_TOKENS, ends_open, history, place_of, question
from proxy.doctor.seen import Efforts, Past, Seen
from proxy.errors import ProxyError, UpstreamUnreachable
from proxy.families import FALLBACK, Families
from proxy.jsons import JsonError, loads
from proxy.messages import Facts, Json
from proxy.thinking import TAGS
from proxy.wire import Wire

GENERATE_SECONDS = 60.0
"""For all that a backend is asked to generate."""
REACH_SECONDS = 10.0
LOOKS = 15
"""Each waits two seconds at the most; a probe takes as long as the server does."""
PRIVATE = (".local", ".lan", ".internal", ".home", ".home.arpa", ".localhost", ".test")
"""Ends of names that are no one else's."""
_USUAL_EFFORTS = ("low", "high")


async def examine(
    name: str, settings: config.Settings, families: Families, *, generate: bool | None, seconds: float
) -> Seen:
    """Everything about one backend. `generate` None spares services that cost money; nothing is ever loaded."""
    backend = Backend(name, settings.backends[name], settings.policy.slow_below_tokens_per_second)
    wire = Wire(name, settings.backends[name])
    seen = Seen(name, settings, backend.dialect, families.named(FALLBACK))
    try:
        seen.trouble = await trouble(seen, backend)
        if seen.trouble is None:
            await look(seen, backend, wire)
            choose(seen, families)
        if seen.model:
            seen.facts = backend.facts(seen.model, seen.family, None)
            seen.silent = silence(seen, generate)
            silent = seen.silent is not None
            asker = Asker(backend, wire, seen.facts, seen.row, seconds=seconds, silent=silent)
            await ask(seen, seen.facts, asker)
        return seen
    finally:
        await backend.aclose()
        await wire.aclose()


async def trouble(seen: Seen, backend: Backend) -> Finding | None:
    """What keeps everything else from being tried."""
    place = f"backends.{seen.name}"
    log = f"the server's log, or {place}.url"
    try:
        async with asyncio.timeout(REACH_SECONDS):
            answer = await backend.send("GET", "/models", HEADERS, b"")
            content = await answer.read()
    except TimeoutError:
        return Finding("hurts", "reachable", f"no answer to /models within {REACH_SECONDS:g} s", log)
    except UpstreamUnreachable as error:
        reason = error.message.partition("; ")[0]
        return Finding("hurts", "reachable", reason, f"start the server, or correct {place}.url")
    except ProxyError as error:
        return Finding("hurts", "reachable", error.message, log)
    words = refusals.error_fields(content, answer.status)[0]
    if answer.status in (401, 403):
        if backend.settings.authorization is None:
            text = "it wants a key, and the settings have none for it: nothing else was tried"
            return Finding("note", "reachable", text, f"{place}.api_key_env")
        return Finding("hurts", "reachable", f"it refuses the key: {words}", f"{place}.api_key_env")
    if 300 <= answer.status < 400:
        text = f"answers {answer.status} and points to {answer.headers.get('location', 'another URL')}"
        return Finding("hurts", "reachable", f"{text}: this proxy follows nobody", f"{place}.url")
    if answer.status == 404 and not urlsplit(backend.settings.base).path:
        text = "has nothing at /models, and the URL has no path"
        return Finding("hurts", "reachable", text, f'{place}.url = "{backend.settings.shown_url}/v1"')
    if answer.status == 200 and not _is_json(content):
        text = f"answers with {answer.kind or 'something'} that is no JSON: another server, or a page of one"
        return Finding("hurts", "reachable", text, f"{place}.url, which mostly ends in /v1")
    if answer.status >= 500:
        return Finding(
            "hurts", "reachable", f"answers {answer.status}: {words}", "wait until it is ready, or see its log"
        )
    return None


def _is_json(content: bytes) -> bool:
    try:
        loads(content)
    except JsonError:
        return False
    return True


async def look(seen: Seen, backend: Backend, wire: Wire) -> None:
    """What the server says that it is, and has."""
    for _ in range(LOOKS):
        await backend.look_again()
        if backend.found is not None:
            break
    seen.found, seen.dialect = backend.found, backend.dialect
    if backend.found is None:
        return
    seen.listed = backend.found.models
    if seen.listed:
        known = names(seen.listed)
        seen.denied = tuple(name for name in configured(seen) if name not in known)
    if backend.settings.engine != "auto":

        async def asks(url: str, asked: Mapping[str, Json] | None) -> tuple[dict[str, str], Any] | None:
            found = await wire.ask(url, asked, seconds=REACH_SECONDS)
            return found[1:] if found is not None and found[0] == 200 else None

        other = await probes.look(asks, backend.settings.base, "auto")
        if other is not None and other.engine not in ("openai", backend.found.engine):
            seen.says = other.engine


def configured(seen: Seen) -> list[str]:
    """The names that the settings have for models of this backend, as the server would hear them."""
    only = len(seen.settings.backends) == 1
    aliases = [
        model.upstream or name
        for name, model in seen.settings.models.items()
        if model.backend == seen.name or (only and model.backend is None)
    ]
    return list(dict.fromkeys([*seen.backend.models, *aliases]))


def choose(seen: Seen, families: Families) -> None:
    """The model to try: a configured one before others, one that costs nothing before one that does; none to load."""
    advice, wanted = seen.dialect.advice, configured(seen)
    seen.families = {str(row["id"]): family_of(seen, str(row["id"]), families) for row in seen.listed}
    rows: list[Mapping[str, Json]] = [row for row in seen.listed if names([row]) & set(wanted)]
    if not seen.listed:
        rows = [{"id": name} for name in wanted[:1]]
    elif not rows and (not seen.backend.models or advice.any_name):
        rows = list(seen.listed)
    awake = sorted((row for row in rows if not seen.is_asleep(row)), key=lambda row: advice.is_paid(row, seen.answers))
    if awake:
        seen.row = awake[0]
        seen.family = families.named(family_of(seen, seen.model, families))


def family_of(seen: Seen, model: str, families: Families) -> str:
    """As a request for the model would find it."""
    aliases = seen.settings.models.items()
    own = next((each.family for name, each in aliases if (each.upstream or name) == model and each.family), None)
    family = own or seen.backend.family
    return families.for_model(model).name if family == "auto" else family


def silence(seen: Seen, generate: bool | None) -> Finding | None:
    """Why nothing may be generated."""
    if generate is False:
        return Finding("ok", "answer", "none was asked for (--no-generate)")
    base = seen.backend.base
    service = seen.dialect.is_service or probes.hosted(base) is not None or is_public(base)
    if generate or not (service or seen.dialect.advice.is_paid(seen.row, seen.answers)):
        return None
    text = "none was asked for, because a hosted service costs money: how it thinks was not tried"
    return Finding("note", "answer", text, "--generate")


async def ask(seen: Seen, facts: Facts, asker: Asker) -> None:
    """One short answer, and what becomes of past thoughts and of the effort in the prompt."""
    efforts = efforts_of(facts)
    lowest = efforts[0] if efforts else None
    seen.answer = answer = await asker.answer(question(), ANSWER_TOKENS, lowest, stream=True)
    if answer is not None and not answer.problem and answer.fold.empty:  # small models end at once now and then
        seen.answer = answer = await asker.answer(question(again=True), ANSWER_TOKENS, lowest, stream=True) or answer
    done = answer if answer is not None and not (answer.problem or answer.cut) else None
    if done is not None and done.fold.reported().cached is None and seen.dialect.advice.cached:
        seen.again = await asker.answer(question(), 1, lowest)  # where none were cached some say nothing; now some are
    if not seen.family.thinks:
        return
    opening = await asker.prompt(question(), lowest)
    if opening is not None and opening.text is not None:
        seen.opened = ends_open(opening.text, (*seen.family.tags, *TAGS))
    if efforts:
        where = place_of(efforts[0], asker.written(question(), 1, efforts[0]))
        seen.efforts = Efforts(*efforts, where, opening, await asker.prompt(question(), efforts[1]))
    if seen.family.history != "never":
        seen.past = await past(seen, asker, tools=True)
        if seen.past is not None and seen.past.thinking.problem:
            seen.past = await past(seen, asker, tools=False) or seen.past


def efforts_of(facts: Facts) -> tuple[str, str] | None:
    """The lowest and the highest word that may be sent."""
    words = facts.family.efforts or (_USUAL_EFFORTS if facts.effort_option else ())
    return None if facts.effort_refused or len(words) < 2 else (words[0], words[-1])


async def past(seen: Seen, asker: Asker, *, tools: bool) -> Past | None:
    """A history with thoughts, and one without where only the size of a prompt is told."""
    ends = seen.family.history == "current"
    thinking = await asker.prompt(history(thoughts=True, tools=tools, ends_with_tool=ends))
    if thinking is None:
        return None
    if thinking.problem or thinking.text is not None:
        return Past(thinking, tools=tools)
    bare = await asker.prompt(history(thoughts=False, tools=tools, ends_with_tool=ends))
    return Past(thinking, bare, tools)


def names(rows: Iterable[Mapping[str, Json]]) -> set[str]:
    """The names of models, with the others that llama-server takes for them."""
    found: set[str] = set()
    for row in rows:
        aliases = row.get("aliases")
        found.add(str(row["id"]))
        found |= {alias for alias in aliases if isinstance(alias, str)} if isinstance(aliases, list) else set()
    return found


def is_public(url: str) -> bool:
    """Whether the host is likely somebody else's."""
    host = (urlsplit(url).hostname or "").lower()
    try:
        return ipaddress.ip_address(host).is_global
    except ValueError:
        return "." in host and not host.endswith(PRIVATE)
