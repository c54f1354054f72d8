"""What becomes of a transaction that fails: refused, taken over by another, or not known."""

from collections.abc import Callable

import pytest

from tallygate import Connection, Stack, Topics
from tallygate.core.offsets import MovedError
from tallygate.kafka.producer import Failures
from tallygate.settings import Settings
from tallygate.targets.base import RefusedRowsError, UnknownOutcomeError
from tallygate.targets.kafka.ledger import open_producer
from tallygate.targets.kafka.sending import transaction


@pytest.fixture
def connection(small_stack: Stack) -> Connection:
    return small_stack.cluster.connection


@pytest.mark.parametrize(
    ("longest", "expected"), [(60.0, MovedError), (0.0, UnknownOutcomeError)], ids=["soon", "late"]
)
def test_one_that_another_took_over(
    connection: Connection,
    fill: Callable[..., str],
    longest: float,
    expected: type[Exception],
) -> None:
    """Kafka does the same to one that takes longer than it may. Whether its commit had arrived is
    not known then: the ledger is asked, and what may be why is in the text."""
    topic, failures, name = fill(0, partitions=1), Failures(), f"taken/{longest}"
    producer = open_producer(connection, name, failures)
    with (
        pytest.raises(
            expected,
            match="fenced" if longest else r"\(transaction.timeout.ms\).*checkpoint is removed",
        ),
        transaction(producer, failures, longest),
    ):
        producer.produce(topic, b"v")
        producer.flush()
        open_producer(connection, name)


def test_a_refused_record_is_why_however_long_it_took(
    connection: Connection, fill: Callable[..., str], settings: Settings
) -> None:
    topic, failures = fill(0, partitions=1), Failures()
    Topics(connection, settings).alter(topic, configs={"max.message.bytes": "1000"})
    producer = open_producer(connection, "refused", failures)
    with (
        pytest.raises(RefusedRowsError, match="refuses a record"),
        transaction(producer, failures, 0.0),
    ):
        producer.produce(topic, b"v" * 5000)
        producer.flush()
