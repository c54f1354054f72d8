"""Rows that a worker is given: all of them, or an error."""

import io
import struct

import pyarrow as pa
import pytest
from pyspark.serializers import SpecialLengths
from pyspark.sql.pandas.serializers import ArrowStreamSerializer

from tallygate.spark import truncated_input as whole

BLOCKS = [pa.RecordBatch.from_pydict({"n": [number]}) for number in range(3)]


@pytest.fixture
def stream() -> bytes:
    """What the JVM sends to a worker."""
    sent = io.BytesIO()
    with pa.ipc.new_stream(sent, BLOCKS[0].schema) as writer:
        for block in BLOCKS:
            writer.write_batch(block)
    return sent.getvalue() + struct.pack("!i", SpecialLengths.END_OF_STREAM)


def _read(stream: bytes) -> list[pa.RecordBatch]:
    file = io.BufferedReader(io.BytesIO(stream))
    return list(ArrowStreamSerializer().load_stream(file))  # type: ignore[no-untyped-call]


@pytest.fixture(params=["between blocks", "after all of them"])
def cut(request: pytest.FixtureRequest, stream: bytes) -> bytes:
    if request.param == "after all of them":
        return stream[:-12]  # without Arrow's own end, and Spark's
    sent = io.BytesIO()
    with pa.ipc.new_stream(sent, BLOCKS[0].schema) as writer:
        writer.write_batch(BLOCKS[0])
        return sent.getvalue()


def test_a_stream_that_was_cut_is_an_error(
    stream: bytes, cut: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ArrowStreamSerializer, "load_stream", ArrowStreamSerializer.load_stream)
    whole.insist_on_whole_input()
    assert _read(stream) == BLOCKS
    with pytest.raises(EOFError, match="cut off"):
        _read(cut)


def test_without_insisting_a_part_is_taken_for_the_whole(cut: bytes) -> None:
    assert _read(cut) in (BLOCKS, BLOCKS[:1])
