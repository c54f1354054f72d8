"""The ledger in PostgreSQL against a simple model: random batches, replays, rollbacks of the
checkpoint, and two writers at once."""

import itertools
import random
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tallygate import Stack
from tallygate.core.ledger import Claim, Run
from tallygate.core.letters import Letter
from tallygate.core.offsets import Range, TopicPartition, remaining
from tallygate.errors import FencedError, LedgerError
from tallygate.postgres import ledger_tables, letter_tables
from tallygate.postgres.arrow import ArrowConnection, pooled
from tallygate.postgres.connect import connect
from tallygate.postgres.ledger_tables import BatchRecord
from tallygate.postgres.plain import PlainConnection
from tallygate.postgres.tables import upgrade
from tallygate.units import FIRST_MS, LAST_MS

_names = (f"model-{number}" for number in itertools.count())


@pytest.fixture
def connection(stack: Stack) -> Iterator[ArrowConnection]:
    opened = ArrowConnection(stack.dsn)
    yield opened
    opened.close()


def _begin(dsn: str, pipeline: str) -> Claim:
    """Take over, as a start does."""
    about = {"target": "table t", "delivery": "exactly-once", "stateful": False}
    with connect(dsn, autocommit=True) as session:
        upgrade(session)
    with connect(dsn) as session:
        run = Run.mine(0)
        epoch = ledger_tables.take_over(
            PlainConnection(session),
            Claim(pipeline, run),
            {**about, "checkpoint": "/c", "version": "0", "target_id": "1"},
        )
    return Claim(pipeline, replace(run, epoch=epoch))


def _positions(dsn: str, pipeline: str) -> dict[TopicPartition, int]:
    with connect(dsn) as session:
        state = ledger_tables.state_of(PlainConnection(session), pipeline)
    return {} if state is None else dict(state.positions)


def test_tables_of_users_are_not_made_among_the_ledgers(stack: Stack) -> None:
    """The ledger's schema has the name of the stack's user, which PostgreSQL looks in first."""
    _begin(stack.dsn, "schemas")
    with psycopg.connect(stack.dsn) as connection:
        connection.execute("CREATE TABLE of_a_user (n int)")
        found = connection.execute(
            "SELECT schemaname FROM pg_tables WHERE tablename = 'of_a_user'"
        ).fetchall()
    assert found == [("public",)]


def test_a_position_moves_only_from_where_it_is(stack: Stack, connection: ArrowConnection) -> None:
    claim = _begin(stack.dsn, next(_names))
    ledger_tables.move(connection, claim, [Range("t", 0, 0, 5), Range("t", 1, 3, 4)])
    connection.commit()
    assert _positions(stack.dsn, claim.pipeline) == {("t", 0): 5, ("t", 1): 4}
    with pytest.raises(LedgerError, match="not at the start"):
        ledger_tables.move(connection, claim, [Range("t", 0, 4, 9)])
    connection.rollback()
    with pytest.raises(LedgerError, match="not at the start"):
        ledger_tables.move(connection, claim, [Range("t", 0, 5, 6), Range("t", 1, 3, 4)])
    connection.rollback()
    assert _positions(stack.dsn, claim.pipeline) == {("t", 0): 5, ("t", 1): 4}


def test_an_older_run_is_fenced_by_name(stack: Stack, connection: ArrowConnection) -> None:
    name = next(_names)
    older, newer = _begin(stack.dsn, name), _begin(stack.dsn, name)
    with pytest.raises(FencedError, match=r"run 1 of .* is fenced: run 2 took over on .* \(pid"):
        ledger_tables.check_claim(connection, older)
    connection.rollback()
    ledger_tables.check_claim(connection, newer)
    connection.rollback()
    with pytest.raises(FencedError, match="run 2 took over"):
        ledger_tables.beat(connection, older, {})
    assert ledger_tables.beat(connection, newer, {}) is False


def test_a_letter_counts_once_its_batch_does(stack: Stack, connection: ArrowConnection) -> None:
    claim = _begin(stack.dsn, next(_names))
    ledger_tables.move(connection, claim, [Range("t", 0, 0, 5)])
    letter_tables.keep_letters(
        connection, claim, [Letter("t", 0, 7, "bad\0", b"k", b"\xff\0", 1_700_000_000_123)]
    )
    connection.commit()
    assert letter_tables.letter_count(connection, claim.pipeline) == 0
    ledger_tables.move(connection, claim, [Range("t", 0, 5, 8)])
    connection.commit()
    assert letter_tables.letter_count(connection, claim.pipeline) == 1
    with psycopg.connect(stack.dsn) as reader:
        row = reader.execute(
            'SELECT key, value, cause, "offset" FROM tallygate.dead_letters WHERE pipeline = %s',
            (claim.pipeline,),
        ).fetchone()
    assert row == (b"k", b"\xff\0", "bad\N{REPLACEMENT CHARACTER}", 7)


@pytest.mark.parametrize("careful", [False, True])
def test_letters_are_kept_whatever_is_in_them_and_is_not(stack: Stack, careful: bool) -> None:
    claim = _begin(stack.dsn, next(_names))
    text = "{\"a\": 'é',\\}, NULL \N{MICROSCOPE}"
    kept = [
        Letter('a{b},"c"', 0, 0, text, b"", b"\\x00\0\xff", 1_700_000_000_123),
        Letter('a{b},"c"', 0, 1, "NULL", None, None, None),
    ]
    with pooled(stack.dsn, careful=careful) as connection:
        for some in (kept[1:], kept, kept):
            letter_tables.keep_letters(connection, claim, some)
        connection.commit()
    with psycopg.connect(stack.dsn) as reader:
        found = reader.execute(
            'SELECT topic, partition, "offset", cause, key, value, '
            "(extract(epoch FROM record_time) * 1000)::bigint "
            'FROM tallygate.dead_letter_records WHERE pipeline = %s ORDER BY "offset"',
            (claim.pipeline,),
        ).fetchall()
    assert found == [(*each.at, each.cause, each.key, each.value, each.time_ms) for each in kept]


def test_a_letter_may_be_larger_than_jsonb_holds_in_hex(
    stack: Stack, connection: ArrowConnection
) -> None:
    claim, size = _begin(stack.dsn, next(_names)), 135 << 20
    letter_tables.keep_letters(
        connection, claim, [Letter("t", 0, 0, "why", random.randbytes(size))]
    )
    connection.commit()
    query = "SELECT length(key) FROM tallygate.dead_letter_records WHERE pipeline = $1"
    assert connection.rows(query, claim.pipeline) == [(size,)]
    connection.rollback()


@pytest.mark.parametrize("ms", [FIRST_MS - 1, LAST_MS + 1, 2**63 - 1, -(2**63)])
def test_a_letter_whose_time_no_date_can_be_is_kept_without_it(ms: int) -> None:
    assert letter_tables._fields(Letter("t", 0, 0, "why", time_ms=ms))["ms"] is None
    assert letter_tables._fields(Letter("t", 0, 0, "why", time_ms=LAST_MS))["ms"] == LAST_MS


def test_letters_of_a_batch_that_was_never_committed_are_forgotten(
    stack: Stack, connection: ArrowConnection
) -> None:
    claim = _begin(stack.dsn, next(_names))
    ledger_tables.move(connection, claim, [Range("t", 0, 0, 5)])
    letter_tables.keep_letters(
        connection, claim, [Letter("t", 0, 7, "bad"), Letter("t", 0, 3, "bad")]
    )
    connection.commit()
    again = _begin(stack.dsn, claim.pipeline)
    ledger_tables.move(connection, again, [Range("t", 0, 5, 9)])
    connection.commit()
    assert letter_tables.letter_count(connection, claim.pipeline) == 1, (
        "the next run decodes offset 7 anew"
    )


def test_the_history_is_kept_within_a_bound(
    stack: Stack, connection: ArrowConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_tables, "BATCHES_KEPT", 20)
    monkeypatch.setattr(ledger_tables, "TRIM_EVERY", 5)
    claim = _begin(stack.dsn, next(_names))
    for number in range(60):
        done = BatchRecord(
            batch_id=number, strategy="driver", ranges=[Range("t", 0, 0, 1)], rows=1, seconds={}
        )
        ledger_tables.record(connection, claim, done)
    connection.commit()
    counted = connection.rows(
        "SELECT count(*), max(batch_id) FROM tallygate.batches WHERE pipeline = $1", claim.pipeline
    )
    connection.rollback()
    assert 20 <= counted[0][0] <= 25
    assert counted[0][1] == 59


def test_a_batch_that_is_written_down_before_it_moves_anything_is_completed(
    stack: Stack, connection: ArrowConnection
) -> None:
    claim = _begin(stack.dsn, next(_names))
    begun = BatchRecord(
        batch_id=3,
        strategy="partition",
        ranges=[Range("t", 0, 0, 9)],
        rows=ledger_tables.UNFINISHED,
        seconds={},
    )
    number = ledger_tables.record(connection, claim, begun)
    other = ledger_tables.record(connection, claim, replace(begun, batch_id=4))
    ledger_tables.finish(connection, claim, number, replace(begun, rows=7, seconds={"write": 0.5}))
    connection.commit()
    kept = connection.rows(
        "SELECT number, batch_id, rows, ranges::text, seconds::text FROM tallygate.batches "
        "WHERE pipeline = $1 ORDER BY number",
        claim.pipeline,
    )
    connection.rollback()
    ranges = '[["t", 0, 0, 9]]'
    assert kept == [(number, 3, 7, ranges, '{"write": 0.5}'), (other, 4, -1, ranges, "{}")]


def _run_model(dsn: str, most: int = 25) -> None:
    """As many random runs; the first one that goes wrong is the last."""
    Machine.dsn = dsn
    case = Machine.TestCase
    case.settings = settings(
        max_examples=most,
        report_multiple_bugs=False,
        stateful_step_count=30,
        deadline=None,
        database=None,
        print_blob=False,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    case().runTest()


@pytest.mark.parametrize("ms", [2**63 - 1, -(2**63), LAST_MS + 1, LAST_MS, FIRST_MS])
def test_a_letter_of_any_time_is_kept(stack: Stack, connection: ArrowConnection, ms: int) -> None:
    claim = _begin(stack.dsn, next(_names))
    letter_tables.keep_letters(connection, claim, [Letter("t", 0, 0, "why", time_ms=ms)])
    ledger_tables.move(connection, claim, [Range("t", 0, 0, 1)])
    connection.commit()
    with psycopg.connect(stack.dsn) as session:
        query = "SELECT record_time FROM tallygate.dead_letters WHERE pipeline = %s"
        ((at,),) = session.execute(query, (claim.pipeline,)).fetchall()
    assert (at is not None) == (FIRST_MS <= ms <= LAST_MS)


def test_random_runs_agree_with_a_model(stack: Stack) -> None:
    """The target is a table of offsets. Whatever two runs do, it holds each once and no gap."""
    _run_model(stack.dsn)


def test_without_the_fence_the_model_sees_it(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_tables, "check_claim", lambda *_: None)
    with pytest.raises(AssertionError, match="a fenced run committed"):
        _run_model(stack.dsn, most=500)


@pytest.mark.system
def test_without_the_comparison_the_model_sees_it(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    def careless(transaction: Any, claim: Claim, ranges: Iterable[Range]) -> None:
        for each in ranges:
            transaction.rows(
                "INSERT INTO tallygate.positions "
                "(pipeline, topic, partition, first_offset, next_offset) "
                "VALUES ($1, $2, $3, 0, $4) ON CONFLICT (pipeline, topic, partition) "
                "DO UPDATE SET next_offset = EXCLUDED.next_offset",
                claim.pipeline,
                each.topic,
                each.partition,
                each.until,
            )

    monkeypatch.setattr(ledger_tables, "move", careless)
    with pytest.raises(AssertionError, match="a gap or an overlap was committed"):
        _run_model(stack.dsn, most=500)


class Machine(RuleBasedStateMachine):
    """Two drivers of one pipeline, whose batches come from anywhere.

    The model is one number a partition: how many offsets the target holds. A write is right if it
    takes the target exactly from there to the batch's end, or changes nothing.
    """

    dsn = ""

    def __init__(self) -> None:
        super().__init__()
        self.name = next(_names)
        self.connection = ArrowConnection(self.dsn)
        self.claims = [_begin(self.dsn, self.name), _begin(self.dsn, self.name)]
        self.seen: list[dict[TopicPartition, int]] = [{}, {}]
        self.newest = 1
        begun = [Range("t", 0, 0, 0), Range("t", 1, 0, 0)]
        ledger_tables.move(self.connection, self.claims[1], begun)
        self.connection.rows("CREATE TABLE IF NOT EXISTS model (name text, p int, o bigint)")
        self.connection.commit()
        self.held = {0: 0, 1: 0}

    @rule(driver=st.sampled_from([0, 1]))
    def take_over(self, driver: int) -> None:
        self.claims[driver] = _begin(self.dsn, self.name)
        self.newest = driver

    @rule(
        driver=st.sampled_from([0, 1]),
        starts=st.tuples(st.integers(0, 12), st.integers(0, 12)),
        lengths=st.tuples(st.integers(0, 5), st.integers(0, 5)),
        next_in_order=st.booleans(),
        divisible=st.booleans(),
        stale=st.booleans(),
        crash=st.booleans(),
    )
    def write(
        self,
        driver: int,
        starts: tuple[int, int],
        lengths: tuple[int, int],
        next_in_order: bool,
        divisible: bool,
        stale: bool,
        crash: bool,
    ) -> None:
        """A batch that is next in order, replayed, older, in part, or beyond a gap. It is planned
        by the ledger, or by what this driver last saw of it, as if another had moved it since."""
        begins = [self.held[p] if next_in_order else starts[p] for p in (0, 1)]
        ranges = tuple(Range("t", p, begins[p], begins[p] + lengths[p]) for p in (0, 1))
        if not stale:
            self.seen[driver] = _positions(self.dsn, self.name)
        before = dict(self.held)
        try:
            left = remaining(ranges, self.seen[driver], divisible=divisible)
            self._commit(driver, left, crash)
        except FencedError:
            assert driver != self.newest
        except LedgerError:
            gap = any(each.start > before[each.partition] for each in ranges)
            part = any(each.start < before[each.partition] for each in ranges)
            assert stale or gap or (part and not divisible)
        else:
            if not crash:
                for each in left:
                    assert each.start == before[each.partition], "a gap or an overlap was committed"
                    self.held[each.partition] = each.until
                assert driver == self.newest, "a fenced run committed"
        finally:
            self.connection.rollback()

    def _commit(self, driver: int, left: tuple[Range, ...], crash: bool) -> None:
        for each in left:
            self.connection.rows(
                "INSERT INTO model SELECT $1, $2, generate_series($3::bigint, $4::bigint - 1)",
                self.name,
                each.partition,
                each.start,
                each.until,
            )
        ledger_tables.check_claim(self.connection, self.claims[driver])
        ledger_tables.move(self.connection, self.claims[driver], left)
        if not crash:
            self.connection.commit()

    @invariant()
    def each_offset_is_there_once(self) -> None:
        rows = self.connection.rows(
            "SELECT p, o FROM model WHERE name = $1 ORDER BY 1, 2", self.name
        )
        self.connection.rollback()
        assert rows == [(p, o) for p in (0, 1) for o in range(self.held[p])]

    def teardown(self) -> None:
        self.connection.close()
