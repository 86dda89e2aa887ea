"""The same script on unmodified PyTorch: DistributedDataParallel, DistributedSampler, DataLoader, one process per rank.

This is the reference that `order="ddp"` is held against. Nothing of Melodeon touches gradients, buffers, random numbers
or data here; it counts the steps and reads the state. A stock run's state is rank 0's: the others keep buffers of their
own until the next forward pass overwrites them.
"""

# ruff: noqa: ARG002 - the engine that does nothing takes what the others need

import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, PrefixStore, Store
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from melodeon.core.assignment import Assignment
from melodeon.core.errors import UsageError
from melodeon.core.sampling import EpochPlan
from melodeon.runtime.engine import Engine, gather_generators
from melodeon.runtime.feed import Batch
from melodeon.runtime.group import TIMEOUT_S, Group
from melodeon.runtime.guard import Marks
from melodeon.runtime.loader import Source
from melodeon.runtime.partitioned import Partitioned
from melodeon.runtime.random_streams import read_generators
from melodeon.runtime.reduce import NO_SIGNALS, Header, Reducer, Signals
from melodeon.runtime.state import Parts, bare, named_parameters
from melodeon.runtime.state import capture as capture_parts

_POOL_OPTIONS = ("prefetch_factor", "timeout", "multiprocessing_context")
"""What DataLoader refuses where it has no loader processes."""


class StockEngine(Engine):
    """Leaves everything to stock PyTorch."""

    def __init__(
        self, group: Group, assignment: Assignment, device: torch.device, *, seed: int, order: str, find_unused: bool
    ) -> None:
        super().__init__(group, assignment, device, seed=seed, order=order, find_unused=find_unused)
        if group.size != assignment.virtual_workers:
            raise UsageError(
                f"{group.size} workers cannot run stock DistributedDataParallel, which has one process per rank: "
                f"start {assignment.virtual_workers}"
            )
        self._wrapped: list[DistributedDataParallel] = []
        self._called = False
        """Whether one of them has run in the step in progress."""

    def adopt(self, model: torch.nn.Module) -> torch.nn.Module:
        """Wrap the model as a stock script does."""
        if not dist.is_initialized():
            hook = sys.excepthook
            dist.init_process_group(
                "gloo",
                store=_meeting_place(self._group),
                rank=self._group.rank,
                world_size=self._group.size,
                timeout=timedelta(seconds=TIMEOUT_S),
            )
            sys.excepthook = hook  # torch's holds back what is written there until ours returns, which it never does
        model = super().adopt(model)
        if not any(param.requires_grad for param in model.parameters()):
            return model
        self._wrapped.append(DistributedDataParallel(model, find_unused_parameters=self._find_unused))

        def note_call(_model: torch.nn.Module, _args: object) -> None:  # no method: a copied model would copy its owner
            self._called = True

        self._wrapped[-1].register_forward_pre_hook(note_call)
        return self._wrapped[-1]

    def source(
        self, dataset: Dataset[Any], plan: EpochPlan, seed: int, shuffle: bool, options: Mapping[str, Any]
    ) -> Source:
        """A stock DataLoader over a stock DistributedSampler."""
        if isinstance(dataset, Partitioned):
            raise UsageError(
                "a Partitioned set has no counterpart in stock PyTorch: compare with it on a set with numbered samples"
            )
        return _StockSource(dataset, plan, self._group, seed, shuffle, options)

    def prepare(self, parts: Parts) -> None:
        """DDP has prepared itself."""
        self._parts = parts
        self.reducer = _NoReducer()

    def begin_pass(self, *, at_start: bool) -> None:
        """The DataLoader itself draws what it draws."""

    def begin_step(self) -> None:
        """Clear the gradients in the name of the script's zero_grad, which takes no effect inside a step."""
        self._called = False
        for _, param in named_parameters(self._parts.models):
            param.grad = None

    def enter(self, step: int, rank: int) -> None:
        """A process is its rank."""

    def backward(self, loss: torch.Tensor, weight: float) -> None:
        """As in any script; where the model ran past its wrapper, nothing would be summed."""
        if self._wrapped and not self._called:
            raise UsageError(
                "the model that ran is not the one that job.wrap returned, which in a stock run is a "
                "DistributedDataParallel: write model, optimizer = job.wrap(model, optimizer), and call that model"
            )
        loss.backward()  # type: ignore[no-untyped-call]

    def leave(self, rank: int) -> None:
        """Nothing to lay down."""

    def finish(self, step: int, *, finite: bool, skip: bool, signals: Signals = NO_SIGNALS) -> Header:
        """DDP has summed the gradients inside backward; whether a loss was not finite is agreed upon as ever."""
        everyone = self._group.gather_bytes(b"finite" if finite else b"")
        return Header((), all(everyone), True, 0, signals)

    def outside(self, step: int) -> None:
        """Random numbers run on."""

    def capture(self) -> dict[str, Any]:
        """The random states of all ranks, and rank 0's buffers."""
        mine = {self._group.rank: read_generators(self.device)}
        held = capture_parts(self._parts)
        models = {name: dict(model) for name, model in held["models"].items()}
        places = [(models[str(i)], name) for i, m in enumerate(self._parts.models) for name in _saved_buffers(bare(m))]
        places += [(buffers, name) for buffers in held["buffers"].values() for name in buffers]
        copies = {name: one for name, one in self._parts.registered.items() if isinstance(one, torch.nn.Module)}
        registered = held["registered"] | {name: _plain_state(module) for name, module in copies.items()}
        places += [
            (registered[n], _plain(module, name)) for n, module in copies.items() for name in _saved_buffers(module)
        ]
        self._take_over(places)
        random = gather_generators(self._group, mine)
        return {"random": random, "models": models, "buffers": held["buffers"], "registered": registered}

    def _take_over(self, places: Sequence[tuple[dict[str, torch.Tensor], str]]) -> None:
        """Put copies of rank 0's tensors into these dicts; the tensors that were there stay as they are."""
        parts = [owner[name].detach().cpu().contiguous().view(-1).view(torch.uint8) for owner, name in places]
        if not parts or self._group.size == 1:
            return
        message = torch.cat(parts)
        self._group.broadcast(message, 0)
        bodies = torch.split_with_sizes(message, [part.numel() for part in parts])
        for (owner, name), body in zip(places, bodies, strict=True):
            like = owner[name]
            owner[name] = body.clone().view(like.dtype).view(like.shape)

    def restore(self, captured: Mapping[str, Any], step: int) -> None:
        """A reference run starts at the beginning: DDP's own bits change when it is wrapped again in the middle."""
        raise UsageError("a stock DDP run cannot be resumed bit for bit: start it from the beginning with --no-resume")

    def close(self) -> None:
        """End the stock process group too."""
        if dist.is_initialized():
            dist.destroy_process_group()
        self._group.close()


class _NoReducer(Reducer):
    """DDP reduces; nothing to do around backward."""

    def __init__(self) -> None:
        self.params = []

    @property
    def root_scale(self) -> float:
        return 1.0

    def before(self, rank: int, marks: Marks, *, first: bool, final: bool) -> None:
        if not final:
            raise UsageError(
                "job.backward(more=True) has no counterpart in stock DistributedDataParallel, which sums in every "
                "backward: add the losses and call job.backward once to compare with it"
            )

    def after(self, rank: int) -> None:
        return None

    def abandon(self) -> None:
        pass

    def _fill(self, number: int, rows: Any) -> None:
        pass

    def _locally_used(self) -> list[bool]:
        return []


class _StockSource:
    """Batches as a stock script gets them."""

    def __init__(
        self, dataset: Dataset[Any], plan: EpochPlan, group: Group, seed: int, shuffle: bool, options: Mapping[str, Any]
    ) -> None:
        self.stop: int | None = None
        self._plan = plan
        if plan.uneven == "exact" and plan.num_samples % plan.virtual_workers:
            raise UsageError(
                f"uneven='exact' has no counterpart in stock PyTorch, and {plan.num_samples} samples do not divide by "
                f"{plan.virtual_workers} ranks: use uneven='pad' or 'drop' to compare with it"
            )
        drop = plan.uneven == "drop"
        if not options.get("num_workers"):
            options = {name: value for name, value in options.items() if name not in _POOL_OPTIONS}
        self._sampler: DistributedSampler[Any] = DistributedSampler(
            dataset, num_replicas=group.size, rank=group.rank, shuffle=shuffle, seed=seed, drop_last=drop
        )
        self._loader: DataLoader[Any] = DataLoader(
            dataset, batch_size=plan.batch_size, sampler=self._sampler, drop_last=drop, **options
        )
        self._batches: Iterator[Any] = iter(())

    def start(self, ranks: range, cursor: int, factor: int = 1) -> None:
        pass

    def take(self, cursor: int, rank: int) -> Batch:
        epoch, step = self._plan.at(cursor)
        if step == 0:
            self._sampler.set_epoch(epoch)
            self._batches = iter(self._loader)
        return Batch(next(self._batches), 1.0, cursor, rank, self._plan.num_counted(step, rank))

    def reassign(self, ranks: range, cursor: int, factor: int = 1) -> None:
        """A stock run's ranks never change."""
        raise AssertionError("a stock run is never elastic")

    def close(self) -> None:
        self._batches = iter(())


def _saved_buffers(model: torch.nn.Module) -> list[str]:
    """The names of the buffers that `state_dict()` holds, every alias too."""
    saved = model.state_dict()
    return [name for name, _ in model.named_buffers(remove_duplicate=False) if name in saved]


def _plain_state(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """A registered module's state, such as that of an average of the model, which is a copy with its wrapper."""
    return {_plain(module, name): value for name, value in module.state_dict().items()}


def _plain(module: torch.nn.Module, name: str) -> str:
    """The name that a tensor of the module has without DistributedDataParallel around the part that owns it."""
    for place, part in module.named_modules():
        prefix = f"{place}." if place else ""
        if isinstance(part, DistributedDataParallel) and name.startswith(f"{prefix}module."):
            return prefix + name.removeprefix(f"{prefix}module.")
    return name


def _meeting_place(group: Group) -> Store:
    return HashStore() if group.store is None else PrefixStore("stock-ddp/", group.store)
