"""Starting a query on a store's ledger: what is checked first, and where reading goes on.

The ledger is the truth and the checkpoint a cache of it. A pipeline without state whose checkpoint
is gone, older or ahead goes on from the ledger by itself: the checkpoint is set aside and a new one
is written that begins where the ledger is. A pipeline with state cannot: its state is in the
checkpoint, so it is refused, with what to do.

**Nothing is skipped in silence.** Before the query starts, the ledger is compared with the source:
a topic that was made anew, or records that retention removed before they were read, are an error
with the exact ranges.
"""

import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from confluent_kafka.admin import OffsetSpec
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.query import StreamingQuery

from tallygate.errors import ConfigError, LedgerError, LostRangeError, TopicError
from tallygate.kafka.connection import Connection
from tallygate.kafka.groups import Mirror, topic_ids
from tallygate.kafka.reader import list_offsets
from tallygate.ledger.ranges import Known, Place, Range, is_topic
from tallygate.pipeline.engine import Engine, Progress
from tallygate.records.decoding import Decoder
from tallygate.sinks.store import Keeper, Shape, Store
from tallygate.spark.checkpoint import Checkpoint
from tallygate.spark.plan import Plan, needed_columns, read_plan
from tallygate.spark.refusals import OUTPUT_MODES, refuse
from tallygate.spark.saying import reason
from tallygate.spec import DeadLetters

__all__ = ["SHUFFLE_PARTITIONS", "Job", "diagnose", "launch", "look"]

SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"

# Views and settings belong to the session, which several pipelines may share: while one of them
# builds its frame or starts its query, none of the others may change them.
_ONE_AT_A_TIME = threading.RLock()


@dataclass(frozen=True)
class Job:
    """A streaming frame, and where it goes."""

    name: str
    build: Callable[[Keeper, Checkpoint | None, Collection[str] | None], DataFrame]
    """Makes the frame; without a checkpoint one to look at, for which no static side is read. If
    it is known which columns of its sources are needed, the others are left out."""
    store: Store
    checkpoint: str
    connection: Connection | None
    """To the source's brokers, if any source is Kafka."""
    mode: str = "append"
    trigger: Mapping[str, str | bool] = field(default_factory=dict)
    decoder: Decoder | None = None
    """Given if the frame holds raw records."""
    fetches: bool = False
    """Whether whoever writes those also reads them, in place of Spark."""
    limits: DeadLetters = field(default_factory=DeadLetters)
    accept_loss: bool = False
    told: Callable[[Progress], None] = lambda _: None
    note: Callable[[str], None] = lambda _: None
    ready: Callable[[], None] = lambda: None
    """Raises if something that the frame needs cannot be read, before anything is taken over."""
    stale: Callable[[], bool] = lambda: False
    """Whether a static side has changed, so that the query is to be started anew."""
    adopts: bool = False
    """Whether a checkpoint of batches that the ledger does not know may be taken over."""
    forgets: bool = False
    """Whether the sink keeps no ledger at all."""
    shuffle_partitions: int | None = None
    """As many as the user asks for; None leaves the choice."""
    delivery: str = "exactly-once"
    to_topic: bool = False
    where: str = "the transform"
    """What the transform is called in messages."""


def look(job: Job, checkpoint: Checkpoint | None = None) -> tuple[Plan, Shape]:
    """The job's plan and the shape of its rows; without a checkpoint nothing is touched."""
    with _ONE_AT_A_TIME:
        return _look(job, checkpoint)


def _look(job: Job, checkpoint: Checkpoint | None) -> tuple[Plan, Shape]:
    frame = job.build(job.store.keeper(), checkpoint, None)
    plan = read_plan(frame)
    try:
        refuse(frame, job.mode, repeats=_repeats(job, plan))
    except ConfigError as error:
        raise ConfigError(f"{job.where}: {error}") from None
    if job.decoder is None:
        # Positions of other sources are mere counts, and windows are appended once: a checkpoint
        # that was rolled back would give other rows for the same positions.
        exact = not plan.replayable or (plan.stateful and job.mode == "append")
        anchored = plan.stateful or exact
        schema = plan.frame.schema
        return plan, Shape(schema, plan.carries, plan.narrow, plan.stateful, anchored, exact)
    schema = from_arrow_schema(job.decoder.schema)
    source = job.connection if job.fetches else None
    return plan, Shape(schema, True, True, False, decoder=job.decoder, source=source)


def _spared(job: Job, plan: Plan, checkpoint: Checkpoint) -> Plan:
    """The same plan without columns that nobody reads."""
    needed = needed_columns(plan.frame)
    if not needed:
        return plan
    with _ONE_AT_A_TIME:
        return read_plan(job.build(job.store.keeper(), checkpoint, needed))


def _repeats(job: Job, plan: Plan) -> str | None:
    """Why a batch that is computed again must give the same rows; None if it need not."""
    if plan.stateful:
        return "the state was computed with the old ones"
    if job.to_topic and not plan.narrow:
        return "rows go to lanes by what they hold, so one could come twice or not at all"
    if job.delivery == "idempotent":
        return "rows are known by their key, which must be the same"
    return None


def launch(job: Job, spark: SparkSession) -> tuple[StreamingQuery, Engine]:
    """Check everything, take over the pipeline and start the query."""
    _, shape = look(job)
    job.store.prepare(shape)
    checkpoint = Checkpoint(spark, job.checkpoint)
    before = job.store.known()
    if before is not None:
        _check_source(before, job)
        _check_state(checkpoint, before, shape, job)
    if shape.stateful:
        _check_partitions(checkpoint, job)
    if not (before is not None and before.positions) and not job.adopts:
        _check_unknown(checkpoint, job)
    job.ready()
    job.store.begin(shape, job.checkpoint)
    known = job.store.known()
    if known is not None and known.positions:
        _accept_losses(known, job)
        known = job.store.known() or known
        divisible = shape.narrow if job.to_topic else shape.carries  # lanes cannot be trimmed
        _reconcile(checkpoint, known, shape, divisible, job.note)
    # Once more: its tasks must have the new run's right to write, and its next batch's tables.
    plan = _spared(job, look(job, checkpoint)[0], checkpoint)
    engine = Engine(
        job.store,
        job.store.sink(shape),
        checkpoint,
        job.limits,
        lambda topics: _topic_ids(topics, known, job),
        _mirror(job),
        told=job.told,
        letters=job.store.letters(),
    )
    writer = plan.frame.writeStream.foreachBatch(engine.called)
    writer = writer.option("checkpointLocation", job.checkpoint)
    writer = writer.outputMode(OUTPUT_MODES[job.mode])
    if job.trigger:
        writer = writer.trigger(**job.trigger)  # type: ignore[arg-type]
    try:
        with _ONE_AT_A_TIME, _no_batches_without_data(spark):
            query = writer.start()
    except AnalysisException as error:
        raise ConfigError(f"Spark cannot run {job.name!r} as a stream: {reason(error)}") from None
    engine.spark_progress = lambda: query.lastProgress
    return query, engine


def _topic_ids(topics: list[str], known: Known | None, job: Job) -> Mapping[str, str]:
    """The ids for the ledger to remember, which must not differ from those it has."""
    if job.connection is None:
        return {}
    now = topic_ids(topics, job.connection)
    if known is not None:
        _check_ids(known, now, job)
    return now


def _mirror(job: Job) -> Mirror | None:
    if job.connection is None or not job.store.mirrors:
        return None
    return Mirror(f"tallygate.{job.name}", job.connection)


@contextmanager
def _no_batches_without_data(spark: SparkSession) -> Iterator[None]:
    """Spark may run a batch without new records, only to give out what the watermark has closed.
    Such a batch does not move any offset, so the ledger could not tell whether its rows are there:
    they come with the next record instead. A query keeps the setting that it was started with."""
    name = "spark.sql.streaming.noDataMicroBatches.enabled"
    before = spark.conf.get(name)
    spark.conf.set(name, "false")
    try:
        yield
    finally:
        spark.conf.set(name, before or "true")


def diagnose(job: Job) -> None:
    """Raise what is wrong with the source, if that is why the query stopped."""
    known = job.store.known()
    if known is not None:
        _check_source(known, replace(job, accept_loss=False))


def _check_source(known: Known, job: Job) -> None:
    if job.connection is None:
        return
    topics = sorted({topic for topic, _ in known.positions if is_topic(topic)})
    now = topic_ids(topics, job.connection)
    for topic in topics:
        if topic not in now:
            raise TopicError(
                f"topic {topic!r} of pipeline {job.name!r} is gone. If it was renamed or deleted "
                "on purpose, start a pipeline of another name."
            )
    _check_ids(known, now, job)
    _lost(known, job)


def _check_ids(known: Known, now: Mapping[str, str], job: Job) -> None:
    for topic, topic_id in now.items():
        if known.topic_ids.get(topic, topic_id) != topic_id:
            raise LostRangeError(
                f"topic {topic!r} was deleted and made anew since pipeline {job.name!r} read it: "
                "its offsets mean other records now. Start a pipeline of another name for the new "
                "topic."
            )


def _lost(known: Known, job: Job) -> list[Range]:
    """What is gone before it was read; an error unless that is accepted. Rows in lanes cannot be
    told apart, so where some lanes have a batch and others have not, all of it is given up."""
    places = sorted(place for place in known.positions if is_topic(place[0]))
    if job.connection is None or not places:
        return []
    earliest = list_offsets(places, OffsetSpec.earliest(), job.connection)  # type: ignore[no-untyped-call]
    furthest = known.halfway or known.positions
    lost = [
        Range(*place, known.positions[place], max(earliest[place], furthest[place]))
        for place in places
        if earliest[place] > known.positions[place]
    ]
    if lost and not job.accept_loss:
        listed = ", ".join(f"{each} ({len(each)} records)" for each in lost)
        raise LostRangeError(
            f"retention removed records that pipeline {job.name!r} had not read: {listed}. Restore "
            "them, or start with --accept-loss (in Python: accept_loss=True): the range is then "
            "kept in the ledger as lost."
        )
    return lost


def _accept_losses(known: Known, job: Job) -> None:
    lost = _lost(known, job)
    if lost:
        job.store.lose(lost, "removed by retention before it was read")
        job.note(f"given up as lost: {', '.join(map(str, lost))}")


def _check_state(checkpoint: Checkpoint, known: Known, shape: Shape, job: Job) -> None:
    """A pipeline with state needs the checkpoint that the ledger goes with; so does one whose
    source is not Kafka, since only the checkpoint knows what a position of it stands for."""
    if not shape.anchored or not known.positions:
        return
    what = "state" if shape.stateful else "several sources, or one that is not Kafka,"
    held = "The state is" if shape.stateful else "What was read is known only"
    cure = (
        f"{held} in the checkpoint, so it cannot be made from the ledger: bring the "
        f"checkpoint back, or {_anew(job)}."
    )
    if checkpoint.planned is None:
        raise LedgerError(
            f"the checkpoint {checkpoint.path} of a pipeline with {what} is gone. {cure}"
        )
    if known.checkpoint_id is not None and checkpoint.id != known.checkpoint_id:
        raise LedgerError(f"{checkpoint.path} is the checkpoint of another query. {cure}")
    start, end = _next(checkpoint)
    if shape.exact and not _within(known, start, end, divisible=False):
        raise LedgerError(
            f"the checkpoint {checkpoint.path} is not the one that the ledger goes with: its next "
            f"batch begins elsewhere, and what it would hold is not what was written. {cure}"
        )
    if any(at < start.get(place, 0) for place, at in known.positions.items()):
        raise LedgerError(
            f"the checkpoint {checkpoint.path} is ahead of the ledger: its next batch would leave "
            f"a gap. {cure}"
        )


def _check_unknown(checkpoint: Checkpoint, job: Job) -> None:
    """A ledger that knows nothing cannot stand behind a checkpoint that has batches: what those
    batches read went elsewhere, and to go on would skip it."""
    if checkpoint.committed is not None and not job.forgets:
        raise LedgerError(
            f"the ledger of {job.name!r} is empty, but its checkpoint {checkpoint.path} has done "
            f"{checkpoint.committed + 1} batches: what came before would be missing from "
            f"{job.store.target}. Remove the checkpoint to begin anew, or choose another name."
        )


def _check_partitions(checkpoint: Checkpoint, job: Job) -> None:
    """State is kept by shuffle partition. Spark goes on with as many as the checkpoint says; one
    who asks for another number is told that, instead of being given the old one in silence."""
    held = checkpoint.setting(SHUFFLE_PARTITIONS)
    if held is not None and job.shuffle_partitions not in (None, int(held)):
        raise ConfigError(
            f"the state of pipeline {job.name!r} is kept in {held} shuffle partitions and "
            f"{SHUFFLE_PARTITIONS} says {job.shuffle_partitions}. Set it back, or {_anew(job)}."
        )


def _anew(job: Job) -> str:
    """How such a job is begun anew: what can be swapped in one step can be rebuilt."""
    if job.to_topic or job.adopts:
        return "begin anew: another name, another target, another checkpoint"
    return "rebuild with `tallygate rebuild`"


def _next(checkpoint: Checkpoint) -> tuple[dict[Place, int], dict[Place, int]]:
    """From where to where the checkpoint's next batch goes; to its start if it is not planned."""
    number = checkpoint.next_batch
    start = checkpoint.start(number)
    return start, checkpoint.end(number) or start


def _reconcile(
    checkpoint: Checkpoint,
    known: Known,
    shape: Shape,
    divisible: bool,
    note: Callable[[str], None],
) -> None:
    """Make the next batch begin within reach of the ledger."""
    if shape.anchored:
        return
    if checkpoint.planned is not None:
        if _within(known, *_next(checkpoint), divisible=divisible):
            return
        aside = checkpoint.set_aside(f"aside-{checkpoint.id or 'unknown'}")
        note(f"the checkpoint does not fit the ledger; it was set aside as {aside}")
    elif checkpoint.id is not None:
        checkpoint.set_aside(f"aside-{checkpoint.id}")
    checkpoint.seed(known.positions, known.halfway)
    note("reading goes on from the ledger")


def _within(
    known: Known,
    start: Mapping[Place, int],
    end: Mapping[Place, int],
    *,
    divisible: bool,
) -> bool:
    """Whether the next batch can be done, skipped or, if divisible, trimmed."""
    positions = known.positions
    begins = {place: start.get(place, 0) for place in positions}
    ends = {place: end.get(place, begins[place]) for place in positions}
    if divisible:
        return all(begins[place] <= at <= ends[place] for place, at in positions.items())
    if known.halfway is not None:
        return (begins, ends) == (positions, known.halfway)
    return positions in (begins, ends)
