"""What is done at a start, by what happened to the ledger and to the checkpoint."""

from dataclasses import replace

import pytest

from fixtures.starts import (
    ADOPTS,
    AHEAD,
    COUNTS,
    FILES,
    FITS,
    HALFWAY,
    ITS_BATCH,
    JOINED,
    NAMES,
    NO_CHECKPOINT,
    NO_LEDGER,
    OLDER,
    TIMED,
    TO_TABLE,
    TRIMMED,
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
from tallygate.core.ledger import LedgerState
from tallygate.core.start_facts import (
    CheckpointState,
    Resume,
    Seed,
)
from tallygate.errors import (
    ConfigError,
    LedgerError,
)

table = Table()

table.about = "a pipeline begins"
table.row("one that never ran begins", Resume(), None, NO_CHECKPOINT)
table.row("one with state that never ran begins", Resume(), None, NO_CHECKPOINT, COUNTS)
table.row("one over files that never ran begins", Resume(), None, NO_CHECKPOINT, FILES, None)
table.row(
    "one whose first batch was planned, and not written, goes on",
    Resume(),
    LedgerState(),
    CheckpointState(path="/checkpoint", id="query", planned=0, end=at(50, 50)),
)
table.row(
    "an unknown ledger does not stand behind a checkpoint with batches",
    Refused(
        LedgerError, "'p' is empty, but .*/checkpoint has done 4 batches.*from table t. Remove"
    ),
    None,
)
table.row(
    "a ledger of runs that has no positions does not either",
    Refused(LedgerError, "is empty, but .* has done 4 batches"),
    LedgerState(checkpoint_id="query"),
    nature=COUNTS,
)
table.row("a target without a ledger goes on with the checkpoint", Resume(), None, policy=NO_LEDGER)
table.row("and so it does with state", Resume(), None, nature=COUNTS, policy=NO_LEDGER)
table.row(
    "but not with another number of shuffle partitions",
    Refused(ConfigError, "2 shuffle partitions .* says 7. Set it back"),
    None,
    checkpoint(30, shuffle_partitions=2),
    COUNTS,
    policy=replace(NO_LEDGER, shuffle_partitions=7),
)

table.about = "a job is adopted"
table.row("a job's batches are its past", Resume(adopt=3), None, policy=ADOPTS)
table.row("a job without batches has no past", Resume(adopt=-1), None, NO_CHECKPOINT, policy=ADOPTS)
table.row(
    "a job whose first start failed goes on",
    Resume(),
    None,
    checkpoint(30, adopted=3),
    policy=ADOPTS,
)
table.row(
    "a job that has done batches since is refused if its ledger is lost",
    Refused(
        LedgerError, "4 batches.*Bring the ledger back, or .*remove /checkpoint/tallygate.adop"
    ),
    None,
    checkpoint(30, adopted=2),
    policy=ADOPTS,
)
table.row("a job that is in the ledger needs a mark", Resume(adopt=-1), policy=ADOPTS)
table.row(
    "a job that has its mark keeps it", Resume(), None, checkpoint(30, adopted=3), policy=ADOPTS
)
table.row(
    "a new checkpoint of a job gets a mark", seeded(adopt=-1), checkpoint=OLDER, policy=ADOPTS
)
table.row(
    "also in the place of one that had a mark",
    seeded(adopt=-1),
    checkpoint=replace(OLDER, adopted=2),
    policy=ADOPTS,
)
table.row(
    "a job's lost checkpoint is made again with a mark",
    seeded(set_aside=False, adopt=-1),
    checkpoint=NO_CHECKPOINT,
    policy=ADOPTS,
)
table.row(
    "a mark of batches that are gone is no longer true",
    seeded(set_aside=False, adopt=-1),
    checkpoint=replace(NO_CHECKPOINT, adopted=2),
    policy=ADOPTS,
)
table.row(
    "a job with state is not rebuilt, but begun under another name",
    Refused(LedgerError, "is gone. The state is in .*, or begin with another name"),
    checkpoint=NO_CHECKPOINT,
    nature=COUNTS,
    policy=ADOPTS,
)

table.about = "the checkpoint fits"
for nature in (TRIMMED, WHOLE, COUNTS, WINDOWS, FILES, TIMED):
    table.row(
        f"a batch to plan from the ledger's positions: {NAMES[nature]}", Resume(), nature=nature
    )
    table.row(
        f"a batch that is planned from the ledger's positions: {NAMES[nature]}",
        Resume(),
        checkpoint=checkpoint(30, 30, until=(50, 40)),
        nature=nature,
    )
    table.row(
        f"a batch that the target has, and Spark has not: {NAMES[nature]}",
        Resume(),
        checkpoint=checkpoint(20, 10, until=(30, 30)),
        nature=nature,
    )
table.row("a batch in part is trimmed", Resume(), checkpoint=checkpoint(20, 30, until=(40, 40)))
table.row(
    "rows without coordinates are not trimmed, and planned again",
    seeded(),
    checkpoint=checkpoint(20, 30, until=(40, 40)),
    nature=WHOLE,
)
table.row(
    "a batch of which one partition is done",
    Resume(),
    checkpoint=checkpoint(10, 30, until=(30, 40)),
)
table.row(
    "the same for rows without coordinates",
    seeded(),
    checkpoint=checkpoint(10, 30, until=(30, 40)),
    nature=WHOLE,
)
table.row(
    "a partition that neither has met is no part of what is done",
    seeded(30),
    ledger(30),
    checkpoint(20, until=(30, 20)),
    nature=WHOLE,
)
table.row("a partition that neither has begun", Resume(), ledger(30), checkpoint(30, 0))
table.row(
    "an empty partition need not be in the checkpoint", Resume(), ledger(30, 0), checkpoint(30)
)
table.row(
    "a partition that neither has met is read from 0",
    Resume(),
    ledger(30),
    checkpoint(30, until=(30, 20)),
    source=source(0, 0),
)
table.row("an idle start", Resume(), source=source(30, 30))

table.about = "the checkpoint is lost"
table.row("reading goes on from the ledger", seeded(set_aside=False), checkpoint=NO_CHECKPOINT)
table.row(
    "also for rows in whole batches",
    seeded(set_aside=False),
    checkpoint=NO_CHECKPOINT,
    nature=WHOLE,
)
table.row(
    "also if batches see the current time: whole ones are in the target",
    seeded(set_aside=False),
    checkpoint=NO_CHECKPOINT,
    nature=TIMED,
)
table.row(
    "a checkpoint without a batch is set aside",
    seeded(),
    checkpoint=CheckpointState(path="/checkpoint", id="query"),
)
table.row(
    "state is lost with it",
    Refused(LedgerError, "of a pipeline with state is gone. The state is in the .* or rebuild"),
    checkpoint=NO_CHECKPOINT,
    nature=COUNTS,
)
table.row(
    "what was read of files is lost with it",
    Refused(LedgerError, "one that is not Kafka, is gone. What was read is known only .* rebuild"),
    ledger(5, positions={("source:0", 0): 5}, topic_ids={}),
    NO_CHECKPOINT,
    FILES,
    None,
)

table.about = "the checkpoint is another"
table.row("an older copy is set aside", seeded(), checkpoint=OLDER)
table.row("also if its batch is planned", seeded(), checkpoint=checkpoint(10, 10, until=(20, 20)))
table.row(
    "an older copy of which a batch reaches the ledger",
    Resume(),
    checkpoint=checkpoint(10, 10, until=(40, 40)),
)
table.row("with state it catches up", Resume(), checkpoint=OLDER, nature=COUNTS)
table.row(
    "unless it would read what is gone",
    Refused(
        LedgerError, "is behind the ledger, and retention .* bring the checkpoint back, or reb"
    ),
    checkpoint=OLDER,
    nature=COUNTS,
    source=source(0, 20),
)
table.row(
    "closed windows would be other ones",
    Refused(LedgerError, "is not the one that the ledger goes with: .* rebuild"),
    checkpoint=OLDER,
    nature=WINDOWS,
)
table.row(
    "entries of files would be other ones",
    Refused(LedgerError, "is not the one that the ledger goes with: .* rebuild"),
    checkpoint=OLDER,
    nature=FILES,
    source=None,
)
table.row(
    "windows of a batch in part",
    Refused(LedgerError, "is not the one that the ledger goes with"),
    checkpoint=checkpoint(20, 20, until=(40, 40)),
    nature=WINDOWS,
)
table.row(
    "a copy of another id is as good without state", Resume(), checkpoint=replace(FITS, id="copy")
)
table.row(
    "with state it is another query's",
    Refused(LedgerError, "/checkpoint is the checkpoint of another query. The state .* rebuild"),
    checkpoint=replace(FITS, id="copy"),
    nature=COUNTS,
)
table.row(
    "if the ledger remembers no id, any will do",
    Resume(),
    ledger(checkpoint_id=None),
    nature=COUNTS,
)

table.about = "the checkpoint is ahead"
table.row("without state it is set aside", seeded(), checkpoint=AHEAD)
table.row("also if it is ahead everywhere", seeded(), checkpoint=checkpoint(90, 90, until=(99, 99)))
table.row(
    "with state it would leave a gap",
    Refused(LedgerError, "is ahead of the ledger: its next batch would leave a gap. .* rebuild"),
    checkpoint=AHEAD,
    nature=COUNTS,
)
table.row(
    "with windows it is not the one",
    Refused(LedgerError, "is not the one that the ledger goes with"),
    checkpoint=AHEAD,
    nature=WINDOWS,
)
table.row(
    "a partition that the ledger forgot is not read twice",
    Refused(
        LedgerError, "has read t/1 up to 30, and the ledger of 'p' does not know .* remove the"
    ),
    ledger(30),
)
table.row(
    "nor is it with state",
    Refused(LedgerError, "is ahead of the ledger"),
    ledger(30),
    nature=COUNTS,
)

table.about = "some lanes have a batch"
table.row("the batch is in the checkpoint", Resume(), HALFWAY, ITS_BATCH, WHOLE)
table.row(
    "it saw the current time, which is in the checkpoint", Resume(), HALFWAY, ITS_BATCH, TIMED
)
table.row("it goes with its state", Resume(), HALFWAY, ITS_BATCH, WINDOWS)
for sentence, other in (
    ("lost", NO_CHECKPOINT),
    ("older", OLDER),
    ("ahead", AHEAD),
    ("one in which the batch is not planned", FITS),
    ("one in which the batch ends elsewhere", checkpoint(30, 30, until=(50, 40))),
    ("one in which the batch begins elsewhere", checkpoint(20, 30, until=(50, 30))),
):
    table.row(
        f"the checkpoint is {sentence}",
        seeded(furthest=at(50, 30), set_aside=other.is_begun),
        HALFWAY,
        other,
        WHOLE,
    )
    for nature in (TIMED, JOINED):
        table.row(
            f"the checkpoint is {sentence}, with {NAMES[nature]}",
            Refused(
                LedgerError,
                f"table t holds a part of a batch .* another {nature.sees} than .* Bring the check",
            ),
            HALFWAY,
            other,
            nature,
        )
    for nature in (COUNTS, WINDOWS):
        table.row(
            f"the checkpoint is {sentence}, with {NAMES[nature]}",
            Refused(LedgerError, "(is gone|the ledger goes with).*bring the checkpoint back"),
            HALFWAY,
            other,
            nature,
        )
table.row(
    "rows in lanes are never trimmed",
    seeded(furthest=at(50, 30)),
    HALFWAY,
    checkpoint(20, 30, until=(60, 40)),
    TRIMMED,
)

table.about = "shuffle partitions change"
IN_TWO = checkpoint(30, 30, shuffle_partitions=2)
table.row(
    "the state is kept by them",
    Refused(ConfigError, "2 shuffle partitions and .* says 7. Set it back, or rebuild"),
    checkpoint=IN_TWO,
    nature=COUNTS,
    policy=replace(TO_TABLE, shuffle_partitions=7),
)
table.row(
    "the same number",
    Resume(),
    checkpoint=IN_TWO,
    nature=COUNTS,
    policy=replace(TO_TABLE, shuffle_partitions=2),
)
table.row(
    "nothing is kept by them yet",
    Resume(),
    None,
    NO_CHECKPOINT,
    COUNTS,
    policy=replace(TO_TABLE, shuffle_partitions=7),
)
table.row("no number is asked for", Resume(), checkpoint=IN_TWO, nature=COUNTS)
table.row(
    "without state they may change",
    Resume(),
    checkpoint=IN_TWO,
    policy=replace(TO_TABLE, shuffle_partitions=7),
)


table.about = "the ledger has lost a position"
FORGOTTEN = Refused(LedgerError, "has lost where it is in t/1: .*goes? on from there: rebuild")
LEAKY = ledger(30, forgotten=(("t", 1),))
for found in (FITS, OLDER, AHEAD, NO_CHECKPOINT):
    table.row(f"whatever the checkpoint, {found.start}", FORGOTTEN, LEAKY, found)
table.row(
    "it is no loss that can be accepted",
    FORGOTTEN,
    LEAKY,
    NO_CHECKPOINT,
    source=source(0, 40),
    policy=replace(TO_TABLE, accept_loss=True),
)

table.about = "the target is another"
INTO_9 = replace(TO_TABLE, target_id="9")
ACCEPTS_9 = replace(INTO_9, accept_new_target=True)
OF_8 = ledger(target="8")
ANOTHER = Refused(LedgerError, "of another table t, or of one that was dropped and made again")

table.row("the same one", Resume(), ledger=ledger(target="9"), policy=INTO_9)
table.row(
    "of a ledger that was restored with its table",
    Resume(),
    ledger=ledger(target="1:8"),
    policy=replace(INTO_9, target_id="2:9"),
)
table.row(
    "of another table beside the same ledger",
    ANOTHER,
    ledger=ledger(target="1:8"),
    policy=replace(INTO_9, target_id="1:9"),
)
table.row("of a ledger that does not say", Resume(), policy=INTO_9)
table.row("of a target that holds its ledger", Resume(), ledger=OF_8)
table.row("it is refused", ANOTHER, ledger=OF_8, policy=INTO_9)
table.row(
    "it is refused with the way on",
    Refused(LedgerError, r"with --accept-new-target \(in Python: accept_new_target=True\)"),
    ledger=OF_8,
    policy=INTO_9,
)
table.row("it is accepted", Resume(retarget="9"), ledger=OF_8, policy=ACCEPTS_9)
table.row(
    "it is accepted without the checkpoint",
    seeded(retarget="9", set_aside=False),
    ledger=OF_8,
    checkpoint=NO_CHECKPOINT,
    policy=ACCEPTS_9,
)
for anchored in (COUNTS, WINDOWS, FILES):
    table.row(
        f"{NAMES[anchored]} cannot begin in the middle",
        Refused(LedgerError, "Set the sink back, or rebuild with `tallygate rebuild`.$"),
        ledger=OF_8,
        nature=anchored,
        policy=ACCEPTS_9,
    )
table.row(
    "before anything is read it does not matter",
    Resume(),
    ledger=LedgerState(target="8"),
    checkpoint=NO_CHECKPOINT,
    policy=INTO_9,
)


@pytest.mark.parametrize(("start", "expected"), table.rows)
def test_a_start(start: Start, expected: Resume | Seed | Refused) -> None:
    check(start, expected)
