"""How many virtual workers each worker runs, from how fast each of them is.

Proportional to the weights by largest remainders, at least one each. Equal weights give the balanced assignment, which
also prefers aligned cuts; where remainders tie, the cut with fewer partial sums is taken.
"""

from collections.abc import Sequence

from melodeon.core.assignment import Assignment
from melodeon.core.tree import cover


def counts_from_weights(virtual_workers: int, weights: Sequence[float]) -> tuple[int, ...]:
    """Counts that sum to `virtual_workers`; a weight of 0 is unknown and stands for the median of the known ones."""
    num_workers = len(weights)
    known = sorted(weight for weight in weights if weight > 0)
    if not known or (len(known) == num_workers and known[0] == known[-1]) or num_workers == virtual_workers:
        return Assignment.balanced(virtual_workers, num_workers).counts
    filled = [weight if weight > 0 else known[len(known) // 2] for weight in weights]
    # Everybody's first virtual worker is given; the others are shared out so that the whole is proportional.
    total = sum(filled)
    exact = [max(1.0, virtual_workers * weight / total) for weight in filled]
    counts = [int(share) for share in exact]
    while sum(counts) > virtual_workers:  # the minimum of one each: those who have most give, of equals the slower
        over = max((i for i in range(num_workers) if counts[i] > 1), key=lambda i: (counts[i] - filled[i] / total, i))
        counts[over] -= 1
    while sum(counts) < virtual_workers:
        counts[_most_owed(virtual_workers, counts, exact)] += 1
    return Assignment(tuple(counts)).counts


def _most_owed(virtual_workers: int, counts: list[int], exact: list[float]) -> int:
    owed = [share - count for share, count in zip(exact, counts, strict=True)]
    most = max(owed)
    tied = [i for i, value in enumerate(owed) if most - value < 1e-9]
    return min(tied, key=lambda i: (_partials(virtual_workers, counts, i), i))


def _partials(virtual_workers: int, counts: list[int], grown: int) -> int:
    start = partials = 0
    for index, count in enumerate(counts):
        end = start + count + (index == grown)
        partials += len(cover(start, min(end, virtual_workers), virtual_workers))
        start = end
    return partials
