"""A dead letter as text, and back."""

from itertools import count, repeat

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallygate.core.blocks import decoded
from tallygate.core.decoding import Decoder
from tallygate.core.letters import MOST_SAID, Letter, first_distinct, record_size
from tallygate.kafka.record_size import batch_size
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


def test_of_a_large_record_a_letter_keeps_the_first_bytes_and_says_so() -> None:
    letter = Letter("t", 0, 5, "no JSON", b"k", b"x" * 100)
    cut = letter.cut(10)
    assert (cut.key, cut.value, cut.cut_from) == (b"k", b"x" * 9, 101)
    assert cut.cause == "no JSON (the first 10 of its 101 bytes are kept)"
    assert cut.cut(5).cut_from == 101
    assert letter.cut(101) is letter
    assert Letter.read(cut.text()) == cut


@given(
    st.integers(0, 100),
    st.integers(0, 100),
    st.lists(st.tuples(st.text(max_size=9), st.none() | st.binary(max_size=60)), max_size=5),
    st.integers(0, 300),
)
def test_no_part_of_a_record_makes_its_letter_too_large(
    key: int, value: int, headers: list[tuple[str, bytes | None]], most: int
) -> None:
    letter = Letter("t", 0, 5, "why", b"k" * key, b"v" * value, headers=tuple(headers))
    cut = letter.cut(most)
    assert record_size(cut.key, cut.value, cut.headers) <= most
    assert (cut == letter) == (cut.cut_from is None)
    assert (b"k" * key).startswith(cut.key or b"")
    assert (b"v" * value).startswith(cut.value or b"")
    assert tuple(headers)[: len(cut.headers)] == cut.headers


@pytest.mark.parametrize("cause", ["x" * 1_000_000, "\x7f" * 1_000_000, "half \ud800" * 300])
def test_no_cause_is_longer_than_a_store_keeps_or_no_text(cause: str) -> None:
    """What was refused is often repeated in full."""
    letter = Letter("t", 0, 0, cause)
    assert letter.cause[:4] == cause[:4]
    assert len(letter.cause.encode()) <= 6 * MOST_SAID
    assert len(Letter("t", 0, 0, cause, value=b"v" * 99).cut(9).cause) <= 6 * MOST_SAID
    assert len(Letter("t", 0, 0, "x" * 5000, value=b"v" * 99).cut(9).cause) == MOST_SAID


@given(
    st.integers(0, 3000),
    st.integers(0, 3000),
    st.lists(st.tuples(st.sampled_from(["", "tallygate.x", "n" * 99]), st.binary(max_size=99))),
    st.sampled_from(["c" * 60, "c" * 1000, "\N{SNOWMAN}" * 1000]),
    st.integers(2000, 5000),
)
def test_no_letter_is_larger_than_its_topic_takes(
    size: int, key: int, headers: list[tuple[str, bytes | None]], cause: str, largest: int
) -> None:
    topic, pipeline = "t" * 249, "p" * 100
    letter = Letter(
        topic, 3, 10**12, cause, b"k" * key, b"v" * size, 10**12, tuple(headers), is_row=True
    )
    sent = _cut_to(letter, pipeline, largest)
    given = _letter_headers(sent, pipeline, largest)
    assert batch_size(sent.value, sent.key, given) <= largest
    given = _letter_headers(letter, pipeline, largest)
    assert (sent == letter) == (batch_size(letter.value, letter.key, given) <= largest)


def test_the_first_causes_that_differ_are_found_without_reading_all() -> None:
    endless = (f"cause {number // 10}" for number in count())
    assert first_distinct(endless, 3) == ["cause 0", "cause 1", "cause 2"]
    assert first_distinct(repeat("the same"), 3) == ["the same"]
    assert first_distinct([], 3) == []
