"""The Parquet target: each record once, for readers that know nothing of the ledger."""

import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from fixtures.flows import BEGIN, SCHEMA, Flow, windows_of_20
from fixtures.killing import Killed, is_bad
from fixtures.readers import Watcher, rows_of
from tallygate import DeadLetters, Kafka
from tallygate.core.ledger import LedgerEntry
from tallygate.core.offsets import Range
from tallygate.errors import ConfigError, FencedError, InputError, LedgerError, TargetError
from tallygate.spec import Parquet
from tallygate.targets.parquet.folder import Folder
from tallygate.targets.parquet.letters import read_letters

NUMBERS = range(1200)
GOOD = [number for number in NUMBERS if not is_bad(number)]


class Lake:
    """A flow whose rows go to a folder."""

    def __init__(self, flow: Flow) -> None:
        self.flow, self.path = flow, flow.folder / "rows"

    def sink(self, **fields: Any) -> Parquet:
        return Parquet(str(self.path), **fields)

    def run(self, **fields: Any) -> list[str]:
        return self.flow.run(**{"sink": self.sink(), **fields})

    @property
    def newest(self) -> LedgerEntry:
        found = Folder(self.path).newest()
        assert found is not None
        return found

    def ids(self) -> list[int]:
        return rows_of(self.path, "id")

    def check(self) -> None:
        assert self.ids() == list(range(self.flow.sent))
        committed = [each for each in Folder(self.path).entries() if each.batch is not None]
        assert sum(each.rows for each in committed) == self.flow.sent


@pytest.fixture
def lake(flow: Flow) -> Lake:
    return Lake(flow)


@pytest.mark.parametrize("driver_rows", [20_000, 0], ids=["driver", "tasks"])
def test_rows_and_readers(lake: Lake, driver_rows: int) -> None:
    """Rows come once, wherever they are read from, and a replayed batch is skipped."""
    flow, sink = lake.flow, lake.sink(driver_rows=driver_rows)
    flow.send(250)
    lake.run(sink=sink)
    flow.forget_last_commit()
    flow.send(50)
    lake.run(sink=sink)
    lake.check()
    places = rows_of(lake.path, "_topic", "_partition", "_offset")
    assert len(set(places)) == 300
    assert sum(lake.newest.state.positions.values()) == 300
    read = flow.spark.read.parquet(str(lake.path))
    assert sorted(row.id for row in read.select("id").collect()) == list(range(300))
    last = read.where(f"commit = {lake.newest.number}").select("id").collect()
    assert len(last) == lake.newest.rows
    everything = flow.spark.read.option("recursiveFileLookup", "true").parquet(str(lake.path))
    assert everything.count() == 300
    assert len(pq.read_table(lake.path)) == 300
    assert not list(lake.path.parent.glob(".rows.tallygate/run-*")), "staging is left behind"


@pytest.mark.system
def test_without_the_ledger_a_replayed_batch_comes_twice(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin: a plan that believes Spark's batches instead of the ledger repeats one."""
    lake.flow.send(250)
    lake.run()
    lake.flow.forget_last_commit()
    believed = "tallygate.engine.batch.remaining"
    monkeypatch.setattr(believed, lambda ranges, *_, **__: tuple(r for r in ranges if len(r)))
    lake.run()
    assert len(lake.ids()) > lake.flow.sent == len(set(lake.ids()))


def test_sparks_own_files_are_seen_twice_after_the_same_crash(lake: Lake) -> None:
    """The twin of the reader: what Spark's file sink has written before its log says so."""
    flow = lake.flow
    flow.send(100)
    servers = flow.stack.cluster.connection.bootstrap_servers
    for _ in range(2):
        raw = flow.spark.readStream.format("kafka").option("subscribe", flow.name)
        raw = raw.option("kafka.bootstrap.servers", servers).option("startingOffsets", "earliest")
        ids = raw.load().selectExpr("partition * 1000 + offset AS id")
        writer = ids.writeStream.format("parquet").option(
            "checkpointLocation", str(flow.checkpoint)
        )
        writer.trigger(availableNow=True).start(str(lake.path)).awaitTermination()
        for path in (lake.path / "_spark_metadata").glob("*0*"):
            path.unlink()
        flow.forget_last_commit()
    assert len(lake.ids()) == 200


def test_a_lost_checkpoint_and_one_that_was_rolled_back(lake: Lake) -> None:
    flow = lake.flow
    flow.send(120)
    lake.run()
    with flow.checkpoint_of_now():
        flow.send(300)
        lake.run()
    flow.send(30)
    lake.run()
    lake.check()
    shutil.rmtree(flow.checkpoint)
    flow.send(150)
    assert "reading goes on from the ledger" in lake.run()
    lake.check()


def test_a_batch_that_is_there_in_part_is_trimmed(lake: Lake) -> None:
    """A checkpoint of another machine, whose batches begin and end elsewhere."""
    flow = lake.flow
    flow.send(90)
    lake.run()
    flow.send(60)
    lake.run(checkpoint=str(flow.folder / "other"))
    flow.send(100)
    lake.run(source=Kafka(flow.name, schema=SCHEMA), sink=lake.sink(driver_rows=0))
    lake.check()


def test_a_folder_restored_to_an_older_state(lake: Lake) -> None:
    """Rows and ledger go back together, and what is missing is read again."""
    flow = lake.flow
    flow.send(100)
    lake.run()
    shutil.copytree(lake.path, flow.folder / "backup")
    flow.send(100)
    lake.run()
    shutil.rmtree(lake.path)
    (flow.folder / "backup").rename(lake.path)
    assert any("set aside" in note for note in lake.run())
    lake.check()


def test_a_folder_that_was_removed_does_not_go_on_in_the_middle(lake: Lake) -> None:
    lake.flow.send(50)
    lake.run()
    shutil.rmtree(lake.path)
    lake.flow.send(50)
    with pytest.raises(LedgerError, match="what came before would be missing"):
        lake.run()
    shutil.rmtree(lake.flow.checkpoint)
    lake.run()
    lake.check()


def test_the_same_pipeline_started_twice(lake: Lake) -> None:
    """The newer run fences the older one, which stops and names it; nothing is there twice."""
    flow = lake.flow
    flow.send(50)
    failure = flow.run_twice_at_once(sink=lake.sink())
    assert isinstance(failure, FencedError)
    assert "run 2 took over on" in str(failure)
    lake.check()


def test_retention_overtook_the_reader(lake: Lake) -> None:
    flow = lake.flow
    flow.send(30, partition=1)
    lake.run()
    flow.send(30, partition=1)
    flow.retire(1, 45)
    lake.run(accept_loss=True)
    assert lake.ids() == [*range(30), *range(45, 60)]
    assert [each.range for each in lake.newest.state.lost] == [Range(flow.name, 1, 30, 45)]


def test_unfit_records_become_letters_in_the_commit_of_their_batch(lake: Lake) -> None:
    flow = lake.flow
    flow.send(40)
    flow.send_text(["no JSON", "{"])
    lake.run()
    flow.send_text(["neither"])
    lake.run(sink=lake.sink(driver_rows=0))
    lake.check()
    letters = [
        letter.value
        for number in Folder(lake.path).numbers()
        for letter in read_letters(Folder(lake.path).commit(number))
    ]
    assert sorted(letters, key=str) == [b"neither", b"no JSON", b"{"]
    assert lake.newest.letters == 3
    flow.send_text(["more"])
    with pytest.raises(InputError, match="4 records are dead letters, more than the limit of 3"):
        lake.run(dead_letters=DeadLetters(limit=3))


EVERY_TYPE = """
SELECT id, true AS b, CAST(1 AS byte) AS i1, CAST(2 AS short) AS i2, CAST(3 AS int) AS i4,
  CAST(1.5 AS float) AS f4, CAST(2.5 AS double) AS f8,
  CAST('12345678901234567.89' AS decimal(20,2)) AS d,
  'é' AS s, X'00ff' AS bin, DATE'0001-01-01' AS da, TIMESTAMP'2026-01-01 00:00:00+02:00' AS ts,
  TIMESTAMP_NTZ'2026-06-01 12:00:00' AS tn, array(1L, null) AS ints, array('a') AS texts,
  map('k', 1) AS m, named_struct('x', 1, 'y', array('z')) AS st, array(array(1)) AS nested,
  CAST(null AS string) AS nothing
FROM source
"""


def test_every_type_and_columns_that_change(lake: Lake) -> None:
    flow = lake.flow
    flow.send(10)
    lake.run(transform=EVERY_TYPE)
    flow.send(10)
    lake.run(transform=EVERY_TYPE, sink=lake.sink(driver_rows=0))
    rows = pq.read_table(lake.path).to_pylist()
    assert {row["id"] for row in rows} == set(range(20))
    for row in rows:
        assert (row["b"], row["i1"], row["i2"], row["i4"]) == (True, 1, 2, 3)
        assert (row["f4"], row["f8"], row["d"]) == (1.5, 2.5, Decimal("12345678901234567.89"))
        assert (row["s"], row["bin"], str(row["da"])) == ("é", b"\0\xff", "0001-01-01")
        assert row["ts"] == datetime(2025, 12, 31, 22, tzinfo=UTC)
        assert row["tn"] == datetime(2026, 6, 1, 12)
        assert (row["ints"], row["texts"], row["m"]) == ([1, None], ["a"], [("k", 1)])
        assert (row["st"], row["nested"]) == ({"x": 1, "y": ["z"]}, [[1]])
        assert row["nothing"] is None
    with pytest.raises(TargetError) as caught:
        lake.run(transform="SELECT CAST(id AS string) AS id, 1 AS new FROM source")
    assert "it has no column 'new' (int32)" in str(caught.value)
    assert "the pipeline has no column 'f8' (double)" in str(caught.value)
    assert "'id' is int64 there and string here" in str(caught.value)


def test_what_is_refused_before_anything_is_written(lake: Lake) -> None:
    flow = lake.flow
    with pytest.raises(ConfigError, match="not a folder of this machine"):
        flow.run(sink=Parquet("s3a://bucket/rows"))
    with pytest.raises(TargetError, match="a column 'Commit'"):
        lake.run(transform="SELECT id AS Commit FROM source")
    with pytest.raises(TargetError, match="'A' and 'a', which readers"):
        lake.run(transform="SELECT id AS `A`, id AS a FROM source")
    with pytest.raises(TargetError, match="column 'i' .* cannot be kept in Parquet"):
        lake.run(transform="SELECT id, INTERVAL '1-2' YEAR TO MONTH AS i FROM source")
    assert not lake.path.exists()
    flow.send(5)
    few = {"transform": "SELECT id FROM source", "sink": lake.sink(coordinates=False)}
    lake.run(**few)
    assert pq.read_table(lake.path).column_names == ["id", "commit"]
    with pytest.raises(TargetError, match="belongs to pipeline"):
        lake.run(name="another", **few)


def test_closed_windows_are_written_once(lake: Lake) -> None:
    """State in the checkpoint, rows without coordinates, and every last batch repeated."""
    for _ in range(4):
        lake.flow.send(50)
        lake.run(transform=windows_of_20)
        lake.flow.forget_last_commit()
    found = rows_of(lake.path, "start", "count")
    assert found == [(BEGIN + timedelta(seconds=20 * n), 20) for n in range(len(found))]
    assert len(found) >= 6
    shutil.rmtree(lake.flow.checkpoint)
    with pytest.raises(LedgerError, match="is gone. The state is in the checkpoint"):
        lake.run(transform=windows_of_20)


POINTS = (
    "batch-started@1",
    "batch-planned@1",
    "rows-begun@1",
    "rows-written@1",
    "rows-staged@1",
    "ledger-moved@1",
    "commit-sent@1",
    "committed@2",
    "batch-committed@3",
)


@pytest.mark.system
def test_rows_survive_every_kill_and_no_reader_sees_anything_else(
    payments: Callable[..., str], killed: Callable[..., Killed], tmp_path: Path
) -> None:
    def survives(strategy: str, driver_rows: int, points: Sequence[str]) -> None:
        name, folder = f"killed-parquet-{strategy}", tmp_path / strategy
        topic = payments(f"{name}-source", NUMBERS)
        sink = {"parquet": str(folder), "driver_rows": driver_rows}
        with Watcher(folder) as watcher:
            killed(name, topic, sink).through(points)
        assert not watcher.wrong
        assert watcher.looks > 100
        assert len(watcher.sizes) > 3
        rows = rows_of(folder, "id", "account", "amount", "_topic", "_partition")
        assert rows == [(n, f"a{n % 7}", n / 4, topic, n % 3) for n in GOOD]
        newest = Folder(folder).newest()
        assert newest is not None
        assert newest.letters == len(NUMBERS) - len(GOOD)
        assert newest.state.run.epoch == len(points) + 1

    tests = [("driver", 20_000, ("rows-written@1", "commit-sent@2")), ("tasks", 0, POINTS)]
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(survives, *test) for test in tests]:
            done.result()
