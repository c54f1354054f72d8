"""What a pipeline's ledger in PostgreSQL claims, and the table's rows.

Rows, ledger and dead letters are all read in one snapshot, which is exported so that every reader
sees the same: an audit can run while the pipeline does, and still compares like with like.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg
from pyspark.sql import DataFrame, SparkSession

from tallygate.auditing.ledger_snapshot import Claims, Commit
from tallygate.auditing.verdict import Anomaly
from tallygate.core.letters import Coordinates
from tallygate.core.offsets import Range
from tallygate.errors import LedgerError
from tallygate.postgres.connect import connect
from tallygate.postgres.ledger_tables import UNFINISHED
from tallygate.postgres.read import Snapshot, Through
from tallygate.quoting import single_quoted
from tallygate.spec import Postgres
from tallygate.targets.postgres.table import TableName


@dataclass(frozen=True)
class TableEvidence:
    spark: SparkSession
    dsn: str
    table: TableName
    snapshot: Snapshot
    claims: Claims
    pipeline: str
    timeout: float
    refuses = True

    @property
    def target(self) -> str:
        return str(self.table)

    def rows(
        self, within: Sequence[Range] | None = None, through: Through | None = None
    ) -> DataFrame:
        where = "true" if within is None else _where(within)
        return self.snapshot.rows(self.spark, where, through)

    def shaped(self, frame: DataFrame, *, has_coordinates: bool) -> DataFrame:
        return frame

    def letter(self, at: Coordinates) -> str | None:
        with connect(self.dsn, timeout=self.timeout, autocommit=True) as connection:
            cause = _one(
                connection,
                "SELECT cause FROM tallygate.dead_letters WHERE pipeline = %s AND topic = %s "
                'AND partition = %s AND "offset" = %s',
                self.pipeline,
                *at,
            )
        return None if cause is None else str(cause)

    def own(self, expected: DataFrame, checked: Sequence[Range]) -> list[Anomaly]:
        return []


@contextmanager
def table_evidence(
    sink: Postgres, pipeline: str, dsn: str, spark: SparkSession, timeout: float
) -> Iterator[TableEvidence]:
    """What is claimed and held now; the snapshot lasts as long as the block."""
    with connect(dsn, timeout=timeout, autocommit=False) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        snapshot = str(_one(connection, "SELECT pg_export_snapshot()"))
        if _one(connection, "SELECT to_regclass('tallygate.pipelines')::text") is None:
            raise LedgerError(f"pipeline {pipeline!r} has never run into this database.")
        claims = _claims(connection, pipeline)
        table = TableName.parse(sink.table, connection)
        size = _one(connection, "SELECT pg_relation_size(%s)", table.quoted)
        block = _one(connection, "SELECT current_setting('block_size')")
        pages = int(str(size)) // int(str(block))
        held = Snapshot(dsn, table.quoted, snapshot, pages)
        yield TableEvidence(spark, dsn, table, held, claims, pipeline, timeout)


def _claims(connection: psycopg.Connection, pipeline: str) -> Claims:
    if _one(connection, "SELECT 1 FROM tallygate.pipelines WHERE name = %s", pipeline) is None:
        raise LedgerError(f"pipeline {pipeline!r} has never run into this database.")
    positions = connection.execute(
        "SELECT topic, partition, first_offset, next_offset, topic_id FROM tallygate.positions "
        "WHERE pipeline = %s",
        (pipeline,),
    ).fetchall()
    lost = connection.execute(
        "SELECT topic, partition, from_offset, until_offset FROM tallygate.lost_ranges "
        "WHERE pipeline = %s ORDER BY 1, 2, 3",
        (pipeline,),
    ).fetchall()
    letters = connection.execute(
        'SELECT topic, partition, "offset" FROM tallygate.dead_letters WHERE pipeline = %s',
        (pipeline,),
    ).fetchall()
    batches = connection.execute(
        "SELECT number, epoch, batch_id, ranges, rows, committed_at::text "
        "FROM tallygate.batches WHERE pipeline = %s ORDER BY number",
        (pipeline,),
    ).fetchall()
    commits = [
        Commit(number, run, batch, tuple(Range(*each) for each in ranges), rows, at)
        for number, run, batch, ranges, rows, at in batches
    ]
    return Claims(
        {(topic, number): Range(topic, number, *ends) for topic, number, *ends, _ in positions},
        tuple(Range(*each) for each in lost),
        frozenset((topic, number, at) for topic, number, at in letters),
        {topic: topic_id for topic, *_, topic_id in positions if topic_id},
        history=tuple(each for each in commits if each.rows != UNFINISHED),
        unfinished=tuple(
            gone for each in commits if each.rows == UNFINISHED for gone in each.ranges
        ),
    )


def _one(connection: psycopg.Connection, query: str, *values: object) -> object:
    row = connection.execute(query.encode(), values or None).fetchone()
    return None if row is None else row[0]


def _where(ranges: Sequence[Range]) -> str:
    """That a row's record lies in one of the ranges, in PostgreSQL's words."""
    parts = [
        f"(_topic = {single_quoted(each.topic)} AND _partition = {each.partition} "
        f"AND _offset >= {each.start} AND _offset < {each.until})"
        for each in ranges
    ]
    return " OR ".join(parts) or "false"
