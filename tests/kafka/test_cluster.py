"""What a cluster is, without starting one; starting is shown by the stack's tests."""

from pathlib import Path

import pytest

from tallygate.errors import ConfigError, NodeError, StackError
from tallygate.kafka.cluster import Cluster, ClusterSpec
from tallygate.process import RECORD
from tallygate.settings import Settings


def _plan(brokers: int = 3, controllers: int = 0, racks: tuple[str, ...] = ()) -> ClusterSpec:
    return ClusterSpec.plan(brokers, controllers, iter(range(10_000, 10_100)), racks)


def test_combined_nodes_are_brokers_and_voters() -> None:
    spec = _plan()
    assert [node.id for node in spec.brokers] == [node.id for node in spec.voters] == [1, 2, 3]
    assert len(spec.ports) == 6


def test_dedicated_controllers_are_numbered_apart() -> None:
    spec = _plan(2, 3, ("a", "b"))
    assert [node.id for node in spec.brokers] == [1, 2]
    assert [node.id for node in spec.voters] == [101, 102, 103]
    assert [node.rack for node in spec.brokers] == ["a", "b"]


def test_a_new_broker_joins_without_a_vote() -> None:
    grown = _plan().with_broker((20_000, 20_001), "z")
    assert [node.id for node in grown.brokers] == [1, 2, 3, 4]
    assert [node.id for node in grown.voters] == [1, 2, 3]


def test_moved_ports_keep_everything_else() -> None:
    spec = _plan(2, 1)
    moved = spec.with_ports(range(20_000, 20_010))
    assert not moved.ports & spec.ports
    assert moved.cluster_id == spec.cluster_id
    assert [node.roles for node in moved.nodes] == [node.roles for node in spec.nodes]


def test_a_cluster_needs_a_broker() -> None:
    with pytest.raises(ConfigError, match="at least one broker"):
        _plan(0)


def test_the_spec_survives_its_file() -> None:
    spec = _plan(2, 1, ("a",))
    assert ClusterSpec.model_validate_json(spec.model_dump_json()) == spec


def test_an_unknown_node_is_refused_with_those_that_are(tmp_path: Path, settings: Settings) -> None:
    with pytest.raises(StackError, match="no node 7; the nodes are 1, 2, 3"):
        Cluster(_plan(), tmp_path, settings).node(7)


def test_a_node_that_dies_shows_the_end_of_its_log(tmp_path: Path, settings: Settings) -> None:
    """A broker setting that Kafka refuses: the broker says so in its log and exits."""
    spec = ClusterSpec.plan(1, 0, iter((10_990, 10_991)), config={"num.io.threads": "-1"})
    cluster = Cluster(spec, tmp_path, settings)
    with pytest.raises(NodeError, match=r"(?s)last lines were:.*num\.io\.threads"):
        cluster.start()
    assert not list(tmp_path.rglob(RECORD)) or cluster.node(1).process.find() is None
