"""The Delta target: rows and ledger in transactions of the table, whatever happens to the rest."""

import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from fixtures.audits import audited
from fixtures.commands import Tallygate
from fixtures.killing import Killed, is_bad
from fixtures.lakes import Lake
from tallygate.core.letters import Letter
from tallygate.engine.progress import Progress
from tallygate.errors import ConfigError, FencedError, LedgerError, TargetError
from tallygate.settings import Settings
from tallygate.spark import session as session_module
from tallygate.spark.session import session
from tallygate.spark.temporary_conf import temporary_conf
from tallygate.spec import Delta
from tallygate.targets.delta.compaction import compact_table
from tallygate.targets.delta.letters import LetterFolder

COUNTS = "SELECT account, count(*) AS payments FROM source GROUP BY account"
VACUUM_NOW = {
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
}
NUMBERS = range(1200)
GOOD = [number for number in NUMBERS if not is_bad(number)]


@pytest.mark.system
def test_rows_are_there_once_after_lost_rolled_back_and_replayed_checkpoints(lake: Lake) -> None:
    flow = lake.flow
    flow.send(250)
    lake.run()
    lake.check()
    flow.forget_last_commit()
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
    assert sum(entry.state.positions.values()) == flow.sent
    assert (entry.state.run.epoch, set(entry.state.begun.values())) == (5, {0})
    assert entry.state.topic_ids.keys() == {flow.name}
    assert len(lake.rows("_topic", "_partition", "_offset")) == flow.sent


@pytest.mark.system
def test_small_files_are_put_together_between_batches(lake: Lake, tallygate: Tallygate) -> None:
    flow = lake.flow
    for _ in range(3):
        flow.send(40)
        lake.run()
    done = compact_table(lake.path, target_bytes=1 << 27, spark=flow.spark)
    assert done.files_before > 2
    assert done.files == 1
    lake.check()
    flow.send(40)
    flow.forget_last_commit()
    lake.run()
    lake.check()
    refused = tallygate("compact", lake.path, str(flow.folder / "new"), code=ConfigError.exit_code)
    assert "is a Delta table, compacted in its place: leave out NEW" in refused.stderr
    refused = tallygate("compact", str(flow.folder), code=ConfigError.exit_code)
    assert "is not a Delta table: name a new folder for its rows" in refused.stderr


@pytest.mark.system
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
    with temporary_conf(spark, VACUUM_NOW):
        spark.sql(f"VACUUM {target} RETAIN 0 HOURS")
    shutil.rmtree(flow.checkpoint)
    flow.send(20)
    lake.run()
    lake.check()


@pytest.mark.system
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
    failure = flow.run_twice_at_once(sink=Delta(lake.path))
    assert isinstance(failure, FencedError)
    assert "run 1 of pipeline" in str(failure)
    assert "run 2 took over on" in str(failure)
    lake.check()


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


@pytest.mark.system
def test_the_newest_row_of_a_key_counts(lake: Lake) -> None:
    flow = lake.flow
    for count in (60, 45):
        flow.send(count)
        lake.run(sink=Delta(lake.path, mode="upsert", key="account"))
    assert lake.rows("account", "id") == [(f"a{n}", 100 + n) for n in range(5)]
    flow.send_text(["not JSON"] * 3)
    lake.run(sink=Delta(lake.path, mode="upsert", key="account"))
    assert len(lake.rows("account")) == 5, "a batch without rows moves the ledger too"
    assert sum(lake.entry().state.positions.values()) == 108


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

    def look(progress: Progress) -> None:
        seen.append(progress.letters)

    flow.pipeline(sink=Delta(lake.path)).run(
        until="available", settings=flow.settings, spark=flow.spark, on_progress=look
    )
    flow.forget_last_commit()
    flow.send_text(["{"])
    flow.pipeline(sink=Delta(lake.path)).run(
        until="available", settings=flow.settings, spark=flow.spark, on_progress=look
    )
    assert seen[-1] == 4
    letters = [json.loads(path.read_text()) for path in lake.letters()]
    assert Counter(each["value"] for each in letters) == Counter(
        ["not JSON", '{"id": "x"}', "\x00", "{"]
    )
    assert all(each["cause"] and each["topic"] == flow.name for each in letters)
    lake.check()


@pytest.mark.parametrize("mode", ["append", pytest.param("upsert", marks=pytest.mark.system)])
def test_rows_that_break_a_rule_of_the_table_are_letters(lake: Lake, mode: str) -> None:
    flow = lake.flow
    sink = Delta(lake.path, mode=mode, key="id" if mode == "upsert" else ())
    more = "" if mode == "upsert" else ", _topic string, _partition int, _offset bigint"
    table = f"delta.`{lake.path}`"
    flow.spark.sql(f"CREATE TABLE {table} (id bigint, account string NOT NULL{more}) USING delta")
    flow.send(20)
    flow.run(sink=sink)
    for rule in ("small CHECK (id < 30)", "theirs CHECK (account <> 'a4' OR id < 29)"):
        flow.spark.sql(f"ALTER TABLE {table} ADD CONSTRAINT {rule}")
    flow.send(40)
    flow.send_text(['{"id": 5}', "not JSON"])
    flow.run(sink=sink)
    assert lake.rows() == list(range(29))
    letters = [json.loads(path.read_text()) for path in lake.letters()]
    assert Counter(each["cause"] for each in letters if each["value"] != "not JSON") == {
        "CHECK constraint small (id < 30) violated": 30,
        "CHECK constraint theirs (account <> 'a4' OR id < 29) violated": 1,
        "NOT NULL constraint violated for column: account": 1,
    }
    result = audited(flow, sink=sink)
    assert result, str(result)
    assert result.letters == 33


def test_letters_of_a_batch_that_was_never_committed_do_not_stay(lake: Lake) -> None:
    lake.flow.send(10)
    lake.run()
    at = lake.entry().state.positions[lake.flow.name, 0]
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
    with pytest.raises(TargetError, match="not a column of the pipeline's rows"):
        lake.run(sink=Delta(lake.path, mode="upsert", key="nobody"))
    lake.path = str(lake.flow.folder / "forgetful")
    lake.flow.send(10)
    lake.run()
    forgets = "('delta.setTransactionRetentionDuration' = 'interval 1 day')"
    spark.sql(f"ALTER TABLE delta.`{lake.path}` SET TBLPROPERTIES {forgets}")
    with pytest.raises(TargetError, match="would forget which rows it holds"):
        lake.run()
    lake.path = str(lake.flow.folder)
    with pytest.raises(TargetError, match="not a Delta table"):
        lake.run()


def test_a_table_removed_in_mid_run(lake: Lake) -> None:
    flow = lake.flow
    flow.send(20)

    def remove(progress: Progress) -> None:
        shutil.rmtree(lake.path)
        flow.send(20)

    with pytest.raises(TargetError, match="was removed or replaced"):
        flow.pipeline(sink=Delta(lake.path)).run(
            settings=flow.settings, spark=flow.spark, on_progress=remove
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


@pytest.mark.system
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
