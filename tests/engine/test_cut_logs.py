"""Logs that were cut off below what was read of them, and have grown again or not."""

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from fixtures.audits import audited
from fixtures.flows import SCHEMA, Flow
from tallygate import Kafka, Producer, Stack
from tallygate.engine.progress import Progress
from tallygate.errors import LostRangeError, TallygateError
from tallygate.settings import Settings
from tallygate.waiting import wait_until

UNKNOWN = 9_999
"""An epoch that no broker knows: the log has nothing of that leader's."""


def _set(flow: Flow, columns: str) -> None:
    flow.execute(
        f"UPDATE tallygate.positions SET {columns} WHERE pipeline = '{flow.name}' AND partition = 0"
    )


def _epochs(flow: Flow) -> list[int | None]:
    query = "SELECT leader_epoch FROM tallygate.positions WHERE pipeline = '{}' ORDER BY partition"
    return flow.rows(query.format(flow.name))


def test_a_log_that_was_cut_off_is_refused_until_that_is_accepted(flow: Flow) -> None:
    flow.send(30, partition=0)
    flow.run()
    assert _epochs(flow) == [0, 0, 0]
    _set(flow, f"leader_epoch = {UNKNOWN}")
    flow.send(20, partition=0)
    said = rf"cut off below .*{flow.name}/0 \[0, 30\) \(30 records\).*rebuild.*--accept-loss"
    with pytest.raises(LostRangeError, match=said):
        flow.run()
    assert any("kept as lost, and passed over" in note for note in flow.run(accept_loss=True))
    flow.check()
    assert _epochs(flow) == [0, 0, 0]
    assert audited(flow).lost == 30
    flow.send(10, partition=0)
    flow.run()
    flow.check()


def test_a_log_that_is_shorter_than_what_was_read_cannot_be_gone_on_with(flow: Flow) -> None:
    flow.send(30, partition=0)
    flow.run()
    _set(flow, "next_offset = 40")
    for accepted in (False, True):
        with pytest.raises(LostRangeError, match=r"0 \[30, 40\) \(10 records, and it ends at 30"):
            flow.run(accept_loss=accepted)


def test_a_log_that_is_cut_off_while_running(flow: Flow) -> None:
    """The next batch of another leader finds it."""
    flow.send(60, partition=0)

    def cut(progress: Progress) -> None:
        if progress.batch == 0:
            _set(flow, f"leader_epoch = {UNKNOWN}")

    pipeline = flow.pipeline(source=Kafka(flow.name, schema=SCHEMA, max_records=30))
    with pytest.raises(LostRangeError, match=r"cut off below .*\[0, 30\) .*--accept-loss"):
        pipeline.run(until="available", settings=flow.settings, spark=flow.spark, on_progress=cut)
    assert flow.rows() == list(range(30))


def _send_alone(flow: Flow, count: int) -> None:
    """By a producer of its own: one that saw records get lost refuses to go on."""
    with Producer(flow.stack.cluster.connection) as producer:
        for number in range(flow.sent, flow.sent + count):
            row = {"id": number, "account": f"a{number % 5}"}
            producer.send(flow.name, json.dumps(row), partition=0)
    flow.sent += count


@pytest.fixture
def own_stack(settings: Settings) -> Iterator[Stack]:
    """Two brokers, of which one can be without the other."""
    with Stack("cut", brokers=2, controllers=1, purge=True, settings=settings) as running:
        yield running


def test_an_unclean_election_is_found(
    own_stack: Stack, spark: SparkSession, tmp_path: Path
) -> None:
    """A replica that was away leads the partition, and lacks the last records that were read. By
    the next start it has as many others."""
    cluster, flow = own_stack.cluster, Flow("cut_off", own_stack, spark, tmp_path)
    unclean = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
    flow.topics.alter(flow.name, configs=unclean)

    def leader() -> int | None:
        with suppress(TallygateError):
            return flow.topics.describe(flow.name, sizes=False).partitions[0].leader
        return None

    _send_alone(flow, 20)
    first = wait_until(leader, 30, "no leader")
    assert first is not None
    (second,) = (each.id for each in own_stack.spec.cluster.brokers if each.id != first)
    cluster.node(second).process.kill()
    cluster.wait_unregistered(second)
    _send_alone(flow, 10)
    flow.run()
    assert flow.rows() == list(range(30))
    cluster.node(first).process.kill()
    cluster.wait_unregistered(first)
    cluster.node(second).start()
    wait_until(lambda: leader() == second, 60, "no unclean election")
    _send_alone(flow, 30)
    cluster.start_node(first)
    with pytest.raises(LostRangeError, match=r"cut off below .*/0 \[20, 30\) \(10 records\)"):
        flow.run()
    flow.run(accept_loss=True)
    assert flow.rows() == [*range(30), *range(40, 60)]
    assert audited(flow).lost == 10
