"""What Spark said, in one line."""

from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from tallygate.spark.error_text import is_of_row, reason

PYTHON = """
  An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "job.py", line 3, in run
ZeroDivisionError: division by zero
"""


def test_codes_are_left_out() -> None:
    said = "[TABLE_OR_VIEW_NOT_FOUND] The view `x` is not there. SQLSTATE: 42P01;\nmore"
    assert reason(Exception(said)) == "The view `x` is not there"


def test_a_class_is_left_out_where_a_code_says_more() -> None:
    said = "org.apache.spark.SparkRuntimeException: [MALFORMED_CSV_RECORD] Malformed CSV record: 2"
    assert reason(Exception(said)) == "Malformed CSV record: 2"
    alone = 'java.lang.NumberFormatException: For input string: "x"'
    assert reason(Exception(alone)) == alone


def test_of_a_traceback_the_last_line_tells() -> None:
    assert reason(Exception(PYTHON)) == "ZeroDivisionError: division by zero"


def test_an_error_without_words_has_its_name() -> None:
    assert reason(ValueError()) == "ValueError"


@pytest.mark.parametrize(
    "made",
    ["1 DIV (id - 3)", "CAST('x' || id AS int)", "raise_error('no')", "element_at(array(1), 3)"],
)
def test_spark_blames_a_row(spark: SparkSession, made: str) -> None:
    with pytest.raises((PySparkException, Py4JJavaError)) as failed:
        spark.range(5).selectExpr(f"{made} AS made").write.format("noop").mode("append").save()
    assert is_of_row(failed.value)


def test_spark_blames_a_row_on_which_a_function_fails(spark: SparkSession) -> None:
    share = f.udf(lambda id: 1 // (id - 3), "long")
    with pytest.raises((PySparkException, Py4JJavaError)) as failed:
        spark.range(5).select(share("id")).write.format("noop").mode("append").save()
    assert is_of_row(failed.value)


def test_a_file_that_is_gone_is_no_rows_fault(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(5).write.parquet(str(tmp_path / "rows"))
    rows = spark.read.parquet(str(tmp_path / "rows"))
    for file in (tmp_path / "rows").glob("part-*"):
        file.unlink()
    with pytest.raises((PySparkException, Py4JJavaError)) as failed:
        rows.write.format("noop").mode("append").save()
    assert not is_of_row(failed.value)
