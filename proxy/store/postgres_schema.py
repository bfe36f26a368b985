"""The tables of a PostgreSQL store, as numbered migrations. Never change one that was released: add the next."""

from __future__ import annotations

import os
from typing import Any, TypeAlias

from proxy.errors import ConfigError
from proxy.places import hide_password
from proxy.store.driver import conninfo, errors, psycopg
from proxy.store.tables import TURNS

CONNECT_SECONDS = 5
"""For each address of the server, where the URL has no `connect_timeout`."""

Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]

WORDS = {
    "id": "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
    "bytes": "BYTEA",
    "number": "BIGINT",
    "small": "",
}
"""For `proxy.store.tables`."""

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        "CREATE TABLE meta (name TEXT PRIMARY KEY, value BYTEA NOT NULL)",
        """CREATE TABLE speeds (
            backend TEXT NOT NULL, upstream_model TEXT NOT NULL, decode_tokens_per_second DOUBLE PRECISION NOT NULL,
            PRIMARY KEY (backend, upstream_model)
        )""",
        # `id` gives the order of writing, `replica` names the process that wrote; the others are the ledger's.
        """CREATE TABLE requests (
            id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, replica TEXT NOT NULL,
            v BIGINT, ts TEXT COLLATE "C", request_id TEXT, client TEXT, end_user TEXT, conversation TEXT, kind TEXT,
            endpoint TEXT, model TEXT, upstream_model TEXT, backend TEXT, engine TEXT, family TEXT, stream BOOLEAN,
            effort_asked TEXT, effort_sent TEXT, effort_reason TEXT,
            max_tokens_asked BIGINT, max_tokens_sent BIGINT, thinking_budget_sent BIGINT,
            prompt_tokens BIGINT, cached_tokens BIGINT, completion_tokens BIGINT,
            reasoning_tokens BIGINT, visible_tokens BIGINT, reasoning_source TEXT, reported_reasoning_tokens BIGINT,
            turns_present BIGINT, turns_restored BIGINT, turns_missing BIGINT, turns_filled BIGINT,
            turns_dropped BIGINT, first_byte_ms BIGINT, first_reasoning_ms BIGINT, first_visible_ms BIGINT,
            duration_ms BIGINT, prefill_tokens_per_second DOUBLE PRECISION, decode_tokens_per_second DOUBLE PRECISION,
            finish_reason TEXT, outcome TEXT, status BIGINT, attempts BIGINT, cost_usd TEXT, price_source TEXT,
            decisions TEXT, flags TEXT, error TEXT
        )""",
        "CREATE INDEX requests_ts ON requests (ts)",
        *(statement.format_map(WORDS) for statement in TURNS),
        "ALTER TABLE texts ALTER COLUMN data SET STORAGE EXTERNAL",  # compressed already, where that pays
    ),
    (
        # Replicas of the version before go on writing their three columns.
        "ALTER TABLE speeds ALTER COLUMN decode_tokens_per_second DROP NOT NULL",
        "ALTER TABLE speeds ADD COLUMN prefill_tokens_per_second DOUBLE PRECISION",
        "DELETE FROM speeds WHERE decode_tokens_per_second <= 0",  # very slow ones were rounded to 0
    ),
    (
        "ALTER TABLE requests ADD COLUMN cache_write_tokens BIGINT",
        "ALTER TABLE requests ADD COLUMN cache_saved_usd TEXT",
    ),
)

_VERSION = "reasoning_proxy_version"
"""The table that says which migrations were applied, and that the others are ours."""
TABLES = ["meta", "speeds", "requests", "texts", "turns", "weaker", "totals"]
_LOCK = 0x72656173_70726F78
"""Of all the advisory locks of a database the one that migrations hold."""


def connect(url: str) -> Connection:
    """A connection in autocommit mode. Raises psycopg.Error; ConfigError for a URL that libpq cannot read."""
    try:
        given = conninfo.conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        # Its text repeats the URL, with the password.
        raise ConfigError(f"store.url: {hide_password(url)} has an option that no PostgreSQL client knows") from None
    # A server that is gone without a word is noticed; the settings of the URL win.
    defaults: dict[str, Any] = {
        "connect_timeout": CONNECT_SECONDS,
        "fallback_application_name": "reasoning-proxy",
        "keepalives_idle": 30,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": 10_000,
    }
    fixed: dict[str, Any] = {"client_encoding": "UTF8"}
    # Nothing is prepared: a pooler between us and the server may give each transaction another connection.
    connection = psycopg.connect("", autocommit=True, prepare_threshold=None, **(defaults | given | fixed))
    try:
        connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
    except BaseException:
        connection.close()
        raise
    return connection


def migrate(connection: Connection, url: str) -> bytes:
    """Bring the tables up to date, and give the salt. Raises ConfigError where that cannot be, psycopg.Error."""
    with connection.transaction():
        # Of several replicas that start at once, one does the work.
        connection.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
        _check_server(connection, url)
        version = check(connection, url)
        if version < 1:
            connection.execute(f"CREATE TABLE {_VERSION} (number INTEGER PRIMARY KEY, applied TIMESTAMPTZ NOT NULL)")
        for number, statements in enumerate(MIGRATIONS[version:], version + 1):
            for statement in statements:
                connection.execute(statement)
            connection.execute(f"INSERT INTO {_VERSION} VALUES (%s, now())", [number])  # noqa: S608 - our own name
        if version < 1:
            connection.execute("INSERT INTO meta (name, value) VALUES ('salt', %s)", [os.urandom(32)])
        row = connection.execute("SELECT value FROM meta WHERE name = 'salt'").fetchone()
    if row is None:
        raise ConfigError(f"store.url: the tables in {hide_password(url)} have lost their salt: name another database")
    return bytes(row[0])


def _check_server(connection: Connection, url: str) -> None:
    shown = hide_password(url)
    if connection.info.server_version < 130_000:
        raise ConfigError(f"store.url: {shown} is older than PostgreSQL 13: upgrade it, or name another server")
    encoding, read_only, schema = connection.execute(
        "SELECT current_setting('server_encoding'), current_setting('transaction_read_only'), current_schema()"
    ).fetchone() or ("", "", None)
    if encoding not in ("UTF8", "SQL_ASCII"):
        raise ConfigError(
            f"store.url: {shown} has the encoding {encoding} and cannot hold every text: make the database with "
            "CREATE DATABASE name ENCODING 'UTF8' TEMPLATE template0"
        )
    if read_only == "on":
        raise ConfigError(
            f"store.url: {shown} takes no changes: name the primary server, or add target_session_attrs=read-write "
            "where the URL has several hosts"
        )
    if schema is None:
        raise ConfigError(f"store.url: the schema that {shown} names does not exist: CREATE SCHEMA it, as this user")


def check(connection: Connection, url: str) -> int:
    """The number of the last migration that the database has seen. Raises ConfigError where that is not one of ours."""
    shown = hide_password(url)
    (ours,) = connection.execute("SELECT to_regclass(%s) IS NOT NULL", [_VERSION]).fetchone() or (False,)
    if ours:
        sql = f"SELECT coalesce(max(number), 0) FROM {_VERSION}"  # noqa: S608 - our own name
        (version,) = connection.execute(sql).fetchone() or (0,)
        if version > len(MIGRATIONS):
            raise ConfigError(
                f"store.url: {shown} was written by a newer reasoning-proxy (schema {version}, this one knows "
                f"{len(MIGRATIONS)}). It was left as it is: upgrade, or name another database"
            )
        return int(version)
    found = connection.execute(
        "SELECT relname FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace"
        " WHERE relname = ANY(%s) AND nspname = current_schema() ORDER BY relname",
        [TABLES],
    ).fetchall()
    if found:
        raise ConfigError(
            f"store.url: {shown} has tables of another program ({', '.join(name for (name,) in found)}). They "
            "were left as they are: name another database, or add ?options=-csearch_path%3DNAME for a schema of its own"
        )
    return 0


def refusal(error: psycopg.Error, url: str) -> ConfigError:
    """What to tell the user of a server that cannot be used. The error's own text names host and reason."""
    shown, reason = hide_password(url), reason_of(error)
    if isinstance(error, errors.InsufficientPrivilege):
        return ConfigError(
            f"store.url: the user of {shown} may not do what it must ({reason}): make it the owner of the database, or "
            "of a schema of its own"
        )
    return ConfigError(
        f"store.url: {shown} cannot be used ({reason}): the server must run and be reachable from here, and host, "
        "port, user, password and database must be right"
    )


def reason_of(error: Exception) -> str:
    """An error's text on one line, without the statement."""
    primary = error.diag.message_primary if isinstance(error, psycopg.Error) else None
    return " ".join((primary or str(error)).split()) or type(error).__name__
