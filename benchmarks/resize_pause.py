"""How long a job's survivors stand still when it grows from 2 workers to 4, shrinks to 2, and moves a worker.

A pause is the time from the last step committed before the change to the first one committed after it, on the survivor
that waited longest; one whole step of the new workers is in it. Peers: torchrun's elastic restart (no process survives:
from the last commit of the old ones to the first of the new ones, which is of a step done before), and torchft, where
it is installed. The ratio is the peer's pause over ours, of medians, in one run.

    python benchmarks/resize_pause.py [--models mlp,100m] [--rounds 5] [--peers torchrun,torchft] [--peer-rounds 2]

With `--device cuda` all workers share one GPU, ours and torchrun's; torchft is compared on the CPU only.
"""

import argparse
import ctypes
import json
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from _common import Bound, arguments, at_least, at_most, progress, report
from _live import SCRIPTS, Boundary, Job, boundaries, clean, load, newest_step, scratch
from _live_peers import Torchft, Torchrun, kill, torchft_python

from melodeon.coord.messages import Answer

sys.path.append(str(SCRIPTS))
from cases import CASES, Case

CHANGES = {"2->4": (2, 4), "4->2": (4, 2), "migrate 2->2": (2, 2)}
NEWCOMERS = {"2->4": 2, "4->2": 0, "migrate 2->2": 1}
SETTLE = {"mlp": 60, "100m": 6}
"""Steps before and after each change."""
LEAST = 20.0
"""How many times shorter than torchrun's a pause must be, with the step that is in both."""
PEER_SETTLE = {"mlp": 30, "100m": 4}

Found = dict[str, list[dict[str, Any]]]
"""By change: what was measured, each time."""


def copy_rates(num_bytes: int, device: str) -> dict[str, float]:
    """Raw speed by change, of as many copies at once as it has newcomers; of one where nobody comes."""
    by_readers = {readers: copy_gb_per_s(num_bytes, readers, device) for readers in (1, 2)}
    return {change: by_readers[max(1, newcomers)] for change, newcomers in NEWCOMERS.items()}


def copy_gb_per_s(num_bytes: int, readers: int, device: str, repeats: int = 5) -> float:
    """Raw speed of so many copies at once, each of the whole state: in memory, or from a GPU to the host and back."""
    copy = _through_host if device == "cuda" else _in_memory
    source = torch.ones(num_bytes, dtype=torch.uint8, device=device)
    targets = [torch.zeros(num_bytes, dtype=torch.uint8, device=device) for _ in range(readers)]
    rooms = [torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True) for _ in targets if device == "cuda"]
    ways = list(zip(targets, rooms or targets, strict=True))
    times = []
    for _ in range(repeats):
        threads = [threading.Thread(target=copy, args=(source, *way)) for way in ways]
        began = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        times.append(time.perf_counter() - began)
    return num_bytes / 1e9 / statistics.median(times)


def _in_memory(source: torch.Tensor, target: torch.Tensor, _: torch.Tensor) -> None:
    ctypes.memmove(target.data_ptr(), source.data_ptr(), source.numel())


def _through_host(source: torch.Tensor, target: torch.Tensor, room: torch.Tensor) -> None:
    room.copy_(source)
    target.copy_(room)
    torch.cuda.synchronize()


def ours(folder: Path, case: Case, rounds: int, device: str) -> Found:
    """All changes in one job, again and again."""
    settle = SETTLE[case.name]
    asked: list[tuple[str, str, int, int]] = []
    script = ["--model", case.name, "--device", device]
    with Job(folder, run=["--workers", "2", "--receipt-every", "0"], script=script) as job:
        job.steps(settle)
        asks: dict[str, Callable[[], Answer]] = {
            "2->4": lambda: job.handle.scale(4),
            "4->2": lambda: job.handle.scale(2),
            "migrate 2->2": lambda: job.handle.migrate(),
        }
        for number in range(rounds):
            for change, ask in asks.items():
                first = newest_step(job.logs)
                text = ask().text
                job.until(lambda size=CHANGES[change][1]: job.has(size))  # type: ignore[misc]
                job.steps(settle)
                asked.append((change, text, first, newest_step(job.logs)))
                progress(f"{case.name}, round {number + 1}/{rounds}, {change}: {text}")
        job.stop()
        return sort_out(asked, boundaries(job.commits()))


def sort_out(asked: list[tuple[str, str, int, int]], seen: list[Boundary]) -> Found:
    """Each asked change with the one boundary that came of it."""
    found: Found = {change: [] for change in CHANGES}
    for change, text, first, last in asked:
        mine = [boundary for boundary in seen if first <= boundary.step <= last]
        if len(mine) != 1 or (len(mine[0].before), len(mine[0].after)) != CHANGES[change]:
            found[change].append({"failed": f"{len(mine)} changes were seen; {text}"})
            continue
        (boundary,) = mine
        values = ("pause_s", "step_before_s", "step_after_s")
        found[change].append({name: round(getattr(boundary, name), 5) for name in values})
    return found


@contextmanager
def failing(found: Found, change: str) -> Iterator[None]:
    """A peer that does not survive is a result, too."""
    try:
        yield
    except SystemExit as end:
        if not isinstance(end.code, str):
            raise  # not the peer's end, but this benchmark's
        progress(str(end))
        found[change].append({"failed": str(end).partition("\n")[0]})


def torchrun(folder: Path, case: Case, rounds: int, device: str) -> Found:
    """Two agents of two workers, and then three agents of one."""
    steps = PEER_SETTLE[case.name]
    found: Found = {change: [] for change in CHANGES}

    def measure(crew: Torchrun, change: str, act: Callable[[], object]) -> None:
        at = time.monotonic_ns()
        act()
        crew.until(lambda: crew.settled(CHANGES[change][1], at, steps))
        pause_s, again = crew.pause(at)
        step_s = round(crew.step_s(at), 4)
        found[change].append({"pause_s": round(pause_s, 3), "step_after_s": step_s, "steps_done_again": again})
        progress(f"torchrun, {case.name}, {change}: {pause_s:.2f} s, {again} steps done again")

    with failing(found, "2->4"), Torchrun(folder / "resize", case.name, device=device) as crew:
        crew.agent(2)
        crew.until(lambda: crew.settled(2, 0, steps))
        for _ in range(rounds):
            agents = []
            measure(crew, "2->4", lambda: agents.append(crew.agent(2)))  # noqa: B023 - called at once
            measure(crew, "4->2", lambda: agents[0].send_signal(signal.SIGTERM))  # noqa: B023
    with failing(found, "migrate 2->2"), Torchrun(folder / "migrate", case.name, device=device) as crew:
        agents = [crew.spare(1), crew.agent(1)]  # the first one is waited for: it keeps the store
        crew.until(lambda: crew.settled(2, 0, steps))
        for _ in range(rounds):
            agents.append(crew.spare(1))
            measure(crew, "migrate 2->2", lambda: agents[-2].send_signal(signal.SIGTERM))
    return found


def torchft(folder: Path, case: Case, rounds: int, python: str) -> Found:
    """Replicas that come, and are killed: it has no other way to leave."""
    steps = PEER_SETTLE[case.name]
    found: Found = {change: [] for change in CHANGES}

    def measure(crew: Torchft, change: str, act: Callable[[], object], leaving: set[int]) -> None:
        stay = [pid for pid in crew.training() if pid not in leaving]
        at = time.monotonic_ns()
        act()
        crew.until(lambda: crew.settled(CHANGES[change][1], at, steps))
        pause_s = crew.pause(at, stay)
        found[change].append({"pause_s": round(pause_s, 3), "step_after_s": round(crew.step_s(at), 4)})
        progress(f"torchft, {case.name}, {change}: {pause_s:.2f} s")

    with failing(found, "migrate 2->2"), Torchft(folder / "torchft", case.name, python) as crew:
        replicas = [crew.replica(), crew.replica()]
        crew.until(lambda: crew.settled(2, 0, steps))
        for _ in range(rounds):
            measure(crew, "2->4", lambda: replicas.extend([crew.replica(), crew.replica()]), set())
            last = {replica.pid for replica in replicas[-2:]}
            measure(crew, "4->2", lambda: kill_all(last), last)  # noqa: B023
            del replicas[-2:]
            measure(crew, "migrate 2->2", lambda: _move(crew, replicas), {replicas[1].pid})
    return found


def kill_all(pids: set[int]) -> None:
    """All at once."""
    for pid in pids:
        kill(pid)


def _move(crew: Torchft, replicas: list[Any]) -> None:
    """Start one, and kill one when the new one trains."""
    replicas.append(crew.replica())
    crew.until(lambda: len(crew.training()) == 3)
    kill(replicas.pop(1).pid)


def judge(case: Case, change: str, samples: list[dict[str, Any]], gb_per_s: float) -> dict[str, Any]:
    """Our medians, beside what they are held to."""
    good = [sample for sample in samples if "failed" not in sample]
    row: dict[str, Any] = {"model": case.name, "change": change, "samples": samples}
    if not good:
        return {**row, "pause_s": None}
    pause_s, before_s, after_s = (
        statistics.median(sample[name] for sample in good) for name in ("pause_s", "step_before_s", "step_after_s")
    )
    step_s = max(before_s, after_s)
    copy_s = case.state_bytes / 1e9 / gb_per_s if NEWCOMERS[change] else 0.0
    return {
        **row,
        "pause_s": round(pause_s, 4),
        "pause_max_s": round(max(sample["pause_s"] for sample in good), 4),
        "step_before_s": round(before_s, 4),
        "step_after_s": round(after_s, 4),
        "beyond_its_step_s": round(pause_s - after_s, 4),
        "allowed_beyond_s": round(step_s + 2 * copy_s, 4),
        "within": pause_s - after_s <= step_s + 2 * copy_s,
        "within_strictly": pause_s <= step_s + 2 * copy_s,
        "state_mb": round(case.state_bytes / 1e6, 1),
        "copy_gb_per_s": round(gb_per_s, 2),
        "failures": len(samples) - len(good),
    }


def compare(row: dict[str, Any], name: str, samples: list[dict[str, Any]]) -> None:
    """Put a peer beside it."""
    pauses = [sample["pause_s"] for sample in samples if "failed" not in sample]
    if not pauses:
        row[name] = {"pause_s": None, "samples": samples}
        return
    peer_s = statistics.median(pauses)
    row[name] = {"pause_s": round(peer_s, 3), "samples": samples}
    if row["pause_s"]:
        row[name]["ratio"] = round(peer_s / row["pause_s"], 1)


def bounds_of(row: dict[str, Any]) -> Iterator[Bound]:
    """What one change of one model is held to; one that never succeeded keeps no bound."""
    name = f"{row['model']} {row['change']}"
    yield at_most(f"{name}: changes that failed", row.get("failures", len(row["samples"])), 0)
    if row["pause_s"] is not None:
        yield at_most(f"{name}: seconds beyond the step", row["beyond_its_step_s"], row["allowed_beyond_s"])
    if "ratio" in row.get("torchrun", {}):
        yield at_least(f"{name}: times shorter than torchrun's", row["torchrun"]["ratio"], LEAST)


def measure(case: Case, options: argparse.Namespace, absent: dict[str, str]) -> Iterator[dict[str, Any]]:
    """Everything for one model."""
    folder = scratch()
    try:
        began = load()
        rounds = options.rounds if case.name == "mlp" else max(1, options.rounds // 2)
        mine = ours(folder, case, rounds, options.device)
        gb_per_s = copy_rates(case.state_bytes, options.device)
        theirs: dict[str, Found] = {}
        if "torchrun" in options.peers:
            theirs["torchrun"] = torchrun(folder, case, options.peer_rounds, options.device)
        if "torchft" in options.peers and "torchft" not in absent:
            theirs["torchft"] = torchft(folder, case, options.peer_rounds, options.torchft_python)
        for change in CHANGES:
            row = judge(case, change, mine[change], gb_per_s[change])
            for name, found in theirs.items():
                compare(row, name, found[change])
            row["load"] = [began, load()]
            progress(json.dumps(row))
            yield row
    finally:
        clean(folder)


def main() -> None:
    """Measure every case and print the report."""
    parser = arguments(__doc__)
    parser.add_argument("--models", default="mlp,100m")
    parser.add_argument("--rounds", type=int, default=5, help="half as many for the large model")
    parser.add_argument("--peers", default="torchrun")
    parser.add_argument("--peer-rounds", type=int, default=2)
    parser.add_argument("--torchft-python", default="", help="the interpreter of an environment with torchft")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    options = parser.parse_args()
    options.peers = [name for name in options.peers.split(",") if name]
    torch.set_num_threads(1)
    absent: dict[str, str] = {}
    if "torchft" in options.peers and options.device == "cuda":
        absent["torchft"] = "compared on the CPU only"
    elif "torchft" in options.peers:
        options.torchft_python, why = torchft_python(options.torchft_python)
        if why:
            absent["torchft"] = why
            progress(f"torchft is left out: {why}")
    cases = [row for name in options.models.split(",") for row in measure(CASES[name], options, absent)]
    compared = [row for row in cases if "ratio" in row.get("torchrun", {})]
    worst = min(compared, key=lambda row: row["torchrun"]["ratio"], default=None)
    report(
        benchmark="resize_pause",
        metric="seconds that survivors pause, of the change and model with the smallest ratio",
        value=worst and worst["pause_s"],
        peer="torchrun, elastic restart, tuned",
        peer_value=worst and worst["torchrun"]["pause_s"],
        ratio=worst and worst["torchrun"]["ratio"],
        cases=cases,
        absent=absent,
        bounds=[bound for row in cases for bound in bounds_of(row)],
        check=options.check,
    )


if __name__ == "__main__":
    main()
