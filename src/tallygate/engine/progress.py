"""How far a query is: what it did with a batch, and what Spark says of its lag and its state."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tallygate.core.offsets import TopicPartition
from tallygate.targets.base import Written


def only_dead_letters(*, records: int, rows: int, letters: int, filters: bool) -> bool:
    """Whether nothing but dead letters came of so many offsets. Without a transform each record
    gives a row or a dead letter, and what else an offset holds is the mark that ends a transaction.
    A transform `filters`: it may leave records out, or keep them for a later row."""
    return rows == 0 and records > 0 and letters > 0 and (letters >= records or not filters)


@dataclass(frozen=True)
class AtStart:
    """What is known of a run before its first batch."""

    positions: Mapping[TopicPartition, int] = field(default_factory=dict)
    lag: Mapping[TopicPartition, int] = field(default_factory=dict)

    def said(self, letters: int) -> dict[str, Any]:
        """As a heartbeat says it; nothing if the ledger holds no position whose end is known."""
        if not self.lag:
            return {}
        return {
            "letters": letters,
            "lag": by_name(self.lag),
            "positions": by_name(self.positions),
        }


def by_name(offsets: Mapping[TopicPartition, int]) -> dict[str, int]:
    return {f"{topic}/{number}": offset for (topic, number), offset in offsets.items()}


@dataclass(frozen=True, kw_only=True)
class Progress:
    """A batch that is done."""

    batch: int
    records: int
    written: Written
    seconds: float
    positions: Mapping[TopicPartition, int]
    letters: int
    """The pipeline's dead letters so far."""
    new_letters: int = 0
    """Those that came with this batch."""
    lag: Mapping[TopicPartition, int]
    """Offsets behind, by what Spark heard from Kafka before the batch."""
    state: Mapping[str, Any] = field(default_factory=dict)
    """The watermark and the size of the state after the batch before, where there are such."""


@dataclass
class SparkReports:
    """What Spark last said of the query."""

    last: Callable[[], Mapping[str, Any] | None] = lambda: None
    late: int = 0
    """Rows of this run that the watermark had overtaken; they are in no result."""
    _counted: int = -1
    _counting: threading.Lock = field(default_factory=threading.Lock)

    def lag(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        found = {}
        for source in (self.last() or {}).get("sources", ()):
            if not source.get("description", "").startswith("KafkaV2"):
                continue
            for topic, partitions in (source.get("latestOffset") or {}).items():
                for number, end in partitions.items():
                    at = topic, int(number)
                    found[at] = max(0, end - positions.get(at, 0))
        return found

    def state(self) -> dict[str, Any]:
        """The watermark and the state. Spark speaks of a batch when it is over, so the records that
        came too late for it are added when the next one is under way."""
        said = self.last() or {}
        operators = said.get("stateOperators") or []
        if not operators:
            return {}
        with self._counting:  # the heart asks too
            if said["batchId"] > self._counted:
                self._counted = said["batchId"]
                self.late += sum(operator["numRowsDroppedByWatermark"] for operator in operators)
        return {
            "watermark": (said.get("eventTime") or {}).get("watermark"),
            "rows": sum(operator["numRowsTotal"] for operator in operators),
            "bytes": sum(operator["memoryUsedBytes"] for operator in operators),
            "late": self.late,
        }
