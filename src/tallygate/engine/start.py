"""Starting a query on a target's ledger: gather the facts, decide, carry the decision out.

What is to be done is decided in `core.start`, twice: before the run takes over, so that a refusal
fences no other run, and after, when the ledger is final.
"""

import contextlib
import threading
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.query import StreamingQuery

from tallygate.core.cut_logs import CUT_OFF
from tallygate.core.forgetting import changes_to_forget, refuse_without_ledger
from tallygate.core.ledger import Claim, CutOff, Forget, LedgerState, Lose, Retarget
from tallygate.core.offsets import is_topic
from tallygate.core.start import (
    ADOPTED,
    SHUFFLE_PARTITIONS,
    decide_start,
    other_target,
    refuse_source,
)
from tallygate.core.start_facts import (
    CheckpointState,
    Refuse,
    Resume,
    RowsNature,
    Seed,
    SourceState,
    StartPolicy,
)
from tallygate.engine.batch import BatchEngine
from tallygate.engine.checkpoint_lock import CheckpointLock
from tallygate.engine.failing import refuse_on_error
from tallygate.engine.progress import AtStart
from tallygate.engine.run_request import RunRequest
from tallygate.engine.source_check import LeaderEpochs, TopicIds, lag_of, source_state
from tallygate.errors import ConfigError, TallygateError
from tallygate.kafka.groups import Mirror
from tallygate.spark.checkpoint import Checkpoint
from tallygate.spark.error_text import progress_of, reason
from tallygate.spark.plan import Plan, needed_columns, read_plan, seen_besides_records
from tallygate.spark.refusals import OUTPUT_MODES, refuse
from tallygate.spark.session import has_class
from tallygate.spark.settled import unsettled_columns
from tallygate.spark.temporary_conf import temporary_conf
from tallygate.targets.base import RowShape

__all__ = ["SHUFFLE_PARTITIONS", "look", "start"]

NO_DATA = "spark.sql.streaming.noDataMicroBatches.enabled"
FILE_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
STREAMING = "org.apache.spark.sql.execution.streaming"
BY_FILE_SYSTEM = (
    f"{STREAMING}.FileSystemBasedCheckpointFileManager",
    f"{STREAMING}.checkpointing.FileSystemBasedCheckpointFileManager",
)
"""What it is called in Spark 4.0, and after."""

# Views and settings belong to the session, which several pipelines may share: while one of them
# builds its frame or starts its query, none of the others may change them.
_ONE_AT_A_TIME = threading.RLock()


def look(request: RunRequest, checkpoint: Checkpoint | None = None) -> tuple[Plan, RowShape]:
    """The request's plan and the shape of its rows; without a checkpoint nothing is touched."""
    with _ONE_AT_A_TIME:
        frame = request.build(request.target.letter_keeper(None), checkpoint, None)
        plan = read_plan(frame)
        if request.target.traits.is_topic:
            _refuse_speculation(frame.sparkSession)
        try:
            repeats = _repeats(request, plan)
            refuse(frame, request.mode, instead=request.instead, repeats=repeats)
            refuse_on_error(request, plan)
        except ConfigError as error:
            raise ConfigError(f"{request.where}: {error}") from None
    return plan, _shape(request, plan)


def _refuse_speculation(spark: SparkSession) -> None:
    """A second attempt of a task opens the producer of the first, which is then the one that is
    fenced, though nothing was wrong with it: and so on with each attempt."""
    if spark.sparkContext.getConf().get("spark.speculation", "false").lower() == "true":
        raise ConfigError(
            "spark.speculation starts tasks twice, and of two that write to a topic each fences "
            "the other; set spark.speculation=false for this job."
        )


def _shape(request: RunRequest, plan: Plan) -> RowShape:
    if request.decoder is not None:
        return RowShape(
            schema=from_arrow_schema(request.decoder.schema),
            has_coordinates=True,
            narrow=True,
            stateful=False,
            decoder=request.decoder,
        )
    return RowShape(
        schema=plan.frame.schema,
        has_coordinates=plan.has_coordinates,
        narrow=plan.narrow,
        stateful=plan.stateful,
        unsettled=unsettled_columns(plan.frame) if _has_lanes(request, plan) else {},
    )


def _has_lanes(request: RunRequest, plan: Plan) -> bool:
    return request.target.traits.is_topic and not plan.narrow


def _repeats(request: RunRequest, plan: Plan) -> str | None:
    """Why a batch that is computed again must give the same rows; None if it need not."""
    if plan.stateful:
        return "the state was computed with the old ones"
    if _has_lanes(request, plan):
        return "rows go to lanes by what they hold, so one could come twice or not at all"
    if request.target.delivery == "idempotent":
        return "rows are known by their key, which must be the same"
    return None


def start(request: RunRequest, spark: SparkSession) -> tuple[StreamingQuery, BatchEngine]:
    """Check everything, take over the pipeline and start the query."""
    plan, shape = look(request)
    target = request.target
    target.open(shape)
    checkpoint = Checkpoint(spark, request.checkpoint)
    facts = _Facts.of(request, plan, shape, checkpoint)
    facts.decide()
    request.ready()
    claim = target.take_over(shape, request.checkpoint)
    lock = _lock(request, claim, checkpoint)
    try:
        if lock is not None:
            lock.take(note=request.note)
        decision, ledger = facts.decide()
        _carry_out(decision, request, claim, checkpoint)
        engine = BatchEngine(
            request=request,
            claim=claim,
            checkpoint=checkpoint,
            shape=shape,
            plan=_plan_of_run(request, claim, checkpoint, plan),
            topic_ids=TopicIds(request, ledger),
            leader_epochs=LeaderEpochs(request.connection),
            mirror=_mirror(request),
            letters=target.letter_count(),
            at_start=_at_start(decision, request, ledger),
            diagnose=facts.diagnose,
            other_target=facts.other_target,
            lock=lock,
        )
        return _start_query(engine, spark), engine
    except BaseException as error:
        with contextlib.suppress(Exception):
            target.end(claim, f"failed: {error}")
        if lock is not None:
            lock.release()
        raise


def forget(request: RunRequest, spark: SparkSession, topic: str) -> Forget:
    """Take over the pipeline, and have its ledger forget a topic. The next start finds that the
    checkpoint names it, and makes a new one."""
    plan, shape = look(request)
    target = request.target
    if not target.traits.keeps_ledger:
        raise ConfigError(
            f"{target.name} keeps no ledger that could forget {topic!r}: remove the checkpoint "
            f"{request.checkpoint}, and reading begins where source.start says."
        )
    target.open(shape)
    facts = _Facts.of(request, plan, shape, Checkpoint(spark, request.checkpoint))
    facts.to_forget(topic)
    claim = target.take_over(shape, request.checkpoint)
    outcome = f"forgot topic {topic!r}"
    try:
        changes = facts.to_forget(topic)
        for each in changes:
            target.amend(claim, each)
    except BaseException as error:
        outcome = f"failed: {error}"
        raise
    finally:
        with contextlib.suppress(Exception):
            target.end(claim, outcome)
    (done,) = (each for each in changes if isinstance(each, Forget))
    return done


def _lock(request: RunRequest, claim: Claim, checkpoint: Checkpoint) -> CheckpointLock | None:
    """The lock of a checkpoint that another run of this machine may use."""
    if not checkpoint.is_local:
        return None
    holder = f"run {claim.run.epoch} of {request.name!r}"
    fences = request.target.traits.keeps_ledger
    return CheckpointLock(checkpoint.local_path, holder, fences=fences)


@dataclass(frozen=True, kw_only=True)
class _Facts:
    """Gathers what a start is decided from. Checkpoint, ledger and source are asked each time: they
    may change until the run has taken over."""

    request: RunRequest
    plan: Plan
    checkpoint: Checkpoint
    nature: RowsNature
    policy: StartPolicy

    @classmethod
    def of(
        cls, request: RunRequest, plan: Plan, shape: RowShape, checkpoint: Checkpoint
    ) -> "_Facts":
        return cls(
            request=request,
            plan=plan,
            checkpoint=checkpoint,
            nature=_nature(request, plan, shape),
            policy=_policy(request),
        )

    def decide(self) -> tuple[Resume | Seed, LedgerState | None]:
        """What to do, and the ledger that it is decided by; raise if the start is refused.

        The ledger is asked after the checkpoint: an older run that is still alive moves it first,
        so the checkpoint does not seem to be ahead of it."""
        found = _checkpoint_state(self.checkpoint)
        ledger = self.request.target.ledger()
        source = self._source(ledger, found)
        decision = decide_start(ledger, found, source, self.nature, self.policy)
        if isinstance(decision, Refuse):
            raise decision.exception()
        return decision, ledger

    def other_target(self) -> TallygateError:
        """What to raise when the target is another one by now."""
        return other_target(self.nature, self.policy).exception()

    def _source(
        self, ledger: LedgerState | None, found: CheckpointState | None = None
    ) -> SourceState | None:
        """The source as it is; where the ledger knows no position, of what the checkpoint names."""
        if ledger is None or not ledger.positions:
            ledger = LedgerState(positions={} if found is None else found.start)
        return source_state(self.request, ledger, self.plan)

    def diagnose(self) -> None:
        """Raise what is wrong with the source, if that is why the query stopped."""
        ledger = self.request.target.ledger()
        policy = replace(self.policy, accept_loss=False)
        if ledger is None or not ledger.positions:
            found = _checkpoint_state(self.checkpoint)
            refusal = refuse_without_ledger(found, self._source(None, found), policy)
        else:
            refusal = refuse_source(ledger, self._source(ledger), self.nature, policy)
        if refusal is not None:
            raise refusal.exception()

    def to_forget(self, topic: str) -> tuple[Lose | Forget, ...]:
        """The changes of the ledger by which a topic is forgotten; raise if it cannot be."""
        found = _checkpoint_state(self.checkpoint)
        ledger = self.request.target.ledger()
        changes = changes_to_forget(
            topic,
            at=datetime.now(UTC),
            ledger=ledger,
            checkpoint=found,
            source=self._source(ledger, found),
            nature=self.nature,
            policy=self.policy,
        )
        if isinstance(changes, Refuse):
            raise changes.exception()
        return changes


def _nature(request: RunRequest, plan: Plan, shape: RowShape) -> RowsNature:
    traits = request.target.traits
    # Positions of other sources are mere counts, and windows are appended once: a checkpoint that
    # was rolled back would give other rows for the same positions.
    exact = not plan.replayable or (plan.stateful and request.mode == "append")
    # Lanes, which topics have for rows that are not narrow, cannot be trimmed.
    whole_lanes = traits.is_topic and not shape.narrow
    return RowsNature(
        stateful=plan.stateful,
        exact=exact,
        divisible=traits.divisible and shape.has_coordinates and not whole_lanes,
        sees=seen_besides_records(plan.frame),
    )


def _policy(request: RunRequest) -> StartPolicy:
    return StartPolicy(
        pipeline=request.name,
        target=request.target.name,
        cure=request.cure,
        accept_loss=request.accept_loss,
        target_id=request.target.identity(),
        accept_new_target=request.accept_new_target,
        adopts=request.adopts,
        keeps_ledger=request.target.traits.keeps_ledger,
        shuffle_partitions=request.shuffle_partitions,
    )


def _checkpoint_state(checkpoint: Checkpoint) -> CheckpointState:
    number = checkpoint.next_batch
    adopted, held_in = checkpoint.read(ADOPTED), checkpoint.setting(SHUFFLE_PARTITIONS)
    return CheckpointState(
        path=checkpoint.path,
        id=checkpoint.id,
        planned=checkpoint.planned,
        committed=checkpoint.committed,
        start=checkpoint.start(number),
        end=checkpoint.end(number),
        adopted=None if adopted is None else int(adopted),
        shuffle_partitions=None if held_in is None else int(held_in),
    )


def _carry_out(
    decision: Resume | Seed, request: RunRequest, claim: Claim, checkpoint: Checkpoint
) -> None:
    """In an order in which a crash between two steps leaves work for the next start, and no gap."""
    if decision.retarget is not None:
        request.target.amend(claim, Retarget(decision.retarget))
        request.note("what came before is in another target, and the ledger keeps that")
    if decision.cut:
        request.target.amend(claim, CutOff(decision.cut, CUT_OFF))
        request.note(f"kept as lost, and passed over: {', '.join(map(str, decision.cut))}")
    if decision.lost:
        why = "removed by retention before it was read"
        request.target.amend(claim, Lose(decision.lost, why))
        request.note(f"given up as lost: {', '.join(map(str, decision.lost))}")
    if isinstance(decision, Seed):
        if decision.set_aside:
            aside = checkpoint.set_aside(f"aside-{checkpoint.id or 'unknown'}")
            request.note(f"the checkpoint does not fit the ledger; it was set aside as {aside}")
        if decision.positions:
            checkpoint.seed(decision.positions, decision.furthest)
            request.note("reading goes on from the ledger")
    if decision.adopt is not None:
        checkpoint.replace(ADOPTED, str(decision.adopt))


def _at_start(decision: Resume | Seed, request: RunRequest, ledger: LedgerState | None) -> AtStart:
    held = {} if ledger is None else dict(ledger.positions)
    held |= {each.topic_partition: each.until for each in decision.lost}
    positions = {at: offset for at, offset in held.items() if is_topic(at[0])}
    return AtStart(positions, lag_of(positions, request.connection))


def _plan_of_run(request: RunRequest, claim: Claim, checkpoint: Checkpoint, first: Plan) -> Plan:
    """The plan with the run's right to write in its tasks, the static sides of its next batch, and
    no columns that nothing reads."""
    needed = needed_columns(first.frame) or None
    with _ONE_AT_A_TIME:
        return read_plan(request.build(request.target.letter_keeper(claim), checkpoint, needed))


def _mirror(request: RunRequest) -> Mirror | None:
    if request.connection is None:
        return None
    return Mirror(f"tallygate.{request.name}", request.connection)


def _start_query(engine: BatchEngine, spark: SparkSession) -> StreamingQuery:
    request, checkpoint = engine.request, engine.checkpoint
    writer = engine.plan.frame.writeStream.foreachBatch(engine.called)
    writer = writer.option("checkpointLocation", request.checkpoint)
    writer = writer.outputMode(OUTPUT_MODES[request.mode])
    if request.trigger:
        writer = writer.trigger(**request.trigger)  # type: ignore[arg-type]
    try:
        with _ONE_AT_A_TIME, temporary_conf(spark, _settings(spark, checkpoint)):
            query = writer.start()
    except AnalysisException as error:
        said = reason(error)
        raise ConfigError(f"Spark cannot run {request.name!r} as a stream: {said}") from None
    engine.reports.last = lambda: progress_of(query)
    return query


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
