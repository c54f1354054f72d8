"""Whether the rate stays when there is more: rows, partitions, batches in the ledger's history."""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from benchmarks.stage import Stage

__all__ = ["BATCH", "lengthen_history", "more"]

BATCH = 200_000
HISTORY = 10_000


@contextmanager
def more(stage: Stage, topic: str, **changed: int) -> Iterator[Stage]:
    """The same place with more work, in a topic that is gone afterwards."""
    filled = stage.filled(topic=topic, **changed)
    try:
        yield filled
    finally:
        filled.topics.delete([topic])


def lengthen_history(stage: Stage) -> None:
    """Give the ledger many batches of a pipeline that has run."""
    with psycopg.connect(stage.stack.dsn, autocommit=True) as connection:
        one = connection.execute("SELECT pipeline FROM tallygate.batches LIMIT 1").fetchone()
        assert one is not None, "no pipeline has run yet"
        connection.execute(
            "INSERT INTO tallygate.batches "
            "(pipeline, epoch, batch_id, strategy, ranges, rows, seconds) "
            "SELECT pipeline, epoch, batch_id + n, strategy, ranges, rows, seconds FROM "
            "(SELECT * FROM tallygate.batches WHERE pipeline = %s ORDER BY number DESC LIMIT 1) b, "
            "generate_series(1, %s) n",
            (one[0], HISTORY),
        )
