"""`kill -9` of one of 3 workers, again and again: how long the others stand still, and whether anything is lost.

A pause is the time from a survivor's last commit before the kill took effect to its next one, on the survivor that
waited longest; the step that is run again is in it. A replacement comes in the background; the next kill waits for it.
At the end every step must be in the receipt once, with the digest of the same job on one undisturbed worker. The peer
is torchrun, which starts every process again from the last checkpoint.

    python benchmarks/recover.py [--kills 50] [--model mlp] [--peers torchrun,torchft] [--peer-kills 5]
"""

import random
import statistics
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from _common import arguments, at_most, progress, report
from _live import Job, clean, load, newest_step, pause_at, percentile, recommitted, scratch, step_times, wait_until
from _live_peers import Torchft, Torchrun, kill, torchft_python

WORKERS = 3
VIRTUAL_WORKERS = 6
STEPS_BETWEEN = 15
"""Steps of three workers between two kills, besides a random moment."""
MOST_P50_S, MOST_P99_S = 0.3, 1.0
"""How long survivors may pause, with a small model."""


def train_args(model: str) -> list[str]:
    """What the script is told, disturbed or not: the same job."""
    return ["--model", model, "--virtual-workers", str(VIRTUAL_WORKERS)]


def ours(folder: Path, model: str, kills: int, seed: int) -> dict[str, Any]:
    """All kills in one job."""
    draw = random.Random(seed)
    struck: list[tuple[int, int]] = []
    options = ["--workers", str(WORKERS), "--restarts", str(kills), "--receipt-every", "1"]
    with Job(folder, run=options, script=train_args(model)) as job:
        for number in range(kills):
            job.until(lambda: job.has(WORKERS))
            job.steps(STEPS_BETWEEN)
            worker, pid = draw.choice(sorted(job.members().items()))
            time.sleep(draw.random() * 0.05)  # anywhere within a step
            struck.append((worker, time.monotonic_ns()))
            kill(pid)
            progress(f"{number + 1}/{kills}: killed worker {worker} at step {newest_step(job.logs)}")
        job.until(lambda: job.has(WORKERS))
        job.steps(STEPS_BETWEEN)
        job.stop()
        logs = {int(name.rpartition("-")[2]): commits for name, commits in job.commits().items()}
        receipt, twice = job.receipt(), recommitted(job.logs)
    pauses, recovered = [], []
    for worker, at in struck:
        alive = [other for other, commits in logs.items() if other != worker and _spans(commits, at)]
        pauses.append(max(pause_at(logs[other], at) for other in alive))
        recovered.append(min(min(t for t in logs[other].values() if t > at) - at for other in alive) * 1e-9)
    steps = sorted(step for commits in logs.values() for step in commits)
    usual = [seconds for commits in logs.values() for seconds in step_times(commits)]
    return {
        "kills": len(pauses),
        "pause_p50_s": round(percentile(pauses, 0.5), 4),
        "pause_p99_s": round(percentile(pauses, 0.99), 4),
        "pause_max_s": round(max(pauses), 4),
        "first_commit_after_kill_p50_s": round(percentile(recovered, 0.5), 4),
        "step_p50_s": round(statistics.median(usual), 5),
        "steps": steps[-1],
        "steps_lost": steps[-1] - len(set(steps)),
        "steps_committed_twice": twice,
        "steps_got_by_copy": sum(_skipped(commits) for commits in logs.values()),
        "receipt": receipt,
        "pauses_s": [round(pause, 4) for pause in pauses],
    }


def _spans(commits: dict[int, int], at: int) -> bool:
    times = commits.values()
    return bool(times) and min(times) < at < max(times)


def _skipped(commits: dict[int, int]) -> int:
    """Steps that one worker has from another: it had not committed the last one before a kill, and the other had."""
    return sum(later - earlier - 1 for earlier, later in pairwise(sorted(commits)))


def undisturbed(folder: Path, model: str, steps: int) -> dict[int, str]:
    """The receipt of the same job on one worker."""
    progress(f"the same {steps} steps on one worker, for the digests")
    options = ["--static", "--workers", "1", "--steps", str(steps), "--receipt-every", "1"]
    with Job(folder, run=options, script=train_args(model)) as job:
        wait_until(lambda: job.process.poll() is not None, lambda: "", limit_s=600)
        return job.receipt()


def torchrun(folder: Path, model: str, kills: int) -> list[float]:
    """One agent with three workers, one of which is killed."""
    pauses = []
    with Torchrun(folder / "torchrun", model, nodes="1") as crew:
        crew.agent(WORKERS)
        at = 0
        for number in range(kills):
            crew.until(lambda at=at: crew.settled(WORKERS, at, STEPS_BETWEEN))  # type: ignore[misc]
            at = time.monotonic_ns()
            kill(crew.training()[number % WORKERS])
            crew.until(lambda at=at: crew.settled(WORKERS, at, STEPS_BETWEEN))  # type: ignore[misc]
            pauses.append(crew.pause(at)[0])
            progress(f"torchrun {number + 1}/{kills}: {pauses[-1]:.2f} s")
    return pauses


def torchft(folder: Path, model: str, kills: int, python: str) -> list[float]:
    """Three replicas, one of which is killed and then started again."""
    pauses = []
    with Torchft(folder / "torchft", model, python) as crew:
        replicas = [crew.replica() for _ in range(WORKERS)]
        at = 0
        for number in range(kills):
            crew.until(lambda at=at: crew.settled(WORKERS, at, STEPS_BETWEEN))  # type: ignore[misc]
            killed = replicas.pop(number % WORKERS)
            at = time.monotonic_ns()
            kill(killed.pid)
            crew.until(lambda at=at: crew.settled(WORKERS - 1, at, STEPS_BETWEEN))  # type: ignore[misc]
            pauses.append(crew.pause(at, crew.training()))
            progress(f"torchft {number + 1}/{kills}: {pauses[-1]:.2f} s")
            replicas.append(crew.replica())
    return pauses


def main() -> None:
    """Kill, and print the report."""
    parser = arguments(__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--model", default="mlp")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--peers", default="torchrun")
    parser.add_argument("--peer-kills", type=int, default=5)
    parser.add_argument("--torchft-python", default="", help="the interpreter of an environment with torchft")
    options = parser.parse_args()
    torch.set_num_threads(1)
    absent: dict[str, str] = {}
    peers: dict[str, list[float]] = {}
    folder = scratch()
    try:
        began = load()
        found = ours(folder, options.model, options.kills, options.seed)
        receipt = found.pop("receipt")
        found["receipt_continuous"] = list(receipt) == list(range(1, len(receipt) + 1))
        found["load"] = [began, load()]
        progress(str(found))
        found["same_bits"] = receipt == undisturbed(folder, options.model, max(receipt))
        if "torchrun" in options.peers.split(","):
            peers["torchrun"] = torchrun(folder, options.model, options.peer_kills)
        if "torchft" in options.peers.split(","):
            python, why = torchft_python(options.torchft_python)
            if why:
                absent["torchft"] = why
            else:
                peers["torchft"] = torchft(folder, options.model, options.peer_kills, python)
    finally:
        clean(folder)
    medians = {name: round(statistics.median(pauses), 3) for name, pauses in peers.items()}
    theirs = medians.get("torchrun")
    report(
        benchmark="recover",
        metric="median seconds that survivors pause when one of 3 workers is killed",
        value=found["pause_p50_s"],
        peer="torchrun, restart, tuned",
        peer_value=theirs,
        ratio=theirs and round(theirs / found["pause_p50_s"], 1),
        **found,
        peers={name: {"pause_p50_s": medians[name], "pauses_s": pauses} for name, pauses in peers.items()},
        absent=absent,
        bounds=[
            at_most("pause, median", found["pause_p50_s"], MOST_P50_S),
            at_most("pause, p99", found["pause_p99_s"], MOST_P99_S),
            at_most("steps lost", found["steps_lost"], 0),
            at_most("runs with other bits", int(not found["same_bits"]), 0),
        ],
        check=options.check,
    )


if __name__ == "__main__":
    main()
