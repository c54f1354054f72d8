"""A dead letter is the same value wherever it is kept."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from tallygate import dead_letters
from tallygate.consumer.replay import _going_back
from tallygate.core.letters import MARKER, DeadLetter, Letter
from tallygate.core.marks import put_aside
from tallygate.core.record import UNREADABLE, Record
from tallygate.errors import ConfigError, TopicError
from tallygate.kafka.dead_letters import _marked, _read
from tallygate.kafka.producer import LARGEST
from tallygate.targets.kafka.sending import _letter_headers

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


def test_what_a_record_brought_along_is_shown_as_it_came() -> None:
    brought = (("tallygate.topic", b"payments.approved"), ("own", b"x"))
    record = _record(**STORY)
    record = replace(record, headers=(*put_aside(brought), *record.headers[1:]))
    letter = _read(record, replayed=False)
    assert letter.headers == brought
    assert letter.coordinates == "orders/2@17"


def test_a_record_is_a_marker_if_it_is_nothing_else() -> None:
    marker = Record("g.dead-letters", 0, 3, 99, None, None, ((MARKER, b"0:1"),))
    assert _marked(marker) == "0:1"
    assert _marked(replace(marker, headers=((MARKER, b"\xff"),))) is not None
    others = (("own", b"x"), ("tallygate.cause", b"x"), (MARKER, b"0:2"))
    for letter in (
        replace(marker, key=b""),
        replace(marker, value=b""),
        replace(marker, headers=()),
        replace(marker, headers=(("own", b"0:1"),)),
        *(replace(marker, headers=(*marker.headers, each)) for each in others),
    ):
        assert _marked(letter) is None


def _letters(*topics: str, **story: str) -> list[DeadLetter]:
    return [_read(_record(**{**STORY, "topic": each, **story}), replayed=False) for each in topics]


KNOWN = {"orders", "bills", "payments.approved"}


def test_a_letter_goes_back_to_a_topic_that_is_named() -> None:
    letters = _letters("orders", "payments.approved", "orders", "gone")
    assert _going_back("g", letters, KNOWN, ["orders"]) == [letters[0], letters[2]]
    assert _going_back("g", letters, KNOWN, ["payments.approved", "bills"]) == [letters[1]]
    assert _going_back("g", [], KNOWN, ()) == []


@pytest.mark.parametrize("into", [(), ("bills",), ("gone",)])
def test_the_refusal_has_the_flags_to_add(into: tuple[str, ...]) -> None:
    letters = _letters("orders", "bills", "orders", "gone", "payments.approved")
    if into == ("bills",):
        letters = [each for each in letters if each.topic != "bills"]
    with pytest.raises(TopicError, match="only to those that you name") as told:
        _going_back("g.dead-letters", letters, KNOWN, into)
    bills = "--into bills " if into != ("bills",) else ""
    assert str(told.value).endswith(f"add {bills}--into orders --into payments.approved.")
    assert "orders (2)" in str(told.value)


def test_letters_that_cannot_go_back_are_refused_with_why() -> None:
    with pytest.raises(TopicError, match="does not name a topic that exists"):
        _going_back("g", _letters("gone"), KNOWN, ["gone"])
    with pytest.raises(TopicError, match="does not name a topic that exists"):
        _going_back("g", [_read(_record(), replayed=False)], KNOWN, ["g.dead-letters"])
    with pytest.raises(TopicError, match="the row that the pipeline made of it"):
        _going_back("g", _letters("orders", row="1"), KNOWN, ["orders"])
    (letter,) = _letters("orders")
    headers = (*UNREADABLE, *letter.record.headers)
    kept = replace(letter, record=replace(letter.record, headers=headers))
    with pytest.raises(TopicError, match="a header's name is not UTF-8"):
        _going_back("g", [kept], KNOWN, ["orders"])


def test_the_letter_of_a_pipeline_keeps_its_records_own_marks_apart() -> None:
    letter = Letter("orders", 2, 17, "why", headers=((MARKER, b"0:0"), ("own", b"x")))
    headers = tuple(
        (name, text.encode() if isinstance(text, str) else text)
        for name, text in _letter_headers(letter, "p", LARGEST)
    )
    record = Record("p.dead-letters", 0, 0, 0, None, None, headers)
    assert _marked(record) is None
    assert _read(record, replayed=False).headers == letter.headers


def test_a_letter_that_a_pipeline_keeps_is_its_record() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    kept = Letter("orders", 2, 17, "why", b"k", b"v", round(at.timestamp() * 1000))
    letter = DeadLetter.of(kept)
    assert (letter.coordinates, letter.cause, letter.time) == ("orders/2@17", "why", at)
    assert (letter.key, letter.value, letter.headers, letter.tries) == (b"k", b"v", (), 1)
    assert letter.record.where == "record orders/2@17"
    assert DeadLetter.of(Letter("orders", 2, 17, "why")).time is None


def test_either_a_pipeline_or_a_topic_is_named() -> None:
    with pytest.raises(ConfigError, match="either a pipeline or a topic"):
        dead_letters()
    with pytest.raises(ConfigError, match="either a pipeline or a topic"):
        dead_letters("payments.yaml", topic="t")
