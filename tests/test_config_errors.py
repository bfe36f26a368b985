"""What settings are refused, and in which words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from given import BACKEND, load
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from proxy import config
from proxy.config import problems
from proxy.errors import ConfigError

REFUSED = r"""
[policy]
min_completion_token = 1
=> policy.min_completion_token: no such setting; did you mean policy.min_completion_tokens?

[polcy]
=> polcy: no such setting; did you mean policy?

port = 1
=> port: no such setting; did you mean server.port?

[server]
keepalive_seconds = 1
=> server.keepalive_seconds: no such setting; known here: host, port, max_body_mb, drain_seconds

[models."a.b"]
price = {input = 1, output = 1, ouput = 1}
=> models."a.b".price.ouput: no such setting; did you mean models."a.b".price.output?

[server]
port = "8484"
=> server.port: got "8484"; allowed: a whole number from 0 to 65535

[server]
port = true
=> server.port: got true; allowed: a whole number from 0 to 65535

[server]
max_body_mb = 1.0
=> server.max_body_mb: got 1.0; allowed: a whole number of 1 or more

[server]
drain_seconds = inf
=> server.drain_seconds: got inf; allowed: a number of 0 or more

server = []
=> server: got a list; allowed: a table

[policy]
thinking_budget = 1979-05-27
=> policy.thinking_budget: got a date or time; allowed: a whole number from 0 to 2147483647, "auto" or "off"

[policy]
min_completion_tokens = true
=> policy.min_completion_tokens: got true; allowed: a whole number from 0 to 2147483647 or a table of whole numbers

[policy]
min_completion_tokens = {low = -1}
=> policy.min_completion_tokens.low: got -1; allowed: a whole number from 0 to 2147483647

[history]
restore = "most"
=> history.restore: got "most"; allowed: "auto", "all", "tools", "current" or "never"

[defaults]
end_user_headers = "x-user"
=> defaults.end_user_headers: got "x-user"; allowed: a list of texts

[defaults]
end_user_headers = ["x", 3]
=> defaults.end_user_headers[1]: got 3; allowed: a text, not empty

[backends.b]
=> backends.b.url: missing; needed is a text

[backends.b]
url = "http://h/v1"
slow = "true"
=> backends.b.slow: got "true"; allowed: true, false or "auto"

[backends.b]
url = "127.0.0.1:8080"
=> backends.b.url: got "127.0.0.1:8080"; not a URL; it looks like http://127.0.0.1:8080/v1

[backends.b]
url = "http://h/v1?x=1"
=> backends.b.url: got "http://h/v1?***"; a URL with ? or # cannot be extended by a path

[backends.b]
url = "http://h:x"
=> backends.b.url: got "http://h:x"; not a URL; it looks like http://127.0.0.1:8080/v1

[backends.b]
url = "http://h/v1"
api_key = "k"
api_key_env = "K"
=> backends.b: api_key and api_key_env are both set; one is enough

[backends.b]
url = "http://h/v1"
api_key_env = "ABSENT"
=> backends.b.api_key_env: environment variable ABSENT is not set

[backends.b]
url = "http://h/v1"
family = "kimi-3"
=> backends.b.family: no family "kimi-3"; did you mean "kimi-k3"?

[backends."b b"]
url = "http://h/v1"
=> backends."b b": a name has letters and digits, and may have . _ - after the first

[clients.a]
=> clients.a: exactly one of api_key and api_key_env is needed

[clients.a]
api_key = "k"
api_key_env = "K"
=> clients.a: exactly one of api_key and api_key_env is needed

[clients.a]
api_key = ""
=> clients.a.api_key: a key is printable ASCII without blanks, and not empty

[clients.a]
api_key = "k"
reasoning = "all"
=> clients.a.reasoning: got "all"; allowed: "reasoning_content", "reasoning", "both", "think_tags" or "hidden"

[clients.a]
api_key = "k"
[clients.b]
api_key = "k"
=> clients.b: has the same key as clients.a; each client needs its own

[models.m]
backend = "locale"
=> models.m.backend: no backend "locale"; did you mean "local"?

[models.m]
backend = "other"
=> models.m.backend: no backend "other"; known: local

[models.m]
price = { input = 1 }
=> models.m.price.output: missing; needed is a number of 0 or more

[families.f]
histori = "all"
=> families.f.histori: no such setting; did you mean families.f.history?

[families.f]
name = "g"
=> families.f.name: no such setting; a family's name stands in the head of its table

[families.f]
thinks = "no"
=> families.f.thinks: got "no"; allowed: true or false

[store]
log_level = "loud"
=> store.log_level: got "loud"; allowed: "debug", "info", "warning" or "error"
"""
"""What stands in a file, and the one line that answers it."""


def refused(text: str = BACKEND, /, **options: Any) -> list[str]:
    """The lines of the error that a file with this text gives."""
    with pytest.raises(ConfigError) as caught:
        load(text, **options)
    return caught.value.message.split("\n")


def cases() -> Iterator[tuple[str, str]]:
    """The blocks of REFUSED as file and line."""
    for block in REFUSED.strip().split("\n\n"):
        text, _, line = block.partition("\n=> ")
        yield text, re.sub(r"\n +", " ", line)


@pytest.mark.parametrize(("text", "line"), list(cases()))
def test_error_texts(text: str, line: str) -> None:
    """One line: the dotted path, what came, what is allowed."""
    # Keys outside any table must stand before the first one.
    assert refused(f"{text}\n{BACKEND}") == [line]


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("mysql://u:secret@h/db", "no such store"),
        ("sqlite:///", "no such store"),
        ("sqlite://proxy.db", "no such store"),
    ],
)
def test_unknown_stores(url: str, problem: str) -> None:
    """The error names what is accepted, and not the password."""
    [line] = refused(f'{BACKEND}[store]\nurl = "{url}"')
    assert line.startswith("store.url: got ")
    assert problem in line
    assert all(store in line for store in ("`sqlite`", "`sqlite:///file`", "`sqlite:////folder/file`", "`memory`"))
    assert "secret" not in line


def test_all_problems_at_once() -> None:
    """Faults in one table do not hide those in another, nor those between tables."""
    lines = refused(
        """
        [server]
        port = "x"
        host = "0.0.0.0"
        [backends.b]
        url = "nope"
        family = "unknown"
        api_key_env = "ABSENT"
        [models.m]
        backend = "b"
        price = { inptu = 1 }
        [policy]
        probe = { messages = -1 }
        [extra]
        """,
        environ={"REASONING_PROXY_STORE__LOG_LEVEL": "loud"},
    )
    assert sorted(line.partition(": ")[0] for line in lines) == [
        "backends.b.api_key_env",
        "backends.b.family",
        "backends.b.url",
        "extra",
        "models.m.price.inptu",
        "models.m.price.input",
        "models.m.price.output",
        "policy.probe.messages",
        "server.host",
        "server.port",
        "store.log_level (from REASONING_PROXY_STORE__LOG_LEVEL)",
    ]


def test_no_secret_in_an_error() -> None:
    """Neither a key nor a password, wherever people put it."""
    lines = refused(
        '[backends.a]\nurl = "https://user:SECRET/1@h"\napi_key = "SECRET 2"\n'
        '[clients]\nb = "SECRET-3"\n[clients.c]\napi_key_env = "SECRET-4"\n[clients.d]\napi_key = ["SECRET-5"]\n'
    )
    assert len(lines) == 5
    assert "SECRET" not in "\n".join(lines)


def test_no_backend() -> None:
    """A proxy without a backend is a mistake; a report needs none, and no keys either."""
    assert refused("") == [
        "backends: none is configured; add a [backends.NAME] table with a url, or give --backend URL"
    ]
    assert load("", require_backends=False).backends == {}
    assert load('[clients.a]\napi_key_env = "ABSENT"', require_backends=False).clients["a"].resolved is None


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "box.example"])  # noqa: S104 - to see it refused
def test_open_host_needs_clients(host: str) -> None:
    """Whoever reaches the port could use the backends' keys; both remedies are named."""
    text = f'{BACKEND}[server]\nhost = "{host}"\n'
    [line] = refused(text)
    assert line.startswith(f"server.host: {host} can be reached from other machines")
    assert "[clients.NAME]" in line
    assert 'host = "127.0.0.1"' in line
    assert load(text + '[clients.a]\napi_key = "k"').server.host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_loopback_needs_no_clients(host: str) -> None:
    """Only this machine reaches these."""
    assert load(f'{BACKEND}[server]\nhost = "{host}"\n').server.is_loopback


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("HISTORY__RESTOR", "history.restor (from {}): no such setting; did you mean history.restore?"),
        ("POLCY__PROBE", "polcy (from {}): no such setting; did you mean policy?"),
        ("SERVER_PORT", "server_port (from {}): no such setting; did you mean server.port?"),
        ("SERVER__PORT", 'server.port (from {}): got "x"; allowed: a whole number from 0 to 65535'),
    ],
)
def test_wrong_variables(name: str, line: str) -> None:
    """Unknown and ill-typed variables are refused, by their own name too."""
    assert refused(environ={f"REASONING_PROXY_{name}": "x"}) == [line.format(f"REASONING_PROXY_{name}")]


def test_variable_beaten_by_the_command_line_is_not_blamed() -> None:
    """The error names a variable only where its value was the one in effect."""
    lines = refused(environ={"REASONING_PROXY_SERVER__PORT": "1"}, overrides={"server": {"port": -1}})
    assert lines == ["server.port: got -1; allowed: a whole number from 0 to 65535"]


def tables_of(schema: type[BaseModel]) -> Iterator[tuple[str, ...]]:
    """The places of tables with fixed keys."""
    yield ()
    yield from sorted({tuple(map(str, path[:-1])) for path in problems.known_keys(schema)} - {()})


@given(place=st.sampled_from(list(tables_of(config.Settings))), key=st.text(max_size=30))
def test_unknown_keys_are_refused_everywhere(place: tuple[str, ...], key: str) -> None:
    """Any key that the schema does not have, at any level, is an error of one line that begins with its path."""
    path = (*place, key)
    groups = [("backends",), ("clients",), ("models",), ("families",)]  # their keys are names
    if path in set(problems.known_keys(config.Settings)) or place in groups:
        return
    tables: dict[str, Any] = {
        "backends": {"NAME": {"url": "http://h/v1"}},
        "clients": {"NAME": {"api_key": "k"}},
        "models": {"NAME": {"price": {"input": 1, "output": 1}}},
    }
    table = tables
    for part in place:
        table = table.setdefault(part, {})
    table[key] = 1
    with pytest.raises(ConfigError) as caught:
        config.load(environ={}, overrides=tables, read_file=False)
    assert caught.value.message.startswith(f"{problems.dotted(path)}: no such setting; ")
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("url", ["http://u:SECRET@h", "u:SECRET@h:80/v1", "http:/u:SECRET@h", "http://h/v1?key=SECRET"])
def test_no_error_repeats_a_password(url: str) -> None:
    """Whatever is wrong with the URL that holds it."""
    lines = refused(f'[backends.b]\nurl = "{url}"\nslow = 3\n')
    assert "SECRET" not in "\n".join(lines)


def test_files_that_cannot_be_are_refused() -> None:
    """A NUL in a path, and one file for both the store and the lines."""
    assert refused(f'{BACKEND}[store]\nurl = "sqlite:///a\\u0000b"\n')
    assert refused(f'{BACKEND}[store]\nledger_jsonl = "a\\u0000b"\n')
    [line] = refused(f'{BACKEND}[store]\nurl = "sqlite:///a.db"\nledger_jsonl = "a.db"\n')
    assert "the same file" in line


def test_a_default_effort_that_no_family_knows_is_refused() -> None:
    """With the nearest one."""
    [line] = refused(f'{BACKEND}[policy]\ndefault_effort = "lwo"\n')
    assert line.startswith("policy.default_effort: ")
    assert "low" in line
