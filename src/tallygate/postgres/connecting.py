"""Reaching a PostgreSQL by its DSN, and saying why when it cannot be reached."""

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tallygate.errors import ConfigError, UnreachableError

__all__ = ["check_postgres", "connect", "jdbc", "masked"]

OLDEST = 14


def connect(dsn: str, *, timeout: float = 10, autocommit: bool = False) -> psycopg.Connection:
    """Open a connection, or say in one sentence why not, without the password."""
    try:
        return psycopg.connect(dsn, connect_timeout=max(2, round(timeout)), autocommit=autocommit)
    except psycopg.ProgrammingError:
        # What libpq says would quote the DSN, password and all.
        raise ConfigError(
            "postgres.dsn is no DSN: write postgresql://user:password@host:port/database, with "
            "special characters percent-encoded."
        ) from None
    except psycopg.OperationalError as error:
        reason = str(error).strip().splitlines()[0]
        raise UnreachableError(
            f"PostgreSQL at {masked(dsn)} cannot be reached: {reason}; check the DSN and that the "
            "server runs."
        ) from error


def check_postgres(dsn: str, timeout: float = 10) -> str:
    """Connect and describe the server; one that is too old is refused."""
    with connect(dsn, timeout=timeout) as connection:
        version = connection.info.server_version // 10000
    if version < OLDEST:
        raise UnreachableError(f"PostgreSQL {version} is too old; {OLDEST} or newer is needed.")
    return f"PostgreSQL {version} at {masked(dsn)}"


def jdbc(dsn: str) -> tuple[str, dict[str, str]]:
    """The DSN as Spark's JDBC reader and writer take it: a URL, and properties."""
    parts = {name: str(value) for name, value in conninfo_to_dict(dsn).items()}
    place = f"{parts.get('host', 'localhost')}:{parts.get('port', 5432)}"
    properties = {name: parts[name] for name in parts if name in ("user", "password")}
    url = f"jdbc:postgresql://{place}/{parts.get('dbname', '')}"
    return url, {**properties, "driver": "org.postgresql.Driver"}


def masked(dsn: str) -> str:
    """The DSN as key=value pairs with the password hidden."""
    try:
        parts = conninfo_to_dict(dsn)
    except psycopg.ProgrammingError:
        return "(unreadable DSN)"
    for name in ("password", "sslpassword"):
        if name in parts:
            parts[name] = "********"
    return make_conninfo("", **parts)
