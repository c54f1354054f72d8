"""A topic in the contract suite."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import pyarrow as pa
from confluent_kafka import OFFSET_BEGINNING, KafkaError, Message, TopicPartition

from contract.harness import Store
from contract.source import DECODER, FILES, TOPIC, At, place_of
from tallygate import Connection, Topics
from tallygate.core.blocks import decoded
from tallygate.kafka import clients
from tallygate.settings import Settings
from tallygate.spec import KafkaSink
from tallygate.targets.kafka.target import KafkaTarget

__all__ = ["KafkaStore"]

LANES = 2
WAIT = 10.0


@dataclass(frozen=True, kw_only=True)
class KafkaStore(Store):
    servers: str
    source: str | None = ""
    """What the source's brokers are called, if by another name; None if there is no such source."""
    properties: tuple[tuple[str, str], ...] = ()
    """Of librdkafka."""

    @property
    def raw(self) -> bool:
        return self.strategy == "narrow"

    @property
    def has_coordinates(self) -> bool:
        return self.strategy == "narrow"

    @property
    def _connection(self) -> Connection:
        given = {"bootstrap.servers": self.servers}
        return Connection(given, librdkafka_properties=dict(self.properties))

    @property
    def _topic(self) -> str:
        return self.at.replace("_", "-")

    def make(self) -> None:
        """A compacted topic refuses records without a key."""
        topics = Topics(self._connection, Settings.load())
        if TOPIC not in topics.names():
            topics.create(TOPIC, partitions=4)
        configs = {"cleanup.policy": "compact"} if self.refuses else {}
        topics.create(self._topic, partitions=1, configs=configs)

    def make_again(self) -> None:
        Topics(self._connection, Settings.load()).delete([self._topic])
        self.make()

    def target(self) -> KafkaTarget:
        return KafkaTarget(
            KafkaSink(self._topic),
            pipeline=self.pipeline,
            delivery=self.delivery,
            source=None if self.source is None else Connection.to(self.source or self.servers),
            target=self._connection,
            topics=(TOPIC, FILES),
            lanes=LANES,
            settings=Settings.load(),
        )

    def tasks(self, raw: list[list[pa.RecordBatch]]) -> Sequence[Sequence[pa.RecordBatch]]:
        """In lanes, those of a key in the same one, however often a batch is computed."""
        if self.raw:
            return raw
        rows = [row for blocks in raw for block in blocks for row in _records(block)]
        lanes = [[row for row in rows if row["lane"] == lane] for lane in range(LANES)]
        schema = pa.schema([("value", pa.binary()), ("key", pa.binary())])
        return [[pa.RecordBatch.from_pylist(lane, schema=schema)] for lane in lanes]

    def rows(self) -> list[At]:
        return [
            place_of(orjson.loads(each.value() or b"")["id"]) for each in self._read(self._topic)
        ]

    def causes(self) -> list[tuple[At, str]]:
        """As the docs tell readers to count: less what a marker behind them withdraws. (The topic
        has one partition.)"""
        found: list[dict[str, Any]] = []
        for each in self._read(f"{self.pipeline}.dead-letters"):
            headers: dict[str, Any] = dict(each.headers() or ())
            if "tallygate.withdrawn" not in headers:
                found.append(headers)
                continue
            assert (each.key(), each.value(), len(headers)) == (None, None, 2)
            place, _, start = headers["tallygate.withdrawn"].decode().partition("@")
            found = [
                letter
                for letter in found
                if f"{TOPIC}/{letter['tallygate.partition'].decode()}" != place
                or int(letter["tallygate.offset"]) < int(start)
            ]
        return [
            (
                (int(each["tallygate.partition"]), int(each["tallygate.offset"])),
                each["tallygate.cause"].decode(),
            )
            for each in found
        ]

    def _read(self, topic: str) -> list[Message]:
        """What a reader of committed records sees now; it does not wait for open transactions."""
        consumer = clients.consumer(
            self._connection, enable_partition_eof=True, fetch_wait_max_ms=5
        )
        try:
            found = consumer.list_topics(topic, timeout=WAIT).topics[topic]
            if found.error is not None:
                return []
            partitions = [TopicPartition(topic, n, OFFSET_BEGINNING) for n in found.partitions]
            consumer.assign(partitions)
            messages: list[Message] = []
            left = len(partitions)
            while left:
                message = consumer.poll(WAIT)
                assert message is not None, f"{topic} cannot be read"
                error = message.error()
                if error is None:
                    messages.append(message)
                else:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    left -= 1
            return messages
        finally:
            consumer.close()


def _records(block: pa.RecordBatch) -> list[dict[str, Any]]:
    rows = decoded(block, DECODER).rows.to_pylist()
    return [
        {
            "key": row["account"].encode(),
            "value": orjson.dumps({"id": row["id"], "account": row["account"]}),
            "lane": row["id"] % LANES,
        }
        for row in rows
    ]
