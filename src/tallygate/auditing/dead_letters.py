"""The dead letters of a pipeline, wherever its target keeps them, and those of a topic."""

from typing import TYPE_CHECKING

from tallygate.core.letters import DeadLetter
from tallygate.endpoints import running_connection
from tallygate.errors import ConfigError
from tallygate.kafka.dead_letters import list_dead_letters
from tallygate.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tallygate.engine.opening import PipelineOrPath


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
    # A topic is listed without a pipeline, and quickly: these modules take a second to import.
    from tallygate.engine.factory import target_at_rest
    from tallygate.engine.opening import load_pipeline, open_pipeline

    loaded = load_pipeline(pipeline)
    if loaded.sink.needs_delta:
        spark = open_pipeline(loaded, "dead letters", settings, spark).spark
    return target_at_rest(loaded, settings, spark).letters()
