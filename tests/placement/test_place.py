from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from melodeon.core.cluster import Cluster, DeviceType, Node, NodeId
from melodeon.core.jobs import JobId
from melodeon.core.plan import Block, Placement, Share
from melodeon.placement.buddy import FreeBlocks, aligned, powers
from melodeon.placement.place import place
from melodeon.placement.topology import topology_of

GPU = DeviceType("gpu")


def share(name: str, count: int, *, pinned: bool = False) -> Share:
    return Share(JobId(name), ((GPU, count),), "test", pinned)


def slots(placement: Placement) -> set[tuple[str, int]]:
    return {(b.kind, slot) for b in placement for slot in range(b.start, b.start + b.size)}


def check(cluster: Cluster, shares: list[Share], placements: dict[JobId, Placement]) -> None:
    used: set[tuple[str, int]] = set()
    for wanted in shares:
        mine = slots(placements[wanted.job])
        assert len(mine) == wanted.num_devices
        assert not mine & used
        used |= mine
        for node, device in topology_of(cluster).devices_of(placements[wanted.job]):
            assert node.up
            assert 0 <= device < node.num_devices


@given(st.integers(0, 300), st.integers(0, 300))
def test_aligned_blocks_cover_a_run_and_start_at_multiples_of_their_size(start: int, length: int) -> None:
    blocks = list(aligned(start, start + length))
    assert all(first % size == 0 and size & (size - 1) == 0 for first, size in blocks)
    assert [slot for first, size in blocks for slot in range(first, first + size)] == list(range(start, start + length))


def test_powers_are_the_binary_digits() -> None:
    assert powers(13) == (8, 4, 1)


def test_best_fit_takes_the_smallest_block_with_room() -> None:
    free = FreeBlocks([(0, 16)], [(0, 4), (8, 2)])  # free: [4,8) [10,12) [12,16)
    assert free.take(2) == 10
    assert free.take(4) == 4
    assert free.take(8) is None
    free.free(8, 2)
    free.free(10, 2)
    assert free.take_at(8, 8)
    assert free.count == 0


# A history of rounds: in each, some power-of-two shares that fit the cluster.
@st.composite
def histories(draw: st.DrawFn) -> tuple[int, int, list[dict[str, int]]]:
    num_nodes = draw(st.integers(1, 9))
    width = 1 << draw(st.integers(0, 3))
    rounds = []
    for _ in range(draw(st.integers(1, 6))):
        room, wanted = num_nodes * width, {}
        for name in draw(st.lists(st.sampled_from("abcdefghijkl"), unique=True)):
            size = 1 << draw(st.integers(0, 6))
            if size <= room:
                wanted[name] = size
                room -= size
        rounds.append(wanted)
    return num_nodes, width, rounds


@given(histories(), st.integers(0, 4))
def test_power_of_two_shares_always_find_a_subtree(
    history: tuple[int, int, list[dict[str, int]]], rack_order: int
) -> None:
    num_nodes, width, rounds = history
    nodes = Cluster.parse(f"{num_nodes}x{width}").nodes
    cluster = Cluster(tuple(replace(node, rack=f"r{place >> rack_order}") for place, node in enumerate(nodes)))
    held: dict[JobId, Placement] = {}
    for wanted in rounds:
        shares = [share(name, size) for name, size in wanted.items()]
        placed = place(cluster, held, shares)
        check(cluster, shares, dict(placed.placements))
        assert all(len(placement) == 1 for placement in placed.placements.values()), "no job is scattered"
        assert all(topology_of(cluster).is_compact(p) for p in placed.placements.values())
        moved = {job for job in held if job in placed.placements and held[job] != placed.placements[job]}
        same_size = {job for job in moved if sum(b.size for b in held[job]) == wanted[job]}
        assert same_size <= set(placed.migrated)
        held = dict(placed.placements)


@st.composite
def odd_clusters(draw: st.DrawFn) -> Cluster:
    nodes = []
    for index in range(draw(st.integers(1, 6))):
        nodes.append(
            Node(
                id=NodeId(f"n{index}"),
                device_type=GPU,
                num_devices=draw(st.integers(1, 9)),
                rack=draw(st.sampled_from(["", "r1"])),
                up=draw(st.booleans()) or index == 0,
            )
        )
    return Cluster(tuple(nodes))


@given(odd_clusters(), st.data())
def test_any_count_on_any_cluster_is_placed_whole(cluster: Cluster, data: st.DataObject) -> None:
    held: dict[JobId, Placement] = {}
    for _ in range(3):
        room, shares = cluster.num_devices, []
        for name in "abcdef":
            size = data.draw(st.integers(0, room))
            if size:
                shares.append(share(name, size, pinned=data.draw(st.booleans())))
                room -= size
        placed = place(cluster, held, shares)
        check(cluster, shares, dict(placed.placements))
        held = dict(placed.placements)
        node = data.draw(st.sampled_from(cluster.nodes[1:] or cluster.nodes))
        if len(cluster.nodes) > 1:
            cluster = cluster.with_node(node.id, up=not node.up)


def test_unchanged_jobs_stay_and_a_shrunk_job_keeps_part_of_its_devices() -> None:
    cluster = Cluster.parse("2x8")
    first = place(cluster, {}, [share("a", 8), share("b", 4), share("c", 2)])
    second = place(cluster, first.placements, [share("a", 4), share("b", 4), share("c", 2), share("d", 4)])
    assert second.migrated == ()
    assert second.placements[JobId("b")] == first.placements[JobId("b")]
    assert slots(second.placements[JobId("a")]) < slots(first.placements[JobId("a")])


def test_a_growing_job_stays_around_its_devices_when_the_buddy_is_free() -> None:
    cluster = Cluster.parse("2x8")
    first = place(cluster, {}, [share("a", 4), share("b", 8)])
    second = place(cluster, first.placements, [share("a", 8), share("b", 8)])
    assert slots(first.placements[JobId("a")]) < slots(second.placements[JobId("a")])


def test_fragmentation_is_cured_by_moving_the_job_that_is_not_pinned() -> None:
    # Three devices of each node are free, and a job wants four of one: the fragments of ElasticFlow's section 4.3.
    cluster = Cluster.parse("2x4")
    held = {JobId("a"): (Block(GPU, 0, 1),), JobId("b"): (Block(GPU, 4, 1),)}
    placed = place(cluster, held, [share("a", 1, pinned=True), share("b", 1), share("c", 4)])
    assert placed.migrated == (JobId("b"),)
    assert placed.placements[JobId("a")] == held[JobId("a")]
    assert len(placed.placements[JobId("c")]) == 1


def test_a_job_on_a_node_that_failed_is_placed_elsewhere() -> None:
    cluster = Cluster.parse("2x4")
    first = place(cluster, {}, [share("a", 4)])
    node, _ = topology_of(cluster).devices_of(first.placements[JobId("a")])[0]
    second = place(cluster.with_node(node.id, up=False), first.placements, [share("a", 4)])
    assert second.migrated == (JobId("a"),)
    assert second.placements != first.placements


def test_types_are_placed_apart() -> None:
    cluster = Cluster.parse("1x4:V100,1x4:T4")
    both = Share(JobId("a"), ((DeviceType("V100"), 2), (DeviceType("T4"), 4)), "test")
    placed = place(cluster, {}, [both])
    assert {(b.kind, b.size) for b in placed.placements[JobId("a")]} == {("V100", 2), ("T4", 4)}


def test_a_job_of_two_types_is_compact_when_it_is_so_on_each() -> None:
    v100, t4 = DeviceType("V100"), DeviceType("T4")
    topology = topology_of(Cluster.parse("1x8:V100,2x4:T4"))
    assert topology.is_compact((Block(t4, 0, 2), Block(v100, 0, 2))), "no node has both types"
    assert not topology.is_compact((Block(t4, 0, 1), Block(t4, 4, 1), Block(v100, 0, 2)))


@given(odd_clusters(), st.data())
def test_a_placement_s_nodes_are_those_of_its_devices(cluster: Cluster, data: st.DataObject) -> None:
    wanted = share("a", data.draw(st.integers(1, cluster.num_devices)))
    topology, placement = topology_of(cluster), place(cluster, {}, [wanted]).placements[wanted.job]
    assert topology.nodes_of(placement) == tuple(dict.fromkeys(node for node, _ in topology.devices_of(placement)))


def test_more_than_there_is_is_our_own_mistake() -> None:
    with pytest.raises(AssertionError, match="5 gpu devices wanted, 4 are free"):
        place(Cluster.parse("1x4"), {}, [share("a", 5)])
