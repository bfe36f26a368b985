"""The store of the settings, read and never written: not even that a turn was asked for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from proxy.errors import NotFound
from proxy.messages import Entry
from proxy.places import is_postgres, sqlite_path
from proxy.speeds import Speed
from proxy.store import Store, open_store, open_upkeep
from proxy.store.found import Held, merge
from proxy.store.learned import SPEEDS, thoughts, thoughts_of
from proxy.store.ledger import Ledger
from proxy.store.schema import connect_to
from proxy.store.sqlite_ledger import SqliteLedger
from proxy.store.texts import Connection
from proxy.store.turns import Turns
from proxy.thoughts import Thought
from proxy.turns import Found, Turn


@contextmanager
def opened(url: str, say: Callable[[str], object]) -> Iterator[Store]:
    """The store at `url` to be read; where there is none, an empty one in memory, which is said.

    Raises ConfigError where the store cannot be used, or has the tables of another version, and ProxyError where it
    breaks later.
    """
    upkeep = None
    if url == "memory":
        say("turns, speeds and thoughts are kept in memory: what a running proxy knows is not seen here")
    else:
        try:
            upkeep = open_upkeep(url, writes=False)
        except NotFound as error:
            say(f"{error.message}; so nothing is known of earlier turns")
    if upkeep is None:
        yield open_store("memory")
        return
    with upkeep:  # says of a store that cannot be read what is wrong
        yield _in_postgres(url) if is_postgres(url) else _in_sqlite(url)


def _in_sqlite(url: str) -> Store:
    path = sqlite_path(url)
    assert path is not None  # noqa: S101 - `memory` and PostgreSQL are told above
    connection = connect_to(path)
    return Looked(connection, connection.close, "rowid")


def _in_postgres(url: str) -> Store:
    from proxy.store.connections import Marked  # noqa: PLC0415 - psycopg may not be installed
    from proxy.store.postgres_schema import connect  # noqa: PLC0415

    connection = connect(url)
    return Looked(Marked(connection), connection.close, "id")


class Looked:
    """A `proxy.store.Store` of which only the reading half does anything."""

    shared = False

    def __init__(self, connection: Connection, close: Callable[[], None], number: str) -> None:
        """`number` is the column of `requests` that rises with each row."""
        self._ask = connection.execute
        self._turns = Turns(connection)
        self._thoughts = thoughts(number)
        self.close = close
        (salt,) = self._ask("SELECT value FROM meta WHERE name = 'salt'").fetchone()
        self.salt = bytes(salt)

    async def find(self, keys: Sequence[bytes], weaker: Sequence[bytes] = ()) -> Found:
        """What is known of the keys. Nothing counts as used by that: to look does not make a turn live longer."""
        return merge(Held(), self._turns.find(keys, weaker, time.time()))

    def recent_speeds(self) -> dict[tuple[str, str], Speed]:
        return {(backend, model): Speed(*speed) for backend, model, *speed in self._ask(SPEEDS).fetchall()}

    def recent_thoughts(self, limit: int = 10_000) -> list[Thought]:
        return thoughts_of(self._ask(self._thoughts, (limit,)).fetchall())

    def put_turn(self, turn: Turn) -> None: ...

    def put_entry(self, entry: Entry, complete: Callable[[Entry], None] | None = None) -> None: ...

    def entries(self, limit: int | None = None, *, own: bool = False) -> list[dict[str, Any]]:
        return []

    def ledger(self) -> Ledger:
        return SqliteLedger.of(())

    async def written(self, seconds: float) -> None:
        """Nothing is."""

    def flush(self, timeout: float = 10.0) -> bool:
        return True

    def healthy(self) -> bool:
        return True
