"""Few large files instead of many small ones, by Delta's own OPTIMIZE.

It changes no row and moves no ledger, so readers and the pipeline go on meanwhile. The small files
stay for those who read older versions, until Delta's VACUUM removes them.
"""

from dataclasses import dataclass

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tallygate.errors import TargetError
from tallygate.quoting import backticked
from tallygate.spark.error_text import reason
from tallygate.spark.temporary_conf import held
from tallygate.targets.delta.table import DeltaTable

__all__ = ["Compacted", "compact"]

LARGEST = "spark.databricks.delta.optimize.maxFileSize"
SMALL = "spark.databricks.delta.optimize.minFileSize"


@dataclass(frozen=True)
class Compacted:
    files_before: int
    """How many small files there were."""
    files: int
    """How many they have become."""


def compact(folder: str, size: int, spark: SparkSession) -> Compacted:
    """Put files that are smaller than `size` bytes together into files of about that size."""
    path = DeltaTable(spark, folder).path
    try:
        with held(spark, {LARGEST: str(size), SMALL: str(size)}):
            metrics = spark.sql(f"OPTIMIZE delta.{backticked(path)}").collect()[0]["metrics"]
    except PySparkException as error:
        raise TargetError(f"Delta table {path} cannot be compacted: {reason(error)}") from error
    return Compacted(metrics["numFilesRemoved"], metrics["numFilesAdded"])
