"""What is done at a start when a log was cut off below what was read of it."""

import json
from dataclasses import replace

import pytest

from fixtures.starts import (
    ACCEPTS,
    COUNTS,
    HALFWAY,
    ITS_BATCH,
    LOSS,
    NAMES,
    NO_CHECKPOINT,
    TO_TABLE,
    WHOLE,
    WINDOWS,
    Refused,
    Start,
    Table,
    at,
    check,
    checkpoint,
    ledger,
    seeded,
    source,
)
from tallygate.core.cut_logs import cut_ranges
from tallygate.core.ledger import LedgerEntry
from tallygate.core.offsets import Range
from tallygate.core.start_facts import Resume, Seed
from tallygate.errors import LostRangeError

table = Table()

GROWN = source(0, 0, ends=at(90, 90), cut=at(20))
"""Partition 0 was cut off at 20, and is longer than before by now."""
SHORT = source(0, 0, ends=at(20, 90))
"""It was cut off at 20, and is no longer than that."""
CUT = (Range("t", 0, 20, 30),)

table.about = "a log was cut off"
table.row(
    "it is refused with the range, and two ways out",
    Refused(
        LostRangeError,
        r"cut off below what pipeline 'p' has read.*: t/0 \[20, 30\) \(10 records\)\..*"
        "To have what the source has, rebuild with .*; or start with --accept-loss",
    ),
    source=GROWN,
)
table.row("it is gone on with if that is accepted", Resume(cut=CUT), source=GROWN, policy=ACCEPTS)
table.row(
    "also without a checkpoint",
    seeded(set_aside=False, cut=CUT),
    checkpoint=NO_CHECKPOINT,
    source=GROWN,
    policy=ACCEPTS,
)
for policy in (TO_TABLE, ACCEPTS):
    table.row(
        f"one that is shorter than what was read has no second way out{LOSS[policy]}",
        Refused(
            LostRangeError,
            r"t/0 \[20, 30\) \(10 records, and it ends at 20 now\)[^;]* rebuild with [^;]*\.$",
        ),
        source=SHORT,
        policy=policy,
    )
    for nature in (COUNTS, WINDOWS):
        table.row(
            f"what is anchored cannot go on: {NAMES[nature]}{LOSS[policy]}",
            Refused(LostRangeError, r"t/0 \[20, 30\) [^;]* rebuild with [^;]*\.$"),
            nature=nature,
            source=GROWN,
            policy=policy,
        )
    table.row(
        f"some lanes have a batch of which a part is gone{LOSS[policy]}",
        Refused(LostRangeError, r"t/0 \[40, 50\) [^;]* rebuild with [^;]*\.$"),
        HALFWAY,
        ITS_BATCH,
        WHOLE,
        source(0, 0, ends=at(90, 90), cut=at(40)),
        policy,
    )
table.row(
    "one that was cut off where the ledger is has lost nothing",
    Resume(),
    source=source(0, 0, ends=at(90, 90), cut=at(30)),
)
table.row(
    "a batch that is planned beyond the end is not waited for",
    seeded(),
    checkpoint=checkpoint(30, 30, until=(60, 40)),
    source=source(0, 0, ends=at(40, 40)),
)
table.row(
    "a batch that is planned up to the end is",
    Resume(),
    checkpoint=checkpoint(30, 30, until=(40, 40)),
    source=source(0, 0, ends=at(40, 40)),
)
table.row(
    "with state it is, since the batch has begun there",
    Resume(),
    checkpoint=checkpoint(30, 30, until=(60, 40)),
    nature=COUNTS,
    source=source(0, 0, ends=at(40, 40)),
)
table.row(
    "a batch that goes back is not planned again",
    seeded(cut=CUT),
    checkpoint=checkpoint(30, 30, until=(20, 40)),
    nature=WHOLE,
    source=GROWN,
    policy=ACCEPTS,
)
table.row(
    "retention has overtaken the rest",
    seeded(45, 30, lost=(Range("t", 0, 30, 45),), cut=CUT),
    source=replace(GROWN, earliest=at(45, 0)),
    policy=ACCEPTS,
)


@pytest.mark.parametrize(("start", "expected"), table.rows)
def test_a_start(start: Start, expected: Resume | Seed | Refused) -> None:
    check(start, expected)


def test_what_was_cut_off_before_the_pipeline_began_is_none_of_its_range() -> None:
    held = ledger(30, 30, begun=at(25, 30))
    assert cut_ranges(held, GROWN) == (Range("t", 0, 25, 30),)
    assert cut_ranges(held, None) == ()


def test_an_epoch_is_of_its_position_alone() -> None:
    """Beyond it other leaders may have taken the records, which end elsewhere."""
    held = ledger(30, 30, leader_epochs=at(4, 5))
    moved = held.moved([Range("t", 0, 30, 40), Range("t", 1, 30, 30)])
    assert moved.leader_epochs == {("t", 1): 5}
    again = moved.moved([Range("t", 0, 40, 50), Range("t", 2, 0, 0)], {("t", 0): 6, ("t", 2): 1})
    assert again.leader_epochs == at(6, 5, 1)


def test_entries_of_ledgers_that_know_no_epochs_can_be_read() -> None:
    entry = LedgerEntry(pipeline="p", state=ledger(30, 30, leader_epochs=at(4, 5)))
    assert LedgerEntry.parse(entry.text()) == entry
    older = json.loads(entry.text())
    del older["state"]["leader_epochs"]
    assert LedgerEntry.parse(json.dumps(older)).state == ledger(30, 30)
