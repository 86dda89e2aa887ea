"""The book of partitions on demand that every worker of a job keeps, and that is the same in all of them.

What committed steps used is gathered from all workers before each commit, and what each would like to hold follows from
the assignment. So everybody can hand out partitions by itself and comes to the same: at every commit, and on entering a
view, from what was in the book at the last commit and the view's workers alone. Nobody waits for an answer, no master
is needed, and the job's state holds all there is to know.

Traded away: partitions are handed out at the ends of steps, so a worker that needs more than it has in the middle of
one runs short; and one small message more a step.
"""

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from melodeon.coord.ledger import Ledger, LedgerState
from melodeon.core.errors import MelodeonError
from melodeon.core.partitions import Catalogue, Progress
from melodeon.runtime.partitioned_demand import DemandFeed, Granted


class Book:
    """The counter at which one worker gets partitions: a `Grants`."""

    def __init__(self, catalogue: Catalogue, *, seed: int, shuffle: bool) -> None:
        self._catalogue, self._seed, self._shuffle = catalogue, seed, shuffle
        self._ledger = self._open(Progress(), {})
        self._worker = 0
        self._wants: dict[int, int] = {}
        self._number = 0
        self._turns = 0
        self._committed: dict[str, int] = {}
        """The holders at the last commit: what is handed out on entering a view follows from them."""

    # -- Grants --------------------------------------------------------------------------------------------------------

    def want(self, num: int) -> None:
        """What everybody wants follows from the assignment: nothing has to be said."""

    def grants(self, after: int = -1) -> Granted:
        """The newest page of the book. Nobody ever waits for another."""
        if self._number <= after:
            raise MelodeonError(f"worker {self._worker} waits for partitions that nobody holds: this is a defect")
        return Granted(self._number, self._ledger.epoch, self._ledger.held(self._worker), self._ledger.holders)

    def members(self) -> Collection[int]:
        """The workers of the view."""
        return self._wants

    def began(self, progress: Progress) -> None:
        """An epoch begins without a commit, so what is handed out follows from the view alone."""
        self._ledger.new_epoch(progress.epoch)
        self._committed = {}
        self._hand_out()

    def used(self, progress: Progress) -> None:
        """A step is committed: hand out what is wanted now."""
        self._turns += 1
        if progress.epoch == self._ledger.epoch:
            self._ledger.commit(progress, generation=0, step=self._turns)
        else:
            self._ledger.new_epoch(progress.epoch)
        self._hand_out()
        self._committed = self._ledger.holders

    # -- views and state -----------------------------------------------------------------------------------------------

    def seat(self, worker: int, wants: Mapping[int, int]) -> None:
        """Enter a view of these workers, who want so many partitions each; what others held is handed out again."""
        self._worker, self._wants = worker, dict(wants)
        kept = {name: holder for name, holder in self._committed.items() if holder in self._wants}
        self._ledger = self._open(self._ledger.state.progress, kept)
        self._hand_out()

    def capture(self, feed: DemandFeed) -> dict[str, Any]:
        """What belongs to the job's state, as of the last commit."""
        return {"progress": feed.state_dict(), "holders": dict(sorted(self._committed.items()))}

    def restore(self, feed: DemandFeed, captured: Mapping[str, Any]) -> None:
        """Go on from a captured state; a view is entered next."""
        feed.load_state_dict(captured["progress"])
        self._committed = {str(name): int(holder) for name, holder in captured["holders"].items()}
        self._ledger = self._open(feed.progress, self._committed)

    def _open(self, progress: Progress, holders: Mapping[str, int]) -> Ledger:
        state = LedgerState(
            seed=self._seed, shuffle=self._shuffle, progress=progress, generation=0, step=0, holders=dict(holders)
        )
        self._turns = 0
        return Ledger(self._catalogue, state)

    def _hand_out(self) -> None:
        self._ledger.serve(self._wants)
        self._number += 1


def encode_used(pending: Mapping[str, int]) -> bytes:
    """What a worker's step would use, for the others."""
    return msgspec.json.encode(pending)


def decode_used(body: bytes) -> dict[str, int]:
    """Read `encode_used` back."""
    return msgspec.json.decode(body, type=dict[str, int])
