"""Records that come too late for the watermark: in a result, or a dead letter, never just gone."""

import json
import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession

from fixtures.commands import Tallygate
from fixtures.flows import Flow
from tallygate import Kafka, KafkaSink, Pipeline, Postgres, Producer
from tallygate.auditing.audit import audit
from tallygate.auditing.verdict import Verdict
from tallygate.engine.lateness import Lateness, lateness_of
from tallygate.errors import ConfigError
from tallygate.kafka.read import records_in

SCHEMA = "id long, at timestamp"
BEGIN = datetime(2026, 1, 1, 12, tzinfo=UTC)
WATERMARK = {"watermark": {"at": "30 minutes"}}
COUNTED = {"seen": "count(*)"}
TUMBLING = {"window": {"on": "at", "size": "20 minutes"}, "aggregate": COUNTED}
SLIDING = {"on": "at", "size": "1 hour", "slide": "15 minutes"}
SESSIONS = {"window": {"on": "at", "gap": "5 minutes"}, "aggregate": COUNTED}
DEDUP: dict[str, Any] = {"dedup": ["id"]}
LETTERS = "SELECT cause FROM tallygate.dead_letters WHERE pipeline = '{name}'"
RECORDS, ROUNDS = 40, 5


def _pipeline(flow: Flow, step: dict[str, Any], *, late: bool) -> Pipeline:
    windows = Postgres(flow.name, mode="upsert", key="window_start")
    return flow.pipeline(
        source=Kafka(flow.name, schema=SCHEMA),
        transform=[WATERMARK, step],
        dead_letters={"late": late},
        sink=windows if "window" in step else Postgres(flow.name),
    )


def _run(flow: Flow, step: dict[str, Any], *, late: bool) -> list[str]:
    """Rounds of records whose times move on by an hour and go back by up to three; returns the
    causes of the dead letters."""
    chance = random.Random(7)
    for number in range(ROUNDS):
        center = BEGIN + timedelta(hours=number)
        times = [center - timedelta(seconds=chance.randrange(3 * 3600)) for _ in range(RECORDS)]
        rows = [{"id": number * RECORDS + n, "at": at.isoformat()} for n, at in enumerate(times)]
        flow.send_text([json.dumps(row) for row in rows])
        _pipeline(flow, step, late=late).run(
            until="available", settings=flow.settings, spark=flow.spark
        )
    return flow.rows(LETTERS.replace("{name}", flow.name))


def _held(flow: Flow, step: dict[str, Any]) -> int:
    query = (
        "SELECT sum(seen)::int FROM {table}" if "window" in step else "SELECT count(*) FROM {table}"
    )
    return int(flow.rows(query)[0])


@pytest.mark.parametrize("step", [TUMBLING, DEDUP], ids=["windows", "dedup"])
def test_what_is_too_late_is_a_dead_letter(flow: Flow, step: dict[str, Any]) -> None:
    causes = _run(flow, step, late=True)
    assert 0 < len(causes) < RECORDS * ROUNDS
    assert _held(flow, step) + len(causes) == RECORDS * ROUNDS
    assert all(cause.startswith("late: at is 2026-01-01") for cause in causes)
    assert all("the watermark was at 2026-01-01" in cause for cause in causes)


def test_a_topic_keeps_the_late_and_the_unfit_of_one_block(flow: Flow) -> None:
    """Letters are known by how far they go: those of a block must come together."""
    target = f"{flow.name}-out"
    flow.topics.create(target)
    pipeline = flow.pipeline(
        source=Kafka(flow.name, schema=SCHEMA),
        transform=[WATERMARK, DEDUP],
        dead_letters={"late": True},
        sink=KafkaSink(target),
    )

    def row(number: int, hours: int = 0) -> str:
        return json.dumps({"id": number, "at": (BEGIN - timedelta(hours=hours)).isoformat()})

    late = [row(number, hours=3) for number in range(10, 15)]
    for values in ([row(0)], [row(1)], [*late[:3], "not JSON", *late[3:]]):
        with Producer(flow.stack.cluster.connection) as producer:
            for value in values:
                producer.send(flow.name, value, partition=0)
        pipeline.run(until="available", settings=flow.settings, spark=flow.spark)
    letters = records_in(f"{flow.name}.dead-letters", flow.stack.cluster.connection)
    kept = [record.value for record in letters]
    assert sorted(filter(None, kept)) == sorted(each.encode() for each in [*late, "not JSON"])


@pytest.mark.parametrize(("late", "verdict"), [(True, Verdict.VALID), (False, Verdict.UNKNOWN)])
def test_the_audit_knows_which_records_were_late(flow: Flow, late: bool, verdict: Verdict) -> None:
    _run(flow, TUMBLING, late=late)
    pipeline = _pipeline(flow, TUMBLING, late=late)
    assert audit(pipeline, settings=flow.settings, spark=flow.spark).verdict is verdict


def test_by_default_it_is_only_counted(flow: Flow) -> None:
    """The twin: what Spark drops is in no result, and nobody keeps it."""
    assert _run(flow, TUMBLING, late=False) == []
    assert _held(flow, TUMBLING) < RECORDS * ROUNDS


@pytest.mark.system
def test_run_and_status_say_how_many(flow: Flow, tallygate: Tallygate) -> None:
    file = flow.folder / "pipeline.yaml"
    file.write_text(
        json.dumps(
            {
                "name": flow.name,
                "source": {"topic": flow.name, "schema": SCHEMA},
                "transform": [WATERMARK, TUMBLING],
                "sink": {"table": flow.name, "mode": "upsert", "key": ["window_start"]},
                "checkpoint": str(flow.checkpoint),
            }
        )
    )
    for hours in (0, 2, 2):
        at = (BEGIN + timedelta(hours=hours)).isoformat()
        flow.send_text([json.dumps({"id": 0, "at": at})])
        Pipeline.load(file).run(until="available", settings=flow.settings, spark=flow.spark)
    flow.send_text([json.dumps({"id": 0, "at": BEGIN.isoformat()})] * 5)
    said = tallygate("run", str(file), "--until", "available", "--name", "small").stdout
    assert "rows came after the watermark had passed them; no result has them." in said
    shown = json.loads(tallygate("status", "--name", "small", "-o", "json").stdout)
    (mine,) = [each for each in shown["pipelines"] if each["pipeline"] == flow.name]
    assert mine["late"] > 0


def test_lengths_of_windows_are_read_as_spark_reads_them(flow: Flow, spark: SparkSession) -> None:
    def found(step: dict[str, Any]) -> Lateness | None:
        fields = {"transform": [WATERMARK, step], "dead_letters": {"late": True}}
        return lateness_of(flow.pipeline(source=Kafka("t", schema=SCHEMA), **fields), spark)

    minute = 60_000
    assert found(TUMBLING) == Lateness("at", 20 * minute, windows=True)
    assert found(SESSIONS) == Lateness("at", 5 * minute)
    assert found(DEDUP) == Lateness("at")


@pytest.mark.parametrize(
    ("transform", "said"),
    [
        ("SELECT * FROM source", "a transform of steps"),
        ([DEDUP], "the watermark as the first step"),
        ([WATERMARK, {"sql": "SELECT * FROM previous"}, DEDUP], "right after it"),
        ([WATERMARK, {**TUMBLING, "window": SLIDING}], "sliding windows"),
        ([WATERMARK, {**TUMBLING, "window": {"on": "b", "size": "1 hour"}}], "on 'b'"),
    ],
)
def test_where_it_cannot_be_told_it_is_refused(
    flow: Flow, spark: SparkSession, transform: Any, said: str
) -> None:
    pipeline = flow.pipeline(
        source=Kafka(flow.name, schema=SCHEMA), transform=transform, dead_letters={"late": True}
    )
    with pytest.raises(ConfigError, match=said):
        lateness_of(pipeline, spark)
