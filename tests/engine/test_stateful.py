"""Pipelines with state: what happens to the state when the checkpoint or the ledger goes back."""

import shutil
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from fixtures.flows import BEGIN, Flow, windows_of_20
from tallygate import Postgres
from tallygate.engine.rebuild import rebuild
from tallygate.errors import ConfigError, LedgerError

COUNTS = "SELECT account, count(*) AS payments FROM source GROUP BY account"


def test_a_stateful_pipeline_without_its_checkpoint_is_refused_and_can_be_rebuilt(
    flow: Flow,
) -> None:
    sink = Postgres(flow.name, mode="upsert", key="account")
    flow.send(100)
    flow.run(transform=COUNTS, sink=sink)
    shutil.rmtree(flow.checkpoint)
    flow.send(10)
    with pytest.raises(LedgerError, match="is gone. The state is in the checkpoint.*rebuild"):
        flow.run(transform=COUNTS, sink=sink)
    pipeline = flow.pipeline(transform=COUNTS, sink=sink)
    done = rebuild(pipeline, settings=flow.settings, spark=flow.spark)
    query = "SELECT account, payments FROM {table} ORDER BY 1"
    assert flow.rows(query) == [(f"a{n}", 22) for n in range(5)]
    old = flow.rows(f'SELECT sum(payments)::int FROM "{done.before}"')
    assert old == [100], "the old table is kept"
    flow.send(40)
    flow.run(transform=COUNTS, sink=sink)
    assert flow.rows(query) == [(f"a{n}", 30) for n in range(5)]


def test_a_stateful_pipeline_whose_checkpoint_was_rolled_back_catches_up(flow: Flow) -> None:
    sink = Postgres(flow.name, mode="upsert", key="account")
    flow.send(100)
    flow.run(transform=COUNTS, sink=sink)
    with flow.checkpoint_of_now():
        flow.send(100)
        flow.run(transform=COUNTS, sink=sink)
    flow.run(transform=COUNTS, sink=sink)
    flow.send(50)
    flow.run(transform=COUNTS, sink=sink)
    assert flow.rows("SELECT account, payments FROM {table} ORDER BY 1") == [
        (f"a{n}", 50) for n in range(5)
    ]


def test_closed_windows_are_written_once(flow: Flow) -> None:
    """Spark would close windows in batches that hold no records; they must neither be lost nor
    come twice, whichever batch is repeated."""
    for _ in range(4):
        flow.send(50)
        flow.run(transform=windows_of_20)
        flow.forget_last_commit()
    found = flow.rows("SELECT start, count FROM {table} ORDER BY 1")
    expected = [(BEGIN + timedelta(seconds=20 * n), 20) for n in range(len(found))]
    assert found == expected
    assert len(found) >= 6


def test_a_replayed_batch_of_a_stateful_pipeline_is_skipped_with_its_state(flow: Flow) -> None:
    sink = Postgres(flow.name, mode="upsert", key="account")
    flow.send(100)
    flow.run(transform=COUNTS, sink=sink)
    flow.forget_last_commit()
    flow.send(50)
    flow.run(transform=COUNTS, sink=sink)
    assert flow.rows("SELECT account, payments FROM {table} ORDER BY 1") == [
        (f"a{n}", 30) for n in range(5)
    ]


def test_late_records_are_counted_and_not_dropped_unseen(flow: Flow) -> None:
    """Records of an hour that the watermark has passed are in no result, and that is said."""

    def windows(source: DataFrame) -> DataFrame:
        hours = f.when(f.col("id") < 100, f.lit(50)).otherwise(f.lit(1))
        at = f.timestamp_seconds(hours * 3600 + f.col("id"))
        window = f.window("at", "1 hour").alias("w")
        timed = source.withColumn("at", at).withWatermark("at", "1 hour")
        return timed.groupBy(window).count().selectExpr("w.start AS start", "count")

    for count in (100, 1):  # Spark lets in what is late by the newest watermark, not by the last
        flow.send(count)
        flow.run(transform=windows)
    flow.send(70)
    done = flow.pipeline(transform=windows).run(
        until="available", settings=flow.settings, spark=flow.spark
    )
    assert done.late == 1, "one row for each late group: Spark sums up before it looks"


def test_shuffle_partitions_of_a_pipeline_with_state_cannot_change(flow: Flow) -> None:
    sink = Postgres(flow.name, mode="upsert", key="account")
    flow.send(10)
    flow.run(transform=COUNTS, sink=sink)
    flow.settings = flow.settings.with_flags({"spark.conf.spark.sql.shuffle.partitions": "7"})
    flow.send(10)
    with pytest.raises(
        ConfigError, match="2 shuffle partitions .* says 7. Set it back, or rebuild"
    ):
        flow.run(transform=COUNTS, sink=sink)


@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_a_folder_of_a_pipeline_with_state_is_rebuilt(flow: Flow, kind: str) -> None:
    """Dedup keeps state: without its checkpoint it is refused, and a rebuild gives each id once."""
    folder = flow.folder / "rows"
    steps = [
        {"name": "timed", "sql": "SELECT id, _timestamp AS at FROM source"},
        {"watermark": {"at": "1 hour"}},
        {"dedup": ["id"]},
    ]
    given = {"transform": steps, "sink": {kind: str(folder)}}
    flow.send(50)
    flow.run(**given)
    shutil.rmtree(flow.checkpoint)
    flow.send_text(['{"id": 3}', '{"id": 4}'])
    flow.send(20)
    with pytest.raises(LedgerError, match="of a pipeline with state is gone.*rebuild"):
        flow.run(**given)
    done = rebuild(flow.pipeline(**given), settings=flow.settings, spark=flow.spark)
    assert _ids(flow, kind, folder) == list(range(70))
    assert _ids(flow, kind, Path(str(done.before))) == list(range(50))
    flow.send_text(['{"id": 5}'])
    flow.send(10)
    flow.run(**given)
    assert _ids(flow, kind, folder) == list(range(80))


def _ids(flow: Flow, kind: str, folder: Path) -> list[int]:
    frame = flow.spark.read.format(kind).load(str(folder))
    return sorted(row.id for row in frame.select("id").collect())
