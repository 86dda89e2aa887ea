"""The coordination store in simulated time: a leader under a lease, registrations under leases, and fenced writes."""

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from melodeon.coord.master_state import MasterState
from tests.coord.simnet.clock import Clock, Node

TTL_S = 3.0
DECODER = msgspec.json.Decoder(MasterState)
"""What is stored is the master's state."""


class Beat(NamedTuple):
    """What an agent learns when it refreshes its leases."""

    leader: str
    fence: int
    present: frozenset[str]


class Store:
    """Takes requests one at a time; requests and replies travel over the network and may be lost."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.node = Node("store")
        self.revision = 0
        self.leader = ""
        self.leader_life = -1
        self.fence = 0
        self.leader_until = 0.0
        self.agents: dict[str, float] = {}
        self.state: bytes | None = None
        self.written = 0

    def next_revision(self) -> int:
        """Revisions only grow."""
        self.revision += 1
        return self.revision

    def _expire(self) -> None:
        now = self.clock.now
        if self.leader and now >= self.leader_until:
            self.leader = ""
        for agent in [name for name, until in self.agents.items() if now >= until]:
            del self.agents[agent]

    def beat(self, node: Node, believed: int, reply: Callable[[Beat], None]) -> None:
        """Refresh the agent's registration, and its leadership if it believes in one; campaign if nobody leads."""
        self.clock.send(node.name, self.node, self._beat, node, node.life, believed, reply)

    def _beat(self, node: Node, life: int, believed: int, reply: Callable[[Beat], None]) -> None:
        self._expire()
        self.agents[node.name] = self.clock.now + TTL_S
        if not self.leader:
            self.leader, self.leader_life, self.fence = node.name, life, self.next_revision()
            self.leader_until = self.clock.now + TTL_S
        elif self.leader == node.name and believed == self.fence:
            self.leader_until = self.clock.now + TTL_S
        # A leader that died and came back does not hold its old term: it waits for the lease to run out.
        mine = self.leader != node.name or self.leader_life == life
        beat = Beat(self.leader if mine else "", self.fence, frozenset(self.agents))
        self.clock.reply("store", node, life, reply, beat)

    def put(self, node: Node, fence: int, expect: int, value: bytes, reply: Callable[[int], None]) -> None:
        """Write the master's state, if the term that writes it is still on, and nothing was written since `expect`.

        Replies with the new revision, or -1. Without `expect`, a write that was delayed and repeated could come after
        the next one and undo it.
        """
        self.clock.send(node.name, self.node, self._put, node, node.life, fence, expect, value, reply)

    def _put(self, node: Node, life: int, fence: int, expect: int, value: bytes, reply: Callable[[int], None]) -> None:
        self._expire()
        good = bool(self.leader) and self.fence == fence
        if good and self.written == expect and self.state != value:
            self.state = value
            self.written = self.next_revision()
        self.clock.reply("store", node, life, reply, self.written if good and self.state == value else -1)
