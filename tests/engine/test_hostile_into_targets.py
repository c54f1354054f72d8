"""Hostile records between good ones, through every target: each is a dead letter with its cause,
what is good arrives, and the audit is valid."""

from typing import Any

import pytest

from fixtures.audits import audited
from fixtures.flows import SCHEMA as PLAIN
from fixtures.flows import Flow
from fixtures.hostile import HOSTILE, MAX_RECORD, MISNAMED, SCHEMA, Hostile, send_hostile
from tallygate import Kafka, KafkaSink, Parquet, Postgres, dead_letters
from tallygate.auditing.verdict import Verdict
from tallygate.core.letters import MOST_SAID
from tallygate.engine.frames import decoder_of
from tallygate.engine.rebuild import rebuild
from tallygate.errors import InputError
from tallygate.lab.drills.workload import ids_in
from tallygate.spec import Delta

ANY_TIME = {"message.timestamp.after.max.ms": str(2**63 - 1), "retention.ms": "-1"}
TARGETS = [
    "postgres",
    "topic",
    pytest.param("parquet", marks=pytest.mark.system),
    pytest.param("delta", marks=pytest.mark.system),
]


def _fields(flow: Flow, target: str) -> dict[str, Any]:
    """A pipeline into the target, with a transform or without; small batches and larger ones."""
    source = {"schema": SCHEMA, "max_record": str(MAX_RECORD), "headers": target != "topic"}
    fields: dict[str, Any] = {"source": Kafka(flow.name, **source)}
    if target == "postgres":
        fields["transform"] = "SELECT id, account, day, amount, at, _timestamp AS sent FROM source"
        return {**fields, "sink": Postgres(flow.name)}
    if target == "topic":
        flow.topics.create(f"{flow.name}-out")
        flow.topics.create(f"{flow.name}.dead-letters")  # which takes 1 MiB
        return {**fields, "sink": KafkaSink(f"{flow.name}-out")}
    folder = str(flow.folder / "out")
    return {**fields, "sink": Parquet(folder) if target == "parquet" else Delta(folder)}


def _ids(flow: Flow, target: str) -> list[int]:
    if target == "postgres":
        return flow.rows()
    if target == "topic":
        return sorted(ids_in(f"{flow.name}-out", flow.stack.cluster.connection))
    path = str(flow.folder / "out")
    frame = flow.spark.read.format(target).load(path)
    return sorted(row["id"] for row in frame.select("id").collect())


@pytest.mark.parametrize("target", TARGETS)
def test_hostile_records_are_dead_letters_and_stop_nothing(flow: Flow, target: str) -> None:
    records = [*HOSTILE, MISNAMED]
    flow.topics.alter(flow.name, configs=ANY_TIME)
    send_hostile(flow.stack.cluster.connection, flow.name, records)
    fields = _fields(flow, target)
    flow.run(**fields)

    def arrives(record: Hostile) -> bool:
        return record.fit and (record.tabled or target != "postgres")

    bad = [2 * place + 1 for place, each in enumerate(records) if not arrives(each)]
    good = [1_000_000 + number for number in range(8)]
    if target == "postgres":
        good.remove(1_000_004)
    assert _ids(flow, target) == [*range(len(records) + 1), *good]
    pipeline = flow.pipeline(**fields)
    letters = dead_letters(pipeline, settings=flow.settings, spark=flow.spark)
    assert sorted((each.topic, each.partition, each.offset) for each in letters) == [
        (flow.name, 0, offset) for offset in bad
    ]
    assert all(0 < len(each.cause) <= MOST_SAID for each in letters)
    found = audited(flow, **fields)
    assert found.verdict is Verdict.VALID, found
    assert (found.letters, found.rows) == (len(bad), len(records) + 1 + len(good))
    if target == "postgres":
        sent = "SELECT count(*) FROM {table} WHERE sent IS NULL"
        assert flow.rows(sent) == [3], "those of times that are no date"


def test_a_source_says_how_large_a_record_may_be() -> None:
    sizes = {"5MB": 5_000_000, "unlimited": None}
    for text, largest in sizes.items():
        source = Kafka("t", format="bytes", max_record=text)
        assert decoder_of(source).largest == largest
    assert decoder_of(Kafka("t", format="bytes")).largest == 32_000_000


def test_a_record_that_was_too_large_is_a_row_after_a_rebuild(flow: Flow) -> None:
    """The way out, if it was right."""
    flow.send(10, partition=0)
    flow.send_text([f'{{"id": 10, "account": "{"x" * 1000}"}}'])
    small, large = (
        flow.pipeline(source=Kafka(flow.name, schema=PLAIN, max_record=size))
        for size in ("1000", "2000")
    )
    small.run(until="available", settings=flow.settings, spark=flow.spark)
    (letter,) = dead_letters(small, settings=flow.settings)
    assert "more than the 1,000 that source.max_record lets it have" in letter.cause
    assert flow.rows() == list(range(10))
    rebuild(large, settings=flow.settings, spark=flow.spark)
    assert flow.rows() == list(range(11))
    assert not dead_letters(large, settings=flow.settings)


def test_a_time_that_spark_cannot_read_is_named_with_the_way_out(flow: Flow) -> None:
    """State needs Spark's own reader; a topic that was copied has times of its own."""
    flow.topics.alter(flow.name, configs=ANY_TIME)
    flow.send(50, partition=0)
    odd = Hostile(name="odd", value=b'{"id": 50}', time=2**63 - 1, fit=True)
    send_hostile(flow.stack.cluster.connection, flow.name, [odd])
    counted = "SELECT coalesce(account, '?') AS account, count(*) AS n FROM source GROUP BY 1"
    fields: dict[str, Any] = {
        "transform": counted,
        "sink": Postgres(flow.name, mode="upsert", key="account"),
    }
    with pytest.raises(InputError, match=rf"Spark's reader: {flow.name}/0@51\. Copy the topic"):
        flow.run(**fields)
    copied = f"{flow.name}-copy"
    flow.topics.create(copied)
    flow.run(
        name=f"{flow.name}_copy",
        source=Kafka(flow.name, format="bytes"),
        sink=KafkaSink(copied),
        checkpoint=str(flow.folder / "copy"),
    )
    fields |= {"source": Kafka(copied, schema=PLAIN), "name": f"{flow.name}_again"}
    flow.run(**fields, checkpoint=str(flow.folder / "again"))
    assert sum(flow.rows("SELECT n FROM {table}")) == 53
