"""A run's events put in order of time: which views there were, who took part when, and when which step was done.

Events are what a run wrote, in any version and cut off anywhere, so that every field is looked at before it is used and
what cannot be understood is left out.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

Event = Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewSpan:
    """One view, from when everybody had entered it to when everybody had entered the next."""

    generation: int
    begin_s: float
    end_s: float
    step: int | None
    workers: tuple[int, ...]
    assignment: str
    reason: str
    pauses_s: Mapping[int, float]

    @property
    def pause_s(self) -> float:
        """The longest that a worker waited for this view."""
        return max(self.pauses_s.values(), default=0.0)


@dataclass(slots=True, kw_only=True)
class Life:
    """What is known of one worker; times are None where nothing said so."""

    worker: int
    agent: str = ""
    started_s: float | None = None
    ready_s: float | None = None
    gone_s: float | None = None
    member: list[tuple[float, float]] = field(default_factory=list)
    """When it had a seat: disjoint, in order."""
    pauses: list[tuple[float, float, str]] = field(default_factory=list)
    """(begin, end, reason) of its waits at changes of view; disjoint, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """All of it. Times are seconds since 1970."""

    begin_s: float
    end_s: float
    events: tuple[tuple[float, Event], ...]
    """Every event that has a time, in order."""
    views: tuple[ViewSpan, ...]
    lives: Mapping[int, Life]
    steps: tuple[tuple[float, int], ...]
    """(when, how many steps were done by then), in order of time; counts go back where a job began again."""

    @classmethod
    def of(cls, events: Iterable[Event]) -> "Timeline | None":
        """Put events in order; None where none of them has a time."""
        timed = [(at, event) for event in events if (at := seconds_of(event)) is not None]
        if not timed:
            return None
        timed.sort(key=lambda pair: pair[0])
        begin_s, end_s = timed[0][0], timed[-1][0]
        views = _views(timed, end_s)
        lives = _lives(timed, views, end_s)
        return cls(
            begin_s=begin_s,
            end_s=end_s,
            events=tuple(timed),
            views=views,
            lives=dict(sorted(lives.items())),
            steps=_steps(timed, views),
        )


def seconds_of(event: Event) -> float | None:
    """When an event was, or None where it does not say."""
    text = event.get("at")
    if not isinstance(text, str):
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


def is_fault(event: Event) -> bool:
    """Whether it tells of something that went wrong; a worker that was let go, or has trained to the end, did not."""
    kind = event.get("kind")
    return kind in ("agent_lost", "error", "straggler", "restart", "preempted") or (
        kind == "worker_gone" and event.get("how") != "ended"
    )


def whole(value: object) -> int | None:
    """A whole number, also one that was the key of a JSON object; None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    return int(value) if isinstance(value, str) and value.isascii() and value.isdigit() else None


def mappings(value: object) -> list[Mapping[str, object]]:
    """The objects of a JSON list; nothing where it is none."""
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list | tuple) else []


def pauses_of(event: Event) -> dict[int, float]:
    """Seconds that each worker waited for a view."""
    raw = event.get("pauses")
    if not isinstance(raw, Mapping):
        return {}
    found: dict[int, float] = {}
    for key, value in raw.items():
        worker = whole(key)
        if worker is not None and isinstance(value, int | float) and value >= 0:
            found[worker] = float(value)
    return found


def _views(timed: list[tuple[float, Event]], end_s: float) -> tuple[ViewSpan, ...]:
    found = [(at, event) for at, event in timed if event.get("kind") == "view"]
    ends = [*(at for at, _ in found[1:]), end_s] if found else []
    return tuple(
        ViewSpan(
            generation=whole(event.get("generation")) or 0,
            begin_s=at,
            end_s=end,
            step=whole(event.get("step")),
            workers=_members(event.get("workers")),
            assignment=str(event.get("assignment") or ""),
            reason=str(event.get("reason") or ""),
            pauses_s=pauses_of(event),
        )
        for (at, event), end in zip(found, ends, strict=True)
    )


def _members(raw: object) -> tuple[int, ...]:
    if not isinstance(raw, list | tuple):
        return ()
    numbers = (whole(item.get("worker") if isinstance(item, Mapping) else item) for item in raw)
    return tuple(number for number in numbers if number is not None)


def _lives(timed: list[tuple[float, Event]], views: tuple[ViewSpan, ...], end_s: float) -> dict[int, Life]:
    lives: dict[int, Life] = {}
    for at, event in timed:
        worker = whole(event.get("worker"))
        if worker is None:
            continue
        life = lives.setdefault(worker, Life(worker=worker))
        match event.get("kind"):
            case "worker_started":
                life.started_s = at
                life.agent = str(event.get("agent") or "")
            case "worker_ready":
                life.ready_s = at
            case "worker_gone":
                life.gone_s = at
            case "joined" if not views:  # a run of a fixed size: its workers are members from here to the end
                life.member = [(at, end_s)]
    for view in views:
        for worker in view.workers:
            _take_part(lives.setdefault(worker, Life(worker=worker)), view)
    return lives


def _take_part(life: Life, view: ViewSpan) -> None:
    end = view.end_s if life.gone_s is None else max(view.begin_s, min(view.end_s, life.gone_s))
    pause = view.pauses_s.get(life.worker, 0.0)
    if life.member and life.member[-1][1] >= view.begin_s - max(pause, 1e-6):
        begin, known_until = life.member[-1]
        life.member[-1] = (begin, max(end, known_until))
        free_from = max([begin, *(until for _, until, _ in life.pauses)])
        if pause > 0 and view.begin_s > free_from:
            life.pauses.append((max(free_from, view.begin_s - pause), view.begin_s, view.reason))
    else:
        life.member.append((view.begin_s, end))


def _steps(timed: list[tuple[float, Event]], views: tuple[ViewSpan, ...]) -> tuple[tuple[float, int], ...]:
    told = [
        (at, step)
        for at, event in timed
        if event.get("kind") in ("begin", "step", "end") and (step := whole(event.get("step"))) is not None
    ]
    # A view names the step that it began after, which is when its pause began.
    told += [(view.begin_s - view.pause_s, view.step) for view in views if view.step is not None]
    return tuple(sorted(told))
