"""Weighted fair shares in whole devices, between a least and a most for everyone (progressive filling).

Each device goes to the claim that would then have the least devices for its weight. So for any two claims that are
not at a bound, `a.devices / a.weight <= (b.devices + 1) / b.weight`: no device would do more good elsewhere.
"""

from collections.abc import Sequence
from heapq import heapify, heapreplace
from typing import NamedTuple

HALVINGS = 60


class Claim(NamedTuple):
    """What one job may get."""

    weight: float
    least: int
    most: int


def fair_shares(capacity: int, claims: Sequence[Claim]) -> list[int] | None:
    """Devices for each claim, in order; None: not even the least of everyone fits."""
    if sum(claim.least for claim in claims) > capacity:
        return None
    if sum(claim.most for claim in claims) <= capacity:
        return [claim.most for claim in claims]
    level = _water_level(capacity, claims)
    shares = [_at(level, claim) for claim in claims]
    left = capacity - sum(shares)
    heap = [((shares[i] + 1) / c.weight, i) for i, c in enumerate(claims) if shares[i] < c.most]
    heapify(heap)
    while left and heap:
        _, index = heap[0]
        shares[index] += 1
        left -= 1
        after = (shares[index] + 1) / claims[index].weight
        heapreplace(heap, (after if shares[index] < claims[index].most else float("inf"), index))
    return shares


def _at(level: float, claim: Claim) -> int:
    # The lower one first: with the heaviest weights the product is infinite, which is no whole number.
    return max(claim.least, int(min(claim.most, level * claim.weight)))


def _water_level(capacity: int, claims: Sequence[Claim]) -> float:
    """A level (devices per weight) just below the one at which everything is given away."""
    low, high = 0.0, max(claim.most / claim.weight for claim in claims)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if sum(_at(middle, claim) for claim in claims) <= capacity:
            low = middle
        else:
            high = middle
    return low
