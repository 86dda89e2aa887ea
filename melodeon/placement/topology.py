"""The topology tree, flattened: every device type is a line of slots in which each subtree is an aligned run.

A node is padded to a power of two, and so is a rack where there are several; padding and nodes that are down are holes.
Two devices are close exactly when a small aligned run holds both, so a buddy block of `n` slots is a subtree.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter

from melodeon.core.cluster import Cluster, DeviceType, Node
from melodeon.core.plan import Block, Placement

Run = tuple[int, int]
"""(start, stop) of slots that lie side by side."""
_first: Callable[[tuple[int, Node]], int] = itemgetter(0)


def power_at_least(number: int) -> int:
    """The smallest power of two that is not below `number`."""
    return 1 << max(0, number - 1).bit_length()


@dataclass(frozen=True, slots=True)
class Line:
    """One device type's slots."""

    kind: DeviceType
    size: int
    """Slots in all, a multiple of no particular power."""
    nodes: tuple[tuple[int, Node], ...]
    """(first slot, node), ascending."""
    usable: tuple[Run, ...]
    """Runs of slots with a device on a node that is up, ascending, not touching each other."""

    def node_of(self, slot: int) -> tuple[int, Node]:
        """The node that holds a slot, and its first slot."""
        return self.nodes[bisect_right(self.nodes, slot, key=_first) - 1]


@dataclass(frozen=True, slots=True)
class Topology:
    """All lines of a cluster."""

    lines: tuple[Line, ...]

    def line(self, kind: DeviceType) -> Line:
        """One device type's slots."""
        return next(line for line in self.lines if line.kind == kind)

    def nodes_of(self, placement: Placement) -> tuple[Node, ...]:
        """The nodes that a job runs on, each once."""
        seen: dict[str, Node] = {}
        for block in placement:
            nodes = self.line(block.kind).nodes
            index = bisect_right(nodes, block.start, key=_first) - 1
            while index < len(nodes) and nodes[index][0] < block.start + block.size:
                seen[nodes[index][1].id] = nodes[index][1]
                index += 1
        return tuple(seen.values())

    def devices_of(self, placement: Placement) -> tuple[tuple[Node, int], ...]:
        """(node, device index) for each worker of a job, in order."""
        found: list[tuple[Node, int]] = []
        for block in placement:
            line = self.line(block.kind)
            for slot in range(block.start, block.start + block.size):
                first, node = line.node_of(slot)
                found.append((node, slot - first))
        return tuple(found)

    def is_compact(self, placement: Placement) -> bool:
        """Whether a job spans no more nodes of a type than its number of devices of it needs."""
        if len(placement) <= 1:
            return True
        by_kind: dict[DeviceType, list[Block]] = {}
        for block in placement:
            by_kind.setdefault(block.kind, []).append(block)
        return all(self._is_compact_on_its_type(tuple(blocks)) for blocks in by_kind.values())

    def _is_compact_on_its_type(self, placement: Placement) -> bool:
        if len(placement) <= 1:
            return True
        nodes = self.nodes_of(placement)
        needed = sum(block.size for block in placement)
        sizes = sorted((node.num_devices for node in nodes), reverse=True)
        # The largest nodes but one must not be enough: then every node is needed.
        return sum(sizes[:-1]) < needed


_latest: list[tuple[Cluster, Topology]] = []
"""The last answer: asked again and again about the same cluster, even a hash and a comparison of its nodes is long."""


def topology_of(cluster: Cluster) -> Topology:
    """Lay a cluster's nodes out on lines, rack by rack."""
    for latest, found in _latest:  # read once: another thread may put its own there meanwhile
        if latest is cluster:
            return found
    found = _laid_out(cluster)
    _latest[:] = [(cluster, found)]
    return found


@lru_cache(maxsize=64)
def _laid_out(cluster: Cluster) -> Topology:
    return Topology(tuple(_line(kind, [n for n in cluster.nodes if n.device_type == kind]) for kind in cluster.types))


def _line(kind: DeviceType, nodes: list[Node]) -> Line:
    racks: dict[str, list[Node]] = {}
    for node in nodes:
        racks.setdefault(node.rack, []).append(node)
    width = power_at_least(max(node.num_devices for node in nodes))
    rack_width = power_at_least(max(len(members) for members in racks.values())) * width
    placed: list[tuple[int, Node]] = []
    size = 0
    for index, members in enumerate(racks.values()):
        start = index * rack_width if len(racks) > 1 else 0
        placed.extend((start + position * width, node) for position, node in enumerate(members))
        size = start + len(members) * width
    usable = _merged((first, first + node.num_devices) for first, node in placed if node.up)
    return Line(kind, size, tuple(placed), usable)


def _merged(runs: Iterable[Run]) -> tuple[Run, ...]:
    merged: list[Run] = []
    for start, stop in runs:
        if merged and merged[-1][1] == start:
            merged[-1] = (merged[-1][0], stop)
        else:
            merged.append((start, stop))
    return tuple(merged)


def whole(blocks: Iterable[Block]) -> Placement:
    """Blocks as a placement, in a canonical order."""
    listed = list(blocks)
    return tuple(sorted(listed) if len(listed) > 1 else listed)
