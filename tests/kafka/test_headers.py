"""Headers of records that come from outside."""

from collections.abc import Callable
from typing import Any, cast

import pytest
from confluent_kafka import Message

from fixtures.raw_records import send_raw_record
from tallygate import Stack
from tallygate.core.offsets import Range
from tallygate.core.record import MISNAMED, Record
from tallygate.kafka.fetch import HEADERS, fetch
from tallygate.kafka.headers import headers_of
from tallygate.kafka.read import records_in, to_record

Given = list[tuple[str, bytes | None]] | None


class OneAnswer:
    """As confluent-kafka: a name that is not UTF-8 is an error, and to ask again is the end."""

    def __init__(self, error: type[Exception] | None = None, headers: Given = None) -> None:
        self.error, self.headers_, self.asked = error, headers, 0

    def headers(self) -> Given:
        self.asked += 1
        assert self.asked == 1, "the interpreter would crash"
        if self.error is UnicodeDecodeError:
            b"\xff".decode()
        if self.error is not None:
            raise self.error("returned a result with an exception set")
        return self.headers_

    def __getattr__(self, name: str) -> Any:
        return {"timestamp": lambda: (1, 1000), "topic": lambda: "t"}.get(name, lambda: None)


def _message(*given: Any) -> Message:
    return cast(Message, OneAnswer(*given))


@pytest.mark.parametrize("error", [SystemError, UnicodeDecodeError])
def test_a_name_that_is_not_utf_8_is_no_end(error: type[Exception]) -> None:
    assert headers_of(_message(error)) == (("\N{REPLACEMENT CHARACTER}", None),)
    record = to_record(_message(error))
    assert record.is_misnamed
    assert record.header("trace") is None


def test_headers_are_as_they_came() -> None:
    assert headers_of(_message()) == ()
    given: list[tuple[str, bytes | None]] = [("a", b"1"), ("a", None), ("", b"\xff")]
    assert headers_of(_message(None, given)) == tuple(given)
    assert not to_record(_message(None, given)).is_misnamed


def test_the_name_that_javas_reader_makes_is_the_same_sign() -> None:
    assert Record("t", 0, 0, 0, None, None, (("tr\N{REPLACEMENT CHARACTER}ce", b"1"),)).is_misnamed


def test_a_name_that_is_not_utf_8_is_an_error_however_often_it_was_asked(
    small_stack: Stack, fill: Callable[..., str]
) -> None:
    """Python shortens a call that it has seen often, and then no longer sees the error."""
    topic, connection = fill(500, partitions=1), small_stack.cluster.connection
    for _ in range(20):
        send_raw_record(small_stack.bootstrap_servers, topic, b"x", [(b"tr\xffce", b"1")])
    found = [record.is_misnamed for record in records_in(topic, connection)]
    assert found == [False] * 500 + [True] * 20
    blocks = fetch([Range(topic, 0, 0, 520)], connection, headers=True)
    headers = [each for block in blocks for each in block.column(HEADERS.name).to_pylist()]
    assert headers == [None] * 500 + [[{"key": MISNAMED, "value": None}]] * 20
