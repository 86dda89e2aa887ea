"""What happened, in sentences: one for every fact, and a job's whole story with what its changes meant.

Times are of this machine's zone. Only what the log says is told; nothing is worked out again.
"""

from collections.abc import Iterable

from msgspec import to_builtins

from melodeon.control import events
from melodeon.control.events import AnyFact, Entry, SlotTable, kind_of
from melodeon.control.job import Job, step, submitted
from melodeon.core.moments import day_and_clock
from melodeon.core.service import EventInfo, Phase, Sentence
from melodeon.core.text import counted
from melodeon.sim.clock import length

LATE_S = 5.0
"""An end that is heard of later than this was told to nobody when it came."""


def told(entry: Entry) -> EventInfo:
    """A line of the log as the service says it."""
    fact = entry.fact
    values = to_builtins(fact, str_keys=True)
    values.pop("fact", None)
    values.pop("job", None)
    return EventInfo(
        seq=entry.seq, at=entry.at, kind=kind_of(fact), job=fact.job, text=sentence(fact, entry.at), values=values
    )


def where(slots: SlotTable) -> str:
    """`node0 (0-3), node1 (0)`."""
    return ", ".join(f"{node} ({_ranges(indices)})" for node, indices in sorted(slots.items()))


def sentence(fact: AnyFact, at: float) -> str:
    """One fact for people, without the job's name."""
    match fact:
        case events.Submitted() | events.Edited() | events.EditRefused() | events.CancelAsked() | events.Overridden():
            return _asked(fact, at)
        case events.Judged() | events.Planned() | events.Late() | events.CurveMeasured() | events.ProfileFailed():
            return _decided(fact, at)
        case (
            events.Launched()
            | events.Training()
            | events.Sized()
            | events.Moved()
            | events.Paused()
            | events.Ended()
            | events.Stuck()
            | events.Warned()
        ):
            return _seen(fact) + _unheard(fact, at)
        case events.Started(policy=policy, nodes=nodes):
            devices = counted(sum(count for _, _, count, _ in nodes), "device")
            return f"the controller started: {devices} on {counted(len(nodes), 'node')}, policy {policy}"
        case events.PolicySet(policy=policy, user=user):
            return f"{user or 'somebody'} set the policy to {policy}"
        case events.NodeSet(node=node, up=up, drained=drained, user=user):
            what = "is down" if not up else "is drained: nothing is placed there" if drained else "is in use again"
            return f"node {node} {what} (said by {user or 'somebody'})"
        case events.Forgotten(before=before):
            return f"jobs that were over before {day_and_clock(before, at)} are forgotten"


def story_of(entries: Iterable[Entry], now: float, reached: int = 0) -> tuple[Sentence, ...]:
    """A job's whole story, from its own facts and the step that it was last seen at."""
    job: Job | None = None
    found: list[Sentence] = []
    waiting_since: float | None = None
    last: AnyFact | None = None
    """What the last sentence tells, where later facts of its kind say it better."""
    for entry in entries:
        fact, at = entry.fact, entry.at
        if isinstance(fact, events.Submitted):
            job = submitted(at, fact)
            waiting_since = at
        elif job is not None:
            before, job = job, step(job, at, fact)
            if isinstance(fact, events.Planned):
                if fact.counts and waiting_since is not None and at - waiting_since >= 1.0:
                    found.append(Sentence(at=at, text=f"waited {length(at - waiting_since)}"))
                waiting_since = None if fact.counts else at
                found.append(Sentence(at=at, text=_changed(before, fact)))
                last = None
                continue
        if isinstance(fact, events.Launched | events.Moved | events.Paused):
            continue
        if _says_more(fact, last):
            found.pop()
        last = fact
        found.append(Sentence(at=at, text=sentence(fact, at)))
    if job is not None:
        stands = _now(job, now, waiting_since, reached)
        # What was heard of late is told when it was heard of: a story does not go back.
        told_at = max((part.at for part in (*found, stands) if part.at is not None), default=None)
        found.append(stands if stands.at is None else Sentence(at=told_at, text=stands.text))
    return tuple(found)


def _says_more(fact: AnyFact, last: AnyFact | None) -> bool:
    """Whether the sentence before is left out: speed is measured all the time, a job's size gets known by and by."""
    if isinstance(fact, events.Sized):
        return isinstance(last, events.Sized)
    return _is_measured(fact) and last is not None and _is_measured(last)


def _is_measured(fact: AnyFact) -> bool:
    return isinstance(fact, events.CurveMeasured) and fact.source == "measured" and not fact.struck


def _changed(before: Job, fact: events.Planned) -> str:
    old, new = before.num_devices, sum(count for _, count in fact.counts)
    much = " and ".join(f"{count} {kind}" for kind, count in fact.counts)
    if not new:
        return f"gives its {counted(old, 'device')} back: {fact.why}"
    if not old:
        verb = "goes on with" if before.incarnation else "starts on"
        return f"{verb} {much}, {where(fact.slots)}: {fact.why}"
    if old == new:
        return f"moves to {where(fact.slots)}: {fact.why}"
    return f"{'grows' if new > old else 'shrinks'} from {old} to {much}, {where(fact.slots)}: {fact.why}"


def _now(job: Job, now: float, waiting_since: float | None, reached: int) -> Sentence:
    """How it stands, as the story's last sentence."""
    if not job.over:
        if job.phase is Phase.WAITING and waiting_since is not None:
            return Sentence(at=None, text=f"has waited for {length(max(0.0, now - waiting_since))} by now")
        total = f" of {job.total_steps:,}" if job.total_steps else ""
        return Sentence(at=None, text=f"is {job.phase.value} now, {max(job.step, reached):,}{total} steps done")
    took = length(max(0.0, (job.finished_at or now) - job.submitted_at))
    text = f"{job.phase.value} after {took}"
    if job.phase is Phase.DONE and job.deadline_at is not None and job.finished_at is not None:
        early = job.deadline_at - job.finished_at
        text += f", {length(abs(early))} {'before' if early >= 0 else 'after'} its deadline"
    if job.incarnation:
        text += f"; {counted(job.num_resizes, 'resize')}, {counted(job.num_suspensions, 'suspension')}"
        text += f", {length(job.pause_s)} without progress in changes" if job.pause_s >= 0.05 else ""
    return Sentence(at=job.finished_at, text=text)


def _unheard(fact: AnyFact, at: float) -> str:
    """How long ago it ended, where nobody was there to hear of it."""
    if not isinstance(fact, events.Ended) or fact.ended_at is None or at - fact.ended_at < LATE_S:
        return ""
    return f", {length(at - fact.ended_at)} before it was heard of"


def _asked(
    fact: events.Submitted | events.Edited | events.EditRefused | events.CancelAsked | events.Overridden, at: float
) -> str:
    match fact:
        case events.Submitted(spec=spec, user=user):
            much = counted(spec.get("steps") or spec.get("epochs") or 0, "step" if spec.get("steps") else "epoch")
            until = f" or until {spec['until']}" if spec.get("until") else ""
            return f"submitted by {user or 'somebody'}: {much}{until}; {_due(spec, fact.deadline_at, at)}"
        case events.Edited(user=user, changed=changed, why=why):
            return f"{user or 'somebody'} changed {', '.join(changed)}: {why or 'taken over'}"
        case events.EditRefused(user=user, changed=changed, why=why):
            return f"{user or 'somebody'} wanted to change {', '.join(changed)}, which was refused: {why}"
        case events.CancelAsked(user=user):
            return f"{user or 'somebody'} cancelled it"
        case events.Overridden(user=user, workers=workers):
            what = "gave it back to the policy" if workers is None else f"fixed it at {counted(workers, 'worker')}"
            return f"{user or 'somebody'} {what}"


def _due(spec: dict[str, object], deadline_at: float | None, at: float) -> str:
    if deadline_at is None:
        return "best effort, no deadline"
    kind = "soft deadline" if spec.get("on_miss") == "soft" else "deadline"
    return f"{kind} {day_and_clock(deadline_at, at)}, {length(deadline_at - at)} later"


def _decided(
    fact: events.Judged | events.Planned | events.Late | events.CurveMeasured | events.ProfileFailed, at: float
) -> str:
    match fact:
        case events.Judged(admitted=True, why=why, policy=policy):
            return f"{policy} admitted it: {why}"
        case events.Judged(why=why, policy=policy, earliest_at=earliest):
            more = "" if earliest is None else f"; {day_and_clock(earliest, at)} would have been accepted"
            return f"{policy} turned it away: {why}{more}"
        case events.Planned(counts=counts, slots=slots, why=why):
            much = " and ".join(f"{count} {kind}" for kind, count in counts)
            return f"gets {much}, {where(slots)}: {why}" if counts else f"gives its devices back: {why}"
        case events.Late():
            return "its deadline passed"
        case events.CurveMeasured(points=points, source=source, struck=struck):
            figures = ", ".join(f"{rate:.3g} on {size}" for size, rate in sorted(points.items()))
            text = f"steps a second {source}: {figures}" if figures else "its speed was measured"
            fall = ", ".join(map(str, struck))
            return text + (f"; {fall} workers are slower than fewer, so it falls back" if struck else "")
        case events.ProfileFailed(why=why):
            return f"its speed could not be measured: {why}"


def _seen(
    fact: events.Launched
    | events.Training
    | events.Sized
    | events.Moved
    | events.Paused
    | events.Ended
    | events.Stuck
    | events.Warned,
) -> str:
    match fact:
        case events.Launched(incarnation=number, slots=slots):
            return f"is started (incarnation {number}) on {where(slots)}"
        case events.Training(step=at_step):
            # Where it was when that was first seen: a fast one has gone on by then from where it began.
            return f"trains, at step {at_step:,}" if at_step else "trains"
        case events.Sized(total_steps=total, steps_per_epoch=per_epoch, virtual_workers=virtual):
            parts = [(total, "steps in all"), (per_epoch, "an epoch"), (virtual, "virtual workers")]
            return "has " + ", ".join(f"{number:,} {what}" for number, what in parts if number)
        case events.Moved(slots=slots):
            return f"its workers are on {where(slots)}"
        case events.Paused(pause_s=pause_s):
            return f"trains on; changes of its workers have kept it still for {pause_s:.2g} s so far"
        case events.Stuck(text=text):
            return f"needs attention: {text}" if text else "needs no more attention"
        case events.Warned(text=text):
            return f"warns: {text}"
        case events.Ended(status=status, reason=reason, step=at_step):
            at_text = f" at step {at_step:,}" if at_step is not None else ""
            said = {
                "done": f"trained to its end{at_text}",
                "stopped": f"stopped{at_text}, its state kept",
                "failed": f"failed{at_text}",
                "lost": f"lost its workers{at_text}",
                "unstarted": "was not started after all",
            }[status]
            return said + (f": {reason}" if reason and status in ("done", "failed", "lost") else "")


def _ranges(numbers: Iterable[int]) -> str:
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][-1] + 1 == number:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
