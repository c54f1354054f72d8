"""What can happen to a pipeline besides a kill: the invariant holds, or it stops and says why."""

import fcntl
import json
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from fixtures.audits import audited
from fixtures.flows import SCHEMA, Flow
from tallygate import Kafka, KafkaSink, Postgres, failpoints
from tallygate.auditing.verdict import Verdict
from tallygate.core.ledger import Claim
from tallygate.core.offsets import Range
from tallygate.engine.checkpoint_lock import CheckpointLock
from tallygate.engine.progress import Progress
from tallygate.engine.status import request_stop
from tallygate.errors import (
    FencedError,
    InputError,
    LedgerError,
    LostRangeError,
    MachineError,
    QueryError,
    TargetError,
)
from tallygate.kafka.connection import Connection
from tallygate.kafka.fetch import fetch
from tallygate.kafka.read import records_in
from tallygate.lab.drills.proxy import CommitFault, DatabaseProxy
from tallygate.targets.base import RowShape
from tallygate.targets.postgres.target import PostgresTarget

COUNTS = "SELECT account, count(*) AS payments FROM source GROUP BY account"


def test_a_replayed_batch_is_skipped(flow: Flow) -> None:
    flow.send(250)
    flow.run()
    flow.forget_last_commit()
    flow.send(50)
    flow.run()
    flow.check()


@pytest.mark.parametrize("target", ["table", "topic", "lanes"])
def test_rows_that_cannot_all_be_computed_are_not_written_in_part(flow: Flow, target: str) -> None:
    """The transform fails when the task that writes already has blocks of the partition."""
    many = 45_000
    flow.send(many, partition=0)
    given: dict[str, Any] = {"source": Kafka(flow.name, schema=SCHEMA)}
    if target != "table":
        flow.topics.create(f"{flow.name}-target", partitions=1)
        given["sink"] = KafkaSink(f"{flow.name}-target")
    hint = "/*+ REPARTITION(1) */" if target == "lanes" else ""
    with pytest.raises(QueryError, match="Division by zero"):
        flow.run(transform=f"SELECT {hint} id, 1 / (id - 44000) AS x FROM source", **given)
    flow.run(transform=f"SELECT {hint} id, 1.0D AS x FROM source", **given)
    if target == "table":
        flow.check()
    else:
        found = records_in(f"{flow.name}-target", flow.stack.cluster.connection)
        assert sorted(json.loads(each.text)["id"] for each in found) == list(range(many))


def test_without_the_ledger_a_replayed_batch_comes_twice(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin: a plan that believes Spark's batches instead of the ledger repeats one."""
    flow.send(250)
    flow.run()
    flow.forget_last_commit()
    believed = "tallygate.engine.batch.remaining"
    monkeypatch.setattr(believed, lambda ranges, *_, **__: tuple(r for r in ranges if len(r)))
    monkeypatch.setattr("tallygate.targets.postgres.rows.move", lambda *_: None)
    monkeypatch.setattr("tallygate.targets.postgres.write.move", lambda *_: None)
    flow.run()
    assert len(flow.rows()) > flow.sent == len(set(flow.rows()))


def test_a_lost_checkpoint_goes_on_from_the_ledger(flow: Flow) -> None:
    flow.send(250)
    flow.run()
    shutil.rmtree(flow.checkpoint)
    flow.send(150)
    assert "reading goes on from the ledger" in flow.run()
    flow.check()


def test_a_checkpoint_rolled_back_to_an_older_copy(flow: Flow) -> None:
    flow.send(120)
    flow.run()
    with flow.checkpoint_of_now():
        flow.send(300)
        flow.run()
    flow.send(30)
    flow.run()
    flow.check()


def test_a_checkpoint_copied_to_another_machine(flow: Flow) -> None:
    flow.send(220)
    flow.run()
    shutil.copytree(flow.checkpoint, flow.folder / "copy")
    flow.send(100)
    flow.run()
    flow.send(40)
    flow.run(checkpoint=str(flow.folder / "copy"))
    flow.run()
    flow.check()


def test_a_ledger_behind_the_checkpoint(flow: Flow) -> None:
    """As after the database was restored from a backup, rows and ledger together."""
    flow.send(100)
    flow.run()
    flow.send(100)
    flow.run()
    flow.execute("DELETE FROM {table} WHERE _offset >= 20")
    flow.execute(f"UPDATE tallygate.positions SET next_offset = 20 WHERE pipeline = '{flow.name}'")
    notes = flow.run()
    assert any("set aside" in note for note in notes)
    flow.check()


def test_the_same_pipeline_started_twice(flow: Flow) -> None:
    """The newer run fences the older one, which stops and names it; nothing is there twice."""
    flow.send(50)
    failure = flow.run_twice_at_once()
    assert isinstance(failure, FencedError)
    assert "run 2 took over on" in str(failure)
    flow.check()


def test_the_same_pipeline_started_twice_on_one_checkpoint(flow: Flow) -> None:
    """The newer run waits until the older one has found out and let go of it."""
    flow.send(50)
    failure = flow.run_twice_at_once(apart=False)
    assert isinstance(failure, FencedError)
    flow.check()
    assert not (flow.folder / "checkpoint.lock").exists()


def test_a_checkpoint_that_another_process_has_is_refused_with_its_pid(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CheckpointLock.take, "__defaults__", (1.0,))
    flow.send(50)
    with (flow.folder / "checkpoint.lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        other.write("pid 7 on this machine, run 1 of 'another'")
        other.flush()
        with pytest.raises(
            MachineError, match="in use by pid 7 on this machine, run 1 of 'another'"
        ):
            flow.run()
    flow.run()
    flow.check()


def test_retention_overtook_the_reader(flow: Flow) -> None:
    flow.send(30, partition=1)
    flow.run()
    flow.send(30, partition=1)
    flow.retire(1, 45)
    with pytest.raises(LostRangeError, match=r"/1 \[30, 45\) \(15 records\).*--accept-loss"):
        flow.run()
    flow.run(accept_loss=True)
    assert flow.rows() == [*range(30), *range(45, 60)]
    lost = flow.rows(
        "SELECT partition, from_offset, until_offset FROM tallygate.lost_ranges "
        f"WHERE pipeline = '{flow.name}'"
    )
    assert lost == [(1, 30, 45)]


def test_retention_overtakes_a_batch_that_is_planned(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever reads the planned ranges finds that they are gone; the pipeline says what and how
    to go on, as it does when it starts."""
    flow.send(30, partition=1)
    flow.run()
    flow.send(30, partition=1)
    _before_fetching(monkeypatch, lambda: flow.retire(1, 45))
    with pytest.raises(LostRangeError, match=r"/1 \[30, 45\) \(15 records\).*--accept-loss"):
        flow.run()
    flow.run(accept_loss=True)
    assert flow.rows() == [*range(30), *range(45, 60)]


def _before_fetching(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    """Do something between the planning of a batch and its reading, once."""
    left = [act]

    def acted(
        ranges: Iterable[Range], connection: Connection, **given: Any
    ) -> Iterator[pa.RecordBatch]:
        if left:
            left.pop()()
        return fetch(ranges, connection, **given)

    monkeypatch.setattr("tallygate.targets.batch_input.fetch", acted)


def test_what_is_lost_while_a_run_starts_is_not_given_up(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the check and the taking over there are seconds."""
    flow.send(30, partition=1)
    flow.run()
    flow.send(30, partition=1)
    take_over = PostgresTarget.take_over

    def slow(target: PostgresTarget, shape: RowShape, checkpoint: str) -> Claim:
        claim = take_over(target, shape, checkpoint)
        flow.retire(1, 45)
        return claim

    monkeypatch.setattr(PostgresTarget, "take_over", slow)
    with pytest.raises(LostRangeError, match=r"/1 \[30, 45\) \(15 records\).*--accept-loss"):
        flow.run()
    assert flow.rows() == list(range(30))


def test_dead_letters_of_the_past_do_not_count_for_a_batch(flow: Flow) -> None:
    target = f"{flow.name}-out"
    flow.topics.create(target)
    flow.send_text(["not JSON"] * 20)
    flow.run(sink=KafkaSink(target))
    flow.send(50)
    flow.run(sink=KafkaSink(target), dead_letters={"share": 0.1})
    flow.send_text(["not JSON"] * 20)
    with pytest.raises(InputError, match="20 of 20 records of a batch are dead letters"):
        flow.run(sink=KafkaSink(target), dead_letters={"share": 0.1})


def test_partitions_added_between_two_runs(flow: Flow) -> None:
    flow.send(30)
    flow.run()
    flow.topics.alter(flow.name, partitions=5)
    flow.send(100, partition=4)
    flow.send(10, partition=3)
    flow.run()
    flow.check()


def test_partitions_added_while_running(flow: Flow) -> None:
    """The run finds them by itself, and reads them from their beginning."""
    flow.send(30)
    seen: set[int] = set()

    def grow(progress: Progress) -> None:
        if not seen:
            flow.topics.alter(flow.name, partitions=5)
            flow.send(50, partition=4)
            flow.send(10, partition=3)
        seen.update(partition for _, partition in progress.positions)
        if sum(progress.positions.values()) == 90:
            request_stop(flow.name, flow.settings)

    flow.pipeline(source=Kafka(flow.name, schema=SCHEMA)).run(
        settings=flow.settings, spark=flow.spark, on_progress=grow
    )
    assert seen == set(range(5))
    flow.check()


def test_a_table_that_was_altered_is_refused(flow: Flow) -> None:
    flow.send(30)
    flow.run()
    flow.execute("ALTER TABLE {table} DROP COLUMN account")
    flow.execute("ALTER TABLE {table} ALTER id TYPE text")
    with pytest.raises(TargetError) as caught:
        flow.run()
    assert "'id' is text there and bigint here (bigint)" in str(caught.value)
    assert "it has no column 'account' (text)" in str(caught.value)


def test_a_table_that_was_dropped_is_not_gone_on_with_unless_it_is_accepted(flow: Flow) -> None:
    flow.send(30)
    flow.run()
    flow.execute("DROP TABLE {table}")
    flow.send(10)
    with pytest.raises(LedgerError, match="dropped and made again.*--accept-new-target"):
        flow.run()
    assert flow.rows() == []
    notes = flow.run(accept_new_target=True)
    assert "what came before is in another target, and the ledger keeps that" in notes
    assert flow.rows() == list(range(30, 40))
    found = audited(flow)
    assert (found.verdict, found.rows) == (Verdict.VALID, 10), found.unknown
    assert found.lost == 30
    flow.run()


def test_a_table_of_another_name_is_not_gone_on_with(flow: Flow) -> None:
    flow.send(30)
    flow.run()
    with pytest.raises(LedgerError, match="of another table .*elsewhere"):
        flow.run(sink=Postgres(f"{flow.name}_elsewhere"))
    flow.execute("ALTER TABLE {table} RENAME TO renamed_away")
    with pytest.raises(LedgerError, match="dropped and made again"):
        flow.run()
    flow.execute("DROP TABLE {table}")
    flow.execute('ALTER TABLE public.renamed_away RENAME TO "' + flow.name + '"')
    flow.send(10)
    flow.run()
    flow.check()


def test_another_topic_is_refused_and_can_be_accepted(flow: Flow) -> None:
    first, second = (f"{flow.name}-{which}" for which in ("first", "second"))
    for topic in (first, second):
        flow.topics.create(topic, partitions=1)
    flow.send(30)
    flow.run(sink=KafkaSink(first))
    flow.send(10)
    with pytest.raises(LedgerError, match=f"of another topic {second}.*--accept-new-target"):
        flow.run(sink=KafkaSink(second))
    flow.run(sink=KafkaSink(second), accept_new_target=True)
    assert len(records_in(second, flow.stack.cluster.connection)) == 10
    found = audited(flow, sink=KafkaSink(second))
    assert (found.verdict, found.rows) == (Verdict.VALID, 10)


def test_a_table_dropped_in_mid_run(flow: Flow) -> None:
    flow.send(50)

    def drop(progress: Progress) -> None:
        if progress.batch == 0:
            flow.execute("DROP TABLE {table}")
            flow.send(20)

    with pytest.raises(
        TargetError, match="cannot write to .* any more: relation .* does not exist"
    ):
        _stop_after(flow, drop)


def test_a_table_made_again_in_mid_run_is_not_written_on_unless_it_is_accepted(flow: Flow) -> None:
    """The run says at once what a start would; what comes next counts, and is in the table."""
    flow.send(30)

    def make_again(progress: Progress) -> None:
        if progress.batch == 0:
            flow.execute("CREATE TABLE public.again (LIKE {table}); DROP TABLE {table}")
            flow.execute('ALTER TABLE public.again RENAME TO "' + flow.name + '"')
            flow.send(10)

    with pytest.raises(LedgerError, match="dropped and made again.*--accept-new-target"):
        _stop_after(flow, make_again)
    assert flow.rows() == []
    flow.run(accept_new_target=True)
    assert flow.rows() == list(range(30, 40))
    found = audited(flow)
    assert (found.verdict, found.rows, found.lost) == (Verdict.VALID, 10, 30), found.unknown


def _stop_after(flow: Flow, on_progress: Callable[[Progress], None]) -> None:
    flow.pipeline().run(settings=flow.settings, spark=flow.spark, on_progress=on_progress)


def test_postgres_restarted_in_mid_run(flow: Flow) -> None:
    flow.send(300)
    restarted: list[int] = []

    def restart(progress: Progress) -> None:
        if not restarted:
            flow.stack.postgres.process.kill()
            flow.stack.postgres.start()
            restarted.append(progress.batch)

    flow.pipeline().run(
        until="available", settings=flow.settings, spark=flow.spark, on_progress=restart
    )
    assert restarted == [0]
    flow.check()


@pytest.mark.parametrize("point", ["batch-started@0", "batch-committed@0", "batch-committed@1"])
def test_postgres_that_is_away_around_a_commit(
    flow: Flow, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """The rows are there or not written yet; what is asked and remembered then has to wait too."""
    flow.send(300)
    server, started = flow.stack.postgres, threading.Event()

    def start_again() -> None:
        server.start()
        started.set()

    def go_away() -> None:
        monkeypatch.setattr(failpoints, "ARMED", None)
        server.process.kill()
        threading.Timer(1, start_again).start()

    monkeypatch.setattr(failpoints, "ARMED", point)
    monkeypatch.setattr(failpoints, "_die", go_away)
    try:
        flow.run()
    finally:
        assert started.wait(60)
    flow.check()


@pytest.mark.parametrize("lost", ["request", "answer"])
@pytest.mark.parametrize("driver_rows", [20_000, 0], ids=["driver", "partition"])
def test_a_connection_cut_during_commit(
    flow: Flow, proxy: DatabaseProxy, lost: CommitFault, driver_rows: int
) -> None:
    """Whether the commit arrived is not known; the ledger is asked, and nothing comes twice."""
    flow.send(300)

    def arm(progress: Progress) -> None:
        if progress.batch == 0:
            proxy.armed = lost

    sink = Postgres(flow.name, dsn=proxy.dsn, driver_rows=driver_rows)
    flow.pipeline(sink=sink).run(
        until="available", settings=flow.settings, spark=flow.spark, on_progress=arm
    )
    assert proxy.cut == 1
    flow.check()
