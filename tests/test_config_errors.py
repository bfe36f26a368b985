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
colour = 1
=> server.colour: no such setting; known here: host, port, max_body_mb, drain_seconds, keepalive, keepalive_seconds,
   nonstream_keepalive_seconds, cors_origins

[backends.other]
url = "http://127.0.0.1:8081/v1"
fallback = ["locall"]
=> backends.other.fallback[0]: no backend "locall"; did you mean "local"?

[backends.other]
url = "http://127.0.0.1:8081/v1"
fallback = ["local", "local"]
=> backends.other.fallback[1]: is named twice; each is asked once

[backends.other]
url = "http://127.0.0.1:8081/v1"
fallback = ["other"]
=> backends.other.fallback[0]: a backend is no fallback of its own

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

[policy]
temperature = 0.2
=> policy.temperature: no such setting; did you mean rules[0].set.temperature?

[policy]
side_patterns = ["ok", "("]
=> policy.side_patterns: '(' is no regular expression: missing ), unterminated subpattern at position 0

[policy]
side_patterns = ["a{99999999999}"]
=> policy.side_patterns: 'a{99999999999}' is no regular expression: the repetition number is too large

[rules]
set = { effort = "low" }
=> rules: got a table; allowed: a list of tables, each under its own [[rules]]

[rule]
set = { effort = "low" }
=> rule: no such setting; did you mean rules?

rules = "low"
=> rules: got "low"; allowed: a list of tables

rules = ["low"]
=> rules[0]: got a text; allowed: a table

[[rules]]
[[rules.set]]
effort = "low"
=> rules[0].set: got a list; allowed: a table

[[rules]]
name = "empty"
=> rules[0].set: missing; needed is a table

[[rules]]
set = {}
=> rules[0].set: nothing is set; the keys are backend, model, effort, min_completion_tokens, thinking_budget,
   temperature, top_p

[[rules]]
name = "a, b"
set = { effort = "low" }
=> rules[0].name: a name has at most 64 letters and digits, and may have . _ - after the first

[[rules]]
name = "same"
set = { effort = "low" }
[[rules]]
set = { effort = "low" }
[[rules]]
name = "same"
set = { effort = "low" }
=> rules[2]: goes by the name "same", as rules[0] does; each rule needs its own

[[rules]]
name = "2"
set = { effort = "low" }
[[rules]]
set = { effort = "low" }
=> rules[1]: goes by the name "2", as rules[0] does; each rule needs its own

[[rules]]
effort = "low"
set = { top_p = 1 }
=> rules[0].effort: no such setting; did you mean rules[0].set.effort?

[[rules]]
set = { effort = "low" }
[[rules]]
set = { effort = "low", kind = "side" }
=> rules[1].set.kind: no such setting; did you mean rules[1].when.kind?

[[rules]]
when = { modle = "kimi-*" }
set = { effort = "low" }
=> rules[0].when.modle: no such setting; did you mean rules[0].when.model?

[[rules]]
when = { user = "me" }
set = { effort = "low" }
=> rules[0].when.user: no such setting; known here: model, client, kind, tools, prompt_tokens_over, text, header

[[rules]]
set = { efort = "low" }
=> rules[0].set.efort: no such setting; did you mean rules[0].set.effort?

[[rules]]
when = { kind = "title" }
set = { effort = "low" }
=> rules[0].when.kind: got "title"; allowed: "chat", "side" or "probe"

[[rules]]
when = { tools = "false" }
set = { effort = "low" }
=> rules[0].when.tools: got "false"; allowed: true or false

[[rules]]
when = { prompt_tokens_over = 1e5 }
set = { effort = "low" }
=> rules[0].when.prompt_tokens_over: got 100000.0; allowed: a whole number from 0 to 2147483647

[[rules]]
when = { text = "(" }
set = { effort = "low" }
=> rules[0].when.text: '(' is no regular expression: missing ), unterminated subpattern at position 0

[[rules]]
when = { header = "x-app" }
set = { effort = "low" }
=> rules[0].when.header: got "x-app"; allowed: a table

[[rules]]
when = { header = { x-app = 3 } }
set = { effort = "low" }
=> rules[0].when.header.x-app: got 3; allowed: a text

[[rules]]
set = { temperature = 5 }
=> rules[0].set.temperature: got 5; allowed: a number from 0 to 2

[[rules]]
set = { temperature = "0.2" }
=> rules[0].set.temperature: got "0.2"; allowed: a number from 0 to 2

[[rules]]
set = { top_p = 0 }
=> rules[0].set.top_p: got 0; allowed: a number above 0, up to 1

[[rules]]
set = { thinking_budget = true }
=> rules[0].set.thinking_budget: got true; allowed: a whole number from 0 to 2147483647, "auto" or "off"

[[rules]]
set = { model = "" }
=> rules[0].set.model: got ""; allowed: a text, not empty

[[rules]]
set = { effort = "lwo" }
=> rules[0].set.effort: no effort "lwo"; did you mean "low"?

[[rules]]
set = { backend = "locale" }
=> rules[0].set.backend: no backend "locale"; did you mean "local"?

[clients.webui]
api_key = "k"
[[rules]]
when = { client = "webiu" }
set = { effort = "low" }
=> rules[0].when.client: no client "webiu"; did you mean "webui"?

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


def test_all_problems_of_rules_at_once() -> None:
    """A fault in one rule hides neither those of other rules nor those elsewhere, and does not change their numbers."""
    lines = refused(
        """
        [policy]
        default_effort = "lwo"
        [[rules]]
        set = { efort = "low" }
        [[rules]]
        name = "empty"
        [[rules]]
        when = { modle = "m", text = "(" }
        set = { effort = "lwo", backend = "b" }
        [[rules]]
        set = { temperature = "0", thinking_budget = "auto" }
        [[rules]]
        name = "empty"
        set = { thinking_budget = 0, backend = "locale" }
        """
        + BACKEND
    )
    assert sorted(line.partition(": ")[0] for line in lines) == [
        "policy.default_effort",
        "rules[0].set.efort",
        "rules[1].set",
        "rules[2].set.backend",
        "rules[2].set.effort",
        "rules[2].when.modle",
        "rules[2].when.text",
        "rules[3].set.temperature",
        "rules[4]",
        "rules[4].set.backend",
    ]


@pytest.mark.parametrize("effort", ["off", "none", "low", "max"])
def test_efforts_of_rules(effort: str) -> None:
    """A word that any family knows, no thinking, or none sent."""
    assert load(f'{BACKEND}[[rules]]\nset = {{ effort = "{effort}" }}\n').rules[0].set.effort == effort


@pytest.mark.parametrize(
    ("client", "clients"), [("web*", "webui"), ("w?bui", "webui"), ("[a-z]*", "webui"), ("webui", "webui"), ("any", "")]
)
def test_clients_of_rules(client: str, clients: str) -> None:
    """A pattern may be for clients to come; where no client is configured, no name is known to be wrong."""
    table = f'[clients.{clients}]\napi_key = "k"\n' if clients else ""
    rule = f'[[rules]]\nwhen = {{ client = "{client}" }}\nset = {{ effort = "low" }}\n'
    assert load(BACKEND + table + rule).rules[0].when.client == client


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
        ("RULES", 'rules (from {}): got "x"; allowed: a list of tables'),
        (
            "RULES__0__SET__EFFORT",
            "rules.0.set.effort (from {}): a variable cannot give a part of a list;"
            " REASONING_PROXY_RULES takes all of it, as JSON",
        ),
        (
            "BACKENDS__LOCAL__MODELS__0",
            "backends.local.models.0 (from {}): a variable cannot give a part of a list;"
            " REASONING_PROXY_BACKENDS__LOCAL__MODELS takes all of it, as JSON",
        ),
    ],
)
def test_wrong_variables(name: str, line: str) -> None:
    """Unknown and ill-typed variables are refused, by their own name too."""
    assert refused(environ={f"REASONING_PROXY_{name}": "x"}) == [line.format(f"REASONING_PROXY_{name}")]


def test_the_variable_in_effect_is_blamed() -> None:
    """That of a key lies over that of its table; a rule inside a list has the variable of the list."""
    prefix = "REASONING_PROXY_"
    lines = refused(
        environ={
            f"{prefix}SERVER": '{"port": 1}',
            f"{prefix}SERVER__PORT": "-1",
            f"{prefix}RULES": '[{"set": {"effort": "lwo"}}]',
            f"{prefix}RULES__0__NAME": "a",
        }
    )
    assert sorted(lines) == [
        f"rules.0.name (from {prefix}RULES__0__NAME): a variable cannot give a part of a list;"
        f" {prefix}RULES takes all of it, as JSON",
        f'rules[0].set.effort (from {prefix}RULES): no effort "lwo"; did you mean "low"?',
        f"server.port (from {prefix}SERVER__PORT): got -1; allowed: a whole number from 0 to 65535",
    ]


def test_variable_beaten_by_the_command_line_is_not_blamed() -> None:
    """The error names a variable only where its value was the one in effect."""
    lines = refused(environ={"REASONING_PROXY_SERVER__PORT": "1"}, overrides={"server": {"port": -1}})
    assert lines == ["server.port: got -1; allowed: a whole number from 0 to 65535"]


def tables_of(schema: type[BaseModel]) -> Iterator[problems.Place]:
    """The places of tables with fixed keys."""
    yield ()
    yield from sorted({path[:-1] for path in problems.known_keys(schema)} - {()}, key=str)


@given(place=st.sampled_from(list(tables_of(config.Settings))), key=st.text(max_size=30))
def test_unknown_keys_are_refused_everywhere(place: problems.Place, key: str) -> None:
    """Any key that the schema does not have, at any level, is an error of one line that begins with its path."""
    path = (*place, key)
    groups = [("backends",), ("clients",), ("models",), ("families",)]  # their keys are names
    if path in set(problems.known_keys(config.Settings)) or place in groups:
        return
    tables: dict[str, Any] = {
        "backends": {"NAME": {"url": "http://h/v1"}},
        "clients": {"NAME": {"api_key": "k"}},
        "models": {"NAME": {"price": {"input": 1, "output": 1}}},
        "rules": [{"set": {"effort": "low"}}],
    }
    table: Any = tables
    for part in place:
        table = table[part] if isinstance(part, int) else table.setdefault(part, {})
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


@pytest.mark.parametrize(
    ("when", "problem"),
    [
        ({"text": ""}, "rules[0].when.text: an empty pattern is found in every text"),
        ({"header": {"Authorization": "Bearer x"}}, "rules[0].when.header: authorization holds a key"),
    ],
)
def test_a_condition_that_cannot_be_meant_is_refused(when, problem):
    """It would match everything, or put a key into the settings that are shown."""
    with pytest.raises(ConfigError) as caught:
        load(overrides={"rules": [{"when": when, "set": {"effort": "low"}}]}, environ={}, require_backends=False)
    assert problem in caught.value.message
    assert "Bearer x" not in caught.value.message


def test_a_pattern_too_large_for_the_engine_of_patterns_is_no_traceback():
    """In families too."""
    families = {"mine": {"models": ["a{99999999999}"]}}
    with pytest.raises(ConfigError, match="no regular expression"):
        load(overrides={"families": families}, environ={}, require_backends=False)
