"""Jobs that exist: what becomes of their checkpoints, and how their ends are written down."""

import contextlib
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from fixtures.flows import SCHEMA, Flow
from tallygate import Postgres, write_stream
from tallygate.errors import LedgerError
from tallygate.pipeline.status import request_stop
from tallygate.sinks.postgres.sink import PostgresSink
from tallygate.waiting import wait_until

AVAILABLE = {"availableNow": True}


def _stream(flow: Flow) -> DataFrame:
    return (
        flow.spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", flow.stack.bootstrap_servers)
        .option("subscribe", flow.name)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 100)
        .load()
        .selectExpr(f"from_json(CAST(value AS STRING), '{SCHEMA}') AS event")
        .select("event.*")
    )


def _write(flow: Flow, **options: Any) -> StreamingQuery:
    given = {"name": flow.name, "sink": Postgres(flow.name), "settings": flow.settings, **options}
    return write_stream(_stream(flow), checkpoint=str(flow.checkpoint), **given)


def _outcome(flow: Flow) -> str:
    """How the last run ended, once that is written down."""
    query = f"SELECT outcome FROM tallygate.runs WHERE pipeline = '{flow.name}' ORDER BY epoch DESC"
    wait_until(lambda: flow.rows(query)[0] is not None, 60, "the end was not written down")
    return str(flow.rows(query)[0])


def test_a_ledger_that_is_lost_is_not_taken_for_a_job_that_is_taken_over(flow: Flow) -> None:
    flow.send(50)
    _write(flow, trigger=AVAILABLE).awaitTermination()
    assert _outcome(flow) == "done"
    flow.execute(f"DELETE FROM tallygate.pipelines WHERE name = '{flow.name}'")
    flow.send(50)
    with pytest.raises(LedgerError, match=r"is empty, but .* has done 1 batches.*adopted"):
        _write(flow, trigger=AVAILABLE)
    (flow.checkpoint / "tallygate.adopted").unlink()
    _write(flow, trigger=AVAILABLE).awaitTermination()
    flow.check()


def test_a_job_is_taken_over_also_if_its_first_start_fails(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own past is no batch that the ledger should know."""
    flow.send(150)
    _stream(flow).writeStream.foreachBatch(lambda *_: None).option(
        "checkpointLocation", str(flow.checkpoint)
    ).trigger(availableNow=True).start().awaitTermination()
    flow.send(50)
    with monkeypatch.context() as patch:
        patch.setattr(PostgresSink, "write", lambda *_: 1 / 0)
        with pytest.raises(StreamingQueryException):
            _write(flow, trigger=AVAILABLE).awaitTermination()
    assert _outcome(flow) == "failed: division by zero"
    _write(flow, trigger=AVAILABLE).awaitTermination()
    assert flow.rows() == list(range(150, 200))


def test_a_job_that_is_asked_to_stop_has_not_failed(flow: Flow) -> None:
    """Whether it is asked between two batches or within one."""
    flow.send(4000)
    query = _write(flow)
    wait_until(lambda: query.lastProgress is not None, 60, "nothing was written")
    request_stop(flow.name, flow.settings)
    with contextlib.suppress(StreamingQueryException):
        query.awaitTermination(60)
    assert _outcome(flow) == "stopped"
    assert not query.isActive


def test_a_failure_of_sparks_own_is_written_down(flow: Flow) -> None:
    """It happens between two batches, where only Spark sees it."""
    flow.send(50)
    query = _write(flow)
    wait_until(lambda: query.lastProgress is not None, 60, "nothing was written")
    flow.topics.delete([flow.name])
    flow.topics.create(flow.name, partitions=3)
    with pytest.raises(StreamingQueryException):
        query.awaitTermination(120)
    assert _outcome(flow).startswith("failed: ")
