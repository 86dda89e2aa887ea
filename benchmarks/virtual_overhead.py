"""V virtual workers on one worker against plain gradient accumulation of the same micro-batches.

Both train the same model on the same data at the same level of determinism, in turns, each through its own loader;
the ratio is throughput, ours over the peer's. On CUDA also the peak memory of each.

    python benchmarks/virtual_overhead.py [--model resnet18|gpt10m|resnet50|gpt2|all] [--steps N]
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from _common import arguments, at_least, progress, report
from _models import Classifier, gpt2, gpt10m, resnet18, resnet50
from _turns import Contender, compare
from torch.utils.data import DataLoader, TensorDataset

import melodeon
from melodeon.core.determinism import level_env

VIRTUAL_WORKERS = 8
LEAST, LEAST_TINY, LEAST_CUDA = 0.98, 0.97, 0.97
"""Of accumulation's throughput: with micro-batches as usual, with micro-batches of 1, and on a GPU."""
NO_RECEIPT = 1_000_000
"""Epochs are a few steps here: a digest at the end of each would be measured instead."""


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
        """Random inputs, the same every time; one sample a micro-batch, so that loading is not what is measured."""
        flat = self.samples(samples)
        return TensorDataset(*(tensor.unflatten(0, (-1, self.micro_batch)) for tensor in flat.tensors))

    def samples(self, samples: int) -> TensorDataset:
        """The same inputs one by one."""
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


def first(samples: list[object]) -> object:
    """The micro-batch that is the one sample."""
    return samples[0]


def autocast(device: torch.device) -> torch.autocast:
    """bf16 on a GPU, nothing on a CPU."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda")


def ours(_rank: int, _size: int, _meet: str, name: str) -> Iterator[dict[str, int]]:
    """One step a turn, the loop as a user writes it."""
    case = CASES[name]
    job = melodeon.join(virtual_workers=VIRTUAL_WORKERS, seed=0, receipt_every=NO_RECEIPT)
    model = case.make().to(job.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    model, optimizer = job.wrap(model, optimizer)
    loader = job.loader(case.data(4 * VIRTUAL_WORKERS * case.micro_batch), batch_size=1, shuffle=True, collate_fn=first)
    for _ in job.epochs(1_000_000):
        for inputs, targets in loader:
            with autocast(job.device):
                loss = model(inputs, targets)
            job.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            if job.committed:
                yield memory(job.device)


def accumulation(_rank: int, _size: int, _meet: str, name: str) -> Iterator[dict[str, int]]:
    """One step a turn, the loop that anyone writes to accumulate, at the same level of determinism."""
    case = CASES[name]
    device = melodeon.join(virtual_workers=VIRTUAL_WORKERS, seed=0).device
    model = case.make().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    data = case.data(4 * VIRTUAL_WORKERS * case.micro_batch)
    loader = DataLoader(data, batch_size=1, shuffle=True, collate_fn=first)
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
                yield memory(device)


def memory(device: torch.device) -> dict[str, int]:
    """The end of a step: wait for the device, and say the highest use of its memory so far."""
    if device.type != "cuda":
        return {}
    torch.cuda.synchronize()
    return {"peak": torch.cuda.max_memory_allocated()}


def measure(case: Case, rounds: int) -> dict[str, object]:
    """Medians of interleaved steps."""
    mine, theirs = (
        Contender(ours, [case.name], env=level_env("D1")),
        Contender(accumulation, [case.name], env=level_env("D1")),
    )
    found = compare(
        mine,
        theirs,
        rounds,
        lambda n, a, b: progress(f"{case.name}: {n}/{rounds}, ours {a:.3f} s, accumulation {b:.3f} s"),
    )
    last = found.pop("last")
    result = {"model": case.name, "micro_batch": case.micro_batch, **found}
    if last[0]:
        gradients = sum(param.numel() * param.element_size() for param in case.make().parameters())
        extra = (last[0]["peak"] - last[1]["peak"]) / gradients
        result["peak_mib"] = {"ours": last[0]["peak"] >> 20, "accumulation": last[1]["peak"] >> 20}
        result |= {"gradient_set_mib": gradients >> 20, "extra_gradient_sets": round(extra, 2)}
    return result


def least_of(case: dict[str, object]) -> float:
    """What a model is held to."""
    if torch.cuda.is_available():
        return LEAST_CUDA
    return LEAST_TINY if case["micro_batch"] == 1 else LEAST


def main() -> None:
    """Measure the chosen models and print the report."""
    parser = arguments(__doc__)
    parser.add_argument("--model", default="all", choices=["all", *CASES])
    parser.add_argument("--steps", type=int, default=15)
    options = parser.parse_args()
    everything = (
        ["resnet50", "gpt2"] if torch.cuda.is_available() else [n for n in CASES if n not in ("resnet50", "gpt2")]
    )
    chosen = everything if options.model == "all" else [options.model]
    cases = [measure(CASES[name], options.steps) for name in chosen]
    worst = min(cases, key=lambda case: float(str(case["ratio"])))
    report(
        benchmark="virtual_overhead",
        metric=f"throughput of V={VIRTUAL_WORKERS} on one worker over gradient accumulation, worst model",
        value=worst["ours_s"],
        peer="gradient accumulation",
        peer_value=worst["peer_s"],
        ratio=worst["ratio"],
        cases=cases,
        bounds=[at_least(str(case["model"]), float(str(case["ratio"])), least_of(case)) for case in cases],
        check=options.check,
    )


if __name__ == "__main__":
    main()
