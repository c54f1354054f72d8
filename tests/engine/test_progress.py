"""What Spark says of a query, counted once."""

from typing import Any

from tallygate.engine.progress import SparkReports


def test_rows_that_were_late_are_counted_once() -> None:
    """The heart and the batch at hand both ask, and one of them may hold what is older."""
    reports = SparkReports()
    for batch in (4, 4, 5, 4, 5):
        operator = {"numRowsDroppedByWatermark": 10, "numRowsTotal": 1, "memoryUsedBytes": 1}
        said: dict[str, Any] = {"batchId": batch, "stateOperators": [operator]}
        reports.last = lambda said=said: said  # type: ignore[misc]
        reports.state()
    assert reports.late == 20
