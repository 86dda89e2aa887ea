"""What an elastic job does at the edges of its steps: follow the views, and lose nothing on the way.

A step is committed when the optimizer steps; what its boundary still has to do together with others (metrics, digest,
checkpoint) can be interrupted, and is then done again in the next view. Nobody leaves a pass over the data before
everybody has done all of that for its last step, so two workers are never more than one step, nor an epoch's end,
apart. Who has left it does nothing of it again: its script may have changed the state since.
"""

import json
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from melodeon.coord.failpoint import failpoint
from melodeon.coord.lastwords import write_last_words
from melodeon.coord.messages import Phase
from melodeon.core.definition import Definition, Value
from melodeon.core.errors import WorkerLost
from melodeon.core.service import finite
from melodeon.core.view import View
from melodeon.runtime import wrapping
from melodeon.runtime.exchange import Exchange
from melodeon.runtime.group import Group
from melodeon.runtime.hybrid import scaled
from melodeon.runtime.link import Link
from melodeon.runtime.memory import make_room
from melodeon.runtime.reduce import Signals
from melodeon.runtime.rehearsal import rehearse
from melodeon.runtime.views import NOTHING, Standing, Views

if TYPE_CHECKING:
    from melodeon.runtime.course import Course

_BUSY_STEPS = 32
"""Steps whose times are told to the master."""
_METRICS = 64
"""Logged means that are told to the master."""


class Elastic:
    """One worker's elasticity; `views.Trainer` for its views."""

    def __init__(self, course: "Course", link: Link, folder: Path, host: str) -> None:
        self._course = course
        self._link = link
        self._views = Views(link, self, folder / "meetings", host)
        self._whole = False
        """Whether this worker holds the job's state."""
        self._built: Mapping[str, str] | None = None
        """What the models were like when they were built: where somebody is lost while all begin with a checkpoint,
        some have read it, and all begin again.
        """
        self._lost = False
        """An exchange of this view failed."""
        self._due: int | None = None
        """The loader whose boundary is not finished."""
        self._apart = False
        """That boundary, or the last one, is of a loop that was left by `break`."""
        self._beyond = False
        """The script has left the pass whose last step was the last one."""
        self._checkpoint = 0
        """The newest checkpoint that was asked for and is on the disk; everybody in a view has the same number."""
        self._busy: deque[float] = deque(maxlen=_BUSY_STEPS)
        self._committed_at = time.monotonic()
        self._pausing = False
        self._entered = False
        """No step was trained in this view yet."""
        self._metrics: Mapping[str, float | int] = {}
        """The means that the master was told of last."""

    # -- the loop ------------------------------------------------------------------------------------------------------

    def signals(self) -> Signals:
        """What this worker has heard, for the step's header."""
        failpoint("step.header")
        signals = self._views.signals()
        return replace(signals, leaving=False) if self._course.metrics.quiet else signals

    @property
    def stopping(self) -> bool:
        """Whether all workers have agreed to stop."""
        return self._course.beat.agreed.stop

    def tell_lengths(self) -> None:
        """The master is told how long the run is."""
        total, per_epoch = self._course.lengths
        self._link.post(urgent=False, total_steps=total, steps_per_epoch=per_epoch)

    def join(self, alike: Mapping[str, Value]) -> None:
        """The model is built: wait for a seat, and take it. Only those get one for whom all of these are alike."""
        rehearse(self._course.engine.device)
        make_room(self._course.engine.working_bytes)
        self._link.post(
            definition=Definition(alike).marks(),
            virtual_workers=self._course.virtual_workers,
            keeps=self._course.keeps_checkpoints,
        )
        self._views.join()
        self._committed_at = time.monotonic()
        if self._due is not None:
            self.keep_up()  # now: the script goes on to its next pass, which moves the loader

    def keep_up(self) -> None:
        """Before a step, and before a pass ends: be in the newest view, with nothing left undone."""
        while True:
            if self._lost:
                self._lost = False
                self._pausing = True
                self._views.fell_apart()
                self._views.renew()
            elif self._due is not None:
                self._finish_boundary(self._due)
            elif self._course.beat.agreed.armed > self._views.generation:
                self._switch()
            elif self._views.outdated():
                self._pausing = True
                self._views.renew()
            elif self._course.batches.due(self._course.beat.step) is not None:
                self._rebatch()
            else:
                failpoint("step.begin")
                return

    def drop(self) -> None:
        """The step was given up."""
        self._lost = True

    def run_on(self) -> None:
        """The script leaves a pass, with nothing left undone."""
        self._beyond = True

    def boundary(self, loader: int) -> None:
        """A step is committed: say so, and do what is due with the others."""
        failpoint("step.committed")
        now = time.monotonic()
        self._busy.append(self._course.beat.busy_s)
        told: dict[str, Any] = {"step": self._course.beat.step, "at": now, "busy_s": tuple(self._busy)}
        told |= self._new_metrics()
        if self._pausing:
            self._pausing = False
            told["pause_s"] = now - self._committed_at
        self._committed_at = now
        self._link.post(urgent=self._entered, **told)
        self._entered = False
        self._views.tidy()
        self._due, self._apart, self._beyond = loader, self._course.apart, False
        self._finish_boundary(loader)

    def _new_metrics(self) -> dict[str, Any]:
        """The newest means, if they were not told yet; they go with the next progress that is told."""
        newest = self._course.metrics.latest
        if newest is self._metrics or self._course.group.rank > 0:
            return {}
        self._metrics = newest
        columns = islice((name for name in newest if name not in ("step", "epoch")), _METRICS)
        return {"metrics": {name: finite(float(newest[name])) for name in columns}}

    def _finish_boundary(self, loader: int) -> None:
        try:
            self._course.finish_boundary(loader, apart=self._apart)
            failpoint("boundary.done")
            self._answer_checkpoint()
        except WorkerLost:
            self._lost = True
        else:
            self._due = None

    def _answer_checkpoint(self) -> None:
        asked = self._course.beat.agreed.checkpoint
        if asked > self._checkpoint:
            self._course.store_on_request()
            failpoint("boundary.stored")
            self._checkpoint = asked
            self._link.post(checkpoint=asked)

    def finish(self) -> None:
        """The loop is over: the last entries, together with whoever is left."""
        while True:
            self.keep_up()
            failpoint("finish.begin")
            try:
                self._course.finish_together()
            except WorkerLost:
                self._lost = True
            else:
                return

    def done(self, digest: str | None) -> None:
        """The script has ended well."""
        failpoint("finish.done")
        told = self._new_metrics()
        self._link.post(phase=Phase.DONE, digest=digest or "", step=self._course.beat.step, **told)
        write_last_words(Path(self._course.journal.folder), self._link.status)
        self._link.flush()
        failpoint("finish.told")

    def _rebatch(self) -> None:
        try:
            self._course.rebatch()
        except WorkerLost:
            self._lost = True
        else:
            self._link.post(factor=self._course.batches.running)

    def _switch(self) -> None:
        failpoint("view.flush")
        if self._course.beat.agreed.leaving:
            try:
                # What a leaver has not told yet would be lost with it.
                self._course.metrics.flush(self._course.beat.step)
            except WorkerLost:
                self._lost = True
                return
        self._pausing = True
        self._views.switch(self._course.beat.agreed.armed)

    # -- views.Trainer -------------------------------------------------------------------------------------------------

    def standing(self) -> Standing:
        """How far this worker has come."""
        step = self._course.beat.step if self._whole else NOTHING
        agreed = self._course.beat.agreed
        return Standing(
            step=step,
            due=self._due,
            apart=self._apart,
            beyond=self._beyond,
            agreed=(agreed.armed, agreed.checkpoint, agreed.stop),
            checkpoint=self._checkpoint,
        )

    def layout(self, view: View) -> str:
        """What an exchange in this view depends on besides its seats."""
        return f"{self._course.engine.layout()} x{self._factor(view)}"

    def _factor(self, view: View) -> int:
        """The batch factor to enter a view with. The master's is in the view itself: everybody who enters it has heard
        the same, whatever views come later.
        """
        return self._course.batches.at_entry(self._course.beat.step, view.factor)

    def exchange_opener(self, group: Group, view: View) -> Callable[[], Exchange]:
        """What opens the exchange of a view, on its carrier, for the layout of now."""
        return self._course.engine.exchange_opener(group, scaled(view.assignment, self._factor(view)))

    def begin(self, group: Group) -> None:
        """Nobody has any state: compare models, read the newest checkpoint."""
        models = self._course.parts.models
        if group.size > 1 and self._built is None:
            self._built = wrapping.digests_of(models)
        wrapping.check_same_model(models, group, self._built)
        self._course.resume(group)
        # Of a life that ended with all its workers, what goes beyond the checkpoint is cut off and comes again.
        kept = self._course.journal.rewind(self._course.beat.step) if group.rank == 0 else {}
        self._course.journal.adopt(json.loads(group.share_bytes(json.dumps(kept).encode(), root=0)))
        self._whole = True

    def capture(self) -> dict[str, Any]:
        """The job's state, with what its journal must know to go on."""
        return {
            "state": self._course.capture(),
            "journal": self._course.journal.carried(),
            "end": self._course.capture_end(),
        }

    def restore(self, captured: dict[str, Any], stand: Standing) -> None:
        """Go on from another worker's state. This one may be the only one with it before a view holds."""
        if self._course.stands_elsewhere(captured["state"]):
            # A leaver that was asked back late. Its script cannot be led to where the others' scripts are; they have
            # the state and go on without it, as if it had been killed.
            os.write(2, f"melodeon: worker {self._link.worker} was left behind in an earlier epoch and ends\n".encode())
            os.kill(os.getpid(), signal.SIGKILL)
        self._course.restore(captured["state"])
        self._course.journal.adopt(captured["journal"])
        self._course.restore_end(captured["end"])
        self._stand(stand)
        self._beyond = False  # its script may be beyond an earlier pass, and not yet beyond this step
        self._whole = True

    def part(self) -> None:
        """The job goes on without this worker."""
        self._course.parted = True

    def reseat(self, group: Group, view: View, exchange: Exchange, stand: Standing) -> None:
        """Train in this view from here on; everybody stands where `stand` says."""
        self._busy.clear()
        self._course.batches.running = self._factor(view)
        self._course.members = view.workers
        self._course.reseat(group, view.assignment, exchange)
        self._stand(stand)
        # No pause yet: that of the view before is not this one's.
        self._metrics = {}  # whoever has virtual rank 0 now tells of them
        self._entered = True
        told = {"step": self._course.beat.step, "busy_s": (), "pause_s": 0.0, "metrics": {}}
        self._link.post(urgent=False, factor=self._course.batches.running, **told)

    def _stand(self, stand: Standing) -> None:
        self._due, self._apart, self._checkpoint = stand.due, stand.apart, stand.checkpoint
        self._course.beat.agreed = Signals(*stand.agreed)
