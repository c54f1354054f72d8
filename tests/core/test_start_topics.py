"""What is done at a start, by what became of the topics that were read."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from fixtures.starts import (
    ACCEPTS,
    COUNTS,
    FITS,
    NO_CHECKPOINT,
    NO_LEDGER,
    TO_TABLE,
    TRIMMED,
    WHOLE,
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
from tallygate.core.forgetting import changes_to_forget
from tallygate.core.ledger import Forget, LedgerState, Lose
from tallygate.core.offsets import Range, forgotten_as, forgotten_at, is_topic, topic_of
from tallygate.core.start_facts import CheckpointState, Refuse, Resume, Seed, SourceState
from tallygate.errors import ConfigError, LedgerError, LostRangeError, TopicError

WHEN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
NAME = "forgotten:20260102T030405Z:u"
BOTH = ledger(
    positions={**at(30, 30), **at(20, topic="u")}, topic_ids={"t": "first", "u": "second"}
)
"""A ledger that follows two topics."""
FORGOTTEN = ledger(
    positions={**at(30, 30), **at(20, topic=NAME)}, topic_ids={"t": "first", NAME: "second"}
)
NAMES_BOTH = checkpoint(start={**at(30, 30), **at(20, topic="u")})


def reading(*topics: str, u: str = "", first: int = 0) -> SourceState:
    """A source that reads these topics; `u` is the id of a topic of that name, if there is one."""
    there = {"t": "first", **({"u": u} if u else {})}
    earliest = {**at(0, 0), **(at(first, topic="u") if u else {})}
    return source(earliest=earliest, topic_ids=there, read=frozenset(topics))


table = Table()
table.about = "a topic is read no more"
for sentence, state, said in (
    (
        "it is gone",
        reading("t"),
        "'u' of pipeline 'p' is gone. If it was renamed or deleted on pur",
    ),
    ("it is left out", reading("t", u="second"), "'u' of pipeline 'p' was read so far, and is not"),
):
    table.row(
        sentence,
        Refused(
            TopicError, f"{said}.* `tallygate forget-topic` .*tallygate.forget_topic, or forget"
        ),
        BOTH,
        NAMES_BOTH,
        source=state,
    )
    table.row(
        f"{sentence}, with state",
        Refused(TopicError, f"{said}.*rebuild .*names the topic, so it cannot be forgotten"),
        BOTH,
        NAMES_BOTH,
        COUNTS,
        source=state,
    )
    table.row(f"{sentence}, and was forgotten", seeded(), FORGOTTEN, NAMES_BOTH, source=state)
    table.row(f"{sentence}, and was forgotten before", Resume(), FORGOTTEN, FITS, source=state)
table.row(
    "what it has lost unread does not matter",
    Refused(TopicError, "is not read any more"),
    BOTH,
    NAMES_BOTH,
    source=reading("t", u="second", first=25),
    policy=ACCEPTS,
)
table.row(
    "the ledger has dropped it with the topic, and the checkpoint names it",
    Refused(TopicError, "'u' .* read up to 20 in partition 0 by the checkpoint .* forget-topic"),
    checkpoint=NAMES_BOTH,
    source=reading("t"),
)
table.row(
    "the ledger has dropped it with the topic, which is there again",
    Refused(TopicError, "'u' .* read up to 20 in partition 0 by the checkpoint .* forget-topic"),
    checkpoint=NAMES_BOTH,
    source=reading("t", "u", u="third"),
)
table.row(
    "it was planned, and nothing of it was written",
    seeded(),
    checkpoint=checkpoint(start=at(30, 30), end={**at(40, 40), **at(9, topic="u")}, planned=4),
    source=reading("t", u="second"),
)
table.row(
    "the other topics go on in lanes",
    seeded(furthest=at(50, 30)),
    replace(FORGOTTEN, furthest={**FORGOTTEN.positions, ("t", 0): 50}),
    NAMES_BOTH,
    WHOLE,
    reading("t"),
)
table.row(
    "all lanes have what was forgotten",
    seeded(),
    replace(FORGOTTEN, furthest={**FORGOTTEN.positions, (NAME, 0): 25}),
    NAMES_BOTH,
    WHOLE,
    reading("t"),
)
table.row(
    "no topic is left",
    seeded(positions={}),
    replace(FORGOTTEN, positions=at(20, topic=NAME)),
    checkpoint(start=at(20, topic="u")),
    source=reading("t"),
)

table.about = "a topic comes back"
table.row(
    "another one of its name is a new one",
    seeded(),
    FORGOTTEN,
    NAMES_BOTH,
    source=reading("t", "u", u="third"),
)
table.row(
    "another one has begun in the new checkpoint",
    Resume(),
    FORGOTTEN,
    checkpoint(start=at(30, 30), end={**at(40, 40), **at(9, topic="u")}, planned=4),
    source=reading("t", "u", u="third"),
)
table.row(
    "the same one goes on from where it was",
    seeded(positions={**at(30, 30), **at(20, topic="u")}),
    FORGOTTEN,
    FITS,
    source=reading("t", "u", u="second"),
)
table.row(
    "the same one before the checkpoint was made again",
    Resume(),
    FORGOTTEN,
    NAMES_BOTH,
    source=reading("t", "u", u="second"),
)
table.row(
    "the same one with what it still has",
    seeded(positions={**at(30, 30), **at(25, topic="u")}),
    FORGOTTEN,
    NAMES_BOTH,
    source=reading("t", "u", u="second", first=25),
)

table.about = "the checkpoint alone knows"
for policy in (NO_LEDGER, replace(NO_LEDGER, accept_loss=True)):
    for nature in (TRIMMED, COUNTS):
        table.row(
            f"what is gone: {nature} {policy.accept_loss}",
            Refused(
                LostRangeError, r"t/0 \[30, 45\) \(15 records\).*, or remove the checkpoint /ch"
            ),
            None,
            nature=nature,
            source=source(45, 0),
            policy=policy,
        )
table.row(
    "that a topic is gone",
    Refused(TopicError, "reads topic 'u' no more, .*, or remove the checkpoint /checkpoint: read"),
    None,
    NAMES_BOTH,
    source=reading("t"),
    policy=NO_LEDGER,
)
table.row(
    "what is gone of a first batch, before the ledger knows any",
    Refused(LostRangeError, "remove the checkpoint"),
    LedgerState(),
    CheckpointState(path="/checkpoint", id="query", planned=0, start=at(5), end=at(50)),
    source=source(9),
)
table.row("nothing before its first batch", Resume(), None, NO_CHECKPOINT, source=source(9))


@pytest.mark.parametrize(("start", "expected"), table.rows)
def test_a_start(start: Start, expected: Resume | Seed | Refused) -> None:
    check(start, expected)


def _to_forget(
    topic: str,
    ledger: LedgerState | None = BOTH,
    checkpoint: CheckpointState = NAMES_BOTH,
    nature: object = TRIMMED,
    source: SourceState | None = None,
) -> tuple[Lose | Forget, ...] | Refuse:
    return changes_to_forget(
        topic,
        at=WHEN,
        ledger=ledger,
        checkpoint=checkpoint,
        source=source or reading("t"),
        nature=TRIMMED if nature is TRIMMED else COUNTS,
        policy=TO_TABLE,
    )


def _said(found: object) -> tuple[type[Exception], str]:
    assert isinstance(found, Refuse)
    return found.error, found.message


def test_a_topic_is_forgotten_under_a_name_that_no_topic_can_have() -> None:
    (change,) = forgotten = _to_forget("u")  # type: ignore[misc]
    assert forgotten == (Forget(NAME, (Range("u", 0, 0, 20),)),)
    assert forgotten_as("u", WHEN) == NAME
    assert (topic_of(NAME), forgotten_at(NAME), topic_of("u")) == ("u", WHEN, "u")
    assert not is_topic(NAME)
    after = change.applied(BOTH)
    assert (after.positions, after.topic_ids) == (FORGOTTEN.positions, FORGOTTEN.topic_ids)
    assert after.begun == {(NAME, 0): 0}


def test_what_some_lanes_have_of_it_is_given_up_first() -> None:
    halfway = replace(BOTH, furthest={**BOTH.positions, ("u", 0): 25})
    assert _to_forget("u", halfway) == (
        Lose((Range("u", 0, 20, 25),), "forgotten with its topic"),
        Forget(NAME, (Range("u", 0, 0, 25),)),
    )


def test_what_the_ledger_has_dropped_is_forgotten_as_the_checkpoint_has_it() -> None:
    found = _to_forget("u", ledger())
    assert found == (Forget(NAME, (Range("u", 0, 0, 20),)),)


def test_a_topic_whose_place_another_one_took_is_forgotten_while_that_is_read() -> None:
    assert not isinstance(_to_forget("u", source=reading("t", "u", u="third")), Refuse)
    fewer = replace(BOTH, positions={**BOTH.positions, ("u", 1): 5}, topic_ids={"t": "first"})
    assert not isinstance(_to_forget("u", fewer, source=reading("t", "u", u="third")), Refuse)


def test_what_cannot_be_forgotten() -> None:
    error, said = _said(_to_forget("w"))
    assert error is ConfigError
    assert said == "pipeline 'p' has no topic 'w' to forget; it has read: t, u."
    for held in (FITS, NAMES_BOTH):  # a second time, before a new checkpoint is made and after
        error, said = _said(_to_forget("u", FORGOTTEN, held))
        assert (error, "has no topic 'u'" in said) == (ConfigError, True)
    error, said = _said(_to_forget("u", source=reading("t", "u", u="second")))
    assert error is ConfigError
    assert "still reads topic 'u': take it out of the source first" in said
    error, said = _said(_to_forget("u", nature=COUNTS))
    assert error is LedgerError
    assert said.endswith("To go on without the topic, rebuild with `tallygate rebuild`.")
