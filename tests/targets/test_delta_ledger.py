"""The ledger in a Delta table: what two runs can do to each other, at every moment of a commit."""

import threading
import time
from collections.abc import Iterable, Iterator

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame

from fixtures.lakes import Lake
from tallygate.core.offsets import Place, Range
from tallygate.errors import FencedError, LedgerError
from tallygate.spec import Delta
from tallygate.targets.delta.entry import Entry
from tallygate.targets.delta.sink import DeltaSink
from tallygate.targets.delta.store import DeltaStore
from tallygate.targets.sink import Batch, Retry
from tallygate.targets.store import Shape
from tallygate.waiting import wait_until


def test_a_write_planned_before_the_take_over_is_left_out_and_noticed(lake: Lake) -> None:
    """What an older run does that was stopped for a while between its plan and its commit."""
    flow = lake.flow
    flow.send(10)
    lake.run()
    older = lake.ledger()
    older.begin()
    planned = older.current().moved([], 7)
    older.intend(planned)
    newer = lake.ledger()
    newer.begin()
    rows = flow.spark.read.format("delta").load(lake.path)
    writer = rows.write.format("delta").mode("append").option("txnAppId", older.application)
    writer.option("txnVersion", planned.version).save(lake.path)
    with pytest.raises(FencedError, match="took over on"):
        older.confirm(planned)
    lake.check()


def test_a_commit_during_the_take_over_is_not_lost(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The older run commits after the new one has read the ledger and before it takes over."""
    lake.flow.send(10)
    lake.run()
    older, newer = lake.ledger(), lake.ledger()
    older.begin()
    place = (lake.flow.name, 0)
    write = newer.table.write
    raced: list[str] = []

    def late(name: str, text: str) -> None:
        if not raced:
            raced.append(name)
            older.move(lambda entry: _further(entry, place))
        write(name, text)

    monkeypatch.setattr(newer.table, "write", late)
    before = lake.entry().positions[place]
    assert newer.begin().positions[place] == before + 1
    assert raced


def _further(entry: Entry, place: Place) -> Entry:
    at = entry.positions[place]
    return entry.moved([Range(*place, at, at + 1)])


def test_a_commit_that_did_not_take_place_is_noticed(lake: Lake) -> None:
    lake.flow.send(10)
    lake.run()
    ledger = lake.ledger()
    ledger.begin()
    planned = ledger.current().moved([], 7)
    ledger.intend(planned)
    with pytest.raises(Retry, match="did not take place"):
        ledger.confirm(planned)


def _sink(lake: Lake, mode: str = "append") -> DeltaSink:
    """The sink of a new run of the flow's pipeline, over rows that carry their coordinates."""
    spec = Delta(lake.path, mode=mode, key="id" if mode == "upsert" else ())
    store = DeltaStore(spec, lake.flow.name, "exactly-once", lake.flow.spark, lake.flow.settings)
    shape = Shape(_frame(lake, 0, 0).schema, carries=True, narrow=True, stateful=False)
    store.prepare(shape)
    store.begin(shape, "")
    return store.sink(shape)


def _frame(lake: Lake, start: int, until: int) -> DataFrame:
    numbers = lake.flow.spark.range(start, until, numPartitions=1)
    return numbers.selectExpr("id", "'t' AS _topic", "0 AS _partition", "id AS _offset")


def test_a_batch_that_is_there_in_part_is_trimmed(lake: Lake) -> None:
    sink = _sink(lake)
    assert sink.write(_frame(lake, 0, 4), Batch(0, (Range("t", 0, 0, 4),))).rows == 4
    assert sink.write(_frame(lake, 0, 9), Batch(0, (Range("t", 0, 0, 9),))).rows == 5
    assert sink.write(_frame(lake, 0, 9), Batch(0, (Range("t", 0, 0, 9),))).way == "skipped"
    assert lake.rows() == list(range(9))
    with pytest.raises(LedgerError, match="3 offsets would be skipped"):
        sink.write(_frame(lake, 12, 15), Batch(1, (Range("t", 0, 12, 15),)))


def test_a_newer_run_takes_over_while_rows_are_written(lake: Lake) -> None:
    """Delta refuses the older run's commit, and the batch is planned anew: that finds the fence."""
    sink = _sink(lake)
    marker = lake.flow.folder / "writing"
    wait = lake.flow.folder / "taken-over"

    def slowly(blocks: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        marker.touch()
        while not wait.exists():
            time.sleep(0.05)
        yield from blocks

    def take_over() -> None:
        wait_until(marker.exists, 60, "not written")
        lake.ledger().begin()
        wait.touch()

    frame = _frame(lake, 0, 4)
    slow = frame.mapInArrow(slowly, frame.schema)
    newer = threading.Thread(target=take_over)
    newer.start()
    batch = Batch(0, (Range("t", 0, 0, 4),))
    with pytest.raises(Retry, match="at the same time"):
        sink.write(slow, batch)
    newer.join()
    with pytest.raises(FencedError, match="run 2 took over on"):
        sink.write(slow, batch)
    assert lake.rows() == []


@pytest.mark.parametrize("mode", ["append", "upsert", "replace"])
def test_a_newer_run_takes_over_before_rows_are_written(
    lake: Lake, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Delta leaves the older run's write out and says nothing; we do."""
    sink = _sink(lake, mode)
    intend = sink.ledger.intend

    def stopped_for_a_while(entry: Entry) -> None:
        intend(entry)
        lake.ledger().begin()

    monkeypatch.setattr(sink.ledger, "intend", stopped_for_a_while)
    with pytest.raises(FencedError, match="run 2 took over on"):
        sink.write(_frame(lake, 0, 4), Batch(0, (Range("t", 0, 0, 4),)))
    assert lake.rows() == []


@pytest.mark.parametrize("mode", ["append", "upsert", "replace"])
def test_without_the_question_afterwards_a_write_left_out_looks_done(lake: Lake, mode: str) -> None:
    """The twin: no error, and no rows."""
    sink = _sink(lake, mode)
    entry = sink.ledger.current().moved([Range("t", 0, 0, 4)], 0)
    lake.ledger().begin()
    write = sink._merge if mode == "upsert" else sink._save
    write(_frame(lake, 0, 4), entry)
    assert lake.rows() == []
