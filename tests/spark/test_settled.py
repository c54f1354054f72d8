"""What a second computation of a batch may change is known by the plan, and where it goes."""

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from tallygate.spark.settled import AGGREGATE, FUNCTION, unsettled_columns

QUERIES = {
    "SELECT id, id * 0.1D AS part FROM range(3)": {},
    "SELECT id % 2 AS g, count(*) AS n, sum(id * 0.1D) AS s FROM range(9) GROUP BY 1": {"n", "s"},
    "SELECT g, s + 1 AS more, 'x' AS x FROM (SELECT id % 2 AS g, avg(id) AS s FROM range(9) "
    "GROUP BY 1)": {"more"},
    "SELECT g + sum(id) AS x, g FROM (SELECT id, id % 2 AS g FROM range(9)) GROUP BY g": {"x"},
    "SELECT DISTINCT id % 2 AS g FROM range(9)": {},
    "SELECT id AS n FROM range(9) UNION ALL SELECT count(*) FROM range(9)": {"n"},
    "WITH t AS (SELECT id % 2 AS g, sum(id) AS s FROM range(9) GROUP BY 1) "
    "SELECT a.g, b.s AS other FROM t a JOIN t b ON a.g = b.g": {"other"},
    "SELECT g, each FROM (SELECT id % 2 AS g, collect_list(id) AS ids FROM range(9) GROUP BY 1) "
    "LATERAL VIEW explode(ids) AS each": {"each"},
    "SELECT struct(g, s) AS pair, g FROM (SELECT id % 2 AS g, max(id) AS s FROM range(9) "
    "GROUP BY 1) WHERE s > 1": {"pair"},
}


@pytest.mark.parametrize("query", QUERIES)
def test_what_an_aggregate_gives_is_known_wherever_it_goes(spark: SparkSession, query: str) -> None:
    assert unsettled_columns(spark.sql(query)) == dict.fromkeys(QUERIES[query], AGGREGATE)


def _stream(spark: SparkSession) -> DataFrame:
    rate = spark.readStream.format("rate").load().withWatermark("timestamp", "10 seconds")
    return rate.selectExpr("timestamp AS at", "value AS id", "value % 2 AS g", "value * 0.1D AS x")


def test_windows_of_a_stream_are_settled_and_their_sums_are_not(spark: SparkSession) -> None:
    window = f.window("at", "20 seconds", "10 seconds").alias("w")
    summed = _stream(spark).groupBy(window, "g").agg(f.sum("x").alias("s"))
    found = unsettled_columns(summed.selectExpr("w.start AS start", "w", "g", "s * 2 AS s"))
    assert found == {"s": AGGREGATE}


def test_of_duplicates_any_may_stay(spark: SparkSession) -> None:
    kept = _stream(spark).dropDuplicatesWithinWatermark(["g"])
    assert unsettled_columns(kept).keys() == {"at", "id", "x"}
    assert unsettled_columns(_stream(spark).dropDuplicates(["g", "at"])).keys() == {"id", "x"}


def test_functions_of_the_users_make_settled_columns_of_settled_ones_alone(
    spark: SparkSession,
) -> None:
    def same(blocks: object) -> object:
        return blocks

    rows = spark.range(9)
    assert unsettled_columns(rows.mapInArrow(same, "id long")) == {}  # type: ignore[arg-type]
    summed = rows.groupBy((f.col("id") % 2).alias("g")).agg(f.sum("id").alias("s"))
    mapped = summed.mapInArrow(same, "g long, s long")  # type: ignore[arg-type]
    assert unsettled_columns(mapped) == {"g": AGGREGATE, "s": AGGREGATE}


def test_what_a_function_makes_of_a_group_is_not_known(spark: SparkSession) -> None:
    def total(key: object, rows: object, state: object) -> object:
        yield rows

    grouped = (
        _stream(spark)
        .groupBy("g")
        .applyInPandasWithState(
            total,  # type: ignore[arg-type]
            "g long, s double",
            "s double",
            "append",
            "NoTimeout",
        )
    )
    assert unsettled_columns(grouped) == {"g": FUNCTION, "s": FUNCTION}
