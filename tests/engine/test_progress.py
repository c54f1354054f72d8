"""What Spark says of a query, counted once."""

from typing import Any

import pytest

from tallygate.engine.progress import AtStart, SparkReports, only_dead_letters
from tallygate.engine.source_check import lag_of
from tallygate.kafka.connection import Connection


def test_rows_that_were_late_are_counted_once() -> None:
    """The heart and the batch at hand both ask, and one of them may hold what is older."""
    reports = SparkReports()
    for batch in (4, 4, 5, 4, 5):
        operator = {"numRowsDroppedByWatermark": 10, "numRowsTotal": 1, "memoryUsedBytes": 1}
        said: dict[str, Any] = {"batchId": batch, "stateOperators": [operator]}
        reports.last = lambda said=said: said  # type: ignore[misc]
        reports.state()
    assert reports.late == 20


@pytest.mark.parametrize(
    ("records", "rows", "letters", "filters", "only"),
    [
        (10, 0, 10, True, True),
        (10, 1, 9, True, False),
        (10, 0, 0, True, False),  # a transform that leaves all out
        (100, 0, 60, True, False),  # and one that leaves the rest out
        (0, 0, 0, True, False),  # nothing was there
        (0, 0, 3, False, False),  # letters of records that came with an earlier batch
        (2, 0, 1, False, True),  # a record, and the mark that ends its transaction
    ],
)
def test_nothing_but_dead_letters(
    records: int, rows: int, letters: int, filters: bool, only: bool
) -> None:
    found = only_dead_letters(records=records, rows=rows, letters=letters, filters=filters)
    assert found is only


def test_the_lag_is_known_before_a_batch_if_the_ledger_and_kafka_know_it() -> None:
    assert AtStart().said(0) == {}
    assert AtStart({("t", 0): 7}).said(3) == {}, "Kafka has not said where the partition ends"
    assert AtStart({("t", 0): 7, ("gone", 0): 9}, {("t", 0): 0}).said(3) == {
        "letters": 3,
        "lag": {"t/0": 0},
        "positions": {"t/0": 7, "gone/0": 9},
    }


def test_without_kafka_no_lag_is_known() -> None:
    assert lag_of({("t", 0): 7}, None) == {}
    assert lag_of({}, Connection.to("127.0.0.1:9")) == {}
