"""Records on which the transform fails: which they are, and what becomes of them.

Spark says that a task has failed, and not at which record. So where rows are of single records, the
transform is run again over parts of the batch, into nothing: a part that fails is halved, down to
the single record. With `on_error: stop` the first one is named in the error. With `dead-letter` all
are found, kept with their causes, and the rest of the batch is written without them.

**A bad record neither blocks nor vanishes.** Only what Spark blames on a row makes a dead letter,
and only if the record fails by itself. A lost executor, a broker that does not answer or a full
disk says nothing of a record.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession

from tallygate.core.halving import write_in_halves
from tallygate.core.letters import Coordinates, Letter, letter_of
from tallygate.core.offsets import Range, count, lies_in, part
from tallygate.engine.frames import LEFT_OUT
from tallygate.engine.run_request import RunRequest, StopRequested
from tallygate.errors import ConfigError, InputError, QueryError, TallygateError
from tallygate.kafka.fetch import fetch
from tallygate.spark.direct_read import by_records_alone, over_ranges
from tallygate.spark.error_text import is_of_row, reason
from tallygate.spark.plan import Plan
from tallygate.targets.task_report import raise_step_errors

_OURS = (LEFT_OUT, "tallygate/engine/frames.py")
LOOKS_FOR = 60.0
"""Seconds after which a run that stops anyway does not look further for the record."""


def refuse_on_error(request: RunRequest, plan: Plan) -> None:
    """Raise if records on which the transform fails are to be dead letters and cannot be found."""
    if request.on_error != "dead-letter" or request.decoder is not None:
        return
    if not plan.has_coordinates:
        why = plan.why.removeprefix("wide: ")
    elif not request.fetches:
        why = "the source has options by which only Spark's own reader can read it"
    elif not by_records_alone(plan.frame):
        why = "its rows depend on more than that: a static side, time, chance, an unknown step"
    else:
        return
    raise ConfigError(
        "on_error: dead-letter needs a transform whose rows are of one record each, and here "
        f"{why}. Leave on_error out, and have the transform make a null of what fails "
        "(`try_divide`, `try_cast`)."
    )


@dataclass(kw_only=True)
class FailingRecords:
    """Those of the batch at hand."""

    request: RunRequest
    plan: Plan
    possible: bool
    """Whether rows are made of single records, which can be read one by one, and the target has a
    place for them with its ledger."""
    go_on: Callable[[], None]
    """Raises if the run is asked to stop."""
    _batch: int | None = None
    _found: dict[Coordinates, Letter] = field(default_factory=dict)
    _ids: Mapping[str, str] = field(default_factory=dict)
    """What the topics are whose records are read."""

    def letters(self, batch: int, left: Sequence[Range]) -> tuple[Letter, ...]:
        """What is known to fail of what is left of a batch."""
        if batch != self._batch:
            self._batch, self._found = batch, {}
        return tuple(self._found[at] for at in sorted(self._found) if lies_in(left, *at))

    def look_into(
        self,
        error: Exception,
        left: Sequence[Range],
        ids: Mapping[str, str],
        spark: SparkSession,
    ) -> None:
        """Find the records because of which a batch failed; raise what is wrong with it, unless
        they are dead letters now and it can be tried without them."""
        if isinstance(error, TallygateError) or not self.possible:
            raise error
        before = len(self._found)
        self._ids = ids
        try:
            if self.request.on_error == "stop":
                self._name_first(left, spark)
            else:
                self._find_all(left, spark)
        except (TallygateError, StopRequested) as said:
            raise said from error
        except Exception:  # of the search; what made it necessary says more
            raise error from None
        if len(self._found) == before:
            raise error

    def _name_first(self, left: Sequence[Range], spark: SparkSession) -> None:
        until = time.monotonic() + LOOKS_FOR

        def go_on() -> None:
            self.go_on()
            if time.monotonic() > until:
                raise TimeoutError

        def found(at: Coordinates, cause: str) -> None:
            topic, partition, offset = at
            raise QueryError(
                f"pipeline {self.request.name!r} stopped: its transform fails on "
                f"{topic}/{partition}@{offset}: {cause}. Change the transform, or set "
                "`on_error: dead-letter` to set such records aside."
            )

        self._search(left, spark, go_on, found)

    def _find_all(self, left: Sequence[Range], spark: SparkSession) -> None:
        known = {at for at in self._found if lies_in(left, *at)}

        def found(at: Coordinates, cause: str) -> None:
            self._found[at] = self._letter(at, f"the transform fails: {cause}")
            known.add(at)
            self._check_limits(len(known), count(left), at)

        self._search(left, spark, self.go_on, found)

    def _search(
        self,
        ranges: Sequence[Range],
        spark: SparkSession,
        go_on: Callable[[], None],
        found: Callable[[Coordinates, str], None],
    ) -> None:
        apart = set(self._found)

        def compute(low: int, high: int) -> int:
            go_on()
            rows = over_ranges(self.plan.frame, part(ranges, low, high), spark, self._ids, apart)
            _compute(self.request.target.prepared(rows))
            return 0

        def set_aside(index: int, error: Exception) -> None:
            (one,) = part(ranges, index, index + 1)
            found((one.topic, one.partition, one.start), reason(error))

        write_in_halves(count(ranges), compute, set_aside, _blames_row)

    def _letter(self, at: Coordinates, cause: str) -> Letter:
        topic, partition, offset = at
        connection = self.request.connection
        assert connection is not None
        one = [Range(topic, partition, offset, offset + 1)]
        headers = self.request.target.traits.headers
        for raw in fetch(one, connection, headers=headers, ids=self._ids):
            return letter_of(raw, 0, cause)
        return Letter(topic, partition, offset, cause)

    def _check_limits(self, failing: int, records: int, at: Coordinates) -> None:
        """Too many are no reason to look for all of them."""
        limit, share = self.request.limits.limit, self.request.limits.share
        many = limit is not None and failing > limit
        if many or (share is not None and failing > records * share):
            topic, partition, offset = at
            raise InputError(
                f"the transform fails on {failing} or more of {records} records of a batch, which "
                f"is more than dead_letters allows; the last that was looked at is {topic}/"
                f"{partition}@{offset}: {self._found[at].cause}. Nothing more of the batch is "
                "written; change the transform, or raise dead_letters.limit or .share to go on."
            )


def _blames_row(error: Exception) -> bool:
    """Not if it is this program's own step that failed."""
    return is_of_row(error) and not any(each in str(error) for each in _OURS)


def _compute(rows: DataFrame) -> None:
    """Compute all rows, and keep none."""
    with raise_step_errors():
        rows.write.format("noop").mode("append").save()
