"""EasyScale's intra-job model: how many virtual workers on which device, what is wasted, how fast it will be.

Equations 1a to 1e, for `N_i` devices of type `i` that run `C_i` virtual workers a second each and get `A_i` of them:

    capacity = sum N_i A_i >= V                                        (1a)
    overload = max A_i / C_i                                           (1b)   seconds a step
    waste    = sum N_i (C_i - A_i / overload) + (capacity - V) / overload     (1c)
    norm     = waste / sum N_i C_i                                     (1d)
    perf     = sum N_i C_i - waste                                     (1e)   virtual workers a second

The first sum of 1c is printed without its `N_i`; with it, perf is `V / overload`, what a synchronous step gives.
With `m` executors on a device that slow each other down to `I`, `C_i` becomes `m C_i I` and `A_i` becomes `m A_i`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import isfinite

from melodeon.core.cluster import Counts, DeviceType
from melodeon.core.errors import UsageError
from melodeon.core.mixture import loads

SAME = 1e-9
"""Relative difference below which two speeds are the same."""


@dataclass(frozen=True, slots=True)
class Capability:
    """What one device of a type does for one job."""

    kind: DeviceType
    rate: float
    """`C_i`: virtual workers a second with one executor."""
    interference: tuple[float, ...] = (1.0,)
    """`I` for 1, 2, ... executors on the device: the speed of each over its speed alone. As many as memory allows."""

    def __post_init__(self) -> None:
        if not isfinite(self.rate) or self.rate <= 0:
            raise UsageError(f"{self.kind} runs {self.rate} virtual workers a second: it must be a number above 0")
        if not self.interference or any(not 0 < factor <= 1 for factor in self.interference):
            raise UsageError(
                f"interference={self.interference} on {self.kind} must hold a factor in (0, 1] for each executor count"
            )

    def per_executor(self, executors: int) -> float:
        """Virtual workers a second of each of so many executors."""
        return self.rate * self.interference[executors - 1]


@dataclass(frozen=True, slots=True)
class Configuration:
    """EasyScale's <nums, executors, threads, waste, perf>; the tuples go by type, in the order of `counts`."""

    virtual_workers: int
    counts: Counts
    executors: tuple[int, ...]
    """Executors on each device."""
    threads: tuple[int, ...]
    """Virtual workers on each executor, at most."""
    waste: float
    waste_norm: float
    """Share of the devices' capability that is wasted."""
    perf: float
    """Virtual workers a second."""

    @property
    def num_devices(self) -> int:
        """Devices of all types."""
        return sum(count for _, count in self.counts)

    @property
    def rate(self) -> float:
        """Steps a second."""
        return self.perf / self.virtual_workers

    def assignment(self) -> tuple[tuple[int, ...], ...]:
        """Virtual workers on every executor, by type; they sum to the job's. Free places are spread, never lumped."""
        groups = [[t] * (n * m) for (_, n), m, t in zip(self.counts, self.executors, self.threads, strict=True)]
        spare = sum(map(sum, groups)) - self.virtual_workers
        while spare:
            # One from each executor in turn, most loaded first, so that nobody waits for longer than before.
            group = max(groups, key=lambda loaded: max(loaded, default=0))
            group[group.index(max(group))] -= 1
            spare -= 1
        return tuple(tuple(sorted(group, reverse=True)) for group in groups)

    def __str__(self) -> str:
        parts = []
        for (kind, count), executors, threads in zip(self.counts, self.executors, self.threads, strict=True):
            parts.append(f"{count} {kind} x {threads}" + (f" x {executors} executors" if executors > 1 else ""))
        return " + ".join(parts)


def evaluate(
    virtual_workers: int,
    capabilities: Sequence[Capability],
    counts: Counts,
    executors: tuple[int, ...],
    threads: tuple[int, ...],
) -> Configuration:
    """Waste and speed of a given configuration; `capabilities`, `executors` and `threads` go with `counts`."""
    room = sum(n * m * a for (_, n), m, a in zip(counts, executors, threads, strict=True))
    if room < virtual_workers:
        raise UsageError(f"a configuration has room for {room} virtual workers of {virtual_workers}: raise its threads")
    total, overload, used = 0.0, 0.0, 0.0
    for capability, (_, count), m, a in zip(capabilities, counts, executors, threads, strict=True):
        rate = capability.per_executor(m)
        total += count * m * rate
        used += count * m * a
        overload = max(overload, a / rate if count else 0.0)
    waste = max(0.0, (total - used / overload) + (room - virtual_workers) / overload)
    return Configuration(virtual_workers, counts, executors, threads, waste, waste / total, total - waste)


def top_plan(virtual_workers: int, capabilities: Sequence[Capability], counts: Counts) -> Configuration:
    """The fastest configuration on exactly these devices; among equals the one with fewer executors.

    For given executors the best threads are found exactly, which takes the place of trying the integers around
    multiples of every `C_i`.
    """
    if not counts or virtual_workers < 1:
        raise UsageError(f"{virtual_workers} virtual workers on {counts}: a plan needs a device and a virtual worker")
    best: Configuration | None = None
    choices = [range(1, len(capability.interference) + 1) for capability in capabilities]
    for executors in sorted(product(*choices), key=sum):
        groups = tuple(
            (n * m, capability.per_executor(m))
            for (_, n), m, capability in zip(counts, executors, capabilities, strict=True)
        )
        found = evaluate(virtual_workers, capabilities, counts, executors, loads(virtual_workers, groups))
        if best is None or found.perf > best.perf * (1 + SAME):
            best = found
    assert best is not None, "one executor on each device is always possible"
    return best


def released(plan: Configuration, capabilities: Sequence[Capability], least: int = 1) -> Configuration:
    """The same speed on fewer devices: what has nothing to do is given back, slowest types first."""
    spare = sum(n * m * a for (_, n), m, a in zip(plan.counts, plan.executors, plan.threads, strict=True))
    spare -= plan.virtual_workers
    left = plan.num_devices
    kept = [count for _, count in plan.counts]
    for index in sorted(range(len(kept)), key=lambda i: capabilities[i].rate):
        load = plan.executors[index] * plan.threads[index]
        idle = min(kept[index], spare // load if load else kept[index], max(0, left - least))
        kept[index] -= idle
        spare -= idle * load
        left -= idle
    if left == plan.num_devices:
        return plan
    stay = [index for index, count in enumerate(kept) if count]
    return evaluate(
        plan.virtual_workers,
        [capabilities[i] for i in stay],
        tuple((plan.counts[i][0], kept[i]) for i in stay),
        tuple(plan.executors[i] for i in stay),
        tuple(plan.threads[i] for i in stay),
    )


def should_fall_back(before_rate: float, measured_rate: float, tolerance: float = 0.0) -> bool:
    """Whether a reconfiguration made the job slower than it was, so that it goes back to what it had.

    Prediction does not count: a job that grew by less than promised keeps what it got.
    """
    return measured_rate < before_rate * (1 - max(tolerance, SAME))
