"""A program under drill that copies a topic, record by record, in transactions:
`python -m tallygate.lab.drills.copier`, given one JSON object that says what to do."""

import json
import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from tallygate.consumer.run import consume
from tallygate.core.record import Output
from tallygate.kafka import clients
from tallygate.kafka.connection import Connection

INSTANCE = "copy"
BATCH = 500
FAILS_EVERY = 5
ANSWER_TIMEOUT = 60.0

Kind = Literal["ours", "plain", "aborting"]


@dataclass(frozen=True, kw_only=True)
class Copier:
    bootstrap_servers: str
    topic: str
    target: str
    group: str
    kind: Kind
    """`plain` is a client of Kafka's as most are written: one producer, for all transactions.
    `aborting` is such a one whose work fails now and then, and is tried again."""

    @property
    def transactional_id(self) -> str:
        ours = self.kind == "ours"
        return f"tallygate.consumer.{self.group}.{INSTANCE}" if ours else self.group

    def command(self) -> list[str]:
        return [sys.executable, "-m", "tallygate.lab.drills.copier", json.dumps(asdict(self))]

    def run(self, stop: threading.Event) -> None:
        connection = Connection.to(self.bootstrap_servers)
        if self.kind == "ours":
            consume(
                self.topic,
                lambda record: Output(self.target, record.value, record.key),
                group=self.group,
                delivery="exactly-once",
                connection=connection,
                stop=stop,
                instance=INSTANCE,
            )
            return
        noticed_soon = {"session_timeout_ms": 6000}
        reader = clients.consumer(
            connection, group_id=self.group, auto_offset_reset="earliest", **noticed_soon
        )
        writer = clients.producer(connection, transactional_id=self.transactional_id)
        writer.init_transactions(ANSWER_TIMEOUT)
        reader.subscribe([self.topic])
        self._copy(reader, writer, stop)
        reader.close()

    def _copy(self, reader: Consumer, writer: Producer, stop: threading.Event) -> None:
        """As the examples of the client do it: what cannot be committed is aborted, and read again
        from where the group is."""
        number = 0
        while not stop.is_set():
            messages = [each for each in reader.consume(BATCH, 0.1) if each.error() is None]
            if not messages:
                continue
            number += 1
            try:
                writer.begin_transaction()
                for each in messages:
                    writer.produce(self.target, each.value(), each.key())
                writer.flush()
                if self.kind == "aborting" and number % FAILS_EVERY == 0:
                    raise WorkError
                group = reader.consumer_group_metadata()
                writer.send_offsets_to_transaction(_ends(messages), group)
                writer.commit_transaction()
            except KafkaException as error:
                print(f"transaction {number}: {error}", flush=True)
                if not error.args[0].txn_requires_abort():
                    raise
                _undo(reader, writer)
            except WorkError:
                _undo(reader, writer)


class WorkError(Exception):
    """What the program does with its records has failed."""


def _undo(reader: Consumer, writer: Producer) -> None:
    writer.abort_transaction()
    for each in reader.committed(reader.assignment(), timeout=ANSWER_TIMEOUT):
        each.offset = each.offset if each.offset >= 0 else OFFSET_BEGINNING
        reader.seek(each)


def _ends(messages: Sequence[Message]) -> list[TopicPartition]:
    found = {
        (each.topic() or "", each.partition() or 0): (each.offset() or 0) + 1 for each in messages
    }
    return [TopicPartition(*partition, at) for partition, at in found.items()]


if __name__ == "__main__":
    ending = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ending.set())
    Copier(**json.loads(sys.argv[1])).run(ending)
