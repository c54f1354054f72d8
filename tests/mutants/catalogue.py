"""All mutants, by the invariant of docs/design.md that each of them breaks."""

from mutants.bad_records import BAD_RECORDS
from mutants.consumers import CONSUMERS
from mutants.exactly_once import NO_GAP, ONE_TRANSACTION
from mutants.files import FILES
from mutants.hostile import HOSTILE
from mutants.one_writer import ONE_WRITER
from mutants.proof import PROOF
from mutants.shown import SHOWN
from mutants.silent_loss import NOTHING_IN_SILENCE
from mutants.topics import TOPICS

__all__ = ["MUTANTS"]

MUTANTS = (
    *NO_GAP,
    *ONE_TRANSACTION,
    *ONE_WRITER,
    *NOTHING_IN_SILENCE,
    *BAD_RECORDS,
    *PROOF,
    *CONSUMERS,
    *FILES,
    *HOSTILE,
    *SHOWN,
    *TOPICS,
)
