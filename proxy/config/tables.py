"""The tables of the configuration file that no other module obeys alone, and `Settings`, which holds them all.

`config.example.toml` explains each key to users; here stand types, defaults and what one table can check by itself.
"""

from __future__ import annotations

import ipaddress
import re
from base64 import b64encode
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import unquote, urlsplit

from annotated_types import Ge, Gt, Le, MinLen
from pydantic import Field, PrivateAttr, SecretStr, field_validator, model_validator

from proxy.dialects import DIALECTS
from proxy.errors import ConfigError
from proxy.history import Restoring
from proxy.places import hide_password, sqlite_path
from proxy.policy import Policy, Rule
from proxy.prices import Price
from proxy.render import Shown
from proxy.section import Section
from proxy.shape import Thinking

Engine = Literal["auto", *DIALECTS]  # type: ignore[valid-type]
LogLevel = Literal["debug", "info", "warning", "error"]
Name = Annotated[str, MinLen(1)]
Origin = Annotated[str, Field(pattern=r"^(\*|https?://[^/\s]+)$")]
Seconds = Annotated[float, Ge(0), Field(allow_inf_nan=False)]
Positive = Annotated[float, Gt(0), Field(allow_inf_nan=False)]
Amount = Annotated[Decimal, Ge(0), Field(allow_inf_nan=False)]


class Server(Section):
    """`[server]`: where the proxy listens, what it takes, and how it keeps clients that wait. `keepalive_seconds` and
    `nonstream_keepalive_seconds` of 0 are never."""

    host: Name = "127.0.0.1"
    port: Annotated[int, Ge(0), Le(65535)] = 8484
    max_body_mb: Annotated[int, Ge(1)] = 64
    drain_seconds: Seconds = 30.0
    keepalive: Literal["comment", "chunk", "off"] = "comment"
    keepalive_seconds: Seconds = 15.0
    nonstream_keepalive_seconds: Seconds = 0.0
    cors_origins: tuple[Origin, ...] = ()

    @property
    def max_body_bytes(self) -> int:
        """`max_body_mb` in bytes; an MB is 1,048,576 of them."""
        return self.max_body_mb * 1_048_576

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the host."""
        return is_loopback(self.host)


class Keyed(Section):
    """A table with a secret, given as text or as the name of the environment variable that holds it."""

    api_key: SecretStr | None = None
    api_key_env: str | None = None

    _from_env: str | None = PrivateAttr(default=None)

    @field_validator("api_key")
    @classmethod
    def _can_be_sent(cls, key: SecretStr | None) -> SecretStr | None:
        if key is not None and not usable_key(key.get_secret_value()):
            raise ValueError("a key is printable ASCII without blanks, and not empty")
        return key

    @field_validator("api_key_env")
    @classmethod
    def _names_a_variable(cls, name: str | None) -> str | None:
        # The text is not repeated: people put the key itself here.
        if name is not None and not is_variable(name):
            raise ValueError("not the name of an environment variable; a key itself goes into api_key")
        return name

    @property
    def resolved(self) -> str | None:
        """The key itself; None where there is none, or its variable was not read."""
        return self._from_env if self.api_key is None else self.api_key.get_secret_value()

    def _read(self) -> str | None:
        if self.api_key_env is not None and self.resolved is None:
            raise ConfigError(f"environment variable {self.api_key_env} was not read")
        return self.resolved


class Client(Keyed):
    """`[clients.NAME]`: who may use the proxy. `reasoning` None is `defaults.client_reasoning`. A limit of 0 is none;
    days and months are UTC."""

    reasoning: Shown | None = None
    budget_usd_per_day: Amount = Decimal(0)
    budget_usd_per_month: Amount = Decimal(0)
    max_tokens_per_day: Annotated[int, Ge(0)] = 0
    spend: Literal["own", "all"] = "own"

    @model_validator(mode="after")
    def _has_one_key(self) -> Self:
        if (self.api_key is None) == (self.api_key_env is None):
            raise ValueError("exactly one of api_key and api_key_env is needed")
        return self

    @property
    def key(self) -> str:
        """The key that this client must present."""
        return self._read() or ""


class Defaults(Section):
    """`[defaults]`: what holds for every client that says nothing else. Header names are lower-case here."""

    client_reasoning: Shown = "reasoning_content"
    end_user_headers: tuple[Name, ...] = ("x-openwebui-user-id",)
    conversation_headers: tuple[Name, ...] = ("x-session-id", "x-openwebui-chat-id")

    @field_validator("end_user_headers", "conversation_headers")
    @classmethod
    def _lower_case(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name.lower() for name in names)


class Backend(Keyed):
    """`[backends.NAME]`: a server of models. 0 in `context_limit`, `read_timeout` and `max_concurrency` is no limit set
    here, `usd_per_hour` 0 a bill by tokens. `tokenizer` is a file, empty for none."""

    url: str
    engine: Engine = "auto"
    family: Name = "auto"
    models: tuple[Name, ...] = ()
    slow: bool | Literal["auto"] = "auto"
    context_limit: Annotated[int, Ge(0)] = 0
    connect_timeout: Positive = 5.0
    read_timeout: Seconds = 0.0
    loading_timeout: Seconds = 20.0
    max_concurrency: Annotated[int, Ge(0)] = 0
    queue_limit: Annotated[int, Ge(0)] = 100
    detach: bool | Literal["auto"] = "auto"
    detach_minutes: Positive = 60.0
    fallback: tuple[Name, ...] = ()
    usd_per_hour: Amount = Decimal(0)
    tokenizer: Annotated[str, Field(pattern=r"^[^\x00]*$")] = ""

    @field_validator("url")
    @classmethod
    def _is_http(cls, url: str) -> str:
        problem = "not a URL; it looks like http://127.0.0.1:8080/v1"
        try:
            parts = urlsplit(url)
            complete = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
            (parts.hostname or "").encode("idna")  # raises for an empty label, and for one that is too long
        except ValueError:
            raise ValueError(problem) from None
        if not complete or re.search(r"[\s\x00-\x1f]", url):
            raise ValueError(problem)
        if parts.query or parts.fragment:
            raise ValueError("a URL with ? or # cannot be extended by a path")
        return url.rstrip("/")

    @model_validator(mode="after")
    def _has_at_most_one_key(self) -> Self:
        if self.api_key is not None and self.api_key_env is not None:
            raise ValueError("api_key and api_key_env are both set; one is enough")
        return self

    @property
    def key(self) -> str | None:
        """The key to send; None passes the client's own on."""
        return self._read()

    @property
    def base(self) -> str:
        """The URL without a user and password."""
        return re.sub(r"(?<=://)[^/]*@", "", self.url)

    @property
    def authorization(self) -> str | None:
        """The value of the header `Authorization`: of the key, else of the URL's user and password."""
        if self.key is not None:
            return f"Bearer {self.key}"
        parts = urlsplit(self.url)
        if parts.username is None:
            return None
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        return f"Basic {b64encode(pair.encode()).decode()}"

    @property
    def secrets(self) -> tuple[str, ...]:
        """What must not stand in any log, ledger or error."""
        parts = urlsplit(self.url)
        found = (self.key, parts.password, self.authorization and self.authorization.partition(" ")[2])
        return tuple(secret for secret in found if secret)

    @property
    def shown_url(self) -> str:
        """The URL without its password, for logs and messages."""
        return hide_password(self.url)

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """A URL may hold a password, and reprs end up in logs."""
        for name, value in super().__repr_args__():
            yield name, self.shown_url if name == "url" else value


class Model(Section):
    """`[models."NAME"]`: a name that clients may ask for. What is None follows from the name and the backend."""

    backend: Name | None = None
    upstream: Name | None = None
    family: Name | None = None
    effort: Name | None = None
    price: Price | None = None


class Store(Section):
    """`[store]`: where turns and the ledger are kept."""

    url: str = "sqlite"
    ledger_jsonl: Annotated[str, Field(pattern=r"^[^\x00]*$")] = ""
    log_content: bool = False
    log_level: LogLevel = "info"

    @field_validator("url")
    @classmethod
    def _is_known(cls, url: str) -> str:
        try:
            sqlite_path(url)
        except ConfigError as error:
            raise ValueError(error.message) from None
        return url

    @model_validator(mode="after")
    def _files_differ(self) -> Self:
        path = sqlite_path(self.url)
        lines = Path(self.ledger_jsonl).expanduser() if self.ledger_jsonl else None
        if path and lines and path.absolute() == lines.absolute():
            raise ValueError("ledger_jsonl and url are the same file; lines of JSON need one of their own")
        return self

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """A URL may hold a password, and reprs end up in logs."""
        for name, value in super().__repr_args__():
            yield name, hide_password(self.url) if name == "url" else value


class Settings(Section):
    """The whole configuration, checked. `load` makes it from its four sources."""

    server: Server = Server()
    clients: dict[str, Client] = Field(default_factory=dict)
    defaults: Defaults = Defaults()
    backends: dict[str, Backend] = Field(default_factory=dict)
    models: dict[str, Model] = Field(default_factory=dict)
    policy: Policy = Policy()
    rules: tuple[Rule, ...] = ()
    history: Restoring = Restoring()
    thinking: Thinking = Thinking()
    families: dict[str, dict[str, Any]] = Field(default_factory=dict)
    store: Store = Store()

    _file: Path | None = PrivateAttr(default=None)

    @property
    def file(self) -> Path | None:
        """The file that was read, if any."""
        return self._file

    @property
    def ledger_url(self) -> str:
        """Where ledger rows can be read: the store, or the JSONL file where the store ends with its process."""
        if self.store.url == "memory" and self.store.ledger_jsonl:
            return f"jsonl:///{Path(self.store.ledger_jsonl).expanduser()}"
        return self.store.url


def is_loopback(host: str) -> bool:
    """Whether the host is this machine."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def is_variable(name: str) -> bool:
    """Whether an environment variable can have the name."""
    return re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) is not None


def usable_key(key: str) -> bool:
    """Whether a header can carry the key."""
    return re.fullmatch(r"[!-~]+", key) is not None
