"""Two courses of the same jobs compared: who was given how many workers, in what order and when, and who was done when.

Pure: values in, values out.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import pairwise
from statistics import median

Decision = tuple[str, int]
"""A job, and the workers that it has from then on."""


@dataclass(frozen=True, slots=True)
class Given:
    """A decision and its moment, in seconds from the first submission."""

    at_s: float
    job: str
    workers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Likeness:
    """How alike two sequences of decisions are."""

    live: int
    """Decisions of the first, and of the second."""
    simulated: int
    common: int
    """Decisions of the longest runs that both have in the same order."""
    first: int
    """Decisions before the first that differs."""
    same_jobs: int
    """Jobs that were given the same shares one after the other."""
    jobs: int
    apart_s: tuple[float, ...]
    """By how much the common decisions lie apart, the second's moment less the first's."""
    agreement: float
    """The part of the jobs' time in the cluster during which both gave them the same."""

    @property
    def ratio(self) -> float:
        """Common decisions over all, from 0 to 1."""
        return 2 * self.common / (self.live + self.simulated) if self.live + self.simulated else 1.0

    @property
    def typical_s(self) -> float:
        """How far apart common decisions are, in the middle."""
        return median(abs(s) for s in self.apart_s) if self.apart_s else 0.0


def in_rounds(given: Iterable[Given]) -> list[Given]:
    """By time, and inside a round by name: the order of names inside a round means nothing."""
    return sorted(given, key=lambda one: (one.at_s, one.job))


def compare(live: Sequence[Given], simulated: Sequence[Given], ends: Mapping[str, tuple[float, float]]) -> Likeness:
    """Compare two courses; `ends` says until when each job was in the cluster, in the first and in the second."""
    one, two = in_rounds(live), in_rounds(simulated)
    decisions = [(given.job, given.workers) for given in one], [(given.job, given.workers) for given in two]
    matcher = SequenceMatcher(None, *decisions, autojunk=False)
    pairs = [(one[block.a + k], two[block.b + k]) for block in matcher.get_matching_blocks() for k in range(block.size)]
    jobs = sorted({given.job for given in (*one, *two)})
    return Likeness(
        live=len(one),
        simulated=len(two),
        common=len(pairs),
        first=_common_beginning(*decisions),
        same_jobs=sum(shares(one, job) == shares(two, job) for job in jobs),
        jobs=len(jobs),
        apart_s=tuple(b.at_s - a.at_s for a, b in pairs),
        agreement=_agreement(one, two, ends),
    )


def shares(given: Iterable[Given], job: str) -> list[int]:
    """What a job was given, one after the other."""
    return [one.workers for one in given if one.job == job]


def errors(live: Mapping[str, float], simulated: Mapping[str, float]) -> dict[str, float]:
    """By job that was done in both: by what part of the first's time the second's is longer."""
    return {job: simulated[job] / live[job] - 1 for job in live if job in simulated}


def _common_beginning(one: Sequence[Decision], two: Sequence[Decision]) -> int:
    count = 0
    for a, b in zip(one, two, strict=False):
        if a != b:
            break
        count += 1
    return count


def _agreement(one: Sequence[Given], two: Sequence[Given], ends: Mapping[str, tuple[float, float]]) -> float:
    same = total = 0.0
    for job, (end_one, end_two) in ends.items():
        here = [(g.at_s, g.workers) for g in one if g.job == job] + [(end_one, 0)]
        there = [(g.at_s, g.workers) for g in two if g.job == job] + [(end_two, 0)]
        moments = sorted({at for at, _ in (*here, *there)})
        for start, stop in pairwise(moments):
            total += stop - start
            same += (stop - start) * (_at(here, start) == _at(there, start))
    return same / total if total else 1.0


def _at(given: Sequence[tuple[float, int]], moment: float) -> int:
    return next((workers for at, workers in reversed(given) if at <= moment), 0)
