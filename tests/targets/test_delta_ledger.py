"""The ledger in a Delta table: what two runs can do to each other, at every moment of a commit."""

import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from tallygate.core.blocks import BlockPlan
from tallygate.core.ledger import Claim, LedgerEntry, LedgerState, Lose, Remember
from tallygate.core.letters import Letter
from tallygate.core.offsets import MovedError, Range
from tallygate.errors import FencedError, TargetError
from tallygate.settings import Settings
from tallygate.spec import Delta
from tallygate.targets.base import RowShape, UnknownOutcomeError, WriteBatch, Written
from tallygate.targets.batch_input import FrameInput
from tallygate.targets.delta.ledger import TableLedger
from tallygate.targets.delta.letters import LetterFolder
from tallygate.targets.delta.table import DeltaTable
from tallygate.targets.delta.target import DeltaTarget
from tallygate.targets.delta.write import TableWriter
from tallygate.targets.task_report import StepError
from tallygate.waiting import wait_until

FOUR = (Range("t", 0, 0, 4),)


@dataclass(frozen=True)
class Table:
    """A Delta table that runs of the pipeline `payments` write."""

    path: str
    spark: SparkSession
    settings: Settings

    def run(self, mode: str = "append") -> "Run":
        return Run(self, mode)

    def ledger(self) -> TableLedger:
        return TableLedger(DeltaTable(self.spark, self.path), "payments")

    def frame(self, start: int, until: int) -> DataFrame:
        """A row of each offset, with its coordinates."""
        numbers = self.spark.range(start, until, numPartitions=1)
        return numbers.selectExpr("id", "'t' AS _topic", "0 AS _partition", "id AS _offset")

    def ids(self) -> list[int]:
        rows = self.spark.read.format("delta").load(self.path).select("id").collect()
        return sorted(row.id for row in rows)


class Run:
    def __init__(self, table: Table, mode: str) -> None:
        spec = Delta(table.path, mode=mode, key="id" if mode == "upsert" else ())
        self.target = DeltaTarget(
            spec, pipeline="payments", spark=table.spark, settings=table.settings
        )
        schema = table.frame(0, 0).schema
        shape = RowShape(schema=schema, has_coordinates=True, narrow=True, stateful=False)
        self.target.open(shape)
        self.claim: Claim = self.target.take_over(shape, "")

    def write(self, left: tuple[Range, ...], rows: DataFrame) -> Written:
        plan = BlockPlan(left=left, has_coordinates=True, trim=True)
        given = FrameInput(rows, plan, partitions=1)
        return self.target.write(self.claim, WriteBatch(id=7, left=left, input=given))

    @property
    def ledger(self) -> TableLedger:
        return self.target._ledger

    @property
    def state(self) -> LedgerState:
        found = self.target.ledger()
        assert found is not None
        return found


@pytest.fixture
def table(tmp_path: Path, spark: SparkSession, settings: Settings) -> Table:
    return Table(str(tmp_path / "table"), spark, settings)


def test_positions_go_on_from_batch_to_batch(table: Table) -> None:
    run = table.run()
    done = run.write(FOUR, table.frame(0, 4))
    assert (done.strategy, done.rows) == ("append", 4)
    assert run.write((Range("t", 0, 4, 9),), table.frame(0, 9)).rows == 5, "trimmed"
    assert table.ids() == list(range(9))
    with pytest.raises(MovedError, match="the ledger is at 9"):
        run.write((Range("t", 0, 4, 9),), table.frame(4, 9))
    entry = table.ledger().newest()
    assert entry is not None
    assert (entry.number, entry.batch, entry.ranges) == (3, 7, (Range("t", 0, 4, 9),))
    assert entry.state == run.state
    assert (entry.state.positions, entry.state.begun) == ({("t", 0): 9}, {("t", 0): 0})
    assert entry.state.run == run.claim.run


def test_changes_without_rows_are_commits_too(table: Table) -> None:
    run = table.run()
    run.write(FOUR, table.frame(0, 4))
    run.target.amend(run.claim, Remember("c", {"t": "x"}))
    run.target.amend(run.claim, Lose((Range("t", 0, 4, 6),), "retention"))
    assert (run.state.checkpoint_id, run.state.topic_ids) == ("c", {"t": "x"})
    assert [(lost.range, lost.reason) for lost in run.state.lost] == [
        (Range("t", 0, 4, 6), "retention")
    ]
    assert run.state.positions == {("t", 0): 6}
    newer = table.run()
    assert newer.state.positions == {("t", 0): 6}
    with pytest.raises(FencedError, match="run 2 took over on"):
        run.target.amend(run.claim, Remember("d", {}))


def test_dead_letters_count_once_the_ledger_is_past_them(table: Table) -> None:
    run = table.run()
    keeper = run.target.letter_keeper(run.claim)
    for _ in range(2):
        keeper.keep([Letter("t", 0, offset, "no JSON") for offset in (3, 5)])
    assert run.target.letter_count() == 0
    run.write(FOUR, table.frame(0, 3))
    assert run.target.letter_count() == 1
    run.write((Range("t", 0, 4, 6),), table.frame(4, 5))
    assert run.target.letter_count() == 2


def test_what_a_fenced_run_finds_unfit_does_not_count_for_a_newer_one(table: Table) -> None:
    """Its tasks may write when the newer run has looked already."""
    older = table.run()
    older.target.letter_keeper(older.claim).keep([Letter("t", 0, 3, "no JSON")])
    older.write(FOUR, table.frame(0, 3))
    newer = table.run()
    older.target.letter_keeper(older.claim).keep([Letter("t", 0, 5, "no JSON")])
    newer.write((Range("t", 0, 4, 8),), table.frame(4, 8))
    assert newer.target.letter_count() == 1
    assert newer.target.first_causes((Range("t", 0, 4, 8),), 3) == []
    last = table.run()
    assert last.target.letter_count() == 1
    last.target.letter_keeper(last.claim).keep([Letter("t", 0, 9, "no JSON")])
    last.write((Range("t", 0, 8, 10),), table.frame(8, 9))
    assert last.target.letter_count() == 2


def test_a_letter_that_the_driver_does_not_find_is_an_error(table: Table) -> None:
    """And once it is there, the run goes on."""
    run = table.run()
    keeper = run.target.letter_keeper(run.claim)
    keeper.keep([Letter("t", 0, 3, "no JSON")])
    (file,) = Path(table.path, "_tallygate", "payments", "letters").rglob("*.json")
    file.rename(file.with_suffix(".away"))
    with pytest.raises(TargetError, match="left a dead letter in .*, and the driver does not find"):
        run.write(FOUR, table.frame(0, 3))
    file.with_suffix(".away").rename(file)
    run.write((Range("t", 0, 4, 8),), table.frame(4, 8))
    assert run.target.letter_count() == 1


def test_a_table_that_is_removed_in_mid_run_is_named(table: Table) -> None:
    run = table.run()
    run.write(FOUR, table.frame(0, 4))
    shutil.rmtree(table.path)
    with pytest.raises(TargetError, match="was removed or replaced"):
        run.target.ledger()
    table.run().write(FOUR, table.frame(0, 4))
    with pytest.raises(TargetError, match="was removed or replaced"):
        run.write((Range("t", 0, 4, 9),), table.frame(4, 9))
    assert table.ids() == list(range(4))


def test_a_write_planned_before_the_take_over_is_left_out_and_noticed(table: Table) -> None:
    """What an older run does that was stopped for a while between its plan and its commit."""
    older = table.run()
    older.write(FOUR, table.frame(0, 4))
    planned = older.ledger.current(older.claim).next(batch=7)
    older.ledger.intend(planned)
    table.run()
    writer = table.frame(0, 4).write.format("delta").mode("append")
    writer = writer.option("txnAppId", older.ledger.application)
    writer.option("txnVersion", planned.number).save(table.path)
    with pytest.raises(FencedError, match="took over on"):
        older.ledger.confirm(older.claim, planned)
    assert table.ids() == list(range(4))


def test_a_commit_during_the_take_over_is_not_lost(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The older run commits after the new one has read the ledger and before it takes over."""
    older, newer = table.run(), table.ledger()
    older.write(FOUR, table.frame(0, 4))
    write = newer.table.own.write
    raced: list[str] = []

    def late(name: str, text: str) -> None:
        if not raced:
            raced.append(name)
            older.target.amend(older.claim, Lose((Range("t", 0, 4, 5),), "retention"))
        write(name, text)

    monkeypatch.setattr(newer.table.own, "write", late)
    assert newer.take_over().state.positions == {("t", 0): 5}
    assert raced


def test_a_commit_that_did_not_take_place_is_noticed(table: Table) -> None:
    run = table.run()
    planned = run.ledger.current(run.claim).next(batch=7)
    run.ledger.intend(planned)
    with pytest.raises(UnknownOutcomeError, match="did not take place"):
        run.ledger.confirm(run.claim, planned)


def test_a_newer_run_takes_over_while_rows_are_written(table: Table, tmp_path: Path) -> None:
    """Delta refuses the older run's commit, and the batch is planned again: that finds the
    fence."""
    run = table.run()
    marker, wait = tmp_path / "writing", tmp_path / "taken-over"

    def slowly(blocks: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        marker.touch()
        while not wait.exists():
            time.sleep(0.05)
        yield from blocks

    def take_over() -> None:
        wait_until(marker.exists, 60, "not written")
        table.ledger().take_over()
        wait.touch()

    frame = table.frame(0, 4)
    slow = frame.mapInArrow(slowly, frame.schema)
    newer = threading.Thread(target=take_over)
    newer.start()
    with pytest.raises(UnknownOutcomeError, match="at the same time"):
        run.write(FOUR, slow)
    newer.join()
    with pytest.raises(FencedError, match="run 2 took over on"):
        run.write(FOUR, slow)
    assert table.ids() == []


@pytest.mark.parametrize("mode", ["append", "upsert", "replace"])
def test_a_newer_run_takes_over_before_rows_are_written(
    table: Table, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Delta leaves the older run's write out and says nothing; the older run asks."""
    run = table.run(mode)
    intend = run.ledger.intend

    def stopped_for_a_while(entry: LedgerEntry) -> None:
        intend(entry)
        table.ledger().take_over()

    monkeypatch.setattr(run.ledger, "intend", stopped_for_a_while)
    with pytest.raises(FencedError, match="run 2 took over on"):
        run.write(FOUR, table.frame(0, 4))
    assert table.ids() == []


@pytest.mark.parametrize("mode", ["append", "upsert", "replace"])
def test_without_the_question_afterwards_a_write_left_out_looks_done(
    table: Table, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin: no error, and no rows."""
    run = table.run(mode)
    intend, send = run.ledger.intend, TableWriter.send

    def stopped_for_a_while(entry: LedgerEntry) -> None:
        intend(entry)
        table.ledger().take_over()

    def uncounted(self: TableWriter, rows: DataFrame, after: LedgerEntry) -> Callable[[], int]:
        send(self, rows, after)
        return lambda: 0  # what was left out nothing has counted

    monkeypatch.setattr(run.ledger, "intend", stopped_for_a_while)
    monkeypatch.setattr(run.ledger, "confirm", lambda *_: None)
    monkeypatch.setattr(TableWriter, "send", uncounted)
    assert run.write(FOUR, table.frame(0, 4)).strategy == mode
    assert table.ids() == []


def test_letters_are_not_left_where_the_driver_would_not_find_them(tmp_path: Path) -> None:
    """On an executor's own disk, where the path of the table leads to nothing."""
    letters = LetterFolder(f"file:{tmp_path}/table/_tallygate/payments/letters")
    with pytest.raises(StepError, match="must be on a file system that all executors share"):
        letters.keep([Letter("t", 0, 5, "no JSON")])
    assert not list(tmp_path.iterdir())
