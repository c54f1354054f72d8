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
from tallygate.spark.temporary_conf import temporary_conf
from tallygate.targets.delta.table import DeltaTable

LARGEST = "spark.databricks.delta.optimize.maxFileSize"
SMALL = "spark.databricks.delta.optimize.minFileSize"


@dataclass(frozen=True)
class TableCompaction:
    files_before: int
    """How many small files there were."""
    files: int
    """How many they have become."""


def compact_table(folder: str, *, target_bytes: int, spark: SparkSession) -> TableCompaction:
    """Put files of fewer than so many bytes together into files of about that size."""
    path = DeltaTable(spark, folder).path
    try:
        with temporary_conf(spark, {LARGEST: str(target_bytes), SMALL: str(target_bytes)}):
            metrics = spark.sql(f"OPTIMIZE delta.{backticked(path)}").collect()[0]["metrics"]
    except PySparkException as error:
        raise TargetError(f"Delta table {path} cannot be compacted: {reason(error)}.") from error
    return TableCompaction(metrics["numFilesRemoved"], metrics["numFilesAdded"])
