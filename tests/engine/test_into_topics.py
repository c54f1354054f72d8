"""Pipelines into topics: by partition and in lanes, on the same cluster and on another."""

import json
import shutil

import pytest
from pyspark.sql import DataFrame

from fixtures.audits import audited
from fixtures.flows import Flow, windows_of_20
from fixtures.sending import sender
from tallygate import Kafka, KafkaSink, Stack, Topics
from tallygate.auditing.verdict import Verdict
from tallygate.errors import LedgerError, LostRangeError, QueryError, TargetError
from tallygate.kafka.dead_letters import list_dead_letters
from tallygate.kafka.read import records_in
from tallygate.lab.drills.workload import ids_in

LANES = "SELECT /*+ REPARTITION(2) */ id, account FROM source"


@pytest.mark.parametrize("plan", ["narrow", "shuffled"])
def test_a_kafka_sink_on_the_same_cluster(flow: Flow, plan: str) -> None:
    target = f"{flow.name}-out"
    flow.topics.create(target, partitions=2)
    hint = "" if plan == "narrow" else "/*+ REPARTITION(2) */"
    transform = f"SELECT {hint} id, account FROM source WHERE id % 2 = 0"
    for _ in range(2):
        flow.send(120)
        flow.run(sink=KafkaSink(target, key="account"), transform=transform)
    records = records_in(target, flow.stack.cluster.connection)
    found = sorted(json.loads(record.value or b"")["id"] for record in records)
    assert found == list(range(0, 240, 2))
    assert {record.key for record in records} == {f"a{n}".encode() for n in range(5)}
    traced = {name for record in records for name, _ in record.headers}
    assert traced == ({"tallygate.source"} if plan == "narrow" else set())


def test_the_lag_of_a_table_is_not_the_ledger_of_a_topic(flow: Flow) -> None:
    """A pipeline into a table shows its lag as the group that is the ledger of one into a topic."""
    flow.send(100)
    flow.run()
    target = f"{flow.name}.out"
    flow.topics.create(target, partitions=2)
    flow.run(sink=KafkaSink(target), checkpoint=str(flow.folder / "other"))
    found = records_in(target, flow.stack.cluster.connection)
    assert len(found) == 100, "from the beginning, not from where the table is"


def test_a_topics_pipeline_cannot_change_its_way(flow: Flow) -> None:
    """By partition and in lanes the ledger is kept differently; neither can read the other's."""
    flow.topics.create(f"{flow.name}-out")
    flow.send(20)
    sink = KafkaSink(f"{flow.name}-out")
    flow.run(sink=sink)
    flow.send(20)
    with pytest.raises(LedgerError, match="wrote by partition so far and would write in lanes"):
        flow.run(sink=sink, transform=LANES)


def test_rows_of_sums_alone_need_their_group_as_the_key(flow: Flow) -> None:
    """A sum computed again may differ in its last digit, and go to another lane."""
    target = f"{flow.name}-out"
    flow.topics.create(target)
    flow.send(100)

    def counts(source: DataFrame) -> DataFrame:
        return windows_of_20(source).select("count")

    with pytest.raises(TargetError, match="'count'.*give the group's column as sink.key"):
        flow.run(sink=KafkaSink(target), transform=counts)
    for _ in range(2):
        flow.run(sink=KafkaSink(target, key="start"), transform=windows_of_20)
        flow.send(50)
    found = records_in(target, flow.stack.cluster.connection)
    assert len({each.key for each in found}) == len(found) > 0
    assert {json.loads(each.value or b"")["count"] for each in found} == {20}


@pytest.mark.parametrize("hint", ["", "/*+ REPARTITION(2) */"], ids=["narrow", "lanes"])
def test_dead_letters_of_a_batch_that_failed_hide_none_of_the_next_try(
    flow: Flow, hint: str
) -> None:
    """By the first schema record 30 is unfit, by the second one record 20 is."""
    target, connection = f"{flow.name}-out", flow.stack.cluster.connection
    flow.topics.create(target)
    odd = {20: {"second": "text"}, 30: {"first": "text"}}
    with sender(connection) as producer:
        for number in range(40):
            row = {"id": number, **odd.get(number, {})}
            producer.send(flow.name, json.dumps(row), partition=0)
    fields = {"sink": KafkaSink(target), "transform": f"SELECT {hint} id FROM source"}
    first = Kafka(flow.name, schema="id long, first long")
    failing = f"SELECT {hint} id, 1 / (id - 35) AS x FROM source"
    with pytest.raises(QueryError, match="Division by zero"):
        flow.run(**{**fields, "source": first, "transform": failing})
    second = Kafka(flow.name, schema="id long, second long")
    flow.run(**fields, source=second)
    assert sorted(ids_in(target, connection)) == [each for each in range(40) if each != 20]
    (letter,) = list_dead_letters(f"{flow.name}.dead-letters", connection)
    assert letter.coordinates == f"{flow.name}/0@20"
    found = audited(flow, **fields, source=second)
    assert (found.verdict, found.rows, found.letters) == (Verdict.VALID, 39, 1), found


@pytest.mark.parametrize("transform", [None, LANES], ids=["narrow", "lanes"])
def test_retention_overtook_a_kafka_pipeline(flow: Flow, transform: str | None) -> None:
    target = f"{flow.name}-out"
    flow.topics.create(target)
    flow.send(30, partition=1)
    flow.run(sink=KafkaSink(target), transform=transform)
    flow.send(30, partition=1)
    flow.retire(1, 45)
    with pytest.raises(LostRangeError, match=r"/1 \[30, 45\) \(15 records\)"):
        flow.run(sink=KafkaSink(target), transform=transform)
    flow.run(sink=KafkaSink(target), transform=transform, accept_loss=True)
    assert len(records_in(target, flow.stack.cluster.connection)) == 45


def test_a_kafka_sink_on_another_cluster(flow: Flow, stack: Stack) -> None:
    """The offsets are kept there, for a stand-in topic; a lost checkpoint goes on from them."""
    away = Topics(stack.cluster.connection, flow.settings)
    target = f"{flow.name}-away"
    away.create(target, partitions=2)
    sink = KafkaSink(target, bootstrap_servers=stack.bootstrap_servers)
    for _ in range(2):
        flow.send(120)
        flow.run(sink=sink)
        shutil.rmtree(flow.checkpoint)
    assert sorted(ids_in(target, stack.cluster.connection)) == list(range(240))
