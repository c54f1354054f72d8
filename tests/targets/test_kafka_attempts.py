"""Two attempts of one task, or two runs, at one topic: one of them counts. No Spark is needed."""

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pytest
from confluent_kafka import IsolationLevel
from confluent_kafka.admin import OffsetSpec
from pyspark.sql import types as t

from tallygate import KafkaSink, Stack, Topics
from tallygate.core.blocks import BlockPlan
from tallygate.core.ledger import Claim, LedgerState, Lose, Lost, Remember, Run
from tallygate.core.letters import Letter
from tallygate.core.offsets import MovedError, Range
from tallygate.errors import FencedError, LedgerError, LostRangeError, TargetError
from tallygate.kafka.connection import Connection
from tallygate.kafka.fetch import RECORDS
from tallygate.kafka.read import list_offsets, records_in
from tallygate.settings import Settings
from tallygate.targets.base import RowShape, UnknownOutcomeError, WriteBatch
from tallygate.targets.batch_input import BlockInput
from tallygate.targets.kafka.target import KafkaTarget
from tallygate.waiting import wait_until

ROWS = 5000
LANES = 2
BLOCK = pa.RecordBatch.from_pydict(
    {
        "value": pa.array([b"x"] * ROWS, pa.binary()),
        "key": pa.array([None] * ROWS, pa.binary()),
        "_topic": pa.array(["t"] * ROWS),
        "_partition": pa.array([0] * ROWS, pa.int32()),
        "_offset": pa.array(range(ROWS), pa.int64()),
    }
)
COLUMNS = [
    t.StructField("id", t.LongType()),
    t.StructField("_topic", t.StringType()),
    t.StructField("_partition", t.IntegerType()),
    t.StructField("_offset", t.LongType()),
]
NARROW = RowShape(schema=t.StructType(COLUMNS), has_coordinates=True, narrow=True, stateful=False)
SHUFFLED = replace(NARROW, schema=t.StructType(COLUMNS[:1]), has_coordinates=False, narrow=False)


@dataclass(frozen=True)
class Flow:
    """A topic, what is made of it, and one run of the pipeline between them."""

    name: str
    connection: Connection
    settings: Settings
    shape: RowShape = NARROW
    delivery: str = "exactly-once"

    @property
    def source(self) -> str:
        return f"{self.name}-source"

    @property
    def out(self) -> str:
        return f"{self.name}-out"

    def range(self, start: int = 0, until: int = ROWS) -> Range:
        return Range(self.source, 0, start, until)

    def unopened(self) -> KafkaTarget:
        return KafkaTarget(
            KafkaSink(self.out),
            pipeline=self.name,
            delivery=self.delivery,
            source=self.connection,
            target=self.connection,
            topics=(self.source,),
            lanes=LANES,
            settings=self.settings,
        )

    def target(self) -> KafkaTarget:
        made = self.unopened()
        made.open(self.shape)
        return made

    def started(self) -> tuple[KafkaTarget, Claim]:
        target = self.target()
        return target, target.take_over(self.shape, "")

    def blocks(self, start: int = 0, until: int = ROWS) -> list[pa.RecordBatch]:
        block = BLOCK.set_column(2, "_topic", pa.array([self.source] * ROWS))
        return [block.slice(start, until - start)]

    def batch(
        self, *left: Range, tasks: Sequence[Sequence[pa.RecordBatch]] | None = None
    ) -> WriteBatch:
        wanted = left or (self.range(),)
        plan = BlockPlan(left=wanted, has_coordinates=self.shape.has_coordinates)
        given = [self.blocks()] if tasks is None else tasks
        return WriteBatch(id=0, left=wanted, new=(), input=BlockInput(plan, given))

    def values(self) -> list[bytes | None]:
        return [record.value for record in records_in(self.out, self.connection)]

    def state(self) -> LedgerState:
        found = self.target().ledger()
        assert found is not None
        return found

    def end(self, level: IsolationLevel) -> int:
        partition = self.out, 0
        return list_offsets([partition], OffsetSpec.latest(), self.connection, level)[partition]  # type: ignore[no-untyped-call]


@pytest.fixture
def flow(request: pytest.FixtureRequest, stack: Stack, settings: Settings) -> Callable[..., Flow]:
    def make(shape: RowShape = NARROW, delivery: str = "exactly-once", sources: int = 1) -> Flow:
        name = f"attempts-{abs(hash(request.node.name)) % 10**9}"
        made = Flow(name, stack.cluster.connection, settings, shape, delivery)
        topics = Topics(made.connection, settings)
        topics.create(made.source, partitions=sources)
        topics.create(made.out)
        return made

    return make


def _outcome(act: Callable[[], object]) -> BaseException | None:
    try:
        act()
    except Exception as error:
        return error
    return None


def test_one_of_two_attempts_commits(flow: Callable[..., Flow]) -> None:
    made = flow()
    target, claim = made.started()
    threads = [
        threading.Thread(target=_outcome, args=(lambda: target.write(claim, made.batch()),))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made.values()) == ROWS
    assert made.state().positions == {(made.source, 0): ROWS}


def test_a_batch_that_is_there_is_not_written_again(flow: Callable[..., Flow]) -> None:
    made = flow()
    target, claim = made.started()
    written = target.write(claim, made.batch())
    assert (written.strategy, written.rows) == ("narrow", ROWS)
    assert target.write(claim, made.batch()).rows == 0
    with pytest.raises(UnknownOutcomeError, match="is not at the start of"):
        target.write(claim, made.batch(made.range(7, ROWS + 1)))
    assert len(made.values()) == ROWS


def test_an_older_run_is_fenced(flow: Callable[..., Flow]) -> None:
    made = flow()
    older, old = made.started()
    older.write(old, made.batch(made.range(0, 10), tasks=[made.blocks(0, 10)]))
    newer, new = made.started()
    assert (old.run.epoch, new.run.epoch) == (1, 2)
    assert made.state().run == new.run
    rest = made.range(10)
    with pytest.raises(FencedError, match="run 2 took over"):
        older.write(old, made.batch(rest, tasks=[made.blocks(10)]))
    with pytest.raises(FencedError):
        older.amend(old, Lose((rest,), "gone"))
    assert newer.write(new, made.batch(rest, tasks=[made.blocks(10)])).rows == ROWS - 10


def test_of_two_runs_that_took_one_number_the_second_is_fenced(flow: Callable[..., Flow]) -> None:
    """As two starts do that find the ledger empty at the same moment."""
    made = flow()
    (first, one), (second, other) = made.started(), made.started()
    assert one.run.epoch == other.run.epoch
    first.write(one, made.batch())
    with pytest.raises(FencedError):
        second.write(other, made.batch())


def test_a_source_that_fails_leaves_no_transaction_open(flow: Callable[..., Flow]) -> None:
    """Whoever reads the topic would wait for its time-out."""
    made = flow()
    target, claim = made.started()

    def source() -> Iterator[pa.RecordBatch]:
        yield from made.blocks()
        wait_until(lambda: made.end(IsolationLevel.READ_UNCOMMITTED) > 0, 30, "nothing was sent")
        raise LostRangeError("the rest is gone")

    with pytest.raises(LostRangeError, match="the rest is gone"):
        target.write(claim, made.batch(tasks=[_Given(source)]))
    wait_until(
        lambda: (
            made.end(IsolationLevel.READ_COMMITTED) == made.end(IsolationLevel.READ_UNCOMMITTED)
        ),
        5,
        "the transaction is still open",
    )
    assert made.values() == []


class _Given(Sequence[pa.RecordBatch]):
    """Blocks that are made while they are read."""

    def __init__(self, make: Callable[[], Iterator[pa.RecordBatch]]) -> None:
        self._make = make

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self._make()

    def __len__(self) -> int:
        raise NotImplementedError

    def __getitem__(self, _: object) -> pa.RecordBatch:
        raise NotImplementedError


def test_a_refusal_is_known_as_one_also_while_rows_are_still_being_sent(
    flow: Callable[..., Flow],
) -> None:
    """From then on every call says no more than that the transaction is over. The topic is asked
    for its rules, and by them a record is set aside before it is sent."""
    made = flow()
    Topics(made.connection).alter(made.out, configs={"max.message.bytes": "200"})
    target, claim = made.started()
    small, large = (
        made.blocks(0, 1)[0].set_column(0, "value", pa.array([b"x" * size], pa.binary()))
        for size in (10, 300)
    )

    def endless() -> Iterator[pa.RecordBatch]:
        yield large
        while True:
            yield from made.blocks()

    with pytest.raises(UnknownOutcomeError, match="refuses a record"):
        target.write(claim, made.batch(tasks=[_Given(endless)]))
    assert target.write(claim, made.batch(tasks=[[small, large, large]])).rows == 1
    assert made.values() == [b"x" * 10]
    assert target.letter_count() == 1, "of several rows of a record one is enough"


def test_in_lanes_a_row_that_is_refused_stops_the_pipeline(flow: Callable[..., Flow]) -> None:
    made = flow(SHUFFLED)
    Topics(made.connection).alter(made.out, configs={"max.message.bytes": "200"})
    target, claim = made.started()
    rows = pa.RecordBatch.from_pydict(
        {"value": pa.array([b"x" * 300], pa.binary()), "key": pa.array([None], pa.binary())}
    )
    with pytest.raises(UnknownOutcomeError, match="refuses a record"):
        target.write(claim, made.batch(tasks=[[rows]]))
    with pytest.raises(TargetError, match="takes 200.*cannot be set aside"):
        target.write(claim, made.batch(tasks=[[rows]]))


def test_lanes_skip_and_write_a_batch_by_their_own_offsets(flow: Callable[..., Flow]) -> None:
    """One lane has a batch and the other has not: the ledger is where the latter is."""
    made = flow(SHUFFLED)
    target, claim = made.started()
    rows = [BLOCK.slice(lane * 10, 10).select(["value", "key"]) for lane in range(LANES)]
    _leave_half(made, target, claim, rows)
    partition = made.source, 0
    found = made.state()
    assert (found.positions, found.furthest) == ({partition: 0}, {partition: ROWS})
    assert found.begun == {partition: 0}
    assert target.write(claim, made.batch(tasks=[[each] for each in rows])).rows == 10
    assert len(made.values()) == 20
    found = made.state()
    assert (found.positions, found.furthest) == ({partition: ROWS}, None)


def _leave_half(made: Flow, target: KafkaTarget, claim: Claim, rows: list[pa.RecordBatch]) -> None:
    """Write a batch to the first lane, and not to the second."""

    def refuse() -> Iterator[pa.RecordBatch]:
        raise LostRangeError("not now")
        yield

    with pytest.raises(LostRangeError):
        target.write(claim, made.batch(tasks=[[rows[0]], _Given(refuse)]))


def test_other_columns_for_the_lanes_are_refused_while_a_batch_is_in_some_of_them(
    flow: Callable[..., Flow],
) -> None:
    """The rows of the other lanes would be computed again, and go elsewhere."""
    made = flow(SHUFFLED)
    schema = t.StructType([*COLUMNS[:1], t.StructField("name", t.StringType())])
    other = replace(made, shape=replace(SHUFFLED, schema=schema))
    target, claim = made.started()
    rows = [BLOCK.slice(lane * 10, 10).select(["value", "key"]) for lane in range(LANES)]
    _leave_half(made, target, claim, rows)
    for _ in range(2):
        with pytest.raises(LedgerError, match="lanes by 'id', and would go by 'id', 'name' with"):
            other.started()
    target, claim = made.started()
    target.write(claim, made.batch(tasks=[[each] for each in rows]))
    assert len(made.values()) == 20
    other.started()
    made.started()


def test_another_number_of_lanes_is_refused_and_so_is_another_strategy(
    flow: Callable[..., Flow],
) -> None:
    made = flow(SHUFFLED)
    target, claim = made.started()
    target.write(claim, made.batch(tasks=[]))
    other = made.target()
    other._lanes = LANES + 1
    with pytest.raises(LedgerError, match="started with 2 lanes and has 3 now"):
        other.take_over(made.shape, "")
    with pytest.raises(LedgerError, match="wrote in lanes so far and would write by partition"):
        target.open(NARROW)


def test_a_target_that_was_not_opened_finds_its_ledger(flow: Callable[..., Flow]) -> None:
    made = flow(SHUFFLED)
    target, claim = made.started()
    unopened = made.unopened()
    assert unopened.ledger() is None
    target.write(claim, made.batch(tasks=[]))
    assert unopened.ledger() == target.ledger() != None  # noqa: E711


@pytest.mark.parametrize("shape", [NARROW, SHUFFLED], ids=["narrow", "lanes"])
def test_the_ledger_keeps_what_a_later_start_asks_for(
    flow: Callable[..., Flow], shape: RowShape
) -> None:
    made = flow(shape)
    target, claim = made.started()
    target.amend(claim, Remember("first", {made.source: "an id"}))
    assert target.ledger() is None, "there is no partition yet to keep it with"
    tasks = [made.blocks(3, 10)] if shape.narrow else []
    target.write(claim, made.batch(made.range(3, 10), tasks=tasks))
    target.amend(claim, Lose((made.range(10, 20),), "gone"))
    target.amend(claim, Remember("second", {}))
    partition = made.source, 0
    assert made.state() == LedgerState(
        positions={partition: 20},
        begun={partition: 3},
        run=claim.run,
        topic_ids={made.source: "an id"},
        checkpoint_id="second",
        lost=(Lost(made.range(10, 20)),),
        target=target.identity(),
    )
    with pytest.raises(MovedError, match="not at the start"):
        target.amend(claim, Lose((made.range(15, 30),), "gone"))
    newer, _ = made.started()
    assert newer.ledger() == replace(made.state(), run=newer_run(newer))


def newer_run(target: KafkaTarget) -> Run:
    found = target.ledger()
    assert found is not None
    return found.run


def test_where_a_partition_begins_is_known_before_any_moves(flow: Callable[..., Flow]) -> None:
    made = flow(sources=2)
    target, claim = made.started()
    left = made.range(0, 10), Range(made.source, 1, 5, 5)
    first = made.batch(*left, tasks=[made.blocks(0, 10)])
    target.write(claim, replace(first, new=left))
    assert made.state().begun == {(made.source, 0): 0, (made.source, 1): 5}
    assert made.state().positions == {(made.source, 0): 10, (made.source, 1): 5}


@pytest.mark.parametrize("delivery", ["at-least-once", "at-most-once"])
def test_rows_and_offsets_apart(flow: Callable[..., Flow], delivery: str) -> None:
    """What fails between them comes twice, or never."""
    made = flow(delivery=delivery)
    target, claim = made.started()

    def failing() -> Iterator[pa.RecordBatch]:
        yield from made.blocks(0, 10)
        raise LostRangeError("not now")

    with pytest.raises(LostRangeError):
        target.write(claim, made.batch(tasks=[_Given(failing)]))
    found = target.ledger()
    if delivery == "at-most-once":
        assert found is not None
        assert found.positions == {(made.source, 0): ROWS}
        assert target.write(claim, made.batch()).rows == 0
    else:
        assert found is None
        assert target.write(claim, made.batch()).rows == ROWS


def test_raw_records_pass_as_they_are_with_where_they_are_from(
    flow: Callable[..., Flow],
) -> None:
    from tallygate.core.decoding import Decoder

    decoder = Decoder("json", pa.schema([("id", pa.int64())]))
    made = flow(replace(NARROW, decoder=decoder))
    target, claim = made.started()
    raw = pa.RecordBatch.from_pylist(
        [
            {"key": b"k", "value": value, "topic": made.source, "partition": 0, "offset": at}
            for at, value in enumerate([b'{"id": 1}', b"unfit", b'{"id":3}'])
        ],
        schema=RECORDS,
    )
    plan = BlockPlan(left=(made.range(0, 3),), has_coordinates=True, decoder=decoder)
    given = BlockInput(plan, [[raw]])
    target.write(claim, WriteBatch(id=0, left=plan.left, new=(), input=given))
    found = records_in(made.out, made.connection)
    assert [(each.key, each.value) for each in found] == [(b"k", b'{"id": 1}'), (b"k", b'{"id":3}')]
    assert [each.header("tallygate.source") for each in found] == [
        f"{made.source}/0@{at}".encode() for at in (0, 2)
    ]
    assert target.letter_count() == 1


def test_letters_that_are_there_are_not_kept_again(flow: Callable[..., Flow]) -> None:
    """As when the task that found them is repeated."""
    made = flow()
    target, claim = made.started()
    letters = [Letter(made.source, 0, offset, "unfit", value=b"?") for offset in (3, 5, 8)]
    for so_far in (1, 2, 2, 3):
        target.letter_keeper(claim).keep(letters[:so_far])
    kept = records_in(f"{made.name}.dead-letters", made.connection)
    assert [record.header("tallygate.offset") for record in kept] == [b"3", b"5", b"8"]
    assert target.letter_count() == 3


def test_idle_partitions_are_committed_again(
    flow: Callable[..., Flow], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tallygate.targets.kafka.target.RENEWED_EVERY", 0.0)
    made = flow()
    target, claim = made.started()
    target.write(claim, made.batch())
    target.beat(claim, {})  # looks where they are
    target._remembered = Remember("renewed", {})
    target.beat(claim, {})
    assert made.state().checkpoint_id == "renewed"
    made.started()
    with pytest.raises(FencedError):
        target.beat(claim, {})
    assert made.state().run.epoch == 2
