"""Idle devices lent to a job for short intervals: how much of what they could give it gets.

Two workers are there all the time; two more are lent for some seconds of every period, and given back. The ideal is
the job's own speed with 4 workers while they are lent and with 2 otherwise, as it is in the second half of each such
time, when everything has settled; the same speeds measured apart, before and after, are told as well. Lent time counts
from the moment they are offered, so starting them is in it, to the moment at which they are given back, which begins
when the interval ends: a job that keeps them for longer could have trained on them for longer. A virtual worker's step
waits as if for a device and computes little, so that workers scale on a machine with fewer cores.

    python benchmarks/transient.py [--period 20] [--lent 10] [--cycles 5] [--wait 0.03]
"""

import argparse
import statistics
import time
from collections.abc import Sequence

import torch
from _common import arguments, at_least, progress, report
from _live import Commits, Job, clean, load, scratch

PERSISTENT, LENT = 2, 4
VIRTUAL_WORKERS = 8
AMOEBA = 0.97
"""Amoeba's share of the ideal throughput."""

Spans = dict[int, list[tuple[int, int]]]
"""By number of workers: from when to when, in nanoseconds."""


def steps_between(logs: dict[str, Commits], start_ns: int, end_ns: int) -> int:
    """Steps that were committed within, each counted once, when the first worker had it."""
    first: Commits = {}
    for commits in logs.values():
        for step, at in commits.items():
            first[step] = min(at, first.get(step, at))
    return sum(start_ns <= at < end_ns for at in first.values())


def sleep_until(at_ns: int) -> None:
    """The clock decides here: intervals are what is given."""
    time.sleep(max(0.0, (at_ns - time.monotonic_ns()) * 1e-9))


def main() -> None:
    """Lend, take back, and print the report."""
    parser = arguments(__doc__)
    parser.add_argument("--period", type=float, default=20.0)
    parser.add_argument("--lent", type=float, default=10.0, help="seconds of every period")
    parser.add_argument("--cycles", type=int, default=5)
    parser.add_argument("--steady", type=float, default=10.0, help="seconds that each steady speed is measured")
    parser.add_argument("--wait", type=float, default=0.03, help="seconds of a device's work a virtual worker")
    options = parser.parse_args()
    torch.set_num_threads(1)
    folder = scratch()
    began = load()
    script = ["--model", "mlp", "--virtual-workers", str(VIRTUAL_WORKERS), "--wait", str(options.wait)]
    try:
        with Job(folder, run=["--workers", str(PERSISTENT), "--receipt-every", "0"], script=script) as job:
            before = steady(job, options.steady / 2)
            start, back_s = lend(job, options)
            after = steady(job, options.steady / 2)
            job.stop()
            logs = job.commits()
    finally:
        clean(folder)
    lent_s, rest_s = options.lent * options.cycles, (options.period - options.lent) * options.cycles
    end = start + int((lent_s + rest_s) * 1e9)
    done = steps_between(logs, start, end)
    spans = settled(start, options)
    apart = {size: [*before[size], *after[size]] for size in before}
    speeds, undisturbed = ({size: _speed(logs, found[size]) for size in found} for found in (spans, apart))
    ideal, other = (ideal_steps(each, lent_s, rest_s, sum(back_s)) for each in (speeds, undisturbed))
    report(
        benchmark="transient",
        metric="steps a second with two workers lent for part of the time",
        value=round(done / (lent_s + rest_s), 3),
        peer="ideal: the settled speeds, switched at once",
        peer_value=round(ideal / (lent_s + rest_s), 3),
        ratio=round(done / ideal, 4),
        ratio_to_speeds_before_and_after=round(done / other, 4),
        steps_per_s={str(size): round(speed, 3) for size, speed in speeds.items()},
        steps_per_s_before_and_after={str(size): round(speed, 3) for size, speed in undisturbed.items()},
        gain_over_never_lent=round(done / (speeds[PERSISTENT] * (lent_s + rest_s)), 4),
        given_back_s=round(statistics.median(back_s), 3),
        lent_s=options.lent,
        period_s=options.period,
        cycles=options.cycles,
        device="a wait of the CPU's, not a computation",
        load=[began, load()],
        bounds=[at_least("share of the ideal throughput", round(done / ideal, 4), AMOEBA)],
        check=options.check,
    )


def ideal_steps(speeds: dict[int, float], lent_s: float, rest_s: float, back_s: float) -> float:
    """What could have been done on the devices that the job had; for `back_s` it still had those that were lent."""
    return speeds[LENT] * (lent_s + back_s) + speeds[PERSISTENT] * (rest_s - back_s)


def steady(job: Job, seconds: float) -> Spans:
    """Train undisturbed for a while at each size; from when to when."""
    found: Spans = {}
    for size in (PERSISTENT, LENT):
        job.handle.scale(size)
        job.steps(10)
        began = time.monotonic_ns()
        sleep_until(began + int(seconds * 1e9))
        found[size] = [(began, time.monotonic_ns())]
    job.handle.scale(PERSISTENT)
    job.until(lambda: job.has(PERSISTENT))
    return found


def lend(job: Job, options: argparse.Namespace) -> tuple[int, list[float]]:
    """All cycles: when they began, and how long giving back took each time."""
    start = time.monotonic_ns()
    back_s = []
    for cycle in range(options.cycles):
        offered = start + int(cycle * options.period * 1e9)
        sleep_until(offered)
        job.handle.scale(LENT)
        sleep_until(offered + int(options.lent * 1e9))
        asked = time.monotonic()
        job.handle.scale(PERSISTENT)
        job.until(lambda: job.has(PERSISTENT))
        back_s.append(time.monotonic() - asked)
        progress(f"cycle {cycle + 1}/{options.cycles}: given back after {back_s[-1]:.2f} s")
    sleep_until(start + int(options.cycles * options.period * 1e9))
    return start, back_s


def settled(start: int, options: argparse.Namespace) -> Spans:
    """The second halves of the lent intervals, and of the times between them."""
    found: Spans = {PERSISTENT: [], LENT: []}
    for cycle in range(options.cycles):
        marks = [cycle * options.period + part for part in (0.0, options.lent, options.period)]
        for size, begin, end in ((LENT, marks[0], marks[1]), (PERSISTENT, marks[1], marks[2])):
            found[size].append((start + int((begin + end) / 2 * 1e9), start + int(end * 1e9)))
    return found


def _speed(logs: dict[str, Commits], spans: Sequence[tuple[int, int]]) -> float:
    seconds = sum(end - start for start, end in spans) * 1e-9
    return sum(steps_between(logs, start, end) for start, end in spans) / seconds


if __name__ == "__main__":
    main()
