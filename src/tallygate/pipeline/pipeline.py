"""Pipelines as users run them: a `Pipeline`, or `write_stream` for a Spark job that exists."""

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tallygate.errors import ConfigError, FencedError, QueryError, TallygateError, UnreachableError
from tallygate.kafka.connection import Connection
from tallygate.pipeline.engine import Engine, Progress, StopRequested
from tallygate.pipeline.launch import Job, diagnose, launch, look
from tallygate.pipeline.source import decoded, decoder_of, raw_stream
from tallygate.settings import Settings
from tallygate.sinks.kafka.store import KafkaStore
from tallygate.sinks.postgres.store import PostgresStore
from tallygate.sinks.store import Keeper, Store
from tallygate.spark.plan import committed_only, kafka_servers
from tallygate.spark.session import session
from tallygate.spec import (
    NAME,
    Delivery,
    KafkaSink,
    PipelineSpec,
    Postgres,
    check_delivery,
    load_spec,
    validated,
)
from tallygate.stack import running_connection, running_dsn
from tallygate.units import duration_ms

__all__ = ["Pipeline", "Summary", "write_stream"]

BEAT_EVERY = 2.0
RAW_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp")


@dataclass(frozen=True)
class Summary:
    """What a run did."""

    batches: int
    records: int
    rows: int
    letters: int
    seconds: float
    outcome: str


class Pipeline(PipelineSpec):
    """A pipeline that can be run: `Pipeline(name=…, source=…, sink=…).run()`."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(**dict(validated(PipelineSpec, fields, "the pipeline")))

    @classmethod
    def load(cls, path: Path) -> "Pipeline":
        """A pipeline from its YAML file."""
        return cls(**dict(load_spec(path)))

    def look(self, spark: SparkSession, settings: Settings) -> dict[str, str]:
        """How the pipeline would be written; neither Kafka nor the store is asked."""
        anywhere = settings.with_flags({"kafka.bootstrap.servers": "localhost:9092"})
        if isinstance(self.sink, Postgres) and self.sink.dsn is None:
            anywhere = anywhere.with_flags({"postgres.dsn": "postgresql://localhost"})
        job = self.job(spark, anywhere, {})
        plan, shape = look(job)
        ways = "by partition" if shape.carries and job.mode == "append" else "staged"
        return {
            "source": ", ".join(self.source.topic) or f"pattern {self.source.pattern}",
            "plan": plan.why,
            "columns": shape.schema.simpleString().removeprefix("struct<").removesuffix(">"),
            "state": "kept in the checkpoint" if shape.stateful else "none",
            "sink": job.store.target,
            "commit": f"{self.delivery}, {ways}; small batches by the driver"
            if isinstance(self.sink, Postgres)
            else f"{self.delivery}, {'a transaction a partition' if shape.carries else 'lanes'}",
        }

    def run(
        self,
        *,
        until: Literal["stopped", "available"] = "stopped",
        settings: Settings | None = None,
        spark: SparkSession | None = None,
        accept_loss: bool = False,
        told: Callable[[Progress], None] = lambda _: None,
        note: Callable[[str], None] = lambda _: None,
    ) -> Summary:
        """Run until it is stopped (by SIGTERM, Ctrl-C or `tallygate stop`), or until all that is
        there now has been read; a batch under way is finished first."""
        settings = settings or Settings.load()
        running = session(f"tallygate {self.name}", existing=spark, settings=settings)
        counts = _Counts()

        def listen(progress: Progress) -> None:
            counts.add(progress)
            told(progress)

        trigger = self._trigger(until)
        job = self.job(running, settings, trigger, accept_loss, listen, note)
        return _run(job, running, counts)

    def job(
        self,
        spark: SparkSession,
        settings: Settings,
        trigger: Mapping[str, str | bool],
        accept_loss: bool = False,
        told: Callable[[Progress], None] = lambda _: None,
        note: Callable[[str], None] = lambda _: None,
    ) -> Job:
        connection = _connection(self.source.bootstrap_servers, settings)
        fused = self.transform is None
        return Job(
            self.name,
            lambda keeper: self._frame(spark, connection, keeper),
            _store(
                self.sink, self.name, self.delivery, connection, self.source.topic, spark, settings
            ),
            self.checkpoint_path(settings),
            connection,
            self.sink.mode if isinstance(self.sink, Postgres) else "append",
            trigger,
            decoder_of(self.source) if fused else None,
            self.dead_letters,
            accept_loss,
            told,
            note,
        )

    def checkpoint_path(self, settings: Settings) -> str:
        return self.checkpoint or str(settings.state_dir / "checkpoints" / self.name)

    def _frame(self, spark: SparkSession, connection: Connection, keeper: Keeper) -> DataFrame:
        raw = raw_stream(spark, self.source, connection)
        if self.transform is None:
            return raw.select(*RAW_COLUMNS)
        source = decoded(raw, self.source, keeper)
        try:
            if callable(self.transform):
                return self._called(self.transform, source)
            source.createOrReplaceTempView("source")
            return spark.sql(self.transform)
        except PySparkException as error:
            raise ConfigError(
                f"the transform of {self.name!r} cannot work: {_first(error)}"
            ) from None

    def _called(self, transform: Callable[..., Any], source: DataFrame) -> DataFrame:
        frame = transform(source)
        if not isinstance(frame, DataFrame):
            raise ConfigError(
                f"the transform of {self.name!r} returned a {type(frame).__name__}; it must return "
                "a DataFrame."
            )
        return frame

    def _trigger(self, until: str) -> dict[str, str | bool]:
        if until == "available":
            return {"availableNow": True}
        if self.trigger == "as fast as possible":
            return {}
        return {"processingTime": f"{duration_ms(self.trigger)} milliseconds"}


def write_stream(
    frame: DataFrame,
    *,
    name: str,
    sink: Postgres | KafkaSink,
    checkpoint: str,
    delivery: Delivery = "exactly-once",
    trigger: Mapping[str, str | bool] | None = None,
    settings: Settings | None = None,
) -> StreamingQuery:
    """Start writing any streaming frame over Kafka to a sink, and return the started query.

    This is what takes the place of `foreachBatch` in a job that exists; `trigger` is what
    `DataStreamWriter.trigger` takes, as `{"availableNow": True}`.
    """
    settings = settings or Settings.load()
    if not NAME.fullmatch(name):
        raise ConfigError(f"name {name!r}: use letters, digits, dots, dashes and underscores.")
    if not frame.isStreaming:
        raise ConfigError("write_stream needs a streaming frame, as of spark.readStream.")
    try:
        check_delivery(delivery, sink)
    except ValueError as error:
        raise ConfigError(f"{error}.") from None
    committed = committed_only(frame)
    connection = _at(kafka_servers(committed), settings)
    job = Job(
        name,
        lambda _: committed,
        _store(sink, name, delivery, connection, (), frame.sparkSession, settings),
        checkpoint,
        connection,
        sink.mode if isinstance(sink, Postgres) else "append",
        trigger or {},
    )
    query, engine = _launched(job, frame.sparkSession)
    _Heart(job.store, query, engine, alone=True).start()
    return query


class _Counts:
    def __init__(self) -> None:
        self.batches = self.records = self.rows = self.letters = 0

    def add(self, progress: Progress) -> None:
        self.batches += 1
        self.records += progress.records
        self.rows += progress.written.rows
        self.letters = progress.letters


def _launched(job: Job, spark: SparkSession) -> tuple[StreamingQuery, Engine]:
    try:
        return launch(job, spark)
    except BaseException as error:
        with contextlib.suppress(Exception):
            job.store.end(f"failed: {error}")
        raise


def _run(job: Job, spark: SparkSession, counts: _Counts) -> Summary:
    started = time.monotonic()
    query, engine = _launched(job, spark)
    heart = _Heart(job.store, query, engine)
    heart.start()
    stopping = False
    with _signals() as asked, contextlib.suppress(StreamingQueryException):
        while not query.awaitTermination(0.2):  # type: ignore[arg-type]
            if heart.failure is not None:
                query.stop()
                break
            if (asked or heart.stop_requested) and engine.request_stop():
                stopping = True
                query.stop()
                break
    heart.stop()
    failure = heart.failure or engine.failure or query.exception()
    if isinstance(failure, StopRequested) or (stopping and failure is None):
        failure = None
    if failure is not None and not isinstance(failure, TallygateError):
        try:
            diagnose(job)
        except UnreachableError:
            pass  # what Spark said is all there is to say
        except TallygateError as error:
            failure = error
    outcome = "failed" if failure else "stopped" if asked or heart.stop_requested else "done"
    with contextlib.suppress(UnreachableError):
        job.store.end(outcome if failure is None else f"failed: {failure}")
    if failure is not None:
        raise (
            failure
            if isinstance(failure, TallygateError)
            else QueryError(f"pipeline {job.name!r} stopped: {_first(failure)}")
        ) from failure
    took = time.monotonic() - started
    return Summary(counts.batches, counts.records, counts.rows, counts.letters, took, outcome)


def _first(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


@contextlib.contextmanager
def _signals() -> Iterator[list[int]]:
    """Signals that ask for a stop are noted, where signals can be handled at all."""
    asked: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def note(number: int, _: FrameType | None) -> None:
        asked.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Heart:
    """Says every few seconds that the run is alive and how far it is.

    For a query that is left `alone` with its user it also does what a runner would: it stops the
    query when asked to or fenced, and writes down how the run ended."""

    def __init__(
        self, store: Store, query: StreamingQuery, engine: Engine, *, alone: bool = False
    ) -> None:
        self._store, self._query, self._engine, self._alone = store, query, engine, alone
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.failure: TallygateError | None = None
        self.stop_requested = False

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(timeout=10)

    def _run(self) -> None:
        while not self._stopped.wait(BEAT_EVERY) and self._query.isActive:
            try:
                self.stop_requested = self._store.beat(self.progress())
            except FencedError as error:
                self.failure = error
                break
            except Exception:
                continue  # the store is away: the batch at hand finds out what that means
            if self._alone and self.stop_requested and self._engine.request_stop():
                break
        if self._alone:
            self._end()

    def _end(self) -> None:
        failure = self.failure or self._engine.failure
        with contextlib.suppress(Exception):
            self._query.stop()
            self._store.end("done" if failure is None else f"failed: {failure}")

    def progress(self) -> dict[str, Any]:
        last = self._engine.last
        if last is None:
            return {}
        return {
            "batch": last.batch,
            "way": last.written.way,
            "records": last.records,
            "rows": last.written.rows,
            "seconds": round(last.seconds, 3),
            "parts": {name: round(value, 3) for name, value in last.written.seconds.items()},
            "letters": last.letters,
            "lag": {f"{topic}/{n}": behind for (topic, n), behind in last.lag.items()},
            **self._state(),
        }

    def _state(self) -> dict[str, Any]:
        """The watermark and the size of the state, where there are such."""
        progress: Mapping[str, Any] = self._query.lastProgress or {}
        operators = progress.get("stateOperators") or []
        if not operators:
            return {}
        return {
            "watermark": (progress.get("eventTime") or {}).get("watermark"),
            "state_rows": sum(operator["numRowsTotal"] for operator in operators),
            "state_bytes": sum(operator["memoryUsedBytes"] for operator in operators),
        }


def _store(
    sink: Postgres | KafkaSink,
    name: str,
    delivery: str,
    connection: Connection,
    topics: tuple[str, ...],
    spark: SparkSession,
    settings: Settings,
) -> Store:
    if isinstance(sink, Postgres):
        dsn = sink.dsn or running_dsn(settings)
        return PostgresStore(sink, name, delivery, dsn, settings.timeout)
    target = connection if sink.bootstrap_servers is None else _at(sink.bootstrap_servers, settings)
    lanes = int(spark.conf.get("spark.sql.shuffle.partitions") or 1)
    return KafkaStore(sink, name, delivery, connection, target, topics, lanes, settings)


def _connection(servers: str | None, settings: Settings) -> Connection:
    return running_connection(settings) if servers is None else _at(servers, settings)


def _at(servers: str, settings: Settings) -> Connection:
    """The configured connection, to these brokers."""
    return Connection.of(settings.with_flags({"kafka.bootstrap.servers": servers}))
