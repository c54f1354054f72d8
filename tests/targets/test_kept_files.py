"""The names of files that tasks have left: they come with the results of tasks."""

from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql import SparkSession

from tallygate.targets.kept_files import KeptFiles


def test_names_come_back_with_what_tasks_have_done(spark: SparkSession) -> None:
    """From the last stage of a job as from one before a shuffle."""
    kept = KeptFiles()

    def run(blocks: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for block in blocks:
            kept.add([f"file-{at}" for at in block.column("id").to_pylist()])
            yield block

    rows = spark.range(0, 4, 1, 2).mapInArrow(run, "id long")
    assert len(rows.collect()) == 4
    assert kept.names() == {f"file-{at}" for at in range(4)}
    kept.forget(["file-0", "file-1", "file-2"])
    assert kept.names() == {"file-3"}
    rows.groupBy("id").count().collect()
    assert kept.names() == {f"file-{at}" for at in range(4)}
