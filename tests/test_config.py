"""Settings: where they come from, what is refused, and that no secret gets out."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from given import BACKEND, load

from proxy import config
from proxy.config import problems
from proxy.dialects import DIALECTS
from proxy.errors import ConfigError

LOCAL = {"backends": {"local": {"url": "http://127.0.0.1:8080/v1"}}}
NAMED = {("backends",), ("clients",), ("models",), ("families",)}
EXAMPLE = Path(__file__).parent.parent / "config.example.toml"


# Where values come from ------------------------------------------------------------------------------------------


def test_precedence() -> None:
    """Command line over environment over file over default, key by key in one table."""
    settings = load(
        BACKEND + '[server]\nhost = "127.0.0.2"\nport = 1\nmax_body_mb = 1\n',
        environ={"REASONING_PROXY_SERVER__PORT": "2", "REASONING_PROXY_SERVER__MAX_BODY_MB": "2"},
        overrides={"server": {"max_body_mb": 3}},
    )
    server = settings.server
    assert (server.drain_seconds, server.host, server.port, server.max_body_mb) == (30.0, "127.0.0.2", 2, 3)


def test_deep_merge() -> None:
    """Tables inside tables merge too, from all sources."""
    settings = load(
        BACKEND
        + '[policy]\nprobe = { messages = 2 }\nmin_completion_tokens = { low = 1 }\n[models.m]\nupstream = "u"\n',
        environ={
            "REASONING_PROXY_POLICY__MIN_COMPLETION_TOKENS__HIGH": "9",
            "REASONING_PROXY_BACKENDS__LOCAL__MODELS": '["a", "b"]',
            "REASONING_PROXY_BACKENDS__OTHER__URL": "https://other/v1",
        },
        overrides={"policy": {"probe": {"max_tokens": 7}}, "models": {"m": {"price": {"input": 1, "output": 2.5}}}},
    )
    assert (settings.policy.probe.max_tokens, settings.policy.probe.messages) == (7, 2)
    assert settings.policy.min_completion_tokens == {"low": 1, "high": 9}
    assert settings.backends["local"].models == ("a", "b")
    assert settings.backends["other"].url == "https://other/v1"
    price = settings.models["m"].price
    assert settings.models["m"].upstream == "u"
    assert price is not None
    assert str(price.output) == "2.5"


@pytest.mark.parametrize(
    ("name", "text", "read"),
    [
        ("POLICY__MIN_COMPLETION_TOKENS", "0", lambda s: s.policy.min_completion_tokens == 0),
        ("POLICY__THINKING_BUDGET", "off", lambda s: s.policy.thinking_budget == "off"),
        ("STORE__LEDGER_JSONL", "3", lambda s: s.store.ledger_jsonl == "3"),
        ("POLICY", '{"probe": {"messages": 4}}', lambda s: s.policy.probe.messages == 4),
        ("BACKENDS__LOCAL__SLOW", "True", lambda s: s.backends["local"].slow is True),
        ("BACKENDS__LOCAL__READ_TIMEOUT", "1.5", lambda s: s.backends["local"].read_timeout == 1.5),
        ("BACKENDS__LOCAL__API_KEY", "123", lambda s: s.backends["local"].key == "123"),
        ("STORE__URL", "memory", lambda s: s.store.url == "memory"),
        ("MODELS", '{"a/b": {"backend": "local"}}', lambda s: s.models["a/b"].backend == "local"),
        ("FAMILIES__MINE__THINKS", "false", lambda s: s.families["mine"] == {"thinks": False}),
        ("RULES", '[{"set": {"effort": "low"}}]', lambda s: [rule.set.effort for rule in s.rules] == ["low"]),
    ],
)
def test_variables_are_read_as_the_schema_wants(name: str, text: str, read: Any) -> None:
    """A number where numbers stand, text where text stands, JSON for lists and tables."""
    assert read(load(environ={f"REASONING_PROXY_{name}": text}))


def test_variables_find_names_of_the_file() -> None:
    """A variable can only have capitals and _; it means the name in the file that looks like it."""
    settings = load(
        '[backends."Big-Box.2"]\nurl = "http://h/v1"\n', environ={"REASONING_PROXY_BACKENDS__BIG_BOX_2__API_KEY": "k"}
    )
    assert list(settings.backends) == ["Big-Box.2"]
    assert settings.backends["Big-Box.2"].key == "k"


def test_variables_of_kubernetes() -> None:
    """A service named reasoning-proxy puts these into every pod; they are no settings, and no mistakes."""
    environ = {
        "REASONING_PROXY_SERVICE_HOST": "10.0.0.1",
        "REASONING_PROXY_SERVICE_PORT": "8484",
        "REASONING_PROXY_SERVICE_PORT_HTTP": "8484",
        "REASONING_PROXY_PORT": "tcp://10.0.0.1:8484",
        "REASONING_PROXY_PORT_8484_TCP": "tcp://10.0.0.1:8484",
        "REASONING_PROXY_PORT_8484_TCP_ADDR": "10.0.0.1",
    }
    assert load(environ=environ) == load()


def test_a_variable_with_rules_takes_the_place_of_the_files() -> None:
    """Lists are not merged: whose rule would come first?"""
    settings = load(
        f'{BACKEND}[[rules]]\nname = "file"\nset = {{ effort = "low" }}\n',
        environ={"REASONING_PROXY_RULES": '[{"name": "variable", "when": {"tools": true}, "set": {"top_p": 1}}]'},
    )
    assert [(rule.name, rule.when.tools, rule.set.top_p) for rule in settings.rules] == [("variable", True, 1.0)]


def test_which_file_is_read() -> None:
    """The given path, else the variable's, else ./config.toml, else none."""
    assert config.load(environ={}, overrides=LOCAL).file is None
    for name, port in (("config.toml", 1), ("variable.toml", 2), ("given.toml", 3)):
        Path(name).write_text(f"{BACKEND}[server]\nport = {port}\n", "utf-8")
    named = {"REASONING_PROXY_CONFIG": "variable.toml"}
    assert config.load(environ={}).server.port == 1
    assert config.load(environ=named).server.port == 2
    assert config.load("given.toml", environ=named).server.port == 3
    assert config.load(environ=named, overrides=LOCAL, read_file=False).server.port == 8484


def test_no_file_is_needed() -> None:
    """The command line alone can name the one backend."""
    settings = config.load(environ={}, overrides={"backends": {"default": {"url": "http://h:1/v1/", "engine": "vllm"}}})
    backend = settings.backends["default"]
    assert (backend.url, backend.engine, backend.family, backend.slow, backend.key) == (
        "http://h:1/v1", "vllm", "auto", "auto", None,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (None, "missing.toml: cannot be read: No such file or directory"),
        (b"[server]\nport = \n", "missing.toml:2: not TOML: invalid value"),
        (b"[server]\n\nhost = '", "missing.toml:3: not TOML: "),
        (b"[server]\nhost = '\xff'\n", "missing.toml:2: not UTF-8"),
        (b"a = " + b"1" * 5000, "missing.toml:1: not TOML: "),
    ],
)
def test_files_that_cannot_be_read(content: bytes | None, line: str) -> None:
    """The error names the file, and the line where there is one."""
    if content is not None:
        Path("missing.toml").write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        config.load("missing.toml", environ={})
    assert caught.value.message.startswith(line)
    assert "\n" not in caught.value.message


def test_byte_order_mark() -> None:
    """Editors on Windows put one in front of UTF-8."""
    assert load("\ufeff" + BACKEND).backends


# What the rest of the program gets -------------------------------------------------------------------------------


def test_keys_are_resolved() -> None:
    """From text or from the environment; a line break at the end of the variable is not part of a key."""
    settings = load(
        '[backends.a]\nurl = "http://h/v1"\napi_key_env = "UP"\n'
        '[clients.c]\napi_key = "c-key"\n[clients.d]\napi_key_env = "DOWN"\n',
        environ={"UP": "up-key\n", "DOWN": "down-key"},
    )
    assert settings.backends["a"].key == "up-key"
    assert [client.key for client in settings.clients.values()] == ["c-key", "down-key"]


def test_keys_that_were_not_read() -> None:
    """A backend without its key must not get the client's, nor a client without its key match an empty one."""
    text = '[backends.a]\nurl = "http://h/v1"\napi_key_env = "ABSENT"\n[clients.c]\napi_key_env = "ABSENT"\n'
    settings = load(text, require_backends=False)
    for table in (settings.backends["a"], settings.clients["c"]):
        with pytest.raises(ConfigError, match="ABSENT was not read"):
            assert table.key


def test_secrets_are_hidden() -> None:
    """Neither repr nor `show` gives a key or a URL's password away."""
    text = '[backends.a]\nurl = "https://user:SECRET-1@h/v1"\napi_key = "SECRET-2"\n[clients.c]\napi_key_env = "DOWN"\n'
    settings = load(text, environ={"DOWN": "SECRET-3"})
    assert "SECRET" not in repr(settings) + str(settings) + repr(settings.backends["a"]) + config.show(settings)
    shown = tomllib.loads(config.show(settings))
    assert shown["backends"]["a"]["api_key"] == "***"
    assert shown["backends"]["a"]["url"] == "https://***@h/v1"
    assert shown["clients"]["c"]["api_key_env"] == "DOWN"
    assert "api_key" not in shown["clients"]["c"]


def test_show_is_the_settings() -> None:
    """What `show` prints is TOML that loads to the same settings, where there are no secrets."""
    awkward = 'quote " \\ tab \t line \n del \x7f ü ☃'
    settings = load(
        BACKEND + '[models."a/b.c"]\nprice = { input = 3, output = 0.1 }\n'
        '[families."my.f"]\nefforts = ["low"]\neffort_words = { mid = "low" }\n',
        overrides={"models": {awkward: {"upstream": awkward}}},
    )
    again = load(config.show(settings))
    assert again == settings.model_copy()
    assert again.models[awkward].upstream == awkward


RULES = r"""
[[rules]]
name = "all.of-it"
[rules.when]
model = "kimi-*"
client = "o?*"
kind = "side"
tools = false
prompt_tokens_over = 0
text = '(?i)\bsay "hi"\?'
header = { x-app = "notes-*", "x app" = "a@b?c" }
[rules.set]
backend = "local"
model = "m"
effort = "none"
min_completion_tokens = 0
thinking_budget = "auto"
temperature = 0
top_p = 1

[[rules]]
set = { thinking_budget = 0 }
"""


def test_show_has_the_rules() -> None:
    """As tables that can be read back, in their order, with what each of them says and nothing else."""
    settings = load(BACKEND + RULES)
    shown = config.show(settings)
    assert load(shown).rules == settings.rules
    assert tomllib.loads(shown)["rules"] == tomllib.loads(RULES)["rules"]
    assert shown.count("\n[[rules]]\n") == 2
    assert "rules" not in tomllib.loads(config.show(load()))


def test_ledger_url() -> None:
    """Where the store ends with its process, a report reads the JSONL file."""
    assert load(f'{BACKEND}[store]\nurl = "memory"\nledger_jsonl = "/a/l.jsonl"').ledger_url == "jsonl:////a/l.jsonl"
    assert load(f'{BACKEND}[store]\nurl = "sqlite:///a"\nledger_jsonl = "/a/l.jsonl"').ledger_url == "sqlite:///a"


def test_header_names_are_lower_case() -> None:
    """They are compared with a call's headers, which are."""
    rule = '[[rules]]\nwhen = { header = { X-App = "Notes" } }\nset = { top_p = 1 }\n'
    assert load(BACKEND + rule).rules[0].when.header == {"x-app": "Notes"}
    assert load(f'{BACKEND}[defaults]\nend_user_headers = ["X-User"]').defaults.end_user_headers == ("x-user",)


def test_engines_are_the_dialects() -> None:
    """Every engine that can be named is spoken, and the other way round."""
    assert set(get_args(config.Engine)) == {"auto", *DIALECTS}


def test_settings_are_read_only() -> None:
    """Nobody changes what others read."""
    with pytest.raises(ValueError, match="frozen"):
        setattr(load().server, "port", 1)  # noqa: B010 - mypy knows, and does not let it be written plainly


def test_hint_for_a_url_without_a_path() -> None:
    """Accepted as written, but seldom meant."""
    settings = load('[backends.a]\nurl = "http://h:1/"\n[backends.b]\nurl = "http://h:1/api"\n')
    assert config.hints(settings) == ["backends.a.url: http://h:1 has no path; did you mean http://h:1/v1?"]


# The manual ------------------------------------------------------------------------------------------------------


def uncommented() -> str:
    """The example with its examples switched on."""
    return re.sub(r"^#(?! |$)", "", EXAMPLE.read_text("utf-8"), flags=re.MULTILINE)


def written_keys(table: dict[str, Any], place: problems.Place = ()) -> Iterator[problems.Place]:
    """The paths in a document, with NAME for the names of tables, and 0 for the numbers of those in lists."""
    for key, value in table.items():
        path = (*place, "NAME" if place in NAMED else key)
        yield path
        if isinstance(value, dict):
            yield from written_keys(value, path)
        for part in value if isinstance(value, list) else ():
            if isinstance(part, dict):
                yield from written_keys(part, (*path, 0))


def test_example_loads() -> None:
    """As it stands, and with every example switched on."""
    keys = {"OPENWEBUI_KEY": "a", "MOONSHOT_API_KEY": "b"}
    assert load(EXAMPLE.read_text("utf-8")).backends["local"].url == "http://127.0.0.1:8080/v1"
    everything = load(uncommented(), environ=keys)
    assert set(everything.backends) == {"local", "hosted"}
    assert [rule.name for rule in everything.rules] == ["long-prompts", None]


def test_example_has_every_key() -> None:
    """An option that the manual does not have is not found by anybody."""
    known = set(problems.known_keys(config.Settings))
    assert known >= {("rules", 0, "name"), ("rules", 0, "when", "header"), ("rules", 0, "set", "effort")}
    assert not known - set(written_keys(tomllib.loads(uncommented())))


def test_example_has_the_defaults() -> None:
    """A value in the manual is the default; only the backend's URL has none, and there is no rule."""
    assert load(EXAMPLE.read_text("utf-8")) == load(BACKEND)
    example = tomllib.loads(EXAMPLE.read_text("utf-8"))
    defaults = tomllib.loads(config.show(load(BACKEND)))
    assert example == defaults


def test_example_explains_every_key() -> None:
    """Each value has a comment beside or above it, or follows right on one that has."""
    explained = False
    for line in EXAMPLE.read_text("utf-8").splitlines():
        explained = bool(line) and (explained or "# " in line)
        assert explained or not re.match(r"#?\w+ = ", line), line


def test_a_hint_where_a_clients_key_would_leave_the_machine() -> None:
    """A backend without a key of its own is sent the caller's, which is the proxy's own secret."""
    clients = '[clients.a]\napi_key = "sk-123456"\n'
    abroad = load(f'{clients}[backends.b]\nurl = "https://example.invalid/v1"\n')
    assert config.hints(abroad) == ["backends.b: without api_key or api_key_env it is sent the keys of [clients]"]
    assert config.hints(load(f"{clients}{BACKEND}")) == []


def test_a_hint_where_no_engine_can_end_a_thought() -> None:
    """`policy.thinking_seconds` does nothing then; an engine that is found out later may be one that can."""
    clock = "[policy]\nthinking_seconds = 60\n"
    vllm, sglang, llama, auto = (
        f'[backends.{name}]\nurl = "http://127.0.0.1/v1"\nengine = "{engine}"\n'
        for name, engine in (("a", "vllm"), ("b", "sglang"), ("c", "llama-server"), ("d", "auto"))
    )
    hint = "policy.thinking_seconds: no backend can end a thought that runs; llama-server can"
    assert config.hints(load(vllm + sglang + clock)) == [hint]
    for fine in (vllm + sglang, vllm + llama + clock, vllm + auto + clock):
        assert config.hints(load(fine)) == []
    assert config.hints(load(clock, require_backends=False)) == []


def test_show_hides_passwords_and_leaves_other_texts_alone() -> None:
    """A pattern with ? or @ is no URL."""
    settings = load(f'{BACKEND}[families."f"]\nmodels = ["my-?model", "a@b"]\n[store]\nledger_jsonl = "a@b?c"\n')
    shown = config.show(settings)
    assert 'models = ["my-?model", "a@b"]' in shown
    assert 'ledger_jsonl = "a@b?c"' in shown
