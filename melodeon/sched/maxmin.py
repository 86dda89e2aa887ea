"""Max-min fair time shares as a linear program (SciPy's HiGHS): who runs on what for which part of the time.

Each job has offers: ways to run, each with a value for the job and the devices that it holds. With `x[j][o]` the part
of the time that job `j` runs as in its offer `o`

    maximise   min over j of  sum_o value[j][o] * x[j][o]
    such that  sum_o x[j][o] <= 1,   sum_jo devices[j][o][k] * x[j][o] <= capacity[k],   x >= 0

and then, with that least value as everybody's floor, the sum of all values, so that nothing is wasted on those who are
above it. SciPy is imported when a program is solved.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from melodeon.core.cluster import Counts, DeviceType
from melodeon.sched.silent import silent

SLACK = 1e-7
"""The floor of the second program is lower by this share, so that rounding does not make it infeasible."""


APART = 1e6
"""Jobs' best values are at most so many times the least of them: what is worth more gets as good as no time for its
floor, and the solver, whose tolerances are absolute, would lose sight of the others."""


class Valued(NamedTuple):
    """One way to run a job."""

    counts: Counts
    value: float


def max_min(offers: Sequence[Sequence[Valued]], capacity: Mapping[DeviceType, int]) -> list[list[float]]:
    """The time share of every offer of every job. Jobs without an offer of any value get none and do not count."""
    live = [index for index, own in enumerate(offers) if any(offer.value > 0 for offer in own)]
    shares = [[0.0] * len(own) for own in offers]
    if not live:
        return shares
    best = {index: max(range(len(offers[index])), key=lambda place: offers[index][place].value) for index in live}
    if _fit([offers[index][place] for index, place in best.items()], capacity):
        for index, place in best.items():
            shares[index][place] = 1.0
        return shares
    found = _Program(_comparable([offers[index] for index in live]), capacity).solve()
    for index in live:
        for place in range(len(offers[index])):
            shares[index][place] = min(1.0, max(0.0, next(found)))
    return shares


def _fit(chosen: Sequence[Valued], capacity: Mapping[DeviceType, int]) -> bool:
    """Whether all of these offers can run at once: then nothing is better, and no program need be solved."""
    free = dict(capacity)
    for offer in chosen:
        for kind, count in offer.counts:
            free[kind] -= count
    return min(free.values(), default=0) >= 0


def _comparable(offers: Sequence[Sequence[Valued]]) -> Sequence[Sequence[Valued]]:
    """The offers with values that one program can hold; as they are unless weights are many orders of size apart."""
    best = [max(offer.value for offer in own) for own in offers]
    least = min(best)
    if max(best) <= APART * least:
        return offers
    return [
        [Valued(offer.counts, offer.value / most * min(APART, most / least)) for offer in own]
        for own, most in zip(offers, best, strict=True)
    ]


class _Program:
    """The constraints in the form that the solver takes. Mutable, and private to one call."""

    def __init__(self, offers: Sequence[Sequence[Valued]], capacity: Mapping[DeviceType, int]) -> None:
        self._values = [offer.value for own in offers for offer in own]
        self._num_jobs, self._num_shares = len(offers), len(self._values)
        kinds = {kind: place for place, kind in enumerate(capacity)}
        self._rows: list[int] = []
        self._columns: list[int] = []
        self._data: list[float] = []
        # Rows: each job's time, each type's devices, and each job's value above the least one (the last column).
        first_type, first_value = self._num_jobs, self._num_jobs + len(kinds)
        column = 0
        for job, own in enumerate(offers):
            for offer in own:
                self._put(job, column, 1.0)
                for kind, count in offer.counts:
                    self._put(first_type + kinds[kind], column, float(count))
                if offer.value:
                    self._put(first_value + job, column, -offer.value)
                column += 1
            self._put(first_value + job, self._num_shares, 1.0)
        self._limits = [1.0] * self._num_jobs + [float(count) for count in capacity.values()] + [0.0] * self._num_jobs

    def _put(self, row: int, column: int, value: float) -> None:
        self._rows.append(row)
        self._columns.append(column)
        self._data.append(value)

    def solve(self) -> Iterator[float]:
        """The time shares in the order of the offers."""
        fair = self._run([0.0] * self._num_shares + [-1.0], floor=0.0)
        least = fair[self._num_shares]
        # The sum is divided among the jobs, so that its coefficients do not dwarf the constraints.
        scale = max(self._values) or 1.0
        total = self._run([-value / scale for value in self._values] + [0.0], floor=least * (1 - SLACK))
        return iter(total[: self._num_shares])

    def _run(self, cost: list[float], floor: float) -> list[float]:
        linprog, coo_array = _solver()
        matrix = coo_array(
            (self._data, (self._rows, self._columns)), shape=(len(self._limits), self._num_shares + 1)
        ).tocsr()
        bounds = [(0.0, None)] * self._num_shares + [(floor, None)]
        with silent():
            found = linprog(cost, A_ub=matrix, b_ub=self._limits, bounds=bounds, method="highs")
        assert found.status == 0, f"the fairness program was not solved: {found.message}"
        values: list[float] = found.x.tolist()
        return values


def _solver() -> tuple[Any, Any]:
    from scipy.optimize import linprog  # type: ignore[import-untyped]
    from scipy.sparse import coo_array  # type: ignore[import-untyped]

    return linprog, coo_array
