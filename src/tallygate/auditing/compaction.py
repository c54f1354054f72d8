"""What compaction has removed from a source since the pipeline read it.

The rows of such records are right, and nothing tells them from rows that no record ever gave: so
they are unknown. A topic whose policy cannot be asked for, where the right to do so lacks, may be
compacted.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from tallygate.errors import TallygateError
from tallygate.kafka.connection import Connection
from tallygate.kafka.topics import Topics

Policy = Callable[[str], str | None]


def cleanup_policy(connection: Connection) -> Policy:
    """What a topic's policy is; None if that cannot be asked for."""

    def ask(topic: str) -> str | None:
        try:
            return Topics(connection).effective_configs(topic).get("cleanup.policy")
        except TallygateError:
            return None

    return ask


@dataclass(frozen=True)
class Compacted:
    """Topics from which compaction may have removed records."""

    known: tuple[str, ...]
    unsaid: tuple[str, ...] = ()
    """Those whose policy cannot be asked for."""

    @classmethod
    def among(cls, topics: Iterable[str], policy: Policy) -> "Compacted":
        policies = {topic: policy(topic) for topic in sorted(set(topics))}
        return cls(
            tuple(topic for topic, said in policies.items() if "compact" in (said or "")),
            tuple(topic for topic, said in policies.items() if said is None),
        )

    @property
    def topics(self) -> tuple[str, ...]:
        return (*self.known, *self.unsaid)

    def rows(self, counts: Mapping[str, int]) -> list[str]:
        """What to say of rows whose records are not there any more, by how many there are."""
        said = {topic: f"compaction has removed from {topic} since" for topic in self.known}
        said |= {
            topic: f"are not in {topic}, and its cleanup.policy could not be asked for"
            for topic in self.unsaid
        }
        return [
            f"{count} rows are of records that {said[topic]}"
            for topic, count in sorted(counts.items())
        ]

    def results(self, *, records: int, offsets: int) -> str | None:
        """Why results of all records may differ, if so many were read of so many offsets: where
        each has its record, compaction has removed none."""
        if not self.topics or records >= offsets:
            return None
        return f"compaction may have removed records from {', '.join(self.topics)} since"
