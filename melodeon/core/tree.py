"""The fixed binary tree over virtual ranks in which `order="tree"` sums.

A node is the range of ranks it covers: level l, index i covers `[i * 2**l, min((i + 1) * 2**l, V))`, its value is
`left + right`, or left alone where right is empty. A worker folds its contiguous range into maximal nodes; the nodes of
all workers, folded by the same rule, always give the root. Nothing here depends on who holds what, which is the point.
"""

from collections.abc import Sequence

Span = tuple[int, int]
"""A node, as the half-open range of virtual ranks it covers."""


def mergeable(left: Span, right: Span, virtual_workers: int) -> bool:
    """Whether the two spans are the children of one node."""
    size = left[1] - left[0]
    return (
        left[1] == right[0]
        and size & (size - 1) == 0
        and left[0] % (2 * size) == 0
        and right[1] == min(left[0] + 2 * size, virtual_workers)
    )


def cover(start: int, stop: int, virtual_workers: int) -> tuple[Span, ...]:
    """The maximal nodes that together cover `[start, stop)`, in rank order."""
    spans: list[Span] = []
    while start < stop:
        size = 1
        while start % (2 * size) == 0 and start + size < min(start + 2 * size, virtual_workers) <= stop:
            size *= 2
        end = min(start + size, virtual_workers)
        spans.append((start, end))
        start = end
    return tuple(spans)


def carries(stack: Sequence[Span], leaf: int, virtual_workers: int) -> int:
    """How many merges follow when the leaf of rank `leaf` is pushed on `stack`: a binary counter's carry."""
    top: Span = (leaf, leaf + 1)
    merges = 0
    for span in reversed(stack):
        if not mergeable(span, top, virtual_workers):
            break
        top = (span[0], top[1])
        merges += 1
    return merges


def fold(spans: Sequence[Span], virtual_workers: int) -> tuple[tuple[int, int], ...]:
    """The additions that take `spans` (in rank order, covering all ranks) to the root.

    Each is `(i, j)`: add entry j into entry i, entries counted by position in `spans`; the root ends in entry 0.
    """
    stack: list[tuple[Span, int]] = []
    additions: list[tuple[int, int]] = []
    for position, span in enumerate(spans):
        stack.append((span, position))
        while len(stack) > 1 and mergeable(stack[-2][0], stack[-1][0], virtual_workers):
            (right, j), (left, i) = stack.pop(), stack.pop()
            additions.append((i, j))
            stack.append(((left[0], right[1]), i))
    assert [span for span, _ in stack] == [(0, virtual_workers)], (
        f"{spans} do not fold to the root of {virtual_workers}"
    )
    return tuple(additions)
