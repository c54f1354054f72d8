"""What the engine counts, apart from Spark."""

from typing import Any

from tallygate.engine.batch import Engine
from tallygate.spec import DeadLetters


def test_rows_that_were_late_are_counted_once() -> None:
    """The heart and the batch at hand both ask, and one of them may hold what is older."""
    nothing: Any = None
    engine = Engine(nothing, nothing, nothing, DeadLetters(), lambda _: {}, None)
    for batch in (4, 4, 5, 4, 5):
        operator = {"numRowsDroppedByWatermark": 10, "numRowsTotal": 1, "memoryUsedBytes": 1}
        said = {"batchId": batch, "stateOperators": [operator]}
        engine.spark_progress = lambda said=said: said  # type: ignore[misc]
        engine.state()
    assert engine.late == 20
