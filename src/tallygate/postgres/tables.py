"""Tallygate's own tables in a user's PostgreSQL: a schema of their own, versioned.

A migration is applied once, in its own transaction, under a lock that keeps two programs from
applying it at the same time. A database that is newer than the program is refused: an old program
does not know what its rows mean now.
"""

import psycopg

from tallygate.errors import ConfigError

SCHEMA = "tallygate"
LOCK = 7_310_579_001  # any number that no other program is likely to lock

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
    """
    CREATE TABLE tallygate.pipelines (
        name text PRIMARY KEY,
        epoch bigint NOT NULL,
        target text NOT NULL,
        delivery text NOT NULL,
        stateful boolean NOT NULL,
        checkpoint text NOT NULL,
        checkpoint_id text,
        created_at timestamptz NOT NULL DEFAULT now()
    );
    CREATE TABLE tallygate.runs (
        pipeline text NOT NULL REFERENCES tallygate.pipelines (name) ON DELETE CASCADE,
        epoch bigint NOT NULL,
        host text NOT NULL,
        pid int NOT NULL,
        version text NOT NULL,
        started_at timestamptz NOT NULL DEFAULT now(),
        heartbeat_at timestamptz NOT NULL DEFAULT now(),
        stopped_at timestamptz,
        stop_requested boolean NOT NULL DEFAULT false,
        outcome text,
        progress jsonb NOT NULL DEFAULT '{}',
        PRIMARY KEY (pipeline, epoch)
    );
    CREATE TABLE tallygate.positions (
        pipeline text NOT NULL REFERENCES tallygate.pipelines (name) ON DELETE CASCADE,
        topic text NOT NULL,
        partition int NOT NULL,
        first_offset bigint NOT NULL,
        next_offset bigint NOT NULL,
        topic_id text,
        updated_at timestamptz NOT NULL DEFAULT now(),
        PRIMARY KEY (pipeline, topic, partition)
    ) WITH (fillfactor = 50);
    CREATE TABLE tallygate.batches (
        pipeline text NOT NULL REFERENCES tallygate.pipelines (name) ON DELETE CASCADE,
        number bigint GENERATED ALWAYS AS IDENTITY,
        epoch bigint NOT NULL,
        batch_id bigint NOT NULL,
        strategy text NOT NULL,
        ranges jsonb NOT NULL,
        rows bigint NOT NULL,
        seconds jsonb NOT NULL,
        committed_at timestamptz NOT NULL DEFAULT now(),
        PRIMARY KEY (pipeline, number)
    );
    CREATE TABLE tallygate.lost_ranges (
        pipeline text NOT NULL REFERENCES tallygate.pipelines (name) ON DELETE CASCADE,
        topic text NOT NULL,
        partition int NOT NULL,
        from_offset bigint NOT NULL,
        until_offset bigint NOT NULL,
        reason text NOT NULL,
        accepted_at timestamptz NOT NULL DEFAULT now(),
        PRIMARY KEY (pipeline, topic, partition, from_offset)
    );
    CREATE TABLE tallygate.dead_letter_records (
        pipeline text NOT NULL REFERENCES tallygate.pipelines (name) ON DELETE CASCADE,
        topic text NOT NULL,
        partition int NOT NULL,
        "offset" bigint NOT NULL,
        key bytea,
        value bytea,
        record_time timestamptz,
        cause text NOT NULL,
        found_at timestamptz NOT NULL DEFAULT now(),
        PRIMARY KEY (pipeline, topic, partition, "offset")
    );
    CREATE VIEW tallygate.dead_letters AS
        SELECT letters.* FROM tallygate.dead_letter_records AS letters
        JOIN tallygate.positions USING (pipeline, topic, partition)
        WHERE letters."offset" < positions.next_offset;
    COMMENT ON VIEW tallygate.dead_letters IS
        'A letter counts from the moment that its batch is in the ledger, and not before.';
    """,
    """
    ALTER TABLE tallygate.pipelines ADD COLUMN target_id text;
    -- From here on a batch is written down before its tasks move anything.
    DELETE FROM tallygate.batches AS any_batch WHERE EXISTS (
        SELECT FROM tallygate.batches AS by_tasks
        WHERE by_tasks.pipeline = any_batch.pipeline AND by_tasks.strategy = 'partition');
    """,
    """
    -- A topic's id is known before any of its partitions has a position.
    ALTER TABLE tallygate.pipelines ADD COLUMN topic_ids jsonb NOT NULL DEFAULT '{}';
    UPDATE tallygate.pipelines SET topic_ids = coalesce(
        (SELECT jsonb_object_agg(topic, topic_id) FROM tallygate.positions
         WHERE pipeline = name AND topic_id IS NOT NULL), '{}');
    ALTER TABLE tallygate.positions ADD COLUMN leader_epoch int;
    """,
    """
    ALTER TABLE tallygate.pipelines ADD COLUMN specs jsonb NOT NULL DEFAULT '[]';
    COMMENT ON COLUMN tallygate.pipelines.specs IS 'What its rows were made by, in their order.';
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
