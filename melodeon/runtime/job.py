"""The training loop as one job: what the five changed lines call. What they set going is the `Course`."""

from collections.abc import Iterable, Iterator, Mapping
from os import PathLike
from typing import Any, TypeVar

import torch
from torch.utils.data import Dataset

from melodeon.core.assignment import Assignment
from melodeon.core.errors import UsageError
from melodeon.core.sampling import EpochPlan, Uneven
from melodeon.runtime import gates, state, wrapping
from melodeon.runtime.course import Course
from melodeon.runtime.feed import OPTIONS, check_names, dataset_length
from melodeon.runtime.keeper import KEPT
from melodeon.runtime.loader import Loader
from melodeon.runtime.partitioned import Partitioned

T = TypeVar("T")

ONCE_PER_STEP = ("update", "update_parameters", "step")
"""Methods of registered objects that take effect once per step."""


class Job:
    """One elastic training job, seen from one worker. Made by `melodeon.join()`."""

    def __init__(self, course: Course) -> None:
        self.course = course
        """What goes on behind it; for tools."""

    # -- what a script may ask ---------------------------------------------------------------------------------------

    @property
    def virtual_workers(self) -> int:
        """V: the number of virtual workers, which defines the result."""
        return self.course.virtual_workers

    @property
    def batch_factor(self) -> int:
        """How many times the first total batch a step has now: 1, unless `job.hybrid()` was called and it was changed.

        Set it between epochs, to a value that follows from the epoch's number, so that a resumed job sets it alike.
        """
        return self.course.batches.running

    @batch_factor.setter
    def batch_factor(self, factor: int) -> None:
        if self.course.beat.turn is not None:
            raise UsageError(
                f"job.batch_factor = {factor} was set inside a step: set it between epochs, before the loop over the "
                "loader"
            )
        self.course.batches.wish(factor)

    @property
    def num_workers(self) -> int:
        """How many workers share the job now; nothing of the result depends on it."""
        return self.course.num_workers

    @property
    def worker(self) -> int:
        """The index of this worker."""
        return self.course.group.rank

    @property
    def assignment(self) -> Assignment:
        """How many virtual workers each worker has now."""
        return self.course.assignment

    @property
    def device(self) -> torch.device:
        """Where this worker computes."""
        return self.course.engine.device

    @property
    def step(self) -> int:
        """Steps done: counted as soon as the update begins."""
        return self.course.step

    @property
    def epoch(self) -> int:
        """The epoch in progress, from 0."""
        return self.course.epoch

    @property
    def virtual_rank(self) -> int | None:
        """The virtual worker whose batch is out, None outside the steps."""
        turn = self.course.beat.turn
        return None if turn is None else turn.rank

    @property
    def committed(self) -> bool:
        """Whether the step's update is done: code that is to run once per step asks this."""
        return self.course.committed

    @property
    def metrics(self) -> Mapping[str, float | int]:
        """The newest means of what was logged."""
        return self.course.metrics.latest

    @property
    def run_dir(self) -> str:
        """The run's folder."""
        return str(self.course.journal.folder)

    # -- setting up --------------------------------------------------------------------------------------------------

    def wrap(self, *owners: T) -> Any:
        """Make models, optimizers, schedulers and scalers the job's; returns the same objects, one or a tuple."""
        if not owners:
            raise UsageError(
                "job.wrap() was called without objects: pass the model, the optimizer and what goes with them"
            )
        if self.course.prepared:
            raise UsageError(
                "job.wrap was called after the training loop began: wrap everything before job.epochs(...)"
            )
        wrapped = tuple(self._wrap_one(owner) for owner in owners)
        return wrapped[0] if len(wrapped) == 1 else wrapped

    def _wrap_one(self, owner: Any) -> Any:
        course = self.course
        kind = wrapping.add(course.parts, owner)
        if kind == "model":
            model = course.engine.adopt(owner)
            course.parts.models[-1] = model
            gates.gate_zero_grad(model, course.beat)
            return model
        if kind == "optimizer":
            gates.gate_optimizer(owner, course.beat)
        elif kind == "scaler":
            gates.gate_scaler(owner, course.beat)
        else:
            gates.gate_methods(owner, ["step"], course.beat)
        return owner

    def register(self, name: str, owner: T, *, once: Iterable[str] | None = None) -> T:
        """Keep another object's state with the job's; its methods named in `once` take effect once per step.

        Without `once` those are `update`, `update_parameters` and `step`, as far as it has them.
        """
        course = self.course
        state.check_registered(name, owner, course.parts.registered)
        if course.prepared:
            raise UsageError(
                f"job.register({name!r}, ...) was called after the training loop began: register it before"
            )
        gates.gate_methods(owner, ONCE_PER_STEP if once is None else gates.methods_of(owner, once), course.beat)
        course.parts.registered[name] = owner  # type: ignore[assignment]  # checked above
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
        course = self.course
        if course.prepared:
            raise UsageError("job.loader was called after the training loop began: make loaders before job.epochs(...)")
        check_names(options, ("collate_fn", "num_workers") if isinstance(dataset, Partitioned) else OPTIONS)
        if drop_last and uneven not in (None, "drop"):
            raise UsageError(
                f"drop_last=True and uneven={uneven!r} contradict each other: drop_last=True means uneven='drop', so "
                "give one of them"
            )
        if uneven is None:
            uneven = "drop" if drop_last else "exact" if course.settings.order == "tree" else "pad"
        book = None
        if isinstance(dataset, Partitioned):
            plan = dataset.plan(self.virtual_workers, batch_size, uneven)
            book = dataset.book(seed=course.settings.seed, shuffle=shuffle)
            options |= {} if book is None else {"grants": book}
        else:
            plan = EpochPlan(dataset_length(dataset), self.virtual_workers, batch_size, uneven)
        source = course.engine.source(dataset, plan, course.settings.seed, shuffle, options)
        number = len(course.loaders)
        course.loaders.append(Loader(course, plan, source, number, book))
        course.facts |= {
            f"loader{number}": f"{plan.num_samples} samples, batches of {batch_size}, {plan.uneven}"
            + (", shuffled" if shuffle else "")
            + (f", {dataset.describe()}" if isinstance(dataset, Partitioned) else "")
        }
        return course.loaders[-1]

    def checkpoint(self, folder: str, *, every: int, keep: int = KEPT, strict: bool = True) -> None:
        """Store the state every so many steps, and go on from the newest good one when the script starts again."""
        if self.course.prepared:
            raise UsageError("job.checkpoint was called after the training loop began: call it before job.epochs(...)")
        if not isinstance(folder, str | PathLike) or not str(folder) or "\0" in str(folder):
            raise UsageError(f"job.checkpoint({folder!r}, ...) names no folder: give a path, such as 'checkpoints'")
        launch = self.course.launch
        every = every if launch.checkpoint_every is None else launch.checkpoint_every
        self.course.keeper.keep(launch.checkpoint_dir or folder, every, keep, strict=strict)

    def hybrid(self, *, ramp_steps: int = 100, history: Iterable[tuple[int, int]] | None = None) -> None:
        """Agree that the total batch may change during the run, which changes the result.

        It is multiplied by a factor that `melodeon run --hybrid` decides when the job grows, or the script with
        `job.batch_factor`, or `history` names: `[(step, factor), ...]`. Learning rates follow linearly over
        `ramp_steps`.
        """
        if self.course.prepared:
            raise UsageError("job.hybrid was called after the training loop began: call it before job.epochs(...)")
        self.course.batches.allow(ramp_steps, history)

    # -- the loop ----------------------------------------------------------------------------------------------------

    def epochs(self, count: int) -> Iterator[int]:
        """The epochs that are left of `count`: all of them, or those after the checkpoint that the job resumes from."""
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise UsageError(f"job.epochs({count!r}) needs a whole number of epochs")
        return self.course.epochs(count)

    def backward(self, loss: torch.Tensor, *, more: bool = False) -> None:
        """Run the backward pass of this virtual worker's loss; `more=True` if another one of the same batch follows."""
        self.course.beat.backward(loss, more=more)

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
            parameters = [param for _, param in state.named_parameters(self.course.parts.models)]
        assert not isinstance(parameters, int | float)
        if not self.course.beat.reach_update("job.clip_grad_norm_()"):
            return None
        return torch.nn.utils.clip_grad_norm_(parameters, max_norm, **options)

    def log(self, **values: torch.Tensor | float | None) -> None:
        """Log values of this virtual worker; their mean over all virtual workers goes to metrics.jsonl and the
        display.
        """
        course = self.course
        turn = course.beat.turn
        if turn is None:
            raise UsageError(
                "job.log was called outside a step: log values of a batch inside the loop over job.loader(...)"
            )
        if turn.header is not None:
            course.limits.check_log(values)
        course.metrics.add(course.beat.step, course.epoch, turn.rank, turn.weight, values)

    def save(self) -> None:
        """Store a checkpoint now, between epochs, whatever the schedule."""
        course = self.course
        if course.beat.turn is not None:
            raise UsageError(
                "job.save was called inside a step: call it between epochs, or use job.checkpoint(every=...)"
            )
        if not course.prepared:
            raise UsageError(
                "job.save was called before the training loop began: call it inside `for epoch in job.epochs(...)`, or "
                "after it"
            )
        course.settle()
        ended = all(loader.cursor >= loader.plan.cursor(course.epoch + 1) for loader in course.loaders)
        # A job that goes on from here does not run the end of this epoch again.
        course.keeper.store_now(course.beat.step, {"epoch": course.epoch + 1} if course.in_epochs and ended else {})

    def close(self) -> None:
        """Finish what a `break` left open, end loader processes and threads; the script's end does it too."""
        self.course.close()
