"""What the documents say is true."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

import proxy
from proxy import cli, config
from proxy.dialects import DIALECTS
from proxy.testing import FakeBackend, answer

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    """The code blocks of the README in that language."""
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_the_readmes_configuration_loads(tmp_path):
    """Copied as it stands, with the variables that it names."""
    (block,) = blocks("toml")
    file = tmp_path / "config.toml"
    file.write_text(block)
    loaded = config.load(file, environ={"MOONSHOT_API_KEY": "sk-1", "OPENWEBUI_KEY": "sk-2"})
    assert set(loaded.backends) == {"box", "hosted"}


async def test_the_readmes_agent_code_runs():
    """Copied as it stands, with a backend at its URL."""
    (block,) = blocks("python")
    async with FakeBackend(answer("hi", reasoning="T"), style="llama-server") as backend:
        names: dict[str, object] = {}
        ask = 'await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])'
        code = block.replace("http://127.0.0.1:8080/v1", backend.url).replace("...\n", f"    {ask}\n    ")
        head, _, tail = code.partition("    await ")
        exec(f"{head}\nasync def run():\n    await {tail}    await client.close()\n", names)  # noqa: S102 - our own README
        await names["run"]()
        assert len(backend.requests) == 1


@pytest.mark.parametrize("line", re.findall(r"^(?:\$ )?(reasoning-proxy .*)$", README, re.MULTILINE))
def test_the_readmes_commands_exist(line):
    """Each command of the README knows the options that it is shown with."""
    words = line.split()[1:]
    options = [word for word in words if word.startswith("--")]
    command = [word for word in words if not word.startswith("--")][:1]
    result = CliRunner().invoke(cli.main, [*command, "--help"])
    assert result.exit_code == 0
    assert all(option in result.output for option in options)


def test_the_version_is_one():
    """The package and its metadata say the same."""
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == proxy.__version__


def test_the_table_of_modules_is_complete():
    """docs/architecture.md has a line for each module, and for no other."""
    table = (ROOT / "docs" / "architecture.md").read_text().partition("| module | one line |")[2].partition("\n\n")[0]
    first_cells = " ".join(line.split("|")[1] for line in table.splitlines() if line.count("|") > 1)
    named = {name.rstrip("/") for name in re.findall(r"`([^`]+)`", first_cells)}
    there = {
        path.name
        for path in (ROOT / "proxy").iterdir()
        if path.name not in {"__pycache__", "__init__.py", "py.typed"} and (path.is_dir() or path.suffix != ".pyc")
    }
    assert named == there


def test_the_table_of_engines_is_complete():
    """docs/engines.md has a row for each engine."""
    rows = re.findall(r"^\| ([a-z-]+)", (ROOT / "docs" / "engines.md").read_text(), re.MULTILINE)
    assert sorted(set(rows) - {"engine"}) == sorted(DIALECTS)


def test_every_fault_names_a_test_that_is_there():
    """docs/reliability.md promises nothing that is not proved."""
    rows = [line for line in (ROOT / "docs" / "reliability.md").read_text().splitlines() if line.endswith(" |")]
    named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", "\n".join(rows))
    assert len(named) >= 40
    for file, test in named:
        assert f"def {test}(" in (ROOT / "tests" / file).read_text(), f"{file}::{test}"
