"""What pages show, worked out of the service's values. Pure: templates only lay it out."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from melodeon.control.web.words import change, colour_of, counted, slack
from melodeon.core.service import OVER, JobInfo, NodeInfo, Overview, Phase, Span, WhatIf, WhatIfJob
from melodeon.sim.clock import length


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """One figure of the overview."""

    label: str
    value: str
    note: str = ""
    tone: str = ""
    """`good`, `bad`, `warn` or nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One job of a table."""

    job: JobInfo
    colour: int
    percent: float | None
    finish_at: float | None
    finish: str
    """Against its deadline, in words."""
    tone: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadline:
    """A live job's deadline, and when it should be done."""

    job: str
    deadline_at: float
    planned_at: float | None

    def at_risk(self, now: float) -> bool:
        """It has passed, or will have."""
        return max(now, self.planned_at or now) > self.deadline_at


def tiles(
    overview: Overview, used_share: float | None, window_s: float, deadlines: Sequence[Deadline], *, held: int
) -> list[Tile]:
    """The figures at the head of the overview; `held`: jobs that have devices."""
    up, used = overview.devices_up, overview.devices_used
    away = overview.num_devices - up
    live = sum(n for phase, n in overview.jobs.items() if Phase(phase) not in OVER)
    risky = [deadline.job for deadline in deadlines if deadline.at_risk(overview.now)]
    share = min(1.0, used / up) if up else 0.0
    mean = "" if used_share is None else f"{used_share:.0%} over the last {length(window_s)}"
    return [
        Tile(
            label="Devices in use",
            value=f"{used} of {overview.num_devices}",
            note=f"{counted(away, 'device')} down or drained" if away else "all are up",
            tone="warn" if away else "",
        ),
        Tile(label="Utilisation now", value=f"{share:.0%}", note=mean),
        Tile(label="Queue", value=str(live - held), note=f"{counted(held, 'job')} on devices"),
        Tile(label="Policy", value=overview.policy, note=f"{overview.round_ms:.1f} ms for the last round"),
        Tile(
            label="Deadlines at risk",
            value=str(len(risky)),
            note=_some(risky) if risky else f"of {counted(len(deadlines), 'job')} with one",
            tone="bad" if risky else "good" if deadlines else "",
        ),
    ]


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def row_of(job: JobInfo, now: float) -> Row:
    """A job for a table."""
    percent = min(100.0, 100.0 * job.step / job.total_steps) if job.total_steps else None
    finish_at, finish, tone = _finish(job, now)
    return Row(job=job, colour=colour_of(job.id), percent=percent, finish_at=finish_at, finish=finish, tone=tone)


def _finish(job: JobInfo, now: float) -> tuple[float | None, str, str]:
    """When it ends or ended, what that means for its deadline, and how to colour it."""
    if job.phase is Phase.REJECTED:
        earliest = job.earliest_deadline_at
        enough = "" if earliest is None else f"{length(max(0.0, earliest - job.submitted_at))} would be accepted"
        return None, enough, "bad"
    at = job.finished_at if job.phase in OVER else job.planned_finish_at
    if job.phase in (Phase.FAILED, Phase.CANCELLED):
        return at, "", "bad" if job.phase is Phase.FAILED else ""
    if job.deadline_at is None:
        return at, "no deadline" if job.phase not in OVER else "", ""
    if at is None or job.phase is Phase.PROFILING:  # nothing is promised before its speed is known
        left = job.deadline_at - now
        return (at, f"due in {length(left)}", "") if left >= 0 else (at, f"was due {length(-left)} ago", "bad")
    spare = job.deadline_at - max(at, now if job.phase not in OVER else at)
    return at, slack(spare), "good" if spare >= 0 else "bad"


def used_share(spans: Iterable[Span], capacity: int, since: float, until: float) -> float | None:
    """The mean part of the devices that jobs held."""
    if not capacity or until <= since:
        return None
    held = 0.0
    for span in spans:
        end = min(until, span.ended_at if span.ended_at is not None else until)
        held += len(span.devices) * max(0.0, end - max(since, span.began_at))
    return min(1.0, held / (capacity * (until - since)))


def racks(nodes: Iterable[NodeInfo]) -> list[tuple[str, list[NodeInfo]]]:
    """Nodes by rack, in the cluster's order within each."""
    ordered = sorted(nodes, key=lambda node: node.rack)
    return [(rack, list(some)) for rack, some in groupby(ordered, key=lambda node: node.rack)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One job now and in the other world."""

    now: WhatIfJob | None
    then: WhatIfJob
    colour: int
    change: str
    tone: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One sum over all jobs, now and in the other world."""

    name: str
    now: str
    then: str


def compared(now: WhatIf, then: WhatIf) -> list[Compared]:
    """Job by job."""
    before = {job.id: job for job in now.jobs}
    found = []
    for job in then.jobs:
        old = before.get(job.id)
        text, tone = "", ""
        if old is None:
            text, tone = ("would be taken", "good") if job.admitted else ("would be turned away", "bad")
        elif old.finish_at is not None and job.finish_at is not None:
            seconds = job.finish_at - old.finish_at
            text = change(seconds)
            tone = "" if abs(seconds) < 1.0 else "bad" if seconds > 0 else "good"
        if old is not None and old.in_time and job.in_time is False:
            tone = "bad"
        found.append(Compared(now=old, then=job, colour=colour_of(job.id), change=text, tone=tone))
    return found


def figures(now: WhatIf, then: WhatIf) -> list[Figure]:
    """The sums."""

    def both(name: str, say: Callable[[WhatIf], str]) -> Figure:
        return Figure(name=name, now=say(now), then=say(then))

    return [
        both("Policy", lambda w: w.policy),
        both("Deadlines met", lambda w: f"{w.deadlines_met} of {w.deadlines}"),
        both("Turned away", lambda w: str(w.rejected)),
        both("Mean time from submission to end", lambda w: "–" if w.mean_jct_s is None else length(w.mean_jct_s)),  # noqa: RUF001
        both("All done after", lambda w: "never" if w.makespan_s is None else length(w.makespan_s)),
    ]
