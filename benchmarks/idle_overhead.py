"""Being elastic but never resized, against the same job without agent and master, side by side in one run.

Where the CPU does the training, one process differs from the next by 1 to 3 % of a step, whatever it runs, and no
number of rounds takes that away. So here the training is a wait, as for a device, of about the time that a step of a
real model takes; the model itself is tiny. Whatever is left is the machinery, in absolute time, and its noise is not a
share of the training. Three jobs of 2 workers run at once: an elastic one, a static one, and a second static one, which
says how large a difference is noise. All are started anew several times; errors are those of the mean over starts.

Two figures decide. Throughput, by the median step: what a job loses whose device does the work. And the CPU time of all
processes of the job a step (launcher, agent, nursery and workers), beyond that of the static jobs, over the time that
its workers have: what a job loses whose workers keep their cores busy.

    python benchmarks/idle_overhead.py [--step-s 0.2] [--steps 150] [--starts 8]
"""

import ctypes
import statistics
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from _common import Bound, arguments, at_most, progress, report
from _live import Job, clean, load, scratch, step_times

WORKERS, VIRTUAL_WORKERS = 2, 4
CONTENDERS = {"elastic": ["--straggler", "1.5"], "static": ["--static"], "static again": ["--static"]}
"""Options of each: the elastic one is what `melodeon run` starts, which also watches for slow workers."""
WARM_STEPS = 20
MOST = 0.003
"""What being elastic may cost: Elan's figure."""


def processes_of(job: Job) -> list[int]:
    """The launcher and everything that comes of it."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append(int(path.parent.name))
    found, todo = [], [job.process.pid]
    while todo:
        pid = todo.pop()
        found.append(pid)
        todo += children.get(pid, [])
    return found


def cpu_s(pids: list[int]) -> float:
    """CPU seconds that processes have used, to the nanosecond: /proc tells them in hundredths only."""
    clock, total = ctypes.c_int(), 0.0
    for pid in pids:
        if ctypes.CDLL(None).clock_getcpuclockid(pid, ctypes.byref(clock)):
            raise SystemExit(f"process {pid} of a job has ended")
        total += time.clock_gettime(clock.value)
    return total


class Meter:
    """What a job does from now on."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._pids = processes_of(job)
        self._began_ns, self._used = time.monotonic_ns(), cpu_s(self._pids)

    def read(self) -> tuple[float, float]:
        """The median step, and CPU seconds of all processes a step."""
        used, now_ns = cpu_s(self._pids) - self._used, time.monotonic_ns()
        steps = []
        for commits in self._job.commits().values():
            steps += step_times({step: at for step, at in commits.items() if self._began_ns <= at <= now_ns})
        step_s = statistics.median(steps)
        return step_s, used / ((now_ns - self._began_ns) * 1e-9) * statistics.fmean(steps)


def measure(step_s: float, steps: int) -> dict[str, tuple[float, float]]:
    """One start of all jobs: each one's median step and CPU seconds a step."""
    folder = scratch()
    wait_s = step_s * WORKERS / VIRTUAL_WORKERS
    script = ["--model", "tiny", "--virtual-workers", str(VIRTUAL_WORKERS), "--wait", str(wait_s)]
    try:
        with ExitStack() as stack:
            jobs = {}
            for name, options in CONTENDERS.items():
                run = ["--workers", str(WORKERS), "--receipt-every", "0", *options]
                jobs[name] = stack.enter_context(Job(folder, run=run, script=script))
            for job in jobs.values():
                job.steps(WARM_STEPS)
            meters = {name: Meter(job) for name, job in jobs.items()}
            time.sleep(steps * step_s)
            return {name: meter.read() for name, meter in meters.items()}
    finally:
        clean(folder)


def judge(starts: list[dict[str, tuple[float, float]]], step_s: float) -> dict[str, Any]:
    """Means over the starts, with their errors."""

    def ratios(ours: str) -> list[float]:
        return [start["static"][0] / start[ours][0] for start in starts]

    def shares(ours: str, peers: list[str]) -> list[float]:
        spent = [(start[ours][1], statistics.fmean(start[peer][1] for peer in peers)) for start in starts]
        return [(mine - theirs) / (WORKERS * step_s) for mine, theirs in spent]

    figures = {
        "throughput": ratios("elastic"),
        "static_throughput_against_itself": ratios("static again"),
        "cpu_share": shares("elastic", ["static", "static again"]),
        "static_cpu_share_against_itself": shares("static again", ["static"]),
    }
    found: dict[str, Any] = {"starts": len(starts)}
    for name, values in figures.items():
        found[name] = round(statistics.fmean(values), 6)
        found[f"{name}_error"] = round(error_of(values), 6)
    for name in CONTENDERS:
        found[f"{name}_step_s"] = round(statistics.fmean(start[name][0] for start in starts), 6)
        found[f"{name}_cpu_s_a_step"] = round(statistics.fmean(start[name][1] for start in starts), 6)
    return found


def held(found: dict[str, Any]) -> list[Bound]:
    """Both costs keep the bound with twice their errors added: a measurement that cannot tell does not pass."""
    lost = 1.0 - found["throughput"] + 2 * found["throughput_error"]
    spent = found["cpu_share"] + 2 * found["cpu_share_error"]
    return [
        at_most("loss in throughput and two errors", round(lost, 6), MOST),
        at_most("share of CPU time and two errors", round(spent, 6), MOST),
    ]


def error_of(values: list[float]) -> float:
    """The standard error of the mean."""
    return statistics.stdev(values) / len(values) ** 0.5


def main() -> None:
    """Measure, and print the report."""
    parser = arguments(__doc__)
    parser.add_argument("--step-s", type=float, default=0.2, help="about how long a step lasts")
    parser.add_argument("--steps", type=int, default=150, help="steps of a start")
    parser.add_argument("--starts", type=int, default=8)
    options = parser.parse_args()
    if options.starts < 2:
        parser.error(f"--starts {options.starts} gives no error: measure at least 2")
    began, starts = load(), []
    for number in range(options.starts):
        starts.append(measure(options.step_s, options.steps))
        told = ", ".join(
            f"{name} {step * 1e3:.2f} ms, {cpu * 1e3:.2f} CPU ms" for name, (step, cpu) in starts[-1].items()
        )
        progress(f"start {number + 1}/{options.starts}: {told} a step")
    found = judge(starts, options.step_s)
    cost = max(1.0 - found["throughput"], found["cpu_share"])
    report(
        benchmark="idle_overhead",
        metric="share that being elastic costs a job that is never resized, the larger of throughput and CPU time",
        value=round(cost, 6),
        peer="Elan's figure",
        peer_value=MOST,
        ratio=round(cost / MOST, 3),
        **found,
        load=[began, load()],
        bounds=held(found),
        check=options.check,
    )


if __name__ == "__main__":
    main()
