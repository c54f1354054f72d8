"""How the loops by hand read: blocks of messages, until each partition has been read to its end."""

from collections.abc import Iterator

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

__all__ = ["MANY", "blocks", "ends", "open_consumer"]

MANY = 50_000


def open_consumer(server: str, group: str, topic: str, partitions: list[int]) -> Consumer:
    consumer = Consumer(
        {
            "bootstrap.servers": server,
            "group.id": group,
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "fetch.queue.backoff.ms": 5,  # a second by default, for which it then stands still
        }
    )
    consumer.assign([TopicPartition(topic, each, 0) for each in partitions])
    return consumer


def blocks(consumer: Consumer, partitions: list[int]) -> Iterator[list[Message]]:
    left = set(partitions)
    while left:
        block = []
        for message in consumer.consume(MANY, 0.2):
            error = message.error()
            if error is None:
                block.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                left.discard(message.partition() or 0)
            else:
                raise SystemExit(str(error))
        yield block


def ends(block: list[Message]) -> dict[int, int]:
    """Where to go on in each partition after these messages."""
    return {message.partition() or 0: (message.offset() or 0) + 1 for message in block}
