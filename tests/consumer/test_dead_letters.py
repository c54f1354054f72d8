"""A dead letter is the same value wherever it is kept."""

from datetime import UTC, datetime

import pytest

from tallygate import dead_letters
from tallygate.consumer.dead_letters import _read, dead_letter_of
from tallygate.core.letters import Letter
from tallygate.core.record import Record
from tallygate.errors import ConfigError

STORY = {
    "topic": "orders",
    "partition": "2",
    "offset": "17",
    "timestamp": "1767225600000",
    "tries": "5",
    "cause": "no such account",
    "stack": "in line 3",
}


def _record(**story: str) -> Record:
    told = tuple((f"tallygate.{name}", text.encode()) for name, text in story.items())
    return Record("g.dead-letters", 0, 3, 99, b"k", b"v", (("own", b"x"), *told))


def test_a_letter_in_a_topic_is_told_by_its_headers() -> None:
    letter = _read(_record(**STORY), replayed=True)
    assert (letter.coordinates, letter.cause) == ("orders/2@17", "no such account")
    assert (letter.tries, letter.stack, letter.replayed) == (5, "in line 3", True)
    assert (letter.key, letter.value, letter.headers) == (b"k", b"v", (("own", b"x"),))
    assert letter.time == datetime(2026, 1, 1, tzinfo=UTC)
    assert (letter.record.partition, letter.record.offset) == (0, 3)
    assert not letter.is_row
    assert _read(_record(row="1"), replayed=False).is_row


@pytest.mark.parametrize("ms", ["0", "-1", "1767225600000000000", "soon"])
def test_a_letter_whose_time_is_none_is_still_listed(ms: str) -> None:
    assert _read(_record(**{**STORY, "timestamp": ms}), replayed=False).time is None


def test_a_letter_that_a_pipeline_keeps_is_its_record() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    kept = Letter("orders", 2, 17, "why", b"k", b"v", round(at.timestamp() * 1000))
    letter = dead_letter_of(kept)
    assert (letter.coordinates, letter.cause, letter.time) == ("orders/2@17", "why", at)
    assert (letter.key, letter.value, letter.headers, letter.tries) == (b"k", b"v", (), 1)
    assert letter.record.where == "record orders/2@17"
    assert dead_letter_of(Letter("orders", 2, 17, "why")).time is None


def test_either_a_pipeline_or_a_topic_is_named() -> None:
    with pytest.raises(ConfigError, match="either a pipeline or a topic"):
        dead_letters()
    with pytest.raises(ConfigError, match="either a pipeline or a topic"):
        dead_letters("payments.yaml", topic="t")
