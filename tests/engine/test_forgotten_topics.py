"""Topics that are deleted, or that a pipeline is to read no more: it goes on with the others."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from fixtures.audits import audited
from fixtures.commands import Tallygate
from fixtures.flows import SCHEMA, Flow
from tallygate import Kafka, KafkaSink, Postgres, forget_topic, write_stream
from tallygate.auditing.verdict import Verdict
from tallygate.engine.rebuild import rebuild
from tallygate.errors import ConfigError, LedgerError, TopicError

COUNTS = "SELECT account, count(*) AS payments FROM source GROUP BY account"


def _source(*topics: str) -> Kafka:
    return Kafka(list(topics), schema=SCHEMA, max_records=100)


def _other(flow: Flow) -> str:
    other = f"{flow.name}-too"
    flow.topics.create(other)
    return other


def _send_to(flow: Flow, topic: str, count: int) -> None:
    mine, flow.name = flow.name, topic
    flow.send(count, partition=0)
    flow.name = mine


def _forget(flow: Flow, topic: str, **fields: object) -> dict[int, int]:
    return forget_topic(flow.pipeline(**fields), topic, settings=flow.settings, spark=flow.spark)


def test_a_topic_that_is_deleted_under_a_pattern_is_forgotten(flow: Flow) -> None:
    """Its rows stay, and what an audit cannot say of them is unknown. A topic of its name that
    comes later is a new one."""
    source, other = Kafka(pattern=f"{flow.name}.*", schema=SCHEMA), _other(flow)
    flow.send(30)
    _send_to(flow, other, 10)
    flow.run(source=source)
    flow.topics.delete([other])
    flow.send(10)
    with pytest.raises(TopicError, match=r"-too' .* is gone.*`tallygate forget-topic`"):
        flow.run(source=source)
    assert _forget(flow, other, source=source) == {0: 10}
    assert any("set aside" in note for note in flow.run(source=source))
    assert flow.run(source=source) == []
    flow.check()
    result = audited(flow, source=source)
    assert (result.verdict, result.anomalies) == (Verdict.UNKNOWN, ())
    assert any("the topic was forgotten at" in said for said in result.unknown)
    since = datetime.now(UTC)
    flow.topics.create(other)
    _send_to(flow, other, 15)
    flow.send(5)
    flow.run(source=source)
    flow.check()
    result = audited(flow, source=source)
    assert (result.verdict, result.anomalies) == (Verdict.UNKNOWN, ()), str(result)
    assert audited(flow, source=source, since=since).unknown == ()


def test_a_topic_that_is_taken_out_of_the_list_is_forgotten_and_goes_on_if_it_is_back(
    flow: Flow,
) -> None:
    other = _other(flow)
    one, both = _source(flow.name), _source(flow.name, other)
    flow.send(30)
    _send_to(flow, other, 10)
    flow.run(source=both)
    flow.send(10)
    with pytest.raises(TopicError, match="is not read any more.*`tallygate forget-topic`"):
        flow.run(source=one)
    with pytest.raises(ConfigError, match="still reads topic"):
        _forget(flow, other, source=both)
    assert _forget(flow, other, source=one) == {0: 10}
    with pytest.raises(ConfigError, match="has no topic .* to forget"):
        _forget(flow, other, source=one)
    flow.run(source=one)
    flow.check()
    assert audited(flow, source=one), "what is still there is checked, too"
    _send_to(flow, other, 10)
    for _ in range(2):
        flow.send(5)
        flow.run(source=both)
    flow.check()
    assert audited(flow, source=both)


def test_a_topic_whose_offsets_are_gone_with_it_is_forgotten_as_the_checkpoint_has_it(
    flow: Flow,
) -> None:
    """Kafka drops the offsets that are the ledger of a pipeline into a topic."""
    other, sink = _other(flow), KafkaSink(f"{flow.name}-out")
    flow.topics.create(sink.topic)
    flow.send(30)
    _send_to(flow, other, 10)
    flow.run(source=_source(flow.name, other), sink=sink)
    flow.topics.delete([other])
    given = {"source": _source(flow.name), "sink": sink}
    with pytest.raises(TopicError, match=r"up to 10 in partition 0 by the checkpoint .*forget-top"):
        flow.run(**given)
    assert _forget(flow, other, **given) == {0: 10}
    for _ in range(2):
        flow.send(10)
        flow.run(**given)
    result = audited(flow, **given)
    assert (result.verdict, result.anomalies) == (Verdict.UNKNOWN, ()), str(result)
    assert result.rows >= 50


def test_a_pipeline_with_state_cannot_forget_a_topic(flow: Flow) -> None:
    """Its checkpoint names the topic: it is refused, whatever is asked for, and rebuilt."""
    other, sink = _other(flow), Postgres(flow.name, mode="upsert", key="account")
    given = {"transform": COUNTS, "sink": sink, "source": _source(flow.name)}
    flow.send(30)
    _send_to(flow, other, 10)
    flow.run(**{**given, "source": _source(flow.name, other)})
    with pytest.raises(TopicError, match="rebuild.*so it cannot be forgotten"):
        flow.run(**given)
    with pytest.raises(LedgerError, match="needs its checkpoint .* rebuild with"):
        _forget(flow, other, **given)
    rebuild(flow.pipeline(**given), settings=flow.settings, spark=flow.spark)
    flow.run(**given)
    assert flow.rows("SELECT sum(payments)::int FROM {table}") == [30]


def test_a_job_forgets_a_topic_however_often_it_says_so(flow: Flow) -> None:
    other = _other(flow)
    flow.send(30)
    _send_to(flow, other, 10)
    flow.run(source=_source(flow.name, other), transform="SELECT id, account FROM source")
    _write_without(flow, other)
    flow.topics.delete([other])
    flow.send(10)
    _write_without(flow, other)
    flow.check()


def _write_without(flow: Flow, other: str) -> None:
    frame = (
        flow.spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", flow.stack.bootstrap_servers)
        .option("assign", json.dumps({flow.name: [0, 1, 2]}))
        .load()
        .selectExpr(f"from_json(CAST(value AS STRING), '{SCHEMA}') AS event")
        .select("event.*")
    )
    write_stream(
        frame,
        name=flow.name,
        sink=Postgres(flow.name),
        checkpoint=str(flow.checkpoint),
        trigger={"availableNow": True},
        forget_topics=[other],
        settings=flow.settings,
    ).awaitTermination(60)


@pytest.mark.system
def test_the_command_forgets_a_topic(flow: Flow, tallygate: Tallygate, tmp_path: Path) -> None:
    other = _other(flow)
    flow.send(30)
    _send_to(flow, other, 10)
    flow.run(source=_source(flow.name, other))
    file = tmp_path / "flow.yaml"
    file.write_text(yaml.safe_dump(_spec(flow, [flow.name])))
    refused = tallygate("run", str(file), "--until", "available", "--name", "small", code=9)
    assert "`tallygate forget-topic`" in refused.stderr
    done = tallygate("forget-topic", str(file), other, "--name", "small")
    assert (
        f"{flow.name} has forgotten {other}, which it has read: {other}/0 up to 10." in done.stdout
    )
    tallygate("run", str(file), "--until", "available", "--name", "small")


def _spec(flow: Flow, topics: Sequence[str]) -> dict[str, object]:
    return {
        "name": flow.name,
        "source": {"topic": list(topics), "schema": SCHEMA},
        "sink": {"table": flow.name},
        "checkpoint": str(flow.checkpoint),
    }
