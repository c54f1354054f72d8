"""Records that are gone before they were read, where giving them up is not as simple."""

import shutil
from typing import Any

import pytest

from fixtures.audits import audited
from fixtures.flows import SCHEMA, Flow
from tallygate import Delta, Kafka, Parquet, Postgres
from tallygate.engine.batch import BatchEngine
from tallygate.engine.rebuild import rebuild
from tallygate.errors import LostRangeError, TargetError
from tallygate.spec import Console

COUNTS = "SELECT account, count(*) AS payments FROM source GROUP BY account"


def test_a_pipeline_with_state_cannot_go_on_past_a_loss(flow: Flow) -> None:
    """Its checkpoint's next batch begins with what is gone. So it is refused before the ledger
    moves, however it is started, and a rebuild counts what is left."""
    given = {"transform": COUNTS, "sink": Postgres(flow.name, mode="upsert", key="account")}
    flow.send(30, partition=1)
    flow.run(**given)
    flow.send(30, partition=1)
    flow.retire(1, 45)
    for accepted in (False, True):
        with pytest.raises(LostRangeError, match=r"\[30, 45\) .*Restore them, or rebuild") as said:
            flow.run(**given, accept_loss=accepted)
        assert "--accept-loss" not in str(said.value)
    where = f"FROM tallygate.positions WHERE pipeline = '{flow.name}' AND partition = 1"
    assert flow.rows(f"SELECT next_offset {where}") == [30]
    rebuild(flow.pipeline(**given), settings=flow.settings, spark=flow.spark)
    assert flow.rows("SELECT sum(payments)::int FROM {table}") == [15]
    flow.send(10)
    flow.run(**given)
    assert flow.rows("SELECT sum(payments)::int FROM {table}") == [25]


def _other_topic(flow: Flow) -> str:
    """An older topic, whose first records are gone."""
    mine, other = flow.name, f"{flow.name}-too"
    flow.topics.create(other)
    flow.name = other
    flow.send(40, partition=0)
    flow.retire(0, 25)
    flow.name = mine
    return other


def test_a_topic_that_is_added_begins_with_what_it_still_has(flow: Flow) -> None:
    flow.send(30)
    flow.run()
    other = _other_topic(flow)
    for _ in range(2):
        flow.send(10)
        flow.run(source=Kafka([flow.name, other], schema=SCHEMA))
    assert flow.rows() == [*range(30), *range(30 + 25, 30 + 40 + 20)]


def test_a_topic_that_is_added_to_a_pipeline_with_state(flow: Flow) -> None:
    given = {"transform": COUNTS, "sink": Postgres(flow.name, mode="upsert", key="account")}
    flow.send(30)
    flow.run(**given)
    both = Kafka([flow.name, _other_topic(flow)], schema=SCHEMA)
    with pytest.raises(LostRangeError, match=r"-too/0 is new .* before 25.* rebuild"):
        flow.run(**given, source=both)


def test_a_partition_that_is_added_and_loses_its_first_records(flow: Flow) -> None:
    flow.send(30)
    flow.run()
    flow.topics.alter(flow.name, partitions=4)
    flow.send(20, partition=3)
    flow.retire(3, 5)
    with pytest.raises(LostRangeError, match=r"/3 \[0, 5\) \(5 records\).*--accept-loss"):
        flow.run()
    flow.run(accept_loss=True)
    assert flow.rows() == [each for each in range(50) if each not in range(30, 35)]
    assert audited(flow).lost == 5


TARGETS = [
    "postgres",
    pytest.param("parquet", marks=pytest.mark.system),
    pytest.param("delta", marks=pytest.mark.system),
]


@pytest.mark.parametrize("kind", TARGETS)
def test_a_batch_that_is_planned_is_gone_on_without_what_it_lost(
    flow: Flow, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Spark would read all of it again, so a new checkpoint begins after the loss."""
    folder = str(flow.folder / "rows")
    sink = {"postgres": Postgres(flow.name), "parquet": Parquet(folder), "delta": Delta(folder)}
    given = {"sink": sink[kind], "transform": "SELECT id, account FROM source"}
    flow.send(30, partition=1)
    flow.run(**given)
    flow.send(30, partition=1)
    with monkeypatch.context() as patch:
        patch.setattr(BatchEngine, "_write", _stopped)
        with pytest.raises(TargetError, match="stopped"):
            flow.run(**given)
    flow.retire(1, 45)
    with pytest.raises(LostRangeError, match=r"/1 \[30, 45\) \(15 records\).*--accept-loss"):
        flow.run(**given)
    assert any("set aside" in note for note in flow.run(**given, accept_loss=True))
    held = flow.rows() if kind == "postgres" else _rows_in(flow, kind, folder)
    assert held == [*range(30), *range(45, 60)]
    assert audited(flow, **given).lost == 15


def _stopped(*_: object) -> None:
    raise TargetError("stopped")


def _rows_in(flow: Flow, kind: str, folder: str) -> list[int]:
    return sorted(row.id for row in flow.spark.read.format(kind).load(folder).collect())


def test_a_target_without_a_ledger_says_that_its_checkpoint_alone_is_in_the_way(
    flow: Flow,
) -> None:
    """There is nothing that could keep what is lost, whatever is accepted."""
    given = {"sink": Console(), "delivery": "at-least-once"}
    flow.send(30, partition=1)
    flow.run(**given)
    flow.send(30, partition=1)
    flow.retire(1, 45)
    for accepted in (False, True):
        with pytest.raises(
            LostRangeError, match=r"/1 \[30, 45\).*remove the checkpoint /\S+: read"
        ):
            flow.run(**given, accept_loss=accepted)
    shutil.rmtree(flow.checkpoint)
    flow.run(**given)


def test_a_target_without_a_ledger_says_so_when_retention_overtakes_it(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"sink": Console(), "delivery": "at-least-once"}
    flow.send(30, partition=1)
    flow.run(**given)
    flow.send(30, partition=1)
    write = BatchEngine._write

    def retire(*given: Any) -> Any:
        flow.retire(1, 45)
        return write(*given)

    monkeypatch.setattr(BatchEngine, "_write", retire)
    with pytest.raises(LostRangeError, match=r"/1 \[30, 45\).*remove the checkpoint"):
        flow.run(**given)
