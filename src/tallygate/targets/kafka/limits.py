"""What a topic takes, by its own rules.

Kafka refuses what came to it together, and with it the whole transaction. So when a topic has
refused something, its rules are asked for, and from then on a record that breaks them is set aside
before it is sent. The rules are two: no record may be larger, alone in a batch and as it is sent,
than `max.message.bytes`; and in a compacted topic every record has a key.
"""

import sys
from collections.abc import Iterable
from dataclasses import dataclass

from tallygate.kafka.topics import Topics
from tallygate.targets.kafka.records import Header

BATCH_OVERHEAD = 61
RECORD_OVERHEAD = 3  # attributes, and the differences of time and offset to the batch's first

_COMPRESSION = {"compression.type", "compression.codec"}


@dataclass(frozen=True)
class Limits:
    largest: int
    """Bytes of a batch, be it of one record."""
    keyed: bool

    @classmethod
    def of(cls, topics: Topics, topic: str) -> "Limits":
        """What a topic takes now. How large a record is when it is compressed is not known."""
        configs = topics.effective_configs(topic)
        compressed = _COMPRESSION & topics.connection.librdkafka().keys()
        largest = sys.maxsize if compressed else int(configs["max.message.bytes"])
        return cls(largest, "compact" in configs["cleanup.policy"])

    def refusal(
        self, value: bytes | None, key: bytes | None, headers: Iterable[Header] | None
    ) -> str | None:
        """Why the topic would refuse a record, if it would."""
        if self.keyed and key is None:
            return "the topic is compacted, and the record has no key"
        size = batch_size(value, key, headers)
        if size > self.largest:
            return f"the record is of {size} bytes, and the topic takes {self.largest}"
        return None


def batch_size(value: bytes | None, key: bytes | None, headers: Iterable[Header] | None) -> int:
    """How large a record is as a batch of its own, in the format that Kafka has had since 0.11."""
    held = list(headers or ())
    record = RECORD_OVERHEAD + _field(key) + _field(value) + _number(len(held))
    record += sum(_field(name) + _field(content) for name, content in held)
    return BATCH_OVERHEAD + _number(record) + record


def _field(content: str | bytes | None) -> int:
    """Its length and itself; the length of none is -1."""
    held = content.encode() if isinstance(content, str) else content
    return 1 if held is None else _number(len(held)) + len(held)


def _number(number: int) -> int:
    """The bytes of a number that is not negative: seven bits each, one of all for the sign."""
    return max(1, -(-(2 * number).bit_length() // 7))
