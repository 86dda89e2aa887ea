"""The share of a step spent on switching between virtual workers: random streams, buffers, guards and gates.

Counted is everything that Melodeon does between the user's calls except moving data and adding gradients, which plain
accumulation does as well. Measured inside real training steps, V = 8 on one worker; EasyScale's figure is 1 %.

    python benchmarks/context_switch.py [--model resnet18|gpt10m] [--steps N]
"""

import statistics
import time
from collections.abc import Callable

import torch
from _common import arguments, at_most, progress, report
from virtual_overhead import CASES, NO_RECEIPT, VIRTUAL_WORKERS, first

import melodeon

MOST = 0.01
COUNTED = ("enter", "leave", "reach_update")
"""Methods of the beat in which a switch spends its time; `backward` adds what its two ends cost outside the adding."""


class Clock:
    """Adds up the time inside chosen methods, less the time inside others that they call."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def count(self, owner: object, name: str, sign: int) -> None:
        """Count (sign 1) or discount (sign -1) the method's time."""
        method: Callable[..., object] = getattr(owner, name)

        def timed(*args: object, **kwargs: object) -> object:
            start = time.perf_counter()
            try:
                return method(*args, **kwargs)
            finally:
                self.seconds += sign * (time.perf_counter() - start)

        setattr(owner, name, timed)


def measure(name: str, rounds: int) -> dict[str, object]:
    """Median share over steps."""
    case = CASES[name]
    job = melodeon.join(virtual_workers=VIRTUAL_WORKERS, seed=0, receipt_every=NO_RECEIPT)
    model = case.make().to(job.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    model, optimizer = job.wrap(model, optimizer)
    data = case.data(4 * VIRTUAL_WORKERS * case.micro_batch)
    loader = job.loader(data, batch_size=1, shuffle=True, collate_fn=first)
    clock = Clock()
    for method in COUNTED:
        clock.count(job.course.beat, method, 1)
    clock.count(job.course, "boundary", 1)
    shares: list[float] = []
    started = before = 0.0
    for _ in job.epochs(1_000_000):
        if not started:
            _count_backward(clock, job)
        for inputs, targets in loader:
            job.backward(model(inputs, targets))
            optimizer.step()
            optimizer.zero_grad()
            if job.committed:
                now = time.perf_counter()
                if started:
                    shares.append((clock.seconds - before) / (now - started))
                    progress(f"{name}: step {len(shares)}/{rounds}, {shares[-1]:.3%} of {now - started:.3f} s")
                started, before = now, clock.seconds
                if len(shares) == rounds:
                    break
        if len(shares) == rounds:
            break
    return {"model": name, "share": round(statistics.median(shares), 5), "worst": round(max(shares), 5)}


def _count_backward(clock: Clock, job: melodeon.Job) -> None:
    """The ends of backward count; the backward pass itself and the additions do not."""
    engine, reducer = job.course.engine, job.course.engine.reducer
    clock.count(engine, "begin_backward", 1)
    clock.count(engine, "end_backward", 1)
    clock.count(reducer, "after", -1)
    clock.count(reducer, "finish", -1)


def main() -> None:
    """Measure the chosen models and print the report."""
    parser = arguments(__doc__)
    parser.add_argument("--model", default="all", choices=["all", *CASES])
    parser.add_argument("--steps", type=int, default=10)
    options = parser.parse_args()
    chosen = ["resnet18", "gpt10m"] if options.model == "all" else [options.model]
    cases = [measure(name, options.steps) for name in chosen]
    worst = max(float(str(case["share"])) for case in cases)
    report(
        benchmark="context_switch",
        metric="share of a step spent switching virtual workers, worst model",
        value=worst,
        peer="EasyScale's figure",
        peer_value=MOST,
        ratio=round(worst / MOST, 3),
        cases=cases,
        bounds=[at_most(f"share of a step, {case['model']}", float(str(case["share"])), MOST) for case in cases],
        check=options.check,
    )


if __name__ == "__main__":
    main()
