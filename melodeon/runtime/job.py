"""The training loop as one job: what the five changed lines call, and the beat behind it.

    for epoch in job.epochs(n):            resume, if there is something to resume
        for batch in loader:               enter(rank): streams, buffers
            job.backward(loss)             fold this virtual worker's gradients
            optimizer.step()               for the last local one: finish the exchange, agree, update - the commit
                                           leave(rank); after the last one boundary(): digest, checkpoint, metrics

Until the commit nothing of the job's state has changed, so a step can be dropped and run again at any point before it.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch.utils.data import Dataset
from torch.utils.hooks import RemovableHandle

from melodeon.core.assignment import Assignment
from melodeon.core.definition import Definition, Value
from melodeon.core.errors import UsageError
from melodeon.core.launch import Launch
from melodeon.core.sampling import EpochPlan, Uneven
from melodeon.runtime import gates, state, wrapping
from melodeon.runtime.beat import Beat, Left
from melodeon.runtime.elastic import Elastic
from melodeon.runtime.engine import Engine
from melodeon.runtime.exchange import Exchange
from melodeon.runtime.feed import Feed, dataset_length
from melodeon.runtime.finite import FiniteCheck
from melodeon.runtime.group import Group
from melodeon.runtime.hybrid import Batches, scaled
from melodeon.runtime.journal import Journal
from melodeon.runtime.keeper import Keeper, Schedule
from melodeon.runtime.link import Link
from melodeon.runtime.loader import Loader
from melodeon.runtime.metrics import Metrics
from melodeon.runtime.partitioned import Partitioned
from melodeon.runtime.settings import Settings
from melodeon.runtime.watch import Watch

T = TypeVar("T")

ONCE_PER_STEP = ("update", "update_parameters", "step")
"""Methods of registered objects that take effect once per step."""


class Job:
    """One elastic training job, seen from one worker. Made by `melodeon.join()`."""

    def __init__(
        self,
        settings: Settings,
        launch: Launch,
        group: Group,
        assignment: Assignment,
        engine: Engine,
        journal: Journal,
        facts: Mapping[str, Value],
        link: Link | None = None,
    ) -> None:
        self.settings = settings
        self.assignment = assignment
        self.ranks = assignment.ranks_of(group.rank)
        self.device = engine.device
        self.broken = False
        """An error ended the loop: nothing may be exchanged any more."""
        self.parted = False
        """The job goes on without this worker, which is ending."""
        self._launch = launch
        self._group = group
        self.engine = engine
        self.journal = journal
        self._facts = dict(facts)
        self.batches = Batches(launch)
        self.members: tuple[int, ...] = ()
        """The numbers of the view's workers, in the order of their ranks; empty where views never change."""
        self.parts = state.Parts()
        self._loaders: list[Loader] = []
        self._elastic = None if link is None else Elastic(self, link, Path(journal.folder), launch.host)
        self._metrics = Metrics(group, settings.virtual_workers, settings.log_every, journal.metrics)
        schedule = Schedule(receipt_every=settings.receipt_every, every_step=launch.record_states)
        self._keeper = Keeper(group, journal, schedule, self.capture)
        # Where views change, all workers must hear of a bad loss in its own step, however many they are then.
        alone = group.size == 1 and link is None
        self._finite = FiniteCheck(settings.nan, may_lag=alone and engine.device.type == "cuda")
        signals = None if self._elastic is None else self._elastic.signals
        self.beat = Beat(engine, self.ranks, self._finite, skip=settings.nan == "skip", signals=signals)
        self.beat.before_commit = lambda: None if self._pass is None else self._pass.gather_used(self._group)
        self._strangers: RemovableHandle | None = None
        self._epoch = 0
        self._num_epochs: int | None = None
        self._prepared = False
        self._in_epochs = False
        self._pass: Loader | None = None
        self._unsettled: Loader | None = None
        """The loader whose loop was left after a complete step that has not been counted yet."""
        self._left_inside: int | None = None
        """The virtual worker in whose turn the loop was left, where that was the middle of a step."""
        self._stopped_in_pass = False
        self._finished_at: int | None = None
        self._digest: str | None = None
        self._closed = False

    # -- what a script may ask ---------------------------------------------------------------------------------------

    @property
    def virtual_workers(self) -> int:
        """V: the number of virtual workers, which defines the result."""
        return self.settings.virtual_workers

    @property
    def batch_factor(self) -> int:
        """How many times the first total batch a step has now: 1, unless `job.hybrid()` was called and it was changed.

        Set it between epochs, to a value that follows from the epoch's number, so that a resumed job sets it alike.
        """
        return self.batches.running

    @batch_factor.setter
    def batch_factor(self, factor: int) -> None:
        if self.beat.turn is not None:
            raise UsageError(
                f"job.batch_factor = {factor} was set inside a step: set it between epochs, before the loop over the "
                "loader"
            )
        self.batches.wish(factor)

    @property
    def num_workers(self) -> int:
        """How many workers share the job now; nothing of the result depends on it."""
        return self._group.size

    @property
    def worker(self) -> int:
        """The index of this worker."""
        return self._group.rank

    @property
    def step(self) -> int:
        """Steps done: counted as soon as the update begins."""
        return self.beat.step + self.beat.updating

    @property
    def epoch(self) -> int:
        """The epoch in progress, from 0."""
        return self._epoch

    @property
    def virtual_rank(self) -> int | None:
        """The virtual worker whose batch is out, None outside the steps."""
        return None if self.beat.turn is None else self.beat.turn.rank

    @property
    def committed(self) -> bool:
        """Whether the step's update is done: code that is to run once per step asks this."""
        return self.beat.turn is None or self.beat.updating

    @property
    def metrics(self) -> Mapping[str, float | int]:
        """The newest means of what was logged."""
        return self._metrics.latest

    @property
    def run_dir(self) -> str:
        """The run's folder."""
        return str(self.journal.folder)

    @property
    def keeps_checkpoints(self) -> bool:
        """Whether `job.checkpoint(...)` was called."""
        return self._keeper.folder is not None

    # -- setting up --------------------------------------------------------------------------------------------------

    def wrap(self, *owners: T) -> Any:
        """Make models, optimizers, schedulers and scalers the job's; returns the same objects, one or a tuple."""
        if not owners:
            raise UsageError(
                "job.wrap() was called without objects: pass the model, the optimizer and what goes with them"
            )
        if self._prepared:
            raise UsageError(
                "job.wrap was called after the training loop began: wrap everything before job.epochs(...)"
            )
        wrapped = tuple(self._wrap_one(owner) for owner in owners)
        return wrapped[0] if len(wrapped) == 1 else wrapped

    def _wrap_one(self, owner: Any) -> Any:
        kind = wrapping.add(self.parts, owner)
        if kind == "model":
            model = self.engine.adopt(owner)
            self.parts.models[-1] = model
            gates.gate_zero_grad(model, self.beat)
            return model
        if kind == "optimizer":
            gates.gate_optimizer(owner, self.beat)
        elif kind == "scaler":
            gates.gate_scaler(owner, self.beat)
        else:
            gates.gate_methods(owner, ["step"], self.beat)
        return owner

    def register(self, name: str, owner: T, *, once: Iterable[str] = ONCE_PER_STEP) -> T:
        """Keep another object's state with the job's; its methods named in `once` take effect once per step."""
        state.check_registered(name, owner, self.parts.registered)
        if self._prepared:
            raise UsageError(
                f"job.register({name!r}, ...) was called after the training loop began: register it before"
            )
        self.parts.registered[name] = owner  # type: ignore[assignment]  # checked above
        gates.gate_methods(owner, once, self.beat)
        return owner

    def loader(
        self,
        dataset: Dataset[Any],
        batch_size: int,
        *,
        shuffle: bool = False,
        drop_last: bool = False,
        uneven: Uneven | None = None,
        **options: Any,
    ) -> Loader:
        """Make this worker's part of the dataset; `batch_size` is per virtual worker.

        `uneven` says what becomes of samples that do not divide: `exact` (with order tree the default: each counts
        once), `pad` (as DistributedSampler does; with order ddp the default) or `drop`. Other options are
        DataLoader's: num_workers, collate_fn, pin_memory, prefetch_factor, timeout, worker_init_fn,
        multiprocessing_context.
        """
        if self._prepared:
            raise UsageError("job.loader was called after the training loop began: make loaders before job.epochs(...)")
        if uneven is None:
            uneven = "drop" if drop_last else "exact" if self.settings.order == "tree" else "pad"
        book = None
        if isinstance(dataset, Partitioned):
            plan = dataset.plan(self.virtual_workers, batch_size, uneven)
            book = dataset.book(seed=self.settings.seed, shuffle=shuffle)
            options |= {} if book is None else {"grants": book}
        else:
            plan = EpochPlan(dataset_length(dataset), self.virtual_workers, batch_size, uneven)
        source = self.engine.source(dataset, plan, self.settings.seed, shuffle, options)
        number = len(self._loaders)
        self._loaders.append(Loader(self, plan, source, number, book))
        self._facts |= {
            f"loader{number}": f"{plan.num_samples} samples, batches of {batch_size}, {plan.uneven}"
            + (", shuffled" if shuffle else "")
            + (f", {dataset.describe()}" if isinstance(dataset, Partitioned) else "")
        }
        return self._loaders[-1]

    def checkpoint(self, folder: str, *, every: int, keep: int = 3, strict: bool = True) -> None:
        """Store the state every so many steps, and go on from the newest good one when the script starts again."""
        if self._prepared:
            raise UsageError("job.checkpoint was called after the training loop began: call it before job.epochs(...)")
        self._keeper.keep(self._launch.checkpoint_dir or folder, every, keep, strict=strict)

    def hybrid(self, *, ramp_steps: int = 100, history: Iterable[tuple[int, int]] | None = None) -> None:
        """Agree that the total batch may change during the run, which changes the result.

        It is multiplied by a factor that `melodeon run --hybrid` decides when the job grows, or the script with
        `job.batch_factor`, or `history` names: `[(step, factor), ...]`. Learning rates follow linearly over
        `ramp_steps`.
        """
        if self._prepared:
            raise UsageError("job.hybrid was called after the training loop began: call it before job.epochs(...)")
        self.batches.allow(ramp_steps, history)

    # -- the loop ----------------------------------------------------------------------------------------------------

    def epochs(self, count: int) -> Iterator[int]:
        """The epochs that are left of `count`: all of them, or those after the checkpoint that the job resumes from."""
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise UsageError(f"job.epochs({count!r}) needs a whole number of epochs")
        self._prepare(count)
        self._in_epochs = True
        try:
            while self._epoch < count and not self.stopping:
                yield self._epoch
                self._epoch += 1  # first: what a `break` left open is stored now, and goes on with the next epoch
                self._settle()
        finally:
            self._in_epochs = False
        self._finish()

    def backward(self, loss: torch.Tensor, *, more: bool = False) -> None:
        """Run the backward pass of this virtual worker's loss; `more=True` if another one of the same batch follows."""
        self.beat.backward(loss, more=more)

    def clip_grad_norm_(
        self, parameters: Iterable[torch.Tensor] | float, max_norm: float | None = None, **options: Any
    ) -> torch.Tensor | None:
        """Clip the job's gradients by their global norm, once per step.

        Returns the norm for the virtual worker whose turn ends the step, else None. `clip_grad_norm_(1.0)` takes all
        parameters.
        """
        if max_norm is None:
            if not isinstance(parameters, int | float):
                raise UsageError("job.clip_grad_norm_ needs max_norm: clip_grad_norm_(model.parameters(), 1.0)")
            max_norm = float(parameters)
            parameters = [param for _, param in state.named_parameters(self.parts.models)]
        assert not isinstance(parameters, int | float)
        if not self.beat.reach_update("job.clip_grad_norm_()"):
            return None
        return torch.nn.utils.clip_grad_norm_(parameters, max_norm, **options)

    def log(self, **values: torch.Tensor | float | None) -> None:
        """Log values of this virtual worker; their mean over all virtual workers goes to metrics.jsonl and the
        display.
        """
        turn = self.beat.turn
        if turn is None:
            raise UsageError(
                "job.log was called outside a step: log values of a batch inside the loop over job.loader(...)"
            )
        self._metrics.add(self.beat.step, self._epoch, turn.rank, turn.weight, values)

    def save(self) -> None:
        """Store a checkpoint now, between epochs, whatever the schedule."""
        if self.beat.turn is not None:
            raise UsageError(
                "job.save was called inside a step: call it between epochs, or use job.checkpoint(every=...)"
            )
        self._settle()
        ended = all(loader.cursor >= loader.plan.cursor(self._epoch + 1) for loader in self._loaders)
        # A job that goes on from here does not run the end of this epoch again.
        self._keeper.store_now(self.beat.step, {"epoch": self._epoch + 1} if self._in_epochs and ended else {})

    # -- passes over a loader ----------------------------------------------------------------------------------------

    @property
    def stopping(self) -> bool:
        """Whether the job has done all the steps that the launcher allows, or was told to stop."""
        if self._elastic is not None and self._elastic.stopping:
            return True
        limit = 1 if self._launch.scan else self._launch.max_steps
        return limit is not None and self.beat.step >= limit

    def begin_pass(self, loader: Loader) -> int:
        """A loader's iteration begins; returns the epoch."""
        if not self._in_epochs:
            raise UsageError(
                "the loader was iterated outside job.epochs(...): write `for epoch in job.epochs(n): for batch in "
                "loader:`"
            )
        if self._pass is not None:
            raise UsageError(
                "two loaders of one job were iterated at once: finish one loop before the next, or join the datasets"
            )
        self._settle()
        self._pass = loader
        loader.enter_epoch(self._epoch)
        if self._num_epochs is not None:
            loader.source.stop = loader.plan.cursor(self._num_epochs)
        self.engine.begin_pass(at_start=loader.cursor == loader.plan.cursor(self._epoch))
        return self._epoch

    def leave_early(self, loader: Loader) -> None:
        """The loop was left by `break` or by an error: which cannot be seen here, so nothing is exchanged yet."""
        turn, self._pass = self.beat.turn, None
        left = self.beat.leave_early()
        if left is Left.COMPLETE:
            self._unsettled = loader
            return
        self._metrics.forget(self.beat.step)
        if left is Left.INSIDE and turn is not None:
            self._left_inside = turn.rank

    def _settle(self) -> None:
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
            self.engine.outside(self.beat.step)

    def keep_up(self) -> None:
        """Before a step, and before a pass ends: be in the newest view."""
        if unused := self.batches.unused():
            self.journal.note(unused)
        if self._elastic is not None:
            self._elastic.keep_up()
        elif self.batches.due(self.beat.step) is not None:
            self.rebatch()

    def rebatch(self) -> None:
        """Go on with another batch factor, in the same view."""
        factor = self.batches.due(self.beat.step)
        assert factor is not None, "it was due"
        exchange = self._group.call(self.engine.open_exchange, self._group, scaled(self.assignment, factor))
        self.batches.running = factor
        self._seat(exchange)

    def drop(self, loader: Loader) -> None:  # noqa: ARG002
        """A step was given up: run it again in the next view."""
        assert self._elastic is not None, "only where views change is a step given up"
        self._elastic.drop()

    def boundary(self, loader: Loader) -> None:
        """A step is complete: count it, and do what is due."""
        loader.advance()
        if self.batches.committed(self.beat.step) and self._group.rank == 0:
            self.batches.tell(self.journal)
        self.beat.advance()
        self._stopped_in_pass = self.stopping and self._pass is not None
        if self._elastic is not None:
            self._elastic.boundary(loader.number)
        else:
            self.finish_boundary(loader.number)
        self.journal.step(self.beat.step, self._epoch, dict(self._metrics.latest))

    def finish_boundary(self, number: int) -> None:
        """What a step's end asks of all workers together; done again if somebody is lost meanwhile."""
        loader = self._loaders[number]
        self._metrics.boundary(self.beat.step)
        end_of_epoch = loader.cursor == loader.plan.cursor(self._epoch + 1)
        if end_of_epoch:
            self.engine.outside(self.beat.step)
        ends = end_of_epoch and self._num_epochs is not None and self._epoch + 1 >= self._num_epochs
        self._keeper.boundary(
            self.beat.step, end_of_epoch=end_of_epoch, last=self.stopping or ends, stopped=self.stopping
        )
        if end_of_epoch and self._elastic is not None:
            self._group.barrier()  # nobody runs on beyond the epoch before everybody has its last step
        if self._launch.scan and self.beat.watch is not None:
            self.beat.watch.write_scan(self.journal.folder / "scan.json")

    def end_pass(self) -> None:
        """A loader's iteration is over."""
        self._pass = None
        self.engine.outside(self.beat.step)

    # -- state -------------------------------------------------------------------------------------------------------

    def capture(self) -> dict[str, Any]:
        """Everything that the next step depends on, sharing memory with the user's objects."""
        self._finite.catch_up()
        return {
            "step": self.beat.step,
            "epoch": self._epoch,
            "cursors": {str(loader.number): loader.cursor for loader in self._loaders},
            **state.capture(self.parts),
            **self.engine.capture(),
            **self.batches.capture(),
            **({"demand": demand} if (demand := self._capture_demand()) else {}),
        }

    def _capture_demand(self) -> dict[str, Any]:
        found = {str(loader.number): loader.capture() for loader in self._loaders}
        return {number: captured for number, captured in found.items() if captured is not None}

    def stands_elsewhere(self, captured: Mapping[str, Any]) -> bool:
        """Whether the script is inside another epoch than the captured state, where it cannot go on from it."""
        return self._in_epochs and int(captured["epoch"]) != self._epoch

    def restore(self, captured: Mapping[str, Any]) -> None:
        """Go on from a captured state."""
        state.restore(self.parts, captured)
        self.beat.step, self._epoch = int(captured["step"]), int(captured["epoch"])
        for loader in self._loaders:
            loader.cursor = int(captured["cursors"].get(str(loader.number), 0))
            if loader.book is not None:
                loader.restore(captured["demand"][str(loader.number)])
        self.batches.restore(captured.get("batches"), self.beat.step)
        self.engine.restore(captured, self.beat.step)

    def resume(self, group: Group) -> None:
        """Begin with the newest good checkpoint, where the script keeps some."""
        self._keeper.group = group
        if self._launch.resume and (found := self._keeper.find()) is not None:
            self.restore(found.state)
            self._keeper.check_restored(found)
            if group.rank == 0:
                self.journal.note(f"resumed from {found.path} at step {self.beat.step}", main=True)

    def reseat(self, group: Group, assignment: Assignment, exchange: Exchange) -> None:
        """Go on as a worker of another view."""
        self._group = self._metrics.group = self._keeper.group = group
        self.assignment = assignment
        self.journal.seat(main=group.rank == 0)
        if group.rank == 0:
            self.batches.write(self.journal.folder)  # the one before may have been lost too early
        self._seat(exchange)

    def _seat(self, exchange: Exchange) -> None:
        """Run this worker's share of the virtual workers, of which there may be several times V."""
        seats = scaled(self.assignment, self.batches.running)
        self.ranks = seats.ranks_of(self._group.rank)
        self.engine.reseat(self._group, seats, exchange)
        self.beat.reseat(self.ranks)
        self._seat_loaders()

    def _seat_loaders(self) -> None:
        members = self.members or range(self.num_workers)
        counts = dict(zip(members, self.assignment.counts, strict=True))
        for loader in self._loaders:
            loader.seat(members[self._group.rank], counts)
            loader.reassign()

    def flush_metrics(self) -> None:
        """Exchange what was logged and not told yet."""
        self._metrics.flush()

    def store_on_request(self) -> None:
        """Somebody asked for a checkpoint from outside."""
        if not self.keeps_checkpoints:
            return  # the answer was no
        self._keeper.store_now(self.beat.step, {})
        self._keeper.wait()
        self._group.barrier()  # whoever answers, it is on the disk

    def close(self) -> None:
        """Finish what a `break` left open, end loader processes and threads; the script's end does it too."""
        if self._prepared and not self.broken and not self.parted:
            if self._finished_at != self.step:
                self._settle()
                self._finish()
            if self._elastic is not None and not self._closed:
                self._elastic.done(self._digest)
        self._closed = True
        for loader in self._loaders:
            loader.close()
        if self.beat.watch is not None:
            self.beat.watch.close()
        if self._strangers is not None:
            self._strangers.remove()
        self.engine.close()
        self.journal.close(failed=self.broken)

    # -- inside ------------------------------------------------------------------------------------------------------

    def _prepare(self, num_epochs: int) -> None:
        self._num_epochs = num_epochs
        if self._prepared:
            return
        wrapping.check_parts(self.parts)
        if self._elastic is None:
            wrapping.check_same_model(self.parts.models, self._group)
        self._prepared = True
        self._prepare_batches()
        facts = {**self.settings.facts(), **self._facts, **self.batches.facts(), **wrapping.describe(self.parts)}
        self.engine.prepare(self.parts)
        self._keeper.definition = Definition(facts)
        self.journal.define(self._keeper.definition)
        self.beat.watch = Watch.make(self._launch, self.journal.folder, self.parts.models)
        self._strangers = wrapping.refuse_strangers(
            self.parts, lambda: self.beat.turn is not None, lambda: self.committed
        )
        if self._elastic is not None:
            self._elastic.join(facts)
        else:
            self.resume(self._group)
            self._seat_loaders()
        steps = [loader.plan.steps_per_epoch for loader in self._loaders]
        total = num_epochs * max(steps, default=0)
        limit = self._launch.max_steps
        self.journal.event(
            "begin",
            step=self.beat.step,
            total_steps=min(total, limit) if limit is not None else total,
            steps_per_epoch=max(steps, default=0),
        )

    def _prepare_batches(self) -> None:
        batches = self.batches
        batches.check(
            order=self.settings.order,
            engine=self._launch.engine,
            loaders=[(loader.plan.uneven, isinstance(loader.source, Feed)) for loader in self._loaders],
        )
        if batches.allowed:
            self._metrics.width = lambda step: batches.width(step, self.virtual_workers)
            for optimizer in self.parts.optimizers:
                batches.follow(optimizer, lambda: None if self.beat.turn is None else self.beat.step)

    def _finish(self) -> None:
        self._finished_at = self.beat.step
        if self._elastic is not None:
            self._elastic.finish()
        else:
            self.finish_together()
        self.journal.event("step", step=self.beat.step, epoch=self._epoch, metrics=dict(self._metrics.latest))
        self.journal.event("end", step=self.beat.step, digest=self._digest)

    def finish_together(self) -> None:
        """What the end of the training asks of all workers together."""
        self._metrics.flush()
        # Stopped by the launcher, the script has since run the end of an epoch that may not be over: the state of the
        # last boundary is the one to go on from.
        self._digest = self._keeper.finish(self.beat.step, store=not self._stopped_in_pass)
