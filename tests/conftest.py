"""What holds for every test."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import certifi
import pytest
from postgres import postgres_server, postgres_url

__all__ = ["postgres_server", "postgres_url"]  # fixtures of every test that names them


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """First those that wait, with a `timeout` of their own or an engine: another worker does the rest meanwhile."""
    items.sort(key=lambda item: (not item.get_closest_marker("timeout"), not item.get_closest_marker("engine")))


def pytest_collection_finish() -> None:
    """Thousands of collected tests are no garbage: it is not sought among them again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _quick_ends() -> Iterator[None]:
    """A server in this process notices within 5 ms that it is to end, or that its connections have ended.

    uvicorn looks every 0.1 s, which is most of what a test with a server takes. A child process keeps to that.
    """

    async def sleep(seconds: float) -> None:
        await asyncio.sleep(seconds / 20)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("uvicorn.server.asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": sleep}))
        yield


@pytest.fixture(scope="session", autouse=True)
def _one_authority(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Clients here and in children know one authority instead of 140: reading those takes 20 ms for every client."""
    if os.environ.get("VLLM_URL"):  # that server's certificate is to be checked
        yield
        return
    end = "-----END CERTIFICATE-----\n"
    file = tmp_path_factory.mktemp("authority") / "one.pem"
    file.write_text(Path(certifi.where()).read_text("utf-8").partition(end)[0] + end, "utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(file))
        yield


@pytest.fixture(autouse=True)
def _no_state_of_the_users_own(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test opens the ledger under the home of whoever runs it, in this process or in a child."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.getbasetemp() / "state"))


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test may find a config.toml of the developer's."""
    monkeypatch.chdir(tmp_path)
