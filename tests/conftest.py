"""What holds for every test."""

from __future__ import annotations

from pathlib import Path

import pytest
from postgres import postgres_server, postgres_url

__all__ = ["postgres_server", "postgres_url"]  # fixtures of every test that names them


@pytest.fixture(autouse=True)
def _no_state_of_the_users_own(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test opens the ledger under the home of whoever runs it, in this process or in a child."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.getbasetemp() / "state"))


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test may find a config.toml of the developer's."""
    monkeypatch.chdir(tmp_path)
