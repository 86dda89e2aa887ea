"""V virtual workers on V workers against stock DistributedDataParallel on as many processes, taking turns in one run.

Nothing is elastic here: this is what the order of summation and the once-per-step machinery cost a job that never
resizes. The ratio is throughput, ours over DDP's.

    python benchmarks/static_ddp.py [--processes 2,4] [--orders tree,ddp] [--models resnet18,gpt10m]
"""

import os
from collections.abc import Iterator

import torch
import torch.distributed as dist
from _common import arguments, at_least, progress, report
from _turns import Contender, compare
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from virtual_overhead import CASES, NO_RECEIPT

import melodeon
from melodeon.core.determinism import level_env
from melodeon.core.launch import Launch

SAMPLES = 256
LEAST = {"tree": 0.98, "ddp": 0.9}
"""Of stock DDP's throughput, by order."""


def ours(rank: int, size: int, meet: str, name: str, order: str) -> Iterator[None]:
    """One step a turn with Melodeon."""
    os.environ |= Launch(worker=rank, num_workers=size, rendezvous=meet, order=order, determinism="D1").to_env()
    case = CASES[name]
    job = melodeon.join(virtual_workers=size, seed=0, receipt_every=NO_RECEIPT)
    model = case.make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    model, optimizer = job.wrap(model, optimizer)
    loader = job.loader(case.samples(SAMPLES), batch_size=case.micro_batch, shuffle=True)
    for _ in job.epochs(1_000_000):
        for inputs, targets in loader:
            job.backward(model(inputs, targets))
            optimizer.step()
            optimizer.zero_grad()
            yield


def stock(rank: int, size: int, meet: str, name: str, _order: str) -> Iterator[None]:
    """One step a turn with DDP, on the same number of threads."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(meet, size), rank=rank, world_size=size)
    case = CASES[name]
    torch.manual_seed(0)
    model = DistributedDataParallel(case.make())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    data = case.samples(SAMPLES)
    sampler: DistributedSampler[object] = DistributedSampler(data, shuffle=True)
    loader = DataLoader(data, batch_size=case.micro_batch, sampler=sampler)
    epoch = 0
    while True:
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            model(inputs, targets).backward()
            optimizer.step()
            optimizer.zero_grad()
            yield
        epoch += 1


def measure(model: str, order: str, size: int, rounds: int) -> dict[str, object]:
    """Medians over interleaved steps."""
    env = {**level_env("D1"), "GLOO_SOCKET_IFNAME": "lo"}
    mine, theirs = (Contender(steps, [model, order], size, env) for steps in (ours, stock))
    label = f"{model}, {order} on {size}"
    found = compare(
        mine, theirs, rounds, lambda n, a, b: progress(f"{label}: {n}/{rounds}, ours {a:.3f} s, DDP {b:.3f} s")
    )
    found.pop("last")
    return {"model": model, "order": order, "processes": size, **found}


def main() -> None:
    """Measure every combination and print the report."""
    parser = arguments(__doc__)
    parser.add_argument("--processes", default="2,4")
    parser.add_argument("--orders", default="tree,ddp")
    parser.add_argument("--models", default="resnet18,gpt10m")
    parser.add_argument("--steps", type=int, default=15)
    options = parser.parse_args()
    cases = [
        measure(model, order, int(size), options.steps)
        for size in options.processes.split(",")
        for model in options.models.split(",")
        for order in options.orders.split(",")
    ]
    worst = min(
        (case for case in cases if case["order"] == "tree"), key=lambda c: float(str(c["ratio"])), default=cases[0]
    )
    report(
        benchmark="static_ddp",
        metric="throughput of V=P over stock DDP, order tree, worst of models and process counts",
        value=worst["ours_s"],
        peer="DistributedDataParallel, gloo",
        peer_value=worst["peer_s"],
        ratio=worst["ratio"],
        cases=cases,
        bounds=[at_least(f"{c['model']}, {c['order']}", float(str(c["ratio"])), LEAST[str(c["order"])]) for c in cases],
        check=options.check,
    )


if __name__ == "__main__":
    main()
