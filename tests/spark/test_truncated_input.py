"""Rows that a worker is given: all of them, or an error."""

import io
import struct
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.serializers import SpecialLengths
from pyspark.sql.pandas.serializers import ArrowStreamSerializer

from tallygate.errors import MachineError
from tallygate.spark.truncated_input import whole_input

BLOCKS = [pa.RecordBatch.from_pydict({"n": [number]}) for number in range(3)]


@pytest.fixture
def stream() -> bytes:
    """What the JVM sends to a worker."""
    sent = io.BytesIO()
    with pa.ipc.new_stream(sent, BLOCKS[0].schema) as writer:
        for block in BLOCKS:
            writer.write_batch(block)
    return sent.getvalue() + struct.pack("!i", SpecialLengths.END_OF_STREAM)


@pytest.fixture(params=["between blocks", "after all of them"])
def cut(request: pytest.FixtureRequest, stream: bytes) -> bytes:
    if request.param == "after all of them":
        return stream[:-12]  # without Arrow's own end, and Spark's
    sent = io.BytesIO()
    with pa.ipc.new_stream(sent, BLOCKS[0].schema) as writer:
        writer.write_batch(BLOCKS[0])
        return sent.getvalue()


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ArrowStreamSerializer, "load_stream", ArrowStreamSerializer.load_stream)


def _given(stream: bytes) -> Iterator[pa.RecordBatch]:
    """The blocks as PySpark hands them on, read when the first is asked for."""
    yield from ArrowStreamSerializer().load_stream(io.BufferedReader(io.BytesIO(stream)))  # type: ignore[no-untyped-call]


def test_a_stream_that_was_cut_is_an_error(stream: bytes, cut: bytes) -> None:
    assert list(whole_input(_given(stream))) == BLOCKS
    with pytest.raises(EOFError, match="cut off"):
        list(whole_input(_given(cut)))


def test_without_insisting_a_part_is_taken_for_the_whole(cut: bytes) -> None:
    assert list(_given(cut)) in (BLOCKS, BLOCKS[:1])


def test_rows_that_come_by_another_way_are_not_taken_for_whole() -> None:
    with pytest.raises(MachineError, match="not known here"):
        list(whole_input(iter(BLOCKS)))
