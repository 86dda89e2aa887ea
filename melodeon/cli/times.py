"""Moments and lengths as people say them, and as a job's file says them."""

from melodeon.viz.words import duration


def away(at: float | None, now: float) -> str:
    """`in 49 min`, `3 min ago`, or a dash where there is no such moment."""
    if at is None:
        return "-"
    return f"in {duration(at - now)}" if at >= now else f"{duration(now - at)} ago"


def flag(seconds: float) -> str:
    """`90s`, `31m`, `2h5m`: a length as a job's file takes it, never shorter than it is."""
    whole = int(seconds) + 1
    if whole < 600:
        return f"{whole}s"
    hours, minutes = divmod(whole // 60 + 1, 60)
    return (f"{hours}h" if hours else "") + (f"{minutes}m" if minutes or not hours else "")
