"""A rebuild is whole or it changes nothing, whatever the table is called."""

import os
import signal
from typing import Any

import pytest

from fixtures.flows import Flow
from tallygate import Postgres
from tallygate.engine.progress import Progress
from tallygate.engine.rebuild import rebuild
from tallygate.errors import TallygateError


@pytest.mark.parametrize("sink", ["table", "parquet"])
def test_a_rebuild_that_is_stopped_changes_nothing(flow: Flow, sink: str) -> None:
    place = flow.name if sink == "table" else str(flow.folder / "rows")
    pipeline = flow.pipeline(sink={sink: place})
    flow.send(250)
    pipeline.run(until="available", settings=flow.settings, spark=flow.spark)

    def stop(progress: Progress) -> None:
        if progress.batch == 0:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(TallygateError, match="was stopped after .* nothing is changed"):
        rebuild(pipeline, settings=flow.settings, spark=flow.spark, on_progress=stop)
    assert _ids(flow, sink, place) == list(range(250))
    flow.send(50)
    pipeline.run(until="available", settings=flow.settings, spark=flow.spark)
    assert _ids(flow, sink, place) == list(range(300))
    rebuild(pipeline, settings=flow.settings, spark=flow.spark)
    assert _ids(flow, sink, place) == list(range(300))


def _ids(flow: Flow, sink: str, place: str) -> list[Any]:
    if sink == "table":
        return flow.rows()
    return sorted(row.id for row in flow.spark.read.parquet(place).select("id").collect())


@pytest.mark.parametrize("length", [54, 58, 63])
def test_a_table_whose_name_leaves_no_room_for_another(flow: Flow, length: int) -> None:
    """PostgreSQL cuts names off after 63 bytes: those of the new and the old table must differ
    from this one's, which must not be the one that is dropped."""
    table = "t" * (length - 3) + f"_{length}"
    pipeline = flow.pipeline(sink=Postgres(table))
    flow.send(20)
    pipeline.run(until="available", settings=flow.settings, spark=flow.spark)
    flow.execute(f"UPDATE {table} SET account = 'old'")
    names = set()
    for _ in range(2):
        done = rebuild(pipeline, settings=flow.settings, spark=flow.spark)
        names.add(done.before)
    old = flow.rows(f"SELECT DISTINCT account FROM {min(map(str, names))}")
    assert old == ["old"], "what was replaced is kept"
    assert len(names) == 2
    assert len(flow.rows(f"SELECT id FROM {table} WHERE account <> 'old'")) == 20
