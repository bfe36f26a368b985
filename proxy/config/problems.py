"""What is wrong with settings, one line a problem: the dotted path, what came, what is allowed.

pydantic finds the problems; its own words are for programmers. What is allowed is read from the same annotations.
"""

from __future__ import annotations

import difflib
import itertools
import json
import re
import types
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, MinLen
from pydantic import BaseModel, SecretStr, ValidationError
from pydantic.fields import FieldInfo

from proxy.places import hide_in_bad_url, hide_password

Place = tuple[str | int, ...]
Problems = dict[Place, str]
SECRET = "api_key"  # noqa: S105 - the name of the key that holds one
_WIDEST = 60
_TABLES = (dict, Mapping)
_LISTS = (list, tuple)


def dotted(path: Place) -> str:
    """The path as TOML writes it."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            bare = re.fullmatch(r"[A-Za-z0-9_-]+", part)
            text += ("." if text else "") + (part if bare else quoted(part))
    return text


def quoted(text: str) -> str:
    """The text as a basic string of TOML: JSON's, but for the one control sign that JSON lets stand."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


# Walking the annotations -----------------------------------------------------------------------------------------


def options(annotation: Any, limits: tuple[Any, ...] = ()) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """The alternatives of an annotation but None, each with its limits."""
    origin = get_origin(annotation)
    if origin is Annotated:
        inner, *more = get_args(annotation)
        yield from options(inner, (*limits, *more))
    elif origin in (Union, types.UnionType):
        for part in get_args(annotation):
            yield from options(part, limits)
    elif annotation is not type(None):
        yield annotation, limits


def below(annotation: Any, key: str | int) -> Any:
    """The annotation one step further down; None where the schema has no such step."""
    for kind, _ in options(annotation):
        if kind is Any:
            return Any
        if is_table(kind):
            if (field := kind.model_fields.get(key)) is not None:
                return _annotation(field)
        elif get_origin(kind) in _TABLES:
            return get_args(kind)[1]
        elif get_origin(kind) in _LISTS:
            return get_args(kind)[0]
    return None


def _annotation(field: FieldInfo) -> Any:
    if not field.metadata:
        return field.annotation
    return Annotated[(field.annotation, *field.metadata)]


def is_table(kind: Any) -> bool:
    """Whether an alternative is a table with fixed keys."""
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def is_list(annotation: Any) -> bool:
    """Whether lists, and no tables, may stand at a place."""
    origins = [get_origin(kind) for kind, _ in options(annotation)]
    return any(origin in _LISTS for origin in origins) and not any(origin in _TABLES for origin in origins)


def is_list_of_tables(kind: Any) -> bool:
    """Whether an alternative is a list of tables with fixed keys."""
    return get_origin(kind) in _LISTS and is_table(get_args(kind)[0])


def known_keys(schema: type[BaseModel], start: Place = ()) -> Iterator[Place]:
    """The paths of all keys; a table's own name stands as NAME, its number in a list as 0."""
    for key, field in schema.model_fields.items():
        path = (*start, key)
        yield path
        for kind, _ in options(_annotation(field)):
            if is_table(kind):
                yield from known_keys(kind, path)
            elif get_origin(kind) in _TABLES and is_table(get_args(kind)[1]):
                yield from known_keys(get_args(kind)[1], (*path, "NAME"))
            elif is_list_of_tables(kind):
                yield from known_keys(get_args(kind)[0], (*path, 0))


# From pydantic's errors to lines ---------------------------------------------------------------------------------


def explain(schema: type[BaseModel], error: ValidationError) -> Problems:
    """One line, still without its path, for each place with a problem."""
    found: Problems = {}
    for item in error.errors(include_url=False):
        path, annotation = _place(schema, item["loc"])
        if item["type"] == "extra_forbidden":
            found[path] = _unknown(schema, path)
        elif item["type"] == "missing":
            found[path] = f"missing; needed is {allowed(annotation)}"
        elif item["type"] == "value_error":
            found[path] = _with_value(path, item["input"], str(item["ctx"]["error"]))
        else:
            found.setdefault(path, wrong(path, item["input"], annotation))
    # Of a union, each alternative complains: the one that got furthest is the one that was meant.
    return {path: line for path, line in found.items() if not any(_is_inside(other, path) for other in found)}


def wrong(path: Place, value: object, annotation: Any) -> str:
    """A value of the wrong type, or out of range."""
    line = f"got {_shown(path, value, annotation)}; allowed: {allowed(annotation)}"
    listed = isinstance(value, Mapping) and any(is_list_of_tables(kind) for kind, _ in options(annotation))
    return f"{line}, each under its own [[{dotted(path)}]]" if listed else line


def allowed(annotation: Any) -> str:
    """What may stand at a place, in words."""
    *words, last = dict.fromkeys(word for kind, limits in options(annotation) for word in _in_words(kind, limits))
    return f"{', '.join(words)} or {last}" if words else last


def _place(schema: type[BaseModel], location: tuple[str | int, ...]) -> tuple[Place, Any]:
    """Place and annotation of an error. pydantic puts the alternative of a union into the location: not a key."""
    path: Place = ()
    annotation: Any = schema
    inside_alternative = False
    for part in location:
        if not inside_alternative and len(list(options(annotation))) > 1:
            inside_alternative = True
        else:
            path, annotation, inside_alternative = (*path, part), below(annotation, part), False
    return path, annotation


def _is_inside(path: Place, other: Place) -> bool:
    return len(path) > len(other) and path[: len(other)] == other


def _unknown(schema: type[BaseModel], path: Place) -> str:
    """An unknown key: the nearest known one, preferably beside it, or else in the same table, rule, …"""
    *above, key = path
    annotation: Any = schema
    for part in above:
        annotation = below(annotation, part)
    beside = [name for kind, _ in options(annotation) if is_table(kind) for name in kind.model_fields]
    guesses = [(_likeness(key, name) + 0.1, dotted((*above, name))) for name in beside]
    for known in known_keys(schema):
        shared = _shared(known, above)
        guess = dotted((*above[:shared], *known[shared:]))
        guesses.append((_likeness(key, str(known[-1])) + 0.02 * shared, guess))
        guesses.append((_likeness(key, "_".join(map(str, known))), guess))
    likeness, guess = max(guesses, key=lambda item: item[0])
    if likeness >= 0.8:
        return f"no such setting; did you mean {guess}?"
    return f"no such setting; known here: {', '.join(beside)}"


def _shared(known: Place, above: list[str | int]) -> int:
    """How many steps a known path has in common with another, whatever its tables are called."""
    same = (part in (there, "NAME") or isinstance(there, int) for part, there in zip(known, above, strict=False))
    return len(list(itertools.takewhile(bool, same)))


def _likeness(one: object, other: str) -> float:
    return difflib.SequenceMatcher(None, str(one).lower(), other).ratio()


def _with_value(path: Place, value: object, problem: str) -> str:
    """A problem that a table's own check found; only a URL is repeated, for any other text may be a secret."""
    return f"got {_shown(path, value, str)}; {problem}" if path[-1:] == ("url",) else problem


def _shown(path: Place, value: object, annotation: Any) -> str:
    """What came, as the file writes it, where it cannot be a secret."""
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, (list, tuple)):
        return "a list"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)) and SECRET not in path:
        return repr(value)
    takes_tables = any(is_table(kind) for kind, _ in options(annotation))
    if not isinstance(value, str) or SECRET in path or takes_tables:
        return {str: "a text", int: "a number", float: "a number"}.get(type(value), "a date or time")
    hidden = hide_in_bad_url(value) if path[-1:] == ("url",) else hide_password(value)
    text = quoted(hidden)
    return text if len(text) <= _WIDEST else f'{text[:_WIDEST]}…"'


def _in_words(kind: Any, limits: tuple[Any, ...]) -> Iterator[str]:
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Literal:
        yield from map(quoted, parts)
    elif kind is bool:
        yield from ("true", "false")
    elif kind is int:
        yield f"a whole number{_range(limits)}"
    elif kind in (float, Decimal):
        yield f"a number{_range(limits)}"
    elif kind in (str, SecretStr):
        yield "a text, not empty" if any(isinstance(limit, MinLen) for limit in limits) else "a text"
    elif is_list_of_tables(kind):
        yield "a list of tables"
    elif origin in _LISTS:
        yield "a list of texts" if str in [part for part, _ in options(parts[0])] else "a list"
    elif origin in _TABLES and int in [part for part, _ in options(parts[1])]:
        yield "a table of whole numbers"
    else:
        yield "a table"


def _range(limits: tuple[Any, ...]) -> str:
    lowest = next((limit.ge for limit in limits if isinstance(limit, Ge)), None)
    highest = next((limit.le for limit in limits if isinstance(limit, Le)), None)
    above = next((limit.gt for limit in limits if isinstance(limit, Gt)), None)
    if above is not None:
        return f" above {above}" if highest is None else f" above {above}, up to {highest}"
    if lowest is not None and highest is not None:
        return f" from {lowest} to {highest}"
    return f" of {lowest} or more" if lowest is not None else ""
