"""What can be compared is, whatever its type; what cannot is named."""

from typing import Any

import pytest
from pyspark.sql import SparkSession

from tallygate.auditing.comparable import sides_of
from tallygate.auditing.comparing import compared


def _kinds(spark: SparkSession, schema: str, expected: Any, found: Any) -> set[str]:
    """What is found in rows of a number and a value."""
    mine = spark.createDataFrame([(1, expected)], f"id int, value {schema}")
    theirs = spark.createDataFrame([(1, found)], f"id int, value {schema}")
    sides = sides_of(mine, theirs)
    assert (sides.content, sides.left_out, sides.absent) == (("id", "value"), (), ())
    done = compared(sides.expected, sides.found, ["id"], ["value"])
    return {each.kind for each in done.anomalies}


@pytest.mark.parametrize(
    ("schema", "value", "other"),
    [
        ("array<int>", [1, None, 2], [None, 1, 2]),
        ("array<array<int>>", [[1], [2]], [[1, 2]]),
        ("array<int>", [], None),
        ("struct<a:int,b:int>", (1, None), (None, 1)),
        ("struct<a:int>", (None,), None),
        ("map<string,int>", {"a": 1, "b": None}, {"a": None, "b": 1}),
        ("array<map<string,int>>", [{"a": 1}], [{"a": 2}]),
        ("struct<m:map<string,array<int>>>", ({"a": [1]},), ({"a": [2]},)),
    ],
)
def test_nested_values_are_compared(
    spark: SparkSession, schema: str, value: Any, other: Any
) -> None:
    assert _kinds(spark, schema, value, value) == set()
    assert _kinds(spark, schema, value, other) == {"different"}


def test_the_order_of_a_map_is_none(spark: SparkSession) -> None:
    assert _kinds(spark, "map<string,int>", {"a": 1, "b": 2}, {"b": 2, "a": 1}) == set()


def test_columns_that_cannot_be_compared_are_named(spark: SparkSession) -> None:
    """What PostgreSQL keeps as jsonb comes back as a text with another order of its keys."""
    given = spark.range(1).selectExpr(
        "id", "array(id) AS listed", "parse_json('1') AS any", "1.5D AS sum", "array(1.5D) AS sums"
    )
    rows = spark.range(1).selectExpr(
        "id AS ID", "'[1]' AS listed", "'1' AS any", "1.5D AS sum", "array(1.5D) AS sums", "2 AS x"
    )
    plain, summed = sides_of(given, rows), sides_of(given, rows, summed=True)
    assert (plain.content, plain.close) == (("id", "sum", "sums"), ())
    assert plain.left_out == ("listed", "any")
    assert (summed.content, summed.close) == (("id",), ("sum",))
    assert summed.left_out == ("listed", "any", "sums")


def test_a_column_that_the_sink_lacks_is_said(spark: SparkSession) -> None:
    given = spark.range(1).selectExpr("id", "id AS gone", "0L AS _offset")
    sides = sides_of(given, spark.range(1))
    assert sides.absent == ("gone",), "rows need not carry coordinates"
    assert sides.unknown[0].startswith("the sink has no column gone")
