"""A view's way of carrying gradients: buckets, the rows that are filled, and the lanes that cross between workers.

It belongs to the view, not to the reducer, so that the next view's can be opened in the background: making and mapping
shared memory for a large model takes longer than a step.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from melodeon.runtime.arena import map_segments
from melodeon.runtime.buckets import Bucket
from melodeon.runtime.folds import Fold
from melodeon.runtime.group import Group
from melodeon.runtime.lanes import AloneLane, GlooLane, Lane, SharedLane


@dataclass(frozen=True, slots=True)
class Exchange:
    """Buckets with their lanes; without buckets nothing is exchanged."""

    buckets: tuple[Bucket, ...] = ()
    lanes: tuple[Lane, ...] = ()
    device_rows: tuple[list[torch.Tensor], ...] = ()
    """Per bucket this worker's rows on its device, filled before the lane reduces."""


def open_exchange(
    group: Group,
    buckets: tuple[Bucket, ...],
    counts: Sequence[int],
    fold: Callable[[Bucket], Fold],
) -> Exchange:
    """Make the buffers, together with the other workers; worker w has `counts[w]` rows a bucket."""
    if group.size == 1:
        device_rows = tuple(_new_rows(bucket, counts[0], bucket.device) for bucket in buckets)
        alone = tuple(AloneLane(rows, fold(b)) for rows, b in zip(device_rows, buckets, strict=True))
        return Exchange(buckets, alone, device_rows)
    sizes = [sum(_row_bytes(bucket) * count for bucket in buckets) for count in counts]
    segments = map_segments(group, sizes)
    lanes: list[Lane] = []
    if segments is not None:
        tables = [_carve(segment, buckets, count) for segment, count in zip(segments, counts, strict=True)]
        for number, bucket in enumerate(buckets):
            lanes.append(SharedLane(group, [table[number] for table in tables], fold(bucket)))
    else:
        for bucket in buckets:
            rows = _new_rows(bucket, counts[group.rank], torch.device("cpu"))
            lanes.append(GlooLane(group, rows, counts, fold(bucket)))
    rows_on_device = tuple(
        list(lane.rows) if bucket.device.type == "cpu" else _new_rows(bucket, counts[group.rank], bucket.device)
        for bucket, lane in zip(buckets, lanes, strict=True)
    )
    exchange = Exchange(buckets, tuple(lanes), rows_on_device)
    # Unmapping a large model's rows takes longer than all else between two steps: it is left to the view's carrier,
    # when the view is over.
    group.hold("exchange", [exchange].clear)
    return exchange


def _row_bytes(bucket: Bucket) -> int:
    return -(-bucket.numel * bucket.dtype.itemsize // 64) * 64


def _new_rows(bucket: Bucket, count: int, device: torch.device) -> list[torch.Tensor]:
    return [torch.zeros(bucket.numel, dtype=bucket.dtype, device=device) for _ in range(count)]


def _carve(segment: torch.Tensor, buckets: Sequence[Bucket], count: int) -> list[list[torch.Tensor]]:
    table: list[list[torch.Tensor]] = []
    offset = 0
    for bucket in buckets:
        rows = []
        for _ in range(count):
            nbytes = bucket.numel * bucket.dtype.itemsize
            rows.append(segment[offset : offset + nbytes].view(bucket.dtype))
            offset += _row_bytes(bucket)
        table.append(rows)
    return table
