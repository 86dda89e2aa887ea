"""Earliest deadline first with admission control: a newcomer must fit into the schedule without making anybody late.

The schedule is that of plain EDF played forward: every job at its fastest size, in order of deadline, in whatever time
the earlier deadlines leave.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from melodeon.core.cluster import DeviceType
from melodeon.core.clusterview import ClusterView, JobState
from melodeon.core.jobs import Goal, JobId
from melodeon.core.plan import Share, Verdict
from melodeon.sched.gang import Room, share
from melodeon.sched.policy import Decision
from melodeon.sched.profile import Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class EdfAdmission:
    """The policy, with its option."""

    widest: bool = False
    """Give each job the most devices it was measured on, past its best speed too, as ElasticFlow's own code does."""

    def admit(self, view: ClusterView, job: JobState, state: object) -> tuple[Verdict, object]:
        """Admit if the schedule with it makes nobody late who was in time without it."""
        if job.spec.goal is not Goal.HARD:
            return Verdict(job.spec.id, admitted=True, why="only hard deadlines are judged"), state
        newcomer = replace(job, admitted_s=view.now_s)
        before = _late(view, view.admitted, self.widest)
        after = _late(view, (*view.admitted, newcomer), self.widest)
        if after <= before:
            return Verdict(job.spec.id, admitted=True, why="its deadline and all others can be met in EDF order"), state
        why = "in EDF order it would be late" if job.spec.id in after else "in EDF order it would make another job late"
        return Verdict(job.spec.id, admitted=False, why=why), state

    def decide(self, view: ClusterView, state: object) -> Decision:
        """In order of deadline, everybody who fits."""
        room = Room(view)
        shares: dict[JobId, Share] = {}
        for place, job in enumerate(sorted(view.admitted, key=_deadline)):
            counts = room.take(job, room.widest(job.spec) if self.widest else room.fastest(job.spec))
            if counts is not None:
                shares.update([share(job, counts, f"number {place + 1} by deadline among those admitted")])
            if room.is_empty:
                break
        return Decision(shares, state)


def _deadline(job: JobState) -> float:
    return job.spec.deadline_s if job.spec.deadline_s is not None else float("inf")


def _late(view: ClusterView, jobs: Iterable[JobState], widest: bool) -> set[JobId]:
    """Who misses a hard deadline when the schedule is played forward."""
    room = Room(view)
    lines: dict[DeviceType, Profile] = {kind: Profile(view.now_s, n) for kind, n in view.cluster.capacity}
    late: set[JobId] = set()
    for job in sorted(jobs, key=_deadline):
        wants = room.widest(job.spec) if widest else room.fastest(job.spec)
        if not wants:
            late.add(job.spec.id)
            continue
        kind, workers = next(((k, w) for k, w in wants if job.held(k)), wants[0])
        curve = job.spec.curve(kind)
        assert curve is not None, "offers are made on types with a curve only"
        busy_s = job.remaining / curve.rate(workers)
        busy_s += max(0.0, job.resume_s - view.now_s)
        end_s = _run(lines[kind], view.now_s, workers, busy_s)
        if job.spec.goal is Goal.HARD and end_s > _deadline(job):
            late.add(job.spec.id)
    return late


def _run(line: Profile, now_s: float, workers: int, busy_s: float) -> float:
    """Take the earliest moments at which `workers` are free, for `busy_s` in all; when they are over."""
    index, pieces, position = 0, [], now_s
    while busy_s > 0:
        end = line.times[index + 1] if index + 1 < len(line.times) else float("inf")
        if line.capacity - line.used[index] >= workers:
            stop = min(end, position + busy_s)
            pieces.append((position, stop))
            busy_s -= stop - position
            if stop < end:
                position = stop
                break
        position, index = end, index + 1
    for start, stop in pieces:
        line.add(start, stop, workers)
    return pieces[-1][1] if pieces else position
