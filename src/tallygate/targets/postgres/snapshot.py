"""A table, its pipeline's ledger and dead letters, all as of one snapshot of PostgreSQL.

The snapshot is exported, so that every reader sees the same: an audit can run while the pipeline
does, and still compares like with like.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from tallygate.core.ledger import LedgerState
from tallygate.core.ledger_snapshot import LedgerSnapshot
from tallygate.core.letters import Coordinates
from tallygate.core.offsets import Range
from tallygate.errors import LedgerError
from tallygate.postgres import ledger_tables, letter_tables
from tallygate.postgres.connect import connect
from tallygate.postgres.ledger_tables import UNFINISHED
from tallygate.postgres.plain import PlainConnection
from tallygate.postgres.read import TableReading
from tallygate.quoting import single_quoted
from tallygate.spec import Postgres
from tallygate.targets.postgres.table import TableName
from tallygate.targets.snapshot import Snapshot, Step


@dataclass(frozen=True, kw_only=True)
class PostgresSnapshot(Snapshot):
    refuses: bool = True
    spark: SparkSession
    reading: TableReading
    pipeline: str
    timeout: float

    def rows(self, within: Sequence[Range] | None = None) -> DataFrame:
        return self.reading.rows(self.spark, _where(within))

    def through(
        self, step: Step, made: str, columns: Sequence[str], within: Sequence[Range] | None
    ) -> DataFrame:
        """In the workers that read the rows."""
        return self.reading.rows(self.spark, _where(within), (step, made))

    def letter(self, at: Coordinates) -> str | None:
        with connect(self.reading.dsn, timeout=self.timeout, autocommit=True) as connection:
            one = Range(*at, at[2] + 1)
            causes = letter_tables.causes_in(PlainConnection(connection), self.pipeline, [one])
            return next(causes, None)


@contextmanager
def snapshot_of(
    sink: Postgres, pipeline: str, *, dsn: str, spark: SparkSession, timeout: float
) -> Iterator[PostgresSnapshot]:
    """What is there now; the snapshot lasts as long as the block."""
    with connect(dsn, timeout=timeout, autocommit=False) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        plain = PlainConnection(connection)
        ((snapshot,),) = plain.rows("SELECT pg_export_snapshot()")
        state = ledger_there(plain, pipeline)
        commits = ledger_tables.history(plain, pipeline)
        ledger = LedgerSnapshot.of(
            state,
            letter_tables.letter_coordinates(plain, pipeline),
            history=tuple(each for each in commits if each.rows != UNFINISHED),
            unfinished=tuple(
                gone for each in commits if each.rows == UNFINISHED for gone in each.ranges
            ),
        )
        table = TableName.parse(sink.table, connection)
        ((pages,),) = plain.rows(
            "SELECT pg_relation_size($1) / current_setting('block_size')::int", table.quoted
        )
        yield PostgresSnapshot(
            name=str(table),
            ledger=ledger,
            key=sink.key,
            keeps_newest=sink.mode == "upsert",
            shared=sink.shared,
            spark=spark,
            reading=TableReading(dsn=dsn, table=table.quoted, snapshot=snapshot, pages=pages),
            pipeline=pipeline,
            timeout=timeout,
        )


def ledger_there(connection: PlainConnection, pipeline: str) -> LedgerState:
    """The pipeline's ledger, which must be there."""
    found = None
    if ledger_tables.are_there(connection):
        found = ledger_tables.state_of(connection, pipeline)
    if found is None:
        raise LedgerError(f"pipeline {pipeline!r} has never run into this database.")
    return found


def _where(ranges: Sequence[Range] | None) -> str:
    """That a row's record lies in one of the ranges, in PostgreSQL's words."""
    if ranges is None:
        return "true"
    parts = [
        f"(_topic = {single_quoted(each.topic)} AND _partition = {each.partition} "
        f"AND _offset >= {each.start} AND _offset < {each.until})"
        for each in ranges
    ]
    return " OR ".join(parts) or "false"
