"""Moments as people say them, of this machine's zone.

What lies beyond the calendar can be said too: a job may have more steps than anybody waits for.
"""

from datetime import UTC, datetime

LATEST = datetime(9999, 12, 30, tzinfo=UTC).timestamp()
"""The last moment that has a date in every zone."""


def local(at: float) -> datetime:
    """The date and time of a moment; the calendar's last one for all that comes later."""
    return datetime.fromtimestamp(min(LATEST, at), UTC).astimezone()


def day_and_clock(at: float, now: float) -> str:
    """`22:10:05`, or with its date where that is another day."""
    if at > LATEST:
        return "after the year 9999"
    then = local(at)
    return f"{then:%H:%M:%S}" if then.date() == local(now).date() else f"{then:%Y-%m-%d %H:%M:%S}"
