"""What is to be run: a streaming frame, and where it goes."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from pyspark.sql import DataFrame

from tallygate.core.decoding import Decoder
from tallygate.engine.progress import Progress
from tallygate.kafka.connection import Connection
from tallygate.spark.checkpoint import Checkpoint
from tallygate.spec import DeadLetters
from tallygate.targets.base import LetterKeeper, Target


class StopRequested(Exception):  # noqa: N818 - no error: how a query that is asked to stop ends
    """The run was asked to stop, and the batch at hand is left for the next one."""


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """A streaming frame, and where it goes."""

    name: str
    build: Callable[[LetterKeeper, Checkpoint | None, Collection[str] | None], DataFrame]
    """Makes the frame; without a checkpoint one to look at, for which no static side is read. If
    it is known which columns of its sources are needed, the others are left out."""
    target: Target
    checkpoint: str
    connection: Connection | None
    """To the source's brokers, if any source is Kafka."""
    mode: str = "append"
    trigger: Mapping[str, str | bool] = field(default_factory=dict)
    decoder: Decoder | None = None
    """Given if the frame holds raw records."""
    fetches: bool = False
    """Whether records may be read in the tasks that decode them, in place of Spark's reader."""
    small: int = 20_000
    """Records up to which a batch is small, and Spark's reader quicker: it need not be planned."""
    limits: DeadLetters = field(default_factory=DeadLetters)
    on_error: str = "stop"
    """What is done with a record on which the transform fails: `stop` or `dead-letter`."""
    accept_loss: bool = False
    accept_new_target: bool = False
    on_progress: Callable[[Progress], None] = lambda _: None
    note: Callable[[str], None] = lambda _: None
    ready: Callable[[], None] = lambda: None
    """Raises if something that the frame needs cannot be read, before anything is taken over."""
    stale: Callable[[], bool] = lambda: False
    """Whether a static side has changed, so that the query is to be started again."""
    adopts: bool = False
    """Whether a checkpoint of batches that the ledger does not know may be taken over."""
    shuffle_partitions: int | None = None
    """As many as the user asks for; None leaves the choice."""
    instead: str = "use mode upsert with the groups as the key"
    """What to do with groups that cannot be appended, for messages."""
    fingerprint: str | None = None
    """What rows are made by (see `engine.fingerprint`), where that is known."""
    lists_letters: str = ""
    """The command that lists the dead letters, if there is one."""
    where: str = "the transform"
    """What the transform is called in messages."""

    @property
    def cure(self) -> str:
        """How such a run is begun from the start: what can be swapped in one step is rebuilt."""
        if self.target.traits.is_topic or self.adopts:
            return "start over with another name, another target and another checkpoint"
        return "rebuild with `tallygate rebuild`"
