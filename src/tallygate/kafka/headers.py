"""The headers of a message, whose names need not be the text that they should be.

confluent-kafka raises SystemError for a name that is not UTF-8. Asked a second time it returns a
list with holes in it, which ends the interpreter: such a message is asked once.
"""

from typing import Any

from confluent_kafka import Message

from tallygate.core.record import UNREADABLE, Headers

__all__ = ["headers_of"]


def headers_of(message: Message) -> Headers:
    """To be called once for a message. Java's reader puts U+FFFD into a name that is not UTF-8;
    here one header with that name stands for all of them."""
    try:
        given: Any = message.headers()
    except (SystemError, UnicodeDecodeError):
        return UNREADABLE
    return tuple(given) if given else ()
