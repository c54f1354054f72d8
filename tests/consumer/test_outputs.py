"""What a handler returns is checked where its failure is the record's, and not the consumer's."""

from typing import Any

import pytest

from tallygate import Connection, Output, Producer
from tallygate.consumer.into_kafka import _outputs
from tallygate.errors import ConfigError


def test_what_can_be_sent_is_sent_as_bytes() -> None:
    given = Output("t", "é", b"\xff", (("h", b"\xff"), ("i", None)), partition=3, timestamp=5)
    (found,) = _outputs(given)
    assert found == Output("t", "é".encode(), b"\xff", (("h", b"\xff"), ("i", None)), 3, 5)
    assert _outputs(None) == []
    texts: Any = [("h", "text"), (b"i", "")]
    assert (
        _outputs([Output("t", None, headers=texts)] * 2)
        == [Output("t", None, headers=(("h", b"text"), ("i", b"")))] * 2
    )


HALF = "half \ud800 a character"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"value": HALF}, "the value of an Output is no text that can be sent"),
        ({"key": HALF}, "the key of an Output is no text that can be sent"),
        ({"headers": (("h", HALF),)}, "the header 'h' of an Output is no text that can be sent"),
        ({"headers": ((HALF, b"x"),)}, "the name of a header of an Output is no text"),
        ({"headers": (("a\0b", b"x"),)}, "has the header 'a.x00b', which is no name"),
        ({"headers": ((5, b"x"),)}, "has the header 5, which is no name that can be sent"),
        ({"headers": (("h", 5),)}, "the header 'h' of an Output is bytes, text or None, and not"),
        ({"topic": HALF}, "the name of a topic of an Output is no text that can be sent"),
        ({"topic": "a\0b"}, "has the topic 'a.x00b', which is no name that can be sent"),
        ({"topic": None}, "has the topic None, which is no name that can be sent"),
        ({"value": 5}, "the value of an Output is bytes, text or None, and not int"),
        ({"value": {"a": 1}}, "the value of an Output is bytes, text or None, and not dict"),
        ({"key": 5}, "the key of an Output is bytes, text or None, and not int"),
        ({"partition": 1 << 40}, "an Output has the partition 1099511627776, which cannot be sent"),
        ({"timestamp": -5}, "an Output has the timestamp -5, which cannot be sent"),
    ],
)
def test_what_cannot_be_sent_is_the_failure_of_its_handler(
    fields: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said) as raised:
        _outputs(Output(**{"topic": "t", "value": b"v", **fields}))
    assert str(raised.value).encode()


@pytest.mark.parametrize("headers", [{"h": b"x"}, ["h"], [("h",)], [("h", b"x", b"y")], 5])
@pytest.mark.parametrize("more", [{}, {"timestamp": 1.5}, {"partition": "1"}])
def test_what_has_another_shape_is_an_error_too(headers: Any, more: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError)):
        _outputs(Output("t", b"v", headers=headers, **more))
    if more:
        with pytest.raises(TypeError):
            _outputs(Output("t", b"v", **more))


def test_a_producer_refuses_a_name_for_which_the_client_ends_the_process() -> None:
    producer = Producer(Connection.to("127.0.0.1:9"))
    with pytest.raises(UnicodeEncodeError):
        producer.send("t", b"v", headers=((HALF, b"x"),))
    producer.close(0)
