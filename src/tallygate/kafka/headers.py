"""The headers of a message, whose names need not be the text that they should be.

For a name that is not UTF-8 confluent-kafka returns a list with a hole in it, and an error at the
same time. Python makes a SystemError of that where it looks at what a function returns, and the
interpreter does not look once it has seen a call often enough to shorten it: `message.headers()`
then gives the list, and touching the hole ends the process. So the call is made by a
function of C, which always looks. Asked a second time, such a message gives the list alone.
"""

from collections.abc import Callable, Iterable, Sequence
from operator import methodcaller
from typing import Any

from confluent_kafka import Message

from tallygate.core.record import UNREADABLE, Headers

_ask: Callable[[Message], Any] = methodcaller("headers")


def headers_of(message: Message) -> Headers:
    """To be called once for a message. Java's reader puts U+FFFD into a name that is not UTF-8;
    here one header with that name stands for all of them."""
    (given,) = headers_of_each([message])
    return tuple(given or ())


def headers_of_each(messages: Iterable[Message]) -> list[Sequence[tuple[str, bytes | None]] | None]:
    """Of many messages, each of which is asked once, as quickly as that goes."""
    found: list[Sequence[tuple[str, bytes | None]] | None] = []
    left = iter(messages)
    while True:
        try:
            found.extend(map(_ask, left))  # what came before an error stays
            return found
        except (SystemError, UnicodeDecodeError):
            found.append(UNREADABLE)
