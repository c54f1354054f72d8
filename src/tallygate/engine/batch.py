"""The spine of a batch, from the ranges that Spark has planned to the ledger that has them.

Spark logs a batch's offsets, calls `process`, and logs the batch as done when that returns:

    plan      ask the ledger what the target has, and what is left of the batch
    read      give the target the rows of that, and of nothing else (`read_path`)
    write     the target commits rows and ledger as one, if this run is still the newest
    record    remember what a later start compares, count dead letters, show the positions

**An unanswered commit is neither done nor failed.** If a store does not answer, the ledger is asked
again and what is left then is tried, for as long as `PATIENCE` says; nothing is repeated on a
guess.
"""

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from pyspark.sql import DataFrame

from tallygate.core.ledger import Claim, LedgerState, OtherTargetError, Remember
from tallygate.core.offsets import (
    MovedError,
    Range,
    TopicPartition,
    count,
    is_topic,
    remaining,
)
from tallygate.engine.checkpoint_lock import CheckpointLock
from tallygate.engine.failing import FailingRecords
from tallygate.engine.lateness import WATERMARK
from tallygate.engine.progress import AtStart, Progress, SparkReports, only_dead_letters
from tallygate.engine.read_path import BatchReader
from tallygate.engine.run_request import RunRequest, StopRequested
from tallygate.errors import InputError, TallygateError, UnreachableError
from tallygate.failpoints import reach
from tallygate.kafka.fetch import close_idle
from tallygate.kafka.groups import Mirror
from tallygate.spark.checkpoint import Checkpoint
from tallygate.spark.odd_times import is_beyond_spark
from tallygate.spark.plan import Plan
from tallygate.targets.base import RowShape, UnknownOutcomeError, WriteBatch, Written
from tallygate.targets.task_report import raise_step_errors

T = TypeVar("T")
PATIENCE = 60.0
CAUSES = 3
"""How many causes of dead letters a note names."""
LONGEST_CAUSE = 200
LOOK_EVERY = 1.0
"""How old what is known of the topics may be, in seconds, when a batch is written."""


@dataclass(kw_only=True)
class BatchEngine:
    """Brings the batches of one query to its target."""

    request: RunRequest
    claim: Claim
    checkpoint: Checkpoint
    shape: RowShape
    plan: Plan
    topic_ids: Callable[[Sequence[str]], Mapping[str, str]]
    """Asks for the ids of topics, and raises if one was recreated since the run began."""
    leader_epochs: Callable[[Sequence[Range], LedgerState], Mapping[TopicPartition, int]]
    """Asks for the leaders of what is going to be read; raises if a log was cut off."""
    mirror: Mirror | None
    letters: int
    """The dead letters so far."""
    diagnose: Callable[[], None] = lambda: None
    """Raises what is wrong with the source, if that is why the query stopped."""
    other_target: Callable[[], TallygateError]
    """Gives what to raise when the target is not the one any more that the run began with."""
    lock: CheckpointLock | None = None
    """Held until the query is over, where another run could use the checkpoint."""
    patience: float = PATIENCE
    failure: BaseException | None = None
    """What stopped the run: Spark reports it as a text alone."""
    fenced: BaseException | None = None
    """Why no other batch is to be begun."""
    at_start: AtStart = field(default_factory=AtStart)
    last: Progress | None = None
    reports: SparkReports = field(default_factory=SparkReports)
    _busy: threading.Lock = field(default_factory=threading.Lock)
    _stopping: bool = False
    _said_why: bool = False
    _beyond_spark: bool = False
    _looked: float = -math.inf
    _known_topics: set[str] = field(default_factory=set)
    _ids: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.target = self.request.target
        self.reader = BatchReader.of(self.request, self.shape, self.plan)
        self.called = Called(self)
        self.failing = FailingRecords(
            request=self.request,
            plan=self.plan,
            possible=self.reader.records_alone
            and self.shape.has_coordinates
            and self.target.traits.keeps_ledger,
            go_on=self._check_stop,
        )

    def process(self, frame: DataFrame, batch: int) -> None:
        """Bring one batch to the target."""
        with self._busy:
            try:
                if self.fenced is not None:
                    raise self.fenced
                self._check_stop()
                self._process(frame, batch)
            except BaseException as error:
                self.failure = error
                raise

    def _process(self, frame: DataFrame, batch: int) -> None:
        started = time.perf_counter()
        reach("batch-started", batch)
        ranges = self.checkpoint.ranges(batch)
        self._hand_on_watermark(frame, batch)
        topics = {each.topic for each in ranges if is_topic(each.topic)}
        new = bool(topics - self._known_topics) or self.last is None
        ids = self._identified(batch, topics, always=new)
        if new:
            self._patiently(batch, lambda: self._remember(ids))
        written = self._patiently(batch, lambda: self._write(frame, batch, ranges))
        reach("batch-committed", batch)
        self._patiently(batch, lambda: self._look(topics))
        if new:  # once more, for what the ledger had no place for before
            self._patiently(batch, lambda: self._remember(ids))
            self._known_topics |= topics
        self._record(batch, ranges, written, started)

    def _check_stop(self) -> None:
        if self._stopping:
            raise StopRequested

    def _write(self, frame: DataFrame, batch: int, ranges: Sequence[Range]) -> Written:
        state = self.target.ledger() or LedgerState()
        self.claim.check_newest(state.run)
        left = remaining(ranges, state.positions, divisible=self._divisible)
        reach("batch-planned", batch)
        if not left:
            return self._skip(frame)
        new = tuple(each for each in left if each.topic_partition not in state.positions)
        epochs = self.leader_epochs(left, state) if self.target.traits.keeps_ledger else {}
        beyond, letters = self._beyond_spark, self.failing.letters(batch, left)
        apart = [each.at for each in letters]
        given = self.reader.input(frame, ranges, left, self._ids, beyond_spark=beyond, apart=apart)
        planned = WriteBatch(
            id=batch, left=left, new=new, epochs=epochs, input=given, letters=letters
        )
        try:
            with raise_step_errors():
                return self.target.write(self.claim, planned)
        except OtherTargetError as error:
            raise self.other_target() from error
        except Exception as error:
            if not beyond and is_beyond_spark(error):
                self._beyond_spark = True  # and what is left now is read otherwise
                raise UnknownOutcomeError("a record has a time that Spark cannot take") from error
            self.failing.look_into(error, left, self._ids, frame.sparkSession)
        # Tasks may have committed a part of it by now: what is left is asked for again.
        return self._write(frame, batch, ranges)

    @property
    def _divisible(self) -> bool:
        return self.shape.has_coordinates and self.target.traits.divisible

    def _skip(self, frame: DataFrame) -> Written:
        """Nothing is left of the batch. Its rows are in the target, but Spark's state may not be:
        the frame is computed for that alone."""
        if self.shape.stateful:
            frame.write.format("noop").mode("append").save()
        return Written("skipped")

    def _record(
        self, batch: int, ranges: Sequence[Range], written: Written, started: float
    ) -> None:
        positions = {each.topic_partition: each.until for each in ranges}
        if self.mirror is not None:
            self.mirror({at: end for at, end in positions.items() if is_topic(at[0])})
        records = count(ranges)
        before = self.letters
        self.letters = self._patiently(batch, self.target.letter_count)
        new = self.letters - before
        filters = self.shape.filters
        if only_dead_letters(records=records, rows=written.rows, letters=new, filters=filters):
            self._patiently(batch, lambda: self._say_why(batch, ranges, new))
        self._check_letters(records, new)
        self.last = Progress(
            batch=batch,
            records=records,
            written=written,
            seconds=time.perf_counter() - started,
            positions=positions,
            letters=self.letters,
            new_letters=new,
            lag=self.reports.lag(positions),
            state=self.reports.state(),
        )
        self.request.on_progress(self.last)

    def _hand_on_watermark(self, frame: DataFrame, batch: int) -> None:
        """Tell the tasks what is too late for this batch, where late records are kept."""
        if self.request.limits.late:
            passed = self.checkpoint.watermark(batch - 1) if batch else 0
            frame.sparkSession.sparkContext.setLocalProperty(WATERMARK, str(passed or 0))

    def _identified(self, batch: int, topics: set[str], *, always: bool) -> Mapping[str, str]:
        """The topics' ids, if it is time to ask for them: one that is recreated while the run goes
        on has other records at the offsets that come next, which nothing else would notice."""
        if not always and time.monotonic() < self._looked + LOOK_EVERY:
            return {}
        return self._patiently(batch, lambda: self._look(topics))

    def _look(self, topics: set[str]) -> Mapping[str, str]:
        """Ask for the ids now; raise if one has changed. It is done after a write, too: a batch of
        another topic may be in the target then, but it does not count as done, and no start goes on
        from it."""
        ids = self.topic_ids(sorted(topics))
        self._ids, self._looked = {**self._ids, **ids}, time.monotonic()
        return ids

    def _remember(self, ids: Mapping[str, str]) -> None:
        """Keep what a later start compares, unless the ledger has it already."""
        if not self.target.traits.keeps_ledger:
            return
        change = Remember(self.checkpoint.id, ids, self.request.fingerprint)
        state = self.target.ledger()
        if state is None or change.applied(state) != state:
            self.target.amend(self.claim, change)

    def _patiently(self, batch: int, act: Callable[[], T]) -> T:
        """Try again while a store does not answer, or had moved in between."""
        deadline, pause = None, 0.1
        while True:
            try:
                return act()
            except (UnreachableError, MovedError) as error:
                now = time.monotonic()
                deadline = deadline or now + self.patience
                if now >= deadline:
                    raise UnreachableError(
                        f"batch {batch} could not be written to {self.target.name} for "
                        f"{self.patience:.0f} s: {str(error).rstrip('.')}. What the ledger has is "
                        "in the target, the rest is not; start again when the target answers."
                    ) from error
                time.sleep(pause)
                pause = min(2 * pause, 2.0)

    def _say_why(self, batch: int, ranges: Sequence[Range], new: int) -> None:
        """Say once in a run that a batch gave dead letters alone, and what is wrong with them."""
        if self._said_why:
            return
        causes = self.target.first_causes(ranges, CAUSES)
        said = f": {'; '.join(each[:LONGEST_CAUSE] for each in causes)}" if causes else ""
        lists = f" `{self.request.lists_letters}` lists them." if self.request.lists_letters else ""
        self.request.note(
            f"batch {batch} gave no row, since its {new:,} records are dead letters{said}.{lists}"
        )
        self._said_why = True

    def _check_letters(self, records: int, new: int) -> None:
        """Too many dead letters stop the pipeline; the batch stays, and so do they."""
        limit, share = self.request.limits.limit, self.request.limits.share
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

    def request_stop(self) -> bool:
        """Ask for a stop; True if no batch is under way, so that the query can be stopped now."""
        self._stopping = True
        return not self._busy.locked()

    def end(self) -> None:
        """The query is over: nothing is left open to Kafka, and another run may come."""
        self.called.let_go()
        if self.mirror is not None:
            self.mirror.close()
        close_idle()
        if self.lock is not None:
            self.lock.release()


class Called:
    """What Spark calls for each batch.

    The JVM keeps it for as long as it pleases, long after the query. So when the run is over it
    lets go of the engine, and with that of everything that the run had open."""

    def __init__(self, engine: BatchEngine) -> None:
        self._engine: BatchEngine | None = engine

    def __call__(self, frame: DataFrame, batch: int) -> None:
        if self._engine is None:
            raise StopRequested
        self._engine.process(frame, batch)

    def let_go(self) -> None:
        self._engine = None
