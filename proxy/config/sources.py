"""Where settings come from: the TOML file, the environment, the command line. Merged deeply; nothing is judged here."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_origin

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource

from proxy.config import problems
from proxy.errors import ConfigError

PREFIX = "REASONING_PROXY_"
FILE_VARIABLE = "REASONING_PROXY_CONFIG"
DEFAULT_FILE = "config.toml"
_SERVICE_LINK = re.compile(r"\w+_(SERVICE_(HOST|PORT\w*)|PORT_\d+_(TCP|UDP|SCTP)\w*|PORT(?==\w+://))=.*", re.DOTALL)

Tables = dict[str, Any]


class _Layers(BaseSettings, extra="allow"):
    """pydantic-settings lays the sources over one another. It has no fields: `Settings` itself reads no environment, so
    that whoever builds one by hand gets what they wrote."""


class Environment(PydanticBaseSettingsSource):
    """Variables with our prefix. Unlike the library's own source it keeps unknown names, so that they can be refused.

    A backend, client or model that the file names is meant by the same name in capitals with `_` for other signs.
    """

    def __init__(self, schema: type[BaseModel], environ: Mapping[str, str], file: Tables) -> None:
        super().__init__(_Layers)
        self.names: dict[problems.Place, str] = {}
        self.refused: problems.Problems = {}
        self._schema, self._environ, self._file = schema, environ, file

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """Asked for by the base class, which has no fields here."""
        return None, field_name, False

    def __call__(self) -> Tables:
        """All variables as nested tables."""
        tables: Tables = {}
        names = [name for name in self._environ if name.startswith(PREFIX) and self._is_ours(name)]
        for name in sorted(names, key=lambda name: (name.count("__"), name)):  # a whole table first, then its keys
            words = name.removeprefix(PREFIX).split("__")
            path, annotation, whole = self._path(words)
            self.names[path] = name
            if whole == len(words):
                _put(tables, path, typed(annotation, self._environ[name]))
            else:
                takes = PREFIX + "__".join(words[:whole])
                self.refused[path] = f"a variable cannot give a part of a list; {takes} takes all of it, as JSON"
        return tables

    def _is_ours(self, name: str) -> bool:
        """Kubernetes tells each pod about the services beside it: about one named reasoning-proxy under our prefix."""
        of_a_service = _SERVICE_LINK.fullmatch(f"{name}={self._environ[name]}") and "__" not in name
        return name != FILE_VARIABLE and not of_a_service

    def _path(self, words: list[str]) -> tuple[tuple[str, ...], Any, int]:
        """The place, its annotation, and how many of the words lead to it, or to the list that it is a part of."""
        path: tuple[str, ...] = ()
        whole = len(words)
        annotation: Any = self._schema
        written: Any = self._file
        for word in words:
            key = word.lower().encode("utf-8", "backslashreplace").decode()
            if any(get_origin(kind) is dict for kind, _ in problems.options(annotation)) and isinstance(written, dict):
                key = next((name for name in written if _in_capitals(name) == word.upper()), key)
            written = written.get(key) if isinstance(written, dict) else None
            if problems.is_list(annotation):
                whole = min(whole, len(path))
            path, annotation = (*path, key), problems.below(annotation, key)
        return path, annotation, whole


def merged(*layers: Mapping[str, Any] | PydanticBaseSettingsSource) -> Tables:
    """The sources as one nested table; the first one wins, key by key."""
    sources = tuple(
        layer if isinstance(layer, PydanticBaseSettingsSource) else InitSettingsSource(_Layers, dict(layer))
        for layer in layers
    )
    return dict(_Layers(_build_sources=(sources, {})).model_extra or {})


def find_file(path: Path | str | None, environ: Mapping[str, str]) -> Path | None:
    """The file to read: the given one, else the one in the environment, else `./config.toml` if there is one."""
    if path is not None:
        return Path(path)
    if named := environ.get(FILE_VARIABLE):
        return Path(named).expanduser()
    default = Path(DEFAULT_FILE)
    return default if default.exists() else None


def read_file(path: Path) -> Tables:
    """The tables of a TOML file. Raises ConfigError with file and line."""
    try:
        return tomllib.loads(path.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        line = path.read_bytes()[: error.start].count(b"\n") + 1
        raise ConfigError(f"{path}:{line}: not UTF-8") from None
    except (ValueError, RecursionError) as error:
        problem, _, where = str(error).partition(" (at ")
        line_number = re.match(r"line (\d+)", where)
        # At the end of the document, tomllib gives no number.
        at = line_number[1] if line_number else path.read_bytes().count(b"\n") + 1
        raise ConfigError(f"{path}:{at}: not TOML: {problem[:1].lower()}{problem[1:]}") from None


def typed(annotation: Any, text: str) -> Any:
    """A variable's text as the value that the schema wants; what does not fit stays text, to be told as it came."""
    kinds = [kind for kind, _ in problems.options(annotation)]
    if str in kinds or SecretStr in kinds:
        return text
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return json.loads(text, parse_constant=lambda _: text)
    except (ValueError, RecursionError):
        return text


def _in_capitals(name: str) -> str:
    return re.sub(r"[^A-Z0-9]", "_", name.upper())


def _put(tables: Tables, path: tuple[str, ...], value: Any) -> None:
    *above, last = path
    for key in above:
        if not isinstance(tables.get(key), dict):
            tables[key] = {}
        tables = tables[key]
    tables[last] = value
