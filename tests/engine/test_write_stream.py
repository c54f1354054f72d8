"""Jobs that exist: what becomes of their checkpoints, and how their ends are written down."""

import contextlib
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from fixtures.flows import SCHEMA, Flow
from tallygate import Postgres, write_stream
from tallygate.engine import start as launch_module
from tallygate.engine.start import FILE_MANAGER, STREAMING
from tallygate.engine.status import request_stop
from tallygate.errors import LedgerError
from tallygate.spark.temporary_conf import temporary_conf
from tallygate.targets.postgres.target import PostgresTarget
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


QUICK, USUAL = (f"{how}BasedCheckpointFileManager" for how in ("FileSystem", "FileContext"))


@pytest.mark.parametrize(
    ("own", "query", "chosen"),
    [
        (None, "SELECT * FROM events", QUICK),
        (f"{STREAMING}.{USUAL}", "SELECT * FROM events", USUAL),
        (None, "SELECT account, count(*) AS payments FROM events GROUP BY account", QUICK),
    ],
    ids=["no state", "the user has chosen", "state"],
)
def test_spark_s_logs_on_a_local_disk_are_written_the_quick_way(
    flow: Flow, own: str | None, query: str, chosen: str
) -> None:
    """Unless their user has chosen another; and the session is left as it was."""
    flow.send(10)
    _stream(flow).createOrReplaceTempView("events")
    keyed = Postgres(flow.name, mode="upsert", key="account")
    sink = keyed if "GROUP" in query else Postgres(flow.name)
    with temporary_conf(flow.spark, {} if own is None else {FILE_MANAGER: own}):
        running: Any = write_stream(
            flow.spark.sql(query),
            name=flow.name,
            sink=sink,
            checkpoint=str(flow.checkpoint),
            settings=flow.settings,
            trigger=AVAILABLE,
        )
        assert flow.spark.conf.get(FILE_MANAGER, None) == own
        running.awaitTermination()
    kind = running._jsq.streamingQuery().offsetLog().fileManager().getClass().getSimpleName()
    assert kind == chosen
    assert flow.spark.conf.get(FILE_MANAGER, None) is None


def test_a_spark_that_calls_it_otherwise_writes_its_logs_as_it_likes(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch_module, "BY_FILE_SYSTEM", (f"{STREAMING}.NoSuchManager",))
    flow.send(10)
    _write(flow, trigger=AVAILABLE).awaitTermination()
    flow.check()


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
        patch.setattr(PostgresTarget, "write", lambda *_: 1 / 0)
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
