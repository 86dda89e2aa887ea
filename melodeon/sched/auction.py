"""Themis' partial allocation auction, for jobs whose curves are known.

A bid is a job's value (the inverse of its finish-time fairness) for some numbers of devices. The auction picks the
numbers with the largest product of values (Nash welfare): a heap of the next step up of every bidder, by the logarithm
gained for each device. In a partial allocation a winner keeps only the part

    c_i = product of the others' values with i there / product of their values without i

of what it won, which makes bidding truthfully the best that it can do. Jobs that take all or nothing keep everything.
"""

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from math import exp, log
from typing import NamedTuple


class Bid(NamedTuple):
    """What one job would have of the devices on offer."""

    idle: float
    """Its value if it wins nothing; above 0."""
    counts: tuple[int, ...]
    """Numbers of devices that it bids for, ascending."""
    values: tuple[float, ...]
    """Its value for each of them."""

    def value(self, level: int) -> float:
        """Its value at a level; 0 is to win nothing."""
        return self.values[level - 1] if level else self.idle


def nash(devices: int, bids: Sequence[Bid]) -> list[int]:
    """The level of every bid (0: nothing) with about the largest product of values."""
    levels = [0] * len(bids)
    heap = [step for index, bid in enumerate(bids) for step in _steps(index, bid, 0)]
    heapify(heap)
    while heap:
        _, index, level = heappop(heap)
        before = bids[index].counts[levels[index] - 1] if levels[index] else 0
        if level <= levels[index] or bids[index].counts[level - 1] - before > devices:
            continue
        devices -= bids[index].counts[level - 1] - before
        levels[index] = level
        for step in _steps(index, bids[index], level):
            heappush(heap, step)
    return levels


def partial(devices: int, bids: Sequence[Bid]) -> list[int]:
    """The levels after every winner has paid its part."""
    won = nash(devices, bids)
    kept = list(won)
    for index, level in enumerate(won):
        if not level:
            continue
        others = [place for place in range(len(bids)) if place != index]
        without = nash(devices, [bids[place] for place in others])
        loss = sum(
            log(bids[place].value(won[place])) - log(bids[place].value(alone))
            for place, alone in zip(others, without, strict=True)
        )
        most = exp(min(0.0, loss)) * bids[index].counts[level - 1]
        kept[index] = sum(count <= most + 1e-9 for count in bids[index].counts[:level])
    return kept


def _steps(index: int, bid: Bid, level: int) -> list[tuple[float, int, int]]:
    """(minus gain for each device, bidder, level) of every higher level that is worth more."""
    base, held = log(bid.value(level)), bid.counts[level - 1] if level else 0
    found: list[tuple[float, int, int]] = []
    for higher in range(level + 1, len(bid.counts) + 1):
        gain = log(bid.value(higher)) - base
        if gain > 0:
            found.append((-gain / (bid.counts[higher - 1] - held), index, higher))
    return found
