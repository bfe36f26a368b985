"""Looking after a SQLite file, beside the proxy that has it open."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from proxy.errors import ConfigError, ProxyError
from proxy.store.schema import MIGRATIONS, check, connect_to, refusal, transaction
from proxy.store.turns import Turns
from proxy.store.upkeep import Upkeep


class SqliteUpkeep(Upkeep):
    """Raises ConfigError where the file cannot be opened, is not ours, or has the tables of an older version."""

    errors = (sqlite3.Error,)

    def __init__(self, path: Path, writes: bool, now: Callable[[], float]) -> None:
        self._path = path
        self._connection = _opened(path, writes)
        super().__init__(self._connection, now)

    @contextmanager
    def writing(self) -> Iterator[Turns]:
        with transaction(self._connection):
            yield Turns(self._connection)

    def reclaim(self) -> str | None:
        # Deleting overwrites (`secure_delete`), but SQLite leaves copies of rows that it once moved in the gaps of
        # pages. VACUUM writes every page anew, through the log, which is then emptied.
        try:
            self._connection.execute("VACUUM")
        except sqlite3.Error as error:
            return f"{self._path} could not be written anew ({error})"
        (blocked, *_) = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        return f"{self._path}-wal could not be emptied, because another program was reading" if blocked else None

    def file_bytes(self) -> int:
        files = (self._path, self._path.with_name(f"{self._path.name}-wal"))
        return sum(file.stat().st_size for file in files if file.exists())

    def close(self) -> None:
        self._connection.close()


def _opened(path: Path, writes: bool) -> sqlite3.Connection:
    try:
        connection = connect_to(path, writes=writes)
        try:
            version = check(connection, path)
            if version < len(MIGRATIONS):
                raise ConfigError(
                    f"store.url: {path} has the tables of an older reasoning-proxy: "
                    "start `reasoning-proxy serve` once, which brings them up to date"
                )
            if writes:
                connection.execute("PRAGMA secure_delete = ON")
        except BaseException:
            connection.close()
            raise
    except ProxyError:
        raise
    except (sqlite3.Error, OSError) as error:
        raise refusal(error, path) from error
    return connection
