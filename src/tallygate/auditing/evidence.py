"""Which evidence a sink gives."""

from contextlib import AbstractContextManager

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from tallygate.auditing.delta import version_evidence
from tallygate.auditing.kafka import topic_evidence
from tallygate.auditing.ledger_snapshot import Evidence
from tallygate.auditing.parquet import folder_evidence
from tallygate.auditing.postgres import table_evidence
from tallygate.endpoints import running_dsn
from tallygate.engine.factory import connection_at, source_connection
from tallygate.engine.pipeline import Pipeline
from tallygate.engine.start import look
from tallygate.errors import ConfigError
from tallygate.kafka.connection import Connection
from tallygate.settings import Settings
from tallygate.spark.session import check_delta
from tallygate.spec import Delta, Kafka, KafkaSink, Parquet, Postgres


def kafka_source(pipeline: Pipeline, settings: Settings) -> Connection:
    """To the brokers of a pipeline that reads nothing but Kafka."""
    connection = source_connection(pipeline, settings)
    if connection is None or not all(isinstance(s, Kafka) for s in pipeline.streams.values()):
        raise ConfigError(
            "only pipelines that read Kafka can be audited: others cannot be read again."
        )
    return connection


def evidence_of(
    pipeline: Pipeline, source: Connection, spark: SparkSession, settings: Settings
) -> AbstractContextManager[Evidence]:
    """What the pipeline's sink holds and its ledger claims, now."""
    sink, name = pipeline.sink, pipeline.name
    if isinstance(sink, Postgres):
        dsn = sink.dsn or running_dsn(settings)
        return table_evidence(sink, name, dsn, spark, settings.timeout)
    if isinstance(sink, Parquet):

        def schema() -> StructType:
            _, shape = look(pipeline.request(spark, settings, {}))
            return shape.schema if sink.coordinates else shape.without_coordinates()

        return folder_evidence(sink.parquet, name, spark, schema)
    if isinstance(sink, Delta):
        check_delta(spark, settings)
        return version_evidence(sink.delta, name, spark)
    if isinstance(sink, KafkaSink):
        servers = sink.bootstrap_servers
        target = source if servers is None else connection_at(servers, settings)
        passes = pipeline.transform is None
        return topic_evidence(sink, name, source, target, spark, settings, passes=passes)
    raise ConfigError(
        f"a sink {type(sink).__name__.lower()} keeps no ledger, so there is nothing to audit."
    )
