"""Times, lengths and amounts as pages say them. Times are of this machine's zone, as in a job's story."""

from zlib import crc32

from markupsafe import Markup

from melodeon.core.moments import day_and_clock, local
from melodeon.core.text import counted as counted
from melodeon.sim.clock import length

NUM_COLOURS = 12
"""Colours of jobs in the style sheet: c0, c1, ..."""


def time_tag(at: float | None, now: float) -> Markup:
    """A moment as `22:10:05`, with its date under the mouse."""
    if at is None:
        return Markup("&ndash;")
    moment = local(at)
    iso, full = moment.isoformat(timespec="seconds"), f"{moment:%Y-%m-%d %H:%M:%S %Z}"
    return Markup('<time datetime="{}" title="{}">{}</time>').format(iso, full, day_and_clock(at, now))


def zone(now: float) -> tuple[str, float]:
    """The zone of this machine: its name, and seconds east of Greenwich."""
    moment = local(now)
    offset = moment.utcoffset()
    return moment.tzname() or "", offset.total_seconds() if offset else 0.0


def colour_of(job: str) -> int:
    """The colour of a job, everywhere the same: neighbours in the queue differ."""
    number = job.rpartition("-")[2]
    return (int(number) if number.isdecimal() and len(number) < 16 else crc32(job.encode())) % NUM_COLOURS


def between(least: int, most: int) -> str:
    """`1–8`, or `4` where there is no choice."""  # noqa: RUF002 - a dash on a page
    return str(least) if least == most else f"{least}–{most}"  # noqa: RUF001 - a dash on a page


def slack(seconds: float) -> str:
    """`12 min to spare`, `3 s late`."""
    return f"{length(seconds)} to spare" if seconds >= 0 else f"{length(-seconds)} late"


def change(seconds: float) -> str:
    """`4 min earlier`."""
    if abs(seconds) < 1.0:
        return "the same"
    return f"{length(abs(seconds))} {'later' if seconds > 0 else 'earlier'}"


def amount(value: float | None) -> str:
    """`0.0123`, `1,234`, `1.2e-05`."""
    if value is None:
        return "–"  # noqa: RUF001 - a dash on a page
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.1f}" if 1000 <= abs(value) < 1e9 else f"{value:.4g}"
