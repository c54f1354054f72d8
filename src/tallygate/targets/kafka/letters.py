"""Unfit records of a pipeline into Kafka: the topic that keeps them, which they are, and how many
there are."""

from array import array
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import TopicPartition as Offset

from tallygate.core.ledger import Forget
from tallygate.core.letters import DeadLetter, Letter
from tallygate.core.marks import number
from tallygate.core.offsets import Range, TopicPartition
from tallygate.core.record import Headers
from tallygate.core.withdrawals import PIPELINE, Withdrawal
from tallygate.kafka import clients
from tallygate.kafka.connection import Connection
from tallygate.kafka.dead_letters import list_dead_letters
from tallygate.kafka.fetch import HEADERS, fetch
from tallygate.kafka.producer import ANSWER_TIMEOUT, sized
from tallygate.kafka.record_size import USUAL
from tallygate.kafka.topics import Topics
from tallygate.targets.base import RefusedRowsError
from tallygate.targets.kafka.groups import OPENED_AT_ONCE, PipelineGroups
from tallygate.targets.kafka.ledger import GroupLedger, Names, commit_offsets, committed, held_in
from tallygate.targets.kafka.marks import Positions
from tallygate.targets.kafka.sending import is_unanswered, send_letters, send_withdrawal
from tallygate.targets.task_report import report_step_errors

CAUSES = 10
"""How many causes are remembered for who asks."""


@dataclass(frozen=True, kw_only=True)
class LetterTopic:
    """Keeps unfit records in a topic, each once: a transaction of the record's own partition holds
    the letters and how far they go, and letters that are there already are left out.

    How far they go counts for the run that said so alone. What an older run kept beyond the ledger
    is of a batch that was given up, and another schema may find other records unfit: those letters
    are withdrawn (see `core.withdrawals`)."""

    connection: Connection
    topic: str
    largest: int
    """Bytes that the topic takes at a time."""
    ledger: GroupLedger
    groups: PipelineGroups | None = None
    """The ledger of the rows, which says whether a newer run has taken over."""
    done: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Where that ledger was when the run took over."""

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

    def withdraw(self) -> None:
        """Withdraw what older runs kept of batches that they did not commit."""
        group, stand_in = self.ledger.group, self.ledger.stand_in
        held = held_in(group, self.connection, sorted(self.done), stand_in=stand_in)
        kept = committed(self.connection, group, stand_in=stand_in)
        beyond = {at for at, each in kept.items() if each.offset > self.done.get(at, 0)}
        doing = f"withdrawing dead letters of batches that were given up from {self.topic!r}"
        with (
            clients.explain_errors(self.connection, doing),
            ThreadPoolExecutor(OPENED_AT_ONCE) as pool,
        ):
            list(pool.map(lambda at: self._keep(at, [], self.largest), sorted(held | beyond)))

    def _keep(self, partition: TopicPartition, letters: list[Letter], largest: int) -> None:
        pipeline, done = self.ledger.claim.pipeline, self.done.get(partition, 0)

        def is_own(positions: Positions) -> bool:
            held = positions.get(partition)
            return held is not None and held.mark.run == self.ledger.claim.run

        def start(positions: Positions) -> int:
            return positions[partition].offset if is_own(positions) else done

        def is_given_up(positions: Positions) -> bool:
            held = positions.get(partition)
            return held is not None and not is_own(positions) and held.offset > done

        def new(positions: Positions) -> list[Letter]:
            return [each for each in letters if each.offset >= start(positions)]

        def offsets(positions: Positions) -> list[Offset]:
            found = new(positions)
            if not found and not is_given_up(positions):
                return []
            until = max((each.offset + 1 for each in found), default=done)
            return self.ledger.ends([Range(*partition, start(positions), until)], positions)

        def rows(producer: Any, positions: Positions) -> None:
            if is_given_up(positions):
                withdrawal = Withdrawal(pipeline.encode(), partition, done)
                send_withdrawal(producer, self.topic, withdrawal)
            send_letters(producer, self.topic, new(positions), pipeline, largest)

        commit_offsets(
            self.ledger,
            [partition],
            offsets,
            connection=self.connection,
            transactional_id=Names(pipeline).letters_id(partition),
            rows=rows,
            check=lambda: self._check_newest(partition),
            **sized(largest),
        )

    def _check_newest(self, partition: TopicPartition) -> None:
        """Raise if a newer run has taken over. It puts its mark into the ledger and looks for
        letters then, also for those that a transaction holds; this looks for its mark while a
        transaction holds the letters. So one of the two sees the other."""
        if self.groups is not None:
            self.groups.check_newest(self.ledger.claim, partition=partition)


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
        self._held: dict[tuple[TopicPartition, TopicPartition], array[int]] = {}
        """The offsets of their records, by the partition that they are in and the one that they are
        from."""
        self.causes: list[str] = []
        """Some of those that were counted last, as they differ."""

    def count(self) -> int:
        """Count on from where the last count ended."""
        causes: dict[str, None] = {}
        for partition in self._partitions:
            first, end = clients.ends(self._consumer, partition, self._connection, ANSWER_TIMEOUT)
            new = Range(*partition, max(first, self._at.get(partition, 0)), end)
            for block in fetch([new], self._connection, headers=True):
                for headers, bare in _headers_of(block):
                    cause = self._count(partition, headers, bare=bare)
                    if cause is not None and len(causes) < CAUSES:
                        causes.setdefault(cause.decode(errors="replace"))
            self._at[partition] = end
        self.causes = list(causes)
        return self.counted

    @property
    def counted(self) -> int:
        return sum(map(len, self._held.values()))

    def _count(self, partition: TopicPartition, headers: Headers, *, bare: bool) -> bytes | None:
        """Why a record is a dead letter of ours; None if it is none. A marker of what was replayed
        has one header, which is another."""
        gone = Withdrawal.read(headers, bare=bare)
        if gone is not None:
            at = partition, gone.partition
            if gone.pipeline == self._pipeline and at in self._held:
                left = (offset for offset in self._held[at] if offset < gone.start)
                self._held[at] = array("q", left)
            return None
        said = dict(headers)
        if said.get(PIPELINE) != self._pipeline:
            return None
        topic = (said.get("tallygate.topic") or b"").decode(errors="replace")
        origin = topic, number(said.get("tallygate.partition"))
        offsets = self._held.setdefault((partition, origin), array("q"))
        offsets.append(number(said.get("tallygate.offset")))
        return said.get("tallygate.cause") or b""

    def close(self) -> None:
        self._consumer.close()


def _headers_of(block: pa.RecordBatch) -> Iterator[tuple[Headers, bool]]:
    """The headers of each record, and whether it has neither key nor value."""
    bare = pc.and_(block.column("key").is_null(), block.column("value").is_null())
    given = block.column(HEADERS.name).to_pylist()
    for headers, empty in zip(given, bare.to_pylist(), strict=True):
        yield tuple((each["key"], each["value"]) for each in headers or ()), empty
