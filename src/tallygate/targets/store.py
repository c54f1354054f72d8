"""What a sink's store can do for a pipeline besides taking rows: the ledger as a start needs it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from pyspark.sql import types as t

from tallygate.core.decoding import Decoder
from tallygate.core.letters import Letter
from tallygate.core.offsets import Known, Range
from tallygate.kafka.connection import Connection
from tallygate.targets.sink import Sink

__all__ = ["Keeper", "Shape", "Store"]


@dataclass(frozen=True)
class Shape:
    """What the rows look like that a sink is going to get."""

    schema: t.StructType
    carries: bool
    """Whether the rows carry the coordinates of their records."""
    narrow: bool
    """Whether each Spark partition holds the rows of one Kafka partition."""
    stateful: bool
    anchored: bool = False
    """Whether the pipeline needs its checkpoint: for its state, or for what was read so far."""
    exact: bool = False
    """Whether it must be the very one that the ledger goes with, and not an older copy."""
    decoder: Decoder | None = None
    """Given if the frame holds raw records, which the sink decodes; `schema` is the decoded one."""
    source: Connection | None = None
    """Given if the sink also reads these records by itself, from these brokers."""


class Keeper(Protocol):
    """Where the decoding step leaves the records that are unfit. It travels to the workers."""

    def keep(self, letters: list[Letter]) -> None: ...


class Store(Protocol):
    @property
    def target(self) -> str:
        """What the sink is called in messages."""

    @property
    def mirrors(self) -> bool:
        """Whether the positions are to be shown as a consumer group's, as a courtesy."""

    def prepare(self, shape: Shape) -> None:
        """Make or check the target for these rows; raise if it cannot take them."""

    def known(self) -> Known | None:
        """The ledger as it is; None for a pipeline that never ran."""

    def keeper(self) -> Keeper:
        """For the decoding step, with this run's right to write."""

    def begin(self, shape: Shape, checkpoint: str) -> None:
        """Take the next epoch: from here on no older run commits anything."""

    def lose(self, lost: Iterable[Range], reason: str) -> None:
        """Move past a range that the source has lost, and keep that it is lost."""

    def sink(self, shape: Shape) -> Sink: ...

    def remember(self, checkpoint_id: str | None, topic_ids: Mapping[str, str]) -> None:
        """Keep what a later start compares."""

    def letters(self) -> int:
        """How many dead letters there are."""

    def beat(self, progress: Mapping[str, Any]) -> bool:
        """Say that the run is alive, and hear whether it is to stop; raise if it is fenced."""

    def end(self, outcome: str) -> None: ...
