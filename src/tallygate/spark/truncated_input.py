"""A task's rows are all there, or the task fails.

**A cut input is no end.** When what computes a task's rows fails in the JVM, when the task is
killed, or the JVM is, the worker's socket is closed. Between two blocks Arrow takes that for the
end of the stream. A task that commits by itself would then commit the part that it was given, move
the ledger over all of it, and the rest would be lost without a word.

After a whole stream Spark says `END_OF_STREAM`. So a worker that has read all blocks looks whether
anything follows them: if the stream just ends, it was cut. PySpark has no place for that, so its
serializer is replaced; and a task whose rows came by another way than this one fails too.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.serializers import ArrowStreamSerializer

from tallygate.errors import MachineError

_load = ArrowStreamSerializer.load_stream
_ends = 0


def whole_input(blocks: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """All blocks of a task, in a worker of Spark's, or an error after the last that arrived."""
    ArrowStreamSerializer.load_stream = _load_whole  # type: ignore[method-assign]
    before = _ends
    yield from blocks
    if _ends == before:
        raise MachineError(
            "this Spark hands rows to Python in a way that is not known here, so a task could not "
            "see whether its rows were cut off; use a PySpark from 4.0 to 4.2."
        )


@contextmanager
def insisting() -> Iterator[None]:
    """Read whole streams in here, or none."""
    before = ArrowStreamSerializer.load_stream
    ArrowStreamSerializer.load_stream = _load_whole  # type: ignore[method-assign]
    try:
        yield
    finally:
        ArrowStreamSerializer.load_stream = before  # type: ignore[method-assign]


def ends_seen() -> int:
    """How many streams were read to Spark's own end, in this process."""
    return _ends


def _load_whole(self: ArrowStreamSerializer, stream: Any) -> Iterator[pa.RecordBatch]:
    global _ends
    yield from _load(self, stream)  # type: ignore[no-untyped-call]
    if not stream.peek(1):
        raise EOFError("the rows of this task were cut off: what computes them has failed.")
    _ends += 1
