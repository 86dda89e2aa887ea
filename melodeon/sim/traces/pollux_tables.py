"""Pollux's measurements of an application: step times by placement and batch size, and how training went.

    placements.csv    placement (a digit a node: its replicas), local_bsz, step_time, sync_time
    scalability.csv   num_nodes, num_replicas, local_bsz, step_time, sync_time        (more replicas than above)
    validation-B.csv  progress, iteration, ...       at global batch size B; progress counts iterations of the least B

From these: a scaling curve at any batch size (what does not fit a device is done in several passes), the iterations
that training takes at it, and the gradient noise scale, fitted so that training at the largest batch takes what it
took.
"""

from bisect import bisect_left
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from melodeon.core.curve import Points, ScalingCurve
from melodeon.core.errors import NotFound, UsageError
from melodeon.core.goodput import Goodput
from melodeon.sim.traces.rows import csv_rows

PER_NODE = 4
"""Devices of a node where these were measured."""
Timed = tuple[tuple[int, float, float], ...]
"""(examples on a device, seconds of a step, seconds of it spent waiting for the others), ascending."""


@dataclass(frozen=True, slots=True)
class Application:
    """One application's tables."""

    compact: dict[int, Timed]
    """By number of replicas, four to a node."""
    spread: dict[int, Timed]
    """The same, one to a node as far as nodes were there."""
    least_batch: int
    largest_batch: int
    progress: float
    """Iterations of the least batch that training takes."""
    noise_scale: float

    def iterations(self, batch_size: int) -> float:
        """Iterations that training takes at a batch size."""
        efficiency = (self.noise_scale + self.least_batch) / (self.noise_scale + batch_size)
        return self.progress * self.least_batch / batch_size / efficiency

    def curve(self, batch_size: int) -> ScalingCurve | None:
        """Iterations a second at a batch size; None: it is too small for even one device."""
        points = _points(self.compact, batch_size)
        return ScalingCurve(points, _points(self.spread, batch_size)) if points else None

    def goodput(self, batch_size: int) -> Goodput:
        """What other batch sizes would be worth to a job of this one."""
        alone = self.compact[1]
        (small, fast_s, _), (large, slow_s, _) = alone[0], alone[-1]
        grows = (slow_s - fast_s) / (large - small) * batch_size / (_step_s(alone, batch_size) or slow_s)
        return Goodput(
            batch_size=batch_size,
            noise_scale=self.noise_scale,
            min_batch_size=min(self.least_batch, batch_size),
            max_batch_size=max(self.largest_batch, batch_size),
            compute=min(1.0, max(0.0, grows)),
        )


def read_application(folder: Path) -> Application:
    """Read the tables of one application."""
    ends = sorted((_batch_of(path), _last(path)) for path in folder.glob("validation-*.csv"))
    if not ends:
        raise NotFound(f"{folder} has no validation-*.csv: it must hold Pollux's measurements of one application")
    by_nodes: dict[tuple[int, int], list[tuple[int, float, float]]] = {}
    for row in csv_rows(folder / "placements.csv"):
        digits = row.text("placement")
        if not (digits.isascii() and digits.isdigit()):
            raise row.bad("placement", f"{digits!r} must be a digit a node, its replicas, like 42")
        nodes = [int(digit) for digit in digits]
        by_nodes.setdefault((len(nodes), sum(nodes)), []).append(
            (row.whole("local_bsz", least=1), row.number("step_time", above=0), row.number("sync_time", least=0))
        )
    for row in csv_rows(folder / "scalability.csv"):
        key = row.whole("num_nodes", least=1), row.whole("num_replicas", least=1)
        by_nodes.setdefault(key, []).append(
            (row.whole("local_bsz", least=1), row.number("step_time", above=0), row.number("sync_time", least=0))
        )
    tables = {key: _merged(rows) for key, rows in by_nodes.items()}
    replicas = sorted({count for _, count in tables})
    compact = {n: tables[key] for n in replicas if (key := (ceil(n / PER_NODE), n)) in tables}
    if 1 not in compact:
        raise NotFound(f"{folder} has no step times of 1 replica: curves start from those, so measure placement 1")
    spread = {n: tables[max(key for key in tables if key[1] == n)] for n in replicas if n in compact}
    (least, (progress, _)), (largest, (_, iterations)) = ends[0], ends[-1]
    return Application(compact, spread, least, largest, progress, _noise(least, progress, largest, iterations))


def _batch_of(path: Path) -> int:
    text = path.stem.partition("-")[2]
    if not (text.isascii() and text.isdigit() and int(text)):
        raise UsageError(
            f"{path} is not named after a batch size: it must be validation-B.csv, such as validation-64.csv"
        )
    return int(text)


def _last(path: Path) -> tuple[float, float]:
    """Progress and iterations when the recorded training ended."""
    rows = list(csv_rows(path))
    if not rows:
        raise NotFound(f"{path} has no line below its header: it must record a training")
    return rows[-1].number("progress", above=0), rows[-1].number("iteration", above=0)


def _noise(least: int, progress: float, largest: int, iterations: float) -> float:
    """The noise scale at which `iterations` of the largest batch are worth `progress` of the least."""
    efficiency = progress * least / (iterations * largest)
    return max(0.0, (efficiency * largest - least) / (1 - efficiency)) if efficiency < 1 else 1e9 * largest


def _merged(rows: list[tuple[int, float, float]]) -> Timed:
    """One row a batch size: where it was measured on several placements, the mean."""
    found: dict[int, list[tuple[float, float]]] = {}
    for batch, step_s, sync_s in rows:
        found.setdefault(batch, []).append((step_s, sync_s))
    return tuple(
        (batch, sum(s for s, _ in times) / len(times), sum(w for _, w in times) / len(times))
        for batch, times in sorted(found.items())
    )


def _points(tables: dict[int, Timed], batch_size: int) -> Points:
    timed = ((n, _step_s(table, batch_size / n)) for n, table in sorted(tables.items()))
    return tuple((n, 1 / step_s) for n, step_s in timed if step_s is not None)


def _step_s(table: Timed, local: float) -> float | None:
    """Seconds of a step with so many examples on each device; None: fewer than were ever measured."""
    if local < table[0][0]:
        return None
    # What does not fit is done in several passes; the workers wait for each other only in the last.
    passes = ceil(local / table[-1][0])
    step_s, sync_s = _between(table, local / passes)
    return step_s + (passes - 1) * max(0.0, step_s - sync_s)


def _between(table: Timed, local: float) -> tuple[float, float]:
    place = bisect_left(table, (local, 0.0, 0.0))
    high = table[min(place, len(table) - 1)]
    low = table[max(0, place - 1)] if local < high[0] else high
    part = (local - low[0]) / (high[0] - low[0]) if high[0] > low[0] else 0.0
    return low[1] + (high[1] - low[1]) * part, low[2] + (high[2] - low[2]) * part
