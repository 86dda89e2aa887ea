"""Earliest deadline first with admission control: a newcomer must fit into the schedule without making anybody late.

The schedule is that of plain EDF played forward: in order of deadline every job takes at each moment as many devices as
help it, or as many as the earlier deadlines leave, on the type that the policy would choose then, and stands still for
a pause whenever they change.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from msgspec.structs import replace

from melodeon.core.cluster import DeviceType
from melodeon.core.clusterview import ClusterView, JobState
from melodeon.core.jobs import Goal, JobId
from melodeon.core.plan import Verdict
from melodeon.sched.edf_rules import best, deadline, in_order, sizes
from melodeon.sched.policy import Decision
from melodeon.sched.profile import Profile

INFINITE = float("inf")
ROUNDING_S = 1e-5
"""A job that was admitted to end at its deadline is not late, and no longer minded, for a sum that is a bit higher."""


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
        after = _ends(view, (*view.admitted, newcomer), self.widest)
        late = [name for name, (end_s, due_s) in after.items() if end_s > due_s]
        if late and late != [job.spec.id]:
            # Perhaps some are late anyway.
            before = _ends(view, view.admitted, self.widest)
            late = [name for name in late if _was_better(before.get(name), after[name][0])]
        if not late:
            return Verdict(job.spec.id, admitted=True, why="its deadline and all others can be met in EDF order"), state
        why = "in EDF order it would be late" if job.spec.id in late else "in EDF order it would make another job late"
        return Verdict(job.spec.id, admitted=False, why=why), state

    def decide(self, view: ClusterView, state: object) -> Decision:
        """In order of deadline, until nothing is left."""
        return Decision(in_order(view, self.widest, " among those admitted"), state)


def _ends(view: ClusterView, jobs: Iterable[JobState], widest: bool) -> dict[JobId, tuple[float, float]]:
    """When every job with a hard deadline ends if the schedule is played forward, and when it should."""
    lines: dict[DeviceType, Profile] = {kind: Profile(view.now_s, n) for kind, n in view.cluster.capacity}
    ends: dict[JobId, tuple[float, float]] = {}
    for job in sorted(jobs, key=deadline):
        known = ((kind, sizes(job.spec, kind, view.cluster.count(kind), widest)) for kind, _ in job.spec.curves)
        fits = {kind: found for kind, found in known if found}
        end_s = _run(view, job, fits, lines) if fits else INFINITE
        if job.spec.goal is Goal.HARD:
            ends[job.spec.id] = end_s, deadline(job)[0]
    return ends


def _was_better(before: tuple[float, float] | None, end_s: float) -> bool:
    """Whether a job that ends so with the newcomer is in time without it, and earlier; None: it is the newcomer."""
    return before is None or (before[0] <= before[1] + ROUNDING_S and end_s > before[0] + ROUNDING_S)


def _run(
    view: ClusterView, job: JobState, fits: Mapping[DeviceType, tuple[int, ...]], lines: Mapping[DeviceType, Profile]
) -> float:
    """Take at every moment what the policy would give of what is free, until the work is done; when that is."""
    left, held, resume_s = job.remaining, job.counts, job.resume_s
    pieces: list[tuple[DeviceType, float, float, int]] = []
    end_s = view.now_s
    times = sorted({time for kind in fits for time in lines[kind].times})
    for start, stop in pairwise([*times, INFINITE]):
        free = [(kind, _reached(found, lines[kind], start)) for kind, found in fits.items()]
        offers = [(kind, workers) for kind, workers in free if workers]
        if not offers:
            held = ()
            continue
        kind, workers = best(job.spec, held, offers)
        if held != ((kind, workers),):
            fresh = job.started_s is None and not pieces
            resume_s = start + view.overheads.pause_s(job.spec.model, workers, fresh=fresh)
        held = ((kind, workers),)
        rate, begin = job.spec.rate(held), max(start, resume_s)
        end_s = begin + left / rate
        pieces.append((kind, start, min(stop, end_s), workers))
        if end_s <= stop:
            break
        left -= max(0.0, stop - begin) * rate
    for kind, start, stop, workers in pieces:
        lines[kind].add(start, stop, workers)
    return end_s


def _reached(fits: tuple[int, ...], line: Profile, at_s: float) -> int:
    """The largest size that is free at a moment; 0: none is."""
    reached = bisect_right(fits, line.capacity - line.used[bisect_right(line.times, at_s) - 1])
    return fits[reached - 1] if reached else 0
