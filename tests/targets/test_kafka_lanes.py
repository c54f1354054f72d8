"""By which columns rows are shared out over lanes: by what no second computation changes."""

from collections.abc import Mapping

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as t

from tallygate.core.decoding import COORDINATES
from tallygate.errors import LedgerError, TargetError
from tallygate.spark.settled import AGGREGATE, FUNCTION
from tallygate.targets.base import RowShape
from tallygate.targets.kafka.lanes import LONGEST, LaneChoice, check_unchanged
from tallygate.targets.kafka.records import LANE, as_records

LANES = 8


MAP = t.MapType(t.StringType(), t.LongType())
TYPES: dict[str, t.DataType] = {
    "long": t.LongType(),
    "double": t.DoubleType(),
    "string": t.StringType(),
    "map": MAP,
    "maps": t.ArrayType(t.StructType([t.StructField("m", MAP)])),
}
SUM = {"s": AGGREGATE}
NONE: Mapping[str, str] = {}


def shape(ddl: str, unsettled: Mapping[str, str] = NONE, *, located: bool = False) -> RowShape:
    schema = t.StructType()
    for each in ddl.split(", "):
        name, type_ = each.split()
        schema = schema.add(name, TYPES[type_])
    return RowShape(
        schema=schema, has_coordinates=located, narrow=False, stateful=True, unsettled=unsettled
    )


@pytest.mark.parametrize(
    ("given", "key", "chosen"),
    [
        (shape("id long, s double", SUM, located=True), "id", (None, COORDINATES)),
        (shape("id long, account string"), None, (None, ("id", "account"))),
        (shape("id long, account string"), "account", ("account", ("id", "account"))),
        (shape("account string, s double", SUM), None, (None, ("account",))),
        (shape("account string, s double", SUM), "s", (None, ("account",))),
        (shape("id long, m map, ms maps"), None, (None, ("id",))),
        (shape("id long, m map"), "m", (None, ("id",))),
        (shape("g string, s double", {"g": FUNCTION, **SUM}), "g", ("g", ())),
    ],
    ids=[
        "coordinates",
        "all",
        "key",
        "group",
        "a key that is a sum",
        "maps",
        "a map as the key",
        "a user's group",
    ],
)
def test_the_lane_is_chosen_by_what_is_settled(
    given: RowShape, key: str | None, chosen: tuple[str | None, tuple[str, ...]]
) -> None:
    found = LaneChoice.of(given, key)
    assert (found.key, found.columns) == chosen


@pytest.mark.parametrize("key", [None, "s"])
def test_rows_of_nothing_but_aggregates_are_refused(key: str | None) -> None:
    with pytest.raises(TargetError, match="'s', 'f'.*give the group's column as sink.key"):
        LaneChoice.of(shape("s double, f double", {"f": FUNCTION, **SUM}), key)


def test_a_choice_is_kept_in_few_words_and_no_two_in_the_same() -> None:
    names = [tuple(f"column {number} é" for number in range(many)) for many in (1, 40, 41)]
    choices = [LaneChoice(key=key, columns=each) for each in names for key in (None, "a", "b")]
    texts = [each.text() for each in choices]
    assert len(set(texts)) == len(choices)
    assert max(len(each.encode()) for each in texts) <= LONGEST
    assert texts[0] == "'column 0 é'"


def test_a_batch_that_is_in_some_lanes_must_go_to_the_same_ones() -> None:
    check_unchanged("p", "'a'", "'a'")
    with pytest.raises(LedgerError, match="by 'a', and would go by 'b'.*Set it back"):
        check_unchanged("p", "'a'", "'b'")
    with pytest.raises(LedgerError, match="as an older Tallygate does, and would go by 'b'"):
        check_unchanged("p", None, "'b'")


def test_a_sum_that_differs_in_its_last_digit_does_not_change_the_lane(spark: SparkSession) -> None:
    """The twin chooses by the sum as well."""
    choice = LaneChoice.of(shape("account string, s double", SUM), None)
    one, other = _rows(spark), _rows(spark, "* 1.0000000000000002D")
    assert _lanes(one, choice) == _lanes(other, choice)
    assert set(_lanes(one, choice).values()) == set(range(LANES))
    twin = LaneChoice(key=None, columns=("account", "s"))
    assert _lanes(one, twin) != _lanes(other, twin)


def test_rows_of_one_key_are_in_one_lane_and_those_without_are_spread(spark: SparkSession) -> None:
    choice = LaneChoice(key="account", columns=("account", "id"))
    keyed = _rows(spark)
    moved = keyed.withColumn("id", f.col("id") + 1)
    assert _lanes(keyed, choice) == _lanes(moved, choice)
    nulls = keyed.withColumn("account", f.lit(None).cast("string"))
    assert set(_lanes(nulls, choice, of="id").values()) == set(range(LANES))


def _rows(spark: SparkSession, more: str = "") -> DataFrame:
    sums = f"(id + 0.1D) {more} AS s"
    return spark.range(200).selectExpr("id", "concat('a', id) AS account", sums)


def _lanes(rows: DataFrame, choice: LaneChoice, of: str = "account") -> dict[str, int]:
    """The lane of each row, by one of its columns."""
    records = as_records(
        rows, key=None, format="json", added=(), has_coordinates=False, lane=choice.value()
    )
    shared = records.repartition(LANES, f.col(LANE)).drop(LANE)
    name = f.get_json_object(f.col("value").cast("string"), f"$.{of}")
    found = shared.select(name.alias("name"), f.spark_partition_id().alias("lane")).collect()
    return {row["name"]: row["lane"] for row in found}
