"""A loop by hand: read, write and commit the offsets in a transaction of Kafka."""

import json
import sys

from confluent_kafka import Producer, TopicPartition

from benchmarks.peers.reading import MANY, blocks, ends, open_consumer

__all__ = ["main"]


def main(server: str, topic: str, partitions: list[int], to: str) -> None:
    consumer = open_consumer(server, to, topic, partitions)
    producer = Producer(
        {
            "bootstrap.servers": server,
            "transactional.id": f"{to}-{partitions[0]}",
            "linger.ms": 20,
            "queue.buffering.max.messages": 2 * MANY,
        }
    )
    producer.init_transactions()
    for block in blocks(consumer, partitions):
        producer.begin_transaction()
        for message in block:
            producer.produce(to, key=message.key(), value=message.value())
        producer.poll(0)
        offsets = [TopicPartition(topic, partition, end) for partition, end in ends(block).items()]
        producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata())
        producer.commit_transaction()
    consumer.close()


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
