"""Digests lead to the stretches that differ, and to no others; rows are judged in groups."""

from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tallygate.auditing.comparing import compared, strangers
from tallygate.auditing.digests import Digests, contradict, differing, parts_of, stretch
from tallygate.core.offsets import Range

CHECKED = [Range("t", 0, 50, 350)]
NAN, INFINITE = float("nan"), float("inf")


def test_only_stretches_that_differ_are_looked_at() -> None:
    same = {("t", 0, 0): (50, 1, 1), ("t", 0, 1): (100, 2, 2), ("t", 0, 3): (50, 3, 3)}
    mine, theirs = Digests(same, 0), Digests({**same, ("t", 0, 1): (100, 2, 9)}, 0)
    assert parts_of(differing(mine, mine), 100, CHECKED) == []
    assert parts_of(differing(mine, theirs), 100, CHECKED) == [Range("t", 0, 100, 200)]
    more = Digests({**same, ("t", 0, 2): (1, 0, 0)}, 0)
    assert parts_of(differing(mine, more), 100, CHECKED) == [Range("t", 0, 200, 300)]
    assert parts_of(differing(mine, Digests({}, 0)), 100, CHECKED) == [
        Range("t", 0, 50, 200),
        Range("t", 0, 300, 350),
    ]


def test_a_sum_that_overflowed_proves_nothing() -> None:
    broken = Digests({("t", 0, 0): (50, None, 1)}, 0)
    assert parts_of(differing(broken, broken), 100, CHECKED) == [Range("t", 0, 50, 100)]
    assert not contradict(broken, broken)
    assert not contradict(broken, Digests({("t", 0, 0): (50, 7, 1)}, 0))
    assert contradict(broken, Digests({("t", 0, 0): (50, 7, 2)}, 0))
    assert contradict(broken, Digests({}, 0))


def test_there_are_never_too_many_digests() -> None:
    assert stretch(CHECKED) == 4096
    assert stretch([Range("t", 0, 0, 10**12)]) == 50_000_000


def _sums(spark: SparkSession, *sums: float | None) -> DataFrame:
    return spark.createDataFrame([("a", each) for each in sums], "account string, total double")


@pytest.mark.parametrize(
    ("mine", "theirs", "found"),
    [
        ((0.1 + 0.2 + 0.3,), (0.3 + 0.2 + 0.1,), (set(), 0)),
        ((NAN,), (NAN,), (set(), 0)),
        ((None,), (None,), (set(), 0)),
        ((100.0,), (100.001,), ({"different"}, 0)),
        ((NAN,), (1.0,), ({"different"}, 0)),
        ((INFINITE,), (1.0,), ({"different"}, 0)),
        ((None,), (0.0,), ({"different"}, 0)),
        ((1e-17,), (0.0,), (set(), 1)),  # what is left of large numbers that cancel out
        ((1.0, 2.0, 3.0), (3.0, 2.0, 1.0), (set(), 0)),
        ((1.0, 2.0, 3.0), (1.0, 2.5, 3.0), (set(), 1)),  # which is which is not known
    ],
)
def test_sums_are_the_same_if_their_order_explains_the_difference(
    spark: SparkSession, mine: Any, theirs: Any, found: tuple[set[str], int]
) -> None:
    done = compared(_sums(spark, *mine), _sums(spark, *theirs), ["account"], [], ["total"])
    assert ({each.kind for each in done.anomalies}, done.unsure) == found


def test_rows_of_no_columns_are_counted(spark: SparkSession) -> None:
    done = compared(spark.range(3), spark.range(2), [], [])
    assert [(each.kind, each.count) for each in done.anomalies] == [("missing", 1)]


def test_a_row_must_equal_one_of_those_of_its_key(spark: SparkSession) -> None:
    expected = spark.createDataFrame([("a", 1), ("a", None), ("b", 3)], "key string, value int")
    right = spark.createDataFrame([("a", None), ("b", 3), ("c", 9)], "key string, value int")
    assert strangers(expected, right, ["key"], ["value"]) == [], "c is no key of theirs"
    wrong = spark.createDataFrame([("a", 3), ("b", 3)], "key string, value int")
    (found,) = strangers(expected, wrong, ["key"], ["value"])
    assert (found.kind, found.count, found.examples) == ("different", 1, ('{"key":"a"}',))
