"""Summing a gradient over workers in the tree's order against gloo's all_reduce, on the same processes in one run.

One virtual worker per worker, so each brings one row. Both ways of crossing are measured: shared memory (what workers
of one host use) and sockets (what workers of different hosts use). The ratio is speed, ours over the peer's.

    python benchmarks/exchange.py [--processes 2,4] [--mib 1,25,100]
"""

import json
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from _common import arguments, at_least, progress, report
from _processes import run_processes

from melodeon.core.launch import Launch
from melodeon.runtime.arena import map_segments
from melodeon.runtime.folds import TreeFold
from melodeon.runtime.group import Group
from melodeon.runtime.lanes import GlooLane, Lane, SharedLane

LEAST = 0.9
"""Of gloo's speed, from 25 MiB up."""


def lanes(group: Group, numel: int) -> dict[str, Lane]:
    """The bucket's ways between the workers."""
    fold = TreeFold([(rank, rank + 1) for rank in range(group.size)], group.size)
    segments = map_segments(group, [numel * 4] * group.size)
    assert segments is not None, "no shared memory"
    shared = [[segment.view(torch.float32)] for segment in segments]
    sockets = GlooLane(group, [torch.empty(numel)], [1] * group.size, fold)
    return {"shared memory": SharedLane(group, shared, fold), "sockets": sockets}


def work(rank: int, size: int, path: str, sizes: list[int], repeats: int, output: str) -> None:
    """One process: measure every size, interleaved; process 0 writes a line for each."""
    torch.set_num_threads(1)
    group = Group.connect(Launch(worker=rank, num_workers=size, rendezvous=path))
    for mib in sizes:
        numel = mib << 18
        gradient = torch.randn(numel, generator=torch.Generator().manual_seed(rank))
        peer = torch.empty(numel)
        ways = lanes(group, numel)
        calls: dict[str, Callable[[], None]] = {"gloo": lambda peer=peer: group.all_reduce(peer)}
        calls |= {name: lane.reduce for name, lane in ways.items()}
        rows = {"gloo": peer, **{name: lane.rows[0] for name, lane in ways.items()}}
        times: dict[str, list[float]] = {name: [] for name in calls}
        draw = random.Random(mib)  # the same on every process
        for _ in range(repeats if mib > 1 else repeats * 5):
            for name in draw.sample(sorted(calls), len(calls)):
                rows[name].copy_(gradient)
                group.barrier()
                start = time.perf_counter()
                calls[name]()
                times[name].append(time.perf_counter() - start)
        assert torch.equal(rows["shared memory"], rows["sockets"]), "the two ways disagree"
        everyone = {name: _gather(group, found) for name, found in times.items()}
        if rank == 0:
            # A step waits for its slowest worker.
            slowest = {name: list(map(max, zip(*found, strict=True))) for name, found in everyone.items()}
            with Path(output).open("a") as file:
                for name in ways:
                    case = {"processes": size, "mib": mib, "way": name, **against(slowest[name], slowest["gloo"])}
                    file.write(json.dumps(case) + "\n")


def against(ours: list[float], gloo: list[float]) -> dict[str, float]:
    """Medians, and the median of the ratios of neighbours."""
    ratio = statistics.median(theirs / mine for mine, theirs in zip(ours, gloo, strict=True))
    medians = {"ms": statistics.median(ours) * 1e3, "gloo_ms": statistics.median(gloo) * 1e3}
    return {**{name: round(ms, 3) for name, ms in medians.items()}, "ratio": round(ratio, 3)}


def _gather(group: Group, values: list[float]) -> list[list[float]]:
    return [json.loads(body) for body in group.gather_bytes(json.dumps(values).encode())]


def main() -> None:
    """Start the processes for every count and print the report."""
    parser = arguments(__doc__)
    parser.add_argument("--processes", default="2,4")
    parser.add_argument("--mib", default="1,25,100")
    parser.add_argument("--repeats", type=int, default=25)
    options = parser.parse_args()
    sizes = [int(text) for text in options.mib.split(",")]
    cases = []
    for size in (int(text) for text in options.processes.split(",")):
        for case in map(json.loads, run_processes(work, size, sizes, options.repeats).splitlines()):
            progress(json.dumps(case))
            cases.append(case)
    large = [case for case in cases if case["mib"] >= 25]
    worst = min(large or cases, key=lambda case: case["ratio"])
    report(
        benchmark="exchange",
        metric="speed of the tree-ordered exchange over gloo all_reduce, worst of the ways and sizes from 25 MiB",
        value=worst["ms"],
        peer="gloo all_reduce",
        peer_value=worst["gloo_ms"],
        ratio=worst["ratio"],
        cases=cases,
        bounds=[at_least(f"{c['mib']} MiB, {c['way']}, P = {c['processes']}", c["ratio"], LEAST) for c in large],
        check=options.check,
    )


if __name__ == "__main__":
    main()
