"""Earliest deadline first with admission control: a newcomer must fit into the schedule without making anybody late.

The schedule is that of plain EDF played forward: in order of deadline every job takes at each moment as many devices as
help it, or as many as the earlier deadlines leave, and stands still for a pause whenever their number changes.
"""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from msgspec.structs import replace

from melodeon.core.cluster import DeviceType
from melodeon.core.clusterview import ClusterView, JobState
from melodeon.core.jobs import Goal, JobId
from melodeon.core.plan import Verdict
from melodeon.sched.edf_rules import deadline, in_order, sizes
from melodeon.sched.policy import Decision
from melodeon.sched.profile import Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class EdfAdmission:
    """The policy, with its option."""

    widest: bool = False
    """Give a job up to the most devices it was measured on, past its best speed too, as ElasticFlow's own code does."""

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
        """In order of deadline, until nothing is left."""
        return Decision(in_order(view, self.widest, " among those admitted"), state)


def _late(view: ClusterView, jobs: Iterable[JobState], widest: bool) -> set[JobId]:
    """Who misses a hard deadline when the schedule is played forward."""
    lines: dict[DeviceType, Profile] = {kind: Profile(view.now_s, n) for kind, n in view.cluster.capacity}
    late: set[JobId] = set()
    for job in sorted(jobs, key=deadline):
        offers = [(kind, found) for kind, n in view.cluster.capacity if (found := sizes(job.spec, kind, n, widest))]
        if not offers:
            late.add(job.spec.id)
            continue
        # A job stays on its type; one that waits goes where it is fastest.
        kind, fits = max(offers, key=lambda offer: (job.held(offer[0]) > 0, job.spec.rate(((offer[0], offer[1][-1]),))))
        end_s = _run(view, job, kind, fits, lines[kind])
        if job.spec.goal is Goal.HARD and end_s > deadline(job)[0]:
            late.add(job.spec.id)
    return late


def _run(view: ClusterView, job: JobState, kind: DeviceType, fits: tuple[int, ...], line: Profile) -> float:
    """Take at every moment the largest size that is free, until the work is done; when that is."""
    left, held, resume_s = job.remaining, job.held(kind), job.resume_s
    pieces: list[tuple[float, float, int]] = []
    end_s = view.now_s
    for index, start in enumerate(line.times):
        stop = line.times[index + 1] if index + 1 < len(line.times) else float("inf")
        reached = bisect_right(fits, line.capacity - line.used[index])
        workers = fits[reached - 1] if reached else 0
        if workers and workers != held:
            fresh = job.started_s is None and not pieces
            resume_s = start + view.overheads.pause_s(job.spec.model, workers, fresh=fresh)
        held = workers
        if not workers:
            continue
        rate, begin = job.spec.rate(((kind, workers),)), max(start, resume_s)
        end_s = begin + left / rate
        pieces.append((start, min(stop, end_s), workers))
        if end_s <= stop:
            break
        left -= max(0.0, stop - begin) * rate
    for start, stop, workers in pieces:
        line.add(start, stop, workers)
    return end_s
