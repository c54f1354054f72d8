"""The ledger in PostgreSQL: rows of the store that holds the results.

**No gap, no overlap.** A position moves only by compare-and-set, from exactly where the batch says
that it begins, in the transaction of the rows it stands for. If the comparison fails for any
partition, all of the transaction is rolled back.

**One writer.** Each run takes the next epoch of its pipeline. Every commit reads the epoch under a
share lock in that same transaction; a new run takes the row for itself, so it waits for commits
that are under way, and those that come later see its epoch and are fenced. The positions that a new
run reads are therefore final.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tallygate.core.ledger import (
    IN_ANOTHER,
    Claim,
    LedgerState,
    Lost,
    OtherTargetError,
    Remember,
    Run,
    check_end,
    fenced,
    specs_with,
)
from tallygate.core.ledger_snapshot import Commit
from tallygate.core.offsets import MovedError, Range, TopicPartition
from tallygate.errors import FencedError, LedgerError

UNFINISHED = -1
"""In the place of its rows: a batch was written down before its tasks began to commit, and they may
have moved some partitions and not others."""
BATCHES_KEPT = 10_000
TRIM_EVERY = 100
_NEWEST_RUN = (
    "SELECT epoch, host, pid, started_at::text FROM tallygate.runs "
    "WHERE pipeline = $1 ORDER BY epoch DESC LIMIT 1"
)
_RANGES = (
    "jsonb_to_recordset(($2::text)::jsonb) AS wanted (t text, p int, s bigint, u bigint, e int)"
)


class Transaction(Protocol):
    """A connection whose statements belong to a transaction that begins by itself."""

    def rows(self, statement: str, *values: Any) -> list[tuple[Any, ...]]: ...


@dataclass(frozen=True, kw_only=True)
class BatchRecord:
    """A batch for the history."""

    batch_id: int
    strategy: str
    ranges: Sequence[Range]
    rows: int
    seconds: Mapping[str, float]


@dataclass(frozen=True)
class KnownTable:
    """A table as a run found it when it began."""

    name: str
    """As it is written in SQL."""
    number: int


def check_claim(transaction: Transaction, claim: Claim, table: KnownTable | None = None) -> None:
    """Keep the epoch from changing until this transaction ends, or find that it has. What has
    written to the `table` before in this transaction holds it: its name cannot pass to another one
    any more, so if it had done so by then, that shows here."""
    number, values = "NULL::bigint", [claim.pipeline]
    if table is not None:
        number, values = "to_regclass($2)::oid::bigint", [claim.pipeline, table.name]
    found = transaction.rows(
        f"SELECT epoch, {number} FROM tallygate.pipelines WHERE name = $1 FOR SHARE", *values
    )
    if not found:
        raise LedgerError(
            f"pipeline {claim.pipeline!r} is not in the ledger any more: its row was removed from "
            "tallygate.pipelines. Start again under another name with another table."
        )
    if found[0][0] != claim.run.epoch:
        raise _fenced(transaction, claim)
    # One that is gone says so itself when it is written to.
    if table is not None and found[0][1] not in (None, table.number):
        raise OtherTargetError.of(f"table {table.name}")


def _fenced(transaction: Transaction, claim: Claim) -> FencedError:
    epoch, host, pid, started = transaction.rows(_NEWEST_RUN, claim.pipeline)[0]
    newer = Run(epoch=epoch, host=host, pid=pid, started=started)
    return fenced(claim.pipeline, claim.run.epoch, newer)


def move(
    transaction: Transaction,
    claim: Claim,
    ranges: Iterable[Range],
    epochs: Mapping[TopicPartition, int] | None = None,
) -> None:
    """Compare and set every position, or raise: then nothing may be committed. A position gets the
    epoch of the leader that had it, and the id that its topic had before the batch was read."""
    wanted = sorted(ranges)
    if not wanted:
        return
    known = epochs or {}
    listed = json.dumps(
        [
            {
                "t": each.topic,
                "p": each.partition,
                "s": each.start,
                "u": each.until,
                "e": known.get(each.topic_partition),
            }
            for each in wanted
        ]
    )
    transaction.rows(
        "INSERT INTO tallygate.positions "
        "(pipeline, topic, partition, first_offset, next_offset, topic_id) "
        "SELECT $1, t, p, s, s, (SELECT topic_ids ->> t FROM tallygate.pipelines WHERE name = $1) "
        f"FROM {_RANGES} ON CONFLICT DO NOTHING",
        claim.pipeline,
        listed,
    )
    moved = transaction.rows(
        "UPDATE tallygate.positions AS held SET next_offset = u, updated_at = now(), "
        "leader_epoch = CASE WHEN s < u OR e IS NOT NULL THEN e ELSE leader_epoch END "
        f"FROM {_RANGES} WHERE pipeline = $1 AND topic = t AND partition = p AND next_offset = s "
        "RETURNING topic",
        claim.pipeline,
        listed,
    )
    if len(moved) != len(wanted):
        raise MovedError(
            f"the ledger of {claim.pipeline!r} is not at the start of "
            f"{', '.join(map(str, wanted))} any more."
        )


def record(transaction: Transaction, claim: Claim, batch: BatchRecord) -> int:
    """Add a batch to the history, which is kept within a bound; return its number there."""
    ranges = [[each.topic, each.partition, each.start, each.until] for each in batch.ranges]
    number = transaction.rows(
        "INSERT INTO tallygate.batches (pipeline, epoch, batch_id, strategy, ranges, rows, seconds)"
        " VALUES ($1, $2, $3, $4, ($5::text)::jsonb, $6, ($7::text)::jsonb) RETURNING number",
        claim.pipeline,
        claim.run.epoch,
        batch.batch_id,
        batch.strategy,
        json.dumps(ranges),
        batch.rows,
        json.dumps(batch.seconds),
    )[0][0]
    if number % TRIM_EVERY == 0:
        transaction.rows(
            "DELETE FROM tallygate.batches WHERE pipeline = $1 AND number <= $2",
            claim.pipeline,
            number - BATCHES_KEPT,
        )
    return int(number)


def finish(transaction: Transaction, claim: Claim, number: int, batch: BatchRecord) -> None:
    """Complete a batch of the history that was written down unfinished."""
    transaction.rows(
        "UPDATE tallygate.batches SET rows = $3, seconds = ($4::text)::jsonb, committed_at = now() "
        "WHERE pipeline = $1 AND number = $2",
        claim.pipeline,
        number,
        batch.rows,
        json.dumps(batch.seconds),
    )


def are_there(connection: Transaction) -> bool:
    """Whether the database has a ledger of any pipeline."""
    return connection.rows("SELECT to_regclass('tallygate.pipelines') IS NOT NULL")[0][0] is True


def state_of(connection: Transaction, pipeline: str) -> LedgerState | None:
    """The pipeline as it is now, if it ever ran. One statement, so that it is of one moment."""
    found = connection.rows(
        "SELECT p.epoch, p.checkpoint_id, p.target_id, r.host, r.pid, r.started_at::text, "
        "(SELECT jsonb_agg(jsonb_build_array(topic, partition, from_offset, until_offset, reason, "
        "accepted_at::text) ORDER BY accepted_at, topic, partition)::text "
        "FROM tallygate.lost_ranges WHERE pipeline = p.name), "
        "p.topic_ids::text, p.specs::text, x.topic, x.partition, x.first_offset, x.next_offset, "
        "x.topic_id, x.leader_epoch "
        "FROM tallygate.pipelines AS p "
        "LEFT JOIN tallygate.runs AS r ON r.pipeline = p.name AND r.epoch = p.epoch "
        "LEFT JOIN tallygate.positions AS x ON x.pipeline = p.name WHERE p.name = $1",
        pipeline,
    )
    if not found:
        return None
    epoch, checkpoint_id, target, host, pid, started, lost, ids, specs = found[0][:9]
    held = [row[9:] for row in found if row[9] is not None]
    return LedgerState(
        positions={(topic, partition): at for topic, partition, _, at, _, _ in held},
        begun={(topic, partition): at for topic, partition, at, *_ in held},
        run=Run(epoch=epoch, host=host or "", pid=pid or 0, started=started or ""),
        topic_ids=json.loads(ids) | {topic: each for topic, *_, each, _ in held if each},
        leader_epochs={
            (topic, partition): leader
            for topic, partition, *_, leader in held
            if leader is not None
        },
        checkpoint_id=checkpoint_id,
        specs=tuple(json.loads(specs)),
        target=target,
        lost=tuple(
            Lost(Range(*gone), reason, at) for *gone, reason, at in json.loads(lost or "[]")
        ),
    )


def take_over(transaction: Transaction, claim: Claim, about: Mapping[str, Any]) -> int:
    """Take the next epoch and return it. From here on no older run commits anything."""
    epoch = transaction.rows(
        "INSERT INTO tallygate.pipelines"
        " (name, epoch, target, delivery, stateful, checkpoint, target_id) "
        "VALUES ($1, 1, $2, $3, $4, $5, $6) ON CONFLICT (name) DO UPDATE SET "
        "epoch = pipelines.epoch + 1, target = EXCLUDED.target, delivery = EXCLUDED.delivery, "
        "stateful = EXCLUDED.stateful, checkpoint = EXCLUDED.checkpoint, "
        # Of a ledger that is not empty only `retarget` makes it another one.
        "target_id = CASE WHEN split_part(pipelines.target_id, ':', 1) = "
        "split_part(EXCLUDED.target_id, ':', 1) AND EXISTS "
        "(SELECT FROM tallygate.positions WHERE pipeline = pipelines.name) "
        "THEN pipelines.target_id ELSE EXCLUDED.target_id END "
        "RETURNING epoch",
        claim.pipeline,
        about["target"],
        about["delivery"],
        about["stateful"],
        about["checkpoint"],
        about["target_id"],
    )[0][0]
    transaction.rows(
        "INSERT INTO tallygate.runs (pipeline, epoch, host, pid, version) "
        "VALUES ($1, $2, $3, $4, $5)",
        claim.pipeline,
        epoch,
        claim.run.host,
        claim.run.pid,
        about["version"],
    )
    transaction.rows(
        # Of batches that were never committed: their records may be fit by now.
        "DELETE FROM tallygate.dead_letter_records AS letters WHERE letters.pipeline = $1 "
        "AND NOT EXISTS (SELECT FROM tallygate.positions AS held WHERE "
        "held.pipeline = letters.pipeline AND held.topic = letters.topic AND "
        'held.partition = letters.partition AND held.next_offset > letters."offset")',
        claim.pipeline,
    )
    return int(epoch)


def remember(transaction: Transaction, claim: Claim, change: Remember) -> None:
    transaction.rows(
        "UPDATE tallygate.pipelines SET checkpoint_id = $2, "
        "topic_ids = topic_ids || ($3::text)::jsonb WHERE name = $1",
        claim.pipeline,
        change.checkpoint_id,
        json.dumps(dict(change.topic_ids)),
    )
    if change.spec is not None:
        ((held,),) = transaction.rows(
            "SELECT specs::text FROM tallygate.pipelines WHERE name = $1", claim.pipeline
        )
        transaction.rows(
            "UPDATE tallygate.pipelines SET specs = ($2::text)::jsonb WHERE name = $1",
            claim.pipeline,
            json.dumps(specs_with(json.loads(held), change.spec)),
        )
    for topic, topic_id in change.topic_ids.items():
        transaction.rows(
            "UPDATE tallygate.positions SET topic_id = $3 WHERE pipeline = $1 AND topic = $2 "
            "AND topic_id IS DISTINCT FROM $3",
            claim.pipeline,
            topic,
            topic_id,
        )


def lose(transaction: Transaction, claim: Claim, lost: Iterable[Lost]) -> None:
    """Move past ranges that are lost, and keep that they are."""
    gone = list(lost)
    move(transaction, claim, [each.range for each in gone])
    for each in gone:
        transaction.rows(
            "INSERT INTO tallygate.lost_ranges "
            "(pipeline, topic, partition, from_offset, until_offset, reason) "
            "VALUES ($1, $2, $3, $4, $5, $6)",
            claim.pipeline,
            *each.range.topic_partition,
            each.range.start,
            each.range.until,
            each.reason,
        )


def cut_off(transaction: Transaction, claim: Claim, cut: Iterable[Lost]) -> None:
    """Keep what the source has lost below positions, which stay."""
    for each in cut:
        gone = each.range
        found = transaction.rows(
            "UPDATE tallygate.positions SET leader_epoch = NULL WHERE pipeline = $1 "
            "AND topic = $2 AND partition = $3 RETURNING next_offset",
            claim.pipeline,
            *gone.topic_partition,
        )
        check_end(gone, found[0][0] if found else None)
        transaction.rows(
            "INSERT INTO tallygate.lost_ranges "
            "(pipeline, topic, partition, from_offset, until_offset, reason) "
            "VALUES ($1, $2, $3, $4, $5, $6) "
            "ON CONFLICT (pipeline, topic, partition, from_offset) DO UPDATE "
            "SET until_offset = EXCLUDED.until_offset, reason = EXCLUDED.reason",
            claim.pipeline,
            *gone.topic_partition,
            gone.start,
            gone.until,
            each.reason,
        )


def retarget(transaction: Transaction, claim: Claim, target: str) -> None:
    """Make it the ledger of another target, which what came before is not in."""
    transaction.rows(
        "UPDATE tallygate.pipelines SET target_id = $2 WHERE name = $1", claim.pipeline, target
    )
    transaction.rows(
        "INSERT INTO tallygate.lost_ranges "
        "(pipeline, topic, partition, from_offset, until_offset, reason) "
        "SELECT pipeline, topic, partition, first_offset, next_offset, $2 "
        "FROM tallygate.positions WHERE pipeline = $1 AND next_offset > first_offset "
        "ON CONFLICT (pipeline, topic, partition, from_offset) DO UPDATE "
        "SET until_offset = EXCLUDED.until_offset, reason = EXCLUDED.reason",
        claim.pipeline,
        IN_ANOTHER,
    )


def history(connection: Transaction, pipeline: str) -> list[Commit]:
    """The batches that are kept, the oldest first; those that were interrupted have the rows
    UNFINISHED."""
    found = connection.rows(
        "SELECT number, epoch, batch_id, ranges::text, rows, committed_at::text "
        "FROM tallygate.batches WHERE pipeline = $1 ORDER BY number",
        pipeline,
    )
    return [
        Commit(
            number=number,
            run=run,
            batch=batch,
            ranges=tuple(Range(*each) for each in json.loads(ranges)),
            rows=rows,
            at=at,
        )
        for number, run, batch, ranges, rows, at in found
    ]


def beat(connection: Transaction, claim: Claim, progress: Mapping[str, Any]) -> bool:
    """Say that the run is alive; raise if it is not the newest any more. The answer is whether it
    was asked to stop."""
    found = connection.rows(
        "UPDATE tallygate.runs SET heartbeat_at = now(), progress = ($3::text)::jsonb "
        "WHERE pipeline = $1 AND epoch = $2 AND epoch = "
        "(SELECT epoch FROM tallygate.pipelines WHERE name = $1) RETURNING stop_requested",
        claim.pipeline,
        claim.run.epoch,
        json.dumps(progress),
    )
    if not found:
        raise _fenced(connection, claim)
    return bool(found[0][0])


def end_run(connection: Transaction, claim: Claim, outcome: str) -> None:
    connection.rows(
        "UPDATE tallygate.runs SET stopped_at = now(), heartbeat_at = now(), outcome = $3 "
        "WHERE pipeline = $1 AND epoch = $2",
        claim.pipeline,
        claim.run.epoch,
        outcome,
    )
