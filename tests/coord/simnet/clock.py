"""Simulated time and a network that loses, doubles, delays, reorders and cuts; all from one seed."""

import heapq
from collections.abc import Callable
from random import Random
from typing import Any

Call = Callable[..., None]


class Node:
    """Something that runs: it can die (what was under way to it is lost) and be paused (it is done later)."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.life = 0
        """Grows with each death: calls that were meant for an earlier life are dropped."""
        self.up = True
        self.paused = False
        self.backlog: list[tuple[Call, tuple[Any, ...]]] = []


class Clock:
    """Calls in the order of their times."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now = 0.0
        self.heap: list[tuple[float, int, Node, int, Call, tuple[Any, ...]]] = []
        self.count = 0
        self.loss = self.double = self.late = 0.0
        self.cuts: set[frozenset[str]] = set()

    def after(self, delay_s: float, node: Node, call: Call, *args: Any) -> None:
        """Call later, if the node still lives then."""
        self.count += 1
        heapq.heappush(self.heap, (self.now + delay_s, self.count, node, node.life, call, args))

    def reply(self, source: str, node: Node, life: int, call: Call, *args: Any) -> None:
        """An answer on the connection that a request came by: another life has another connection."""
        self.send(source, node, self._for_life, node, life, call, args)

    def _for_life(self, node: Node, life: int, call: Call, args: tuple[Any, ...]) -> None:
        if node.life == life:
            call(*args)

    def send(self, source: str, node: Node, call: Call, *args: Any) -> None:
        """A message over the network; it may reach a later life of the node, as messages do."""
        draw = self.random.random
        if frozenset((source, node.name)) in self.cuts or draw() < self.loss:
            return
        for _ in range(2 if draw() < self.double else 1):
            delay_s = 0.002 + draw() * 0.02 + (draw() * 1.5 if draw() < self.late else 0.0)
            self.count += 1
            heapq.heappush(self.heap, (self.now + delay_s, self.count, node, -1, call, args))

    def cut(self, one: str, other: str) -> bool:
        """No message passes between the two."""
        return frozenset((one, other)) in self.cuts

    def step(self) -> None:
        """The next call."""
        self.now, _, node, life, call, args = heapq.heappop(self.heap)
        if not node.up or (life >= 0 and life != node.life):
            return
        if node.paused:
            node.backlog.append((call, args))
        else:
            call(*args)

    def wake(self, node: Node) -> None:
        """End a pause: what has come meanwhile is done now, in order."""
        node.paused = False
        backlog, node.backlog = node.backlog, []
        for call, args in backlog:
            self.after(0.0, node, call, *args)
