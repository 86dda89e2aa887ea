"""What goes wrong in a simulated cluster: nodes that fail, come back, or slow down."""

import random
from dataclasses import dataclass
from math import inf, isfinite

from melodeon.core.cluster import Cluster, NodeId
from melodeon.core.errors import UsageError

LONGEST_S = 1e12
"""No mean time is longer."""


@dataclass(frozen=True, slots=True)
class Incident:
    """From `at_s` on a node is up or down, and runs at `speed`; None: that stays as it is. In order of time."""

    at_s: float
    node: NodeId
    up: bool | None = True
    speed: float | None = None

    def __post_init__(self) -> None:
        if not self.at_s > -inf:
            raise UsageError(
                f"an incident of {self.node!r} at {self.at_s} s has no time: give the second it happens at"
            )
        if self.speed is not None and not (self.speed > 0 and isfinite(self.speed)):
            raise UsageError(
                f"speed={self.speed} of {self.node!r} must be above 0, 1 being its full speed: up=False is a failure"
            )

    def __lt__(self, other: "Incident") -> bool:
        return (self.at_s, self.node) < (other.at_s, other.node)


class Failures:
    """Every node fails and is repaired at exponential times, independently; the same seed gives the same history.

    It has no end: it is drawn in stretches, each as long as all before together, as a simulation gets there. What is
    drawn stays, so forks share it.
    """

    def __init__(
        self, cluster: Cluster, *, mean_up_s: float, mean_repair_s: float, stretch_s: float, seed: int
    ) -> None:
        if not (0 < mean_up_s <= LONGEST_S and 0 < mean_repair_s <= LONGEST_S):
            raise UsageError(
                f"mean_up_s={mean_up_s} and mean_repair_s={mean_repair_s} must both be above 0 s and at most "
                f"{LONGEST_S:g} s: leave failures out where no node fails"
            )
        self.stretch_s = stretch_s
        """How long the first stretch is."""
        self._mean_up_s, self._mean_repair_s = mean_up_s, mean_repair_s
        self._draw = random.Random(seed)
        self._nodes = [node.id for node in cluster.nodes]
        self._next_s: dict[NodeId, float] = {}
        """When each node fails next, after the last stretch."""
        self._drawn: list[tuple[tuple[Incident, ...], tuple[Incident, ...]]] = []
        """What happens in each stretch, and the repairs after it."""

    def until_s(self, number: int) -> float:
        """When a stretch ends; they are counted from 0."""
        return self.stretch_s * 2.0**number

    def stretch(self, number: int) -> tuple[Incident, ...]:
        """What happens in a stretch, in order."""
        return self._up_to(number)[0]

    def repairs(self, number: int) -> tuple[Incident, ...]:
        """The repairs after a stretch of what failed in it, in order."""
        return self._up_to(number)[1]

    def _up_to(self, number: int) -> tuple[tuple[Incident, ...], tuple[Incident, ...]]:
        while len(self._drawn) <= number:
            until_s, pending = self.until_s(len(self._drawn)), self._drawn[-1][1] if self._drawn else ()
            found = sorted([*pending, *self._until(until_s)])
            inside = sum(incident.at_s < until_s for incident in found)
            self._drawn.append((tuple(found[:inside]), tuple(found[inside:])))
        return self._drawn[number]

    def _until(self, until_s: float) -> list[Incident]:
        """The failures up to a moment that were not drawn yet, each with its repair."""
        draw, found = self._draw, list[Incident]()
        for node in self._nodes:
            now = self._next_s[node] if node in self._next_s else draw.expovariate(1 / self._mean_up_s)
            while now < until_s:
                back = now + draw.expovariate(1 / self._mean_repair_s)
                found += [Incident(now, node, up=False), Incident(back, node, up=True)]
                now = back + draw.expovariate(1 / self._mean_up_s)
            self._next_s[node] = now
        return found


def random_failures(
    cluster: Cluster, *, mean_up_s: float, mean_repair_s: float, until_s: float, seed: int
) -> tuple[Incident, ...]:
    """The failures of every node up to a moment, and their repairs; the same seed gives the same ones."""
    drawn = Failures(cluster, mean_up_s=mean_up_s, mean_repair_s=mean_repair_s, stretch_s=until_s, seed=seed)
    return drawn.stretch(0) + drawn.repairs(0)


def straggler(node: NodeId, *, from_s: float, until_s: float, speed: float) -> tuple[Incident, Incident]:
    """One node runs at a part of its speed for a while; one that is down stays down."""
    if not from_s < until_s:
        raise UsageError(
            f"{node!r} cannot be slow from {from_s} s until {until_s} s: the end comes after the beginning"
        )
    return Incident(from_s, node, up=None, speed=speed), Incident(until_s, node, up=None, speed=1.0)
