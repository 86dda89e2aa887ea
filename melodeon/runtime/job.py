"""The training loop as one job: what the five changed lines call, and the beat behind it.

    for epoch in job.epochs(n):            resume, if there is something to resume
        for batch in loader:               enter(rank): streams, buffers
            job.backward(loss)             fold this virtual worker's gradients
            optimizer.step()               for the last local one: finish the exchange, agree, update - the commit
                                           leave(rank); after the last one boundary(): digest, checkpoint, metrics

Until the commit nothing of the job's state has changed, so a step can be dropped and run again at any point before it.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
from torch.utils.data import Dataset
from torch.utils.hooks import RemovableHandle

from melodeon.core.assignment import Assignment
from melodeon.core.definition import Definition, Value
from melodeon.core.errors import UsageError
from melodeon.core.launch import Launch
from melodeon.core.sampling import EpochPlan, Uneven
from melodeon.runtime import gates, state, wrapping
from melodeon.runtime.engine import Engine
from melodeon.runtime.feed import dataset_length
from melodeon.runtime.finite import FiniteCheck, NanPolicy
from melodeon.runtime.group import Group
from melodeon.runtime.journal import Journal
from melodeon.runtime.keeper import Keeper, Schedule
from melodeon.runtime.loader import Loader
from melodeon.runtime.metrics import Metrics
from melodeon.runtime.reduce import Header
from melodeon.runtime.watch import Watch

T = TypeVar("T")
Order = Literal["tree", "ddp"]

ONCE_PER_STEP = ("update", "update_parameters", "step")
"""Methods of registered objects that take effect once per step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the script asked for in `melodeon.join(...)`."""

    virtual_workers: int
    seed: int
    order: Order
    nan: NanPolicy
    """What a loss that is not finite does: stop the job, skip the step's update, or nothing."""
    log_every: int
    """Steps between two exchanges of logged values."""
    receipt_every: int | None
    find_unused_parameters: bool
    """With order="ddp": cut buckets as DDP(find_unused_parameters=True) does."""


@dataclass(slots=True)
class Turn:
    """Where the loop stands inside a step: which virtual worker's batch is out, and what was done with it."""

    rank: int
    weight: float
    last: bool
    """Whether it is this worker's last virtual worker of the step."""
    begun: bool = False
    """A backward pass ran."""
    folded: bool = False
    """The final backward pass ran."""
    ended: bool = False
    """The script asked for the update: what it does to buffers and random streams in the rest of the turn is dropped."""
    header: Header | None = None
    """The exchange is finished and this was agreed."""


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
    ) -> None:
        self.settings = settings
        self.assignment = assignment
        self.ranks = assignment.ranks_of(group.rank)
        self.device = engine.device
        self.broken = False
        """An error ended the loop: nothing may be exchanged any more."""
        self._launch = launch
        self._group = group
        self._engine = engine
        self._journal = journal
        self._facts = dict(facts)
        self._parts = state.Parts()
        self._loaders: list[Loader] = []
        self._metrics = Metrics(group, settings.virtual_workers, settings.log_every, journal.metrics)
        schedule = Schedule(receipt_every=settings.receipt_every, every_step=launch.record_states)
        self._keeper = Keeper(group, journal, schedule, self.capture)
        self._watch: Watch | None = None
        self._strangers: RemovableHandle | None = None
        self._step = 0
        self._epoch = 0
        self._num_epochs: int | None = None
        self._prepared = False
        self._in_epochs = False
        self._pass: Loader | None = None
        self._turn: Turn | None = None
        self._unsettled: Loader | None = None
        self._left_inside: int | None = None
        """The virtual worker in whose turn the loop was left, where that was the middle of a step."""
        self._stopped_in_pass = False
        self._finished_at: int | None = None
        self._stepped: set[int] = set()
        self._finite = FiniteCheck(settings.nan, may_lag=group.size == 1 and engine.device.type == "cuda")

    # -- what a script may ask ------------------------------------------------------------------------------------------

    @property
    def virtual_workers(self) -> int:
        """V: the number of virtual workers, which defines the result."""
        return self.settings.virtual_workers

    @property
    def num_workers(self) -> int:
        """How many workers share the job now; nothing of the result depends on it."""
        return self._group.size

    @property
    def worker(self) -> int:
        """This worker's index."""
        return self._group.rank

    @property
    def step(self) -> int:
        """Steps done: counted as soon as the update begins."""
        return self._step + bool(self._stepped)

    @property
    def epoch(self) -> int:
        """The epoch in progress, from 0."""
        return self._epoch

    @property
    def virtual_rank(self) -> int | None:
        """The virtual worker whose batch is out, None outside the steps."""
        return None if self._turn is None else self._turn.rank

    @property
    def committed(self) -> bool:
        """Whether the step's update is done: code that is to run once per step asks this."""
        return self._turn is None or bool(self._stepped)

    @property
    def metrics(self) -> Mapping[str, float | int]:
        """The newest means of what was logged."""
        return self._metrics.latest

    @property
    def run_dir(self) -> str:
        """The run's folder."""
        return str(self._journal.folder)

    # -- setting up -----------------------------------------------------------------------------------------------------

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
        kind = wrapping.add(self._parts, owner)
        if kind == "model":
            model = self._engine.adopt(owner)
            self._parts.models[-1] = model
            gates.gate_zero_grad(model, self)
            return model
        if kind == "optimizer":
            gates.gate_optimizer(owner, self)
        elif kind == "scaler":
            gates.gate_scaler(owner, self)
        else:
            gates.gate_methods(owner, ["step"], self)
        return owner

    def register(self, name: str, owner: T, *, once: Iterable[str] = ONCE_PER_STEP) -> T:
        """Keep another object's state with the job's; its methods named in `once` take effect once per step."""
        state.check_registered(name, owner, self._parts.registered)
        if self._prepared:
            raise UsageError(
                f"job.register({name!r}, ...) was called after the training loop began: register it before"
            )
        self._parts.registered[name] = owner  # type: ignore[assignment]  # checked above
        gates.gate_methods(owner, once, self)
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
        """This worker's part of the dataset; `batch_size` is per virtual worker.

        `uneven` says what becomes of samples that do not divide: `exact` (with order tree the default: each counts once), `pad`
        (as DistributedSampler does; with order ddp the default) or `drop`. Other options are DataLoader's: num_workers,
        collate_fn, pin_memory, prefetch_factor, timeout, worker_init_fn, multiprocessing_context.
        """
        if self._prepared:
            raise UsageError("job.loader was called after the training loop began: make loaders before job.epochs(...)")
        if uneven is None:
            uneven = "drop" if drop_last else "exact" if self.settings.order == "tree" else "pad"
        plan = EpochPlan(dataset_length(dataset), self.virtual_workers, batch_size, uneven)
        source = self._engine.source(dataset, plan, self.settings.seed, shuffle, options)
        number = len(self._loaders)
        self._loaders.append(Loader(self, plan, source, number))
        self._facts |= {
            f"loader{number}": f"{plan.num_samples} samples, batches of {batch_size}, {plan.uneven}"
            + (", shuffled" if shuffle else "")
        }
        return self._loaders[-1]

    def checkpoint(self, folder: str, *, every: int, keep: int = 3, strict: bool = True) -> None:
        """Store the state every so many steps, and go on from the newest good one when the script starts again."""
        if self._prepared:
            raise UsageError("job.checkpoint was called after the training loop began: call it before job.epochs(...)")
        self._keeper.keep(self._launch.checkpoint_dir or folder, every, keep, strict=strict)

    # -- the loop -------------------------------------------------------------------------------------------------------

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
        turn = self._check_backward(loss)
        self._finite.note(loss)
        self._engine.begin_backward(self._step, turn.rank, first=not turn.begun, final=not more)
        turn.begun = True
        if turn.weight != 0.0:  # a batch of padding alone counts for nothing
            self._engine.backward(loss, turn.weight)
        self._engine.end_backward(turn.rank, final=not more)
        turn.folded = not more

    def clip_grad_norm_(
        self, parameters: Iterable[torch.Tensor] | float, max_norm: float | None = None, **options: Any
    ) -> torch.Tensor | None:
        """Clip the job's gradients by their global norm, once per step.

        Returns the norm for the virtual worker whose turn ends the step, else None. `clip_grad_norm_(1.0)` takes all parameters.
        """
        if max_norm is None:
            if not isinstance(parameters, int | float):
                raise UsageError("job.clip_grad_norm_ needs max_norm: clip_grad_norm_(model.parameters(), 1.0)")
            max_norm = float(parameters)
            parameters = [param for _, param in state.named_parameters(self._parts.models)]
        assert not isinstance(parameters, int | float)
        if not self.reach_update("job.clip_grad_norm_()"):
            return None
        return torch.nn.utils.clip_grad_norm_(parameters, max_norm, **options)

    def log(self, **values: torch.Tensor | float | None) -> None:
        """Log values of this virtual worker; their mean over all virtual workers goes to metrics.jsonl and the display."""
        if self._turn is None:
            raise UsageError(
                "job.log was called outside a step: log values of a batch inside the loop over job.loader(...)"
            )
        self._metrics.add(self._step, self._epoch, self._turn.rank, self._turn.weight, values)

    def save(self) -> None:
        """Store a checkpoint now, between epochs, whatever the schedule."""
        if self._turn is not None:
            raise UsageError(
                "job.save was called inside a step: call it between epochs, or use job.checkpoint(every=...)"
            )
        self._settle()
        ended = all(loader.cursor >= loader.plan.cursor(self._epoch + 1) for loader in self._loaders)
        # A job that goes on from here does not run the end of this epoch again.
        self._keeper.store_now(self._step, {"epoch": self._epoch + 1} if self._in_epochs and ended else {})

    # -- gates.Turnstile ------------------------------------------------------------------------------------------------

    def acts_now(self) -> bool:
        """Whether a gated call takes effect now."""
        return self._turn is None or self._turn.last

    def gradients_needed(self) -> bool:
        """Whether gradients of the step in progress must survive a `zero_grad`."""
        return self._turn is not None and not self._stepped

    def reach_update(self, caller: str) -> bool:
        """End this virtual worker's part of the step; for the last one finish the exchange, and True.

        From then on `.grad` is the job's, and buffers and random streams are everybody's.
        """
        turn = self._turn
        if turn is None or turn.header is not None:
            return True
        if not turn.folded:
            raise UsageError(
                f"{caller} was called before job.backward(loss) for virtual worker {turn.rank} of step {self._step}"
            )
        self._end_context(turn)
        if not turn.last:
            return False
        finite = self._finite.verdict(self._step)
        turn.header = self._engine.finish(self._step, finite=finite, skip=self.settings.nan == "skip")
        if not turn.header.finite:
            self._finite.found(self._step)
        if self._watch is not None:
            self._watch.commit(self._step)
        return True

    def begin_update(self, optimizer: torch.optim.Optimizer) -> bool:
        """Note that the optimizer steps; False if the step's update is skipped."""
        if self._turn is None:
            return True
        if id(optimizer) in self._stepped:
            raise UsageError(
                f"{type(optimizer).__name__} stepped twice in step {self._step}: call optimizer.step() once after job.backward(loss)"
            )
        self._stepped.add(id(optimizer))
        header = self._turn.header
        return header is None or header.finite or self.settings.nan != "skip"

    # -- the beat, called by Loader -------------------------------------------------------------------------------------

    @property
    def stopping(self) -> bool:
        """Whether the job has done all the steps that the launcher allows."""
        limit = 1 if self._launch.scan else self._launch.max_steps
        return limit is not None and self._step >= limit

    def begin_pass(self, loader: Loader) -> int:
        """A loader's iteration begins; returns the epoch."""
        if not self._in_epochs:
            raise UsageError(
                "the loader was iterated outside job.epochs(...): write `for epoch in job.epochs(n): for batch in loader:`"
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
        self._engine.begin_pass(at_start=loader.cursor == loader.plan.cursor(self._epoch))
        return self._epoch

    def enter(self, rank: int, weight: float) -> None:
        """A virtual worker's turn begins."""
        if rank == self.ranks[0]:
            self._stepped.clear()
            self._engine.begin_step()
        self._turn = Turn(rank, weight, last=rank == self.ranks[-1])
        self._engine.enter(self._step, rank)
        if self._watch is not None:
            self._watch.enter(self._step, rank)

    def leave(self) -> None:
        """The loop asks for the next batch: this virtual worker's turn is over."""
        turn = self._turn
        assert turn is not None
        if not turn.folded:
            raise UsageError(
                f"no job.backward(loss) came for virtual worker {turn.rank} of step {self._step}: call it in place of loss.backward()"
            )
        if not turn.last:
            self._end_context(turn)
        elif not self._stepped:
            raise UsageError(
                f"step {self._step} ended without optimizer.step(): call it, on a wrapped optimizer, after job.backward(loss)"
            )
        elif self._watch is not None:
            self._watch.leave()
        self._turn = None

    def leave_early(self, loader: Loader) -> None:
        """The loop was left in the middle, by `break` or by an error: which one cannot be seen here, so nothing is exchanged yet."""
        turn, self._turn, self._pass = self._turn, None, None
        if turn is None:
            return
        if self._watch is not None and (not turn.ended or turn.header is not None):
            self._watch.leave()
        if turn.last and self._stepped:
            self._unsettled = loader
        else:
            if turn.begun or turn.rank != self.ranks[0]:
                self._left_inside = turn.rank
            self._stepped.clear()
            self._finite.drop()
            self._engine.reducer.abandon()
            self._metrics.forget(self._step)
            self._engine.outside(self._step)

    def _settle(self) -> None:
        """The script goes on after a `break`: the step it was in must be complete, or not begun."""
        if self._left_inside is not None:
            raise UsageError(
                f"the loop was left inside step {self._step}, at virtual worker {self._left_inside}, where other workers "
                "may not stand: leave it after optimizer.step() and under `if job.committed:`, or before the step's first "
                "job.backward"
            )
        loader, self._unsettled = self._unsettled, None
        if loader is not None:
            self.boundary(loader)
            self._engine.outside(self._step)

    def boundary(self, loader: Loader) -> None:
        """A step is complete: count it, and do what is due."""
        loader.cursor += 1
        self._stepped.clear()
        self._step += 1
        self._stopped_in_pass = self.stopping and self._pass is not None
        self._metrics.boundary(self._step)
        end_of_epoch = loader.cursor == loader.plan.cursor(self._epoch + 1)
        if end_of_epoch:
            self._engine.outside(self._step)
        ends = end_of_epoch and self._num_epochs is not None and self._epoch + 1 >= self._num_epochs
        self._keeper.boundary(
            self._step, end_of_epoch=end_of_epoch, last=self.stopping or ends, stopped=self.stopping
        )
        self._journal.step(self._step, self._epoch, dict(self._metrics.latest))
        if self._launch.scan and self._watch is not None:
            self._watch.write_scan(self._journal.folder / "scan.json")

    def end_pass(self) -> None:
        """A loader's iteration is over."""
        self._pass = None
        self._engine.outside(self._step)

    # -- state ----------------------------------------------------------------------------------------------------------

    def capture(self) -> dict[str, Any]:
        """Everything that the next step depends on, sharing memory with the user's objects."""
        self._finite.catch_up()
        return {
            "step": self._step,
            "epoch": self._epoch,
            "cursors": {str(loader.number): loader.cursor for loader in self._loaders},
            **state.capture(self._parts),
            **self._engine.capture(),
        }

    def restore(self, captured: Mapping[str, Any]) -> None:
        """Go on from a captured state."""
        state.restore(self._parts, captured)
        self._step, self._epoch = int(captured["step"]), int(captured["epoch"])
        for loader in self._loaders:
            loader.cursor = int(captured["cursors"].get(str(loader.number), 0))
        self._engine.restore(captured, self._step)

    def close(self) -> None:
        """Finish what a `break` left open, end loader processes and threads; the script's end does it too."""
        if self._prepared and not self.broken and self._finished_at != self.step:
            self._settle()
            self._finish()
        for loader in self._loaders:
            loader.close()
        if self._watch is not None:
            self._watch.close()
        if self._strangers is not None:
            self._strangers.remove()
        self._engine.close()
        self._journal.close()

    # -- inside ---------------------------------------------------------------------------------------------------------

    def _prepare(self, num_epochs: int) -> None:
        self._num_epochs = num_epochs
        if self._prepared:
            return
        wrapping.check_parts(self._parts, self._group)
        self._prepared = True
        settings = self.settings
        definition = Definition(
            {
                "virtual_workers": settings.virtual_workers,
                "seed": settings.seed,
                "order": settings.order,
                "nan": settings.nan,
            }
        ).with_values(**self._facts, **wrapping.describe(self._parts))
        self._engine.prepare(self._parts)
        self._keeper.definition = definition
        self._journal.define(definition)
        self._watch = Watch.make(self._launch, self._journal.folder, self._parts.models)
        self._strangers = wrapping.refuse_strangers(self._parts, lambda: self._turn is not None, lambda: self.committed)
        if self._launch.resume and (found := self._keeper.find()) is not None:
            self.restore(found.state)
            self._keeper.check_restored(found)
            self._journal.note(f"resumed from {found.path} at step {self._step}")
        steps = [loader.plan.steps_per_epoch for loader in self._loaders]
        total = num_epochs * max(steps, default=0)
        limit = self._launch.max_steps
        self._journal.event(
            "begin",
            step=self._step,
            total_steps=min(total, limit) if limit is not None else total,
            steps_per_epoch=max(steps, default=0),
        )

    def _finish(self) -> None:
        self._finished_at = self._step
        self._metrics.flush()
        # Stopped by the launcher, the script has since run the end of an epoch that may not be over: the state of the
        # last boundary is the one to go on from.
        digest = self._keeper.finish(self._step, store=not self._stopped_in_pass)
        self._journal.event("step", step=self._step, epoch=self._epoch, metrics=dict(self._metrics.latest))
        self._journal.event("end", step=self._step, digest=digest)

    def _end_context(self, turn: Turn) -> None:
        if turn.ended:
            return
        turn.ended = True
        if self._watch is not None:
            self._watch.leave()
        self._engine.leave(turn.rank)

    def _check_backward(self, loss: torch.Tensor) -> Turn:
        turn = self._turn
        if turn is None:
            raise UsageError("job.backward was called outside a step: call it inside the loop over job.loader(...)")
        if turn.folded:
            raise UsageError(
                f"job.backward was called twice for virtual worker {turn.rank} of step {self._step}: add the losses, or mark all but "
                "the last call with more=True"
            )
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            shape = tuple(loss.shape) if isinstance(loss, torch.Tensor) else type(loss).__name__
            raise UsageError(
                f"job.backward needs one number, a scalar loss, and was given {shape}: reduce it with .mean()"
            )
        return turn
