import pytest

from melodeon.core.cluster import Cluster, DeviceType, NodeId
from melodeon.core.errors import NotFound, UsageError


def test_a_description_gives_typed_nodes() -> None:
    cluster = Cluster.parse("2x8:A100,1x4:T4")
    assert cluster.capacity == (("A100", 16), ("T4", 4))
    assert cluster.num_devices == 20
    assert [node.id for node in cluster.nodes] == ["node000", "node001", "node002"]


@pytest.mark.parametrize("text", ["", "8", "0x8", "2x0", "2x8:", "2x8;1x4", "x8"])
def test_a_description_that_cannot_be_read_names_the_part(text: str) -> None:
    with pytest.raises(UsageError, match="like 16x8:A100"):
        Cluster.parse(text)


@pytest.mark.parametrize("text", ["99999999x9999", "1x1000001", "1000x999,10x101:T4"])
def test_a_cluster_larger_than_any_is_refused_before_it_is_made(text: str) -> None:
    with pytest.raises(UsageError, match=f"cluster '{text}' has .* devices: the most that can be is 1,000,000"):
        Cluster.parse(text)


def test_a_node_that_is_down_keeps_its_name_and_gives_no_devices() -> None:
    cluster = Cluster.parse("2x8:A100").with_node(NodeId("node001"), up=False)
    assert cluster.count(DeviceType("A100")) == 8
    assert len(cluster.nodes) == 2
    assert cluster.with_node(NodeId("node001"), up=True) == Cluster.parse("2x8:A100")


def test_stragglers_can_be_left_out() -> None:
    cluster = Cluster.parse("2x8").with_node(NodeId("node000"), speed=0.4)
    assert cluster.without_stragglers(0.5).num_devices == 8
    assert cluster.without_stragglers(0.3) is cluster


def test_an_unknown_node_is_named() -> None:
    with pytest.raises(NotFound, match="'nine' is not in the cluster"):
        Cluster.parse("1x1").with_node(NodeId("nine"), up=False)
