"""Which store a sink belongs to, which brokers a source, and what is kept on this machine."""

from pathlib import Path

from pyspark.sql import SparkSession

from tallygate.core.offsets import OTHER_SOURCE
from tallygate.endpoints import running_connection, running_dsn, stack_folder
from tallygate.errors import ConfigError
from tallygate.kafka.connection import Connection
from tallygate.settings import Settings
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
from tallygate.targets.delta.store import DeltaStore
from tallygate.targets.kafka.store import KafkaStore
from tallygate.targets.parquet.store import ParquetStore
from tallygate.targets.postgres.store import PostgresStore
from tallygate.targets.store import Store
from tallygate.targets.unmanaged import PlainStore

__all__ = ["connection_at", "home_of", "read_topics", "source_connection", "store_of"]


def store_of(
    sink: Part,
    name: str,
    delivery: Delivery,
    source: Connection | None,
    topics: tuple[str, ...],
    spark: SparkSession,
    settings: Settings,
) -> Store:
    if isinstance(sink, Postgres):
        dsn = sink.dsn or running_dsn(settings)
        return PostgresStore(sink, name, delivery, dsn, settings.timeout)
    if isinstance(sink, KafkaSink):
        if sink.bootstrap_servers is not None:
            target = connection_at(sink.bootstrap_servers, settings)
        else:
            target = source or running_connection(settings)
        lanes = int(spark.conf.get("spark.sql.shuffle.partitions") or 1)
        return KafkaStore(sink, name, delivery, source, target, topics, lanes, settings)
    if isinstance(sink, Delta):
        check_delta(spark, settings)
        return DeltaStore(sink, name, delivery, spark, settings)
    if isinstance(sink, Parquet):
        return ParquetStore(sink, name, delivery, settings)
    if isinstance(sink, Console | Memory | Foreach):
        return PlainStore(sink, name, delivery, spark, settings)
    raise ConfigError(f"a sink {type(sink).__name__} cannot be written.")


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


def read_topics(spec: PipelineSpec) -> tuple[str, ...]:
    """The topics that are known to be read, and the names of the other sources."""
    found: list[str] = []
    for number, source in enumerate(spec.streams.values()):
        found += source.topic if isinstance(source, Kafka) else [f"{OTHER_SOURCE}{number}"]
    return tuple(found)


def connection_at(servers: str, settings: Settings) -> Connection:
    """The configured connection, to these brokers."""
    return Connection.of(settings.with_flags({"kafka.bootstrap.servers": servers}))
