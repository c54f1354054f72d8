"""A small program that uses what pipelines use of Spark: `python -m tallygate.spark.warming FILE`
writes down the classes that it loaded (see `classes`)."""

import contextlib
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession

from tallygate.settings import Settings
from tallygate.spark.session import session


def warm(spark: SparkSession, folder: Path) -> None:
    """Batches of a stream, through JSON, SQL, a Python worker, a shuffle and state, into files."""
    spark.range(100).selectExpr("id", "to_json(struct(id)) AS value").write.json(f"{folder}/in")

    def write(batch: DataFrame, _: int) -> None:
        batch.write.mode("append").parquet(f"{folder}/out")
        batch.collect()

    rows = spark.readStream.schema("id long, value string").json(f"{folder}/in")
    decoded = rows.selectExpr("from_json(value, 'id long') AS v", "current_timestamp() AS at")
    passed = decoded.selectExpr("v.id", "at").mapInArrow(_pass, "id long, at timestamp")
    counted = passed.withWatermark("at", "1 minute").groupBy("id").count()
    for number, frame in enumerate((passed, counted)):
        query = (
            frame.writeStream.foreachBatch(write)
            .outputMode("update")
            .option("checkpointLocation", f"{folder}/checkpoint-{number}")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    spark.read.parquet(f"{folder}/out").toArrow()


def _pass(blocks: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from blocks


def main(archive: Path) -> None:
    options = {"spark.driver.extraJavaOptions": f"-XX:ArchiveClassesAtExit={archive}"}
    spark = session("classes", settings=Settings.load(), master="local[2]", config=options)
    with tempfile.TemporaryDirectory() as folder:
        warm(spark, Path(folder))
    gateway: Any = spark.sparkContext._gateway
    spark.stop()
    with contextlib.suppress(Py4JError, OSError):
        gateway.jvm.System.exit(0)  # which is when the JVM writes the archive
    sys.exit(gateway.proc.wait())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
