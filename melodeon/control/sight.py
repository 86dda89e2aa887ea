"""What is seen of running jobs, as facts for the log and as progress for rounds.

Only what changes a decision or a person's picture becomes a fact: that training began, that workers moved, that it
ended, that its speed is not what was thought. Steps and metrics are samples: seen again after a restart.
"""

from collections.abc import Iterator, Mapping

from melodeon.backends.fleet_values import Seen
from melodeon.control.curves import NOTHING, Known, corrections, slower
from melodeon.control.events import (
    AnyFact,
    CurveMeasured,
    Ended,
    Moved,
    Paused,
    ProfileFailed,
    Sized,
    Stuck,
    Training,
    Warned,
)
from melodeon.control.hands import Profiled, Report, Trouble
from melodeon.control.job import Job
from melodeon.control.rounds import Progress
from melodeon.control.state import State
from melodeon.control.store import Sample
from melodeon.core.service import Phase
from melodeon.core.text import plain

CORRECT_S = 5.0
"""A curve is corrected at most so often: a decision should stand for a while."""
SHARING, CORRECT_MOST_S = 10, 60.0
"""One that more jobs share is corrected less often, in proportion: each time all of them are judged by it again."""
WARNINGS = 20
"""Sentences of its workers that are kept of a job."""
SAMPLE_S, SAMPLES = 1.0, 1500
"""The first samples of a job are so far apart; later ones further, so that there are about as many for any length."""


class Sight:
    """The newest of every job that runs."""

    def __init__(self, types: Mapping[str, str]) -> None:
        self._types = types
        """Device type by node."""
        self.seen: dict[str, Seen] = {}
        self._seen_at: dict[str, float] = {}
        self._corrected: dict[str, float] = {}
        """When the curve of a signature was last corrected."""
        self._sampled: dict[str, tuple[float, int]] = {}

    def take(self, state: State, report: Report, now: float) -> Iterator[AnyFact]:
        """The facts in a report; those of an incarnation that is no longer the job's are none."""
        job = state.live.get(report.job)
        if job is None or report.incarnation != job.incarnation or not job.alive:
            return
        match report:
            case Seen():
                self.seen[job.id], self._seen_at[job.id] = report, now
                yield from self._changes(job, report)
                if report.ended is None:
                    yield from self._curve(state, job, report, now)
            case Profiled():
                yield from self._profiled(job, report)
            case Trouble(text=text) if text != job.stuck:
                yield Stuck(job=job.id, text=text)

    def progress(self, state: State) -> dict[str, Progress]:
        """How far every job is."""
        found = {}
        for name, seen in self.seen.items():
            job = state.live.get(name)
            if job is not None and job.alive and seen.incarnation == job.incarnation:
                settled = seen.training and _same(seen.slots, job.slots)
                found[name] = Progress(seen.step, self._seen_at[name], seen.rates.get(job.num_devices, 0.0), settled)
        return found

    def samples(self, reports: Iterator[Report], state: State, now: float) -> Iterator[Sample]:
        """What is worth keeping for charts."""
        for report in reports:
            if not isinstance(report, Seen) or report.job not in state.live or not report.step:
                continue
            last, count = self._sampled.get(report.job, (0.0, 0))
            apart = SAMPLE_S * (1 + count // SAMPLES) ** 2
            if now - last >= apart or report.ended is not None:
                self._sampled[report.job] = (now, count + 1)
                yield Sample(report.job, now, report.step, report.metrics)

    def forget(self, state: State) -> None:
        """Drop what is kept of jobs that are over."""
        tables: tuple[dict[str, Seen] | dict[str, float] | dict[str, tuple[float, int]], ...] = (
            self.seen,
            self._seen_at,
            self._sampled,
        )
        for table in tables:
            for name in table.keys() - state.live.keys():
                del table[name]
        for signature in self._corrected.keys() - {job.signature for job in state.live.values()}:
            del self._corrected[signature]

    def _changes(self, job: Job, seen: Seen) -> Iterator[AnyFact]:
        name, number = job.id, job.incarnation
        virtual = None if "virtual_workers" in job.spec else seen.virtual_workers
        sized = (seen.total_steps, seen.steps_per_epoch, virtual)
        had = (job.total_steps, job.steps_per_epoch, job.virtual_workers)
        # One that is to be started again does not know the job's newest file.
        if not job.again and any(new is not None and new != old for new, old in zip(sized, had, strict=True)):
            yield Sized(job=name, total_steps=sized[0], steps_per_epoch=sized[1], virtual_workers=sized[2])
        if seen.slots and not _same(seen.slots, job.on):
            slots = {node: tuple(sorted(indices)) for node, indices in seen.slots.items() if indices}
            yield Moved(job=name, incarnation=number, slots=slots, pause_s=seen.pause_s, step=seen.step)
        elif seen.ended is None and seen.pause_s > job.pause_now_s:
            yield Paused(job=name, incarnation=number, pause_s=seen.pause_s)
        if seen.training and not job.training:
            yield Training(job=name, incarnation=number, step=seen.step)
        if seen.ended is None and plain(seen.stuck) != job.stuck and (seen.stuck or seen.training):
            yield Stuck(job=name, text=plain(seen.stuck))
        new = [text for text in map(plain, seen.warnings) if text not in job.warnings]
        for text in new[: WARNINGS - len(job.warnings)]:
            yield Warned(job=name, text=text)
        if seen.ended is not None:
            how = seen.ended
            yield Ended(
                job=name,
                incarnation=number,
                status=how.status,
                exit_code=how.exit_code,
                reason=plain(how.reason),
                digest=how.digest,
                step=how.step,
                pause_s=seen.pause_s,
                ended_at=how.at,
            )

    def _kind(self, slots: Mapping[str, tuple[int, ...]]) -> str | None:
        """The type of device that it is on, where there is one."""
        kinds = {self._types[node] for node, indices in slots.items() if indices and node in self._types}
        return kinds.pop() if len(kinds) == 1 else None

    def _curve(self, state: State, job: Job, seen: Seen, now: float) -> Iterator[AnyFact]:
        kind = self._kind(seen.slots)
        if job.phase is not Phase.RUNNING or not seen.training or not seen.rates or kind is None:
            return
        last = self._corrected.get(job.signature, 0.0)
        if now - last < CORRECT_S:
            return
        curve = state.known.get(job.signature, Known()).by_type.get(kind, NOTHING)
        given = {int(size): rate for size, rate in job.spec.get("curve", {}).items()}
        new = corrections({**given, **curve.points}, seen.rates)
        found = {**{n: r for n, r in curve.points.items() if curve.sources[n] != "given"}, **seen.rates}
        struck = slower(found, curve.struck)
        if not new and not struck:
            return
        sharing = sum(other.signature == job.signature for other in state.live.values())
        learnt = bool(struck) or any(curve.sources.get(size) != "measured" for size in new)
        if learnt or now - last >= min(CORRECT_MOST_S, CORRECT_S * sharing / SHARING):
            self._corrected[job.signature] = now
            yield CurveMeasured(
                job=job.id, signature=job.signature, device_type=kind, points=new, source="measured", struck=struck
            )

    def _profiled(self, job: Job, report: Profiled) -> Iterator[AnyFact]:
        seen = self.seen.get(job.id)
        kind = job.counts[0][0] if job.counts else self._kind(seen.slots) if seen else None
        if report.rates and kind is not None:
            yield CurveMeasured(
                job=job.id, signature=job.signature, device_type=kind, points=report.rates, source="profiled"
            )
            return
        if seen is not None and seen.rates and kind is not None:
            yield CurveMeasured(
                job=job.id, signature=job.signature, device_type=kind, points=seen.rates, source="measured"
            )
        yield ProfileFailed(job=job.id, why=report.why or "nothing was measured")


def _same(one: Mapping[str, tuple[int, ...]], other: Mapping[str, tuple[int, ...]]) -> bool:
    if one == other:
        return True
    return {n: set(i) for n, i in one.items() if i} == {n: set(i) for n, i in other.items() if i}
