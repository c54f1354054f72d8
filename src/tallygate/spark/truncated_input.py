"""A task's rows are all there, or the task fails.

**A cut input is no end.** When what computes a task's rows fails in the JVM, when the task is
killed, or the JVM is, the worker's socket is closed. Between two blocks Arrow takes that for the
end of the stream. A task that commits by itself would then commit the part that it was given, move
the ledger over all of it, and the rest would be lost without a word.

After a whole stream Spark says `END_OF_STREAM`. So a worker that has read all blocks looks whether
anything follows them: if the stream just ends, it was cut.
"""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.serializers import ArrowStreamSerializer

__all__ = ["insist_on_whole_input"]

_load = ArrowStreamSerializer.load_stream


def insist_on_whole_input() -> None:
    """From now on, in this worker. It must be called before the first block is taken."""
    ArrowStreamSerializer.load_stream = _load_whole  # type: ignore[method-assign]


def _load_whole(self: ArrowStreamSerializer, stream: Any) -> Iterator[pa.RecordBatch]:
    yield from _load(self, stream)  # type: ignore[no-untyped-call]
    if not stream.peek(1):
        raise EOFError("the rows of this task were cut off: what computes them has failed.")
