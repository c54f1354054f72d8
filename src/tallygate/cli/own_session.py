"""The Spark session of one command: its start is shown, and it ends with the command."""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tallygate.cli.output import progress_display

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tallygate.engine.pipeline import Pipeline
    from tallygate.settings import Settings


@contextmanager
def own_session(
    file: Path, settings: "Settings", doing: str = ""
) -> "Iterator[tuple[Pipeline, SparkSession]]":
    """The pipeline of a file, and a Spark session that ends with the block.

    To import what runs a pipeline takes a second and a JVM longer to start, so both are done at
    once: of the pipeline, Spark must know no more than its file says."""
    from tallygate.spark.session import session
    from tallygate.spec import load_spec

    spec = load_spec(file)
    with progress_display() as progress:
        spark = session(
            " ".join(filter(None, ("tallygate", doing, spec.name))),
            settings=settings,
            progress=progress,
            delta=spec.needs_delta,
            meanwhile=lambda: importlib.import_module("tallygate.engine.pipeline"),
        )
    from tallygate.engine.pipeline import Pipeline

    try:
        yield Pipeline.load(file), spark
    finally:
        spark.stop()
