"""What a topic takes, by its own rules.

Kafka refuses what came to it together, and with it the whole transaction. So when a topic has
refused something, its rules are asked for, and from then on a record that breaks them is set aside
before it is sent. The rules are two: no record may be larger, alone in a batch and as it is sent,
than `max.message.bytes`; and in a compacted topic every record has a key.
"""

import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace

from tallygate.errors import TargetError, TopicError
from tallygate.kafka.producer import LARGEST
from tallygate.kafka.record_size import LEAST, USUAL, Header, batch_size
from tallygate.kafka.topics import Topics

_COMPRESSION = {"compression.type", "compression.codec"}


@dataclass(frozen=True)
class Limits:
    largest: int
    """Bytes of a batch, be it of one record."""
    keyed: bool

    @classmethod
    def of(cls, topics: Topics, topic: str) -> "Limits":
        """What a topic takes now. How large a record is when it is compressed is not known."""
        found = cls.uncompressed(topics, topic)
        compressed = _COMPRESSION & topics.connection.librdkafka().keys()
        return replace(found, largest=sys.maxsize) if compressed else found

    @classmethod
    def uncompressed(cls, topics: Topics, topic: str) -> "Limits":
        """The same for records that can be made as small as it takes: what grows when it is
        compressed is sent as it is."""
        configs = topics.effective_configs(topic)
        return cls(int(configs["max.message.bytes"]), "compact" in configs["cleanup.policy"])

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


def largest_letter(topics: Topics, name: str, before: int) -> int:
    """How many bytes a topic of dead letters takes at a time. If it may not be asked, all is tried
    first, and what every topic takes after a refusal; `before` is what was known."""
    try:
        limits = Limits.uncompressed(topics, name)
    except TopicError:
        return LARGEST if before == sys.maxsize else min(before, USUAL)
    if limits.keyed or limits.largest < LEAST:
        raise TargetError(
            f"topic {name!r} cannot keep all dead letters: it "
            + ("is compacted" if limits.keyed else f"takes {limits.largest} bytes")
            + ". Give it cleanup.policy=delete and a max.message.bytes of "
            f"{LEAST:,} or more by `tallygate topic alter {name}`, or name another one as "
            "sink.dead_letters."
        )
    return min(limits.largest, LARGEST)
