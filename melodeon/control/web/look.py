"""Which jobs and events a page shows of the many that there may be, without telling all of them first."""

from collections.abc import Sequence
from dataclasses import dataclass

from melodeon.control.controller import Controller
from melodeon.control.web.views import Deadline, Row, row_of
from melodeon.core.service import EventInfo, Phase

LIVE_ROWS, PAST_ROWS = 100, 15
EVENT_ROWS = 100
SEARCHED = 5000
"""Events that are looked through for those of a kind, or of a job."""
HELD = {Phase.RUNNING: 0, Phase.STARTING: 1, Phase.SUSPENDING: 2, Phase.CANCELLING: 3, Phase.PROFILING: 4}
"""Those on devices come first, the queue after them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """Jobs for the overview."""

    live: Sequence[Row]
    num_live: int
    past: Sequence[Row]


def chosen(controller: Controller, now: float) -> Chosen:
    """Those on devices, the head of the queue, and the last that ended."""
    state = controller.engine.state
    order = sorted(state.live.values(), key=lambda job: (HELD.get(job.phase, 9), job.number))
    past = list(state.past)[: -PAST_ROWS - 1 : -1]
    return Chosen(
        live=[row_of(controller.job(job.id), now) for job in order[:LIVE_ROWS]],
        num_live=len(order),
        past=[row_of(controller.job(name), now) for name in past],
    )


def held(controller: Controller) -> int:
    """How many jobs have devices; one whose speed is measured has some, or waits for them."""
    return sum(bool(job.on or job.slots) for job in controller.engine.state.live.values())


def deadlines(controller: Controller) -> list[Deadline]:
    """Of all jobs that are not over."""
    planned = controller.engine.planned.ends
    return [
        Deadline(job=job.id, deadline_at=job.deadline_at, planned_at=planned.get(job.id) if job.judged_at else None)
        for job in controller.engine.state.live.values()
        if job.deadline_at is not None and not job.over
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class EventPage:
    """Some of the log, newest first."""

    events: Sequence[EventInfo]
    older: int | None
    """The number to go on before; None: that is all."""


def newest_events(controller: Controller, *, job: str | None, kind: str | None, before: int | None) -> EventPage:
    """The newest events of a job or of all, of a kind or of every kind, before a number."""
    last = controller.engine.seq if before is None else before - 1
    if job is None and kind is None:
        first = max(0, last - EVENT_ROWS)
        found = [event for event in controller.events(first, None, EVENT_ROWS) if event.seq <= last]
        return EventPage(events=found[::-1], older=first + 1 if first else None)
    first = 0 if job is not None else max(0, last - SEARCHED)
    fitting = [
        event
        for event in controller.events(first, job, SEARCHED)
        if event.seq <= last and (kind is None or event.kind == kind)
    ]
    shown = fitting[-EVENT_ROWS:]
    older = shown[0].seq if len(fitting) > len(shown) else first + 1 if first else None
    return EventPage(events=shown[::-1], older=older)
