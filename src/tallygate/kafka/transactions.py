"""Many transactions by one producer after the other, none of which an older request can end.

librdkafka sends a request again, over a new connection, when its answer does not come. The first
one may still be under way, and nothing in it says which transaction it was for (librdkafka has no
KIP-890): an EndTxn that comes late ends the transaction that the producer has open by then. It
commits one half of that, or throws away records that were acknowledged.

Opening a producer of the same id raises the epoch, and the broker refuses what is of an older one.
So a producer runs another transaction only if the one before was committed, and no request has
timed out and no connection was lost since the producer was opened. librdkafka says so in its log
alone: it calls no callback when it tries again by itself.
"""

import time
from typing import Any

from confluent_kafka import KafkaException, Producer

from tallygate.kafka import clients
from tallygate.kafka.connection import Connection
from tallygate.kafka.producer import ANSWER_TIMEOUT, Failures, abort, open_transactions

UNANSWERED = ("FAIL", "REQTMOUT")
"""What librdkafka calls a connection that was lost, and a request that timed out. It says the first
of each in any case, and may be silent about those that follow."""
HEARD = {"log_level": 6, "log_connection_close": True}
"""A log that says so, whatever the connection's own properties are."""


class TransactionalProducer:
    """Runs one transaction after the other, until it is spent; then its user opens it again.

    Another program may have had the id meanwhile, and is fenced by that. So the user asks the
    target where it is before going on, unless something else fences it too."""

    def __init__(
        self,
        connection: Connection,
        transactional_id: str,
        failures: Failures | None = None,
        **properties: Any,
    ) -> None:
        self._connection, self._id, self._failures = connection, transactional_id, failures
        self._properties = properties
        self.raw: Producer
        self.open()

    def open(self, **properties: Any) -> None:
        """End what an older producer of this id left open, and fence it for good. `properties` are
        changed from now on."""
        self._properties |= properties
        self._began = self._committed = 0
        self._log = _Log()
        self.raw = open_transactions(
            self._connection,
            self._id,
            self._failures,
            **{**self._properties, **HEARD, "logger": self._log},
        )

    @property
    def is_spent(self) -> bool:
        """Whether it must be opened again before the next transaction. What went wrong before the
        first one does not count: no EndTxn was under way by then."""
        self.raw.poll(0)  # serves the log
        return self._began != self._committed or (self._began > 0 and self._log.is_unanswered)

    def begin(self) -> None:
        self.raw.begin_transaction()
        self._began += 1

    def commit(self) -> None:
        """Commit. A commit that asks to be tried again may be, for as long as any answer is waited
        for: who commits has more to do. After that, whether it was committed is unknown."""
        until = time.monotonic() + ANSWER_TIMEOUT
        while True:
            try:
                self.raw.commit_transaction(max(until - time.monotonic(), 0))
                break
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() >= until:
                    raise
        self._committed += 1

    def abort(self) -> None:
        abort(self.raw)


class _Log:
    """The log of one producer, on its way to the log of all."""

    def __init__(self) -> None:
        self.is_unanswered = False

    def log(self, level: int, text: str, *given: Any) -> None:
        if given and given[0] in UNANSWERED:
            self.is_unanswered = True
        clients.LOGGER.log(level, text, *given)
