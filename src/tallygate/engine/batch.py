"""The engine: what happens between Spark's offset log and Spark's commit log.

Spark logs a batch's offsets, calls `process`, and logs the batch as done when that returns. The
sink does what the ledger says is left. If the store does not answer, the ledger is asked again and
the rest is tried again, for as long as `patience` says; nothing is repeated on a guess.
"""

import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pyspark.sql import DataFrame

from tallygate.core.offsets import Place, count, is_topic
from tallygate.engine.lateness import WATERMARK
from tallygate.errors import InputError, UnreachableError
from tallygate.failpoints import reach
from tallygate.kafka.fetch import close_idle
from tallygate.kafka.groups import Mirror
from tallygate.spark.checkpoint import Checkpoint
from tallygate.spec import DeadLetters
from tallygate.targets.sink import Batch, Retry, Sink, Written
from tallygate.targets.store import Store
from tallygate.targets.task_report import steps_heard

__all__ = ["Engine", "Progress", "StopRequested"]

T = TypeVar("T")
PATIENCE = 60.0
LOOK_EVERY = 1.0
"""How old what is known of the topics may be, in seconds, when a batch is written."""


class StopRequested(Exception):  # noqa: N818 - no error: how a query that is asked to stop ends
    """Somebody asked the run to stop, and the batch at hand is left for the next one."""


@dataclass(frozen=True)
class Progress:
    """A batch that is done."""

    batch: int
    records: int
    written: Written
    seconds: float
    positions: Mapping[Place, int]
    letters: int
    lag: Mapping[Place, int]
    """Offsets behind, by what Spark heard from Kafka before the batch."""
    state: Mapping[str, Any] = field(default_factory=dict)
    """The watermark and the size of the state after the batch before, where there are such."""


@dataclass
class Engine:
    store: Store
    sink: Sink
    checkpoint: Checkpoint
    limits: DeadLetters
    topic_ids: Callable[[list[str]], Mapping[str, str]]
    mirror: Mirror | None
    told: Callable[[Progress], None] = lambda _: None
    spark_progress: Callable[[], Mapping[str, Any] | None] = lambda: None
    """What Spark last said of the query."""
    diagnose: Callable[[], None] = lambda: None
    """Raises what is wrong with the source, if that is why the query stopped."""
    rows_of: Callable[[DataFrame, Batch], DataFrame] = lambda frame, _: frame
    """What is written for a batch: what Spark gives, or the same rows in a better way."""
    patience: float = PATIENCE
    failure: BaseException | None = None
    """What stopped the run: Spark reports it as a text alone."""
    letters: int = 0
    """The dead letters so far."""
    late: int = 0
    """Rows of this run that the watermark had overtaken; they are in no result."""
    last: Progress | None = None
    _busy: threading.Lock = field(default_factory=threading.Lock)
    _stopping: bool = False
    _counting: threading.Lock = field(default_factory=threading.Lock)
    _counted: int = -1
    _looked: float = -math.inf
    _known_topics: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.called = Called(self)

    def end(self) -> None:
        """The query is over: nothing is left open to Kafka."""
        self.called.let_go()
        if self.mirror is not None:
            self.mirror.close()
        close_idle()

    def process(self, frame: DataFrame, batch_id: int) -> None:
        """Bring one batch into the sink."""
        with self._busy:
            try:
                if self._stopping:
                    raise StopRequested
                self._process(frame, batch_id)
            except BaseException as error:
                self.failure = error
                raise

    def request_stop(self) -> bool:
        """Ask for a stop; True if no batch is under way, so that the query can be stopped now."""
        self._stopping = True
        return not self._busy.locked()

    def _process(self, frame: DataFrame, batch_id: int) -> None:
        started = time.perf_counter()
        reach("batch-started", batch_id)
        batch = Batch(batch_id, self.checkpoint.ranges(batch_id))
        if self.limits.late:
            passed = self.checkpoint.watermark(batch_id - 1) if batch_id else 0
            frame.sparkSession.sparkContext.setLocalProperty(WATERMARK, str(passed or 0))
        topics = {each.topic for each in batch.ranges if is_topic(each.topic)}
        new = bool(topics - self._known_topics) or self.last is None
        ids = self._identified(topics, batch, new)
        if new:
            self.store.remember(self.checkpoint.id, ids)
        rows = self.rows_of(frame, batch)
        written = self._patiently(batch, lambda: self._written(rows, batch))
        reach("batch-committed", batch_id)
        if new:
            self.store.remember(self.checkpoint.id, ids)  # where it had no place for it before
            self._known_topics |= topics
        positions = {each.place: each.until for each in batch.ranges}
        if self.mirror is not None:
            self.mirror({place: at for place, at in positions.items() if is_topic(place[0])})
        self._check_letters(count(batch.ranges))
        took = time.perf_counter() - started
        records = count(batch.ranges)
        lag = self._lag(positions)
        self.last = Progress(
            batch_id, records, written, took, positions, self.letters, lag, self.state()
        )
        self.told(self.last)

    def _written(self, rows: DataFrame, batch: Batch) -> Written:
        with steps_heard():
            return self.sink.write(rows, batch)

    def _identified(self, topics: set[str], batch: Batch, new: bool) -> Mapping[str, str]:
        """The topics' ids, if it is time to ask for them: one that is made anew while the run goes
        on has other records at the offsets that come next, which nothing else would notice."""
        if not new and time.monotonic() < self._looked + LOOK_EVERY:
            return {}

        def ask() -> Mapping[str, str]:
            try:
                return self.topic_ids(sorted(topics))
            except UnreachableError as error:
                raise Retry(str(error)) from error

        ids = self._patiently(batch, ask)
        self._looked = time.monotonic()
        return ids

    def _lag(self, positions: Mapping[Place, int]) -> dict[Place, int]:
        found = {}
        for source in (self.spark_progress() or {}).get("sources", ()):
            if not source.get("description", "").startswith("KafkaV2"):
                continue
            for topic, partitions in (source.get("latestOffset") or {}).items():
                for number, end in partitions.items():
                    place = topic, int(number)
                    found[place] = max(0, end - positions.get(place, 0))
        return found

    def state(self) -> dict[str, Any]:
        """The watermark and the state, as Spark last said. Spark speaks of a batch when it is over,
        so the records that came too late for it are added when the next one is under way."""
        progress = self.spark_progress() or {}
        operators = progress.get("stateOperators") or []
        if not operators:
            return {}
        with self._counting:  # the heart asks too
            if progress["batchId"] > self._counted:
                self._counted = progress["batchId"]
                self.late += sum(operator["numRowsDroppedByWatermark"] for operator in operators)
        return {
            "watermark": (progress.get("eventTime") or {}).get("watermark"),
            "rows": sum(operator["numRowsTotal"] for operator in operators),
            "bytes": sum(operator["memoryUsedBytes"] for operator in operators),
            "late": self.late,
        }

    def _patiently(self, batch: Batch, act: Callable[[], T]) -> T:
        deadline, pause = None, 0.1
        while True:
            try:
                return act()
            except Retry as error:
                now = time.monotonic()
                deadline = deadline or now + self.patience
                if now >= deadline:
                    raise UnreachableError(
                        f"batch {batch.id} could not be brought to {self.store.target} for "
                        f"{self.patience:.0f} s: {str(error).rstrip('.')}. What the ledger has is "
                        "in the sink, the rest is not; start again when there is an answer."
                    ) from error
                time.sleep(pause)
                pause = min(2 * pause, 2.0)

    def _check_letters(self, records: int) -> None:
        """Too many dead letters stop the pipeline; the batch stays, and so do they."""
        before, self.letters = self.letters, self.store.letters()
        limit, share, new = self.limits.limit, self.limits.share, self.letters - before
        kept = "they are kept with their causes among the dead letters"
        if limit is not None and self.letters > limit:
            raise InputError(
                f"{self.letters} records are dead letters, more than the limit of {limit}; {kept}. "
                "Raise dead_letters.limit to go on."
            )
        if share is not None and new > records * share:
            raise InputError(
                f"{new} of {records} records of a batch are dead letters, more than the share of "
                f"{share:g}; {kept}. Raise dead_letters.share to go on."
            )


class Called:
    """What Spark calls for each batch.

    The JVM keeps it for as long as it pleases, long after the query. So when the run is over it
    lets go of the engine, and with that of everything that the run had open."""

    def __init__(self, engine: Engine) -> None:
        self._engine: Engine | None = engine

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        if self._engine is None:
            raise StopRequested
        self._engine.process(frame, batch_id)

    def let_go(self) -> None:
        self._engine = None
