"""Charts as SVG text, without any library: axes, lines, boxes, a legend. Pure: values in, a string out."""

from collections.abc import Sequence
from html import escape
from math import ceil, floor, log10

from melodeon.core.text import plain
from melodeon.sim.clock import DAY, HOUR, MINUTE

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#555555", "#a0522d", "#7b68ee", "#9acd32")
"""Told apart by people who do not see red and green; after the last they come again, dashed, then dotted."""
DASHES = ("", " stroke-dasharray='6 3'", " stroke-dasharray='2 2'", " stroke-dasharray='8 2 2 2'")
GRID, INK, FAINT = "#e4e4e4", "#222222", "#777777"
PLAIN, BOLD = 0.59, 0.66
"""How wide a letter is at most, on average, of the font's size."""
FONT = "font-family='DejaVu Sans, Helvetica, Arial, sans-serif'"

Ticks = Sequence[tuple[float, str]]


def colour(index: int) -> str:
    """The colour of the index-th line."""
    return COLOURS[index % len(COLOURS)]


class Scale:
    """From values to pixels, evenly or by powers of ten."""

    def __init__(self, low: float, high: float, start: float, stop: float, *, log: bool = False) -> None:
        self.log = log
        self.low, self.high = low, high if high != low else low + 1.0
        self._start, self._stop = start, stop

    def __call__(self, value: float) -> float:
        """The pixel of a value."""
        if self.log:
            share = (log10(max(value, self.low)) - log10(self.low)) / (log10(self.high) - log10(self.low))
        else:
            share = (value - self.low) / (self.high - self.low)
        return self._start + share * (self._stop - self._start)


class Chart:
    """One picture. `x` and `y` map values into the frame; parts are drawn in the order in which they are added."""

    left, right, top, bottom = 64.0, 20.0, 44.0, 52.0

    def __init__(
        self,
        title: str,
        *,
        width: float = 960,
        height: float = 480,
        legend: Sequence[str] = (),
        fills: Sequence[str] = (),
    ) -> None:
        """The frame is of one height, whatever the legend above it needs; `fills` are its colours if not the lines'."""
        self._parts: list[str] = []
        room = width - self.left - self.right
        size = 15 if len(title) * 15 * BOLD <= room else 11
        self._text(self.left, 24, _cut(title, int(room / (size * BOLD))), size=size, weight="bold")
        rows = self._legend(legend, fills, room)
        self.width, self.height = width, height + 18 * rows
        self.top += 18 * rows
        height = self.height
        self.x = Scale(0, 1, self.left, width - self.right)
        self.y = Scale(0, 1, height - self.bottom, self.top)

    def across(self, low: float, high: float, *, log: bool = False) -> None:
        """Set the values at the frame's left and right."""
        self.x = Scale(low, high, self.left, self.width - self.right, log=log)

    def up(self, low: float, high: float) -> None:
        """Set the values at the frame's foot and head."""
        self.y = Scale(low, high, self.height - self.bottom, self.top)

    def axes(self, x_ticks: Ticks, y_ticks: Ticks, *, x_title: str, y_title: str) -> None:
        """Grid lines, labels and what the axes mean."""
        foot, head = self.height - self.bottom, self.top
        left, right = self.left, self.width - self.right
        for value, label in y_ticks:
            at = self.y(value)
            self._parts.append(f"<path d='M{left:.1f} {at:.1f}H{right:.1f}' stroke='{GRID}'/>")
            self._text(left - 6, at + 4, label, anchor="end", size=11)
        for value, label in x_ticks:
            at = self.x(value)
            self._parts.append(f"<path d='M{at:.1f} {foot:.1f}V{head:.1f}' stroke='{GRID}'/>")
            self._text(at, foot + 16, label, anchor="middle", size=11)
        self._parts.append(f"<path d='M{left:.1f} {head:.1f}V{foot:.1f}H{right:.1f}' fill='none' stroke='{FAINT}'/>")
        self._text((left + right) / 2, self.height - 12, x_title, anchor="middle")
        middle = (foot + head) / 2
        self._parts.append(
            f"<text x='16' y='{middle:.1f}' transform='rotate(-90 16 {middle:.1f})' text-anchor='middle' "
            f"font-size='12' fill='{INK}'>{_words(y_title)}</text>"
        )

    def line(self, points: Sequence[tuple[float, float]], index: int, *, marks: bool = False) -> None:
        """A line through values, in the index-th colour."""
        if not points:
            return
        path = " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in points)
        self._parts.append(
            f"<polyline points='{path}' fill='none' stroke='{colour(index)}' stroke-width='1.8'{_dash(index)}/>"
        )
        if marks:
            for x, y in points:
                self._parts.append(f"<circle cx='{self.x(x):.1f}' cy='{self.y(y):.1f}' r='3' fill='{colour(index)}'/>")

    def box(
        self, x: tuple[float, float], y: tuple[float, float], fill: str, *, tip: str = "", edge: str = "white"
    ) -> None:
        """A filled box between values, with a text that shows under the mouse."""
        left, right = self.x(x[0]), self.x(x[1])
        head, foot = self.y(y[1]), self.y(y[0])
        thin = right - left < 1.5 or foot - head < 1.5
        stroke = "" if thin or not edge else f" stroke='{edge}' stroke-width='.5'"
        title = f"<title>{_words(tip)}</title>" if tip else ""
        self._parts.append(
            f"<rect x='{left:.2f}' y='{head:.2f}' width='{max(right - left, 0.05):.2f}' height='{foot - head:.2f}' "
            f"fill='{fill}'{stroke}>{title}</rect>"
        )

    def label(self, x: float, y: float, text: str, *, ink: str = INK, size: int = 10) -> None:
        """A text in the middle of a point, in values."""
        self._text(self.x(x), self.y(y) + size * 0.36, text, anchor="middle", size=size, ink=ink)

    def row(self, y: float, name: str) -> None:
        """What a row is, left of the frame."""
        self._text(self.left - 6, self.y(y) + 4, name, anchor="end", size=11)

    def _legend(self, names: Sequence[str], fills: Sequence[str], room: float) -> int:
        """What the colours mean, above the frame, in as many columns as the names leave room for; how many rows."""
        longest = 40 + 12 * PLAIN * max(map(len, names), default=0)
        per_row = max(1, min(3, int(room / longest)))
        wide = room / per_row
        for index, name in enumerate(names):
            x, y = self.left + wide * (index % per_row), 42.0 + 18 * (index // per_row)
            if fills:
                self._parts.append(f"<rect x='{x:.1f}' y='{y - 9:.1f}' width='18' height='10' fill='{fills[index]}'/>")
            else:
                self._parts.append(
                    f"<path d='M{x:.1f} {y - 4:.1f}h18' stroke='{colour(index)}' stroke-width='2.5'{_dash(index)}/>"
                )
            self._text(x + 24, y, _cut(name, int((wide - 24) / (12 * PLAIN))), size=12)
        return -(-len(names) // per_row)

    def render(self) -> str:
        """The whole picture."""
        size = f"width='{self.width:g}' height='{self.height:g}' viewBox='0 0 {self.width:g} {self.height:g}'"
        body = "\n".join(self._parts)
        return (
            f"<svg xmlns='http://www.w3.org/2000/svg' {size} {FONT}>\n"
            f"<rect width='100%' height='100%' fill='white'/>\n{body}\n</svg>\n"
        )

    def _text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        anchor: str = "start",
        size: int = 12,
        weight: str = "normal",
        ink: str = INK,
    ) -> None:
        bold = " font-weight='bold'" if weight == "bold" else ""
        self._parts.append(
            f"<text x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}' font-size='{size}' fill='{ink}'{bold}>"
            f"{_words(text)}</text>"
        )


def even_ticks(low: float, high: float, about: int = 6) -> list[tuple[float, str]]:
    """Round numbers between two values."""
    step = _round_step((high - low) / about or 1.0)
    first, last = ceil(low / step - 1e-9), floor(high / step + 1e-9)
    return [(k * step, f"{k * step:g}") for k in range(first, last + 1)]


def time_ticks(low: float, high: float, about: int = 8) -> tuple[list[tuple[float, str]], str]:
    """Round times between two, and the unit that their labels are in."""
    spread = high - low
    unit, size = next(
        ((name, size) for name, size in (("d", DAY), ("h", HOUR), ("min", MINUTE)) if spread >= 2.5 * size), ("s", 1.0)
    )
    return [(tick * size, label) for tick, label in even_ticks(low / size, high / size, about)], unit


def log_time_ticks(low: float, high: float) -> list[tuple[float, str]]:
    """Well-known times between two, for a scale of powers; round ones where these are too few to read it by."""
    known = (
        *((0.1, "0.1 s"), (1, "1 s"), (10, "10 s"), (60, "1 min"), (600, "10 min"), (HOUR, "1 h"), (10 * HOUR, "10 h")),
        *((10.0**k * DAY, f"{10**k:,} d") for k in range(8)),
    )
    inside = [(value, label) for value, label in known if low <= value <= high]
    if len(inside) > 1:
        return inside
    ticks, unit = time_ticks(low, high)
    return [(value, f"{label} {unit}") for value, label in ticks]


def percent_ticks() -> list[tuple[float, str]]:
    """0 to 100 %."""
    return [(k / 5, f"{20 * k} %") for k in range(6)]


def _round_step(rough: float) -> float:
    power = 10.0 ** floor(log10(rough))
    return next(power * k for k in (1, 2, 5, 10) if power * k >= rough * (1 - 1e-9))


def _dash(index: int) -> str:
    return DASHES[index // len(COLOURS) % len(DASHES)]


def _words(text: str) -> str:
    """Text between tags: XML cannot hold every character, not even escaped."""
    return escape(plain(text))


def _cut(text: str, most: int) -> str:
    """A text that is too long without its middle."""
    if len(text) <= most:
        return text
    return f"{text[: most // 2]}…{text[-(most - most // 2 - 1) :]}"
