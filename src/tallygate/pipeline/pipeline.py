"""Pipelines as users run them: a `Pipeline`, or `write_stream` for a Spark job that exists."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tallygate.errors import ConfigError
from tallygate.kafka.connection import Connection
from tallygate.pipeline.engine import Progress
from tallygate.pipeline.launch import Job, look
from tallygate.pipeline.running import Counts, Heart, Summary, first_line, launched, run_job
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

__all__ = ["Pipeline", "write_stream"]

RAW_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp")


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
        counts = Counts()

        def listen(progress: Progress) -> None:
            counts.add(progress)
            told(progress)

        trigger = self._trigger(until)
        job = self.job(running, settings, trigger, accept_loss, listen, note)
        return run_job(job, running, counts)

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
                f"the transform of {self.name!r} cannot work: {first_line(error)}"
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
    query, engine = launched(job, frame.sparkSession)
    Heart(job.store, query, engine, alone=True).start()
    return query


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
