"""A real llama.cpp server for tests. `engine = real_engine.engine` gives a module the fixture."""

from __future__ import annotations

import time
from collections.abc import Iterator

import httpx
import pytest

from proxy.engine import Engine


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """One real server for all tests of a module. What an earlier test asked is still in its prompt cache."""
    with Engine() as running:
        yield running


def refuses(url: str, seconds: float = 10.0) -> bool:
    """Whether nobody listens there any more, in that time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            httpx.get(url, timeout=1)
        except httpx.ConnectError:
            return True
        except httpx.HTTPError:
            pass  # just going down
        time.sleep(0.05)
    return False
