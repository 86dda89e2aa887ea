"""Figures and events in words, the same on every screen."""

from collections.abc import Mapping

from melodeon.core.text import counted as counted
from melodeon.core.text import plain as plain
from melodeon.viz.timeline import Event, is_fault, pauses_of, whole


def number(value: object) -> str:
    """`1,234`, or a dash where there is none; -1 is "nothing yet" in a status."""
    found = whole(value)
    return "-" if found is None or found < 0 else f"{found:,}"


def milliseconds(seconds: float | None) -> str:
    """`35 ms`, `1.2 s`, or a dash."""
    if seconds is None:
        return "-"
    if seconds < 0.01:
        return f"{seconds * 1000:.1f} ms"
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def duration(seconds: float) -> str:
    """`5 s`, `12 min`, `3.4 h`, `2.1 d`: how long ago, or how long."""
    for unit, size, below in (("s", 1.0, 60.0), ("min", 60.0, 3600.0)):
        if seconds < below:
            return f"{max(0.0, seconds) / size:.0f} {unit}"
    return f"{seconds / 3600:.1f} h" if seconds < 86400 else f"{seconds / 86400:.1f} d"


def sentence(event: Event) -> str | None:
    """An event of a live job for a person; None for those that screens show in other ways."""
    worker = event.get("worker")
    match event.get("kind"):
        case "view":
            longest = max(pauses_of(event).values(), default=None)
            pause = "" if longest is None else f", longest pause {milliseconds(longest)}"
            text = f"view {event.get('generation')} from step {number(event.get('step'))}{pause}: {event.get('reason')}"
        case "worker_gone":
            text = f"worker {worker} is gone: {event.get('how')}" if is_fault(event) else f"worker {worker} has left"
        case "agent_lost":
            text = f"agent {event.get('agent')} is lost"
        case "agent_left":
            text = f"agent {event.get('agent')} has left"
        case "change_failed":
            text = f"{event.get('what')} failed: {event.get('text')}"
        case "restart":
            text = f"all workers were lost, the job starts again: {event.get('why')}"
        case "batch":
            text = f"batch times {event.get('factor')}: {event.get('why')}"
        case "profile":
            pace = event.get("steps_per_s")
            figure = f"{pace:.3g}" if isinstance(pace, int | float) else "-"
            workers = whole(event.get("workers"))
            text = f"measured {figure} steps/s on {'-' if workers is None else counted(workers, 'worker')}"
        case "straggler":
            text = str(
                event.get("text") or event.get("why") or f"worker {worker} is slower than the others{_facts(event)}"
            )
        case "ask":
            text = f"asked: {event.get('what')}{_facts(event, 'what', 'id')}"
        case "end" if event.get("outcome"):
            text = f"{event.get('outcome')}: {event.get('text')}"
        case "master":
            text = f"{event.get('agent')} is the master"
        case "note" | "preempted" | "broken":
            text = str(event.get("text"))
        case "checkpoint":
            text = f"checkpoint of step {event.get('step')}"
        case "error":
            text = f"worker {worker}: {event.get('text') or event.get('type')}"
        case _:
            return None
    return plain(text)


def _facts(event: Event, *known: str) -> str:
    raw = event.get("values")
    facts = raw if isinstance(raw, Mapping) else event
    left = [
        f"{name} {value}"
        for name, value in facts.items()
        if name not in ("kind", "at", "worker", *known) and value is not None
    ]
    return f" ({', '.join(left)})" if left else ""
