"""What goes wrong in a simulated cluster: nodes that fail, come back, or slow down."""

import random
from dataclasses import dataclass

from melodeon.core.cluster import Cluster, NodeId
from melodeon.core.errors import UsageError


@dataclass(frozen=True, slots=True, order=True)
class Incident:
    """From `at_s` on a node is up or down and runs at `speed`."""

    at_s: float
    node: NodeId
    up: bool = True
    speed: float = 1.0


def random_failures(
    cluster: Cluster, *, mean_up_s: float, mean_repair_s: float, until_s: float, seed: int
) -> tuple[Incident, ...]:
    """Every node fails and is repaired at exponential times, independently; the same seed gives the same history."""
    if mean_up_s <= 0 or mean_repair_s <= 0:
        raise UsageError(f"mean_up_s={mean_up_s} and mean_repair_s={mean_repair_s} must both be above 0 s")
    draw = random.Random(seed)
    found: list[Incident] = []
    for node in cluster.nodes:
        now = draw.expovariate(1 / mean_up_s)
        while now < until_s:
            back = now + draw.expovariate(1 / mean_repair_s)
            found += [Incident(now, node.id, up=False), Incident(back, node.id, up=True)]
            now = back + draw.expovariate(1 / mean_up_s)
    return tuple(sorted(found))


def straggler(node: NodeId, *, from_s: float, until_s: float, speed: float) -> tuple[Incident, Incident]:
    """One node runs at a part of its speed for a while."""
    return Incident(from_s, node, speed=speed), Incident(until_s, node)
