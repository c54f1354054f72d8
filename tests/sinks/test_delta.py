"""The Delta sink: rows and ledger in the table's own transactions, whatever happens to the rest."""

import json
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from fixtures.flows import Flow
from fixtures.killing import Killed, is_bad
from tallygate.errors import ConfigError, FencedError, LedgerError, TargetError
from tallygate.ledger.letters import Letter
from tallygate.ledger.ranges import Place, Range
from tallygate.pipeline.engine import Progress
from tallygate.settings import Settings
from tallygate.sinks.delta.entry import Entry
from tallygate.sinks.delta.ledger import DeltaLedger
from tallygate.sinks.delta.letters import LetterFolder
from tallygate.sinks.delta.sink import DeltaSink, _settings
from tallygate.sinks.delta.store import DeltaStore
from tallygate.sinks.delta.table import DeltaTable
from tallygate.sinks.sink import Batch, Retry
from tallygate.sinks.store import Shape
from tallygate.spark import session as session_module
from tallygate.spark.session import session
from tallygate.spec import Delta
from tallygate.waiting import wait_until

COUNTS = "SELECT account, count(*) AS payments FROM source GROUP BY account"
VACUUM_NOW = {
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
}
NUMBERS = range(1200)
GOOD = [number for number in NUMBERS if not is_bad(number)]


class Lake:
    """A flow whose sink is a Delta table."""

    def __init__(self, flow: Flow) -> None:
        self.flow, self.path = flow, str(flow.folder / "table")

    def run(self, **fields: Any) -> list[str]:
        return self.flow.run(**{"sink": Delta(self.path), **fields})

    def rows(self, *columns: str) -> list[Any]:
        """What plain Spark reads."""
        frame = self.flow.spark.read.format("delta").load(self.path)
        found = sorted(tuple(row) for row in frame.select(*(columns or ("id",))).collect())
        return [row[0] if len(row) == 1 else row for row in found]

    def check(self) -> None:
        assert self.rows() == list(range(self.flow.sent))

    def ledger(self) -> DeltaLedger:
        return DeltaLedger(DeltaTable(self.flow.spark, self.path), self.flow.name)

    def entry(self) -> Entry:
        found = self.ledger().known()
        assert found is not None
        return found

    def letters(self) -> list[Path]:
        return list(Path(self.path, "_tallygate", self.flow.name, "letters").rglob("*.json"))


@pytest.fixture
def lake(flow: Flow) -> Lake:
    return Lake(flow)


def _no_commit(flow: Flow) -> None:
    """Make Spark believe that its last batch was not finished."""
    last = max((flow.checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    (last.parent / f".{last.name}.crc").unlink(missing_ok=True)


def test_rows_are_there_once_after_lost_rolled_back_and_replayed_checkpoints(lake: Lake) -> None:
    flow = lake.flow
    flow.send(250)
    lake.run()
    lake.check()
    _no_commit(flow)
    flow.send(50)
    lake.run()
    lake.check()
    with flow.checkpoint_of_now():
        flow.send(120)
        lake.run()
    flow.send(30)
    lake.run()
    lake.check()
    shutil.rmtree(flow.checkpoint)
    flow.send(150)
    assert "reading goes on from the ledger" in lake.run()
    lake.check()
    entry = lake.entry()
    assert sum(entry.positions.values()) == flow.sent
    assert (entry.epoch, set(entry.begun.values())) == (5, {0})
    assert entry.topic_ids.keys() == {flow.name}
    assert len(lake.rows("_topic", "_partition", "_offset")) == flow.sent


def test_the_table_outlives_the_history_of_its_log_and_a_vacuum(lake: Lake) -> None:
    """The ledger is found although Delta has cleaned up everything but its newest state."""
    flow = lake.flow
    flow.send(100)
    lake.run()
    spark, target = flow.spark, f"delta.`{lake.path}`"
    spark.sql(f"ALTER TABLE {target} SET TBLPROPERTIES ('delta.checkpointInterval' = '1')")
    flow.send(10)
    lake.run()
    newest = max(Path(lake.path, "_delta_log").glob("*.checkpoint*.parquet")).name[:20]
    for file in Path(lake.path, "_delta_log").iterdir():
        if file.name.lstrip(".")[:20].isdigit() and file.name.lstrip(".")[:20] < newest:
            file.unlink()
    jvm: Any = spark._jvm
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    with _settings(spark, VACUUM_NOW):
        spark.sql(f"VACUUM {target} RETAIN 0 HOURS")
    shutil.rmtree(flow.checkpoint)
    flow.send(20)
    lake.run()
    lake.check()


def test_batch_ids_as_numbers_lose_rows_when_the_checkpoint_is_lost(lake: Lake) -> None:
    """The twin: what Delta's users write by hand. Its batch ids start again at 0, the table takes
    them for writes that were done already, and says nothing."""
    flow, path = lake.flow, str(lake.flow.folder / "by-hand")

    def write(frame: DataFrame, batch_id: int) -> None:
        writer = frame.write.format("delta").mode("append")
        writer.option("txnAppId", "by-hand").option("txnVersion", batch_id).save(path)

    def run() -> None:
        reader = flow.spark.readStream.format("kafka").option("subscribe", flow.name)
        reader = reader.options(**flow.stack.cluster.connection.spark())
        reader = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 100)
        frame = reader.load().selectExpr("CAST(value AS string) AS value")
        query = (
            frame.writeStream.foreachBatch(write)
            .option("checkpointLocation", str(flow.folder / "by-hand-checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    def rows() -> int:
        return flow.spark.read.format("delta").load(path).count()

    flow.send(250)
    run()
    lake.run()
    assert rows() == 250
    shutil.rmtree(flow.folder / "by-hand-checkpoint")
    shutil.rmtree(flow.checkpoint)
    flow.send(40)
    run()
    lake.run()
    assert rows() == 250, "40 records were left out in silence"
    lake.check()


def test_a_newer_run_fences_the_older_one(lake: Lake) -> None:
    flow = lake.flow
    flow.send(50)
    failures: list[BaseException] = []
    seen = threading.Event()

    def older() -> None:
        try:
            flow.pipeline(sink=Delta(lake.path), checkpoint=str(flow.folder / "first")).run(
                settings=flow.settings, spark=flow.spark, told=lambda _: seen.set()
            )
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=older)
    thread.start()
    assert seen.wait(60)
    lake.run()
    flow.send(50)
    thread.join(60)
    assert isinstance(failures[0], FencedError)
    assert "run 1 of pipeline" in str(failures[0])
    assert "run 2 took over on" in str(failures[0])
    lake.run()
    lake.check()


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


def test_aggregates_are_merged_and_replaced(lake: Lake) -> None:
    flow = lake.flow
    replaced = str(flow.folder / "replaced")
    sinks = {"upsert": Delta(lake.path, mode="upsert", key="account")}
    sinks["replace"] = Delta(replaced, mode="replace")
    for sent in (100, 50):
        flow.send(sent)
        for mode, sink in sinks.items():
            name, folder = f"{flow.name}_{mode}", flow.folder / mode
            flow.run(name=name, transform=COUNTS, sink=sink, checkpoint=str(folder))
            last = max((folder / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
            last.unlink()
            (last.parent / f".{last.name}.crc").unlink(missing_ok=True)
    expected = [(f"a{n}", 30) for n in range(5)]
    assert lake.rows("account", "payments") == expected
    lake.path = replaced
    assert lake.rows("account", "payments") == expected


def test_the_newest_row_of_a_key_counts(lake: Lake) -> None:
    flow = lake.flow
    for count in (60, 45):
        flow.send(count)
        lake.run(sink=Delta(lake.path, mode="upsert", key="account"))
    assert lake.rows("account", "id") == [(f"a{n}", 100 + n) for n in range(5)]
    flow.send_text(["not JSON"] * 3)
    lake.run(sink=Delta(lake.path, mode="upsert", key="account"))
    assert len(lake.rows("account")) == 5, "a batch without rows moves the ledger too"
    assert sum(lake.entry().positions.values()) == 108


def test_a_stateful_pipeline_without_its_checkpoint_is_refused(lake: Lake) -> None:
    sink = Delta(lake.path, mode="upsert", key="account")
    lake.flow.send(50)
    lake.run(sink=sink, transform=COUNTS)
    shutil.rmtree(lake.flow.checkpoint)
    with pytest.raises(LedgerError, match="is gone. The state is in the checkpoint"):
        lake.run(sink=sink, transform=COUNTS)


def test_bad_records_become_letters_once(lake: Lake) -> None:
    flow = lake.flow
    flow.send(20)
    flow.send_text(["not JSON", '{"id": "x"}', "\x00"])
    seen: list[int] = []

    def told(progress: Progress) -> None:
        seen.append(progress.letters)

    flow.pipeline(sink=Delta(lake.path)).run(
        until="available", settings=flow.settings, spark=flow.spark, told=told
    )
    _no_commit(flow)
    flow.send_text(["{"])
    flow.pipeline(sink=Delta(lake.path)).run(
        until="available", settings=flow.settings, spark=flow.spark, told=told
    )
    assert seen[-1] == 4
    letters = [json.loads(path.read_text()) for path in lake.letters()]
    assert Counter(each["value"] for each in letters) == Counter(
        ["not JSON", '{"id": "x"}', "\x00", "{"]
    )
    assert all(each["cause"] and each["topic"] == flow.name for each in letters)
    lake.check()


def test_letters_of_a_batch_that_was_never_committed_do_not_stay(lake: Lake) -> None:
    lake.flow.send(10)
    lake.run()
    at = lake.entry().positions[lake.flow.name, 0]
    folder = LetterFolder(f"file:{lake.path}/_tallygate/{lake.flow.name}/letters")
    folder.keep([Letter(lake.flow.name, 0, at + 5, "?", b"\xff", None)])
    assert len(lake.letters()) == 1
    lake.run()
    assert not lake.letters()


def test_a_table_that_does_not_fit_is_refused(lake: Lake) -> None:
    spark = lake.flow.spark
    spark.sql(f"CREATE TABLE delta.`{lake.path}` (id string, must int NOT NULL) USING delta")
    with pytest.raises(TargetError) as caught:
        lake.run()
    assert "'id' is string there and bigint here" in str(caught.value)
    assert "it has no column 'account' (string)" in str(caught.value)
    assert "'must' is NOT NULL there" in str(caught.value)
    with pytest.raises(TargetError, match="no column of what the pipeline gives"):
        lake.run(sink=Delta(lake.path, mode="upsert", key="nobody"))
    lake.path = str(lake.flow.folder / "forgetful")
    lake.flow.send(10)
    lake.run()
    forgets = "('delta.setTransactionRetentionDuration' = 'interval 1 day')"
    spark.sql(f"ALTER TABLE delta.`{lake.path}` SET TBLPROPERTIES {forgets}")
    with pytest.raises(TargetError, match="would forget which rows it holds"):
        lake.run()
    lake.path = str(lake.flow.folder)
    with pytest.raises(TargetError, match="no Delta table"):
        lake.run()


def test_a_table_removed_in_mid_run(lake: Lake) -> None:
    flow = lake.flow
    flow.send(20)

    def remove(progress: Progress) -> None:
        shutil.rmtree(lake.path)
        flow.send(20)

    with pytest.raises(TargetError, match="was removed or made anew"):
        flow.pipeline(sink=Delta(lake.path)).run(
            settings=flow.settings, spark=flow.spark, told=remove
        )


def test_a_ledger_that_was_removed_is_an_error(lake: Lake) -> None:
    lake.flow.send(10)
    lake.run()
    shutil.rmtree(Path(lake.path, "_tallygate"))
    with pytest.raises(LedgerError, match="is gone, which says how far"):
        lake.run()


def test_a_session_without_delta_is_refused_with_the_cure(
    spark: SparkSession, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert session(existing=spark, settings=settings, delta=True) is spark
    monkeypatch.setattr(session_module, "DELTA_EXTENSION", "org.example.NotThere")
    with pytest.raises(
        ConfigError, match=r"lacks Delta; .*spark\.sql\.extensions=.*spark\.jars=.*delta-spark"
    ):
        session(existing=spark, settings=settings, delta=True)


def test_rows_survive_kills(
    spark: SparkSession,
    payments: Callable[..., str],
    killed: Callable[..., Killed],
    tmp_path: Path,
) -> None:
    topic = payments("killed-delta-source", NUMBERS)
    path = str(tmp_path / "killed")
    pipeline = killed("killed_delta", topic, {"delta": path})
    pipeline.through(
        ["batch-planned@1", "ledger-moved@1", "commit-sent@1", "committed@2", "batch-committed@2"]
    )
    rows = spark.read.format("delta").load(path).select("id", "account", "amount", "_partition")
    found = sorted(tuple(row) for row in rows.collect())
    assert found == [(n, f"a{n % 7}", n / 4, n % 3) for n in GOOD]
    letters = list(Path(path, "_tallygate", "killed_delta", "letters").rglob("*.json"))
    assert len(letters) == len(NUMBERS) - len(GOOD)


def _sink(lake: Lake) -> DeltaSink:
    """The sink of a new run of the flow's pipeline, over rows that carry their coordinates."""
    store = DeltaStore(
        Delta(lake.path), lake.flow.name, "exactly-once", lake.flow.spark, lake.flow.settings
    )
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
