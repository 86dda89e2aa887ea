"""The state as the service says it: jobs, nodes, the cluster, charts. Nothing is decided here."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain

from melodeon.backends.fleet_values import Seen
from melodeon.control.events import Ended, Entry, Moved, Paused
from melodeon.control.job import Job
from melodeon.control.rounds import World
from melodeon.control.specs import UNKNOWN, bounds, known_curves, length_of, types_of
from melodeon.control.state import State
from melodeon.control.store import Sample, SpanRow
from melodeon.core.cluster import Cluster
from melodeon.core.service import Device, JobInfo, NodeInfo, Phase, Series, Span, Timeline
from melodeon.core.text import counted


def job_info(
    job: Job, state: State, world: World, seen: Seen | None, planned_at: float | None, *, job_dir: str, now: float
) -> JobInfo:
    """A job as it stands."""
    spec, known = world.book.spec(job), state.known.get(job.signature, UNKNOWN)
    if seen is not None and seen.incarnation != job.incarnation:
        seen = None
    held = job.slots if not job.alive else job.on or job.slots
    step = max(job.step, seen.step) if seen is not None and job.alive else job.step
    total = length_of(job, spec, known)
    curve = _curve(job, state, world)
    count = sum(len(indices) for indices in held.values())
    rate = (seen.rates.get(count) if seen else None) or curve.get(str(count))
    if not curve or not total:
        planned_at = None  # played forward on a guess, which is good for decisions and not for people
    if planned_at is None and job.training and rate and total and not job.over:
        planned_at = now + max(0, total - step) / rate
    most = max((bounds(spec, world.cluster, kind, known)[1] for kind in types_of(spec, world.cluster)), default=0)
    return JobInfo(
        id=job.id,
        name=spec.name,
        user=job.user,
        phase=job.phase,
        why=job.stuck or (_too_large(spec.min_workers, most) if job.phase is Phase.WAITING else "") or job.why,
        goal=spec.goal.value,
        submitted_at=job.submitted_at,
        deadline_at=job.deadline_at,
        started_at=job.first_started_at,
        finished_at=job.finished_at,
        planned_finish_at=None if job.over else planned_at,
        earliest_deadline_at=job.earliest_at,
        workers=0 if job.over else count,
        min_workers=spec.min_workers,
        max_workers=max(most, spec.min_workers),
        override=job.override,
        devices=() if job.over else devices(held, world.cluster),
        step=step,
        total_steps=total,
        steps_per_s=rate if job.training else None,
        metrics=dict(seen.metrics) if seen else {},
        priority=spec.priority,
        curve=curve,
        num_resizes=job.num_resizes,
        num_suspensions=job.num_suspensions,
        pause_s=job.pause_s + max(job.pause_now_s, seen.pause_s if seen and job.alive else 0.0),
        incarnation=job.incarnation,
        run_dir=f"{job_dir}/{job.id}.{job.incarnation}" if job.incarnation else "",
        digest=job.digest,
        exit_code=job.exit_code,
        warnings=job.warnings,
        spec=job.spec,
    )


def _too_large(fewest: int, most: int) -> str:
    """Why it waits in vain: a cluster that came back with fewer devices takes up jobs that it would refuse."""
    if fewest <= most:
        return ""
    return (
        f"it needs at least {counted(fewest, 'worker')} and the cluster has {counted(most, 'device')} that it may use"
    )


def _curve(job: Job, state: State, world: World) -> dict[str, float]:
    """Steps a second by workers, on the type that it is on, or the first that is known."""
    known = state.known.get(job.signature, UNKNOWN)
    if not known.by_type and "curve" not in job.spec:
        return {}
    if job.over:
        curves = known_curves(world.book.spec(job), known, world.cluster)
    else:
        curves = world.book.told(job, known, state.origin or 0.0).curves
    on = job.counts[0][0] if job.counts else None
    chosen = next((curve for kind, curve in curves if kind == on), curves[0][1] if curves else None)
    return {str(size): rate for size, rate in chosen.points} if chosen is not None else {}


def devices(slots: Mapping[str, tuple[int, ...]], cluster: Cluster) -> tuple[Device, ...]:
    """Devices by their names."""
    types: dict[str, str] = {node.id: node.device_type for node in cluster.nodes}
    return tuple(
        Device(node=node, index=index, type=types.get(node, ""))
        for node, indices in sorted(slots.items())
        for index in indices
    )


def node_infos(state: State, cluster: Cluster) -> tuple[NodeInfo, ...]:
    """The nodes, and who holds their devices."""
    holders: dict[tuple[str, int], str] = {}
    for job in state.live.values():
        for node, indices in (job.on if job.alive and job.on else job.slots).items():
            holders.update({(node, index): job.id for index in indices})
    found = []
    for machine in cluster.nodes:
        up, drained = state.down.get(machine.id, (True, False))
        found.append(
            NodeInfo(
                id=machine.id,
                type=machine.device_type,
                rack=machine.rack,
                up=up,
                drained=drained,
                num_devices=machine.num_devices,
                jobs=tuple(holders.get((machine.id, index)) for index in range(machine.num_devices)),
            )
        )
    return tuple(found)


def phases(state: State) -> dict[str, int]:
    """How many jobs are in each phase."""
    found = {phase.value: 0 for phase in Phase}
    for job in chain(state.live.values(), state.past.values()):
        found[job.phase.value] += 1
    return found


def timeline(rows: tuple[SpanRow, ...], cluster: Cluster, since: float, until: float) -> Timeline:
    """Who held what."""
    spans = tuple(
        Span(job=row.job, devices=devices(row.slots, cluster), began_at=row.began, ended_at=row.ended, why=row.why)
        for row in rows
    )
    return Timeline(since=since, until=until, spans=spans, capacity=sum(n.num_devices for n in cluster.nodes))


def to_come(planned: Iterable[Span], now: float, until: float) -> tuple[Span, ...]:
    """What is left of planned shares, up to a moment: they were worked out a while ago."""
    left = (replace(span, began_at=max(now, span.began_at)) for span in planned)
    return tuple(span for span in left if span.began_at < min(until, span.ended_at or until))


def series(samples: tuple[Sample, ...], held: tuple[SpanRow, ...], log: Iterable[Entry]) -> Series:
    """What a job did over time; `log` is its own part of the cluster's."""
    names = sorted({name for sample in samples for name in sample.metrics})
    columns: dict[str, tuple[float | None, ...]] = {
        "step": tuple(float(sample.step) for sample in samples),
        "at": tuple(sample.at for sample in samples),
    }
    for name in names:
        columns[name if name not in columns else f"{name}_"] = tuple(s.metrics.get(name) for s in samples)
    changes: list[tuple[float, float]] = []
    for row in held:
        count = float(sum(len(indices) for indices in row.slots.values()))
        if changes and changes[-1] == (row.began, 0.0):
            changes.pop()
        changes.append((row.began, count))
        if row.ended is not None:
            changes.append((row.ended, 0.0))
    columns["workers_at"] = tuple(at for at, _ in changes)
    columns["workers"] = tuple(count for _, count in changes)
    pauses = tuple(_pauses(log))
    columns["pause_at"] = tuple(at for at, _ in pauses)
    columns["pause_s"] = tuple(seconds for _, seconds in pauses)
    return Series(columns=columns)


def _pauses(log: Iterable[Entry]) -> Iterator[tuple[float, float]]:
    """When it stood still because its workers changed, and for how long; facts carry sums of one incarnation."""
    sums: dict[int, float] = {}
    for entry in log:
        if isinstance(entry.fact, Moved | Paused | Ended):
            before = sums.get(entry.fact.incarnation, 0.0)
            seconds = round(entry.fact.pause_s - before, 6)
            if seconds > 0:
                sums[entry.fact.incarnation] = entry.fact.pause_s
                yield entry.at, seconds
