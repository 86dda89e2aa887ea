"""A simulation as it is kept: what each job was and became, and every change of its devices, with reasons.

A pure value made from a `SimResult`; `results` writes and reads it, `plots` and `explain` look at nothing else. The
engine logs what rounds decide; devices that a failing node takes are worked out from the incidents.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import PurePath
from typing import Literal

import msgspec

from melodeon.core.cluster import Cluster, DeviceType, Node, NodeId
from melodeon.core.jobs import JobId
from melodeon.core.plan import Block, Migrate, Placement, Reject, Resize, Start, Suspend
from melodeon.placement.topology import topology_of
from melodeon.sim.engine import Logged, SimResult
from melodeon.sim.incidents import Incident
from melodeon.sim.live import JobOutcome
from melodeon.sim.metrics import summarize

VERSION = 1
What = Literal["start", "resume", "resize", "migrate", "suspend", "lose", "reject"]


def cluster_name(text: str) -> str:
    """A cluster as it was given, of a spec file only its name without the folders."""
    return PurePath(text).name


class Machine(msgspec.Struct, frozen=True, array_like=True):
    """A node: name, device type, devices, rack."""

    id: str
    type: str
    devices: int
    rack: str = ""


class Head(msgspec.Struct, frozen=True, kw_only=True, tag="sim", tag_field="kind"):
    """The first line: what was simulated."""

    version: int = VERSION
    trace: str
    policy: str
    cluster: str
    """As a person would write it."""
    nodes: tuple[Machine, ...]
    slot_s: float
    seed: int
    start_s: float
    """The first submission."""
    end_s: float
    """The last completion."""

    @property
    def cluster_name(self) -> str:
        """The cluster in few letters: of a spec file only its name."""
        return cluster_name(self.cluster)


class Job(msgspec.Struct, frozen=True, kw_only=True, tag="job", tag_field="kind", omit_defaults=True):
    """A job and what became of it; times are on the simulation's clock."""

    id: str
    model: str = ""
    batch_size: int = 0
    user: str = ""
    goal: Literal["hard", "soft", "best_effort"] = "hard"
    submit_s: float
    deadline_s: float | None = None
    duration_s: float | None = None
    iterations: float
    requested_workers: int
    admitted: bool
    why: str
    """What it was told when it was admitted or turned away."""
    earliest_deadline_s: float | None = None
    started_s: float | None = None
    finished_s: float | None = None
    service_s: float = 0.0
    pause_s: float = 0.0

    @property
    def tightness(self) -> float | None:
        """The time that its deadline leaves over its recorded duration."""
        if self.deadline_s is None or not self.duration_s:
            return None
        return (self.deadline_s - self.submit_s) / self.duration_s

    @property
    def in_time(self) -> bool:
        """Whether it had a deadline and met it."""
        return self.deadline_s is not None and self.finished_s is not None and self.finished_s <= self.deadline_s


class Change(msgspec.Struct, frozen=True, kw_only=True, tag="change", tag_field="kind", omit_defaults=True):
    """From `at_s` on the job holds these devices."""

    at_s: float
    job: str
    what: What
    blocks: tuple[tuple[str, int, int], ...] = ()
    """(device type, first slot, slots), as in a placement; empty: it holds none."""
    pause_s: float = 0.0
    """It trains only after so long."""
    why: str = ""

    @property
    def devices(self) -> int:
        """How many it holds from now on."""
        return sum(size for _, _, size in self.blocks)


class Failure(msgspec.Struct, frozen=True, kw_only=True, tag="incident", tag_field="kind", omit_defaults=True):
    """A node that goes down, comes back or changes its speed."""

    at_s: float
    node: str
    up: bool = True
    speed: float = 1.0


class Metrics(msgspec.Struct, frozen=True, kw_only=True, tag="metrics", tag_field="kind"):
    """The last line: every figure."""

    values: dict[str, int | float | None]


Line = Head | Job | Change | Failure | Metrics


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One simulation, whole."""

    head: Head
    jobs: dict[str, Job]
    """In order of submission."""
    changes: tuple[Change, ...]
    """In order of time."""
    failures: tuple[Failure, ...]
    metrics: Metrics


class Span(msgspec.Struct, frozen=True):
    """A time in which a job held the same devices."""

    job: str
    from_s: float
    to_s: float
    change: Change


def record(result: SimResult, *, trace: str, policy: str, cluster: str, seed: int) -> Record:
    """What is worth keeping of a simulation."""
    config = result.config
    nodes = tuple(Machine(n.id, n.device_type, n.num_devices, n.rack) for n in config.cluster.nodes)
    head = Head(
        trace=trace,
        policy=policy,
        cluster=cluster,
        nodes=nodes,
        slot_s=config.slot_s,
        seed=seed,
        start_s=result.start_s,
        end_s=result.end_s,
    )
    incidents = tuple(i for i in sorted(config.incidents) if i.at_s <= result.end_s)
    return Record(
        head=head,
        jobs={o.id: _job(o) for o in result.outcomes},
        changes=tuple(_changes(result, incidents)),
        failures=tuple(_failures(config.cluster, incidents)),
        metrics=Metrics(values=asdict(summarize(result))),
    )


def cluster_of(head: Head) -> Cluster:
    """The cluster that was simulated, every node up."""
    return Cluster(
        tuple(
            Node(id=NodeId(n.id), device_type=DeviceType(n.type), num_devices=n.devices, rack=n.rack)
            for n in head.nodes
        )
    )


def placement_of(change: Change) -> Placement:
    """Where a job runs from a change on."""
    return tuple(Block(DeviceType(kind), start, size) for kind, start, size in change.blocks)


def spans(found: Record) -> Iterator[Span]:
    """Every time in which a job held devices, in order of its start."""
    held: dict[str, Change] = {}
    made: list[Span] = []
    for change in found.changes:
        before = held.pop(change.job, None)
        if before is not None:
            made.append(Span(change.job, before.at_s, change.at_s, before))
        if change.blocks:
            held[change.job] = change
    for name, change in held.items():
        finished_s = found.jobs[name].finished_s
        made.append(Span(name, change.at_s, found.head.end_s if finished_s is None else finished_s, change))
    return iter(sorted((span for span in made if span.to_s > span.from_s), key=lambda span: span.from_s))


def _job(outcome: JobOutcome) -> Job:
    """Every field of a job has the same name in its outcome or, if not there, in its spec."""
    names = Job.__struct_fields__
    return Job(**{name: getattr(outcome if hasattr(outcome, name) else outcome.spec, name) for name in names})


def _failures(cluster: Cluster, incidents: tuple[Incident, ...]) -> Iterator[Failure]:
    """How every incident leaves its node."""
    for incident in incidents:
        cluster = cluster.with_node(incident.node, up=incident.up, speed=incident.speed)
        node = cluster.node(incident.node)
        yield Failure(at_s=incident.at_s, node=node.id, up=node.up, speed=node.speed)


def _changes(result: SimResult, incidents: tuple[Incident, ...]) -> Iterator[Change]:
    """The log, and between its lines what failing nodes take."""
    outcomes = {o.id: o for o in result.outcomes}
    cluster = result.config.cluster
    held: dict[JobId, Placement] = {}
    # Incidents at a moment come before the round that answers them.
    events: list[Incident | Logged] = [*incidents, *result.log]
    for event in sorted(events, key=lambda event: event.at_s):
        if isinstance(event, Logged):
            yield _change(result, event, outcomes, held)
            continue
        if event.up is not False:
            continue
        for name in _losers(cluster, event.node, held, outcomes, event.at_s):
            del held[name]
            yield Change(at_s=event.at_s, job=name, what="lose", why=f"{event.node} failed")


def _losers(
    cluster: Cluster,
    node: NodeId,
    held: Mapping[JobId, Placement],
    outcomes: Mapping[JobId, JobOutcome],
    at_s: float,
) -> list[JobId]:
    topology = topology_of(cluster)
    found: list[JobId] = []
    for name, placement in held.items():
        finished_s = outcomes[name].finished_s
        still_there = finished_s is None or finished_s > at_s
        if still_there and any(there.id == node for there in topology.nodes_of(placement)):
            found.append(name)
    return found


def _change(
    result: SimResult, logged: Logged, outcomes: Mapping[JobId, JobOutcome], held: dict[JobId, Placement]
) -> Change:
    action, at_s = logged.action, logged.at_s
    what: What
    placement: Placement = ()
    fresh = False
    match action:
        case Reject():
            return Change(at_s=at_s, job=action.job, what="reject", why=action.why)
        case Suspend():
            held.pop(action.job, None)
            return Change(at_s=at_s, job=action.job, what="suspend", why=action.why)
        case Start():
            fresh = outcomes[action.job].started_s == at_s
            what, placement = "start" if fresh else "resume", action.placement
        case Resize():
            what, placement = "resize", action.placement
        case Migrate():
            what, placement = "migrate", action.placement
    held[action.job] = placement
    workers = sum(block.size for block in placement)
    return Change(
        at_s=at_s,
        job=action.job,
        what=what,
        blocks=tuple((block.kind, block.start, block.size) for block in placement),
        pause_s=result.config.overheads.pause_s(
            outcomes[action.job].spec.model, workers, fresh=fresh, held=not isinstance(action, Start)
        ),
        why=action.why,
    )
