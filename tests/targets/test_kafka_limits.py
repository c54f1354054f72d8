"""A topic takes neither every size nor, if it is compacted, records without a key: what it refuses
is set aside, and the rest goes on."""

import json
import random

import pytest
from confluent_kafka.admin import OffsetSpec

from fixtures.audits import audited
from fixtures.flows import Flow
from tallygate import Kafka, KafkaSink, Producer
from tallygate.auditing.verdict import Verdict
from tallygate.consumer.replay import replay
from tallygate.engine.progress import Progress
from tallygate.errors import TargetError, TopicError
from tallygate.kafka.dead_letters import list_dead_letters
from tallygate.kafka.read import is_settled, list_offsets, records_in
from tallygate.kafka.record_size import batch_size
from tallygate.lab.drills.workload import ids_in
from tallygate.targets.kafka.target import KafkaTarget
from tallygate.waiting import wait_until

LARGEST = 2000
SQL = "SELECT id, account FROM source WHERE id >= 0"
LANES = "SELECT /*+ REPARTITION(2) */ id, account FROM source"


@pytest.fixture
def target(flow: Flow) -> str:
    name = f"{flow.name}-out"
    flow.topics.create(name, configs={"max.message.bytes": str(LARGEST)})
    return name


def _send(flow: Flow, value: str) -> None:
    with Producer(flow.stack.cluster.connection) as producer:
        producer.send(flow.name, value, partition=0)


def _ids(flow: Flow, topic: str) -> list[int]:
    return sorted(ids_in(topic, flow.stack.cluster.connection))


def _causes(flow: Flow) -> list[str]:
    letters = list_dead_letters(f"{flow.name}.dead-letters", flow.stack.cluster.connection)
    return [letter.cause for letter in letters]


def _sized(flow: Flow, number: int, size: int) -> str:
    """A record that is just so large in the target, with the header that it has there."""
    headers = [("tallygate.source", f"{flow.name}/0@{number}")]
    for length in range(size):
        value = f'{{"id":{number},"account":"{"x" * length}"}}'
        if batch_size(value.encode(), None, headers) == size:
            return value
    raise AssertionError(size)


@pytest.mark.parametrize("transform", [None, SQL])
def test_a_record_that_is_too_large_by_one_byte_is_set_aside(
    flow: Flow, target: str, transform: str | None
) -> None:
    flow.send(10, partition=0)
    _send(flow, _sized(flow, 10, LARGEST))
    _send(flow, _sized(flow, 11, LARGEST + 1))
    fields = {"sink": KafkaSink(target), "transform": transform}
    flow.run(**fields)
    assert _ids(flow, target) == list(range(11))
    assert _causes(flow) == ["the record is of 2001 bytes, and the topic takes 2000"]
    found = audited(flow, **fields)
    assert (found.verdict, found.records, found.rows, found.letters) == (Verdict.VALID, 12, 11, 1)


def test_without_the_rules_of_the_topic_one_record_stops_all_the_others(
    flow: Flow, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin."""
    monkeypatch.setattr(KafkaTarget, "_refused", lambda _, refusal: refusal)
    flow.send(10, partition=0)
    _send(flow, _sized(flow, 10, LARGEST + 1))
    with pytest.raises(TargetError, match=f"topic '{target}' refuses a record.*max.message.bytes"):
        flow.run(sink=KafkaSink(target))
    assert _ids(flow, target) == []


def test_at_most_once_too(flow: Flow, target: str) -> None:
    """Where a batch is not tried again."""
    flow.send(10, partition=0)
    _send(flow, _sized(flow, 10, LARGEST + 1))
    flow.send(5, partition=0)
    flow.run(sink=KafkaSink(target), delivery="at-most-once")
    assert _ids(flow, target) == sorted([*range(10), *range(10, 15)])
    assert len(_causes(flow)) == 1


def test_a_rule_that_was_changed_holds_from_the_next_batch_on(flow: Flow, target: str) -> None:
    large = [_sized(flow, number, LARGEST + 1) for number in (0, 1)]
    for value in large:
        _send(flow, value)

    def allow(progress: Progress) -> None:
        if progress.batch == 0:
            flow.topics.alter(target, configs={"max.message.bytes": "100000"})
            wait_until(
                lambda: flow.topics.effective_configs(target)["max.message.bytes"] == "100000",
                10,
                "the rule has not changed",
            )

    flow.pipeline(
        source=Kafka(flow.name, format="bytes", max_records=1), sink=KafkaSink(target)
    ).run(until="available", settings=flow.settings, spark=flow.spark, on_progress=allow)
    assert (_ids(flow, target), len(_causes(flow))) == ([1], 1)


def test_of_a_record_that_gives_several_rows_those_are_written_that_can_be(
    flow: Flow, target: str
) -> None:
    text = "x" * LARGEST
    _send(flow, json.dumps({"id": 1, "account": f"small {text} {text} last"}))
    sql = "SELECT id, explode(split(account, ' ')) AS word FROM source"
    fields = {"sink": KafkaSink(target), "transform": sql}
    flow.run(**fields)
    assert (_ids(flow, target), len(_causes(flow))) == ([1, 1], 1)
    assert audited(flow, **fields).verdict is Verdict.VALID


def test_a_letter_that_is_a_row_is_not_put_back_for_the_record(flow: Flow, target: str) -> None:
    connection, letters = flow.stack.cluster.connection, f"{flow.name}.dead-letters"
    _send(flow, _sized(flow, 0, LARGEST + 1))
    flow.run(sink=KafkaSink(target), transform=SQL)
    with pytest.raises(TopicError, match="the row that the pipeline made of it"):
        replay(letters, connection, into=[flow.name])


def test_a_letter_that_is_the_record_is_put_back_with_its_headers(flow: Flow, target: str) -> None:
    connection, letters = flow.stack.cluster.connection, f"{flow.name}.dead-letters"
    with Producer(connection) as producer:
        producer.send(flow.name, _sized(flow, 0, LARGEST), partition=0, headers=(("k", b"v"),))
    flow.run(sink=KafkaSink(target))
    assert replay(letters, connection, into=[flow.name]).count == 1
    sent = records_in(flow.name, connection)
    assert [record.headers for record in sent] == [(("k", b"v"),)] * 2
    assert sent[0].value == sent[1].value


def test_letters_of_another_pipeline_excuse_nothing(flow: Flow, target: str) -> None:
    """Two pipelines with one topic for their letters: the audit of each sees its own."""
    other = f"{flow.name}-other"
    flow.topics.create(other)
    flow.send(10, partition=0)
    _send(flow, _sized(flow, 10, LARGEST + 1))
    shared = f"{flow.name}-letters"
    flow.run(sink=KafkaSink(target, dead_letters=shared))
    fields = {
        "name": other,
        "sink": KafkaSink(other, dead_letters=shared),
        "checkpoint": str(flow.folder / "other"),
    }
    flow.run(**fields)
    found = audited(flow, **fields)
    assert (found.verdict, found.rows, found.letters) == (Verdict.VALID, 11, 0)


@pytest.mark.system
def test_records_that_are_too_large_only_together_all_arrive(flow: Flow, target: str) -> None:
    for number in range(20):
        _send(flow, _sized(flow, number, LARGEST // 3))
    flow.run(sink=KafkaSink(target))
    assert (_ids(flow, target), _causes(flow)) == (list(range(20)), [])


def test_a_record_without_a_key_is_set_aside_if_the_topic_is_compacted(flow: Flow) -> None:
    target = f"{flow.name}-out"
    flow.topics.create(target, configs={"cleanup.policy": "compact"})
    flow.send(10)
    _send(flow, json.dumps({"id": 10, "account": "a"}))
    flow.run(sink=KafkaSink(target))
    assert _ids(flow, target) == list(range(10))
    assert _causes(flow) == ["the topic is compacted, and the record has no key"]


def test_a_row_that_is_of_no_one_record_stops_the_pipeline(flow: Flow, target: str) -> None:
    """To try again would never end, and a transaction that is left open holds up all readers."""
    flow.send(10)
    _send(flow, json.dumps({"id": 10, "account": random.Random(7).randbytes(3000).hex()}))
    with pytest.raises(TargetError, match="takes 2000.*cannot be set aside"):
        flow.run(sink=KafkaSink(target), transform=LANES)
    connection = flow.stack.cluster.connection
    ends = list_offsets([(target, 0)], OffsetSpec.latest(), connection)  # type: ignore[no-untyped-call]
    wait_until(lambda: is_settled(ends, connection), 10, "a transaction is open")
