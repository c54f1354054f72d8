"""A query that is ended from outside, and counts as failed and not as stopped by its user."""

from collections.abc import Callable
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery


def interrupt(query: StreamingQuery) -> None:
    """Interrupt the thread of a query, as `stop` does once it has said that this is meant. Without
    that word Spark takes it for a failure, and reports it to all who wait for queries."""
    running: Any = query._jsq
    running.streamingQuery().queryExecutionThread().interrupt()


class WatchedQuery(StreamingQuery):
    """A query that says why it was ended: Spark knows only that it was interrupted."""

    def __init__(self, query: StreamingQuery, failure: Callable[[], Exception | None]) -> None:
        super().__init__(query._jsq)
        self._failure = failure

    def awaitTermination(self, timeout: int | None = None) -> bool | None:  # noqa: N802 - Spark's
        try:
            ended = super().awaitTermination(timeout)
        except StreamingQueryException:
            if self._failure() is None:
                raise
            ended = True
        why = None if ended is False else self.exception()
        if why is not None:
            raise why from self._failure()
        return ended

    def exception(self) -> StreamingQueryException | None:
        failure = self._failure()
        if failure is None or self.isActive:
            return super().exception()
        return StreamingQueryException(f"{type(failure).__name__}: {failure}")
