"""Being elastic but never resized, against the same job without agent and master, taking turns in one run.

Three jobs of 2 workers are up at once and train in turns, a block of steps at a time: an elastic one, a static one, and
a second static one, whose ratio to the first says how much of a difference is noise. The order changes from round to
round. The ratio is throughput, the elastic job's over the static one's, as the median over rounds; its error is that of
a median, from resampling the rounds. CPU time is read as well, which a busy machine disturbs less: the workers' a step,
and that of the launcher, the agent and its nursery a second, apart, since these go on during the others' turns.

    python benchmarks/idle_overhead.py [--models mlp] [--rounds 60] [--block-s 0.5]
"""

import argparse
import os
import random
import selectors
import socket
import statistics
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from _common import progress, report
from _live import SCRIPTS, Job, clean, load, scratch

sys.path.append(str(SCRIPTS))
from cases import CASES

WORKERS = 2
CONTENDERS = {"elastic": [], "static": ["--static"], "static again": ["--static"]}
KEEP_MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(1 << 30), "MALLOC_MMAP_THRESHOLD_": str(32 << 20)}
"""For all of them: freed memory stays with the process. By default a static worker gives some back and faults it in
again in every step (100 to 300 page faults a step were seen), and one that was forked from a nursery does not (2 to 5),
because its heap has grown before: that has nothing to do with being elastic.
"""
PATIENCE_S = 300.0
_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")


class Umpire:
    """Gives turns to jobs whose workers have called."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(self.path)
        self._server.listen()
        self._server.settimeout(PATIENCE_S)
        self._lines: dict[str, list[socket.socket]] = {}

    def welcome(self, jobs: int) -> None:
        """Wait for every worker to have done its first step."""
        waiting = []
        for _ in range(jobs * WORKERS):
            line, _ = self._server.accept()
            line.settimeout(PATIENCE_S)
            waiting.append(line)
        for line in waiting:
            name = b""
            while not name.endswith(b"\n"):
                name += line.recv(1)
            self._lines.setdefault(name.decode().strip(), []).append(line)
            assert line.recv(1) == b"."

    def turn(self, name: str) -> float:
        """One block of a job: seconds until its last worker is done."""
        lines = self._lines[name]
        began = time.perf_counter()
        for line in lines:
            line.sendall(b"g")
        with selectors.DefaultSelector() as selector:
            for line in lines:
                selector.register(line, selectors.EVENT_READ)
            while selector.get_map():
                for key, _ in selector.select(PATIENCE_S):
                    done = key.fileobj
                    assert isinstance(done, socket.socket)
                    if done.recv(1) != b".":
                        raise SystemExit(f"a worker of the job {name!r} has ended")
                    selector.unregister(done)
        return time.perf_counter() - began

    def close(self) -> None:
        """The workers end when their lines do."""
        for lines in self._lines.values():
            for line in lines:
                line.close()
        self._server.close()


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


class Meter:
    """The CPU time of a job's workers, and of the processes that keep it."""

    def __init__(self, job: Job, *, elastic: bool) -> None:
        everybody = processes_of(job)
        self._workers = list(job.members().values()) if elastic else everybody[1:]
        self._keepers = [pid for pid in everybody if pid not in self._workers]
        self._since = time.monotonic()
        self._used = cpu_s(self._workers), cpu_s(self._keepers)

    def read(self, steps: int) -> tuple[float, float]:
        """CPU seconds of all workers a step, and CPU seconds of the keepers a second."""
        workers_s, keepers_s = cpu_s(self._workers) - self._used[0], cpu_s(self._keepers) - self._used[1]
        return workers_s / steps, keepers_s / (time.monotonic() - self._since)


def cpu_s(pids: list[int]) -> float:
    """CPU seconds that processes have used."""
    total = 0.0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) * _TICK_S
    return total


def measure(model: str, rounds: int, block_s: float) -> dict[str, Any]:
    """All rounds of one model."""
    folder = scratch()
    began = load()
    draw = random.Random(0)
    try:
        with ExitStack() as stack:
            block = block_of(folder, model, block_s)
            umpire = Umpire(folder / "turns")
            stack.callback(umpire.close)
            jobs = {}
            for name, options in CONTENDERS.items():
                script = ["--model", model, "--turns", umpire.path, "--name", name, "--block", str(block)]
                run = ["--workers", str(WORKERS), "--receipt-every", "0", *options]
                jobs[name] = stack.enter_context(Job(folder, run=run, script=script, env=KEEP_MEMORY))
            umpire.welcome(len(jobs))
            for name in jobs:
                umpire.turn(name)
            meters = {name: Meter(job, elastic=name == "elastic") for name, job in jobs.items()}
            times: dict[str, list[float]] = {name: [] for name in jobs}
            for number in range(rounds):
                for name in draw.sample(sorted(jobs), len(jobs)):
                    times[name].append(umpire.turn(name))
                if (number + 1) % max(1, rounds // 10) == 0:
                    progress(f"{model}: round {number + 1}/{rounds}, {block} steps in {times['elastic'][-1]:.3f} s")
            used = {name: meter.read(rounds * block) for name, meter in meters.items()}
            umpire.close()
    finally:
        clean(folder)
    return {
        "model": model,
        "block": block,
        **judge(times, block),
        "worker_cpu_s_a_step": {name: round(workers_s, 6) for name, (workers_s, _) in used.items()},
        "keepers_cpu": {name: round(share, 5) for name, (_, share) in used.items()},
        "load": [began, load()],
    }


def block_of(folder: Path, model: str, block_s: float) -> int:
    """Steps that take about so long."""
    run = ["--workers", str(WORKERS), "--static"]
    with Job(folder, run=run, script=["--model", model], env=KEEP_MEMORY) as job:
        job.steps(2)
        began, count = time.monotonic(), 4
        job.steps(count)
        return max(1, round(block_s * count / (time.monotonic() - began)))


def judge(times: dict[str, list[float]], block: int) -> dict[str, Any]:
    """Ratios of throughput, and their errors."""
    ratio, error = compare(times["static"], times["elastic"])
    noise, noise_error = compare(times["static"], times["static again"])
    return {
        "rounds": len(times["static"]),
        "elastic_step_s": round(statistics.median(times["elastic"]) / block, 6),
        "static_step_s": round(statistics.median(times["static"]) / block, 6),
        "ratio": round(ratio, 5),
        "ratio_error": round(error, 5),
        "static_against_itself": round(noise, 5),
        "static_against_itself_error": round(noise_error, 5),
        "ratio_of_best_tenth": round(_best(times["static"]) / _best(times["elastic"]), 5),
    }


def compare(peer: list[float], ours: list[float], resamples: int = 500) -> tuple[float, float]:
    """Median of the ratios of neighbours, and the standard error of it."""
    ratios = [theirs / mine for theirs, mine in zip(peer, ours, strict=True)]
    draw = random.Random(1)
    medians = [statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(resamples)]
    return statistics.median(ratios), statistics.stdev(medians)


def _best(times: list[float]) -> float:
    """Mean of the fastest tenth: the blocks that the rest of the machine disturbed least."""
    return statistics.fmean(sorted(times)[: max(1, len(times) // 10)])


def main() -> None:
    """Measure, and print the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="mlp")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--block-s", type=float, default=0.5, help="about how long a turn lasts")
    options = parser.parse_args()
    models = options.models.split(",")
    if unknown := [model for model in models if model not in CASES]:
        parser.error(f"{unknown[0]!r} is none of the models {', '.join(CASES)}")
    torch.set_num_threads(1)
    cases = [measure(model, options.rounds, options.block_s) for model in models]
    worst = min(cases, key=lambda case: float(case["ratio"]))
    report(
        benchmark="idle_overhead",
        metric="seconds a step of an elastic job that is never resized, of the model with the smallest ratio",
        value=worst["elastic_step_s"],
        peer="the same job with --static",
        peer_value=worst["static_step_s"],
        ratio=worst["ratio"],
        cases=cases,
    )


if __name__ == "__main__":
    main()
