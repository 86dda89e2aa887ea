"""Pictures of simulations, as SVG text.

gantt         who holds which device when: one row a device, one colour a job
jct           the share of jobs that are done so long after their submission, one line a simulation
utilisation   the share of devices held over time, one line a simulation
deadlines     the share of deadlines met by tightness; of one simulation also those missed and turned away
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import ceil, log10
from zlib import crc32

from melodeon.core.errors import UsageError
from melodeon.core.plan import Placement
from melodeon.core.text import counted, plain
from melodeon.placement.topology import Topology, topology_of
from melodeon.sim.clock import length, moment
from melodeon.sim.explain import short
from melodeon.sim.record import Job, Record, Span, cluster_of, placement_of, spans
from melodeon.sim.svg import Chart, even_ticks, log_time_ticks, percent_ticks, time_ticks

Window = tuple[float | None, float | None]
"""Seconds after the first submission between which to draw; None: to the end."""

BINS = 480
"""Points of a line over time: more than pixels help nobody."""
ALIKE = 0.01
"""Tightnesses that differ by less than this share are drawn as one."""
FATES = (("in time", "#009e73"), ("late", "#e69f00"), ("turned away", "#b0b0b0"))


def plot(kind: str, found: Sequence[Record], window: Window = (None, None)) -> str:
    """A picture of one or several simulations."""
    if kind not in KINDS:
        raise UsageError(f"--kind {kind} is not one of {', '.join(KINDS)}")
    if kind == "gantt" and len(found) > 1:
        names = plain(", ".join(f"{one.head.trace} under {one.head.policy}" for one in found[:4]))
        raise UsageError(f"a Gantt chart shows 1 simulation and {len(found)} were given ({names}): name one file")
    if kind not in OVER_TIME and window != (None, None):
        raise UsageError(
            f"--from and --to choose a time, and --kind {kind} is drawn over none: leave them out, or draw "
            f"{' or '.join(OVER_TIME)}"
        )
    return KINDS[kind](found, window)


def _gantt(records: Sequence[Record], window: Window) -> str:
    (found,) = records
    topology = topology_of(cluster_of(found.head))
    base, total = _bases(topology)
    low, high = _between(records, window)
    chart = Chart(_title(found, "devices over time"), height=max(320.0, min(1400.0, 110 + 6.0 * total)))
    chart.across(low, high)
    chart.up(total, 0)
    ticks, unit = time_ticks(low, high)
    nodes = [(base[line.kind] + first, node.id) for line in topology.lines for first, node in line.nodes]
    every = max(1, -(-len(nodes) // 24))
    chart.axes(ticks, [(first, "") for first, _ in nodes[::every]], x_title=f"time ({unit})", y_title="")
    sizes = {machine.id: machine.devices for machine in found.head.nodes}
    for first, name in nodes[::every]:
        chart.row(first + sizes[name] / 2, name)
    for failure in found.failures:
        if not failure.up:
            back = next((f.at_s for f in found.failures if f.node == failure.node and f.at_s > failure.at_s), None)
            down = _clip(found, failure.at_s, back if back is not None else found.head.end_s, low, high)
            first = next(at for at, name in nodes if name == failure.node)
            if down is not None:
                chart.box(down, (first + sizes[failure.node], first), "#444444", tip=f"{failure.node} is down")
    for span in spans(found):
        shown = _clip(found, span.from_s, span.to_s, low, high)
        if shown is not None:
            _bar(chart, found, span, shown, base)
    return chart.render()


def _bar(chart: Chart, found: Record, span: Span, shown: tuple[float, float], base: dict[str, int]) -> None:
    start_s = found.head.start_s
    devices = span.change.devices
    tip = (
        f"{span.job}: {devices} device{'s' if devices > 1 else ''} from {moment(span.from_s - start_s)} "
        f"to {moment(span.to_s - start_s)}; {span.change.why}"
    )
    for kind, first, size in _merged(placement_of(span.change)):
        rows = (base[kind] + first + size, base[kind] + first)
        chart.box(shown, (float(rows[0]), float(rows[1])), _hue(span.job), tip=tip)
        wide, tall = chart.x(shown[1]) - chart.x(shown[0]), abs(chart.y(rows[0]) - chart.y(rows[1]))
        name = short(span.job)
        if wide > 6.5 * len(name) + 4 and tall >= 10:
            chart.label(sum(shown) / 2, sum(rows) / 2, name)


def _jct(records: Sequence[Record], _: Window) -> str:
    times = [
        sorted(j.finished_s - j.submit_s for j in found.jobs.values() if j.finished_s is not None) for found in records
    ]
    every = [max(value, 0.1) for values in times for value in values]
    if not every:
        raise UsageError("no job was finished, so there are no completion times to draw: simulate a longer trace")
    labels = [f"{name}: {counted(len(values), 'job')}" for name, values in zip(_names(records), times, strict=True)]
    chart = Chart(_shared_title(records, "job completion times"), legend=labels)
    low, high = min(every), max(every)
    chart.across(low / 1.2, high * 1.2, log=True)
    chart.axes(
        log_time_ticks(low / 1.2, high * 1.2),
        percent_ticks(),
        x_title="time from submission to completion",
        y_title="finished jobs",
    )
    for index, values in enumerate(times):
        step = max(1, len(values) // BINS)
        picked = [*range(0, len(values), step), len(values) - 1] if values else []
        chart.line(_stairs([(max(values[k], 0.1), (k + 1) / len(values)) for k in picked]), index)
    return chart.render()


def _stairs(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """A line that goes up at each point and nowhere else: between two completions no job is done."""
    before = [0.0, *(share for _, share in points)]
    return [(time, level) for (time, share), low in zip(points, before, strict=False) for level in (low, share)]


def _utilisation(records: Sequence[Record], window: Window) -> str:
    low, high = _between(records, window)
    ends = [min(high, found.head.end_s - found.head.start_s) for found in records]
    held = [held_share(found, low, end) if end > low else [0.0] for found, end in zip(records, ends, strict=True)]
    labels = [f"{name}: {100 * sum(used) / len(used):.0f} %" for name, used in zip(_names(records), held, strict=True)]
    chart = Chart(_shared_title(records, "devices in use"), legend=labels)
    chart.across(low, high)
    ticks, unit = time_ticks(low, high)
    chart.axes(ticks, percent_ticks(), x_title=f"time ({unit})", y_title="devices held")
    for index, (used, end) in enumerate(zip(held, ends, strict=True)):
        wide = (end - low) / len(used)
        edges = [low + k * wide for k in range(len(used) + 1)]
        chart.line([(edges[k + j], share) for k, share in enumerate(used) for j in (0, 1)], index)
    return chart.render()


def held_share(found: Record, low: float, high: float, bins: int = BINS) -> list[float]:
    """The share of all devices that were held, averaged over each of even parts of a time."""
    wide = (high - low) / bins
    held = [0.0] * bins
    for span in spans(found):
        shown = _clip(found, span.from_s, span.to_s, low, high)
        if shown is None:
            continue
        first, last = int((shown[0] - low) / wide), min(bins - 1, int((shown[1] - low) / wide))
        for index in range(first, last + 1):
            start = low + index * wide
            held[index] += span.change.devices * (min(shown[1], start + wide) - max(shown[0], start))
    devices = sum(machine.devices for machine in found.head.nodes)
    return [value / (devices * wide) for value in held]


def _deadlines(records: Sequence[Record], _: Window) -> str:
    jobs = [[(j, j.tightness) for j in found.jobs.values()] for found in records]
    tight = [[(job, value) for job, value in some if value is not None] for some in jobs]
    if not any(tight):
        raise UsageError("no job has both a deadline and a recorded duration, so there is no tightness to draw by")
    edges = _edges([value for some in tight for _, value in some])
    title = _shared_title(records, "deadlines by tightness")
    if len(records) == 1:
        chart = Chart(title, legend=[name for name, _ in FATES], fills=[fill for _, fill in FATES])
    else:
        met = [100 * sum(job.in_time for job, _ in some) / len(some) if some else 0.0 for some in tight]
        chart = Chart(title, legend=[f"{n}: {share:.1f} %" for n, share in zip(_names(records), met, strict=True)])
    chart.across(0, len(edges) - 1)
    labels = [(k + 0.5, f"{a} to {b}") for k, (a, b) in enumerate(pairwise(_told(edges)))]
    chart.axes(
        labels,
        percent_ticks(),
        x_title="tightness (time to the deadline over recorded duration)",
        y_title="jobs" if len(records) == 1 else "deadlines met",
    )
    for index, some in enumerate(tight):
        points: list[tuple[float, float]] = []
        for k in range(len(edges) - 1):
            inside = [job for job, value in some if _bin(value, edges) == k]
            if not inside:
                continue
            if len(records) == 1:
                _stack(chart, k, inside)
            points.append((k + 0.5, sum(job.in_time for job in inside) / len(inside)))
        if len(records) > 1:
            chart.line(points, index, marks=True)
    return chart.render()


def _stack(chart: Chart, k: int, jobs: list[Job]) -> None:
    """One bar: in time, late, turned away."""
    counts = (
        sum(job.in_time for job in jobs),
        sum(job.admitted and not job.in_time for job in jobs),
        sum(not job.admitted for job in jobs),
    )
    low = 0.0
    for (name, fill), count in zip(FATES, counts, strict=True):
        high = low + count / len(jobs)
        if count:
            chart.box((k + 0.12, k + 0.88), (low, high), fill, tip=f"{count} of {len(jobs)} {name}")
            if high - low > 0.05:
                chart.label(k + 0.5, (low + high) / 2, str(count), ink="white" if name == "in time" else "#222222")
        low = high


def _edges(values: list[float]) -> list[float]:
    """Ten tenths from 0.5 to 1.5 where the trace drew them so, else about ten even parts; one where all are alike."""
    low, high = min(values), max(values)
    if low >= 0.5 - 0.05 and high <= 1.5 + 0.05:
        return [0.5 + k / 10 for k in range(11)]
    middle = (low + high) / 2
    if high - low < ALIKE * abs(middle):
        # Parts of that would differ by rounding only, and past a point not even by that.
        return sorted([0.9 * middle, 1.1 * middle])
    ticks = [value for value, _ in even_ticks(low, high, 8)]
    step = ticks[1] - ticks[0] if len(ticks) > 1 else 1.0
    first = ticks[0] - step if ticks and ticks[0] > low else ticks[0] if ticks else low
    edges = [first]
    while edges[-1] < high:
        edges.append(edges[-1] + step)
    return edges if len(edges) > 1 else [first, first + step]


def _told(edges: list[float]) -> list[str]:
    """The edges with as many digits as tell one from the next."""
    step = edges[1] - edges[0]
    if step < 1e-4 or max(map(abs, edges)) >= 1e6:
        return [f"{edge:.4g}" for edge in edges]
    digits = max(1, ceil(-log10(step) - 1e-9))
    return [f"{edge:.{digits}f}" for edge in edges]


def _bin(value: float, edges: list[float]) -> int:
    """Deadlines are whole seconds in some traces, so values may lie a hair outside."""
    inside = sum(edge <= value for edge in edges) - 1
    return min(max(inside, 0), len(edges) - 2)


def _bases(topology: Topology) -> tuple[dict[str, int], int]:
    """Where each type's rows begin, and how many there are."""
    base: dict[str, int] = {}
    total = 0
    for line in topology.lines:
        base[line.kind] = total
        total += line.size
    return base, total


def _merged(placement: Placement) -> list[tuple[str, int, int]]:
    """Blocks that touch, as one."""
    found: list[tuple[str, int, int]] = []
    for block in sorted(placement):
        if found and found[-1][0] == block.kind and found[-1][1] + found[-1][2] == block.start:
            kind, start, size = found.pop()
            found.append((kind, start, size + block.size))
        else:
            found.append((block.kind, block.start, block.size))
    return found


def _between(records: Sequence[Record], window: Window) -> tuple[float, float]:
    end = max(found.head.end_s - found.head.start_s for found in records)
    low, high = window[0] or 0.0, window[1] if window[1] is not None else end
    if low >= end:
        raise UsageError(f"nothing lies after {length(low)}: the simulation ends {length(end)} after its start")
    if not low < high:
        raise UsageError(f"nothing lies between {length(low)} and {length(high)}: the first must be the earlier")
    return low, high


def _clip(found: Record, from_s: float, to_s: float, low: float, high: float) -> tuple[float, float] | None:
    start, stop = max(from_s - found.head.start_s, low), min(to_s - found.head.start_s, high)
    return (start, stop) if stop > start else None


def _hue(job: str) -> str:
    """A light colour of the job's own, the same in every picture."""
    mixed = crc32(job.encode())
    return f"hsl({mixed % 360},{45 + mixed // 360 % 30}%,{66 + mixed // 11000 % 16}%)"


def _title(found: Record, what: str) -> str:
    return f"{found.head.trace} under {found.head.policy} on {found.head.cluster_name}: {what}"


def _shared_title(records: Sequence[Record], what: str) -> str:
    if len(records) == 1:
        return _title(records[0], what)
    traces = {found.head.trace for found in records}
    return f"{traces.pop()}: {what}" if len(traces) == 1 else what[:1].upper() + what[1:]


def _names(records: Sequence[Record]) -> list[str]:
    """What tells the simulations apart."""
    heads = [found.head for found in records]
    parts = [(h.policy, h.trace, h.cluster_name, f"slots of {length(h.slot_s)}", f"seed {h.seed}") for h in heads]
    differ = [k for k in range(5) if len({part[k] for part in parts}) > 1] or [0]
    return [", ".join(part[k] for k in differ) for part in parts]


KINDS: dict[str, Callable[[Sequence[Record], Window], str]] = {
    "gantt": _gantt,
    "jct": _jct,
    "utilisation": _utilisation,
    "deadlines": _deadlines,
}
"""What can be drawn."""
OVER_TIME = ("gantt", "utilisation")
"""Pictures with an axis of time, of which a part can be drawn."""
