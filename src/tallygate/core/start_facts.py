"""The facts that a start is decided from, and the three decisions there are (see `core.start`)."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tallygate.core.offsets import Range, TopicPartition
from tallygate.errors import TallygateError


@dataclass(frozen=True, kw_only=True)
class CheckpointState:
    """What Spark's checkpoint says of the query and of its next batch."""

    path: str
    id: str | None = None
    """The query's, once it was started."""
    planned: int | None = None
    committed: int | None = None
    start: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Where the next batch begins; Spark begins partitions that are not listed at 0."""
    end: Mapping[TopicPartition, int] | None = None
    """Where it ends, if it is planned."""
    adopted: int | None = None
    """The last batch that the ledger need not know; -1 if it must know all."""
    shuffle_partitions: int | None = None
    """In how many of them the state is kept."""

    @property
    def is_begun(self) -> bool:
        return self.id is not None or self.planned is not None


@dataclass(frozen=True, kw_only=True)
class SourceState:
    """What Kafka says of the topics that the pipeline reads or that its ledger knows."""

    topic_ids: Mapping[str, str]
    """Of the topics that exist."""
    earliest: Mapping[TopicPartition, int]
    """The first offset that is still there, of every partition of these topics."""
    read: frozenset[str]
    """The topics that the pipeline reads now."""
    ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Where the logs end now."""
    cut: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Where logs were cut off below what the ledger knows of them, by the epochs of their leaders:
    from there on they have other records, or none."""


@dataclass(frozen=True, kw_only=True)
class RowsNature:
    """What a pipeline's rows are made of, as far as a start depends on it."""

    stateful: bool = False
    exact: bool = False
    """Whether another checkpoint than the very one that the ledger goes with, even an older copy
    of it, would give other rows for the same positions."""
    divisible: bool = False
    """Whether a part of a batch can be written alone."""
    sees: str | None = None
    """What a batch sees besides its records, which its own checkpoint alone can repeat."""

    @property
    def anchored(self) -> bool:
        """Whether the pipeline needs its checkpoint."""
        return self.stateful or self.exact


@dataclass(frozen=True, kw_only=True)
class StartPolicy:
    """What the user asks for, and what things are called in messages."""

    pipeline: str
    target: str
    cure: str
    """How the pipeline is begun from the start."""
    accept_loss: bool = False
    target_id: str | None = None
    """What the target is in its store, where the ledger is not a part of it."""
    accept_new_target: bool = False
    adopts: bool = False
    """Whether a checkpoint of batches that the ledger does not know may be taken over."""
    keeps_ledger: bool = True
    shuffle_partitions: int | None = None
    """As many as the user asks for; None leaves the choice."""


@dataclass(frozen=True)
class Resume:
    """Go on with the checkpoint as it is."""

    lost: tuple[Range, ...] = ()
    """Ranges to give up first."""
    adopt: int | None = None
    """The number to keep with the checkpoint as the last batch that the ledger need not know."""
    retarget: str | None = None
    """The target that the ledger is to be of from here on."""
    cut: tuple[Range, ...] = ()
    """Ranges that the target has, and the source has no more."""


@dataclass(frozen=True, kw_only=True)
class Seed:
    """Begin a new checkpoint where the ledger is."""

    positions: Mapping[TopicPartition, int]
    furthest: Mapping[TopicPartition, int] | None
    """Where its first batch ends, if that one is in some lanes and not in others."""
    lost: tuple[Range, ...]
    """Ranges to give up first."""
    set_aside: bool
    """Whether there is an old checkpoint to set aside."""
    adopt: int | None
    retarget: str | None = None
    """The target that the ledger is to be of from here on."""
    cut: tuple[Range, ...] = ()
    """Ranges that the target has, and the source has no more."""


@dataclass(frozen=True)
class Refuse:
    """Do not start, and say why and what to do."""

    error: type[TallygateError]
    message: str

    def exception(self) -> TallygateError:
        return self.error(self.message)


Decision = Resume | Seed | Refuse
