"""A worker: the real Member around a model of training.

A step is committed by a seat when all seats of its group contributed to it; each gets the result at its own time, or
never, if somebody dies in between. The state is (steps committed, digest); a digest depends on everything that went in.
"""

from typing import TYPE_CHECKING

from melodeon.coord.member import Member
from melodeon.coord.messages import Notice, Phase, Status
from melodeon.core.view import View
from tests.coord.simnet.clock import Node

if TYPE_CHECKING:
    from tests.coord.simnet.agent import Agent
    from tests.coord.simnet.world import World

HEARTBEAT_S = 1.0
GROUP_TIMEOUT_S = 3.0


class Group:
    """The connections of one generation."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.size = len(view.seats)
        self.arrived: dict[int, Worker] = {}
        self.gathered: dict[int, tuple[int, int]] = {}
        self.shared: dict[int, dict[int, tuple[int, int, bool, range]]] = {}
        self.failed = False


class Worker(Node):
    """One worker process."""

    def __init__(self, world: "World", agent: "Agent", number: int) -> None:
        super().__init__(agent.name)
        self.world, self.agent, self.worker = world, agent, number
        self.member = Member(number)
        self.phase = Phase.STARTING
        self.step, self.digest = -1, 0
        self.number = 0
        self.attempt = 0
        """Grows when the work at hand is dropped: what was scheduled for it does nothing then."""
        self.group: Group | None = None
        self.waiting_since: float | None = None
        self.shut_out = 0
        """The newest planned view whose group could not be connected under it, while it trains on."""
        strange = not world.plan.quiet and number >= world.plan.config.workers
        self.unreachable = strange and world.clock.random.random() < 0.1
        """By its peers, not by its agent."""
        self.written = 0
        self.last_words: Status | None = None
        """What it leaves on the disk when it ends by itself."""
        self.preempted = False
        self.last_commit = 0.0
        self.pause_s = 0.0
        self.busy_s: tuple[float, ...] = ()
        self.took_s = 0.0
        watched = world.plan.config.straggler_factor > 0
        self.slowness = 2.5 if watched and world.clock.random.random() < 0.2 else 1.0
        world.clock.after(0.05 + world.clock.random.random() * 0.3, self, self._ready)

    def die(self) -> None:
        """The process is no more."""
        self.up = False
        self.life += 1

    def _ready(self) -> None:
        self.phase = Phase.READY
        self._beat()

    def _beat(self) -> None:
        self.say(self.number == 0)
        self.world.clock.after(HEARTBEAT_S, self, self._beat)

    def say(self, news: bool = True) -> None:
        """A status to the agent; a heartbeat repeats the last number."""
        now = self.world.clock.now
        broken = 0
        if self.waiting_since is not None and now - self.waiting_since >= GROUP_TIMEOUT_S:
            broken, news = self.member.current, True
        elif self.shut_out > self.member.current:
            broken = self.shut_out
        self.number += news
        status = Status(
            worker=self.worker,
            pid=self.worker + 1000,
            number=self.number,
            phase=self.phase,
            generation=self.member.entered,
            step=self.step,
            virtual_workers=self.world.plan.virtual_workers,
            definition="d",
            pause_s=self.pause_s,
            busy_s=self.busy_s,
            checkpoint=self.written,
            preempted=self.preempted,
            broken=broken,
            notice=self.member.number,
            digest=str(self.digest) if self.phase is Phase.DONE else "",
        )
        if self.phase is Phase.DONE:
            self.last_words = status
        self.world.clock.after(0.001, self.agent, self.agent.on_status, self, status)

    def on_notice(self, notice: Notice) -> None:
        """The link thread hands a notice over."""
        world = self.world
        if self.phase is Phase.DONE or not self.member.on_notice(notice):
            return
        member = self.member
        if notice.view is not None:
            world.checks.view_told(notice.view)
        if world.tracing:
            world.trace(f"worker {self.worker} takes notice {notice.number}: {world.brief(notice)}")
        if member.may_end:
            world.checks.released(self)
            self._exit(0)
            return
        view = member.give_up
        if view is not None:
            self._begin(view)
            return
        view = member.to_prepare
        if view is not None:
            self._arrive(view)

    def _arrive(self, view: View) -> None:
        """Come to the meeting; when all are there, the group of that view is connected."""
        group = self.world.group(view)
        group.arrived[self.worker] = self
        if len(group.arrived) == group.size:
            group.failed = self._is_split(group)
            for other in group.arrived.values():
                delay_s = 0.005 + self.world.clock.random.random() * 0.05
                call = other._unconnected if group.failed else other._connected
                self.world.clock.after(delay_s, other, call, group)

    def _is_split(self, group: Group) -> bool:
        """Some of them cannot reach each other: for a while, or never those who train already and a newcomer."""
        clock, everybody = self.world.clock, group.arrived.values()
        strange = any(one.unreachable and one.phase is Phase.READY for one in everybody)
        never = strange and any(one.phase is Phase.MEMBER for one in everybody)
        return never or any(clock.cut(self.name, other.name) for other in everybody)

    def _unconnected(self, group: Group) -> None:
        """Whoever trains in another view goes on there and says so; others wait for a view in vain."""
        if self.member.current < group.view.generation:
            self.shut_out = group.view.generation
            self.say()

    def _connected(self, group: Group) -> None:
        generation = group.view.generation
        if self.member.prepare(generation) and self.member.current == generation:
            self._gather(group)

    def _begin(self, view: View) -> None:
        """Drop the work at hand and go for the view."""
        self.attempt += 1
        self.member.begin(view.generation)
        self.group = self.world.group(view)
        self.waiting_since = self.world.clock.now
        if self.worker not in self.group.arrived:
            self._arrive(view)
        elif self.member.prepared == view.generation:
            self._gather(self.group)

    def _gather(self, group: Group) -> None:
        """Everybody tells how far it is; the furthest wins."""
        group.gathered[self.worker] = (self.step, self.digest)
        self.waiting_since = self.world.clock.now
        if len(group.gathered) < group.size or group.failed:
            return
        self.world.checks.begins(group)
        for other in group.arrived.values():
            delay_s = 0.005 + self.world.clock.random.random() * 0.1
            self.world.clock.after(delay_s, other, other._entered, group, other.attempt)

    def _entered(self, group: Group, attempt: int) -> None:
        """The state is copied from whoever is furthest, if that one still lives."""
        if attempt != self.attempt or group is not self.group:
            return
        best = max(step for step, _ in group.gathered.values())
        if self.step < best:
            holder = next(w for w, (step, _) in group.gathered.items() if step == best)
            if not group.arrived[holder].up or self.world.clock.cut(group.arrived[holder].name, self.name):
                return
            self.step, self.digest = group.gathered[holder]
        elif best < 0:
            self.step, self.digest = self.world.checkpoint
        self.member.enter()
        self.phase = Phase.MEMBER
        self.pause_s, self.busy_s = 0.0, ()
        self.say()
        if self.world.last_step is not None and self.step >= self.world.last_step:
            self._end()  # the state was that of the end, the checkpoint's for example
        else:
            self._compute()

    def _compute(self) -> None:
        self.waiting_since = None
        took_s = self.world.plan.step_s * (0.5 + self.world.clock.random.random()) * self.slowness
        self.world.clock.after(took_s, self, self._share, self.attempt, took_s)

    def _share(self, attempt: int, took_s: float) -> None:
        """Contribute to the step; when all have, each gets the result at its own time."""
        if attempt != self.attempt or self.group is None:
            return
        group, clock = self.group, self.world.clock
        self.waiting_since, self.took_s = clock.now, took_s
        rank = group.view.rank_of(self.worker)
        assert rank is not None
        ranks = group.view.assignment.ranks_of(rank)
        shared = group.shared.setdefault(self.step + 1, {})
        shared[self.worker] = (self.member.armed, self.digest, self.member.stop, ranks)
        if clock.cuts and any(clock.cut(self.name, other.name) for other in group.arrived.values()):
            group.failed = True
        if len(shared) < group.size or group.failed:
            return
        for other in group.arrived.values():
            delay_s = 0.002 + clock.random.random() * 0.03
            clock.after(delay_s, other, other._commit, group, other.attempt, self.step + 1)

    def _commit(self, group: Group, attempt: int, step: int) -> None:
        world = self.world
        if attempt != self.attempt or group is not self.group or group.failed:
            return
        if world.clock.random.random() < 0.5 and not all(other.up for other in group.arrived.values()):
            return
        shared = group.shared[step]
        self.digest = world.checks.commit(self, group, step, shared)
        self.step = step
        if self.pause_s == 0.0:
            self.pause_s = max(1e-6, world.clock.now - self.last_commit)
        self.last_commit = world.clock.now
        self.busy_s = (*self.busy_s, self.took_s)[-10:]
        if self.member.checkpoint > self.written and group.view.rank_of(self.worker) == 0:
            self.written = self.member.checkpoint
            world.checkpoint = max(world.checkpoint, (self.step, self.digest))
        if world.is_last(step) or any(stop for _, _, stop, _ in shared.values()):
            self._end()
            return
        view = self.member.agreed(min(armed for armed, _, _, _ in shared.values()))
        if view is None:
            self.say()
            self._compute()
            return
        self._begin_agreed(view)

    def _end(self) -> None:
        """It has trained to the end."""
        self.phase = Phase.DONE
        self.waiting_since = None
        self.say()
        self.world.clock.after(0.05, self, self._exit, 0)

    def _begin_agreed(self, view: View) -> None:
        self.say()
        if view.rank_of(self.worker) is not None:
            self._begin(view)
            return
        self.attempt += 1
        self.member.begin(view.generation)
        self.group, self.waiting_since = None, None
        if self.world.tracing:
            self.world.trace(f"worker {self.worker} has left by generation {view.generation} and waits")

    def _exit(self, code: int) -> None:
        self.world.end_worker(self, code)
