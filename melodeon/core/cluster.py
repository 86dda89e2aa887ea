"""The cluster as a value: nodes of one device type each, in racks, healthy, slow or down.

A node that fails stays in the cluster with `up=False`, so that every device keeps its name and its place.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import NewType

from melodeon.core.errors import NotFound, UsageError

NodeId = NewType("NodeId", str)
DeviceType = NewType("DeviceType", str)

Counts = tuple[tuple[DeviceType, int], ...]
"""Devices by type, without zeros."""


def total(counts: Counts) -> int:
    """Devices of all types."""
    return counts[0][1] if len(counts) == 1 else sum([count for _, count in counts])


_GROUP = re.compile(r"(?P<nodes>\d{1,12})x(?P<devices>\d{1,12})(:(?P<type>[A-Za-z0-9_.-]+))?")
DEFAULT_TYPE = DeviceType("gpu")
MOST_DEVICES = 1_000_000
"""No cluster is described that has more: a slip of the finger would fill the memory."""


def check_size(name: str, num_devices: int) -> None:
    """Refuse a description of more devices than can be meant, before any node is made of it."""
    if num_devices > MOST_DEVICES:
        raise UsageError(f"cluster {name!r} has {num_devices:,} devices: the most that can be is {MOST_DEVICES:,}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One machine."""

    id: NodeId
    device_type: DeviceType = DEFAULT_TYPE
    num_devices: int
    rack: str = ""
    up: bool = True
    speed: float = 1.0
    """1.0 is healthy; a straggler is below."""

    def __post_init__(self) -> None:
        if self.num_devices < 1:
            raise UsageError(f"node {self.id!r} has {self.num_devices} devices: a node needs at least 1")
        if not self.speed > 0:
            raise UsageError(f"node {self.id!r} has speed {self.speed}: it must be above 0; mark a dead node up=False")


@dataclass(frozen=True, slots=True)
class Cluster:
    """All nodes, in an order that never changes while the cluster lives."""

    nodes: tuple[Node, ...]
    capacity: Counts = field(init=False, repr=False, compare=False)
    """Devices on nodes that are up, by type, types in order of first appearance."""
    all_well: bool = field(init=False, repr=False, compare=False)
    """Every node is up and at full speed."""
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.nodes:
            raise UsageError("the cluster has no node: describe at least one, such as 1x8:A100")
        names = [node.id for node in self.nodes]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise UsageError(f"node {twice!r} is named twice: every node needs a name of its own")
        counts: dict[DeviceType, int] = {}
        for node in self.nodes:
            counts[node.device_type] = counts.get(node.device_type, 0) + (node.num_devices if node.up else 0)
        object.__setattr__(self, "capacity", tuple(counts.items()))
        object.__setattr__(self, "all_well", all(node.up and node.speed == 1.0 for node in self.nodes))
        # Layouts are cached by cluster: thousands of nodes are hashed once, not at every look-up.
        object.__setattr__(self, "_hash", hash(self.nodes))

    def __hash__(self) -> int:
        return self._hash

    @classmethod
    def parse(cls, text: str) -> "Cluster":
        """Read `16x8:A100` or `4x8:V100,2x4:T4`: nodes x devices, and the type where there are several."""
        nodes: list[Node] = []
        num_devices = 0
        for part in text.split(","):
            match = _GROUP.fullmatch(part.strip())
            if match is None or not int(match["nodes"]) or not int(match["devices"]):
                raise UsageError(f"cluster {text!r} cannot be read at {part!r}: write nodes x devices, like 16x8:A100")
            num_devices += int(match["nodes"]) * int(match["devices"])
            check_size(text, num_devices)
            kind = DeviceType(match["type"] or DEFAULT_TYPE)
            first = len(nodes)
            nodes.extend(
                Node(id=NodeId(f"node{first + index:03d}"), device_type=kind, num_devices=int(match["devices"]))
                for index in range(int(match["nodes"]))
            )
        return cls(tuple(nodes))

    @property
    def types(self) -> tuple[DeviceType, ...]:
        """Every device type, in order of first appearance."""
        return tuple(kind for kind, _ in self.capacity)

    @property
    def num_devices(self) -> int:
        """Devices on nodes that are up, of all types."""
        return total(self.capacity)

    def count(self, kind: DeviceType) -> int:
        """Devices of one type on nodes that are up."""
        return dict(self.capacity).get(kind, 0)

    def node(self, node_id: NodeId) -> Node:
        """The node of that name."""
        for node in self.nodes:
            if node.id == node_id:
                return node
        raise NotFound(f"node {node_id!r} is not in the cluster: its nodes are {_some(n.id for n in self.nodes)}")

    def with_node(self, node_id: NodeId, *, up: bool | None = None, speed: float | None = None) -> "Cluster":
        """The same cluster with one node's health changed."""
        old = self.node(node_id)
        new = replace(old, up=old.up if up is None else up, speed=old.speed if speed is None else speed)
        return Cluster(tuple(new if node.id == node_id else node for node in self.nodes))

    def without_stragglers(self, slowest: float) -> "Cluster":
        """The same cluster with nodes below `slowest` marked down, so that nothing is placed there."""
        if self.all_well or all(node.speed >= slowest for node in self.nodes):
            return self
        return Cluster(tuple(replace(n, up=False) if n.speed < slowest else n for n in self.nodes))


def _some(names: Iterable[str], most: int = 5) -> str:
    listed = list(names)
    return ", ".join(listed[:most]) + (f" and {len(listed) - most} more" if len(listed) > most else "")
