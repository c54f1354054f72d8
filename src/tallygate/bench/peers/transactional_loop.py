"""A loop by hand: read, write and commit the offsets in a transaction of Kafka."""

import json
import sys

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

MANY = 50_000


def main(server: str, topic: str, partitions: list[int], to: str) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": server,
            "group.id": to,
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    producer = Producer(
        {
            "bootstrap.servers": server,
            "transactional.id": f"{to}-{partitions[0]}",
            "linger.ms": 20,
            "queue.buffering.max.messages": 2 * MANY,
        }
    )
    producer.init_transactions()
    consumer.assign([TopicPartition(topic, each, 0) for each in partitions])
    left = set(partitions)
    while left:
        messages = consumer.consume(MANY, 0.2)
        ends: dict[int, int] = {}
        producer.begin_transaction()
        for message in messages:
            error = message.error()
            if error is not None:
                if error.code() != KafkaError._PARTITION_EOF:
                    raise SystemExit(str(error))
                left.discard(message.partition() or 0)
                continue
            producer.produce(to, key=message.key(), value=message.value())
            ends[message.partition() or 0] = (message.offset() or 0) + 1
        producer.poll(0)
        offsets = [TopicPartition(topic, partition, end) for partition, end in ends.items()]
        producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata())
        producer.commit_transaction()
    consumer.close()


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
