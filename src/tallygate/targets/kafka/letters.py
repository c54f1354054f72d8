"""Unfit records of a pipeline into Kafka: the topic that keeps them, which they are, and how many
there are."""

from dataclasses import dataclass
from typing import Any

from confluent_kafka import TopicPartition as Offset

from tallygate.core.ledger import Forget
from tallygate.core.letters import DeadLetter, Letter
from tallygate.core.offsets import Range, TopicPartition
from tallygate.kafka import clients
from tallygate.kafka.connection import Connection
from tallygate.kafka.dead_letters import list_dead_letters
from tallygate.kafka.fetch import HEADERS, fetch
from tallygate.kafka.producer import ANSWER_TIMEOUT, sized
from tallygate.kafka.record_size import USUAL
from tallygate.kafka.topics import Topics
from tallygate.targets.base import RefusedRowsError
from tallygate.targets.kafka.ledger import GroupLedger, Names, Positions, commit_offsets
from tallygate.targets.kafka.sending import is_unanswered, send_letters
from tallygate.targets.task_report import report_step_errors

CAUSES = 10
"""How many causes are remembered for who asks."""


@dataclass(frozen=True, kw_only=True)
class LetterTopic:
    """Keeps unfit records in a topic, each once: a transaction of the record's own partition holds
    the letters and how far they go, and letters that are there already are left out."""

    connection: Connection
    topic: str
    largest: int
    """Bytes that the topic takes at a time."""
    ledger: GroupLedger

    def keep(self, letters: list[Letter]) -> None:
        with report_step_errors(is_unanswered):
            for partition in sorted({(each.topic, each.partition) for each in letters}):
                own = [each for each in letters if (each.topic, each.partition) == partition]
                try:
                    self._keep(partition, own, self.largest)
                except RefusedRowsError:
                    if self.largest <= USUAL:
                        raise
                    # Its rules have changed since the start, or were not to be known.
                    self._keep(partition, own, USUAL)

    def forget(self, change: Forget) -> None:
        """A topic of that name that comes later has dead letters of its own from its beginning."""
        for each in change.ranges:
            at = each.topic_partition
            commit_offsets(
                self.ledger,
                [at],
                lambda held: [self.ledger.unmarked(at, p.offset) for at, p in held.items()],
                connection=self.connection,
                transactional_id=Names(self.ledger.claim.pipeline).letters_id(at),
            )

    def _keep(self, partition: TopicPartition, letters: list[Letter], largest: int) -> None:
        def start(positions: Positions) -> int:
            return positions[partition].offset if partition in positions else 0

        def new(positions: Positions) -> list[Letter]:
            return [each for each in letters if each.offset >= start(positions)]

        def offsets(positions: Positions) -> list[Offset]:
            last = max((each.offset for each in new(positions)), default=None)
            if last is None:
                return []
            kept = Range(*partition, start(positions), last + 1)
            return self.ledger.ends([kept], positions)

        def rows(producer: Any, positions: Positions) -> None:
            pipeline = self.ledger.claim.pipeline
            send_letters(producer, self.topic, new(positions), pipeline, largest)

        commit_offsets(
            self.ledger,
            [partition],
            offsets,
            connection=self.connection,
            transactional_id=Names(self.ledger.claim.pipeline).letters_id(partition),
            rows=rows,
            **sized(largest),
        )


def letters_in(topic: str, pipeline: str, connection: Connection) -> list[DeadLetter]:
    """The pipeline's dead letters in a topic, which may hold those of other pipelines too."""
    found, name = list_dead_letters(topic, connection), pipeline.encode()
    return [each for each in found if each.record.header("tallygate.pipeline") == name]


class LetterCount:
    """How many dead letters of a pipeline a topic holds, of which only the new ones are read. There
    may be those of other pipelines in it, and marks that say which were replayed."""

    def __init__(self, topics: Topics, topic: str, pipeline: str) -> None:
        self._pipeline = pipeline.encode()
        self._connection = topics.connection
        self._partitions = [(topic, n) for n in range(topics.partition_counts()[topic])]
        self._consumer = clients.consumer(self._connection)
        self._at: dict[TopicPartition, int] = {}
        self.counted = 0
        self.causes: list[str] = []
        """Some of those that were counted last, as they differ."""

    def count(self) -> int:
        """Count on from where the last count ended."""
        causes: dict[str, None] = {}
        for partition in self._partitions:
            first, end = clients.ends(self._consumer, partition, self._connection, ANSWER_TIMEOUT)
            new = Range(*partition, max(first, self._at.get(partition, 0)), end)
            for block in fetch([new], self._connection, headers=True):
                for headers in block.column(HEADERS.name).to_pylist():
                    cause = self._cause(headers)
                    self.counted += cause is not None
                    if cause is not None and len(causes) < CAUSES:
                        causes.setdefault(cause.decode(errors="replace"))
            self._at[partition] = end
        self.causes = list(causes)
        return self.counted

    def _cause(self, headers: list[dict[str, Any]] | None) -> bytes | None:
        """Why a record is a dead letter of ours; None if it is none. A marker of what was replayed
        has one header, which is another."""
        found = {each["key"]: each["value"] for each in headers or ()}
        if found.get("tallygate.pipeline") != self._pipeline:
            return None
        return found.get("tallygate.cause") or b""

    def close(self) -> None:
        self._consumer.close()
