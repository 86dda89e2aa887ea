"""Data-worker sharing: V=8 virtual workers on one pool of 4 loader processes, against a pool of 4 for each of them.

Two figures, each way by turns in one run: the time from nothing to the first batch of every virtual worker's first step
(what a start, a restart or a scale-out waits for), and the batches per second once all queues have filled.

    python benchmarks/loader_sharing.py [--quick]
"""

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median

import numpy as np
import torch
from _common import arguments, at_most, progress, report
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from melodeon.core.sampling import EpochPlan
from melodeon.runtime.feed import Feed

VIRTUAL_WORKERS = 8
EASYSCALE = 0.329
"""EasyScale's figure for the time to the first batch."""
NUM_PROCESSES = 4
PREFETCH_FACTOR = 2
WARM_UP_STEPS = NUM_PROCESSES * PREFETCH_FACTOR
"""As many steps as a pool of its own loads ahead for each virtual worker, so that no side lives on its stock."""

TakeStep = Callable[[], None]


class Pictures(Dataset[tuple[torch.Tensor, int]]):
    """3x64x64 pictures, flipped, cropped, turned and re-coloured at random: 1 to 2 ms a sample."""

    def __init__(self, length: int) -> None:
        self._length = length
        self._pictures = np.random.default_rng(0).integers(0, 256, (256, 3, 64, 64), dtype=np.uint8)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        picture = self._pictures[index % len(self._pictures)]
        if np.random.rand() < 0.5:
            picture = picture[:, :, ::-1]
        top, left = np.random.randint(0, 17, 2)
        picture = np.pad(picture, ((0, 0), (8, 8), (8, 8)), mode="reflect")[:, top : top + 64, left : left + 64]
        image = torch.from_numpy(np.ascontiguousarray(picture)).float().div_(255)
        angle = (torch.rand(()) - 0.5) / 2
        turn = torch.stack([angle.cos(), -angle.sin(), torch.zeros(()), angle.sin(), angle.cos(), torch.zeros(())])
        grid = torch.nn.functional.affine_grid(turn.view(1, 2, 3), [1, 3, 128, 128], align_corners=False)
        turned = torch.nn.functional.grid_sample(image[None], grid, mode="bicubic", align_corners=False)
        image = torch.nn.functional.avg_pool2d(turned, 2)[0]
        colour = torch.rand(3, 1, 1) * 0.4 + 0.8
        image = (image * colour + torch.randn(3, 64, 64) * 0.02).clamp_(0, 1)
        return (image - image.mean()) / (image.std() + 1e-3), index % 10


@contextmanager
def shared_pool(dataset: Pictures, batch_size: int) -> Iterator[TakeStep]:
    """Ours: all virtual workers on one pool."""
    plan = EpochPlan(len(dataset), VIRTUAL_WORKERS, batch_size)
    cursors = iter(range(plan.steps_per_epoch))
    with Feed(
        dataset, plan=plan, seed=0, shuffle=True, num_workers=NUM_PROCESSES, prefetch_factor=PREFETCH_FACTOR
    ) as feed:
        feed.stop = plan.steps_per_epoch
        feed.start(range(VIRTUAL_WORKERS), 0)

        def take_step() -> None:
            cursor = next(cursors)
            for rank in range(VIRTUAL_WORKERS):
                feed.take(cursor, rank)

        yield take_step


@contextmanager
def own_pools(dataset: Pictures, batch_size: int) -> Iterator[TakeStep]:
    """The peer: a stock DataLoader with its own pool for each virtual worker."""
    pools = []
    for rank in range(VIRTUAL_WORKERS):
        sampler: DistributedSampler[int] = DistributedSampler(dataset, VIRTUAL_WORKERS, rank, seed=0)
        pools.append(
            iter(
                DataLoader(
                    dataset, batch_size, sampler=sampler, num_workers=NUM_PROCESSES, prefetch_factor=PREFETCH_FACTOR
                )
            )
        )

    def take_step() -> None:
        for pool in pools:
            next(pool)

    yield take_step
    pools.clear()  # ends the processes


SIDES = {"shared": shared_pool, "own": own_pools}


def measure(side: str, dataset: Pictures, batch_size: int, num_steps: int) -> tuple[float, float]:
    """Seconds to the first step's batches, and batches per second in the steady state."""
    begin = time.perf_counter()
    with SIDES[side](dataset, batch_size) as take_step:
        take_step()
        first_s = time.perf_counter() - begin
        for _ in range(WARM_UP_STEPS):
            take_step()
        begin = time.perf_counter()
        for _ in range(num_steps):
            take_step()
        steady = num_steps * VIRTUAL_WORKERS / (time.perf_counter() - begin)
    return first_s, steady


def sample_ms(dataset: Pictures) -> float:
    """What one sample costs on this machine."""
    times = []
    for index in range(60):
        begin = time.perf_counter()
        dataset[index]
        times.append(time.perf_counter() - begin)
    return median(times) * 1e3


def main() -> None:
    """Measure both sides by turns and report medians."""
    parser = arguments(__doc__)
    parser.add_argument("--quick", action="store_true", help="small batches and two repetitions: a smoke test")
    options = parser.parse_args()
    repetitions, batch_size, num_steps = (2, 2, 4) if options.quick else (7, 16, 16)
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="This DataLoader will create")

    # Prefetching goes on to the last step measured, on both sides.
    total_steps = 1 + WARM_UP_STEPS + num_steps + WARM_UP_STEPS
    dataset = Pictures(total_steps * VIRTUAL_WORKERS * batch_size)
    cost_ms = sample_ms(dataset)
    found: dict[str, list[tuple[float, float]]] = {side: [] for side in SIDES}
    for repetition in range(repetitions):
        for side in SIDES if repetition % 2 == 0 else reversed(SIDES):
            first_s, rate = measure(side, dataset, batch_size, num_steps)
            found[side].append((first_s, rate))
            progress(f"{repetition + 1}/{repetitions} {side:6}: first step {first_s:.3f} s, then {rate:.1f} batches/s")

    first = {side: median(first_s for first_s, _ in figures) for side, figures in found.items()}
    steady = {side: median(rate for _, rate in figures) for side, figures in found.items()}
    report(
        benchmark="loader_sharing",
        metric="seconds from start to the first batch of all 8 virtual workers",
        value=round(first["shared"], 4),
        peer="a stock DataLoader with 4 processes for each virtual worker",
        peer_value=round(first["own"], 4),
        ratio=round(first["shared"] / first["own"], 4),
        steady_batches_per_s=round(steady["shared"], 2),
        peer_steady_batches_per_s=round(steady["own"], 2),
        steady_ratio=round(steady["shared"] / steady["own"], 4),
        num_processes=NUM_PROCESSES,
        peer_num_processes=NUM_PROCESSES * VIRTUAL_WORKERS,
        batch_size=batch_size,
        sample_ms=round(cost_ms, 3),
        repetitions=repetitions,
        bounds=[at_most("part of the time to the first batch", first["shared"] / first["own"], EASYSCALE)],
        check=options.check,
    )


if __name__ == "__main__":
    main()
