"""psycopg, which only a PostgreSQL store needs. Importing this raises ConfigError where it is not installed."""

from __future__ import annotations

from proxy.errors import ConfigError

try:
    import psycopg
    from psycopg import conninfo, errors
except ImportError as error:  # also where it is there without the library that it wraps
    raise ConfigError(
        f"store.url: PostgreSQL needs psycopg ({' '.join(str(error).split())}): pip install 'reasoning-proxy[postgres]'"
    ) from None

__all__ = ["conninfo", "errors", "psycopg"]
