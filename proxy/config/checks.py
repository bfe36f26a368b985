"""What must hold for the settings: first each table by its schema, then the tables against one another."""

from __future__ import annotations

import copy
import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Any
from urllib.parse import urlsplit

from pydantic import BaseModel, SecretStr, ValidationError

from proxy import families, tokens
from proxy.config import problems
from proxy.config.problems import Place, Problems
from proxy.config.tables import Keyed, Settings, is_loopback, is_variable, usable_key
from proxy.dialects import DIALECTS
from proxy.errors import ConfigError
from proxy.section import Section

Found = Iterator[tuple[Place, str]]


def validated(tables: dict[str, Any]) -> tuple[Settings | None, Problems]:
    """The settings, and what their schema finds wrong.

    With problems the settings are what is left without the places in question, so that the other checks can speak too.
    """
    found: Problems = {}
    rest = copy.deepcopy(tables)
    while True:
        try:
            settings = Settings.model_validate(rest)
        except ValidationError as error:
            now = problems.explain(Settings, error)
            found = found or now
            removed = [_remove(rest, path) for path in now]
            if not any(removed):
                return None, found
        else:
            for path, line in _converted(tables, settings, Settings, ()):
                found.setdefault(path, line)
            return settings, found


def _remove(tables: dict[str, Any], path: Place) -> bool:
    """Take a place out; a missing key takes its table along, and a part of a list the list: the numbers of the others
    would no longer be theirs."""
    if not path:
        return False
    *above, last = path
    holder: Any = tables
    for part in above:
        holder = _part(holder, part)
    if isinstance(holder, dict) and last in holder:
        del holder[last]
        return True
    return isinstance(holder, (dict, list)) and _remove(tables, tuple(above))


def _part(value: Any, key: str | int) -> Any:
    if isinstance(value, list) and isinstance(key, int):
        return value[key]
    return value.get(key) if isinstance(value, dict) else None


def _converted(raw: Any, value: Any, annotation: Any, path: Place) -> Found:
    """Places where pydantic made another kind of value: a text into a number, true into 1. Nobody means that."""
    if isinstance(raw, Mapping):
        for key, part in raw.items():
            if isinstance(value, BaseModel) and key in type(value).model_fields:
                inner = getattr(value, key)
            else:
                inner = value.get(key) if isinstance(value, Mapping) else None
            if inner is not None:
                yield from _converted(part, inner, problems.below(annotation, key), (*path, key))
    elif isinstance(raw, list) and isinstance(value, (list, tuple)):
        for number, (part, inner) in enumerate(zip(raw, value, strict=False)):
            yield from _converted(part, inner, problems.below(annotation, number), (*path, number))
    elif not _same_kind(raw, value):
        yield path, problems.wrong(path, raw, annotation)


def _same_kind(raw: Any, value: Any) -> bool:
    if isinstance(raw, str):
        return isinstance(value, (str, SecretStr))
    if isinstance(raw, bool) or isinstance(value, bool):
        return isinstance(raw, bool) and isinstance(value, bool)
    if isinstance(raw, float):
        return isinstance(value, (float, Decimal))
    return not isinstance(raw, int) or isinstance(value, (int, float, Decimal))


def read_keys(settings: Settings, environ: Mapping[str, str]) -> None:
    """Give the tables with `api_key_env` their keys; a line break at the end of the variable does not belong to it."""
    keyed: list[Keyed] = [*settings.clients.values(), *settings.backends.values()]
    for table in keyed:
        key = environ.get(table.api_key_env or "", "").strip()
        if usable_key(key):
            table._from_env = key


def across(settings: Settings, tables: Mapping[str, Any], environ: Mapping[str, str], *, serving: bool) -> Found:
    """Problems between tables. `tables` is all that was given, the faulty places too."""
    yield from _names(tables)
    yield from _host(settings, tables)
    yield from _same_keys(settings)
    yield from _backends_of_models(tables)
    yield from _fallbacks(tables)
    yield from _tokenizers(settings)
    yield from _families(tables)
    yield from _efforts(settings, tables)
    yield from _rules(tables)
    if serving:
        yield from _backends(tables)
        yield from _unread_keys(tables, environ)


def hints(settings: Settings) -> list[str]:
    """What is allowed but seldom meant."""
    found = []
    for name, backend in settings.backends.items():
        if not urlsplit(backend.url).path:
            found.append(f"backends.{name}.url: {backend.shown_url} has no path; did you mean {backend.shown_url}/v1?")
        abroad = not is_loopback(urlsplit(backend.url).hostname or "")
        if settings.clients and abroad and backend.api_key is None and backend.api_key_env is None:
            found.append(f"backends.{name}: without api_key or api_key_env it is sent the keys of [clients]")
    found += _of_money(settings)
    engines = {backend.engine for backend in settings.backends.values()}
    able = [name for name, dialect in DIALECTS.items() if dialect.control is not None]
    if settings.policy.thinking_seconds and engines and not engines & {"auto", *able}:
        found.append(f"policy.thinking_seconds: no backend can end a thought that runs; {' and '.join(able)} can")
    return found


def _of_money(settings: Settings) -> Iterator[str]:
    by_time = [name for name, backend in settings.backends.items() if backend.usd_per_hour]
    for name, model in settings.models.items():
        if model.price is not None and model.backend in by_time:
            where = problems.dotted(("models", name, "price"))
            yield f"{where}: backend {model.backend} is billed by its usd_per_hour; this price only serves --compare"
    priced = by_time or any(model.price is not None for model in settings.models.values())
    own = all(is_loopback(urlsplit(backend.url).hostname or "") for backend in settings.backends.values())
    for name, client in settings.clients.items():
        if (client.budget_usd_per_day or client.budget_usd_per_month) and own and not priced:
            yield f"clients.{name}: a budget in USD is never used up where no price is known; set one, or usd_per_hour"


def _entries(tables: Mapping[str, Any], *groups: str) -> Iterator[tuple[tuple[str, str], Mapping[str, Any]]]:
    """The named tables in `[group.NAME]`, as they were given."""
    for group in groups:
        named = tables.get(group)
        for name, table in named.items() if isinstance(named, Mapping) else ():
            if isinstance(table, Mapping):
                yield (group, name), table


def _names(tables: Mapping[str, Any]) -> Found:
    for path, _ in _entries(tables, "clients", "backends"):
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", path[1]):
            yield path, "a name has letters and digits, and may have . _ - after the first"


def _host(settings: Settings, tables: Mapping[str, Any]) -> Found:
    if not settings.server.is_loopback and not tables.get("clients"):
        yield (
            ("server", "host"),
            f"{settings.server.host} can be reached from other machines, and no client has a key; "
            'add a [clients.NAME] table with api_key_env, or set host = "127.0.0.1"',
        )


def _same_keys(settings: Settings) -> Found:
    owners: dict[str, str] = {}
    for name, client in settings.clients.items():
        if (key := client.resolved) is not None and owners.setdefault(key, name) != name:
            first = problems.dotted(("clients", owners[key]))
            yield ("clients", name), f"has the same key as {first}; each client needs its own"


def _backends_of_models(tables: Mapping[str, Any]) -> Found:
    known = [name for (_, name), _ in _entries(tables, "backends")]
    for path, table in _entries(tables, "models"):
        backend = table.get("backend")
        if isinstance(backend, str) and backend not in known:
            yield (*path, "backend"), _no_such("backend", backend, known)


def _fallbacks(tables: Mapping[str, Any]) -> Found:
    known = [name for (_, name), _ in _entries(tables, "backends")]
    for path, table in _entries(tables, "backends"):
        given = table.get("fallback")
        others = given if isinstance(given, (list, tuple)) else ()
        for number, other in enumerate(others):
            if other == path[1]:
                yield (*path, "fallback", number), "a backend is no fallback of its own"
            elif isinstance(other, str) and other not in known:
                yield (*path, "fallback", number), _no_such("backend", other, known)
            elif other in others[:number]:
                yield (*path, "fallback", number), "is named twice; each is asked once"


def _tokenizers(settings: Settings) -> Found:
    for name, backend in settings.backends.items():
        if backend.tokenizer and (problem := tokens.check_vocabulary(backend.tokenizer)):
            yield ("backends", name, "tokenizer"), problem


class _OwnFamilies(Section):
    """For `[families]` the settings keep what the user wrote, because `families.load` lays it over the shipped rows."""

    families: dict[str, families.Family]


def _families(tables: Mapping[str, Any]) -> Found:
    own = dict(_entries(tables, "families"))
    written = {"families": {name: table for (_, name), table in own.items()}}
    try:
        checked = _OwnFamilies.model_validate(written)
        yield from _converted(written, checked, _OwnFamilies, ())
        families.load(written["families"])
    except ValidationError as error:
        yield from problems.explain(_OwnFamilies, error).items()
    except ConfigError as error:
        yield ("families",), error.message.removeprefix("families.")
    for path, table in own.items():
        if "name" in table:  # a field of Family, which `families.load` fills
            yield (*path, "name"), "no such setting; a family's name stands in the head of its table"
    known = [*families.load().names, *written["families"]]
    for path, table in _entries(tables, "backends", "models"):
        family = table.get("family")
        if isinstance(family, str) and family not in ("", "auto", *known):
            yield (*path, "family"), _no_such("family", family, known)


def _efforts(settings: Settings, tables: Mapping[str, Any]) -> Found:
    """A word that no family knows is a mistake, and some engines answer 500 to it."""
    try:
        known = families.load(settings.families).words
    except ConfigError:
        return  # told by its own check
    word = settings.policy.default_effort
    if word not in ("auto", "off", *known):
        yield ("policy", "default_effort"), _no_such("effort", word, ["auto", "off", *known])
    floors = settings.policy.min_completion_tokens
    for each in floors if isinstance(floors, dict) else ():
        if each not in known:
            yield ("policy", "min_completion_tokens", each), _no_such("effort", each, known)
    for name, model in settings.models.items():
        if model.effort is not None and model.effort not in ("none", *known):
            yield ("models", name, "effort"), _no_such("effort", model.effort, ["none", *known])
    for path, word in _in_rules(tables, "set", "effort"):
        if word not in ("off", "none", *known):
            yield path, _no_such("effort", word, ["off", "none", *known])


def _rules(tables: Mapping[str, Any]) -> Found:
    clients, backends = ([name for (_, name), _ in _entries(tables, group)] for group in ("clients", "backends"))
    for path, backend in _in_rules(tables, "set", "backend"):
        if backend not in backends:
            yield path, _no_such("backend", backend, backends)
    for path, client in _in_rules(tables, "when", "client"):
        if clients and client not in clients and not re.search(r"[*?]", client):
            yield path, _no_such("client", client, clients)
    owners: dict[str, Place] = {}
    for number, (path, rule) in enumerate(_each_rule(tables), 1):
        name = rule.get("name", str(number))
        if isinstance(name, str) and owners.setdefault(name, path) != path:
            first = problems.dotted(owners[name])
            yield path, f"goes by the name {problems.quoted(name)}, as {first} does; each rule needs its own"


def _each_rule(tables: Mapping[str, Any]) -> Iterator[tuple[Place, Mapping[str, Any]]]:
    """The tables in `[[rules]]`, as they were given."""
    rules = tables.get("rules")
    for number, rule in enumerate(rules if isinstance(rules, (list, tuple)) else ()):
        yield ("rules", number), rule if isinstance(rule, Mapping) else {}


def _in_rules(tables: Mapping[str, Any], part: str, key: str) -> Iterator[tuple[Place, str]]:
    """The texts at one place of all rules."""
    for path, rule in _each_rule(tables):
        table = rule.get(part)
        value = table.get(key) if isinstance(table, Mapping) else None
        if isinstance(value, str):
            yield (*path, part, key), value


def _backends(tables: Mapping[str, Any]) -> Found:
    if not tables.get("backends"):
        yield ("backends",), "none is configured; add a [backends.NAME] table with a url, or give --backend URL"


def _unread_keys(tables: Mapping[str, Any], environ: Mapping[str, str]) -> Found:
    for path, table in _entries(tables, "clients", "backends"):
        name = table.get("api_key_env")
        if not isinstance(name, str) or not is_variable(name) or "api_key" in table:
            continue
        key = environ.get(name, "").strip()
        if not usable_key(key):
            problem = "holds no key: a key is printable ASCII without blanks" if key else "is not set"
            yield (*path, "api_key_env"), f"environment variable {name} {problem}"


def _no_such(what: str, name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), 1)
    guess = f"did you mean {problems.quoted(near[0])}?" if near else f"known: {', '.join(known) or 'none'}"
    return f"no {what} {problems.quoted(name)}; {guess}"
