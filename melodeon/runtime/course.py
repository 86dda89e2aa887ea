"""The course of a job on one worker: epochs, passes over loaders, steps and their boundaries, and the state they leave.

    for epoch in job.epochs(n):            resume, if there is something to resume
        for batch in loader:               enter(rank): streams, buffers
            job.backward(loss)             fold this virtual worker's gradients
            optimizer.step()               for the last local one: finish the exchange, agree, update - the commit
                                           leave(rank); after the last one boundary(): digest, checkpoint, metrics

Until the commit nothing of the job's state has changed, so a step can be dropped and run again at any point before it.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from torch.utils.hooks import RemovableHandle

from melodeon.coord.failpoint import failpoint
from melodeon.core.assignment import Assignment
from melodeon.core.definition import Definition, Value
from melodeon.core.errors import UsageError
from melodeon.core.launch import Launch
from melodeon.runtime import state, wrapping
from melodeon.runtime.beat import Beat, Left
from melodeon.runtime.elastic import Elastic
from melodeon.runtime.engine import Engine
from melodeon.runtime.exchange import Exchange
from melodeon.runtime.feed import Feed
from melodeon.runtime.finite import FiniteCheck
from melodeon.runtime.group import Group
from melodeon.runtime.hybrid import Batches, scaled
from melodeon.runtime.journal import Journal
from melodeon.runtime.keeper import Keeper, Schedule
from melodeon.runtime.limits import Limits
from melodeon.runtime.link import Link
from melodeon.runtime.loader import Loader, capture_demand
from melodeon.runtime.metrics import Metrics
from melodeon.runtime.settings import Settings
from melodeon.runtime.watch import Watch


class Course:
    """What goes on behind a `Job`."""

    def __init__(
        self,
        settings: Settings,
        launch: Launch,
        engine: Engine,
        journal: Journal,
        facts: Mapping[str, Value],
        link: Link | None = None,
    ) -> None:
        self.settings = settings
        self.group = group = engine.group
        self.assignment = engine.assignment
        self.ranks = engine.assignment.ranks_of(group.rank)
        self.broken = False
        """An error ended the loop: nothing may be exchanged any more."""
        self.parted = False
        """The job goes on without this worker, which is ending."""
        self.launch = launch
        self.engine = engine
        self.journal = journal
        self.facts = dict(facts)
        self.batches = Batches(launch)
        self.members: tuple[int, ...] = ()
        """The numbers of the view's workers, in the order of their ranks; empty where views never change."""
        self.parts = state.Parts()
        self.loaders: list[Loader] = []
        self.elastic = None if link is None else Elastic(self, link, Path(journal.folder), launch.host)
        self.metrics = Metrics(group, settings.virtual_workers, settings.log_every, journal.metrics)
        self.limits = Limits(launch, self.metrics)
        schedule = Schedule(receipt_every=settings.receipt_every, every_step=launch.record_states)
        self.keeper = Keeper(group, journal, schedule, self.capture)
        # Where views change, all workers must hear of a bad loss in its own step, however many they are then.
        may_lag = group.size == 1 and link is None and engine.device.type == "cuda"
        self._finite = FiniteCheck(settings.nan, may_lag=may_lag)
        signals = None if self.elastic is None else self.elastic.signals
        self.beat = Beat(engine, self.ranks, self._finite, skip=settings.nan == "skip", signals=signals)
        self.beat.before_commit = self._before_commit
        self._strangers: RemovableHandle | None = None
        self.epoch = 0
        self._asked_epochs = 0
        """As the script says."""
        self._num_epochs: int | None = None
        """And as the launcher allows; None: the script has not said yet."""
        self.lengths = (0, 0)  # steps in all and in an epoch, as far as they are known before
        self.prepared = False
        self.in_epochs = False
        self._pass: Loader | None = None
        self._unsettled: Loader | None = None
        """The loader whose loop was left after a complete step that has not been counted yet."""
        self._left_inside: int | None = None
        """The virtual worker in whose turn the loop was left, where that was the middle of a step."""
        self._stopped_in_pass = False
        self._begun: tuple[int, int] | None = None
        """The loader of the newest pass, and where that began."""
        self._begun_elsewhere: tuple[int, int] | None = None
        """The same of where the state comes from: what a pass draws at its start is drawn for that one."""
        self._finished_at: int | None = None
        self._digest: str | None = None
        self._closed = False

    # -- asked by many -------------------------------------------------------------------------------------------------

    @property
    def virtual_workers(self) -> int:
        """V: the number of virtual workers, which defines the result."""
        return self.settings.virtual_workers

    @property
    def step(self) -> int:
        """Steps done: counted as soon as the update begins."""
        return self.beat.step + self.beat.updating

    @property
    def committed(self) -> bool:
        """Whether the step's update is done."""
        return self.beat.turn is None or self.beat.updating

    @property
    def num_workers(self) -> int:
        """How many workers share the job now."""
        return self.group.size

    @property
    def keeps_checkpoints(self) -> bool:
        """Whether `job.checkpoint(...)` was called, or the launcher keeps some."""
        return self.keeper.folder is not None

    # -- passes over a loader ----------------------------------------------------------------------------------------

    def epochs(self, count: int) -> Iterator[int]:
        """The epochs that are left of `count`, or of the fewer that the launcher allows."""
        self._asked_epochs = count
        self._num_epochs = count = self.limits.num_epochs(count)
        self._prepare(count)
        self.in_epochs = True
        try:
            while self.epoch < count and not self.stopping:
                yield self.epoch
                self.epoch += 1  # first: what a `break` left open is stored now, and goes on with the next epoch
                self.settle()
                if self.epoch < count and not self.stopping:
                    self.limits.tell(self.journal, over=False)
        finally:
            self.in_epochs = False
        self._finish(max(self.epoch - 1, 0))  # the loop has counted one beyond the last

    @property
    def stopping(self) -> bool:
        """Whether the job has done all that the launcher wants, or was told to stop."""
        return self.limits.over(self.beat.step) or (self.elastic is not None and self.elastic.stopping)

    def begin_pass(self, loader: Loader) -> int:
        """A loader's iteration begins; returns the epoch."""
        if not self.in_epochs:
            raise UsageError(
                "the loader was iterated outside job.epochs(...): write `for epoch in job.epochs(n): for batch in "
                "loader:`"
            )
        if self._pass is not None:
            raise UsageError(
                "two loaders of one job were iterated at once: finish one loop before the next, or join the datasets"
            )
        self.settle()
        self._pass = loader
        loader.enter_epoch(self.epoch)
        if self._num_epochs is not None:
            loader.source.stop = loader.plan.cursor(self._num_epochs)
        place, elsewhere = (loader.number, loader.cursor), self._begun_elsewhere
        self._begun, self._begun_elsewhere = place, None
        if place != elsewhere:
            self.engine.begin_pass(at_start=loader.cursor == loader.plan.cursor(self.epoch))
        return self.epoch

    def leave_early(self, loader: Loader) -> None:
        """The loop was left by `break` or by an error: which cannot be seen here, so nothing is exchanged yet."""
        turn, self._pass = self.beat.turn, None
        left = self.beat.leave_early()
        if left is Left.COMPLETE:
            self._unsettled = loader
            return
        self.metrics.forget(self.beat.step)
        if left is Left.INSIDE and turn is not None:
            self._left_inside = turn.rank

    def settle(self) -> None:
        """The script goes on after a `break`: the step it was in must be complete, or not begun."""
        if self._left_inside is not None:
            raise UsageError(
                f"the loop was left inside step {self.beat.step}, at virtual worker {self._left_inside}, where other "
                "workers may not stand: leave it after optimizer.step() and under `if job.committed:`, or before the "
                "step's first job.backward"
            )
        loader, self._unsettled = self._unsettled, None
        if loader is not None:
            self.boundary(loader)
            if self.elastic is not None:
                self.elastic.keep_up()
                self.elastic.run_on()
            self.engine.outside(self.beat.step)

    def keep_up(self) -> None:
        """Before a step, and before a pass ends: be in the newest view."""
        if unused := self.batches.unused():
            self.journal.note(unused, warning=True)
        if self.elastic is not None:
            self.elastic.keep_up()
            self.metrics.forget(self.beat.step)  # what was said in it before it was given up
        elif self.batches.due(self.beat.step) is not None:
            self.rebatch()

    def rebatch(self) -> None:
        """Go on with another batch factor, in the same view."""
        factor = self.batches.due(self.beat.step)
        assert factor is not None, "it was due"
        exchange = self.group.call(self.engine.exchange_opener(self.group, scaled(self.assignment, factor)))
        self.batches.running = factor
        self._seat(exchange)

    def drop(self) -> None:
        """A step was given up: run it again in the next view."""
        assert self.elastic is not None, "only where views change is a step given up"
        self.elastic.drop()

    def boundary(self, loader: Loader) -> None:
        """A step is complete: count it, and do what is due."""
        loader.advance()
        if self.batches.committed(self.beat.step) and self.group.rank == 0:
            self.batches.tell(self.journal)
        self.beat.advance()
        if self.elastic is not None:
            self.elastic.boundary(loader.number)
        else:
            self.finish_boundary(loader.number, apart=self.apart)
        self.journal.step(self.beat.step, self.epoch, dict(self.metrics.latest))

    @property
    def apart(self) -> bool:
        """Whether the script is in no pass: the loop was left by `break`."""
        return self._pass is None

    def finish_boundary(self, number: int, *, apart: bool) -> None:
        """What a step's end asks of all workers together; done again if somebody is lost meanwhile. `apart`: the loop
        was left by `break` before it, here or, for a newcomer, where its state comes from.
        """
        loader = self.loaders[number]
        self._stopped_in_pass = self.stopping and not apart  # here: some copy a step that others made
        self.metrics.boundary(self.beat.step)
        end_of_epoch = loader.cursor == loader.plan.cursor(self.epoch + 1)
        if end_of_epoch:
            self.engine.outside(self.beat.step)
        ends = end_of_epoch and self._num_epochs is not None and self.epoch + 1 >= self._num_epochs
        self.keeper.boundary(
            self.beat.step, end_of_epoch=end_of_epoch, last=self.stopping or ends, stopped=self.stopping
        )
        if self.elastic is not None and (end_of_epoch or self.stopping or apart):
            self.group.barrier()  # nobody leaves the pass before everybody has done this much
            failpoint("boundary.left")
        if self.launch.scan and self.beat.watch is not None:
            self.beat.watch.write_scan(self.journal.folder / "scan.json")

    def end_pass(self) -> None:
        """A loader's iteration is over."""
        self._pass = None
        if self.elastic is not None:
            self.elastic.run_on()
        self.engine.outside(self.beat.step)

    # -- state -------------------------------------------------------------------------------------------------------

    def capture(self) -> dict[str, Any]:
        """Everything that the next step depends on, sharing memory with the user's objects."""
        self._finite.catch_up()
        return {
            "step": self.beat.step,
            "epoch": self.epoch,
            "cursors": {str(loader.number): loader.cursor for loader in self.loaders},
            **state.capture(self.parts),
            **self.engine.capture(),
            **self.batches.capture(),
            **self.limits.capture(),
            **capture_demand(self.loaders),
        }

    def stands_elsewhere(self, captured: Mapping[str, Any]) -> bool:
        """Whether the script is inside another epoch than the captured state, where it cannot go on from it."""
        return self.in_epochs and int(captured["epoch"]) != self.epoch

    def restore(self, captured: Mapping[str, Any]) -> None:
        """Go on from a captured state."""
        state.restore(self.parts, captured)
        self.beat.step, self.epoch = int(captured["step"]), int(captured["epoch"])
        for loader in self.loaders:
            loader.cursor = int(captured["cursors"].get(str(loader.number), 0))
            if loader.book is not None:
                loader.restore(captured["demand"][str(loader.number)])
        self.batches.restore(captured, self.beat.step)
        self.limits.restore(captured)
        self.engine.restore(captured, self.beat.step)

    def capture_end(self) -> dict[str, Any]:
        """What a newcomer must know beside the state, since the script may have gone on from the last boundary."""
        return {"digested": self.keeper.agreed, "stopped_in_pass": self._stopped_in_pass, "begun": self._begun}

    def restore_end(self, captured: Mapping[str, Any]) -> None:
        """Go on from what `capture_end` gave."""
        self.keeper.adopt(captured["digested"])
        self._stopped_in_pass = bool(captured["stopped_in_pass"])
        self._begun_elsewhere = None if captured["begun"] is None else (captured["begun"][0], captured["begun"][1])

    def resume(self, group: Group) -> None:
        """Begin with the newest good checkpoint, where the script keeps some."""
        self.keeper.group = group
        if self.launch.resume and (found := self.keeper.find()) is not None:
            self.restore(found.state)
            self.keeper.check_restored(found)
            if group.rank == 0:
                self.journal.note(f"resumed from {found.path} at step {self.beat.step}", main=True)

    def reseat(self, group: Group, assignment: Assignment, exchange: Exchange) -> None:
        """Go on as a worker of another view."""
        self.group = self.metrics.group = self.keeper.group = group
        self.assignment = assignment
        self.journal.seat(main=group.rank == 0)
        if group.rank == 0:
            self.batches.write(self.journal.folder)  # the one before may have been lost too early
        self._seat(exchange)

    def _seat(self, exchange: Exchange) -> None:
        """Run this worker's share of the virtual workers, of which there may be several times V."""
        seats = scaled(self.assignment, self.batches.running)
        self.ranks = seats.ranks_of(self.group.rank)
        self.engine.reseat(self.group, seats, exchange)
        self.beat.reseat(self.ranks)
        self._seat_loaders()

    def _seat_loaders(self) -> None:
        members = self.members or range(self.num_workers)
        counts = dict(zip(members, self.assignment.counts, strict=True))
        for loader in self.loaders:
            loader.seat(members[self.group.rank], counts)
            loader.reassign()

    def store_on_request(self) -> None:
        """Somebody asked for a checkpoint from outside."""
        if not self.keeps_checkpoints:
            return  # the answer was no
        self.keeper.store_now(self.beat.step, {})
        self.keeper.wait()
        self.group.barrier()  # whoever answers, it is on the disk

    def close(self) -> None:
        """Finish what a `break` left open, end loader processes and threads; the script's end does it too."""
        if self.prepared and not self.broken and not self.parted:
            if self._finished_at != self.step:
                self.settle()
                self._finish(self.epoch)
            if self.elastic is not None and not self._closed:
                self.elastic.done(self._digest)
        self._closed = True
        for loader in self.loaders:
            loader.close()
        if self.beat.watch is not None:
            self.beat.watch.close()
        if self._strangers is not None:
            self._strangers.remove()
        self.engine.close()
        self.journal.close(failed=self.broken)

    # -- inside ------------------------------------------------------------------------------------------------------

    def _prepare(self, num_epochs: int) -> None:
        self.lengths = self.limits.lengths(num_epochs, [loader.plan.steps_per_epoch for loader in self.loaders])
        if self.elastic is not None:
            self.elastic.tell_lengths()
        if self.prepared:
            return
        wrapping.check_parts(self.parts)
        if self.elastic is None:
            wrapping.check_same_model(self.parts.models, self.group)
        self.prepared = True
        self._prepare_batches()
        self.keeper.keep_for(self.launch)
        facts = {**self.settings.facts(), **self.facts, **self.batches.facts(), **wrapping.describe(self.parts)}
        # No fact of the definition, since a run may be resumed for more; yet all must leave their loops at one step.
        alike = {**facts, "job.epochs": self._asked_epochs}
        if self.elastic is None:
            wrapping.check_same_definition(alike, self.group)
        self.engine.prepare(self.parts)
        self.keeper.definition = Definition(facts)
        self.journal.define(self.keeper.definition)
        self.beat.watch = Watch.make(self.launch, self.journal.folder, self.parts.models)
        self._strangers = wrapping.refuse_strangers(
            self.parts, lambda: self.beat.turn is not None, lambda: self.committed
        )
        if self.elastic is not None:
            self.elastic.join(alike)
        else:
            self.resume(self.group)
            self._seat_loaders()
        step, (total, per_epoch) = self.beat.step, self.lengths
        self.journal.event("begin", step=step, total_steps=total, steps_per_epoch=per_epoch)

    def _before_commit(self) -> Callable[[], None] | None:
        """What the workers must learn from each other before a step's update."""
        used = None if self._pass is None else self._pass.gather_used(self.group)
        width = self.engine.assignment.virtual_workers  # with another batch factor not V, nor in the history yet
        return self.limits.gather(self.group, self.beat.step, width, also=used)

    def _prepare_batches(self) -> None:
        batches = self.batches
        batches.check(
            order=self.settings.order,
            engine=self.launch.engine,
            loaders=[(loader.plan.uneven, isinstance(loader.source, Feed)) for loader in self.loaders],
        )
        if batches.allowed:
            self.metrics.width = lambda step: batches.width(step, self.virtual_workers)
            for optimizer in self.parts.optimizers:
                batches.follow(optimizer, lambda: None if self.beat.turn is None else self.beat.step)

    def _finish(self, epoch: int) -> None:
        self._finished_at = self.beat.step
        self.limits.tell(self.journal, over=True)
        if self.elastic is not None:
            self.elastic.finish()
        else:
            self.finish_together()
        self.journal.event("step", step=self.beat.step, epoch=epoch, metrics=dict(self.metrics.latest))
        self.journal.event("end", step=self.beat.step, digest=self._digest, **self.limits.capture())

    def finish_together(self) -> None:
        """What the end of the training asks of all workers together."""
        self.metrics.flush(self.beat.step)
        # Stopped by the launcher, the script has since run the end of an epoch that may not be over: the state of the
        # last boundary is the one to go on from.
        self._digest = self.keeper.finish(self.beat.step, store=not self._stopped_in_pass)
