"""What the functions of the public API open: a pipeline or its file, settings, a Spark session."""

from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from tallygate.engine.pipeline import Pipeline
from tallygate.settings import Settings
from tallygate.spark.session import session

PipelineOrPath = Pipeline | str | Path
"""A pipeline, or the path of its YAML file."""


@dataclass(frozen=True)
class Opened:
    pipeline: Pipeline
    settings: Settings
    spark: SparkSession


def load_pipeline(given: PipelineOrPath) -> Pipeline:
    return given if isinstance(given, Pipeline) else Pipeline.load(given)


def open_pipeline(
    given: PipelineOrPath, doing: str, settings: Settings | None, spark: SparkSession | None
) -> Opened:
    """The session is the one that is given, else the active one, else a new one. It is left
    running, as `Pipeline.run` leaves it: the next call takes it over."""
    pipeline, settings = load_pipeline(given), settings or Settings.load()
    name = f"tallygate {doing} {pipeline.name}"
    running = session(name, existing=spark, settings=settings, delta=pipeline.needs_delta)
    return Opened(pipeline, settings, running)
