"""Records that are gone before they were read, where giving them up is not as simple."""

import pytest

from fixtures.audits import audited
from fixtures.flows import SCHEMA, Flow
from tallygate import Kafka, Postgres
from tallygate.engine.rebuild import rebuild
from tallygate.errors import LostRangeError

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
