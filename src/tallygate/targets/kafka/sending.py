"""Records on their way to a topic: rows, dead letters, and what becomes of them."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Producer

from tallygate.core.letters import ROW, Letter

__all__ = ["Header", "RecordRows", "produce", "send_letters"]

Header = tuple[str, str | bytes | None]


@dataclass(frozen=True)
class RecordRows:
    """A block of records to send, by columns: that is how Arrow gives them, and it is quickest."""

    values: list[bytes | None]
    keys: list[Any]
    headers: list[list[Header]] | None

    def __iter__(self) -> Iterator[tuple[Any, Any, Any]]:
        none: list[Any] = [None] * len(self.values)
        return zip(self.values, self.keys, self.headers or none, strict=True)

    def without(self, indexes: Collection[int]) -> "RecordRows":
        left = [record for index, record in enumerate(self) if index not in indexes]
        values, keys, headers = ([record[column] for record in left] for column in range(3))
        return RecordRows(values, keys, headers if self.headers else None)


def produce(producer: Producer, topic: str, rows: RecordRows) -> None:
    """Hand a block to the producer, waiting whenever its queue is full."""
    queue = producer.produce
    for value, key, headers in rows:
        while True:
            try:
                queue(topic, value, key, headers=headers)
                break
            except BufferError:
                producer.poll(0.05)


def _letter_headers(letter: Letter, pipeline: str) -> list[Header]:
    marks: list[Header] = [
        ("tallygate.pipeline", pipeline),
        ("tallygate.topic", letter.topic),
        ("tallygate.partition", str(letter.partition)),
        ("tallygate.offset", str(letter.offset)),
        ("tallygate.timestamp", str(letter.time_ms or 0)),
        ("tallygate.tries", "1"),
        ("tallygate.cause", letter.cause[:1000]),
    ]
    if letter.is_row:
        marks.append((ROW, "1"))
    return [*letter.headers, *marks]


def send_letters(producer: Producer, topic: str, letters: Iterable[Letter], pipeline: str) -> None:
    given = list(letters)
    rows = RecordRows(
        [each.value for each in given],
        [each.key for each in given],
        [_letter_headers(each, pipeline) for each in given],
    )
    produce(producer, topic, rows)
