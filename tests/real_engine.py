"""A real llama.cpp server for tests. `engine = real_engine.engine` gives a module the fixture."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from proxy.engine import Engine


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """One real server for all tests of a module. What an earlier test asked is still in its prompt cache."""
    with Engine() as running:
        yield running
