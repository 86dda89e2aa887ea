"""A run as a trace for ui.perfetto.dev (Chrome's trace event format): steps, pauses, views and faults on one time axis.

One track a worker with what it did (starting, waiting, steps, pauses), one for the views, one for their changes, and
counters for the number of workers, steps per second and whatever the script logged. Steps are synchronous and told by
one worker a few times a second, so a slice may stand for several, and is drawn on every member's track.
"""

import bisect
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from math import isfinite

from melodeon.viz.timeline import Event, Life, Timeline, is_fault, whole

JOB = 1
"""The one process of the trace."""
VIEWS, CHANGES, NOTES = 1, 2, 3
FIRST_WORKER = 10
"""Tracks: worker k is `FIRST_WORKER + k`."""

Slice = dict[str, object]


def trace(events: Iterable[Event], metrics: Iterable[Mapping[str, object]] = (), *, name: str) -> dict[str, object]:
    """The trace of one run, ready for `json.dump`; without any event that has a time it has no slices."""
    line = Timeline.of(events)
    found: list[Slice] = []
    if line is not None:
        clock = _Clock(line.begin_s)
        found += _names(line, name)
        found += _view_slices(line, clock)
        for life in line.lives.values():
            found += _worker_slices(line, life, clock)
        found += _instants(line, clock)
        found += _counters(line, metrics, clock)
    return {"traceEvents": found, "displayTimeUnit": "ms", "otherData": {"run": name}}


class _Clock:
    """Seconds since 1970 to microseconds since the first event."""

    def __init__(self, begin_s: float) -> None:
        self._begin_s = begin_s

    def us(self, at_s: float) -> int:
        return max(0, round((at_s - self._begin_s) * 1e6))

    def slice(self, track: int, begin_s: float, end_s: float, name: str, category: str, args: object = None) -> Slice:
        begin = self.us(begin_s)
        made: Slice = {"ph": "X", "pid": JOB, "tid": track, "ts": begin, "dur": max(0, self.us(end_s) - begin)}
        return made | {"name": name, "cat": category, "args": args or {}}

    def instant(self, track: int, at_s: float, name: str, category: str, args: object = None) -> Slice:
        made: Slice = {"ph": "i", "s": "t", "pid": JOB, "tid": track, "ts": self.us(at_s)}
        return made | {"name": name, "cat": category, "args": args or {}}

    def counter(self, at_s: float, name: str, value: float) -> Slice:
        return {"ph": "C", "pid": JOB, "tid": 0, "ts": self.us(at_s), "name": name, "args": {"value": value}}


def _names(line: Timeline, name: str) -> Iterator[Slice]:
    def meta(kind: str, track: int, args: Mapping[str, object]) -> Slice:
        return {"ph": "M", "pid": JOB, "tid": track, "ts": 0, "name": kind, "args": args}

    yield meta("process_name", 0, {"name": f"melodeon {name}"})
    tracks = {VIEWS: "views", CHANGES: "view changes", NOTES: "job"}
    for life in line.lives.values():
        tracks[FIRST_WORKER + life.worker] = f"worker {life.worker}" + (f" on {life.agent}" if life.agent else "")
    for track, title in tracks.items():
        yield meta("thread_name", track, {"name": title})
        yield meta("thread_sort_index", track, {"sort_index": track})


def _view_slices(line: Timeline, clock: _Clock) -> Iterator[Slice]:
    free_from = line.begin_s
    for view in line.views:
        facts = {"reason": view.reason, "assignment": view.assignment, "workers": list(view.workers), "step": view.step}
        title = f"view {view.generation}: {view.assignment or len(view.workers)}"
        yield clock.slice(VIEWS, view.begin_s, view.end_s, title, "view", facts)
        begin = max(free_from, view.begin_s - view.pause_s)
        pauses = {f"pause_ms of worker {worker}": _ms(pause) for worker, pause in view.pauses_s.items()}
        change = f"to view {view.generation}: {view.reason}"
        yield clock.slice(CHANGES, begin, view.begin_s, change, "view", facts | pauses)
        free_from = view.begin_s


def _worker_slices(line: Timeline, life: Life, clock: _Clock) -> Iterator[Slice]:
    track = FIRST_WORKER + life.worker
    first = life.member[0][0] if life.member else life.gone_s if life.gone_s is not None else line.end_s
    ready = first if life.ready_s is None else min(life.ready_s, first)
    if life.started_s is not None and life.started_s < ready:
        yield clock.slice(track, life.started_s, ready, "starting", "life")
    if ready < first:
        yield clock.slice(track, ready, first, "ready, waiting for a seat", "life")
    for begin, end, reason in life.pauses:
        yield clock.slice(track, begin, end, "pause", "pause", {"reason": reason, "ms": _ms(end - begin)})
    for low, high in _without(life.member, life.pauses):
        first_after = bisect.bisect_right(line.steps, (low, float("inf")))
        for (begin, done), (end, now_done) in pairwise(line.steps[max(0, first_after - 1) :]):
            if begin >= high:
                break
            if now_done <= done or end <= begin:
                continue
            title = f"step {now_done}" if now_done == done + 1 else f"steps {done + 1}-{now_done}"
            facts = {"steps": now_done - done, "ms_per_step": _ms((end - begin) / (now_done - done))}
            yield clock.slice(track, max(begin, low), min(end, high), title, "step", facts)


def _without(
    spans: Iterable[tuple[float, float]], holes: Iterable[tuple[float, float, str]]
) -> list[tuple[float, float]]:
    """`spans` less `holes`; both disjoint and in order."""
    kept = []
    cut = list(holes)
    for begin, end in spans:
        at = begin
        for low, high, _ in cut:
            if high <= at or low >= end:
                continue
            kept.append((at, low))
            at = high
        kept.append((at, end))
    return [(begin, end) for begin, end in kept if end > begin]


def _instants(line: Timeline, clock: _Clock) -> Iterator[Slice]:
    for at, event in line.events:
        worker = whole(event.get("worker"))
        track = NOTES if worker is None else FIRST_WORKER + worker
        facts = {key: _sayable(value) for key, value in event.items() if key not in ("kind", "at")}
        title = _title(event)
        if title is None:
            continue
        kind = str(event.get("kind"))
        if kind == "ask":
            track = CHANGES
        yield clock.instant(track, at, title, "fault" if is_fault(event) else kind, facts)


def _sayable(value: object) -> object:
    """A value without what JSON lacks, such as the NaN that somebody has asked for, which is said in words."""
    if isinstance(value, float) and not isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _sayable(part) for key, part in value.items()}
    return [_sayable(part) for part in value] if isinstance(value, list) else value


def _title(event: Event) -> str | None:
    """What an instant is called; None for events that are drawn in other ways, or not at all."""
    match event.get("kind"):
        case "worker_gone":
            return f"lost: {event.get('how')}" if is_fault(event) else "ended"
        case "agent_lost":
            return f"agent {event.get('agent')} is lost"
        case "agent_left":
            return f"agent {event.get('agent')} has left"
        case "error" | "change_failed":
            return f"{event.get('kind')}: {event.get('text') or event.get('type')}".replace("_", " ")
        case "straggler" | "restart":
            return f"{event.get('kind')}: {event.get('why')}"
        case "master":
            return f"master is {event.get('agent')}"
        case "ask":
            return f"asked: {event.get('what')}"
        case "checkpoint":
            return f"checkpoint of step {event.get('step')}"
        case "batch":
            return f"batch times {event.get('factor')}"
        case "note" | "preempted" | "broken":
            return str(event.get("text"))
        case _:
            return None


def _counters(line: Timeline, metrics: Iterable[Mapping[str, object]], clock: _Clock) -> Iterator[Slice]:
    for view in line.views:
        yield clock.counter(view.begin_s, "workers", len(view.workers))
    for (begin, done), (end, now_done) in pairwise(line.steps):
        if now_done > done and end > begin:
            yield clock.counter(begin, "steps/s", round((now_done - done) / (end - begin), 3))
    stretches = sorted((end[1], begin, end) for begin, end in pairwise(line.steps) if end[1] > begin[1])
    for row in metrics:
        at = _when(stretches, whole(row.get("step")))
        for name, value in row.items():
            # JSON has neither NaN nor infinity.
            if at is not None and name not in ("step", "epoch") and isinstance(value, int | float) and isfinite(value):
                yield clock.counter(at, name, float(value))


def _when(stretches: list[tuple[int, tuple[float, int], tuple[float, int]]], step: int | None) -> float | None:
    """When a step was done, by a straight line between the two times that are known around it."""
    if step is None:
        return None
    found = bisect.bisect_left(stretches, (step,))
    if found == len(stretches):
        return None
    now_done, (begin, done), (end, _) = stretches[found]
    return begin + (end - begin) * (step - done) / (now_done - done) if done < step else None


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
