"""Deadlines on a real cluster: of the jobs that were promised theirs, how many met it; beside EDF and FIFO.

A real service with eight slots and real elastic jobs on emulated accelerators (`live/device.py`), more of them than can
all be done in time. ElasticFlow turns some away at once and keeps what it promised to the others; EDF and FIFO take
everybody. Speeds are measured beforehand and given with the jobs. A cluster of its own for each policy, one after the
other, with the same trace.

The figure is the part of all deadlines that were met under ElasticFlow, over that of the better peer; of the admitted
jobs all must meet theirs.

    python benchmarks/deadline_live.py [--jobs 12] [--policies elasticflow,edf,fifo]
"""

from collections.abc import Sequence
from dataclasses import dataclass

from _calibrate import SCRIPT, Entry, calibrate
from _cluster import Served
from _common import arguments, at_least, progress, report
from _livetrace import DEVICES, Played, play
from _plans import shares

from melodeon.core.service import Phase

TRACE = (
    Entry(0.0, "even", 260, "1-4", deadline_s=75.0),
    Entry(3.0, "fair", 120, "1-4", deadline_s=45.0),
    Entry(9.0, "bound", 110, "1-4", deadline_s=60.0),
    Entry(14.0, "even", 160, "1-4"),
    Entry(19.0, "even", 180, "1-4", deadline_s=42.0),
    Entry(24.0, "fair", 100, "1-4", deadline_s=70.0),
    Entry(30.0, "bound", 120, "1-4", deadline_s=50.0),
    Entry(36.0, "even", 200, "1-4", deadline_s=40.0),
    Entry(42.0, "fair", 110, "1-2", deadline_s=80.0),
    Entry(48.0, "bound", 90, "1-4", deadline_s=40.0),
    Entry(54.0, "even", 220, "1-4", deadline_s=60.0),
    Entry(60.0, "fair", 100, "1-4", deadline_s=75.0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What became of the deadlines under one policy."""

    policy: str
    deadlines: int
    admitted: int
    met: int
    spare_s: float
    """The least time from a job's end to the deadline that it met."""

    @property
    def of_admitted(self) -> float:
        """The part of the admitted jobs that met theirs."""
        return self.met / self.admitted if self.admitted else 1.0

    @property
    def of_all(self) -> float:
        """The part of all jobs with a deadline that met theirs."""
        return self.met / self.deadlines if self.deadlines else 1.0


def kept(played: Played) -> Kept:
    """Count."""
    due = [job for job in played.jobs if job.deadline_at is not None]
    spare = [
        job.deadline_at - job.finished_at
        for job in due
        if job.phase is Phase.DONE and job.deadline_at is not None and job.finished_at is not None
    ]
    in_time = [seconds for seconds in spare if seconds >= 0]
    return Kept(
        policy=played.policy,
        deadlines=len(due),
        admitted=sum(job.phase is not Phase.REJECTED for job in due),
        met=len(in_time),
        spare_s=min(in_time, default=0.0),
    )


def tell(played: Played) -> None:
    """Job by job, for the person who waits."""
    given = played.given()
    for job in played.jobs:
        if job.deadline_at is None or job.phase is Phase.REJECTED:
            continue
        end = "not done" if job.finished_at is None else f"{job.deadline_at - job.finished_at:+.1f} s"
        start = f"{played.start_of(job):.1f} s" if job.id in played.logs and job.incarnation == 1 else ""
        row = f"{job.id:14} {end:>9} to its deadline, start {start:>6}, stopped {job.num_suspensions} times"
        progress(f"{row}, shares {' '.join(map(str, shares(given, job.id)))}")


def table(found: Sequence[Kept]) -> None:
    """Policy by policy, for the person who waits."""
    progress(
        f"{'policy':12} {'deadlines':>9} {'admitted':>8} {'met':>4} {'of admitted':>11} {'of all':>7} {'nearest':>8}"
    )
    for one in found:
        progress(
            f"{one.policy:12} {one.deadlines:9} {one.admitted:8} {one.met:4} {one.of_admitted:11.0%} {one.of_all:7.0%} "
            f"{one.spare_s:6.1f} s"
        )


def main() -> None:
    """Play the trace under each policy, and print the report."""
    parser = arguments(__doc__)
    parser.add_argument("--jobs", type=int, default=len(TRACE), help=f"the first so many of {len(TRACE)}")
    parser.add_argument("--policies", default="elasticflow,edf,fifo", help="ours first")
    options = parser.parse_args()
    with Served(["--devices", str(DEVICES)], root=SCRIPT.parent) as served:
        curves = calibrate(served).curves
    found = []
    for policy in options.policies.split(","):
        progress(f"== {policy}")
        with Served(["--devices", str(DEVICES), "--policy", policy], root=SCRIPT.parent) as served:
            trace = TRACE[: options.jobs]
            played = play(served, trace, curves, policy=policy, to_the_end=False)
            tell(played)
            found.append(kept(played))
    table(found)
    ours, peers = found[0], found[1:]
    best = max(peers, key=lambda one: one.of_all, default=None)
    report(
        benchmark="deadline_live",
        metric=f"part of {ours.deadlines} deadlines that were met",
        value=round(ours.of_all, 4),
        peer=best.policy if best else None,
        peer_value=round(best.of_all, 4) if best else None,
        ratio=round(ours.of_all / best.of_all, 2) if best and best.of_all else None,
        admitted=ours.admitted,
        admitted_that_met=ours.met,
        nearest_s=round(ours.spare_s, 2),
        peers={one.policy: {"met": one.met, "of": one.deadlines} for one in peers},
        devices=DEVICES,
        bounds=[at_least("admitted jobs that met their deadline", ours.met, ours.admitted)],
        check=options.check,
    )


if __name__ == "__main__":
    main()
