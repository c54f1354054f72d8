"""What a cluster is, without starting one; starting is shown by the stack's tests."""

from pathlib import Path

import pytest

from tallygate import Stack
from tallygate.errors import ConfigError, NodeError, StackError
from tallygate.lab.kafka.cluster import Cluster, ClusterSpec
from tallygate.ports import free_ports
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


def test_a_node_that_dies_shows_the_end_of_its_log(
    stack: Stack, tmp_path: Path, settings: Settings
) -> None:
    """A data folder of another node: the broker starts, says so in its log, and exits."""
    spec = ClusterSpec.plan(1, 0, iter(free_ports(2, avoid=stack.spec.ports)))
    cluster = Cluster(spec, tmp_path, settings)
    data = cluster.node(1).data
    data.mkdir(parents=True)
    (data / "meta.properties").write_text(f"version=1\ncluster.id={spec.cluster_id}\nnode.id=77\n")
    with pytest.raises(NodeError, match=r"(?s)node 1 .* died; its last lines were:.*77"):
        cluster.start()
    assert cluster.node(1).process.find() is None
