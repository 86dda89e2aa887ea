"""The order in which gloo's ring all-reduce sums, which is what stock DistributedDataParallel over V processes
computes.

A flat tensor is cut into V chunks; chunk c is the left fold that starts at rank c-1 and goes down, wrapping around:
`(((g[c-1] + g[c-2]) + g[c-3]) + ...) + g[c]`. The cut depends on the number of elements and their size alone.
"""

_SEGMENT_BYTES = 1 << 20
"""gloo pipelines in segments of at most this many bytes."""


def chunk_size(numel: int, itemsize: int, virtual_workers: int) -> int:
    """Elements per chunk; the last chunks may be shorter or empty."""
    nbytes = numel * itemsize
    segments = max(-(-nbytes // _SEGMENT_BYTES), 2 * virtual_workers)
    segments = -(-segments // virtual_workers) * virtual_workers
    segment_bytes = -(-nbytes // segments)
    segment = -(-segment_bytes // itemsize)
    return segments // virtual_workers * segment


def chunks(numel: int, itemsize: int, virtual_workers: int) -> tuple[tuple[int, int], ...]:
    """Element range of every chunk, in order."""
    size = chunk_size(numel, itemsize, virtual_workers)
    return tuple((min(c * size, numel), min((c + 1) * size, numel)) for c in range(virtual_workers))


def fold_order(chunk: int, virtual_workers: int) -> tuple[int, ...]:
    """The ranks whose gradients are added, first to last, for `chunk`."""
    return tuple((chunk - 1 - k) % virtual_workers for k in range(virtual_workers))
