"""What is done at a start, by what happened to the source."""

from dataclasses import replace

import pytest

from fixtures.starts import (
    ACCEPTS,
    COUNTS,
    FILES,
    FITS,
    HALFWAY,
    ITS_BATCH,
    LOSS,
    NAMES,
    NO_CHECKPOINT,
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
from tallygate.core.offsets import Range
from tallygate.core.start import refuse_other_topic, refuse_source
from tallygate.core.start_facts import (
    Refuse,
    Resume,
    Seed,
)
from tallygate.errors import (
    LedgerError,
    LostRangeError,
    TopicError,
)

table = Table()

table.about = "the topic is gone or another"
GONE = source(topic_ids={}, read=frozenset())
WAYS = {TRIMMED: "forget-topic", COUNTS: "rebuild"}
OTHER_TOPIC = source(0, 0, topic_ids={"t": "second"})
for policy in (TO_TABLE, ACCEPTS):
    for nature in (TRIMMED, COUNTS):
        table.row(
            f"the topic is gone: {NAMES[nature]}{LOSS[policy]}",
            Refused(TopicError, f"topic 't' of pipeline 'p' is gone.*{WAYS[nature]}"),
            nature=nature,
            source=GONE,
            policy=policy,
        )
        table.row(
            f"the topic is another one: {NAMES[nature]}{LOSS[policy]}",
            Refused(LostRangeError, "topic 't' was deleted and recreated .*forget.*another name"),
            nature=nature,
            source=OTHER_TOPIC,
            policy=policy,
        )
table.row("a topic whose id was never kept", Resume(), ledger(topic_ids={}))
table.row(
    "it has fewer partitions than the ledger knows",
    Refused(LostRangeError, "topic 't' was deleted and recreated"),
    ledger(topic_ids={}),
    source=source(0),
)
table.row(
    "Kafka is not asked about positions of files",
    Resume(),
    ledger(positions={("source:1", 0): 5, **at(30, 30)}),
    checkpoint(start={("source:1", 0): 5, **at(30, 30)}),
    FILES,
)
table.row("a pipeline that reads no topic any more asks none", Resume(), source=None)
table.row(
    "nor about a batch that is planned",
    Resume(),
    checkpoint=checkpoint(30, 30, until=(50, 40)),
    source=None,
)

table.about = "unread records are gone"
table.row(
    "a loss is refused with its ranges",
    Refused(LostRangeError, r"t/0 \[30, 45\) \(15 records\), t/1 \[30, 31\) .*with --accept-loss"),
    source=source(45, 31),
)
table.row(
    "a loss is given up if that is accepted",
    seeded(45, 30, lost=(Range("t", 0, 30, 45),)),
    source=source(45, 0),
    policy=ACCEPTS,
)
table.row(
    "a loss in a batch that is planned takes a new checkpoint, since Spark would read all of it",
    seeded(45, 30, lost=(Range("t", 0, 30, 45),)),
    checkpoint=checkpoint(30, 30, until=(60, 60)),
    source=source(45, 0),
    policy=ACCEPTS,
)
table.row(
    "a loss that the checkpoint is past already",
    Resume(lost=(Range("t", 0, 30, 45),)),
    checkpoint=checkpoint(45, 30),
    source=source(45, 0),
    policy=ACCEPTS,
)
table.row(
    "a loss, and no checkpoint",
    seeded(45, 30, lost=(Range("t", 0, 30, 45),), set_aside=False),
    checkpoint=NO_CHECKPOINT,
    source=source(45, 0),
    policy=ACCEPTS,
)
for policy in (TO_TABLE, ACCEPTS):
    for nature in (COUNTS, WINDOWS, FILES):
        table.row(
            f"a loss cannot be given up: {NAMES[nature]}{LOSS[policy]}",
            Refused(LostRangeError, r"\[30, 45\) .*Restore them, or rebuild.*cannot be given up"),
            nature=nature,
            source=source(45, 0),
            policy=policy,
        )
table.row("retention removes what is in the target", Resume(), source=source(30, 30))
table.row(
    "a batch in part of which retention has removed the part that is done",
    seeded(),
    checkpoint=checkpoint(10, 30, until=(40, 40)),
    source=source(20, 0),
)
table.row(
    "a batch in part that begins with what is still there",
    Resume(),
    checkpoint=checkpoint(10, 30, until=(40, 40)),
    source=source(10, 30),
)
table.row(
    "a batch of several sources that is done is not read again",
    Resume(),
    checkpoint=checkpoint(10, 10, until=(30, 30)),
    nature=FILES,
    source=source(20, 30),
)
table.row(
    "a batch that is done is not read again",
    Resume(),
    checkpoint=checkpoint(10, 10, until=(30, 30)),
    source=source(20, 30),
)
table.row(
    "a loss is told before the checkpoint is",
    Refused(LostRangeError, "Restore them"),
    checkpoint=NO_CHECKPOINT,
    nature=COUNTS,
    source=source(45, 0),
)

table.about = "records are gone that some lanes have"
table.row(
    "a loss under a batch in some lanes is refused as any",
    Refused(LostRangeError, r"t/0 \[30, 50\) \(20 records\).*--accept-loss"),
    HALFWAY,
    ITS_BATCH,
    WHOLE,
    source(45, 0),
)
table.row(
    "the rest of the batch is given up with it, and all lanes have it",
    Resume(lost=(Range("t", 0, 30, 50),)),
    HALFWAY,
    ITS_BATCH,
    WHOLE,
    source(45, 0),
    ACCEPTS,
)
table.row(
    "the other partitions of the batch are still to be written in some lanes",
    seeded(50, 30, furthest=at(50, 40), lost=(Range("t", 0, 30, 50),)),
    replace(HALFWAY, furthest=at(50, 40)),
    checkpoint(30, 30, until=(50, 40)),
    WHOLE,
    source(45, 0),
    ACCEPTS,
)
table.row(
    "a loss beyond the batch",
    seeded(60, 30, lost=(Range("t", 0, 30, 60),)),
    HALFWAY,
    ITS_BATCH,
    WHOLE,
    source(60, 0),
    ACCEPTS,
)
table.row(
    "a loss in a partition of which all lanes have the same",
    seeded(30, 45, furthest=at(50, 45), lost=(Range("t", 1, 30, 45),)),
    HALFWAY,
    ITS_BATCH,
    WHOLE,
    source(0, 45),
    ACCEPTS,
)
table.row(
    "what is left of a batch that saw the current time cannot be repeated",
    Refused(LedgerError, "another current time than before"),
    replace(HALFWAY, furthest=at(50, 40)),
    checkpoint(30, 30, until=(50, 40)),
    TIMED,
    source(45, 0),
    ACCEPTS,
)
table.row(
    "where nothing is left of it, nothing has to be repeated",
    Resume(lost=(Range("t", 0, 30, 50),)),
    HALFWAY,
    ITS_BATCH,
    TIMED,
    source(45, 0),
    ACCEPTS,
)

table.about = "partitions are added"
NEW_TOPIC = source(
    earliest={**at(0, 0), **at(25, topic="u")},
    topic_ids={"t": "first", "u": "third"},
    read=frozenset({"t", "u"}),
)
table.row("an added partition is read from its beginning", Resume(), source=source(0, 0, 0))
table.row("also with state", Resume(), nature=COUNTS, source=source(0, 0, 0))
table.row("also from the ledger", seeded(), checkpoint=OLDER, source=source(0, 0, 0))
for policy in (TO_TABLE, ACCEPTS):
    for nature in (COUNTS, FILES):
        table.row(
            f"an added partition has lost its head: {NAMES[nature]}{LOSS[policy]}",
            Refused(LostRangeError, r"not read: t/2 \[0, 5\) .* rebuild with"),
            nature=nature,
            source=source(0, 0, 5),
            policy=policy,
        )
table.row(
    "an added partition has lost its head",
    Refused(LostRangeError, r"not read: t/2 \[0, 5\) \(5 records\).*--accept-loss"),
    source=source(0, 0, 5),
)
table.row(
    "an added partition has lost its head, which is accepted",
    seeded(30, 30, 5, lost=(Range("t", 2, 0, 5),)),
    source=source(0, 0, 5),
    policy=ACCEPTS,
)
table.row(
    "a new topic begins with what it has",
    seeded(positions={**at(30, 30), **at(25, topic="u")}),
    source=NEW_TOPIC,
)
table.row(
    "a new topic that the checkpoint has begun there",
    Resume(),
    checkpoint=checkpoint(start={**at(30, 30), **at(25, topic="u")}),
    source=NEW_TOPIC,
)
table.row(
    "an anchored pipeline would begin it at 0",
    Refused(LostRangeError, "u/0 is new to pipeline 'p', .* before 25, .* or rebuild"),
    nature=COUNTS,
    source=NEW_TOPIC,
)
table.row(
    "a new topic under a batch in some lanes is no part of that batch",
    seeded(
        positions={**at(30, 30), **at(25, topic="u")},
        furthest={**at(50, 30), **at(25, topic="u")},
    ),
    HALFWAY,
    ITS_BATCH,
    WHOLE,
    NEW_TOPIC,
)
table.row(
    "a topic that is not read may have lost its head",
    Resume(),
    source=replace(NEW_TOPIC, read=frozenset({"t"})),
)


table.about = "a topic is recreated before its first batch is in the ledger"
BEGUN = LedgerState(topic_ids={"t": "first"}, checkpoint_id="query")
PLANNED = replace(FITS, planned=0, committed=None, start={}, end=at(30, 30))
table.row(
    "the batch is of the old one",
    Refused(LostRangeError, "topic 't' was deleted and recreated"),
    BEGUN,
    PLANNED,
    source=OTHER_TOPIC,
)
table.row("none is planned", Resume(), BEGUN, NO_CHECKPOINT, source=OTHER_TOPIC)
table.row("it is the same", Resume(), BEGUN, PLANNED, source=source(0, 0))


@pytest.mark.parametrize(("start", "expected"), table.rows)
def test_a_start(start: Start, expected: Resume | Seed | Refused) -> None:
    check(start, expected)


def test_a_topic_that_changes_while_a_query_runs_is_refused_in_the_same_words() -> None:
    found = refuse_other_topic({"t": "first"}, {"t": "second", "u": "third"}, "p")
    assert found == refuse_source(ledger(), OTHER_TOPIC, TRIMMED, TO_TABLE)
    assert isinstance(found, Refuse)
    assert isinstance(found.exception(), LostRangeError)
    assert refuse_other_topic({"t": "first"}, {"t": "first", "u": "third"}, "p") is None
