"""Starting a query on a store's ledger: what is checked first, and where reading goes on.

The ledger is the truth and the checkpoint a cache of it. A pipeline without state whose checkpoint
is gone, older or ahead goes on from the ledger by itself: the checkpoint is set aside and a new one
is written that begins where the ledger is. A pipeline with state cannot: its state is in the
checkpoint, so it is refused, with what to do.

Before the query starts, the ledger is also compared with the source (see `losses`).
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.query import StreamingQuery

from tallygate.core.offsets import Known, Place, count
from tallygate.engine.batch import Engine
from tallygate.engine.run_request import Job
from tallygate.engine.source_check import (
    TopicIds,
    accept_losses,
    added_partitions,
    check_added,
    check_source,
)
from tallygate.errors import ConfigError, LedgerError
from tallygate.kafka.groups import Mirror
from tallygate.spark.checkpoint import Checkpoint
from tallygate.spark.direct_read import by_records_alone, over_ranges
from tallygate.spark.error_text import progress_of, reason
from tallygate.spark.plan import Plan, needed_columns, read_plan, seen_besides_records
from tallygate.spark.refusals import OUTPUT_MODES, refuse
from tallygate.spark.session import has_class
from tallygate.spark.temporary_conf import held
from tallygate.targets.sink import Batch
from tallygate.targets.store import Shape

__all__ = ["SHUFFLE_PARTITIONS", "launch", "look"]

SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
NO_DATA = "spark.sql.streaming.noDataMicroBatches.enabled"
FILE_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
STREAMING = "org.apache.spark.sql.execution.streaming"
BY_FILE_SYSTEM = (
    f"{STREAMING}.FileSystemBasedCheckpointFileManager",
    f"{STREAMING}.checkpointing.FileSystemBasedCheckpointFileManager",
)
"""What it is called in Spark 4.0, and after."""
ADOPTED = "tallygate.adopted"
"""The file of a checkpoint that was taken over with the number of its last batch by then."""

# Views and settings belong to the session, which several pipelines may share: while one of them
# builds its frame or starts its query, none of the others may change them.
_ONE_AT_A_TIME = threading.RLock()


def look(job: Job, checkpoint: Checkpoint | None = None) -> tuple[Plan, Shape]:
    """The job's plan and the shape of its rows; without a checkpoint nothing is touched."""
    with _ONE_AT_A_TIME:
        return _look(job, checkpoint)


def _look(job: Job, checkpoint: Checkpoint | None) -> tuple[Plan, Shape]:
    frame = job.build(job.store.keeper(), checkpoint, None)
    plan = read_plan(frame)
    try:
        refuse(frame, job.mode, instead=job.instead, repeats=_repeats(job, plan))
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
    first, shape = look(job)
    job.store.prepare(shape)
    checkpoint = Checkpoint(spark, job.checkpoint)
    before = job.store.known()
    if before is not None:
        check_source(before, job, shape)
        check_added(added_partitions(before, job, first), before, job, shape)
        _check_state(checkpoint, before, shape, job)
    if shape.stateful:
        _check_partitions(checkpoint, job)
    if not (before is not None and before.positions):
        _check_unknown(checkpoint, job)
    job.ready()
    job.store.begin(shape, job.checkpoint)
    known = job.store.known()
    if known is not None and known.positions:
        accept_losses(known, job, shape)
        known = job.store.known() or known
        if not shape.anchored:
            _reconcile(checkpoint, known, shape, first, job)
    if job.adopts and checkpoint.read(ADOPTED) is None:
        _adopt(checkpoint, known)
    # Once more: its tasks must have the new run's right to write, and its next batch's tables.
    plan = _spared(job, look(job, checkpoint)[0], checkpoint)
    engine = Engine(
        job.store,
        job.store.sink(shape),
        checkpoint,
        job.limits,
        TopicIds(job, known),
        _mirror(job),
        told=job.told,
        diagnose=lambda: _diagnose(job, shape),
        letters=job.store.letters(),
        rows_of=_rows_of(job, plan),
    )
    writer = plan.frame.writeStream.foreachBatch(engine.called)
    writer = writer.option("checkpointLocation", job.checkpoint)
    writer = writer.outputMode(OUTPUT_MODES[job.mode])
    if job.trigger:
        writer = writer.trigger(**job.trigger)  # type: ignore[arg-type]
    try:
        with _ONE_AT_A_TIME, held(spark, _settings(spark, checkpoint)):
            query = writer.start()
    except AnalysisException as error:
        raise ConfigError(f"Spark cannot run {job.name!r} as a stream: {reason(error)}") from None
    engine.spark_progress = lambda: progress_of(query)
    return query, engine


def _rows_of(job: Job, plan: Plan) -> Callable[[DataFrame, Batch], DataFrame]:
    """What is written for a batch: of a large one, where nobody can tell the difference, rows of
    records that the tasks have read by themselves. Which records are late only the stream knows."""
    reads = job.fetches and job.decoder is None and not job.limits.late
    if reads and by_records_alone(plan.frame):
        return lambda frame, batch: (
            over_ranges(plan.frame, batch.ranges, frame.sparkSession)
            if count(batch.ranges) > job.small
            else frame
        )
    return lambda frame, _: frame


def _mirror(job: Job) -> Mirror | None:
    if job.connection is None or not job.store.mirrors:
        return None
    return Mirror(f"tallygate.{job.name}", job.connection)


def _settings(spark: SparkSession, checkpoint: Checkpoint) -> dict[str, str]:
    """What a query is started with, and keeps.

    Spark may run a batch without new records, only to give out what the watermark has closed. Such
    a batch does not move any offset, so the ledger could not tell whether its rows are there: they
    come with the next record instead.

    Spark writes its two logs with every batch by Hadoop's `FileContext`, which on a local disk
    starts ten programs (`readlink`, `chmod`) for each file: 70 ms a batch. By `FileSystem` it is
    two. Either way a file is written beside and renamed into its place, and its checksum after it.
    Other file systems, as HDFS, are left to Spark: there only `FileContext` is safe against a
    second driver."""
    settings = {NO_DATA: "false"}
    free = spark.conf.get(FILE_MANAGER, None) is None
    if free and checkpoint.is_local:
        known = next((name for name in BY_FILE_SYSTEM if has_class(spark, name)), None)
        if known is not None:
            settings[FILE_MANAGER] = known
    return settings


def _diagnose(job: Job, shape: Shape) -> None:
    """Raise what is wrong with the source, if that is why the query stopped."""
    known = job.store.known()
    if known is not None:
        check_source(known, replace(job, accept_loss=False), shape)


def _check_state(checkpoint: Checkpoint, known: Known, shape: Shape, job: Job) -> None:
    """A pipeline with state needs the checkpoint that the ledger goes with; so does one whose
    source is not Kafka, since only the checkpoint knows what a position of it stands for."""
    if not shape.anchored or not known.positions:
        return
    what = "state" if shape.stateful else "several sources, or one that is not Kafka,"
    held = "The state is" if shape.stateful else "What was read is known only"
    cure = (
        f"{held} in the checkpoint, so it cannot be made from the ledger: bring the "
        f"checkpoint back, or {job.anew}."
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
    batches read went elsewhere, and to go on would skip it. The batches of a job that was taken
    over are its past; only those since then should be in the ledger."""
    done = checkpoint.committed
    if done is None or job.forgets:
        return
    cure = "Remove the checkpoint to begin anew, or choose another name."
    if job.adopts:
        adopted = checkpoint.read(ADOPTED)
        if adopted is None or done <= int(adopted):
            return
        cure = (
            f"Bring the ledger back, or {job.anew}. If the rest went elsewhere on purpose, "
            f"remove {checkpoint.path}/{ADOPTED}."
        )
    raise LedgerError(
        f"the ledger of {job.name!r} is empty, but its checkpoint {checkpoint.path} has done "
        f"{done + 1} batches: what came before would be missing from {job.store.target}. {cure}"
    )


def _adopt(checkpoint: Checkpoint, known: Known | None) -> None:
    """Write down which batches the ledger need not know: those of the job that is taken over."""
    new = known is None or not known.positions
    past = checkpoint.committed if new else None
    checkpoint.replace(ADOPTED, str(-1 if past is None else past))


def _check_partitions(checkpoint: Checkpoint, job: Job) -> None:
    """State is kept by shuffle partition. Spark goes on with as many as the checkpoint says; one
    who asks for another number is told that, instead of being given the old one in silence."""
    held = checkpoint.setting(SHUFFLE_PARTITIONS)
    if held is not None and job.shuffle_partitions not in (None, int(held)):
        raise ConfigError(
            f"the state of pipeline {job.name!r} is kept in {held} shuffle partitions and "
            f"{SHUFFLE_PARTITIONS} says {job.shuffle_partitions}. Set it back, or {job.anew}."
        )


def _next(checkpoint: Checkpoint) -> tuple[dict[Place, int], dict[Place, int]]:
    """From where to where the checkpoint's next batch goes; to its start if it is not planned."""
    number = checkpoint.next_batch
    start = checkpoint.start(number)
    return start, checkpoint.end(number) or start


def _reconcile(checkpoint: Checkpoint, known: Known, shape: Shape, plan: Plan, job: Job) -> None:
    """Make the next batch begin within reach of the ledger."""
    added = added_partitions(known, job, plan)
    divisible = shape.narrow if job.to_topic else shape.carries  # lanes cannot be trimmed
    if checkpoint.planned is not None:
        start, end = _next(checkpoint)
        begun = all(start.get(place, 0) >= at for place, at in added.items())
        if begun and _within(known, start, end, divisible=divisible):
            return
    if known.halfway is not None:
        _check_repeatable(checkpoint, plan, job)
    if checkpoint.id is not None or checkpoint.planned is not None:
        aside = checkpoint.set_aside(f"aside-{checkpoint.id or 'unknown'}")
        job.note(f"the checkpoint does not fit the ledger; it was set aside as {aside}")
    halfway = None if known.halfway is None else {**added, **known.halfway}
    checkpoint.seed({**added, **known.positions}, halfway)
    job.note("reading goes on from the ledger")


def _check_repeatable(checkpoint: Checkpoint, plan: Plan, job: Job) -> None:
    """Some lanes have a batch and others have not. Whoever computes it again must come to the same
    rows; what a batch saw besides the records, only its own checkpoint knows."""
    seen = seen_besides_records(plan.frame)
    if seen is not None:
        raise LedgerError(
            f"{job.store.target} holds a part of a batch of pipeline {job.name!r}, and the "
            f"checkpoint {checkpoint.path} is not the one that the batch belongs to. Computed "
            f"again it would see another {seen} than before, so rows could be missing or come "
            f"twice. Bring the checkpoint back, or {job.anew}."
        )


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
