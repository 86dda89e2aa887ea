"""The event-driven simulator: the round of `sched.tick` on a clock that jumps from event to event.

An event is a submission, a completion, an incident, or the moment a policy asked to be woken at. Submissions are
answered and wake-ups kept at once; completions and incidents, which happen at their own time, are answered by the next
round, at most a slot after the last one that answered any. Nothing is computed in between: progress is linear while
nothing changes.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter

from melodeon.core.cluster import Cluster, DeviceType
from melodeon.core.clusterview import ClusterView
from melodeon.core.errors import UsageError
from melodeon.core.jobs import JobId, JobSpec
from melodeon.core.overhead import Overheads
from melodeon.core.plan import Action, Migrate, Placement, Reject, Resize, Start, Suspend, Verdict
from melodeon.placement.topology import topology_of
from melodeon.sched.policy import Policy
from melodeon.sched.tick import Round, Rules, TickState, tick
from melodeon.sim.incidents import Failures, Incident
from melodeon.sim.live import NEVER, JobOutcome, LiveJob

Device = tuple[DeviceType, int]
"""A type, and a slot of its topology."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimConfig:
    """The world that jobs are simulated in."""

    cluster: Cluster
    slot_s: float = 0.0
    """Rounds that only answer completions and incidents are at least so far apart; 0: one at every event."""
    gather_submissions: bool = False
    """Submissions wait for a slot's end, too, as in ElasticFlow's own simulator."""
    overheads: Overheads = field(default_factory=Overheads)
    """What changes cost."""
    believed: Overheads | None = None
    """What policies are told that changes cost; None: the truth."""
    rules: Rules = field(default_factory=Rules)
    incidents: tuple[Incident, ...] = ()
    failures: Failures | None = None
    """Others, drawn for as long as it lasts; they end where nobody trains at all for half of their first stretch."""
    record: bool = True
    """Keep every action, for charts and explanations."""

    def __post_init__(self) -> None:
        if self.slot_s < 0:
            raise UsageError(f"slot_s={self.slot_s} must not be negative: 0 decides at every event")


@dataclass(frozen=True, slots=True)
class Logged:
    """An action and when it was taken."""

    at_s: float
    action: Action


@dataclass(frozen=True, slots=True, kw_only=True)
class SimResult:
    """Everything that a simulation found out."""

    config: SimConfig
    outcomes: tuple[JobOutcome, ...]
    """In order of submission."""
    log: tuple[Logged, ...]
    start_s: float
    end_s: float
    capacity_s: float
    """Device-seconds that were there between start and end."""
    decision_s: tuple[float, ...]
    """Wall-clock seconds of every round."""


PATIENCE = 1000
"""A policy that asks to be woken so often in a row while nothing runs and nothing comes will never start what is left:
there are too few devices for it."""


def _check_names(jobs: Sequence[JobSpec]) -> None:
    names = {job.id for job in jobs}
    if len(names) < len(jobs):
        raise UsageError(f"{len(jobs)} jobs share {len(names)} names: every job needs an id of its own")


class Simulation:
    """One run. `run()` goes to the end; `run(until_s)` stops on the way, and `fork()` branches off there."""

    def __init__(self, config: SimConfig, jobs: Sequence[JobSpec], policy: Policy) -> None:
        if not jobs:
            raise UsageError("there is no job to simulate: the trace is empty")
        _check_names(jobs)
        self.config, self.policy, self.cluster = config, policy, config.cluster
        self._arrivals = sorted(jobs, key=lambda job: job.submit_s)
        self._next_arrival = 0
        self._incidents = sorted(config.incidents)
        self._next_incident = 0
        self._num_stretches, self._drawn_s = 0, NEVER if config.failures is None else -NEVER
        """Stretches of the failures that were drawn, and until when that is."""
        self._trained = self._arrivals[0].submit_s, (0, 0.0)
        """When a stretch was drawn, and by then: how many jobs had ended, the iterations of the others."""
        self._jobs: dict[JobId, LiveJob] = {}
        self._verdicts: dict[JobId, Verdict] = {}
        self._outcomes: dict[JobId, JobOutcome] = {}
        self._log: list[Logged] = []
        self._state = TickState()
        self._wake_at: float | None = None
        self._decision_s: list[float] = []
        self.now_s = self._start_s = self._arrivals[0].submit_s
        self._capacity_s = 0.0
        self._active_s = 0.0
        """Job-seconds in the cluster so far."""
        self._dirty = False
        """Something happened since the last round."""
        self._answered_s = -NEVER
        """When the last round was that answered an event."""
        self._idle_rounds = 0
        """In a row: nothing happened and nothing ran."""

    def run(self, until_s: float = NEVER) -> "Simulation":
        """Go on until every job is done, or to a moment."""
        while (moment := self._next_moment()) <= until_s and moment < NEVER:
            self._advance(moment)
            self._round()
        if until_s < NEVER:
            self._advance(max(until_s, self.now_s))
        return self

    def fork(
        self,
        *,
        policy: Policy | None = None,
        rules: Rules | None = None,
        jobs: Sequence[JobSpec] = (),
        incidents: Sequence[Incident] = (),
    ) -> "Simulation":
        """A copy that goes its own way from here, to answer what-if.

        Under another policy (which starts without memory), under other rules, with more jobs, with more incidents.
        """
        other = Simulation.__new__(Simulation)
        other.__dict__.update(self.__dict__)
        other._jobs = {name: job.clone() for name, job in self._jobs.items()}
        other._verdicts, other._outcomes = dict(self._verdicts), dict(self._outcomes)
        other._log, other._decision_s = self._log[:], self._decision_s[:]
        if policy is not None:
            other.policy, other._state, other._dirty = policy, TickState(None, self._state.accepted), True
        if rules is not None:
            other.config, other._dirty = replace(self.config, rules=rules), True
        early: list[str] = [job.id for job in jobs if job.submit_s < self.now_s]
        early += [incident.node for incident in incidents if incident.at_s < self.now_s]
        if early:
            raise UsageError(
                f"{early[0]!r} would come before {self.now_s} s, which is past: give it a time from then on"
            )
        _check_names([*self._arrivals, *jobs])
        past, future = self._arrivals[: self._next_arrival], self._arrivals[self._next_arrival :]
        other._arrivals = past + sorted([*future, *jobs], key=lambda job: job.submit_s)
        happened, coming = self._incidents[: self._next_incident], self._incidents[self._next_incident :]
        other._incidents = happened + sorted([*coming, *incidents])
        other.config = replace(other.config, incidents=tuple(other._incidents))
        return other

    def result(self) -> SimResult:
        """What happened so far; jobs still in the cluster count as not finished."""
        ended = dict(self._outcomes)
        for job in self._jobs.values():
            copy = job.clone()
            copy.settle(max(self.now_s, copy.changed_s))
            ended[job.spec.id] = self._outcome(copy, None)
        return SimResult(
            config=replace(self.config, incidents=tuple(self._incidents)),
            outcomes=tuple(ended[job.id] for job in self._arrivals if job.id in ended),
            log=tuple(self._log),
            start_s=self._start_s,
            end_s=max((o.finished_s for o in ended.values() if o.finished_s is not None), default=self.now_s),
            capacity_s=self._capacity_s,
            decision_s=tuple(self._decision_s),
        )

    def view(self) -> ClusterView:
        """The cluster as a policy would see it now."""
        jobs = {name: job.state(self.now_s) for name, job in self._jobs.items()}
        told = self.config.believed or self.config.overheads
        return ClusterView(self.now_s, self.cluster, jobs, self.config.slot_s, told)

    # --- time ---

    def _next_moment(self) -> float:
        """When the next round is due."""
        due = self.now_s if self._dirty else NEVER
        if self._jobs:
            due = min(due, min([job.finish_s for job in self._jobs.values()]))
            due = min(due, self._incident_s())
            # Ends and incidents are gathered for a slot; submissions and what the policy has promised do not wait.
            due = max(due, self._answered_s + self.config.slot_s)
            if self._wake_at is not None and self._idle_rounds < PATIENCE:
                due = min(due, self._wake_at)
        if self._next_arrival < len(self._arrivals):
            arrival_s = self._arrivals[self._next_arrival].submit_s
            if self.config.gather_submissions:
                arrival_s = max(arrival_s, self._answered_s + self.config.slot_s)
            due = min(due, arrival_s)
        return due

    def _advance(self, moment: float) -> None:
        """Let time pass: incidents, completions and submissions up to a moment, in order."""
        while self._incident_s() <= moment:
            incident = self._incidents[self._next_incident]
            self._next_incident += 1
            self._pass_to(max(incident.at_s, self.now_s))
            self._suffer(incident)
        self._pass_to(moment)

    def _incident_s(self) -> float:
        """When the next incident is; failures are drawn up to there."""
        while True:
            some = self._next_incident < len(self._incidents)
            at_s = self._incidents[self._next_incident].at_s if some else NEVER
            if self._drawn_s == NEVER or at_s < self._drawn_s:
                return at_s
            self._draw_failures()

    def _draw_failures(self) -> None:
        """Draw the next stretch of them; none any more if all have come and nobody trained for long."""
        failures, number, (since_s, before) = self.config.failures, self._num_stretches, self._trained
        assert failures is not None, "without them nothing is drawn"
        now = len(self._outcomes), sum(job.state(self.now_s).done for job in self._jobs.values())
        long = self.now_s - since_s >= failures.stretch_s / 2 and self._next_arrival == len(self._arrivals)
        stuck = long and now == before
        drawn = failures.repairs(number - 1) if stuck else failures.stretch(number)
        self._trained, self._num_stretches = (self.now_s, now), number + 1
        self._drawn_s = NEVER if stuck else failures.until_s(number)
        self._incidents[self._next_incident :] = sorted([*self._incidents[self._next_incident :], *drawn])

    def _pass_to(self, moment: float) -> None:
        done = [job for job in self._jobs.values() if job.finish_s <= moment]
        for job in sorted(done, key=lambda job: job.finish_s):
            self._tick_books(job.finish_s)
            self._complete(job)
        while self._next_arrival < len(self._arrivals) and self._arrivals[self._next_arrival].submit_s <= moment:
            spec = self._arrivals[self._next_arrival]
            self._next_arrival += 1
            self._tick_books(spec.submit_s)
            self._jobs[spec.id] = LiveJob(spec, self._active_s, self.config.overheads.end_s)
            self._dirty = True
        self._tick_books(moment)

    def _tick_books(self, moment: float) -> None:
        passed = moment - self.now_s
        if passed > 0:
            self._capacity_s += passed * self.cluster.num_devices
            self._active_s += passed * len(self._jobs)
            self.now_s = moment

    def _complete(self, job: LiveJob) -> None:
        job.settle(job.finish_s)
        job.done = job.spec.iterations
        del self._jobs[job.spec.id]
        self._outcomes[job.spec.id] = self._outcome(job, job.finish_s)
        self._dirty = True

    def _outcome(self, job: LiveJob, finished_s: float | None) -> JobOutcome:
        verdict = self._verdicts.get(job.spec.id)
        life = (finished_s if finished_s is not None else self.now_s) - job.spec.submit_s
        return JobOutcome(
            spec=job.spec,
            admitted=verdict is not None and verdict.admitted,
            why=verdict.why if verdict else "not judged yet",
            earliest_deadline_s=verdict.earliest_deadline_s if verdict else None,
            started_s=job.started_s,
            finished_s=finished_s,
            service_s=job.service_s,
            effective_s=job.effective_s,
            pause_s=job.pause_s,
            num_resizes=job.num_resizes,
            num_migrations=job.num_migrations,
            num_suspensions=job.num_suspensions,
            mean_active=(self._active_s - job.active_at_submit) / life if life > 0 else 1.0,
        )

    # --- what happens ---

    def _suffer(self, incident: Incident) -> None:
        """A node changes: jobs on a dead one lose their devices at once, jobs on a slow one their speed."""
        self.cluster = self.cluster.with_node(incident.node, up=incident.up, speed=incident.speed)
        topology = topology_of(self.cluster)
        for job in self._jobs.values():
            if not job.placement:
                continue
            nodes = topology.nodes_of(job.placement)
            if not all(node.up for node in nodes):
                job.hold(self.now_s, (), (), 0.0, 0.0)
                job.num_suspensions += 1
            elif any(node.id == incident.node for node in nodes):
                full = job.rate / job.speed
                job.speed = min(node.speed for node in nodes)
                job.hold(self.now_s, job.counts, job.placement, full * job.speed, 0.0)
        self._dirty = True

    def _round(self) -> None:
        started = perf_counter()
        found = tick(self.view(), self.policy, self._state, self.config.rules)
        self._decision_s.append(perf_counter() - started)
        if self._dirty:
            self._answered_s = self.now_s
        self._state, self._wake_at, self._dirty = found.state, found.wake_at, False
        if self._wake_at is not None and self._wake_at <= self.now_s:
            raise AssertionError(f"the policy wants to be woken at {self._wake_at}, which is not after {self.now_s}")
        self._judge(found)
        idle = not found.actions and not any(job.placement for job in self._jobs.values())
        self._idle_rounds = self._idle_rounds + 1 if idle else 0
        leaving = self._leaving(found)
        for action in found.actions:
            self._apply(action, found, leaving)
        if self.config.record:
            self._log += [Logged(self.now_s, action) for action in found.actions]

    def _judge(self, found: Round) -> None:
        for verdict in found.verdicts:
            self._verdicts[verdict.job] = verdict
            if verdict.admitted:
                self._jobs[verdict.job].admitted_s = self.now_s
            else:
                job = self._jobs.pop(verdict.job)
                self._outcomes[verdict.job] = self._outcome(job, None)

    def _leaving(self, found: Round) -> dict[Device, float]:
        """The devices that somebody has to leave first, and how long that takes.

        Who goes on elsewhere leaves when it is there, so it waits for those who leave the devices that it goes to.
        """
        overheads = self.config.overheads
        if not overheads.end_s and not overheads.shrink_s:
            return {}
        going = {action.job: action for action in found.actions if isinstance(action, Suspend | Resize | Migrate)}
        leavers: dict[Device, JobId] = {}
        for name, action in going.items():
            stays = set() if isinstance(action, Suspend) else set(_devices(action.placement))
            leavers |= {device: name for device in _devices(self._jobs[name].placement) if device not in stays}
        known: dict[JobId, float] = {}

        def seconds(name: JobId) -> float:
            if name in known:
                return known[name]
            known[name] = 0.0  # of two who change places, nobody can wait for both
            job, action = self._jobs[name], going[name]
            if isinstance(action, Suspend):
                known[name] = overheads.end_s
            else:
                fresh = set(_devices(action.placement)) - set(_devices(job.placement))
                free_s = max((seconds(leavers[device]) for device in fresh if device in leavers), default=0.0)
                # Whoever starts changes when it has started.
                free_s = max(free_s, job.resume_s - self.now_s, 0.0)
                known[name] = free_s + (overheads.grow_s if fresh else 0.0) + overheads.shrink_s
            return known[name]

        return {device: seconds(name) for device, name in leavers.items()}

    def _apply(self, action: Action, found: Round, leaving: Mapping[Device, float]) -> None:
        if isinstance(action, Reject):
            return
        job = self._jobs[action.job]
        if isinstance(action, Suspend):
            job.hold(self.now_s, (), (), 0.0, 0.0)
            job.num_suspensions += 1
            return
        share, placement = found.plan.shares[action.job], action.placement
        scattered = len(placement) > 1 and not topology_of(self.cluster).is_compact(placement)
        job.speed = 1.0
        if not self.cluster.all_well:
            job.speed = min(node.speed for node in topology_of(self.cluster).nodes_of(placement))
        rate = job.spec.rate(share.counts, scattered=scattered, batch_size=share.batch_size) * job.speed
        fresh, held = job.started_s is None, not isinstance(action, Start)
        overheads, workers = self.config.overheads, share.num_devices
        pause_s, lead_s = overheads.pause_s(job.spec.model, workers, fresh=fresh, held=held), 0.0
        fresh_devices = set(_devices(placement)) - set(_devices(job.placement)) if leaving or overheads.grow_s else ()
        if leaving:
            lead_s = max((leaving.get(device, 0.0) for device in fresh_devices), default=0.0)
        if held and (overheads.start is not None or overheads.grow_s):
            # It trains as it does until its new workers are ready, or is not even that far.
            lead_s = job.train_on(self.now_s, lead_s + (overheads.grow_s if fresh_devices else 0.0))
        match action:
            case Resize():
                job.num_resizes += 1
            case Migrate():
                job.num_migrations += 1
            case Start():
                pass
        job.hold(self.now_s, share.counts, placement, rate, pause_s, lead_s)


def _devices(placement: Placement) -> Iterator[Device]:
    """The devices of a placement, one by one."""
    for block in placement:
        for slot in range(block.start, block.start + block.size):
            yield block.kind, slot
