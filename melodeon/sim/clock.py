"""Simulated times in words: moments as a clock shows them, lengths in the units that people say."""

MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0


def moment(seconds: float) -> str:
    """`4:10:00`, or `2 d 04:10:00`: so long after the first submission."""
    sign, whole = ("-", -round(seconds)) if round(seconds) < 0 else ("", round(seconds))
    days, rest = divmod(whole, int(DAY))
    hours, rest = divmod(rest, int(HOUR))
    minutes, left = divmod(rest, int(MINUTE))
    return f"{sign}{days} d {hours:02d}:{minutes:02d}:{left:02d}" if days else f"{sign}{hours}:{minutes:02d}:{left:02d}"


def length(seconds: float) -> str:
    """`8 s`, `4.5 min`, `20 min`, `3.4 h`, `2.1 d`."""
    for unit, size, below in (("s", 1.0, MINUTE), ("min", MINUTE, HOUR), ("h", HOUR, DAY)):
        if seconds < below:
            return f"{_short(seconds / size)} {unit}"
    return f"{_short(seconds / DAY)} d"


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"
