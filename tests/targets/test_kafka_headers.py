"""A record's headers go with it from topic to topic."""

import pytest

from fixtures.audits import audited
from fixtures.flows import Flow
from tallygate import Kafka, KafkaSink, Producer
from tallygate.auditing.verdict import Verdict
from tallygate.core.record import Headers
from tallygate.errors import TargetError
from tallygate.kafka.read import records_in

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
