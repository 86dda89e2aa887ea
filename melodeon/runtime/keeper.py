"""When a job's state is digested and stored, and how a restarted job goes on.

At every point of the receipt all workers digest their state and compare: if one of them has drifted (a flipped bit, a
bug), the run stops there rather than train on.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from melodeon.coord.failpoint import failpoint
from melodeon.core.definition import Definition, Value
from melodeon.core.errors import CheckpointError, DefinitionError, NotBitwise, UsageError
from melodeon.core.launch import Launch
from melodeon.runtime.checkpoint import BackgroundWriter, Checkpoint, CheckpointFolder, shown
from melodeon.runtime.codec import clone_state
from melodeon.runtime.digest import StateDigest, digest_state
from melodeon.runtime.group import Group
from melodeon.runtime.journal import Journal

KEPT = 3
"""Checkpoints that are kept where the script does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """How often the state is digested."""

    receipt_every: int | None
    """Steps between entries of the receipt; None: at the end of every epoch; 0: only at the end of the run."""
    every_step: bool
    """Record every tensor's digest at every step."""


class Keeper:
    """Digests and stores what `capture()` returns."""

    def __init__(
        self, group: Group, journal: Journal, schedule: Schedule, capture: Callable[[], dict[str, Any]]
    ) -> None:
        self.group = group
        self._journal = journal
        self._schedule = schedule
        self._capture = capture
        self._folder: CheckpointFolder | None = None
        self._writer: BackgroundWriter | None = None
        self._every = 0
        """Steps between checkpoints; 0: only when the run ends."""
        self._strict = True
        self._digest: tuple[int, StateDigest] | None = None
        self._stored: int | None = None
        self.definition = Definition()

    def keep(self, folder: str | Path, every: int, keep: int, *, strict: bool) -> None:
        """Store a checkpoint every so many steps."""
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise UsageError(f"job.checkpoint(every={every!r}) must be a whole number of steps of at least 1")
        if self._folder is not None:
            raise UsageError("job.checkpoint was called twice: a job keeps its checkpoints in one folder")
        self._open(folder, every, keep, strict=strict)

    def keep_for(self, launch: Launch) -> None:
        """The launcher may want checkpoints of a script that keeps none."""
        if launch.checkpoint_dir is not None and launch.resume and self._folder is None:
            self._open(launch.checkpoint_dir, launch.checkpoint_every or 0, KEPT, strict=True)

    def _open(self, folder: str | Path, every: int, keep: int, *, strict: bool) -> None:
        # Absolute: the script may change its directory.
        self._folder = CheckpointFolder(Path(folder).absolute(), keep=keep)
        self._writer = BackgroundWriter(self._folder)
        self._every, self._strict = every, strict

    def find(self) -> Checkpoint | None:
        """The newest good checkpoint, the same on every worker; says which files were refused."""
        if self._folder is None:
            return None
        found, refused = self._folder.newest_good()
        for sentence in refused:
            self._journal.note(sentence, main=self.group.rank == 0, warning=True)
        step = -1 if found is None else found.step
        chosen = int(self.group.share_bytes(str(step).encode(), root=0))
        if chosen < 0:
            return None
        if found is None or found.step != chosen:
            finds = "no good checkpoint" if found is None else f"step {found.step}"
            raise CheckpointError(
                f"worker 0 resumes from step {chosen}, but worker {self.group.rank} finds {finds} in "
                f"{shown(self._folder.path)}: every worker must see the same folder"
            )
        self._check_definition(found)
        return found

    def _check_definition(self, found: Checkpoint) -> None:
        differs = found.definition.differences(self.definition)
        written = f"{found.path.name} was written by a run of another definition ({'; '.join(differs)})"
        if _place(found.definition) != _place(self.definition):
            raise DefinitionError(
                f"{written}, and virtual_workers, seed, order, hybrid and the loaders define the position in the data "
                "and the random streams: start it as that run was started, or take its weights into a new run by "
                "`melodeon export`"
            )
        if self._strict and differs:
            raise DefinitionError(
                f"{written}: start it as that run was started, or pass job.checkpoint(..., strict=False) to go on with "
                "other bits"
            )

    def check_restored(self, found: Checkpoint) -> None:
        """Refuse to go on unless the script's objects now hold what the checkpoint holds, to the bit."""
        stored, now = _digest(found.state).leaves, _digest(self._capture()).leaves
        differing = [name for name in dict.fromkeys([*stored, *now]) if stored.get(name) != now.get(name)]
        if differing:
            raise CheckpointError(
                f"{len(differing)} values of {found.path.name} came back changed from load_state_dict(), the first is "
                f"{differing[0]}: its owner must take back what its state_dict() gave, in the same type"
            )

    def boundary(self, step: int, *, end_of_epoch: bool, last: bool, stopped: bool) -> None:
        """A step is finished, perhaps the `last` one; `stopped` if the launcher allows no more."""
        every = self._schedule.receipt_every
        due = end_of_epoch if every is None else every > 0 and step % every == 0
        digest_now = self._schedule.every_step or last or due
        store_now = self._folder is not None and (stopped or (self._every > 0 and step % self._every == 0))
        if digest_now or store_now:
            state = self._capture()
            if digest_now:
                self._record(step, state)
            if store_now:
                self._store(step, state)

    def finish(self, step: int, *, store: bool) -> str | None:
        """The run is over: a last entry, and with `store` a last checkpoint; returns the digest of the end."""
        state = self._capture()
        if self._digest is None or self._digest[0] != step:
            self._record(step, state)
        else:
            # With `store` the script has run the end of its last epoch since. Without, all agree once more, for the
            # sake of one that has come at this very boundary, and has not been asked yet.
            self._digest = (step, self._agree(step, _digest(state) if store else self._digest[1]))
        failpoint("finish.agreed")
        if self._folder is not None and store:
            self._store(step, state)
        if self._writer is not None:
            self._writer.wait()
        return self._digest[1].root if self._digest is not None else None

    @property
    def agreed(self) -> tuple[int, str] | None:
        """The newest step whose state all have digested, and what came out."""
        return None if self._digest is None else (self._digest[0], self._digest[1].root)

    def adopt(self, agreed: Sequence[Any] | None) -> None:
        """Go on from what another worker has agreed on with the others."""
        self._digest = None if agreed is None else (int(agreed[0]), StateDigest(str(agreed[1]), {}))

    def store_now(self, step: int, changes: Mapping[str, Any]) -> None:
        """Write a checkpoint at this boundary, whatever the schedule, with some values of the state changed."""
        if self._folder is None:
            raise UsageError("there is no checkpoint folder: call job.checkpoint(folder, every=...) first")
        self._store(step, {**self._capture(), **changes})

    @property
    def folder(self) -> Path | None:
        """Where checkpoints are kept, if they are."""
        return None if self._folder is None else self._folder.path

    def wait(self) -> None:
        """Until what is being written is on the disk."""
        if self._writer is not None:
            self._writer.wait()

    def _record(self, step: int, state: dict[str, Any]) -> None:
        self._digest = (step, self._agree(step, _digest(state)))
        failpoint("boundary.digest")
        self._journal.digest(*self._digest)

    def _agree(self, step: int, digest: StateDigest) -> StateDigest:
        roots = [body.decode() for body in self.group.gather_bytes(digest.root.encode())]
        if len(set(roots)) > 1:
            raise self._drifted(step, digest)
        return digest

    def _drifted(self, step: int, digest: StateDigest) -> NotBitwise:
        everyone = [json.loads(body) for body in self.group.gather_bytes(json.dumps(digest.leaves).encode())]
        worker = next(number for number, leaves in enumerate(everyone) if leaves != everyone[0])
        mine, other = everyone[0], everyone[worker]
        differing = [name for name in dict.fromkeys([*mine, *other]) if mine.get(name) != other.get(name)]
        return NotBitwise(
            f"after step {step} worker {worker} has another state than worker 0: {len(differing)} values differ, the "
            f"first is {differing[0]}: what a script changes once per virtual worker must change once per step (under "
            "`if job.committed:`, or by a method named in job.register(..., once=...)); if nothing does, hardware, "
            "settings or code differ (`melodeon doctor` checks the machine)"
        )

    def _store(self, step: int, state: dict[str, Any]) -> None:
        if self.group.rank == 0 and self._writer is not None:
            self._writer.wait()  # before the snapshot: where writing is slower than training there would be two
            self._writer.write(step, clone_state(state), self.definition)
            failpoint("boundary.checkpoint")
            assert self._folder is not None
            if self._stored != step:
                self._journal.event("checkpoint", step=step, path=str(shown(self._folder.path)))
        self._stored = step


def _place(definition: Definition) -> dict[str, Value]:
    """The facts without which a checkpoint's position in the data and its random states mean something else."""
    return {
        name: value
        for name, value in definition.values.items()
        if name in ("virtual_workers", "seed", "order", "hybrid") or name.startswith("loader")
    }


def _digest(state: Mapping[str, Any]) -> StateDigest:
    # How DDP cut its buckets, whether the run's aim is reached, and what batch factor the script has asked for follow
    # from the run and are kept to go on with it; they are no part of the result.
    return digest_state({name: part for name, part in state.items() if name not in ("arrival", "reached", "wish")})
