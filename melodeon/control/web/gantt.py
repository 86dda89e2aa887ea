"""Devices over time by job, as SVG: a row for each device, a box for each time that a job held some, and paler ones
right of now for what is planned.

Made anew for every window that somebody looks at, at the width of their screen, so text stays text and ticks stay
round. No colours here: classes, which the style sheet fills for light and dark. Boxes too narrow to be seen beside
their neighbour are left out, so a busy day costs no more than a quiet one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from markupsafe import Markup

from melodeon.control.web.words import colour_of, counted, zone
from melodeon.core.moments import day_and_clock, local
from melodeon.core.service import Device, NodeInfo, Span, Timeline
from melodeon.core.text import plain
from melodeon.sim.clock import length

STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)
"""Seconds between ticks."""
TICK_PX, LETTER_PX = 76.0, 6.6
LEFT, RIGHT, TOP, STRIP, FOOT = 92.0, 8.0, 6.0, 34.0, 22.0
"""Room for names; of the line of use above the rows; for times below them."""
TALLEST, LOWEST = 640.0, 1.0


@dataclass(frozen=True, slots=True)
class Frame:
    """From devices and moments to pixels."""

    since: float
    until: float
    width: float
    row_px: float
    rows: dict[tuple[str, int], int]

    def x(self, at: float) -> float:
        """The pixel of a moment; those outside are on the edge."""
        share = (min(max(at, self.since), self.until) - self.since) / (self.until - self.since)
        return LEFT + share * (self.width - LEFT - RIGHT)

    @property
    def head(self) -> float:
        """Where the rows begin."""
        return TOP + STRIP + 6

    @property
    def foot(self) -> float:
        """Where they end."""
        return self.head + max(1, len(self.rows)) * self.row_px

    def y(self, row: int) -> float:
        """The top of a row."""
        return self.head + row * self.row_px


def gantt(timeline: Timeline, nodes: Sequence[NodeInfo], *, now: float, first: float, width: int = 960) -> Markup:
    """The chart. `first` is the earliest moment that there is something to see of."""
    rows = {(node.id, index): 0 for node in nodes for index in range(node.num_devices)}
    rows = {key: row for row, key in enumerate(rows)}
    frame = Frame(timeline.since, timeline.until, width, _row_px(len(rows)), rows)
    spans = sorted(timeline.spans, key=lambda span: span.began_at)
    last = max((span.ended_at or now for span in timeline.planned), default=now)
    height = frame.foot + FOOT
    about = f"{counted(len(rows), 'device')} from {_clock(frame.since, now)} to {_clock(frame.until, now)}"
    opening = (
        f'<svg class="gantt" viewBox="0 0 {width} {height:.0f}" width="{width}" height="{height:.0f}" role="img" '
        f'aria-label="Who held which devices: {escape(about)}" data-since="{frame.since:.3f}" '
        f'data-until="{frame.until:.3f}" data-now="{now:.3f}" data-first="{first:.3f}" '
        f'data-last="{last:.3f}" data-left="{LEFT:.0f}" '
        f'data-right="{width - RIGHT:.0f}">'
        f'<clipPath id="frame"><rect x="{LEFT:.0f}" y="0" width="{width - LEFT - RIGHT:.0f}" height="{height:.0f}"/>'
        "</clipPath>"
    )
    parts = [
        opening,
        *_names(nodes, frame),
        '<g clip-path="url(#frame)"><g class="moving">',
        *_ticks(frame, now),
        *_use("use", spans, timeline.capacity, frame, (frame.since, now)),
        *_use("use planned", timeline.planned, timeline.capacity, frame, (now, last)),
        *_boxes(spans, frame, now),
        *_boxes(timeline.planned, frame, now, planned=True),
    ]
    if frame.since <= now <= frame.until:
        parts.append(f'<path class="now" d="M{frame.x(now):.1f} {TOP}V{frame.foot:.1f}"/>')
    parts.append("</g></g></svg>")
    return Markup("".join(parts))  # noqa: S704 - every text in it went through escape


def _row_px(count: int) -> float:
    for most, px in ((8, 22.0), (16, 18.0), (32, 14.0)):
        if count <= most:
            return px
    return max(LOWEST, min(10.0, TALLEST / count))


def _names(nodes: Sequence[NodeInfo], frame: Frame) -> Iterable[str]:
    """Nodes and their devices at the left, a line between nodes, and a veil over those that are away."""
    row, told = 0, -100.0
    right = frame.width - RIGHT
    yield f'<text class="in-use" x="{LEFT - 6:.0f}" y="{TOP + STRIP:.0f}">in use</text>'
    for node in nodes:
        y, tall = frame.y(row), node.num_devices * frame.row_px
        if not node.up or node.drained:
            yield f'<rect class="away" x="{LEFT:.0f}" y="{y:.1f}" width="{right - LEFT:.1f}" height="{tall:.1f}"/>'
        yield f'<path class="between" d="M4 {y:.1f}H{right:.1f}"/>'
        if y - told >= 11:
            told = y
            yield f'<text class="name" x="4" y="{y + min(12.0, max(9.0, tall - 2)):.1f}">{_cut(node.id, 64)}</text>'
        if frame.row_px >= 12:
            for index in range(node.num_devices):
                yield (
                    f'<text class="index" x="{LEFT - 6:.0f}" y="{frame.y(row + index) + frame.row_px / 2 + 3.5:.1f}">'
                    f"{index}</text>"
                )
        row += node.num_devices
    yield f'<path class="between" d="M4 {frame.foot:.1f}H{right:.1f}"/>'


def _ticks(frame: Frame, now: float) -> Iterable[str]:
    span = frame.until - frame.since
    wanted = span * TICK_PX / max(1.0, frame.width - LEFT - RIGHT)
    step = next((step for step in STEPS if step >= wanted), 86400.0 * (1 + wanted // 86400))
    _, east = zone(now)
    at = ((frame.since + east) // step + 1) * step - east
    while at < frame.until:
        moment = local(at)
        label = f"{moment:%H:%M:%S}" if step < 60 else f"{moment:%H:%M}" if step < 43200 else f"{moment:%d %b %H:%M}"
        x = frame.x(at)
        yield f'<path class="tick" d="M{x:.1f} {TOP}V{frame.foot:.1f}"/>'
        if LEFT + 26 <= x <= frame.width - RIGHT - 26:
            yield f'<text class="when" x="{x:.1f}" y="{frame.foot + 15:.1f}">{label}</text>'
        at += step


def _use(look: str, spans: Sequence[Span], capacity: int, frame: Frame, window: tuple[float, float]) -> Iterable[str]:
    """Devices in use in a window of time, as a line above the rows."""
    since, until = max(frame.since, window[0]), min(frame.until, window[1])
    if until <= since:
        return
    changes: dict[float, int] = {since: 0, until: 0}
    for span in spans:
        end = min(until, until if span.ended_at is None else span.ended_at)
        begin = max(since, span.began_at)
        if end > begin:
            changes[begin] = changes.get(begin, 0) + len(span.devices)
            changes[end] = changes.get(end, 0) - len(span.devices)
    base = TOP + STRIP
    used, path, last_x = 0, [f"M{frame.x(since):.1f} {base:.1f}"], -1.0
    for (at, delta), (after, _) in pairwise([*sorted(changes.items()), (until, 0)]):
        used += delta
        x = frame.x(at)
        if x - last_x < 0.5 and after - at < 1e-9:
            continue
        last_x = x
        path.append(f"H{x:.1f}V{base - STRIP * min(1.0, used / max(1, capacity)):.1f}")
    path.append(f"H{frame.x(until):.1f}V{base:.1f}Z")
    yield f'<path class="{look}" d="{"".join(path)}"/>'


def _boxes(spans: Sequence[Span], frame: Frame, now: float, *, planned: bool = False) -> Iterable[str]:
    look = "box planned" if planned else "box"
    drawn: dict[int, float] = {}
    for span in spans:
        end = now if span.ended_at is None else span.ended_at
        if end < frame.since or span.began_at > frame.until:
            continue
        left, right = frame.x(span.began_at), frame.x(end)
        runs = _runs(span.devices, frame)
        if right - left < 0.6:
            runs = [(row, tall) for row, tall in runs if left - drawn.get(row, -1.0) >= 0.6]
        if not runs:
            continue
        drawn.update({row: right for row, _ in runs})
        yield f'<a class="{look} c{colour_of(span.job)}" href="/jobs/{escape(span.job)}" tabindex="-1">'
        yield f"<title>{escape(_tip(span, end, now, planned=planned))}</title>"
        for row, tall in runs:
            gap = 1.0 if frame.row_px >= 5 else 0.0
            yield (
                f'<rect x="{left:.1f}" y="{frame.y(row) + gap / 2:.1f}" width="{max(0.6, right - left - 0.6):.1f}" '
                f'height="{tall * frame.row_px - gap:.1f}" rx="{2 if gap else 0}"/>'
            )
        yield from _label(span, left, right, max(runs, key=lambda run: run[1]), frame)
        yield "</a>"


def _runs(devices: Iterable[Device], frame: Frame) -> list[tuple[int, int]]:
    """Rows that lie together: (first, how many)."""
    rows = sorted(frame.rows[key] for device in devices if (key := (device.node, device.index)) in frame.rows)
    found: list[tuple[int, int]] = []
    for row in rows:
        if found and sum(found[-1]) == row:
            found[-1] = (found[-1][0], found[-1][1] + 1)
        else:
            found.append((row, 1))
    return found


def _label(span: Span, left: float, right: float, run: tuple[int, int], frame: Frame) -> Iterable[str]:
    row, tall = run
    room = right - left - 8
    if tall * frame.row_px >= 11 and room >= 4 * LETTER_PX:
        middle = frame.y(row) + tall * frame.row_px / 2 + 3.8
        yield f'<text x="{left + 4:.1f}" y="{middle:.1f}">{_cut(span.job, room)}</text>'


def _tip(span: Span, end: float, now: float, *, planned: bool) -> str:
    ends = _clock(end, now) if span.ended_at is not None else "now"
    took = f"{'planned ' if planned else ''}{_clock(span.began_at, now)} to {ends}"
    text = f"{span.job}: {counted(len(span.devices), 'worker')}\n{took} ({length(max(0.0, end - span.began_at))})"
    return text + (f"\n{plain(span.why)}" if span.why else "")


def _cut(text: str, room: float) -> str:
    most = max(1, int(room / LETTER_PX))
    text = plain(text)
    return escape(text if len(text) <= most else text[: most - 1] + "…")


def _clock(at: float, now: float) -> str:
    return day_and_clock(at, now)
