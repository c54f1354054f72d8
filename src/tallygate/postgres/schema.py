"""Tallygate's own tables in a user's PostgreSQL: a schema of their own, versioned.

A migration is applied once, in its own transaction, under a lock that keeps two programs from
applying it at the same time. A database that is newer than the program is refused: an old program
does not know what its rows mean now.
"""

import psycopg

from tallygate.errors import ConfigError

__all__ = ["SCHEMA", "upgrade"]

SCHEMA = "tallygate"
LOCK = 7_310_579_001  # any number that nobody else is likely to lock

MIGRATIONS = (
    """
    CREATE TABLE tallygate.consumer_offsets (
        group_name text NOT NULL,
        topic text NOT NULL,
        partition int NOT NULL,
        next_offset bigint NOT NULL,
        updated_at timestamptz NOT NULL DEFAULT now(),
        PRIMARY KEY (group_name, topic, partition)
    );
    CREATE TABLE tallygate.operation_ids (
        scope text NOT NULL,
        id text NOT NULL,
        seen_at timestamptz NOT NULL,
        number bigint GENERATED ALWAYS AS IDENTITY,
        PRIMARY KEY (scope, id)
    );
    CREATE INDEX ON tallygate.operation_ids (scope, seen_at);
    CREATE INDEX ON tallygate.operation_ids (scope, number);
    """,
)


def upgrade(connection: psycopg.Connection) -> None:
    """Bring the schema up to this program's version."""
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK,))
        version = _version(connection)
        if version > len(MIGRATIONS):
            raise ConfigError(
                f"the schema {SCHEMA!r} of this database is version {version}, made by a newer "
                f"Tallygate; this one knows up to {len(MIGRATIONS)}. Upgrade Tallygate."
            )
        for number, migration in enumerate(MIGRATIONS[version:], start=version + 1):
            connection.execute(migration.encode())
            connection.execute("UPDATE tallygate.version SET number = %s", (number,))


def _version(connection: psycopg.Connection) -> int:
    found = connection.execute("SELECT to_regclass('tallygate.version')").fetchone()
    if found is None or found[0] is None:
        connection.execute(
            b"CREATE SCHEMA IF NOT EXISTS tallygate;"
            b"CREATE TABLE tallygate.version (number int NOT NULL);"
            b"INSERT INTO tallygate.version VALUES (0)"
        )
        return 0
    row = connection.execute("SELECT number FROM tallygate.version").fetchone()
    return int(row[0]) if row else 0
