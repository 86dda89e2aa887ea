"""V virtual workers on one worker against plain gradient accumulation of the same micro-batches.

Both train the same model on the same data in one process, in turns, each through its own loader; the ratio is throughput, ours
over the peer's. On CUDA also the peak memory of each.

    python benchmarks/virtual_overhead.py [--model resnet18|gpt10m|resnet50|gpt2|all] [--micro-batch N] [--steps N]
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

import torch
from _common import progress, report
from _models import Classifier, gpt2, gpt10m, resnet18, resnet50
from torch.utils.data import DataLoader, TensorDataset

import melodeon

VIRTUAL_WORKERS = 8


@dataclass(frozen=True, slots=True)
class Case:
    """A model and what it eats."""

    name: str
    make: Callable[[], torch.nn.Module]
    micro_batch: int
    image: int | None = None
    length: int = 128
    vocab: int = 2048

    def data(self, samples: int) -> TensorDataset:
        """Random inputs, the same every time."""
        generator = torch.Generator().manual_seed(0)
        if self.image:
            images = torch.randn(samples, 3, self.image, self.image, generator=generator)
            return TensorDataset(images, torch.randint(0, 10, (samples,), generator=generator))
        ids = torch.randint(0, self.vocab, (samples, self.length + 1), generator=generator)
        return TensorDataset(ids[:, :-1].contiguous(), ids[:, 1:].contiguous())


CASES = {
    "resnet18": Case("resnet18", lambda: Classifier(resnet18()), micro_batch=8, image=32),
    "resnet18-tiny": Case("resnet18-tiny", lambda: Classifier(resnet18()), micro_batch=1, image=32),
    "gpt10m": Case("gpt10m", gpt10m, micro_batch=4),
    "gpt10m-tiny": Case("gpt10m-tiny", gpt10m, micro_batch=1),
    "resnet50": Case("resnet50", lambda: Classifier(resnet50()), micro_batch=32, image=224),
    "gpt2": Case("gpt2", gpt2, micro_batch=8, length=512, vocab=50304),
}


def autocast(device: torch.device) -> torch.autocast:
    """bf16 on a GPU, nothing on a CPU."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda")


def ours(case: Case, job: melodeon.Job, samples: int) -> Iterator[None]:
    """One step a turn, the loop as a user writes it."""
    torch.manual_seed(0)
    model = case.make().to(job.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    model, optimizer = job.wrap(model, optimizer)
    loader = job.loader(case.data(samples), batch_size=case.micro_batch, shuffle=True)
    for _ in job.epochs(1_000_000):
        for inputs, targets in loader:
            with autocast(job.device):
                loss = model(inputs, targets)
            job.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            if job.committed:
                yield


def accumulation(case: Case, device: torch.device, samples: int) -> Iterator[None]:
    """One step a turn, the loop that anyone writes to accumulate."""
    torch.manual_seed(0)
    model = case.make().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    loader = DataLoader(case.data(samples), batch_size=case.micro_batch, shuffle=True)
    seen = 0
    while True:
        for inputs, targets in loader:
            with autocast(device):
                loss = model(inputs.to(device, non_blocking=True), targets.to(device, non_blocking=True))
            (loss / VIRTUAL_WORKERS).backward()
            seen += 1
            if seen % VIRTUAL_WORKERS == 0:
                optimizer.step()
                optimizer.zero_grad()
                yield


def timed(steps: Iterator[None], device: torch.device) -> float:
    """Seconds for one step."""
    start = time.perf_counter()
    next(steps)
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def peak_memory(steps: Iterator[None]) -> int:
    """Bytes at the highest point of a step, above what lies there between steps of the other model."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    next(steps)
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated()


def measure(case: Case, rounds: int) -> dict[str, object]:
    """Medians of interleaved steps."""
    job = melodeon.join(virtual_workers=VIRTUAL_WORKERS, seed=0)
    device = job.device
    samples = VIRTUAL_WORKERS * case.micro_batch * 4
    result: dict[str, object] = {"model": case.name, "micro_batch": case.micro_batch, "device": str(device)}
    if device.type == "cuda":
        result |= memory(case, samples)
        job = melodeon.join(virtual_workers=VIRTUAL_WORKERS, seed=0)
    mine, theirs = ours(case, job, samples), accumulation(case, device, samples)
    for _ in range(3):
        timed(mine, device), timed(theirs, device)
    pairs: list[tuple[float, float]] = []
    for turn in range(rounds):
        first, second = (mine, theirs) if turn % 2 else (theirs, mine)
        times = {id(first): timed(first, device), id(second): timed(second, device)}
        pairs.append((times[id(mine)], times[id(theirs)]))
        progress(f"{case.name}: step {turn + 1}/{rounds}, ours {pairs[-1][0]:.3f} s, accumulation {pairs[-1][1]:.3f} s")
    mine.close()
    job.close()
    us, them = statistics.median(p[0] for p in pairs), statistics.median(p[1] for p in pairs)
    ratio = statistics.median(theirs / mine for mine, theirs in pairs)
    return {**result, "ours_s": round(us, 5), "accumulation_s": round(them, 5), "ratio": round(ratio, 4)}


def memory(case: Case, samples: int) -> dict[str, object]:
    """Peak memory of each alone on the device, and the size of one set of gradients."""
    peaks = {}
    for name in ("accumulation", "ours"):
        job = melodeon.join(virtual_workers=VIRTUAL_WORKERS, seed=0)
        steps = ours(case, job, samples) if name == "ours" else accumulation(case, job.device, samples)
        next(steps), next(steps)
        peaks[name] = peak_memory(steps)
        steps.close()
        job.broken = True  # measured for memory only: nothing is to be finished
        job.close()
        del steps, job
        torch.cuda.empty_cache()
    gradients = sum(p.numel() * p.element_size() for p in case.make().parameters())
    extra = (peaks["ours"] - peaks["accumulation"]) / gradients
    return {
        "peak_mib": {name: peak >> 20 for name, peak in peaks.items()},
        "gradient_set_mib": gradients >> 20,
        "extra_gradient_sets": round(extra, 2),
    }


def main() -> None:
    """Measure the chosen models and print the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="all", choices=["all", *CASES])
    parser.add_argument("--steps", type=int, default=15)
    options = parser.parse_args()
    everything = ["resnet50", "gpt2"] if torch.cuda.is_available() else [n for n in CASES if n not in ("resnet50", "gpt2")]
    chosen = everything if options.model == "all" else [options.model]
    cases = [measure(CASES[name], options.steps) for name in chosen]
    worst = min(cases, key=lambda case: float(str(case["ratio"])))
    report(
        benchmark="virtual_overhead",
        metric=f"throughput of V={VIRTUAL_WORKERS} on one worker over gradient accumulation, worst model",
        value=worst["ours_s"],
        peer="gradient accumulation",
        peer_value=worst["accumulation_s"],
        ratio=worst["ratio"],
        cases=cases,
    )


if __name__ == "__main__":
    main()
