"""Recognizing an operation that comes twice, by its id, for producers that cannot be idempotent.

The ids that were seen are rows in the same database, written in the same transaction as what the
handler writes: an id is remembered exactly if its effect is there. Two consumers that meet the
same id at once are settled by the table's primary key.

Memory is bounded by a window: the last `ids` operations, or those of the last `seconds` by the
records' own timestamps, of which one that lies ahead counts as now, or it would have all ids
forgotten. Within the window the answer is exact; an id that returns later may count
as new.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import psycopg

from tallygate.core.record import Record
from tallygate.errors import ConfigError
from tallygate.units import moment


@dataclass(frozen=True)
class Dedup:
    """`id` finds a record's operation id; give a window of `ids` or of `seconds`."""

    id: Callable[[Record], str | int]
    ids: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        if (self.ids is None) == (self.seconds is None):
            raise ConfigError("a dedup needs a window: either ids=… or seconds=….")
        if (self.ids or self.seconds or 0) <= 0:
            raise ConfigError("the window of a dedup must be more than 0.")

    def fresh(
        self, records: Sequence[Record], scope: str, connection: psycopg.Connection
    ) -> list[bool]:
        """For each record whether its operation is new; new ones are remembered from now on."""
        ids = [str(self.id(record)) for record in records]
        seen = _times(records, datetime.now(UTC))
        first = {operation: index for index, operation in reversed(list(enumerate(ids)))}
        order = sorted(first, key=lambda operation: first[operation])
        self._forget(scope, min(seen), connection)
        rows = connection.execute(
            "INSERT INTO tallygate.operation_ids (scope, id, seen_at) "
            "SELECT %s, ids.id, ids.seen_at FROM unnest(%s::text[], %s::timestamptz[]) "
            "WITH ORDINALITY AS ids (id, seen_at, place) ORDER BY ids.place "
            "ON CONFLICT DO NOTHING RETURNING id",
            (scope, order, [seen[first[operation]] for operation in order]),
        ).fetchall()
        inserted = {row[0] for row in rows}
        return [first[op] == index and op in inserted for index, op in enumerate(ids)]

    def _forget(self, scope: str, oldest: datetime, connection: psycopg.Connection) -> None:
        """Drop what has left the window, as the oldest of the records at hand sees it."""
        if self.ids is not None:
            connection.execute(
                "DELETE FROM tallygate.operation_ids WHERE scope = %s AND number <= "
                "(SELECT number FROM tallygate.operation_ids WHERE scope = %s "
                "ORDER BY number DESC OFFSET %s LIMIT 1)",
                (scope, scope, self.ids),
            )
        else:
            connection.execute(
                "DELETE FROM tallygate.operation_ids WHERE scope = %s "
                "AND seen_at < %s - make_interval(secs => %s)",
                (scope, oldest, self.seconds),
            )


def _times(records: Sequence[Record], now: datetime) -> list[datetime]:
    """When the records were made. Kafka takes any number for that: what lies ahead, or before all
    dates, is taken for now."""
    stamps = [moment(record.timestamp) or now for record in records]
    return [min(stamp, now) for stamp in stamps]
