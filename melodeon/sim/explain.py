"""Why a job got what it got, in sentences: what it asked for, the answer, every change with its reason, the end.

Reasons are those that the policy gave in its rounds. What it did not have to say is worked out from the record: who
held the devices while the job waited.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from math import ceil

from melodeon.core.errors import NotFound
from melodeon.core.plan import Placement
from melodeon.core.text import plain
from melodeon.placement.topology import topology_of
from melodeon.sim.clock import length, moment
from melodeon.sim.record import Change, Job, Record, Span, cluster_of, placement_of, spans


@dataclass(frozen=True, slots=True)
class Sentence:
    """Something that happened to a job."""

    at_s: float | None
    """When; None: it is about the whole."""
    text: str
    is_change: bool = False
    """One of possibly many changes of its devices."""


def explain(found: Record, name: str) -> list[Sentence]:
    """The job's story, in order."""
    job = find_job(found, name)
    told = [_asked(found, job), _answered(found, job)]
    if job.admitted:
        told += _story(found, job)
        told.append(_ended(found, job))
    return told


def find_job(found: Record, name: str) -> Job:
    """A job by its id or the beginning of it."""
    if name in found.jobs:
        return found.jobs[name]
    fitting = [job for known, job in found.jobs.items() if name and known.startswith(name)]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise NotFound(f"job {name!r} could be any of {_some([job.id for job in fitting])}: give more of its id")
    near = get_close_matches(name, found.jobs, n=1, cutoff=0.6)
    some = f"did you mean {near[0]!r}?" if near else f"its jobs are {_some(list(found.jobs))}"
    raise NotFound(f"job {name!r} is not in {plain(found.head.trace)}: {some}")


def short(name: str) -> str:
    """A long id by its beginning, which is enough to ask for it."""
    return name if len(name) <= 12 else name[:8]


def where(found: Record, placement: Placement) -> str:
    """`node003 (devices 0-3)`, `node000 to node003`: the places of a job in few words."""
    topology = topology_of(cluster_of(found.head))
    order = [machine.id for machine in found.head.nodes]
    devices: dict[str, list[int]] = {}
    sizes: dict[str, int] = {}
    for node, index in topology.devices_of(placement):
        devices.setdefault(node.id, []).append(index)
        sizes[node.id] = node.num_devices
    names = sorted(devices, key=order.index)
    parts: list[str] = []
    runs: list[list[str]] = []
    for name in names:
        whole = len(devices[name]) == sizes[name]
        if not whole:
            parts.append(f"{name} (device{'s' if len(devices[name]) > 1 else ''} {_ranges(devices[name])})")
        elif runs and order.index(runs[-1][-1]) + 1 == order.index(name):
            runs[-1].append(name)
        else:
            runs.append([name])
    full = [run[0] if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs]
    return ", ".join([*full, *parts])


def _asked(found: Record, job: Job) -> Sentence:
    what = ", ".join(part for part in (job.model, f"batch size {job.batch_size}" if job.batch_size else "") if part)
    text = f"submitted{f' ({what})' if what else ''}: {job.iterations:,.0f} iterations"
    if job.duration_s:
        text += f", recorded as {length(job.duration_s)} on {_devices(job.requested_workers)}"
    else:
        text += f" on {_devices(job.requested_workers)}"
    if job.deadline_s is None:
        return Sentence(job.submit_s, text + "; best effort, no deadline")
    kind = "soft deadline" if job.goal == "soft" else "deadline"
    text += f"; {kind} {_at(found, job.deadline_s)}"
    if job.deadline_s < job.submit_s:
        return Sentence(job.submit_s, f"{text}, {length(job.submit_s - job.deadline_s)} before its submission")
    tight = f", {job.tightness:.2f} of that length" if job.tightness else ""
    return Sentence(job.submit_s, f"{text}, {length(job.deadline_s - job.submit_s)} later{tight}")


def _answered(found: Record, job: Job) -> Sentence:
    if job.admitted:
        return Sentence(None, f"{found.head.policy} admitted it: {job.why}")
    at_s = next((c.at_s for c in found.changes if c.job == job.id and c.what == "reject"), None)
    text = f"{found.head.policy} turned it away: {job.why}"
    if job.earliest_deadline_s is not None and job.deadline_s is not None:
        # Up to a whole second, since a clock that shows less would name one that was refused.
        earliest_s = found.head.start_s + ceil(job.earliest_deadline_s - found.head.start_s)
        later = length(earliest_s - job.deadline_s)
        text += f". A deadline of {_at(found, earliest_s)} would have been accepted, {later} later than its own"
    return Sentence(at_s, text)


def _story(found: Record, job: Job) -> Iterator[Sentence]:
    changes = [change for change in found.changes if change.job == job.id]
    held = list(spans(found))
    before: Change | None = None
    free_since: float | None = job.submit_s
    for change in changes:
        if change.blocks and free_since is not None and change.at_s > free_since:
            yield _waited(found, job, held, free_since, change.at_s)
        yield Sentence(change.at_s, _changed(found, before, change), is_change=True)
        free_since = None if change.blocks else change.at_s
        before = change if change.blocks else None
    if free_since is not None and job.finished_s is None and found.head.end_s > free_since:
        yield _waited(found, job, held, free_since, found.head.end_s)


def _waited(found: Record, job: Job, held: list[Span], from_s: float, to_s: float) -> Sentence:
    """Who had the devices meanwhile."""
    share: dict[str, float] = {}
    by_type: dict[str, float] = {}
    for span in held:
        both = min(span.to_s, to_s) - max(span.from_s, from_s)
        if both > 0 and span.job != job.id:
            part = both / (to_s - from_s)
            share[span.job] = share.get(span.job, 0.0) + part * span.change.devices
            for kind, _, size in span.change.blocks:
                by_type[kind] = by_type.get(kind, 0.0) + part * size
    there: dict[str, int] = {}
    for machine in found.head.nodes:
        there[machine.type] = there.get(machine.type, 0) + machine.devices
    text = f"waited {length(to_s - from_s)}: "
    slot_s = found.head.slot_s
    if sum(share.values()) < 0.995 * sum(there.values()) and slot_s and to_s - from_s <= slot_s:
        return Sentence(from_s, text + f"decisions are taken every {length(slot_s)}")
    # Of several types one may be idle: a policy that keeps a job on another does not use it.
    name_of = {kind: kind if len(there) > 1 else "devices" for kind in there}
    text += " and ".join(f"{by_type.get(kind, 0.0):.0f} of {count} {name_of[kind]}" for kind, count in there.items())
    text += " were held"
    most = sorted(share.items(), key=lambda item: -item[1])[:3]
    named = ", ".join(f"{short(name)} ({devices:.0f})" for name, devices in most if devices >= 0.5)
    return Sentence(from_s, text + (f", most by jobs {named}" if named else ""))


def _changed(found: Record, before: Change | None, change: Change) -> str:
    place = where(found, placement_of(change)) if change.blocks else ""
    much = _counts(change)
    match change.what:
        case "start":
            text = f"started on {much}, {place}"
        case "resume":
            text = f"went on with {much}, {place}"
        case "resize":
            old = before.devices if before else 0
            verb = "grew" if change.devices > old else "shrank" if change.devices < old else "changed"
            same = before is None or _kinds(before) == _kinds(change)
            text = f"{verb} from {old if before is None or same else _counts(before)} to {much}, {place}"
        case "migrate":
            text = f"moved to {place}"
        case "suspend":
            text = "was stopped"
        case "lose":
            text = "lost its devices"
        case _:
            text = change.what
    pause = f", with a pause of {length(change.pause_s)}" if change.pause_s else ""
    return f"{text}{pause}" + (f": {change.why}" if change.why else "")


def _ended(found: Record, job: Job) -> Sentence:
    if job.finished_s is None:
        late = " and its deadline is past" if job.deadline_s is not None and job.deadline_s < found.head.end_s else ""
        return Sentence(None, f"not finished when the simulation ended{late}")
    text = "finished"
    if job.deadline_s is not None:
        early = job.deadline_s - job.finished_s
        text += f" {length(abs(early))} {'before' if early >= 0 else 'after'} its deadline"
    jct_s = job.finished_s - job.submit_s
    ran_s = sum(span.to_s - span.from_s for span in spans(found) if span.job == job.id)
    text += f", {length(jct_s)} after its submission: it waited {length(max(0.0, jct_s - ran_s))}"
    if job.pause_s:
        text += f", stood still for {length(job.pause_s)} in changes"
    if ran_s:
        text += f" and held {job.service_s / ran_s:.1f} devices on average"
    return Sentence(job.finished_s, text)


def _at(found: Record, seconds: float) -> str:
    return moment(seconds - found.head.start_s)


def _kinds(change: Change) -> set[str]:
    return {kind for kind, _, _ in change.blocks}


def _counts(change: Change) -> str:
    counts: dict[str, int] = {}
    for kind, _, size in change.blocks:
        counts[kind] = counts.get(kind, 0) + size
    return " and ".join(f"{count} {kind}" for kind, count in counts.items())


def _devices(count: int) -> str:
    return f"{count} device{'' if count == 1 else 's'}"


def _ranges(numbers: list[int]) -> str:
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][-1] + 1 == number:
            runs[-1][-1:] = [runs[-1][-1], number] if len(runs[-1]) == 1 else [number]
        else:
            runs.append([number])
    return ", ".join("-".join(map(str, run)) for run in runs)


def _some(names: list[str], most: int = 5) -> str:
    return plain(", ".join(names[:most])) + (f" and {len(names) - most} more" if len(names) > most else "")
