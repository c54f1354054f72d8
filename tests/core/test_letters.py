"""A dead letter as text, and back."""

from itertools import count, repeat

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallygate.core.blocks import decoded
from tallygate.core.decoding import Decoder
from tallygate.core.letters import Letter, first_distinct
from tallygate.targets.kafka.limits import batch_size
from tallygate.targets.kafka.sending import _cut_to, _letter_headers


@pytest.mark.parametrize("value", [b"text", b"\xff\x00", b"", None])
@pytest.mark.parametrize("key", [b"k", b"\xfe", None])
def test_a_letter_is_the_same_after_it_was_kept(key: bytes | None, value: bytes | None) -> None:
    letter = Letter("t", 1, 2, "why", key, value, 3)
    assert Letter.read(letter.text()) == letter
    assert "\n" not in letter.text()


def test_text_can_be_read_by_people() -> None:
    assert '"value": "not JSON"' in Letter("t", 0, 0, "why", None, b"not JSON").text()


@pytest.mark.parametrize(
    "ms", [1, -1, -62_135_596_800_001, 253_402_300_800_000, 9_000_000_000_000_000]
)
def test_a_record_of_any_year_can_become_a_letter(ms: int) -> None:
    raw = pa.RecordBatch.from_pydict(
        {
            "key": pa.array([None, None], pa.binary()),
            "value": pa.array([b"bad", b"bad"]),
            "topic": pa.array(["t", "t"]),
            "partition": pa.array([0, 0], pa.int32()),
            "offset": pa.array([0, 1], pa.int64()),
            "timestamp": pa.array([ms * 1000, None], pa.timestamp("us", "UTC")),
        }
    )
    made = decoded(raw, Decoder("json", pa.schema([("id", pa.int64())])))
    assert [each.time_ms for each in made.letters] == [ms, None]


def test_of_a_large_value_a_letter_keeps_the_first_bytes_and_says_so() -> None:
    letter = Letter("t", 0, 5, "no JSON", b"k", b"x" * 100)
    cut = letter.cut(10)
    assert (cut.value, cut.cut_from) == (b"x" * 10, 100)
    assert cut.cause == "no JSON (the first 10 of its 100 bytes are kept)"
    assert cut.cut(5).cut_from == 100
    assert letter.cut(100) is letter
    assert Letter.read(cut.text()) == cut


@given(st.integers(0, 3000), st.integers(0, 40), st.integers(600, 2000))
def test_no_letter_is_larger_than_its_topic_takes(size: int, key: int, largest: int) -> None:
    letter = Letter("topic", 3, 10**12, "c" * 60, b"k" * key, b"v" * size, 10**12)
    sent = _cut_to(letter, "pipeline", largest)
    assert batch_size(sent.value, sent.key, _letter_headers(sent, "pipeline")) <= largest
    whole = batch_size(letter.value, letter.key, _letter_headers(letter, "pipeline")) <= largest
    assert (sent == letter) == whole


def test_the_first_causes_that_differ_are_found_without_reading_all() -> None:
    endless = (f"cause {number // 10}" for number in count())
    assert first_distinct(endless, 3) == ["cause 0", "cause 1", "cause 2"]
    assert first_distinct(repeat("the same"), 3) == ["the same"]
    assert first_distinct([], 3) == []
