"""The command line: what goes where, and with which exit code."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

import proxy
from proxy import cli
from proxy.config import Settings
from proxy.errors import NotFound

ROOT = Path(proxy.__file__).parent.parent
BACKEND = '[backends.local]\nurl = "http://127.0.0.1:8080/v1"\n'


@pytest.fixture(autouse=True)
def _clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty folder and none of the developer's own settings."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("REASONING_PROXY_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def run(*arguments: str, env: dict[str, str] | None = None) -> Result:
    """The command as a user calls it; unexpected exceptions come through."""
    result = CliRunner().invoke(cli.main, arguments, env=env)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def stand_in(monkeypatch: pytest.MonkeyPatch, name: str, **members: Any) -> None:
    """Put a module in the place of `proxy.NAME`."""
    module = types.ModuleType(f"proxy.{name}")
    vars(module).update(members)
    monkeypatch.setitem(sys.modules, f"proxy.{name}", module)
    monkeypatch.setattr(proxy, name, module, raising=False)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """The settings that `serve` would run with."""
    settings: list[Settings] = []
    stand_in(monkeypatch, "app", serve=settings.append)
    return settings


# serve, demo, report ---------------------------------------------------------------------------------------------


def test_serve_needs_no_file(served: list[Settings]) -> None:
    """The one backend is named "default"."""
    result = run("serve", "--backend", "http://h:1/v1/", "--engine", "vllm", "--family", "kimi-k3", "--port", "0")
    assert result.exit_code == 0
    [settings] = served
    [(name, backend)] = settings.backends.items()
    assert (name, backend.url, backend.engine, backend.family) == ("default", "http://h:1/v1", "vllm", "kimi-k3")
    assert (settings.server.host, settings.server.port) == ("127.0.0.1", 0)


def test_serve_options_win(served: list[Settings]) -> None:
    """Over the environment, which wins over the file."""
    Path("f.toml").write_text(BACKEND + "[server]\nport = 1\nmax_body_mb = 1\n", "utf-8")
    env = {"REASONING_PROXY_SERVER__PORT": "2", "REASONING_PROXY_SERVER__MAX_BODY_MB": "2"}
    assert run("serve", "--config", "f.toml", "--port", "3", "--host", "::1", env=env).exit_code == 0
    server = served[0].server
    assert (server.host, server.port, server.max_body_mb) == ("::1", 3, 2)


@pytest.mark.parametrize("option", ["--engine", "--family"])
def test_serve_engine_without_backend(option: str, served: list[Settings]) -> None:
    """They would describe nothing."""
    result = run("serve", option, "vllm")
    assert result.exit_code == 2
    assert "--backend URL" in result.stderr
    assert not served


def test_serve_with_wrong_settings(served: list[Settings]) -> None:
    """Every problem on stderr, exit code 2, nothing on stdout."""
    result = run("serve", "--backend", "nonsense", "--engine", "vlm")
    assert result.exit_code == 2
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert len(lines) == 2
    assert all(line.startswith("error: backends.default.") for line in lines)
    assert not served


def test_other_errors_exit_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    """An expected error is a line on stderr, without a traceback."""

    def fail(_: Settings) -> None:
        raise NotFound("something is not there")

    stand_in(monkeypatch, "app", serve=fail)
    result = run("serve", "--backend", "http://h/v1")
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", "error: something is not there\n")


def test_demo_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo's own, with its options passed on."""
    called: list[dict[str, Any]] = []

    def show(**options: Any) -> int:
        called.append(options)
        return 3

    stand_in(monkeypatch, "demo", run=show)
    Path("m.gguf").touch()
    assert run("demo").exit_code == 3
    assert run("demo", "--keep", "--model", "m.gguf").exit_code == 3
    assert called == [{"keep": False, "model": None}, {"keep": True, "model": Path("m.gguf")}]
    assert run("demo", "--model", "absent.gguf").exit_code == 2


class _Report:
    """Tells what it was asked."""

    def __init__(self, asked: str) -> None:
        self._asked = asked

    @classmethod
    def from_ledger(cls, url: str, *, since: str | None, until: str | None, progress: object) -> _Report:
        return cls(f"{url} {since} {until}")

    def render(self, by: str, format: str, *, compare: str | None, tariffs: object) -> str:
        return f"{self._asked} {by} {format}"


@pytest.mark.parametrize(
    ("arguments", "asked"),
    [
        ((), "sqlite None None model table"),
        (("--ledger", "sqlite:///x.db", "--since", "7d", "--until", "today"), "sqlite:///x.db 7d today model table"),
        (("--by", "client", "--format", "csv", "--config", "f.toml"), "sqlite:///own.db None None client csv"),
    ],
)
def test_report(arguments: tuple[str, ...], asked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads the settings' store, or the given one; needs neither file, nor backends, nor keys."""
    stand_in(monkeypatch, "report", Report=_Report)
    Path("f.toml").write_text('[store]\nurl = "sqlite:///own.db"\n[clients.a]\napi_key_env = "ABSENT"\n', "utf-8")
    result = run("report", *arguments)
    assert result.exit_code == 0
    assert result.stdout == asked + "\n"


def test_report_knows_its_keys_and_formats() -> None:
    """The options offer what the report can do."""
    from proxy import report

    assert set(cli.BY) == set(report.KEYS)
    assert set(cli.FORMATS) == set(report.FORMATS)


# config ----------------------------------------------------------------------------------------------------------


def test_config_check() -> None:
    """OK and a line for each backend on stdout, hints on stderr, passwords nowhere."""
    Path("config.toml").write_text(
        BACKEND + '[backends.b]\nurl = "https://u:SECRET@h"\nmodels = ["x", "y"]\napi_key_env = "K"\n', "utf-8"
    )
    result = run("config", "check", env={"K": "SECRET"})
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "OK",
        "local: http://127.0.0.1:8080/v1, engine auto, family auto, the client's key, models asked from it",
        "b: https://***@h, engine auto, family auto, key from K, models x, y",
    ]
    assert result.stderr == "warning: backends.b.url: https://***@h has no path; did you mean https://***@h/v1?\n"


def test_config_check_names_every_problem() -> None:
    """One line each on stderr, exit code 2."""
    Path("f.toml").write_text(BACKEND + "[server]\nport = -1\n[policy]\nprob = 1\n", "utf-8")
    result = run("config", "check", "--config", "f.toml")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.splitlines() == [
        "error: server.port: got -1; allowed: a whole number from 0 to 65535",
        "error: policy.prob: no such setting; did you mean policy.probe?",
    ]


def test_config_show() -> None:
    """The effective settings as TOML, with the file's name, and secrets hidden."""
    Path("f.toml").write_text(BACKEND + 'api_key = "SECRET"\n', "utf-8")
    result = run("config", "show", env={"REASONING_PROXY_CONFIG": "f.toml", "REASONING_PROXY_SERVER__PORT": "9"})
    assert result.exit_code == 0
    assert result.stdout.startswith("# file: f.toml\n")
    assert "port = 9\n" in result.stdout
    assert 'api_key = "***"\n' in result.stdout
    assert "SECRET" not in result.output


# The program as a whole ------------------------------------------------------------------------------------------


def commands(group: click.Group, *path: str) -> list[tuple[tuple[str, ...], click.Command]]:
    """All commands with the words that call them."""
    found: list[tuple[tuple[str, ...], click.Command]] = [(path, group)]
    for name, command in group.commands.items():
        found += commands(command, *path, name) if isinstance(command, click.Group) else [((*path, name), command)]
    return found


@pytest.mark.parametrize(("path", "command"), commands(cli.main))
def test_help(path: tuple[str, ...], command: click.Command) -> None:
    """Every command explains itself and every option, with an example that click itself can read."""
    result = run(*path, "--help")
    assert result.exit_code == 0
    assert all(getattr(option, "help", None) for option in command.params if isinstance(option, click.Option))
    [example] = [line.strip() for line in result.stdout.split("Example:\n")[1].split("\n\n")[0].splitlines()]
    words = example.split()
    words = words[words.index("reasoning-proxy") + 1 :]
    assert words[: len(path)] == list(path)
    command.make_context("example", words[len(path) :], resilient_parsing=True)


def test_version() -> None:
    """Name and version, as the package has it."""
    assert run("--version").stdout == f"reasoning-proxy {proxy.__version__}\n"


def test_clash_with_proxy_py(monkeypatch: pytest.MonkeyPatch) -> None:
    """The distribution proxy.py overwrites our package; say so, and what to do, before anything odd happens."""
    found = importlib.metadata.distribution

    def with_proxy_py(name: str) -> Any:
        return object() if name == "proxy.py" else found(name)

    monkeypatch.setattr(importlib.metadata, "distribution", with_proxy_py)
    result = run("config", "show")
    assert result.exit_code == 2
    assert result.stderr.startswith('error: the distribution "proxy.py" is installed')
    assert "python -m venv" in result.stderr


def process(*arguments: str, stdout: int = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    """Python in a process of its own."""
    command = [sys.executable, *arguments]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(  # noqa: S603 - our own program
        command, env=environ, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False, timeout=60
    )


def test_process() -> None:
    """`python -m proxy` has the same exit codes and streams, and calls itself by the command's name."""
    result = process("-m", "proxy", "config", "check")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("error: backends: none is configured")
    Path("config.toml").write_text(BACKEND, "utf-8")
    result = process("-m", "proxy", "config", "check")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("OK\n")
    assert process("-m", "proxy", "--help").stdout.startswith("Usage: reasoning-proxy ")


def test_reader_that_leaves_early() -> None:
    """A pipe that is closed, as by `| head`, is no error to talk about."""
    Path("config.toml").write_text(BACKEND, "utf-8")
    reading, writing = os.pipe()
    os.close(reading)
    try:
        result = process("-m", "proxy", "config", "show", stdout=writing)
    finally:
        os.close(writing)
    assert result.stderr == ""


def test_start_is_light() -> None:
    """`--help` loads nothing that takes long."""
    result = process(
        "-c",
        "import sys\nfrom proxy import cli\n"
        "heavy = {'aiohttp', 'asyncio', 'fastapi', 'httpx', 'pydantic', 'rich', 'sqlite3', 'tiktoken', 'uvicorn'}\n"
        "print(heavy & set(sys.modules))\n",
    )
    assert (result.stdout, result.stderr) == ("set()\n", "")
