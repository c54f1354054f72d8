"""A query that runs: watched, kept in sight by a heartbeat, stopped after its batch."""

import contextlib
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tallygate.engine.batch import BatchEngine
from tallygate.engine.progress import Progress, by_name, only_dead_letters
from tallygate.engine.run_request import RunRequest, StopRequested
from tallygate.engine.start import start
from tallygate.errors import (
    FencedError,
    LostRangeError,
    QueryError,
    TallygateError,
    TopicError,
    UnreachableError,
)
from tallygate.spark.ending import interrupt
from tallygate.spark.error_text import reason

BEAT_EVERY = 2.0


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What a run did."""

    batches: int
    records: int
    rows: int
    letters: int
    seconds: float
    outcome: str
    new_letters: int = 0
    """Of `letters`, which are all that the pipeline has, those of this run."""
    late: int = 0
    """Rows that the watermark had overtaken: they are in no result."""
    filters: bool = False
    """Whether records may have given no row without being dead letters."""

    @property
    def only_dead_letters(self) -> bool:
        """Whether nothing but dead letters came of what was read."""
        return only_dead_letters(
            records=self.records,
            rows=self.rows,
            letters=self.new_letters,
            filters=self.filters,
        )


class Counts:
    def __init__(self) -> None:
        self.batches = self.records = self.rows = self.letters = self.new_letters = 0

    def add(self, progress: Progress) -> None:
        self.batches += 1
        self.records += progress.records
        self.rows += progress.written.rows
        self.letters = progress.letters
        self.new_letters += progress.new_letters


def run_query(request: RunRequest, spark: SparkSession, counts: Counts) -> Summary:
    """Start the query and watch it until it ends; raise what stopped it, if it failed."""
    started = time.monotonic()
    query, engine = start(request, spark)
    heart = Heart(query, engine, stale=request.stale)
    heart.start()
    stopping = False
    with _signals() as asked, contextlib.suppress(StreamingQueryException):
        while not query.awaitTermination(0.2):  # type: ignore[arg-type]
            if heart.failure is not None:
                query.stop()
                break
            if (asked or heart.stop_requested or heart.stale) and engine.request_stop():
                stopping = True
                query.stop()
                break
    heart.stop()
    failure = heart.failure or engine.failure or query.exception()
    if isinstance(failure, StopRequested) or (stopping and failure is None):
        failure = None
    unread = isinstance(failure, LostRangeError | TopicError | UnreachableError)
    if unread or not isinstance(failure, TallygateError | None):
        try:
            engine.diagnose()
        except UnreachableError:
            pass  # what Spark said is all there is to say
        except TallygateError as error:
            failure = error
    outcome = "failed" if failure else _outcome(bool(asked) or heart.stop_requested, heart.stale)
    try:
        with contextlib.suppress(UnreachableError):
            engine.target.end(engine.claim, outcome if failure is None else f"failed: {failure}")
    finally:
        engine.end()
    if failure is not None:
        raise (
            failure
            if isinstance(failure, TallygateError)
            else QueryError(f"pipeline {request.name!r} stopped: {reason(failure)}")
        ) from failure
    took = time.monotonic() - started
    engine.reports.state()
    return Summary(
        batches=counts.batches,
        records=counts.records,
        rows=counts.rows,
        letters=counts.letters,
        seconds=took,
        outcome=outcome,
        new_letters=counts.new_letters,
        late=engine.reports.late,
        filters=engine.shape.filters,
    )


def _outcome(asked: bool, stale: bool) -> str:
    if asked:
        return "stopped"
    return "refreshed" if stale else "done"


@contextlib.contextmanager
def _signals() -> Iterator[list[int]]:
    """Signals that ask for a stop are noted, where signals can be handled at all."""
    asked: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def note(number: int, _: FrameType | None) -> None:
        asked.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Heart:
    """Says every few seconds that the run is alive and how far it is.

    For a query that is left `alone` with its user it also does what a runner would: it stops the
    query when asked to, and writes down how the run ended. One that is fenced is ended at once,
    also while it waits for records, since a newer run may wait for its checkpoint; but it fails,
    since to be stopped would look as if all were well."""

    def __init__(
        self,
        query: StreamingQuery,
        engine: BatchEngine,
        *,
        alone: bool = False,
        stale: Callable[[], bool] = lambda: False,
    ) -> None:
        self._query, self._engine, self._alone = query, engine, alone
        self._target, self._claim = engine.target, engine.claim
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.failure: TallygateError | None = None
        self.stop_requested = False
        self._stale, self.stale = stale, False

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """The last beat says how far the run came."""
        self._stopped.set()
        self._thread.join(timeout=10)
        with contextlib.suppress(Exception):
            self._target.beat(self._claim, self.progress())

    def _run(self) -> None:
        while not self._stopped.wait(BEAT_EVERY) and self._query.isActive:
            try:
                self.stop_requested = self._target.beat(self._claim, self.progress())
                self.stale = self.stale or self._stale()
            except FencedError as error:
                self.failure = error
                break
            except Exception:
                continue  # the store is away: the batch at hand finds out what that means
            if self._alone and self.stop_requested and self._engine.request_stop():
                break
        if self._alone:
            self._end()

    def _end(self) -> None:
        if self.failure is not None:
            logging.getLogger("tallygate").error("%s", self.failure)
            self._engine.fenced = self.failure
            with contextlib.suppress(Exception):
                interrupt(self._query)
                self._query.awaitTermination(BEAT_EVERY)  # type: ignore[arg-type]
        with contextlib.suppress(Exception):
            self._query.stop()
        with contextlib.suppress(Exception):
            self._target.end(self._claim, self._outcome())
        self._engine.end()

    def _outcome(self) -> str:
        """How the query ended, now that it has, by Spark's word: a batch that its user stopped is
        no failure, and what fails in Spark itself the engine does not know."""
        said = self._query.exception()
        if self.failure is None and said is None:
            return "stopped" if self.stop_requested else "done"
        failure = self.failure or self._engine.failure or said
        if failure is None or isinstance(failure, StopRequested):
            return "stopped"
        own = isinstance(failure, TallygateError)
        return f"failed: {failure if own else reason(failure)}"

    def progress(self) -> dict[str, Any]:
        last = self._engine.last
        if last is None:
            return self._engine.at_start.said(self._engine.letters)
        return {
            "batch": last.batch,
            "strategy": last.written.strategy,
            "records": last.records,
            "rows": last.written.rows,
            "seconds": round(last.seconds, 3),
            "parts": {name: round(value, 3) for name, value in last.written.seconds.items()},
            "letters": last.letters,
            "lag": by_name(last.lag),
            "positions": by_name(last.positions),
            "state": self._engine.reports.state(),
        }
