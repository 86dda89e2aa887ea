"""One job of the cluster as a frozen value, and what each fact makes of it.

Phases move by `core.service.MOVES` and no other way. A fact that comes too late (an end of an incarnation that is no
longer the job's) changes nothing.
"""

from typing import Any

import msgspec
from msgspec.structs import replace

from melodeon.control.events import (
    AnyFact,
    CancelAsked,
    Edited,
    Ended,
    Judged,
    Late,
    Launched,
    Moved,
    Overridden,
    Paused,
    Planned,
    ProfileFailed,
    Sized,
    SlotTable,
    Stuck,
    Submitted,
    Training,
    Warned,
)
from melodeon.core.cluster import Counts
from melodeon.core.plan import Placement
from melodeon.core.service import MOVES, OVER, Phase

AGAIN = ("steps", "epochs", "until")
"""Fields that a running incarnation cannot take up: it is stopped and started again."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One job as it stands."""

    id: str
    number: int
    user: str
    spec: dict[str, Any]
    signature: str
    submitted_at: float
    deadline_at: float | None
    phase: Phase
    why: str = ""
    judged_at: float | None = None
    """When it was admitted or turned away; None: it is being measured."""
    earliest_at: float | None = None
    window_from: float = 0.0
    """From when its deadline is counted: its submission, or the last change of its deadline."""
    first_started_at: float | None = None
    finished_at: float | None = None
    override: int | None = None
    counts: Counts = ()
    """Devices that it was given, by type."""
    placement: Placement = ()
    slots: SlotTable = {}
    given_at: float = 0.0
    """Since when it has been given these."""
    service_s: float = 0.0
    """Device-seconds before `given_at`."""
    incarnation: int = 0
    launched_at: float = 0.0
    """When the incarnation was to be started."""
    alive: bool = False
    """The incarnation was launched and has not ended."""
    training: bool = False
    on: SlotTable = {}
    """Where its workers were last seen."""
    again: bool = False
    """The incarnation does not know the job's newest file: it shall stop, and the next one begin."""
    step: int = 0
    total_steps: int | None = None
    steps_per_epoch: int | None = None
    virtual_workers: int | None = None
    """As its script says, where its file does not."""
    pause_s: float = 0.0
    """In changes of its workers, of ended incarnations."""
    pause_now_s: float = 0.0
    """The same of this one."""
    num_resizes: int = 0
    num_suspensions: int = 0
    failures: int = 0
    digest: str | None = None
    exit_code: int | None = None
    late: bool = False
    stuck: str = ""
    warnings: tuple[str, ...] = ()
    """Sentences of its workers, each once, whichever of its starts they are from."""
    unmeasurable: bool = False
    """Its profile failed: it is judged by what was seen."""
    version: int = 0
    """Counts changes of what a policy is told of it."""

    @property
    def over(self) -> bool:
        """Whether nothing more will become of it."""
        return self.phase in OVER

    @property
    def num_devices(self) -> int:
        """Devices that it was given."""
        return sum(count for _, count in self.counts)


def moved(job: Job, phase: Phase, **changes: Any) -> Job:
    """The job in another phase; a move that is not in the table is our own mistake."""
    if phase is not job.phase and phase not in MOVES[job.phase]:
        raise AssertionError(f"job {job.id!r} cannot go from {job.phase} to {phase}")
    return replace(job, phase=phase, **changes)


def submitted(at: float, fact: Submitted) -> Job:
    """A job that has just come in."""
    return Job(
        id=fact.job,
        number=fact.number,
        user=fact.user,
        spec=fact.spec,
        signature=fact.signature,
        submitted_at=at,
        window_from=at,
        deadline_at=fact.deadline_at,
        phase=Phase.PROFILING if fact.measure else Phase.WAITING,
        why="its speed is measured before it is judged" if fact.measure else "not judged yet",
        total_steps=fact.spec.get("steps"),
    )


def step(job: Job, at: float, fact: AnyFact) -> Job:
    """The job after one more fact about it."""
    match fact:
        case Judged():
            return _judged(job, at, fact)
        case Planned():
            return _planned(job, at, fact)
        case Launched():
            return _launched(job, at, fact)
        case Training():
            return _training(job, fact)
        case Sized():
            return _sized(job, fact)
        case Moved():
            return _moved(job, fact)
        case Paused():
            return replace(job, pause_now_s=fact.pause_s) if fact.incarnation == job.incarnation else job
        case Ended():
            return _ended(job, at, fact)
        case CancelAsked():
            return _cancel_asked(job, at, fact)
        case Edited():
            return _edited(job, at, fact)
        case Overridden(workers=workers):
            return replace(job, override=workers)
        case Late():
            return replace(job, late=True)
        case Stuck(text=text):
            return replace(job, stuck=text)
        case Warned(text=text):
            return replace(job, warnings=(*job.warnings, text))
        case ProfileFailed():
            return replace(job, unmeasurable=True, version=job.version + 1)
        case _:
            return job


def _judged(job: Job, at: float, fact: Judged) -> Job:
    if fact.admitted:
        phase = job.phase
        if phase is Phase.PROFILING:
            phase = (Phase.RUNNING if job.training else Phase.STARTING) if job.alive else Phase.WAITING
        return moved(job, phase, why=fact.why, judged_at=at)
    job = _given(job, at, (), (), {})
    return moved(job, Phase.REJECTED, why=fact.why, judged_at=at, earliest_at=fact.earliest_at, finished_at=at)


def _given(job: Job, at: float, counts: Counts, placement: Placement, slots: SlotTable) -> Job:
    held_s = max(0.0, at - job.given_at)
    return replace(
        job,
        counts=counts,
        placement=placement,
        slots=slots,
        given_at=at,
        service_s=job.service_s + held_s * job.num_devices,
        first_started_at=at if job.first_started_at is None and counts else job.first_started_at,
    )


def _planned(job: Job, at: float, fact: Planned) -> Job:
    if job.over or job.phase is Phase.CANCELLING:
        return job
    before = job
    job = replace(_given(job, at, fact.counts, fact.placement, fact.slots), why=fact.why)
    resized = bool(before.counts) and bool(fact.counts)
    if resized:
        return replace(job, num_resizes=job.num_resizes + 1)
    if fact.counts or not before.counts:
        return job
    job = replace(job, num_suspensions=job.num_suspensions + 1)
    if job.phase in (Phase.STARTING, Phase.RUNNING):
        return moved(job, Phase.SUSPENDING if job.alive else Phase.WAITING)
    return job


def _launched(job: Job, at: float, fact: Launched) -> Job:
    assert not job.alive, f"job {job.id!r} runs already as {job.incarnation}"
    job = replace(job, incarnation=fact.incarnation, launched_at=at, alive=True)
    job = replace(job, training=False, again=False, on={}, stuck="")
    return job if job.phase is Phase.PROFILING else moved(job, Phase.STARTING)


def _training(job: Job, fact: Training) -> Job:
    if fact.incarnation != job.incarnation or not job.alive:
        return job
    # What an incarnation did after its last checkpoint is lost with it: this one says from where it goes on.
    job = replace(job, training=True, step=fact.step)
    return moved(job, Phase.RUNNING) if job.phase is Phase.STARTING else job


def _sized(job: Job, fact: Sized) -> Job:
    return replace(
        job,
        total_steps=fact.total_steps or job.total_steps,
        steps_per_epoch=fact.steps_per_epoch or job.steps_per_epoch,
        virtual_workers=fact.virtual_workers or job.virtual_workers,
        version=job.version + 1,
    )


def _moved(job: Job, fact: Moved) -> Job:
    if fact.incarnation != job.incarnation or not job.alive:
        return job
    return replace(job, on=fact.slots, pause_now_s=fact.pause_s, step=max(job.step, fact.step))


def _ended(job: Job, at: float, fact: Ended) -> Job:
    if fact.incarnation != job.incarnation or not job.alive:
        return job
    was_edited = job.again
    job = replace(
        job,
        alive=False,
        training=False,
        again=False,
        on={},
        stuck="",
        step=job.step if fact.step is None else fact.step,
        pause_s=job.pause_s + max(fact.pause_s, job.pause_now_s),
        pause_now_s=0.0,
    )
    if job.over:
        return job
    if fact.status == "done" and not (was_edited and _is_short(job)):
        job = _given(replace(job, exit_code=fact.exit_code, digest=fact.digest), at, (), (), {})
        finished_at = at if fact.ended_at is None else max(job.submitted_at, min(at, fact.ended_at))
        return moved(job, Phase.DONE, finished_at=finished_at, why=fact.reason or "trained to its end")
    if job.phase is Phase.CANCELLING:
        return _over(job, at, Phase.CANCELLED, job.why, fact)
    if fact.status == "failed":
        return _over(job, at, Phase.FAILED, fact.reason or "its script failed", fact)
    if fact.status == "lost":
        job = replace(job, failures=job.failures + 1)
        most = int(job.spec.get("restarts", 3))
        if job.failures > most:
            why = f"{fact.reason or 'its workers were lost'}; it was started again {most} times already"
            return _over(job, at, Phase.FAILED, why, fact)
    if job.phase is Phase.PROFILING:
        return job
    return moved(job, Phase.WAITING)


def _is_short(job: Job) -> bool:
    """Whether its newest file asks for more than the run did that had not heard of it."""
    if job.phase is Phase.CANCELLING:
        return False
    return job.total_steps is None or job.step < job.total_steps


def _over(job: Job, at: float, phase: Phase, why: str, fact: Ended) -> Job:
    job = _given(replace(job, exit_code=fact.exit_code), at, (), (), {})
    return moved(job, phase, finished_at=at, why=why)


def _cancel_asked(job: Job, at: float, fact: CancelAsked) -> Job:
    if job.over or job.phase is Phase.CANCELLING:
        return job
    job = _given(job, at, (), (), {})
    why = f"cancelled by {fact.user}" if fact.user else "cancelled"
    if job.alive:
        return moved(job, Phase.CANCELLING, why=why)
    if job.phase is not Phase.WAITING:
        job = moved(job, Phase.CANCELLING)
    return moved(job, Phase.CANCELLED, why=why, finished_at=at)


def _edited(job: Job, at: float, fact: Edited) -> Job:
    again = job.alive and any(name in AGAIN for name in fact.changed)
    job = replace(
        job,
        spec=fact.spec,
        deadline_at=fact.deadline_at,
        window_from=at if "deadline" in fact.changed else job.window_from,
        late=job.late and "deadline" not in fact.changed,
        again=job.again or again,
        version=job.version + 1,
        why=fact.why or job.why,
    )
    if any(name in AGAIN for name in fact.changed):
        epochs, per_epoch = fact.spec.get("epochs"), job.steps_per_epoch
        total = fact.spec.get("steps") or (epochs * per_epoch if epochs and per_epoch else None)
        job = replace(job, total_steps=total)
    return job
