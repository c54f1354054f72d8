"""How large a record is in Kafka, and how much of one a dead letter has room for."""

from collections.abc import Iterable

from tallygate.kafka.producer import LARGEST

BATCH_OVERHEAD = 61
RECORD_OVERHEAD = 3  # attributes, and the differences of time and offset to the batch's first
USUAL = 1_000_000
"""Bytes that a topic takes whose rules are not known: a little less than Kafka's default."""
LEAST = 2_000
"""Bytes that a topic of dead letters must take, so that one can say what it is of."""
_LENGTHS = 32
"""Bytes by which the lengths in a batch grow with what it holds."""

Header = tuple[str, str | bytes | None]


def batch_size(value: bytes | None, key: bytes | None, headers: Iterable[Header] | None) -> int:
    """How large a record is as a batch of its own, in the format that Kafka has had since 0.11."""
    held = list(headers or ())
    record = RECORD_OVERHEAD + _field(key) + _field(value) + _number(len(held))
    record += sum(_field(name) + _field(content) for name, content in held)
    return BATCH_OVERHEAD + _number(record) + record


def room_beside(marks: Iterable[Header], largest: int) -> int:
    """How many bytes of a record (see `core.letters.record_size`) fit beside the marks of its dead
    letter."""
    return max(0, min(largest, LARGEST) - batch_size(None, None, marks) - _LENGTHS)


def first_bytes(text: str, most: int) -> str:
    return text.encode()[:most].decode(errors="ignore")


def last_bytes(text: str, most: int) -> str:
    return text.encode()[-most:].decode(errors="ignore")


def _field(content: str | bytes | None) -> int:
    """Its length and itself; the length of none is -1."""
    held = content.encode() if isinstance(content, str) else content
    return 1 if held is None else _number(len(held)) + len(held)


def _number(number: int) -> int:
    """The bytes of a number that is not negative: seven bits each, one of all for the sign."""
    return max(1, -(-(2 * number).bit_length() // 7))
