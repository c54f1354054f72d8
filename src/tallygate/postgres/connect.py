"""Reaching a PostgreSQL by its DSN, and saying why when it cannot be reached.

**No program waits for the dead.** A machine that loses its power, or a network that goes silent,
closes no connection. By the defaults of Linux the other side believes in it for two hours: a
client that waits for an answer, a server process that waits for more rows and keeps its locks. So
both ask, after some seconds of silence, whether the other is there.
"""

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tallygate.errors import ConfigError, UnreachableError

OLDEST = 14
_CLIENT = {
    "keepalives_idle": "15",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}
WATCHFUL = (
    "SELECT set_config('tcp_keepalives_idle', '15', false), "
    "set_config('tcp_keepalives_interval', '5', false), "
    "set_config('tcp_keepalives_count', '3', false)"
)
"""What a client sets first in a server process: outside of a transaction, since a rollback would
undo it."""


def watchful(dsn: str) -> str:
    """The DSN of a client that notices when the server is gone, unless the DSN says how itself."""
    given = {name: str(value) for name, value in conninfo_to_dict(dsn).items()}
    return make_conninfo("", **{**_CLIENT, **given})


def open_watchful(
    dsn: str, *, autocommit: bool = False, timeout: int | None = None
) -> psycopg.Connection:
    """A connection of which both sides are watchful."""
    connection = psycopg.connect(watchful(dsn), autocommit=True, connect_timeout=timeout)
    connection.execute(WATCHFUL)
    connection.autocommit = autocommit
    return connection


def connect(dsn: str, *, timeout: float = 10, autocommit: bool = False) -> psycopg.Connection:
    """Open a connection, or say in one sentence why not, without the password."""
    try:
        return open_watchful(dsn, autocommit=autocommit, timeout=max(2, round(timeout)))
    except psycopg.ProgrammingError:
        # What libpq says would quote the DSN, password and all.
        raise ConfigError(
            "postgres.dsn is not a DSN: write postgresql://user:password@host:port/database, with "
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
