"""The audit of a topic finds what was planted into it, and nothing in one untouched."""

from typing import Any

import pytest
from confluent_kafka import TopicPartition
from pyspark.sql import SparkSession

from fixtures.audits import abort, amounts, audited, audited_meanwhile, counts
from fixtures.flows import Flow
from fixtures.retention import FOREVER, retire
from tallygate import KafkaSink, Producer
from tallygate.auditing.topic_checks import disordered, two_readings
from tallygate.auditing.verdict import Verdict
from tallygate.core.record import Record
from tallygate.kafka import clients
from tallygate.kafka.read import records_in
from tallygate.targets.kafka.ledger import Names, committed, open_producer

LANES = "SELECT /*+ REPARTITION(2) */ id, account FROM source"


class Topic:
    """The topic that a flow's pipeline writes."""

    def __init__(self, flow: Flow, **configs: str) -> None:
        self.flow, self.name = flow, f"{flow.name}-out"
        self.connection = flow.stack.cluster.connection
        flow.topics.create(self.name, partitions=2, configs={**FOREVER, **configs})

    def records(self) -> list[Record]:
        """All of them, the first one of the first partition first."""
        found = records_in(self.name, self.connection)
        return sorted(found, key=lambda record: (record.partition, record.offset))

    def add(self, record: Record, value: bytes | None = None, headers: Any = None) -> None:
        """Add a record like another one."""
        producer = open_producer(self.connection, "tests/plant")
        producer.begin_transaction()
        given = list(record.headers) if headers is None else headers
        producer.produce(
            self.name, value or record.value, record.key, partition=record.partition, headers=given
        )
        producer.commit_transaction()

    def remove_first(self) -> None:
        first = self.records()[0]
        retire(self.connection, self.name, first.partition, first.offset + 1)

    def move_ledger(self, by: int) -> None:
        group = Names(self.flow.name).group
        held = committed(self.connection, group, stand_in=False)
        consumer = clients.consumer(self.connection, group_id=group)
        (partition,) = [partition for partition in held if partition[1] == 0]
        at, mark = held[partition]
        consumer.commit(
            offsets=[TopicPartition(*partition, at + by, mark.text())], asynchronous=False
        )
        consumer.close()


def test_what_was_planted_is_found(flow: Flow) -> None:
    """A topic only grows, so each finding comes on top of those before."""
    topic = Topic(flow)
    sink = KafkaSink(topic.name, key="account")
    fields = {"sink": sink, "transform": "SELECT * FROM source WHERE id <> 7"}
    flow.send_text(["bad"])
    flow.send(90, partition=0)
    flow.run(**fields)
    whole = audited(flow, **fields)
    assert (whole.verdict, whole.records, whole.rows) == (Verdict.VALID, 91, 89)
    assert (whole.filtered, whole.letters) == (1, 1)
    topic.move_ledger(-1)
    assert counts(audited(flow, **fields)) == {"misplaced": 1}
    topic.move_ledger(6)
    assert counts(audited(flow, **fields)) == {"overclaimed": 5}
    topic.move_ledger(-5)
    records = topic.records()
    again = records[5]
    abort(
        topic.connection,
        topic.name,
        (again.value or b"").decode(),
        key=again.key,
        partition=again.partition,
        headers=list(again.headers),
    )
    topic.add(records[3])
    nowhere = f"{flow.name}/{2**40}@1".encode()
    for headers in ([], [("other", b"1")], [("tallygate.source", nowhere)]):
        topic.add(records[4], b"{}", headers)
    found = counts(audited(flow, **fields))
    assert found == {"duplicate": 1, "unexpected": 3}, "what was aborted is not there"
    topic.add(again)
    topic.remove_first()
    found = counts(audited(flow, **fields))
    assert found == {"missing": 1, "duplicate": 2, "unexpected": 3, "aborted": 1}
    topic.add(records[0], b"{}")
    found = counts(audited(flow, **fields))
    assert found.pop("disordered") == 1
    assert found == {"different": 1, "duplicate": 2, "unexpected": 3, "aborted": 1}


@pytest.mark.system
def test_records_that_pass_as_they_are_and_an_aborted_one_of_the_source(flow: Flow) -> None:
    topic = Topic(flow)
    fields = {"sink": KafkaSink(topic.name)}
    with Producer(topic.connection) as producer:
        producer.send(flow.name, "bad", partition=1)  # a partition in which nothing is fit
    abort(topic.connection, flow.name, '{"id": 1, "account": "x"}', partition=0)
    flow.send(30, partition=0)
    flow.run(**fields)
    whole = audited(flow, **fields)
    assert (whole.verdict, whole.records, whole.rows) == (Verdict.VALID, 31, 30)
    (first,) = [each for each in topic.records() if each.value == b'{"id": 0, "account": "a0"}']
    partition, _, offset = (first.headers[0][1] or b"").decode().rpartition("@")
    header = ("tallygate.source", f"{partition}@{int(offset) - 2}".encode())
    topic.add(first, b'{"id": 1, "account": "x"}', [header])
    found = counts(audited(flow, **fields))
    assert found.pop("aborted") == 1
    assert set(found) <= {"disordered"}


def test_rows_in_lanes_are_compared_by_what_they_hold(flow: Flow) -> None:
    topic = Topic(flow)
    fields = {"sink": KafkaSink(topic.name, key="account"), "transform": LANES}
    flow.send(60)
    flow.run(**fields)
    whole = audited(flow, **fields)
    assert (whole.verdict, whole.records, whole.rows) == (Verdict.VALID, 60, 60)
    records = topic.records()
    topic.add(records[3])
    topic.add(records[4], b"{}")
    topic.remove_first()
    assert counts(audited(flow, **fields)) == {"duplicate": 1, "unexpected": 1, "missing": 1}


def test_what_retention_removed_from_the_topic_is_unknown(flow: Flow) -> None:
    topic = Topic(flow, **{"retention.ms": "604800000"})
    fields = {"sink": KafkaSink(topic.name)}
    flow.send(30)
    flow.run(**fields)
    topic.remove_first()
    found = audited(flow, **fields)
    assert (found.verdict, found.rows) == (Verdict.UNKNOWN, 29)
    assert found.unknown == ("1 missing: the topic begins at later offsets, 1 were removed",)


@pytest.mark.system
@pytest.mark.parametrize("coordinates", [True, False])
def test_a_compacted_topic_is_compared_by_the_last_value_of_each_key(
    flow: Flow, coordinates: bool
) -> None:
    """Account a0 then comes from a second partition, and which record came last is not known."""
    topic = Topic(flow, **{"cleanup.policy": "compact"})
    sink = KafkaSink(topic.name, key="account", coordinates=coordinates)
    fields = {"sink": sink, "transform": "SELECT * FROM source"}
    flow.send(60, partition=0)
    flow.run(**fields)
    assert audited(flow, **fields).verdict is Verdict.VALID
    flow.send(1, partition=1)
    flow.run(**fields)
    tied = audited(flow, **fields)
    assert (tied.verdict, tied.anomalies) == (Verdict.UNKNOWN, ())
    assert "1 different: records of their keys are in several partitions" in tied.unknown[0]
    older = next(each for each in topic.records() if each.key == b"a1")
    topic.add(older)
    assert counts(audited(flow, **fields))["different"] == 1


@pytest.mark.system
def test_a_compacted_topic_of_lanes_has_a_value_that_is_one_of_its_key(flow: Flow) -> None:
    topic = Topic(flow, **{"cleanup.policy": "compact"})
    fields = {"sink": KafkaSink(topic.name, key="account"), "transform": LANES}
    flow.send(60)
    flow.run(**fields)
    assert audited(flow, **fields).verdict is Verdict.VALID
    topic.add(topic.records()[-1], b"{}")
    assert counts(audited(flow, **fields)) == {"different": 1}


@pytest.mark.system
def test_keys_that_were_removed_from_a_compacted_topic_are_not_missing(flow: Flow) -> None:
    """A cleaner is slow; that their last records are gone is what it leaves."""
    topic = Topic(flow, **{"cleanup.policy": "compact,delete"})
    removed = "SELECT account AS key, if(id < 5, 'there', NULL) AS value FROM source"
    fields = {"sink": KafkaSink(topic.name, format="value"), "transform": removed}
    flow.send(9, partition=0)
    flow.run(**fields)
    assert audited(flow, **fields).verdict is Verdict.VALID
    ends = {each.partition: each.offset + 1 for each in topic.records()}
    for partition, end in ends.items():
        retire(topic.connection, topic.name, partition, end)
    assert counts(audited(flow, **fields)) == {"missing": 1}, "the last value of a4 is one"


def test_letters_that_retention_removed_are_unknown(flow: Flow) -> None:
    topic = Topic(flow)
    fields = {"sink": KafkaSink(topic.name)}
    flow.send_text(["bad"])
    flow.send(10)
    flow.run(**fields)
    letters = f"{flow.name}.dead-letters"
    (letter,) = records_in(letters, topic.connection)
    retire(topic.connection, letters, letter.partition, letter.offset + 1)
    found = audited(flow, **fields)
    assert (found.verdict, found.anomalies) == (Verdict.UNKNOWN, ())
    assert found.unknown == (
        "1 undead: the topic of dead letters begins at later offsets, 1 were removed",
    )


@pytest.mark.system
def test_windows_in_a_topic_are_compared_but_for_the_digits_of_sums(flow: Flow) -> None:
    topic = Topic(flow)
    window = {
        "window": {"on": "at", "size": "7 minutes"},
        "aggregate": {"payments": "count(*)", "total": "sum(amount)"},
    }
    fields = {
        "source": amounts(flow),
        "transform": [{"watermark": {"at": "1 minute"}}, window],
        "sink": KafkaSink(topic.name),
    }
    flow.run(**fields)
    whole = audited(flow, **fields)
    assert (whole.verdict, whole.anomalies) == (Verdict.UNKNOWN, ())
    assert "rows may differ: sums of doubles depend on their order" in whole.unknown[0]
    topic.add(topic.records()[0], b"{}")
    assert counts(audited(flow, **fields)) == {"unexpected": 1}


@pytest.mark.system
def test_an_audit_of_a_running_pipeline_passes_over_what_is_being_written(flow: Flow) -> None:
    topic = Topic(flow)
    fields = {"sink": KafkaSink(topic.name)}
    flow.send(200)
    seen = audited_meanwhile(flow, **fields)
    assert seen == [(Verdict.VALID, 100), (Verdict.VALID, 200)]


def test_the_ledger_remembers_where_it_began_and_what_was_lost(flow: Flow) -> None:
    """Kafka keeps one text with an offset, so each commit must hand on what the one before knew."""
    topic = Topic(flow)
    fields = {"sink": KafkaSink(topic.name)}
    flow.send(10, partition=1)
    flow.retire(1, 5)
    flow.run(**fields)
    flow.send(20, partition=1)
    flow.retire(1, 15)
    flow.run(accept_loss=True, **fields)
    flow.send(5, partition=1)
    flow.run(**fields)
    mark = committed(topic.connection, Names(flow.name).group, stand_in=False)[flow.name, 1][1]
    assert (mark.first, mark.lost) == (5, ((10, 15),))
    found = audited(flow, **fields)
    assert (found.verdict, found.lost, found.rows) == (Verdict.UNKNOWN, 5, 20)


ROW = (
    "key binary, value binary, _topic string, _partition int, _offset long, _at_partition int, "
    "_at_offset long"
)


def _rows(spark: SparkSession, *rows: tuple[str, int, int, int]) -> Any:
    """Rows by key, offset in the source, and where they are in the topic."""
    given = [
        (bytearray(key.encode()), bytearray(b"v%d" % offset), "t", 0, offset, partition, at)
        for key, offset, partition, at in rows
    ]
    return spark.createDataFrame(given, ROW)


def test_rows_of_a_key_that_changed_places_are_found(spark: SparkSession) -> None:
    right = [("a", 0, 0, 0), ("b", 1, 1, 0), ("a", 2, 0, 1), ("b", 3, 1, 1), ("a", 2, 0, 9)]
    assert disordered(_rows(spark, *right)) == []
    (wrong,) = disordered(_rows(spark, ("a", 2, 0, 0), ("a", 1, 0, 1), ("b", 0, 0, 2)))
    assert (wrong.kind, wrong.count) == ("disordered", 1)
    assert wrong.examples == ('{"_topic":"t","_partition":"0","_offset":"1"}',)


@pytest.mark.parametrize(
    ("second", "kind"), [(("a", 8, 0, 1), "inconsistent"), (("a", 1, 1, 0), "skipped")]
)
def test_two_readings_that_do_not_agree_are_found(
    spark: SparkSession, second: tuple[str, int, int, int], kind: str
) -> None:
    first = ("a", 0, 0, 0)
    committed_ones = _rows(spark, first, ("a", 1, 0, 1))
    assert two_readings(committed_ones, _rows(spark, first, ("a", 1, 0, 1), ("z", 5, 0, 2))) == []
    (wrong,) = two_readings(committed_ones, _rows(spark, first, second))
    assert (wrong.kind, wrong.count) == (kind, 1)
