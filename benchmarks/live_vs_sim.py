"""The same twelve jobs on a real cluster and in the simulator: whether decisions and times are the same.

A real service with eight slots and real elastic jobs on emulated accelerators (`live/device.py`); a mix of promised,
soft and no deadlines, one to four workers, arriving over two and a half minutes. The simulator is given what was
measured beforehand: the jobs' curves, and what starts, growth and ends cost. Nothing that it is given comes from the
run that it is compared with but the moments of submission.

The figure is the mean absolute error of the jobs' completion times; the bound is ElasticFlow's 3 %.

    python benchmarks/live_vs_sim.py [--jobs 12] [--policy elasticflow]
"""

from statistics import fmean, median

from _calibrate import SCRIPT, Entry, Measured, calibrate
from _cluster import Served
from _common import arguments, at_most, progress, report
from _livetrace import DEVICES, Played, as_it_was, curves_as_they_were, play, simulate, simulated_given
from _plans import Likeness, compare, errors, shares

from melodeon.sim.engine import SimResult

BOUND = 0.03

TRACE = (
    Entry(0.0, "even", 234, "1-4"),
    Entry(13.0, "fair", 117, "1-4", deadline_s=77.0),
    Entry(26.0, "bound", 117, "1-4", deadline_s=70.0, soft=True),
    Entry(39.0, "even", 144, "1-2", deadline_s=84.0),
    Entry(52.0, "bound", 108, "1-4"),
    Entry(65.0, "fair", 117, "2-4", deadline_s=70.0),
    Entry(78.0, "even", 198, "1-4", deadline_s=70.0, soft=True),
    Entry(91.0, "bound", 99, "1-4", deadline_s=63.0),
    Entry(104.0, "fair", 108, "1-4"),
    Entry(117.0, "even", 180, "1-4", deadline_s=70.0),
    Entry(130.0, "bound", 99, "1-2", deadline_s=70.0, soft=True),
    Entry(143.0, "fair", 99, "1-4", deadline_s=63.0),
)


def table(live: Played, simulated: SimResult) -> None:
    """Job by job, for the person who waits."""
    given, played = simulated_given(simulated), live.given()
    outcomes = {str(outcome.id): outcome for outcome in simulated.outcomes}
    progress(f"{'job':12} {'goal':11} {'live':>7} {'simulated':>9} {'':>7}  shares live / simulated")
    for job in live.jobs:
        outcome = outcomes[job.id]
        took = (job.finished_at or 0.0) - job.submitted_at
        jct = outcome.jct_s
        off = f"{jct / took - 1:+.1%}" if jct is not None and job.digest else ""
        one, two = (" ".join(map(str, shares(made, job.id))) for made in (played, given))
        said = f"{jct:9.1f}" if jct is not None else f"{'rejected':>9}"
        progress(f"{job.id:12} {job.goal:11} {took:7.1f} {said} {off:>7}  {one} / {two if two != one else 'the same'}")
    starts = [live.start_of(job) for job in live.jobs if job.incarnation == 1 and job.digest]
    progress(f"starts in the trace: {', '.join(f'{s:.2f}' for s in starts)}")


def likeness(live: Played, simulated: SimResult) -> Likeness:
    """Of the decisions."""
    outcomes = {str(outcome.id): outcome for outcome in simulated.outcomes}
    ends = {
        job.id: ((job.finished_at or 0.0) - live.origin, outcomes[job.id].finished_s or 0.0)
        for job in live.jobs
        if job.digest and outcomes[job.id].finished_s
    }
    return compare(live.given(), simulated_given(simulated), ends)


def tell(live: Played, simulated: SimResult, measured: Measured, *, check: bool = False) -> None:
    """The report."""
    table(live, simulated)
    alike = likeness(live, simulated)
    found = errors(live.jcts(), {o.id: o.jct_s for o in simulated.outcomes if o.jct_s is not None})
    verdicts = {job.id: job.digest is not None for job in live.jobs}
    same_verdicts = sum(verdicts[outcome.id] == outcome.admitted for outcome in simulated.outcomes)
    off = fmean(abs(error) for error in found.values())
    overheads = measured.overheads
    again = simulate(live, as_it_was(live, overheads), curves_as_they_were(live, measured.curves))
    left = errors(live.jcts(), {o.id: o.jct_s for o in again.outcomes if o.jct_s is not None})
    alike_then = likeness(live, again)
    assert overheads.start is not None
    progress(
        f"completion times off by {off:.1%} on average ({fmean(found.values()):+.1%} with sign); {alike.common} "
        f"decisions in common of {alike.live} live and {alike.simulated} simulated, {alike.typical_s:.2f} s apart"
    )
    progress(
        f"with the starts, ends and speeds of the run itself: {fmean(map(abs, left.values())):.1%} "
        f"({fmean(left.values()):+.1%} with sign), {alike_then.common} in common"
    )
    report(
        benchmark="live_vs_sim",
        metric=f"mean absolute error of simulated completion times of {len(found)} jobs",
        value=round(off, 4),
        peer="bound",
        peer_value=BOUND,
        ratio=round(BOUND / off, 2),
        mean_signed_error=round(fmean(found.values()), 4),
        median_error=round(median(abs(error) for error in found.values()), 4),
        worst_error=round(max(abs(error) for error in found.values()), 4),
        error_with_own_times=round(fmean(map(abs, left.values())), 4),
        decisions_common_with_own_times=alike_then.common,
        starts_live_s=[round(live.start_of(job), 2) for job in live.jobs if job.incarnation == 1 and job.digest],
        policy=live.policy,
        devices=DEVICES,
        same_verdicts=f"{same_verdicts} of {len(live.jobs)}",
        decisions_live=alike.live,
        decisions_simulated=alike.simulated,
        decisions_common=alike.common,
        decisions_before_first_difference=alike.first,
        jobs_with_same_shares=f"{alike.same_jobs} of {alike.jobs}",
        common_decisions_apart_s=round(alike.typical_s, 3),
        common_decisions_apart_most_s=round(max(map(abs, alike.apart_s), default=0.0), 3),
        agreement=round(alike.agreement, 4),
        curves={kind: dict(curve) for kind, curve in measured.curves.items()},
        start_s=round(overheads.start.seconds(1), 3),
        grow_s=round(overheads.grow_s, 3),
        shrink_s=round(overheads.shrink_s, 3),
        pause_s=round(overheads.default.seconds(1), 3),
        end_s=round(overheads.end_s, 3),
        bounds=[at_most("mean absolute error of completion times", round(off, 4), BOUND)],
        check=check,
    )


def main() -> None:
    """Calibrate, play, simulate, compare."""
    parser = arguments(__doc__)
    parser.add_argument("--jobs", type=int, default=len(TRACE), help=f"the first so many of {len(TRACE)}")
    parser.add_argument("--policy", default="elasticflow")
    options = parser.parse_args()
    with Served(["--devices", str(DEVICES)], root=SCRIPT.parent) as served:
        measured = calibrate(served)
    with Served(["--devices", str(DEVICES), "--policy", options.policy], root=SCRIPT.parent) as served:
        live = play(served, TRACE[: options.jobs], measured.curves, policy=options.policy)
    tell(live, simulate(live, measured.overheads), measured, check=options.check)


if __name__ == "__main__":
    main()
