"""What a careful person would write to move records with confluent-kafka, and nothing else.

    python -m benchmarks.bare produce|consume TOPIC FILE PROPERTIES

A program of its own that imports nothing of ours: what it takes to start counts too.
"""

import json
import sys
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition


def produce(topic: str, path: str, properties: dict[str, str]) -> None:
    producer = Producer(properties)
    with Path(path).open("rb") as file:
        for number, line in enumerate(file):
            while True:
                try:
                    producer.produce(topic, line[:-1])
                    break
                except BufferError:
                    producer.poll(0.05)
            if number % 10_000 == 0:
                producer.poll(0)
    if producer.flush(60):
        sys.exit("not everything was delivered")


def consume(topic: str, path: str, properties: dict[str, str]) -> None:
    consumer = Consumer(
        {
            **properties,
            "group.id": "bare",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    left = set(consumer.list_topics(topic).topics[topic].partitions)
    consumer.assign([TopicPartition(topic, number, 0) for number in left])
    with Path(path).open("wb") as file:
        while left:
            for message in consumer.consume(1_000, 0.2):
                if message.error():
                    left.discard(message.partition())
                else:
                    file.write((message.value() or b"") + b"\n")
    consumer.close()


if __name__ == "__main__":
    _, what, topic, path, properties = sys.argv
    {"produce": produce, "consume": consume}[what](topic, path, json.loads(properties))
