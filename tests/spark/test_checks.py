"""What is used of Spark's internals is there, or the session is refused."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.pandas import serializers

from tallygate.errors import MachineError
from tallygate.spark import checks
from tallygate.spark.checks import INTERNALS, check_internals


@pytest.fixture(autouse=True)
def _unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "_checked", set())


def test_this_spark_is_one_that_is_known(spark: SparkSession) -> None:
    check_internals(spark)


@pytest.mark.parametrize(
    ("internals", "lacking"),
    [
        ({"org.apache.spark.sql.NotThere": ("x/0",)}, "the class org.apache.spark.sql.NotThere"),
        ({next(iter(INTERNALS)): ("children/0", "notThere/0")}, "LogicalPlan.notThere"),
    ],
)
def test_a_spark_that_lacks_something_is_refused_and_says_what(
    internals: dict[str, tuple[str, ...]], lacking: str, spark: SparkSession
) -> None:
    with pytest.raises(MachineError, match=f"lacks .*{lacking}"):
        check_internals(spark, internals)


def test_a_serializer_that_reads_blocks_in_another_way_is_refused(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a later PySpark may: then the end of a stream that was cut would be taken for its end."""

    class Other(serializers.ArrowStreamUDFSerializer):
        def load_stream(self, stream: Any) -> Any:
            import pyarrow as pa

            yield from pa.ipc.open_stream(stream)

    monkeypatch.setattr(serializers, "ArrowStreamUDFSerializer", Other)
    with pytest.raises(MachineError, match="ArrowStreamUDFSerializer"):
        check_internals(spark)


def test_a_jvm_of_another_version_is_refused(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyspark.__version__", "4.9.0")
    with pytest.raises(MachineError, match=r"PySpark is 4\.9\.0 and the Spark"):
        check_internals(spark)


def test_a_session_of_spark_connect_is_refused() -> None:
    with pytest.raises(MachineError, match="Spark Connect"):
        check_internals(cast(SparkSession, SimpleNamespace()))
