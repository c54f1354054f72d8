"""Unfit records of a pipeline into Kafka: the topic that keeps them, and how many there are."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaException, TopicPartition

from tallygate.core.letters import MARKER, Letter
from tallygate.core.offsets import MovedError, Place, Range
from tallygate.errors import UnreachableError
from tallygate.kafka import clients
from tallygate.kafka.connection import Connection
from tallygate.kafka.fetch import HEADERS, fetch
from tallygate.kafka.producer import ANSWER_TIMEOUT
from tallygate.kafka.topics import Topics
from tallygate.targets.kafka.ledger import GroupClaim, Held, Names, commit_offsets
from tallygate.targets.kafka.sending import send_letters
from tallygate.targets.task_report import telling

__all__ = ["LetterCount", "LetterTopic"]


@dataclass(frozen=True)
class LetterTopic:
    """Keeps unfit records in a topic, each once: a transaction of the record's own partition holds
    the letters and how far they go, and letters that are there already are left out."""

    connection: Connection
    topic: str
    claim: GroupClaim
    names: Names

    def keep(self, letters: list[Letter]) -> None:
        with telling(_passes):
            self._keep_all(letters)

    def _keep_all(self, letters: list[Letter]) -> None:
        for place in sorted({(each.topic, each.partition) for each in letters}):
            own = [each for each in letters if (each.topic, each.partition) == place]
            self._keep(place, own)

    def _keep(self, place: Place, letters: list[Letter]) -> None:
        def new(held: Mapping[Place, Held]) -> list[Letter]:
            return [each for each in letters if place not in held or each.offset >= held[place][0]]

        def offsets(held: Mapping[Place, Held]) -> list[TopicPartition]:
            last = max((each.offset for each in new(held)), default=None)
            if last is None:
                return []
            start = held[place][0] if place in held else 0
            return self.claim.offsets([Range(*place, start, last + 1)], held)

        def rows(producer: Any, held: Mapping[Place, Held]) -> None:
            send_letters(producer, self.topic, new(held), self.claim.pipeline)

        name = self.names.letters_id(place)
        commit_offsets(self.connection, self.claim, name, [place], offsets, rows)


def _passes(error: Exception) -> bool:
    return isinstance(error, KafkaException | MovedError | UnreachableError)


class LetterCount:
    """How many letters of a pipeline a topic holds, of which only the new ones are read. There may
    be letters of others in it, and marks that say which were replayed."""

    def __init__(self, topics: Topics, topic: str, pipeline: str) -> None:
        self._pipeline = pipeline.encode()
        self._connection = topics.connection
        self._places = [(topic, n) for n in range(topics.partition_counts()[topic])]
        self._consumer = clients.consumer(self._connection)
        self._at: dict[Place, int] = {}
        self.counted = 0

    def count(self) -> int:
        for place in self._places:
            first, end = clients.ends(self._consumer, place, self._connection, ANSWER_TIMEOUT)
            new = Range(*place, max(first, self._at.get(place, 0)), end)
            for block in fetch([new], self._connection, headers=True):
                self.counted += sum(map(self._is_ours, block.column(HEADERS.name).to_pylist()))
            self._at[place] = end
        return self.counted

    def _is_ours(self, headers: list[dict[str, Any]] | None) -> bool:
        found = {each["key"]: each["value"] for each in headers or ()}
        return found.get("tallygate.pipeline") == self._pipeline and MARKER not in found

    def close(self) -> None:
        self._consumer.close()
