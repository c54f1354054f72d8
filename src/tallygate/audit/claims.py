"""What a pipeline's ledger in PostgreSQL claims, at one moment.

Rows, ledger and dead letters are all read in one snapshot, which is exported so that every reader
sees the same: an audit can run while the pipeline does, and still compares like with like.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg

from tallygate.errors import LedgerError
from tallygate.ledger.ranges import Place, Range
from tallygate.postgres.connecting import connect

__all__ = ["Claims", "claims_of"]


@dataclass(frozen=True)
class Claims:
    snapshot: str
    """For readers in other transactions."""
    ranges: Mapping[Place, Range]
    """For each partition, from the pipeline's start up to the ledger's offset."""
    lost: tuple[Range, ...]
    letters: frozenset[tuple[str, int, int]]
    delivery: str


@contextmanager
def claims_of(dsn: str, pipeline: str, timeout: float) -> Iterator[Claims]:
    """The ledger's claims; the snapshot lasts as long as the block."""
    with connect(dsn, timeout=timeout, autocommit=False) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        snapshot = _one(connection, "SELECT pg_export_snapshot()")
        known = _one(connection, "SELECT to_regclass('tallygate.pipelines')::text")
        row = (
            None
            if known is None
            else connection.execute(
                "SELECT delivery FROM tallygate.pipelines WHERE name = %s", (pipeline,)
            ).fetchone()
        )
        if row is None:
            raise LedgerError(f"pipeline {pipeline!r} has never run into this database.")
        positions = connection.execute(
            "SELECT topic, partition, first_offset, next_offset FROM tallygate.positions "
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
        yield Claims(
            str(snapshot),
            {(topic, number): Range(topic, number, *ends) for topic, number, *ends in positions},
            tuple(Range(*each) for each in lost),
            frozenset((topic, number, at) for topic, number, at in letters),
            str(row[0]),
        )


def _one(connection: psycopg.Connection, query: str) -> object:
    row = connection.execute(query.encode()).fetchone()
    return None if row is None else row[0]
