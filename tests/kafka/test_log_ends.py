"""Where logs end, and whether they were cut off below what was read of them."""

from collections.abc import Callable, Mapping

import pytest

from fixtures.retention import retire
from tallygate import Connection, Producer, Stack
from tallygate.core.ledger import LedgerState
from tallygate.core.offsets import Range
from tallygate.engine.source_check import LeaderEpochs
from tallygate.errors import LostRangeError, UnreachableError
from tallygate.kafka.log_ends import LogEnd, cut_points, log_ends

TEN = {0: 10, 1: 20}


@pytest.fixture
def connection(stack: Stack) -> Connection:
    return stack.cluster.connection


def _filled(
    new_topic: Callable[..., str], connection: Connection, records: Mapping[int, int] = TEN
) -> str:
    topic = new_topic(partitions=len(records))
    with Producer(connection) as producer:
        for partition, count in records.items():
            for number in range(count):
                producer.send(topic, str(number), partition=partition)
    return topic


def test_a_log_ends_after_its_last_record(
    connection: Connection, new_topic: Callable[..., str]
) -> None:
    topic = _filled(new_topic, connection)
    ends = log_ends([(topic, 0), (topic, 1)], connection)
    assert {at[1]: end.offset for at, end in ends.items()} == TEN
    assert all(end.epoch >= 0 for end in ends.values())
    assert log_ends([], connection) == {}


def test_a_log_that_has_all_that_was_read_was_not_cut_off(
    connection: Connection, new_topic: Callable[..., str]
) -> None:
    topic = _filled(new_topic, connection)
    ends = log_ends([(topic, 0), (topic, 1)], connection)
    assert cut_points(ends, connection) == {}
    assert cut_points({(topic, 1): ends[topic, 1]._replace(offset=7)}, connection) == {}
    assert cut_points({(topic, 0): LogEnd(0, 7)}, connection) == {}, "nothing was read"
    assert cut_points({}, connection) == {}
    retire(connection, topic, 1, 15)
    overtaken = ends[topic, 1]._replace(offset=7)
    assert cut_points({(topic, 1): overtaken}, connection) == {}, "that is another loss"


def test_a_log_that_has_less_of_an_epoch_was_cut_off_there(
    connection: Connection, new_topic: Callable[..., str]
) -> None:
    topic = _filled(new_topic, connection)
    ends = log_ends([(topic, 0), (topic, 1)], connection)
    known = {(topic, 0): ends[topic, 0]._replace(offset=15), (topic, 1): ends[topic, 1]}
    assert cut_points(known, connection) == {(topic, 0): 10}


def test_of_a_leader_that_no_broker_knows_nothing_is_left(
    connection: Connection, new_topic: Callable[..., str]
) -> None:
    topic = _filled(new_topic, connection)
    assert cut_points({(topic, 0): LogEnd(10, 9_999)}, connection) == {(topic, 0): 0}


def test_the_leader_of_what_is_planned_is_kept(
    connection: Connection, new_topic: Callable[..., str]
) -> None:
    topic = _filled(new_topic, connection)
    at = (topic, 0)
    epoch, asked = log_ends([at], connection)[at].epoch, LeaderEpochs(connection)
    left = [Range(topic, 0, 4, 10), Range("source:files", 0, 0, 3)]
    held = LedgerState(positions={at: 4}, leader_epochs={at: epoch})
    assert asked(left, held) == {at: epoch}
    assert asked(left, LedgerState()) == {at: epoch}
    assert asked(left[1:], LedgerState()) == {}
    assert LeaderEpochs(None)(left, LedgerState()) == {}


def test_a_log_that_was_cut_off_while_a_query_runs(
    connection: Connection, new_topic: Callable[..., str]
) -> None:
    """Below the position it is lost; between that and what is planned it may grow again."""
    topic = _filled(new_topic, connection)
    at, asked = (topic, 0), LeaderEpochs(connection)
    other = LedgerState(positions={at: 4}, leader_epochs={at: 9_999})
    with pytest.raises(LostRangeError, match=rf"{topic}/0 was cut off at 0, .* 4\. Start again"):
        asked([Range(topic, 0, 4, 10)], other)
    with pytest.raises(LostRangeError, match=rf"{topic}/0 was cut off at 10, .* up to 12"):
        asked([Range(topic, 0, 12, 15)], LedgerState(positions={at: 12}))
    with pytest.raises(UnreachableError, match=rf"{topic}/0 ends at 10, and was planned up to 15"):
        asked([Range(topic, 0, 4, 15)], LedgerState(positions={at: 4}))
