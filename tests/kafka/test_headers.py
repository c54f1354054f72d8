"""Headers of records that come from outside."""

from typing import Any, cast

import pytest
from confluent_kafka import Message

from tallygate.core.record import Record
from tallygate.kafka.headers import headers_of
from tallygate.kafka.read import to_record

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
