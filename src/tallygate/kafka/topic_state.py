"""What Kafka says of brokers, topics and partitions at one moment, and what is wrong with them."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Broker:
    id: int
    address: str
    rack: str | None


@dataclass(frozen=True)
class Partition:
    """A partition at one moment. `size` is None if it was not asked for, or is not known."""

    id: int
    leader: int | None
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    begin: int | None
    end: int | None
    size: int | None
    min_in_sync: int

    @property
    def preferred_leader(self) -> int:
        return self.replicas[0]

    @property
    def flags(self) -> tuple[str, ...]:
        """What is wrong with the partition, worst first."""
        flags = {
            "no leader": self.leader is None,
            "below min ISR": len(self.in_sync) < min(self.min_in_sync, len(self.replicas)),
            "under-replicated": len(self.in_sync) < len(self.replicas),
            "leader not preferred": self.leader not in (None, self.preferred_leader),
        }
        return tuple(flag for flag, holds in flags.items() if holds)


@dataclass(frozen=True)
class Topic:
    name: str
    partitions: tuple[Partition, ...]
    configs: Mapping[str, str]
    """The configs that differ from the broker's defaults."""
    min_in_sync: int

    @property
    def replication(self) -> int:
        return max(len(partition.replicas) for partition in self.partitions)

    @property
    def records(self) -> int | None:
        """Offsets between begin and end, which counts transaction markers and compacted gaps."""
        if any(p.begin is None or p.end is None for p in self.partitions):
            return None
        return sum((p.end or 0) - (p.begin or 0) for p in self.partitions)

    @property
    def size(self) -> int | None:
        if any(partition.size is None for partition in self.partitions):
            return None
        return sum(partition.size or 0 for partition in self.partitions)
