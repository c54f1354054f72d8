"""Whether the rate stays when there is more: rows, partitions, batches in the ledger's history."""

from collections.abc import Callable, Sequence

import psycopg

from tallygate.bench import ours
from tallygate.bench.course import Course
from tallygate.bench.stage import Stage

__all__ = ["by_history", "by_partitions", "by_rows", "over_longer"]

BATCH = 200_000
HISTORY = 10_000


def by_rows(stage: Stage, rows: int) -> float:
    """Rows a second; batches are as large, however many rows there are."""
    more = stage.filled(topic=f"rows-{rows}", rows=rows, batches=rows // BATCH)
    try:
        return ours.append(more).rate
    finally:
        more.topics.delete([more.work.topic])


def over_longer(stage: Stage, rows: int, runs: Sequence[Callable[[Stage], Course]]) -> list[float]:
    """Rows a second of some contenders, one after the other, over more rows in batches as large as
    before: a program that starts a JVM of its own has warmed it up by then."""
    batches = stage.work.batches * rows // stage.work.rows
    more = stage.filled(topic=f"longer-{rows}", rows=rows, batches=batches)
    try:
        return [run(more).rate for run in runs]
    finally:
        more.topics.delete([more.work.topic])


def by_partitions(stage: Stage, partitions: int) -> float:
    more = stage.filled(topic=f"partitions-{partitions}", partitions=partitions)
    try:
        return ours.append(more).rate
    finally:
        more.topics.delete([more.work.topic])


def by_history(stage: Stage) -> float:
    """Rows a second of a pipeline, in a ledger that has many batches of another."""
    with psycopg.connect(stage.stack.dsn, autocommit=True) as connection:
        one = connection.execute("SELECT pipeline FROM tallygate.batches LIMIT 1").fetchone()
        assert one is not None, "no pipeline has run yet"
        connection.execute(
            "INSERT INTO tallygate.batches (pipeline, epoch, batch_id, way, ranges, rows, seconds) "
            "SELECT pipeline, epoch, batch_id + n, way, ranges, rows, seconds FROM "
            "(SELECT * FROM tallygate.batches WHERE pipeline = %s ORDER BY number DESC LIMIT 1) b, "
            "generate_series(1, %s) n",
            (one[0], HISTORY),
        )
    return ours.append(stage).rate
