"""What a task brings to a topic: rows, and the ranges of offsets that they stand for.

**Kafka aborts a transaction that takes too long**, and to read and transform the rows is a part of
it. Rows of one partition come in the order of their records. So when half of the time has passed, a
transaction commits what there is up to the next record, and another one goes on from there; after a
crash the ledger is inside the range, of which the rest is written.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import chain

import pyarrow.compute as pc
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Offset

from tallygate.core.blocks import Block
from tallygate.core.decoding import COORDINATES
from tallygate.core.letters import Letter
from tallygate.core.offsets import Range, TopicPartition, lies_in
from tallygate.errors import LedgerError
from tallygate.targets.base import TaskReport
from tallygate.targets.kafka.ledger import GroupLedger
from tallygate.targets.kafka.marks import Position
from tallygate.targets.kafka.records import RecordRows


@dataclass(frozen=True)
class BlockRows:
    """A block to send, and the first and the last offset of its records, if they are known."""

    rows: RecordRows
    ends: tuple[int, int] | None

    @classmethod
    def of(cls, block: Block, rows: RecordRows) -> "BlockRows":
        if block.coordinates is None:
            return cls(rows, None)
        found = pc.min_max(block.coordinates.column(COORDINATES[-1])).as_py()
        return cls(rows, (found["min"], found["max"]))


@dataclass(kw_only=True)
class Transfer:
    """Rows that are to be sent, and the ranges of offsets that they stand for."""

    ledger: GroupLedger
    transactional_id: str
    wanted: list[Range]
    rows: Iterator[BlockRows] = field(default_factory=lambda: iter(()))
    letters: list[Letter] = field(default_factory=list)
    """Grows while the rows are read."""
    report: TaskReport = field(default_factory=TaskReport)
    positions: dict[TopicPartition, Position] = field(default_factory=dict)
    """Where the group was before."""

    def is_due(self, consumer: Consumer) -> bool:
        self.positions = self.ledger.positions(
            consumer, [each.topic_partition for each in self.wanted]
        )
        return self.ledger.is_due(self.wanted, self.positions)

    def offsets(self) -> list[Offset]:
        return self.ledger.ends(self.wanted, self.positions)

    def due_letters(self) -> list[Letter]:
        """Those that belong to these ranges, once the rows are read."""
        return [each for each in self.letters if lies_in(self.wanted, *each.at)]

    def parts(self, longest: float) -> Iterator["Transfer"]:
        """The transfer of one partition in parts. One that takes that long ends before the next
        record; the part after it is asked for when it is committed."""
        (whole,) = self.wanted
        part, rows = self, self.rows
        while True:
            following: list[BlockRows] = []
            part = replace(part)
            part.rows = part._until(time.monotonic() + longest, rows, following)
            yield part
            if not following:
                return
            (done,) = part.wanted
            mark = self.ledger.next_mark(done, part.positions.get(done.topic_partition))
            part = replace(
                part,
                wanted=[replace(whole, start=done.until)],
                positions={done.topic_partition: Position(done.until, mark)},
            )
            rows = chain(following, self.rows)

    def _until(
        self, deadline: float, rows: Iterator[BlockRows], following: list[BlockRows]
    ) -> Iterator[BlockRows]:
        """The rows that come before the deadline, and those of the same record. What is in hand
        then is `following`, and the range ends there."""
        (whole,) = self.wanted
        last: int | None = None
        for each in rows:
            if each.ends is not None:
                first, until = each.ends
                if first < whole.start:
                    raise LedgerError(f"the rows of {whole} are not in the order of their records.")
                if last is not None and first > last and time.monotonic() > deadline:
                    self.wanted = [replace(whole, until=first)]
                    following.append(each)
                    return
                last = until if last is None else max(last, until)
            yield each
