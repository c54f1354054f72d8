from collections.abc import Callable

import pytest

from tallygate import Connection, Producer, Stack
from tallygate.core.record import Metadata
from tallygate.errors import DeliveryError

NewTopic = Callable[..., str]


def test_a_send_is_a_future_of_where_the_record_is(stack: Stack, new_topic: NewTopic) -> None:
    topic = new_topic(2)
    called: list[Metadata | None] = []
    with Producer(stack.cluster.connection) as producer:
        futures = [producer.send(topic, f"{n}", key="k", timestamp=1000 + n) for n in range(3)]
        producer.send(topic, None, callback=lambda metadata, error: called.append(metadata))
        producer.flush()
        found = [future.result(0) for future in futures]
    assert [metadata.offset for metadata in found] == [0, 1, 2]
    assert {metadata.partition for metadata in found} == {found[0].partition}
    assert [metadata.timestamp for metadata in found] == [1000, 1001, 1002]
    assert called[0] is not None
    assert called[0].topic == topic


def _nowhere() -> Producer:
    return Producer(Connection.to("127.0.0.1:9"), timeout=0.5)


def test_a_failure_that_nobody_looked_at_is_raised_at_the_end() -> None:
    producer = _nowhere()
    producer.send("t", "1")
    seen = producer.send("t", "2")
    producer._producer.flush(10)
    with pytest.raises(DeliveryError, match="a record for topic 't' failed"):
        seen.result(0)
    with pytest.raises(DeliveryError, match="1 records were not delivered"):
        producer.close()
    producer.close()  # said once


def test_a_failure_that_a_callback_got_is_not_raised_again() -> None:
    errors: list[DeliveryError | None] = []
    with _nowhere() as producer:
        producer.send("t", "1", callback=lambda metadata, error: errors.append(error))
    assert isinstance(errors[0], DeliveryError)


def test_close_says_what_is_not_delivered_in_time() -> None:
    producer = Producer(Connection.to("127.0.0.1:9"), timeout=60)
    producer.send("t", "1")
    with pytest.raises(DeliveryError, match="1 records .* still not acknowledged"):
        producer.close(timeout=0.2)
    producer._producer.purge()


def test_an_error_in_the_with_block_is_the_one_that_is_seen(stack: Stack) -> None:
    with pytest.raises(ZeroDivisionError), _nowhere() as producer:
        producer.send("t", "1")
        _ = 1 / 0
