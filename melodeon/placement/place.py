"""Put shares on devices: keep what can stay, best fit for the rest, and migrate when only fragmentation is in the way.

Jobs whose count did not change stay where they are unless room must be made. Room for a block of `n` is made in the
aligned region of `n` slots whose occupants are cheapest to move; these are smaller than `n` and are placed again the
same way. On nodes with a power of two of devices this always succeeds for power-of-two shares when enough devices are
free: some region of `n` is not held by blocks of `n` or more, and what leaves it needs no more than what is still free.
Where nodes have other sizes or are down, racks have other numbers of nodes, or pinned jobs are in the way, a block may
have to be split; the job is then scattered, but never refused. A share that is no power of two is placed as blocks of
its binary digits, each best fit.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping

import msgspec

from melodeon.core.cluster import Cluster, DeviceType
from melodeon.core.jobs import JobId
from melodeon.core.plan import Block, Placement, Share
from melodeon.placement.buddy import FreeBlocks, Piece, powers
from melodeon.placement.topology import Line, topology_of, whole

RESIZED_COST = 0.01
"""A job that changes in this round pauses anyway: where it goes is nearly free."""


class Placed(msgspec.Struct, frozen=True):
    """Where every share goes."""

    placements: Mapping[JobId, Placement]
    held: Mapping[JobId, Placement]
    """Where jobs were before."""

    @property
    def migrated(self) -> tuple[JobId, ...]:
        """Running jobs of unchanged size that were moved to make room or because their node is gone."""
        return tuple(job for job, placement in self.placements.items() if _moved(self.held.get(job, ()), placement))


def _moved(before: Placement, after: Placement) -> bool:
    return bool(before) and before != after and _counts(before) == _counts(after)


def _counts(placement: Placement) -> dict[DeviceType, int]:
    counts: dict[DeviceType, int] = {}
    for block in placement:
        counts[block.kind] = counts.get(block.kind, 0) + block.size
    return counts


def place(cluster: Cluster, held: Mapping[JobId, Placement], shares: Iterable[Share]) -> Placed:
    """Place every share; jobs in `held` without a share are gone and leave their devices."""
    shares, lines = list(shares), topology_of(cluster).lines
    pinned = {share.job for share in shares if share.pinned}
    if len(lines) == 1:
        return Placed(_Packing(lines[0], _wanted(shares, lines[0].kind), held, pinned).run(), held)
    found: dict[JobId, list[Block]] = {}
    for line in lines:
        counts = _wanted(shares, line.kind)
        on_line = {job: tuple(b for b in held.get(job, ()) if b.kind == line.kind) for job in counts}
        for job, blocks in _Packing(line, counts, on_line, pinned).run().items():
            found.setdefault(job, []).extend(blocks)
    return Placed({job: whole(blocks) for job, blocks in found.items()}, held)


def _wanted(shares: Iterable[Share], kind: DeviceType) -> dict[JobId, int]:
    """How many devices of one type everybody shall have."""
    return {share.job: count for share in shares for name, count in share.counts if name == kind}


class _Packing:
    """One line being packed. Mutable, and private to one call of `place`."""

    def __init__(
        self, line: Line, wanted: Mapping[JobId, int], held: Mapping[JobId, Placement], pinned: set[JobId]
    ) -> None:
        self._line, self._wanted, self._held, self._pinned = line, wanted, held, pinned
        self._owner: dict[int, tuple[JobId, int]] = {}
        """start -> (job, size) of every block in use."""
        self._settled: dict[JobId, Placement] = {}
        """Jobs that stay as they are unless room is needed."""
        self._evicted: set[JobId] = set()

    def run(self) -> dict[JobId, Placement]:
        """Place everything and say where each job is."""
        changed: list[JobId] = []
        owner, settled, usable, held_by = self._owner, self._settled, self._line.usable, self._held
        first, last = usable[0] if len(usable) == 1 else (0, 0)
        for job, count in self._wanted.items():
            held = held_by.get(job, ())
            if len(held) == 1 and held[0].size == count and first <= (start := held[0].start) <= last - count:
                # The common case of what follows.
                owner[start] = (job, count)
                settled[job] = held
                continue
            kept = self._keep([(block.start, block.size) for block in held], count)
            if kept is None:
                changed.append(job)
                continue
            for start, size in kept:
                owner[start] = (job, size)
            if sum([block.size for block in held]) == count:
                settled[job] = held
        self._free = FreeBlocks(usable, [(start, owner[start][1]) for start in sorted(owner)])
        needed = sum([self._wanted[job] for job in changed])
        assert needed <= self._free.count, f"{needed} {self._line.kind} devices wanted, {self._free.count} are free"
        changed.sort(key=self._wanted.__getitem__, reverse=True)
        for job in changed:
            self._put(job, self._wanted[job])
        return self._result()

    def _result(self) -> dict[JobId, Placement]:
        found = self._settled
        for job in self._evicted:
            found.pop(job, None)
        moved: dict[JobId, list[Block]] = {}
        for start, (job, size) in self._owner.items():
            if job not in found:
                moved.setdefault(job, []).append(Block(self._line.kind, start, size))
        found.update({job: whole(blocks) for job, blocks in moved.items()})
        return found

    def _keep(self, held: list[Piece], count: int) -> list[Piece] | None:
        """The part of its blocks that a job keeps; None: it must be placed anew."""
        if not held:
            return None
        total = held[0][1] if len(held) == 1 else sum(size for _, size in held)
        if total < count or not self._all_usable(held):
            return None
        if total == count:
            return held
        if len(held) == 1 and not count & (count - 1):
            return [(held[0][0], count)]
        own = FreeBlocks([(start, start + size) for start, size in sorted(held)], [])
        kept: list[Piece] = []
        for piece in powers(count):
            _carve(own, piece, kept)
        return kept

    def _all_usable(self, pieces: list[Piece]) -> bool:
        usable = self._line.usable
        for start, size in pieces:
            index = bisect_right(usable, (start, self._line.size)) - 1
            if index < 0 or usable[index][1] < start + size:
                return False
        return True

    def _put(self, job: JobId, count: int) -> None:
        held = self._held.get(job, ())
        for piece in powers(count):
            # Growing around the block that it holds spares the workers that stay.
            around = held[0].start - held[0].start % piece if held else None
            if around is not None and self._free.take_at(around, piece):
                self._owner[around] = (job, piece)
            else:
                self._put_block(job, piece)

    def _put_block(self, job: JobId, size: int) -> None:
        start = self._free.take(size)
        if start is not None:
            self._owner[start] = (job, size)
            return
        region = self._cheapest_region(size)
        if region is None:
            self._put_block(job, size // 2)
            self._put_block(job, size // 2)
            return
        out = [(s, self._owner.pop(s)) for s in list(self._owner) if region <= s < region + size]
        for s, (_, small) in out:
            self._free.free(s, small)
        taken = self._free.take_at(region, size)
        assert taken, "an emptied region is free"
        self._owner[region] = (job, size)
        for _, (other, small) in sorted(out, key=lambda entry: -entry[1][1]):
            self._evicted.add(other)
            self._put_block(other, small)

    def _cheapest_region(self, size: int) -> int | None:
        cost: dict[int, float] = {}
        used: dict[int, int] = {}
        blocked: set[int] = set()
        for start, (job, held) in self._owner.items():
            region = start - start % size
            moves_anyway = job not in self._settled or job in self._evicted
            if held >= size or (job in self._pinned and not moves_anyway):
                blocked.add(region)
                continue
            weight = RESIZED_COST if moves_anyway else 1.0
            cost[region] = cost.get(region, 0.0) + weight * held
            used[region] = used.get(region, 0) + held
        for region in sorted(cost, key=lambda region: (cost[region], region)):
            if region not in blocked and used[region] + self._free.inside(region, size) == size:
                return region
        return None


def _carve(free: FreeBlocks, size: int, into: list[Piece]) -> None:
    start = free.take(size)
    if start is not None:
        into.append((start, size))
        return
    _carve(free, size // 2, into)
    _carve(free, size // 2, into)
