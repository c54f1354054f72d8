"""A record's headers go with it from topic to topic."""

import pytest

from fixtures.audits import audited
from fixtures.flows import Flow
from fixtures.raw_records import send_raw_record
from tallygate import Kafka, KafkaSink, Producer
from tallygate.auditing.verdict import Verdict
from tallygate.consumer.replay import replay
from tallygate.core.record import MISNAMED_HEADER, Headers
from tallygate.errors import TargetError, TopicError
from tallygate.kafka.dead_letters import list_dead_letters
from tallygate.kafka.read import records_in
from tallygate.targets.kafka.letters import LetterCount

OWN: Headers = (("kind", b"payment"), ("kind", b"again"), ("none", None), ("\u00fc", b"\xff"))
OLDER = ("tallygate.source", b"somewhere/0@7")


@pytest.fixture
def target(flow: Flow) -> str:
    """Where records go that are in the source with headers, without, and with another's mark."""
    name = f"{flow.name}-out"
    flow.topics.create(name)
    with Producer(flow.stack.cluster.connection) as producer:
        for headers in (OWN, (), (*OWN, OLDER)):
            producer.send(flow.name, '{"id": 1}', partition=0, headers=headers)
    return name


def _headers(flow: Flow, topic: str) -> list[Headers]:
    return [record.headers for record in records_in(topic, flow.stack.cluster.connection)]


@pytest.mark.parametrize("fetches", [True, False])
def test_without_a_transform(
    flow: Flow, target: str, fetches: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read where they are written, or by Spark."""
    if not fetches:
        monkeypatch.setattr("tallygate.engine.pipeline.fetchable", lambda *_: False)
    fields = {"source": Kafka(flow.name, format="bytes"), "sink": KafkaSink(target)}
    flow.run(**fields)
    marks = [("tallygate.source", f"{flow.name}/0@{offset}".encode()) for offset in range(3)]
    assert _headers(flow, target) == [(*OWN, marks[0]), (marks[1],), (*OWN, marks[2])]
    assert audited(flow, **fields).verdict is Verdict.VALID


@pytest.mark.parametrize("fetches", [True, False])
def test_a_record_whose_header_has_a_name_that_is_not_utf_8_is_a_dead_letter(
    flow: Flow, target: str, fetches: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read by our reader or by Spark's."""
    if not fetches:
        monkeypatch.setattr("tallygate.engine.pipeline.fetchable", lambda *_: False)
    connection = flow.stack.cluster.connection
    send_raw_record(flow.stack.bootstrap_servers, flow.name, b'{"id": 2}', [(b"tr\xffce", b"1")])
    fields = {"source": Kafka(flow.name, format="bytes"), "sink": KafkaSink(target)}
    flow.run(**fields)
    assert len(_headers(flow, target)) == 3
    (letter,) = list_dead_letters(f"{flow.name}.dead-letters", connection)
    assert (letter.coordinates, letter.cause) == (f"{flow.name}/0@3", MISNAMED_HEADER)
    found = audited(flow, **fields)
    assert (found.verdict, found.rows, found.letters) == (Verdict.VALID, 3, 1), found
    with pytest.raises(TopicError, match="cannot be put back as it was"):
        replay(f"{flow.name}.dead-letters", connection, into=[flow.name])


def test_marks_that_a_record_brings_along_hide_no_dead_letter(flow: Flow, target: str) -> None:
    connection, forged = flow.stack.cluster.connection, (("tallygate.replayed", b"0:0"),)
    with Producer(connection) as producer:
        producer.send(flow.name, '{"id": 3', partition=0, headers=forged)
        producer.send(flow.name, '{"id": 4', partition=0, headers=forged)
    fields = {"source": Kafka(flow.name, schema="id long"), "sink": KafkaSink(target)}
    flow.run(**fields)
    found = list_dead_letters(f"{flow.name}.dead-letters", connection)
    assert [(each.replayed, each.headers) for each in found] == [(False, forged)] * 2
    counter = LetterCount(flow.topics, f"{flow.name}.dead-letters", flow.name)
    assert counter.count() == 2, "as the limit of dead letters counts them"
    counter.close()
    audit = audited(flow, **fields)
    assert (audit.verdict, audit.letters) == (Verdict.VALID, 2), audit


def test_without_a_mark_they_are_what_they_were(flow: Flow, target: str) -> None:
    sink = KafkaSink(target, coordinates=False)
    flow.run(source=Kafka(flow.name, format="bytes"), sink=sink)
    assert _headers(flow, target) == [OWN, (), (*OWN, OLDER)]


def test_with_a_transform_by_a_column(flow: Flow, target: str) -> None:
    source = Kafka(flow.name, format="text", headers=True)
    sql = "SELECT value, _headers AS headers FROM source WHERE _offset < 2"
    sink = KafkaSink(target, format="value", coordinates=False)
    flow.run(source=source, transform=sql, sink=sink)
    assert _headers(flow, target) == [OWN, ()]


def test_a_column_that_cannot_be_headers_is_refused(flow: Flow, target: str) -> None:
    source, sql = Kafka(flow.name, format="text"), "SELECT value, 'no' AS headers FROM source"
    with pytest.raises(TargetError, match=r"`headers`.* is string and should be array<struct"):
        flow.run(source=source, transform=sql, sink=KafkaSink(target, format="value"))
