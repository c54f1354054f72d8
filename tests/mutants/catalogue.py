"""All mutants, by the invariant of docs/design.md that each of them breaks."""

from mutants.consumers import CONSUMERS
from mutants.exactly_once import NO_GAP, ONE_TRANSACTION, ONE_WRITER
from mutants.files import FILES
from mutants.hostile import HOSTILE
from mutants.proof import PROOF
from mutants.shown import SHOWN
from mutants.silent_loss import BAD_RECORDS, NOTHING_IN_SILENCE
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
