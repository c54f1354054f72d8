"""One record followed from its topic to its row, and one row back to its record.

What became of a record is one of these:

    row           the sink holds what the transform gives from it
    replaced      the sink keeps one row of each key, and holds another record's
    missing       the sink should hold a row, and does not
    different     the sink holds a row of it, with other content
    duplicate     the sink holds it more often than the transform gives it
    unexpected    the sink holds a row of it, and the transform gives none
    together      the transform puts it together with others, so no row is its own
    filtered      the transform gives no row from it
    dead letter   it could not be decoded, the transform fails on it, or the sink refused its row
    lost          it was given up as lost
    before        the pipeline began after it
    unread        the ledger has not come to it yet
    no record     there is none at this offset: a transaction's marker, one that was aborted, or
                  something that retention or compaction removed
"""

import json
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as t

from tallygate.auditing.comparable import sides_of
from tallygate.auditing.comparing import compared, same
from tallygate.auditing.context import snapshot_of
from tallygate.auditing.recompute import Noted, Source
from tallygate.core.decoding import COORDINATES
from tallygate.core.ledger_snapshot import Commit, LedgerSnapshot
from tallygate.core.letters import Coordinates
from tallygate.core.offsets import Range, lies_in, topic_of
from tallygate.core.record import Record
from tallygate.engine.factory import read_topics
from tallygate.engine.opening import Opened, PipelineOrPath, load_pipeline, open_pipeline
from tallygate.engine.pipeline import Pipeline
from tallygate.errors import ConfigError, LostRangeError
from tallygate.kafka.connection import Connection
from tallygate.kafka.read import From, Reading, read, to_record
from tallygate.printable import printable
from tallygate.quoting import backticked
from tallygate.settings import Settings
from tallygate.spark.error_text import reason
from tallygate.spark.plan import read_plan
from tallygate.targets.batch_input import within
from tallygate.targets.snapshot import Snapshot
from tallygate.units import moment

MOST = 10
WRONG = {"missing", "different", "duplicate", "unexpected"}


@dataclass(frozen=True, kw_only=True)
class Trace:
    """What became of one record; true if that is right."""

    topic: str
    partition: int
    offset: int
    became: str
    key: str | None = None
    value: str | None = None
    time: str | None = None
    commit: Commit | None = None
    """The one that moved the ledger past it, if the history still has it."""
    rows: tuple[dict[str, Any], ...] = ()
    expected: tuple[dict[str, Any], ...] = ()
    """What the transform gives from the record alone, if its rows are its own."""
    cause: str | None = None
    """Why it is a dead letter."""

    @property
    def right(self) -> bool:
        return self.became not in WRONG

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __bool__(self) -> bool:
        return self.right

    def __str__(self) -> str:
        return "\n".join(map(printable, self._lines()))

    def _lines(self) -> Iterator[str]:
        yield f"{self.topic}/{self.partition}@{self.offset}: {self.became}"
        if self.time is not None:
            yield f"  record: {self.time}, key {self.key}, value {self.value}"
        if self.commit is not None:
            commit = self.commit
            batch = "no batch" if commit.batch is None else f"batch {commit.batch}"
            at = f", {commit.at}" if commit.at else ""
            yield f"  commit: {commit.number} by run {commit.run}, {batch}{at}"
        if self.cause is not None:
            yield f"  cause: {self.cause}"
        yield from (f"  row: {json.dumps(row)}" for row in self.rows)
        if not self.right:
            yield from (f"  should be: {json.dumps(row)}" for row in self.expected)


def trace(
    pipeline: PipelineOrPath,
    at: str | Coordinates | tuple[int, int] | None = None,
    *,
    where: str | None = None,
    settings: Settings | None = None,
    spark: SparkSession | None = None,
) -> list[Trace]:
    """Follow one record to what became of it, by its coordinates: `topic/partition@offset`, a tuple
    of them, or both without the topic if the pipeline reads only one. Or follow the rows that fit
    `where`, a condition in SQL, back to their records (the first 10 of them) and to their rows
    again; none if no row fits.

    The session is the one that is given, else the active one, else a new one, which is left
    running."""
    if (at is None) == (where is None):
        raise ConfigError("name either a record by its coordinates, or rows by where.")
    pipeline = load_pipeline(pipeline)
    record = None if at is None else _coordinates(at, pipeline)
    with _Tracing.open(open_pipeline(pipeline, "trace", settings, spark)) as tracing:
        found = tracing.find(where or "") if record is None else [record]
        return [tracing.record(each) for each in found]


def _coordinates(at: str | Coordinates | tuple[int, int], pipeline: Pipeline) -> Coordinates:
    topic, partition, offset = _parsed(at)
    topics = read_topics(pipeline)
    if topic is None and len(topics) != 1:
        raise ConfigError(
            f"the pipeline reads {len(topics)} topics by name; say of which one the record is."
        )
    if partition < 0 or offset < 0:
        raise ConfigError(f"no record is at partition {partition}, offset {offset}.")
    return topic or topics[0], partition, offset


def _parsed(at: str | Coordinates | tuple[int, int]) -> tuple[str | None, int, int]:
    """Coordinates, of which the topic may be left out."""
    if isinstance(at, tuple):
        return (None, *at) if len(at) == 2 else at
    match = re.fullmatch(r"(?:(.+)/)?(\d+)@(\d+)", at)
    if match is None:
        raise ConfigError(f"{at!r} names no record: write topic/partition@offset.")
    return match[1], int(match[2]), int(match[3])


class _Tracing:
    def __init__(self, source: Source, snapshot: Snapshot, noted: Noted) -> None:
        self._source, self._snapshot, self._noted = source, snapshot, noted

    @classmethod
    @contextmanager
    def open(cls, at: Opened) -> Iterator["_Tracing"]:
        source = replace(Source.of(at), beyond_spark=True)
        request = at.pipeline.request(at.spark, at.settings, {})
        with (
            snapshot_of(request, at.spark) as snapshot,
            tempfile.TemporaryDirectory(prefix="tallygate-trace-") as folder,
        ):
            yield cls(source, snapshot, Noted(folder))

    def find(self, where: str) -> list[Coordinates]:
        rows = _readable(self._snapshot.rows())
        if not set(COORDINATES) <= set(rows.columns):
            raise ConfigError(
                "rows of this sink do not carry the coordinates of their records, so they lead "
                "back to none."
            )
        try:
            found = rows.where(where).select(*COORDINATES).distinct().limit(MOST).collect()
        except AnalysisException as error:
            raise ConfigError(f"where {where!r}: {reason(error)}") from None
        return sorted((row[0], row[1], row[2]) for row in found if row[2] is not None)

    def record(self, at: Coordinates) -> Trace:
        topic, partition, offset = at
        found = _record_at(at, self._source.connection)
        became, commit = _by_ledger(self._snapshot.ledger, at)
        seen = replace(_seen(at, found), commit=commit)
        if became is not None:
            return replace(seen, became=became)
        cause = self._snapshot.letter(at)
        if cause is not None:
            return replace(seen, became="dead letter", cause=cause)
        one = [Range(topic, partition, offset, offset + 1)]
        rows = self._rows(one)
        if found is None:
            there = () if rows is None else _collected(rows)
            return replace(seen, became="no record", rows=there)
        plan = read_plan(self._source.recomputed(one, self._noted))
        if not plan.has_coordinates or rows is None:
            return replace(seen, became="together")
        given = self._snapshot.shaped(plan.frame, has_coordinates=True, passed=self._source.passes)
        shown = replace(seen, rows=_collected(rows), expected=_collected(given))
        became = _judged(given, rows)
        others = self._of_the_same_key(given) if became == "missing" else ()
        return replace(shown, became="replaced" if others else became, rows=others or shown.rows)

    def _of_the_same_key(self, given: DataFrame) -> tuple[dict[str, Any], ...]:
        """The rows that the sink holds in the place of these."""
        key = self._snapshot.key
        if not key:
            return ()
        mine, rows = given.alias("mine"), self._snapshot.rows().alias("theirs")
        return _collected(rows.join(mine, same(key), "left_semi"))

    def _rows(self, one: list[Range]) -> DataFrame | None:
        """The rows of a record; None if rows do not say which record they are of."""
        rows = self._snapshot.rows(one)
        if not set(COORDINATES) <= set(rows.columns):
            return None
        return rows.where(within(one))


def _judged(given: DataFrame, rows: DataFrame) -> str:
    """What the sink holds of one record, as an audit judges it."""
    sides = sides_of(given, rows)
    done = compared(sides.expected, sides.found, COORDINATES, sides.content)
    if done.anomalies:
        return done.anomalies[0].kind
    return "row" if done.rows else "filtered"


def _by_ledger(ledger: LedgerSnapshot, at: Coordinates) -> tuple[str | None, Commit | None]:
    """What the ledger alone says of a record, and the commit that moved past it."""
    topic, partition, offset = at
    reached = [e for e in ledger.reached.values() if e.topic_partition == (topic, partition)]
    if not any(offset < each.until for each in reached):
        return "unread", None
    if not any(each.holds(offset) for each in reached):
        return "before", None
    commit = next((each for each in ledger.history if lies_in(each.ranges, *at)), None)
    lost = (replace(each, topic=topic_of(each.topic)) for each in ledger.lost)
    return ("lost" if lies_in(lost, *at) else None), commit


def _record_at(at: Coordinates, connection: Connection) -> Record | None:
    topic, partition, offset = at
    what = Reading([topic], From.offset, offset, partitions=[partition], exit_at_end=True, limit=1)
    try:
        found = [to_record(message) for batch in read(what, connection) for message in batch]
    except LostRangeError:
        return None
    return found[0] if found and found[0].offset == offset else None


def _seen(at: Coordinates, record: Record | None) -> Trace:
    topic, partition, offset = at
    if record is None:
        return Trace(topic=topic, partition=partition, offset=offset, became="unread")
    key, value = (
        None if given is None else given.decode(errors="replace")
        for given in (record.key, record.value)
    )
    time = moment(record.timestamp)
    return Trace(
        topic=topic,
        partition=partition,
        offset=offset,
        became="unread",
        key=key,
        value=value,
        time=None if time is None else time.isoformat(timespec="milliseconds"),
    )


def _readable(rows: DataFrame) -> DataFrame:
    """With bytes as text."""
    kinds = {field.name: field.dataType for field in rows.schema.fields}
    return rows.select(
        *(
            f.col(backticked(name)).cast("string").alias(name)
            if isinstance(kind, t.BinaryType)
            else f.col(backticked(name))
            for name, kind in kinds.items()
        )
    )


def _collected(rows: DataFrame) -> tuple[dict[str, Any], ...]:
    texts = _readable(rows).limit(MOST).toJSON().collect()
    return tuple(json.loads(text) for text in texts)
