"""The dead letters of a pipeline, wherever its sink keeps them, and those of a topic, as values."""

from typing import TYPE_CHECKING

import psycopg
from psycopg.rows import dict_row

from tallygate.consumer.dead_letters import DeadLetter, dead_letter_of, list_dead_letters
from tallygate.core.letters import Letter
from tallygate.endpoints import running_connection, running_dsn
from tallygate.errors import ConfigError, LedgerError
from tallygate.postgres.connect import connect
from tallygate.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tallygate.engine.opening import PipelineOrPath
    from tallygate.engine.pipeline import Pipeline
    from tallygate.spec import KafkaSink


def dead_letters(
    pipeline: "PipelineOrPath | None" = None,
    *,
    topic: str | None = None,
    settings: Settings | None = None,
    spark: "SparkSession | None" = None,
) -> list[DeadLetter]:
    """Every dead letter of a pipeline into PostgreSQL, a topic, a folder of Parquet or a Delta
    table; or every one in a topic of dead letters, as consumers write them.

    Only a Delta table needs a session: the one that is given, else the active one, else a new one,
    which is left running."""
    if (pipeline is None) == (topic is None):
        raise ConfigError("name either a pipeline or a topic of dead letters.")
    settings = settings or Settings.load()
    if topic is not None:
        return list_dead_letters(topic, running_connection(settings))
    assert pipeline is not None
    return _of_pipeline(pipeline, settings, spark)


def _of_pipeline(
    given: "PipelineOrPath", settings: Settings, spark: "SparkSession | None"
) -> list[DeadLetter]:
    # A topic is listed without a pipeline, and quickly: these modules take a second to import.
    from tallygate.engine.opening import load_pipeline, open_pipeline
    from tallygate.spec import Delta, KafkaSink, Parquet, Postgres

    pipeline = load_pipeline(given)
    sink, name = pipeline.sink, pipeline.name
    if isinstance(sink, KafkaSink):
        return _in_topic(pipeline, sink, settings)
    if isinstance(sink, Postgres):
        found = _in_table(sink.dsn or running_dsn(settings), name, settings.timeout)
    elif isinstance(sink, Parquet):
        found = _in_folder(sink.parquet, name)
    elif isinstance(sink, Delta):
        found = _in_delta(
            sink.delta, name, open_pipeline(pipeline, "dead letters", settings, spark).spark
        )
    else:
        file = settings.state_dir / "dead-letters" / f"{name}.jsonl"
        raise ConfigError(
            f"a sink {type(sink).__name__.lower()} keeps no ledger, which would say what counts; "
            f"what its runs have set aside on this machine is in {file}."
        )
    return [dead_letter_of(each) for each in sorted(found, key=lambda letter: letter.at)]


def _in_topic(pipeline: "Pipeline", sink: "KafkaSink", settings: Settings) -> list[DeadLetter]:
    """There may be those of others in it."""
    from tallygate.engine.factory import connection_at, source_connection

    if sink.bootstrap_servers is not None:
        connection = connection_at(sink.bootstrap_servers, settings)
    else:
        connection = source_connection(pipeline, settings) or running_connection(settings)
    topic, name = sink.dead_letters or f"{pipeline.name}.dead-letters", pipeline.name.encode()
    found = list_dead_letters(topic, connection)
    return [each for each in found if each.record.header("tallygate.pipeline") == name]


def _in_table(dsn: str, pipeline: str, timeout: float) -> list[Letter]:
    never = LedgerError(f"pipeline {pipeline!r} has never run into this database.")
    with connect(dsn, timeout=timeout, autocommit=True) as connection:
        try:
            query = "SELECT FROM tallygate.pipelines WHERE name = %s"
            if connection.execute(query, (pipeline,)).fetchone() is None:
                raise never
        except psycopg.errors.UndefinedTable:
            raise never from None
        rows = connection.cursor(row_factory=dict_row).execute(
            'SELECT topic, partition, "offset", cause, key, value, '
            "(extract(epoch FROM record_time) * 1000)::bigint AS time_ms "
            "FROM tallygate.dead_letters WHERE pipeline = %s",
            (pipeline,),
        )
        return [Letter(**row) for row in rows]


def _in_folder(text: str, pipeline: str) -> list[Letter]:
    from tallygate.targets.parquet.folder import Folder, is_closed
    from tallygate.targets.parquet.letters import read_letters

    folder = Folder.at(text)
    newest = folder.newest()
    if newest is None or newest.pipeline != pipeline:
        raise LedgerError(f"pipeline {pipeline!r} has never written to {folder.path}.")
    if is_closed(newest):
        raise LedgerError(
            f"{folder.path} was compacted into {newest.moved_to}: set sink.parquet to it."
        )
    commits = map(folder.commit, folder.numbers())
    return [letter for commit in commits for letter in read_letters(commit)]


def _in_delta(path: str, pipeline: str, spark: "SparkSession") -> list[Letter]:
    from tallygate.targets.delta.ledger import TableLedger
    from tallygate.targets.delta.letters import SHELF, LetterFolder
    from tallygate.targets.delta.table import DeltaTable

    table = DeltaTable(spark, path)
    _, entry = TableLedger(table, pipeline).newest_at()
    if entry is None:
        raise LedgerError(f"pipeline {pipeline!r} has never written to {table.path}.")
    folder = f"{pipeline}/letters"
    shelves = LetterFolder(table.own.at(folder))
    texts = (
        table.own.read(f"{folder}/{topic}/{partition}/{offset // SHELF}/{offset}.json")
        for (topic, partition), until in entry.state.positions.items()
        for offset in shelves.offsets((topic, partition), 0, until)
    )
    return [Letter.read(text) for text in texts if text is not None]
