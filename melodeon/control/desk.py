"""What people ask for, as facts: submit, edit, cancel, scale, another policy, another health of a node.

A wish is checked and turned into facts on the turn's draft; its answer is read off the draft after the round. Wishes
that leave (cancel, scale, policy, node) come before those that are judged, since a judgement stands on what is left.
"""

import asyncio
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from melodeon.control.events import (
    CancelAsked,
    Edited,
    EditRefused,
    Judged,
    NodeSet,
    Overridden,
    PolicySet,
    Submitted,
)
from melodeon.control.job import Job, submitted
from melodeon.control.rounds import view_of
from melodeon.control.specs import UNKNOWN, bounds, check_fits, must_measure, types_of
from melodeon.control.turn import Turn
from melodeon.core.cluster import NodeId
from melodeon.core.errors import UsageError
from melodeon.core.moments import day_and_clock
from melodeon.core.service import Phase
from melodeon.core.spec import Spec, read_spec
from melodeon.sched.quota import is_refusal
from melodeon.sim.clock import length

EDITABLE = ("deadline", "on_miss", "priority", "workers", "steps", "epochs", "until")


@dataclass(slots=True, kw_only=True)
class Wish:
    """Something asked for, and where the answer goes."""

    user: str
    answer: "asyncio.Future[object]" = field(repr=False)
    """Set when it is stored."""
    name: str = ""
    """The job, node or policy that it is about."""


@dataclass(slots=True, kw_only=True)
class Submit(Wish):
    """Take a job in."""

    spec: Spec
    file: dict[str, Any]
    """The same as a job's file says it."""
    signature: str
    request: str | None = None
    """The key under which the answer is kept."""
    asked: str = ""
    dry: bool = False
    """Only tell what would become of it."""


@dataclass(slots=True, kw_only=True)
class Edit(Wish):
    """Change a job's file."""

    changes: Mapping[str, object]


@dataclass(slots=True, kw_only=True)
class Cancel(Wish):
    """End a job."""


@dataclass(slots=True, kw_only=True)
class Scale(Wish):
    """Fix a job's size."""

    workers: int | None


@dataclass(slots=True, kw_only=True)
class SetPolicy(Wish):
    """Decide by another policy."""


@dataclass(slots=True, kw_only=True)
class SetNode(Wish):
    """Say how a node is."""

    up: bool | None
    drained: bool | None


ORDER: tuple[type[Wish], ...] = (Cancel, SetNode, SetPolicy, Scale, Edit, Submit)


def asked_digest(file: Mapping[str, object]) -> str:
    """What was asked, in short."""
    return hashlib.sha256(msgspec.json.encode(file, order="sorted")).hexdigest()


def take_in(turn: Turn, wish: Wish) -> None:
    """The facts of a wish; raises what is wrong with it."""
    match wish:
        case Submit():
            _submit(turn, wish)
        case Edit():
            _edit(turn, wish)
        case Cancel():
            job = _live(turn, wish.name)
            if job is not None and not job.over and job.phase is not Phase.CANCELLING:
                turn.say(CancelAsked(job=wish.name, user=wish.user))
        case Scale():
            _scale(turn, wish)
        case SetPolicy():
            if turn.state.policy != wish.name:
                turn.say(PolicySet(policy=wish.name, user=wish.user))
        case SetNode():
            node = turn.world.cluster.node(NodeId(wish.name))
            up, drained = turn.state.down.get(node.id, (True, False))
            new = (up if wish.up is None else wish.up, drained if wish.drained is None else wish.drained)
            if new != (up, drained):
                turn.say(NodeSet(node=node.id, up=new[0], drained=new[1], user=wish.user))


def _submit(turn: Turn, wish: Submit) -> None:
    spec, world = wish.spec, turn.world
    check_fits(spec, world.cluster)
    number = turn.state.number + 1
    wish.name = f"{spec.name}-{number}"
    fact = Submitted(
        job=wish.name,
        number=number,
        user=wish.user,
        spec=wish.file,
        deadline_at=spec.deadline_at(turn.now),
        signature=wish.signature,
        measure=False,
    )
    known = turn.state.known.get(wish.signature, UNKNOWN)
    measure = must_measure(submitted(turn.now, fact), spec, known, world.cluster)
    turn.say(msgspec.structs.replace(fact, measure=measure))
    world.book.note(turn.state.live[wish.name], spec)
    if measure and world.rules.quotas is not None:
        # The policy judges it later; how many jobs somebody may have is known now.
        view = view_of(turn.state, world, turn.progress, turn.now)
        others = {name: job for name, job in view.jobs.items() if name != wish.name}
        asking = next(job for name, job in view.jobs.items() if name == wish.name)
        why = world.rules.quotas.refuse(asking, view.now_s, others, turn.memory.accepted)
        if why is not None:
            turn.say(Judged(job=wish.name, admitted=False, why=why, policy=world.policy_name))


def _edit(turn: Turn, wish: Edit) -> None:
    job = _unfinished(turn, wish.name, "changed")
    spec, changed = edited(job, wish.changes)
    if not changed:
        return
    check_fits(spec, turn.world.cluster)
    _check_end(turn, job, spec, changed)
    deadline_at = job.deadline_at
    if "deadline" in changed:
        deadline_at = spec.deadline_at(turn.now)
    fact = Edited(
        job=job.id, user=wish.user, spec=spec.to_json(), deadline_at=deadline_at, changed=tuple(changed), admitted=False
    )
    if job.judged_at is None:
        turn.say(fact)
        return
    trial = turn.trial()
    trial.say(fact)
    found = trial.decide(rejudge=[job.id])
    verdict = next(f for f in found.facts if isinstance(f, Judged) and f.job == job.id)
    if not verdict.admitted:
        turn.say(
            EditRefused(
                job=job.id,
                user=wish.user,
                changed=tuple(changed),
                why=verdict.why,
                earliest_at=verdict.earliest_at,
            )
        )
        return
    turn.world = trial.world
    turn.say(msgspec.structs.replace(fact, admitted=True, why=verdict.why))
    turn.memory = found.memory


def _check_end(turn: Turn, job: Job, spec: Spec, changed: list[str]) -> None:
    """A new end lies ahead: steps that were trained cannot be taken back, and their bits are not a shorter job's."""
    name, end = ("steps", spec.steps) if spec.steps is not None else ("epochs", spec.epochs)
    steps_each = 1 if name == "steps" else job.steps_per_epoch
    if name not in changed or end is None or steps_each is None:
        return
    seen = turn.progress.get(job.id)
    done = job.step if seen is None else seen.step
    if end * steps_each < done:
        raise UsageError(f"{name}: {end:,} ends before step {done:,}, where {job.id} is now: give more, or cancel it")


def edited(job: Job, changes: Mapping[str, object]) -> tuple[Spec, list[str]]:
    """The job's file with changes, and which fields really differ."""
    for name in changes:
        if name not in EDITABLE:
            raise UsageError(f"field {name!r} of a submitted job cannot be changed: {', '.join(EDITABLE)} can")
    if changes.get("steps") is not None and changes.get("epochs") is not None:
        raise UsageError("steps and epochs are both given: name one of them as the end")
    raw = {**job.spec, **changes}
    if changes.get("steps") is not None:
        raw.pop("epochs", None)
    if changes.get("epochs") is not None:
        raw.pop("steps", None)
    spec = read_spec({name: value for name, value in raw.items() if value is not None})
    new = spec.to_json()
    changed = [name for name in EDITABLE if new.get(name) != job.spec.get(name)]
    if changes.get("deadline") is not None and "deadline" not in changed:
        changed.insert(0, "deadline")  # `2h` said again is two hours from now
    return spec, changed


def _scale(turn: Turn, wish: Scale) -> None:
    job = _unfinished(turn, wish.name, "scaled")
    if wish.workers is not None:
        world, spec = turn.world, turn.world.book.spec(job)
        known = turn.state.known.get(job.signature, UNKNOWN)
        limits = [bounds(spec, world.cluster, kind, known)[1] for kind in types_of(spec, world.cluster)]
        most = max(limits, default=spec.min_workers)
        if not spec.min_workers <= wish.workers <= most:
            may = f"{spec.min_workers} to {most}" if spec.min_workers < most else f"{most}"
            raise UsageError(f"{wish.workers} workers are not possible for {job.id}: it may have {may} here")
    if job.override != wish.workers:
        turn.say(Overridden(job=job.id, user=wish.user, workers=wish.workers))


def _live(turn: Turn, name: str) -> Job | None:
    return turn.state.live.get(name)


def _unfinished(turn: Turn, name: str, what: str) -> Job:
    job = turn.state.job(name)
    if job is None or job.over or job.phase is Phase.CANCELLING:
        phase = "over" if job is None else job.phase.value
        raise UsageError(f"job {name} is {phase} and cannot be {what}: submit it again")
    return job


# --- answers in words ---


def submission_text(job: Job, planned_at: float | None, now: float) -> str:
    """One sentence: the answer and its reason."""
    if job.phase is Phase.REJECTED:
        text = f"{job.id} is rejected: {job.why}"
        if job.earliest_at is not None:
            text += (
                f"; the earliest deadline that would be accepted is {day_and_clock(job.earliest_at, now)}, "
                f"{length(job.earliest_at - now)} from now"
            )
        return text
    if job.judged_at is None:
        return f"{job.id} is taken in: its speed is measured first, then its deadline is judged"
    text = f"{job.id} is admitted"
    if job.counts:
        text += f" and starts on {' and '.join(f'{count} {kind}' for kind, count in job.counts)}"
    else:
        text += " and waits for devices"
    if planned_at is not None:
        text += f"; it should be done by {day_and_clock(planned_at, now)}"
    return text


def next_step(job: Job, now: float, *, editing: bool = False) -> str:
    """The command to go on with."""
    if job.phase is not Phase.REJECTED:
        return f"melodeon show {job.id}"
    if is_refusal(job.why):
        return "melodeon ps"
    if job.earliest_at is None:
        return "melodeon submit ... --on-miss soft"
    return f"melodeon {f'edit {job.id}' if editing else 'submit ...'} --deadline {seconds(job.earliest_at - now)}"


def seconds(left: float) -> str:
    """`2h5m`, `90s`: as a job's file says it, rounded up."""
    whole = int(left) + 1
    if whole < 600:
        return f"{whole}s"
    minutes = whole // 60 + 1
    return (
        f"{minutes}m" if minutes < 60 else f"{minutes // 60}h{minutes % 60}m" if minutes % 60 else f"{minutes // 60}h"
    )
