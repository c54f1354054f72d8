"""Which target a pipeline names, which brokers its source, and what is kept on this machine."""

import contextlib
from pathlib import Path

from pyspark.sql import SparkSession

from tallygate.core.offsets import OTHER_SOURCE
from tallygate.core.start import SHUFFLE_PARTITIONS
from tallygate.endpoints import running_connection, running_dsn, stack_folder
from tallygate.errors import ConfigError, StackError
from tallygate.kafka.connection import Connection
from tallygate.settings import RUNS, Settings
from tallygate.spark.session import check_delta
from tallygate.spec import (
    Console,
    Delivery,
    Delta,
    Foreach,
    Kafka,
    KafkaSink,
    Memory,
    Parquet,
    PipelineSpec,
    Postgres,
)
from tallygate.spec.part import Part
from tallygate.targets.base import Target
from tallygate.targets.delta.target import DeltaTarget
from tallygate.targets.kafka.target import KafkaTarget
from tallygate.targets.parquet.target import ParquetTarget
from tallygate.targets.postgres.target import PostgresTarget
from tallygate.targets.unmanaged import unmanaged_target


def target_of(
    sink: Part,
    name: str,
    *,
    delivery: Delivery,
    source: Connection | None,
    topics: tuple[str, ...],
    spark: SparkSession | None,
    settings: Settings,
    runs: Path | None = None,
) -> Target:
    """The target that a pipeline names: the one place that looks at the kind of a sink for it.
    `runs` is where runs are noted that belong to a stack, if their store keeps no heartbeats. Only
    a Delta table needs a session to be looked at."""
    if isinstance(sink, Postgres):
        dsn = sink.dsn or running_dsn(settings)
        return PostgresTarget(
            sink, pipeline=name, delivery=delivery, dsn=dsn, timeout=settings.timeout
        )
    if isinstance(sink, KafkaSink):
        if sink.bootstrap_servers is not None:
            target = connection_at(sink.bootstrap_servers, settings)
        else:
            target = source or running_connection(settings)
        return KafkaTarget(
            sink,
            pipeline=name,
            delivery=delivery,
            source=source,
            target=target,
            topics=topics,
            lanes=1 if spark is None else int(spark.conf.get(SHUFFLE_PARTITIONS) or 1),
            settings=settings,
            runs=runs,
        )
    if isinstance(sink, Delta):
        assert spark is not None, "Delta is a library of Spark's"
        check_delta(spark, settings)
        return DeltaTarget(sink, pipeline=name, spark=spark, settings=settings, runs=runs)
    if isinstance(sink, Parquet):
        return ParquetTarget(sink, pipeline=name, settings=settings, runs=runs)
    if isinstance(sink, Console | Memory | Foreach):
        return unmanaged_target(
            sink, pipeline=name, delivery=delivery, spark=spark, settings=settings, runs=runs
        )
    raise ConfigError(f"a sink {type(sink).__name__} cannot be written.")


def target_at_rest(spec: PipelineSpec, settings: Settings, spark: SparkSession | None) -> Target:
    """A pipeline's target, to look at what it keeps. Its source is asked for nothing but brokers
    that they share."""
    shares = isinstance(spec.sink, KafkaSink) and spec.sink.bootstrap_servers is None
    return target_of(
        spec.sink,
        spec.name,
        delivery=spec.delivery,
        source=source_connection(spec, settings) if shares else None,
        topics=(),
        spark=spark,
        settings=settings,
    )


def source_connection(spec: PipelineSpec, settings: Settings) -> Connection | None:
    """To the brokers of the pipeline's Kafka sources; None if it has none."""
    servers = {each.bootstrap_servers for each in spec.streams.values() if isinstance(each, Kafka)}
    if len(servers) > 1:
        raise ConfigError(
            "the sources are on several Kafka clusters; one ledger needs one cluster."
        )
    if not servers:
        return None
    (chosen,) = servers
    return running_connection(settings) if chosen is None else connection_at(chosen, settings)


def home_of(spec: PipelineSpec, settings: Settings) -> Path:
    """The folder for what a pipeline keeps on this machine. If any end of it is in the local stack,
    it belongs to that stack and goes with it: offsets of topics that are gone mean nothing."""
    kafka = [
        each for each in (*spec.streams.values(), spec.sink) if isinstance(each, Kafka | KafkaSink)
    ]
    local = not settings.names_cluster and any(each.bootstrap_servers is None for each in kafka)
    if isinstance(spec.sink, Postgres) and spec.sink.dsn is None:
        local = local or settings.in_place_of_stack("postgres.dsn") is None
    if not local:
        return settings.state_dir
    return stack_folder(settings)


def runs_of(spec: PipelineSpec, settings: Settings) -> Path:
    """Where its runs are noted, if its store keeps no heartbeats."""
    return home_of(spec, settings) / RUNS


def runs_on(connection: Connection, settings: Settings) -> Path:
    """The same, for a job that names its brokers itself: they may be those of the local stack."""
    with contextlib.suppress(StackError):
        local = running_connection(settings).bootstrap_servers.split(",")
        if not settings.names_cluster and {*connection.bootstrap_servers.split(",")} <= {*local}:
            return stack_folder(settings) / RUNS
    return settings.runs_dir


def read_topics(spec: PipelineSpec) -> tuple[str, ...]:
    """The topics that are known to be read, and the names of the other sources."""
    found: list[str] = []
    for number, source in enumerate(spec.streams.values()):
        found += source.topic if isinstance(source, Kafka) else [f"{OTHER_SOURCE}{number}"]
    return tuple(found)


def connection_at(servers: str, settings: Settings) -> Connection:
    """The configured connection, to these brokers."""
    return Connection.of(settings.with_flags({"kafka.bootstrap.servers": servers}))
