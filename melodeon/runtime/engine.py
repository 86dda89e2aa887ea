"""The part of a job that differs between training with virtual workers and with stock DistributedDataParallel.

`Engine` runs V virtual workers on any number of workers. `runtime.stock.StockEngine` puts unmodified PyTorch parts in
its place, so that one script can be trained both ways and compared.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch.utils.data import Dataset

from melodeon.coord.failpoint import failpoint
from melodeon.core.assignment import Assignment
from melodeon.core.errors import UsageError
from melodeon.core.sampling import EpochPlan
from melodeon.runtime.buckets import ddp_buckets
from melodeon.runtime.buffers import Buffers, unfold_buffers
from melodeon.runtime.exchange import Exchange
from melodeon.runtime.feed import Feed
from melodeon.runtime.group import Group
from melodeon.runtime.guard import Guard, Weights, grads_of
from melodeon.runtime.loader import Source
from melodeon.runtime.partitioned import Partitioned
from melodeon.runtime.random_streams import CarriedStreams, DerivedStreams, Generators
from melodeon.runtime.reduce import NO_SIGNALS, Header, Reducer, Signals
from melodeon.runtime.reduce_ddp import DdpReducer, ddp_exchange
from melodeon.runtime.reduce_tree import TreeReducer, tree_exchange
from melodeon.runtime.state import Parts, bare, named_parameters


class Engine:
    """Virtual workers: their gradients, buffers, random streams and data."""

    reducer: Reducer

    def __init__(
        self,
        group: Group,
        assignment: Assignment,
        device: torch.device,
        *,
        seed: int,
        order: str,
        find_unused: bool,
        elastic: bool = False,
    ) -> None:
        self.device = device
        self._elastic = elastic
        """Whether views may change: then the engine is seated by `reseat`, again and again."""
        self._group = group
        self._assignment = assignment
        self._order = order
        self._find_unused = find_unused
        self._parts = Parts()
        self._params: list[torch.nn.Parameter] = []
        self._required: list[bool] = []
        self._roots: dict[tuple[float, torch.dtype, torch.device], torch.Tensor] = {}
        self._guard: Guard | None = None
        self._weights = Weights(())
        ranks = assignment.ranks_of(group.rank)
        self._first_rank = ranks[0]
        self._arrival: list[int] | None = None
        """The order that DDP's buckets are cut by, as of the last committed step."""
        self.streams: DerivedStreams | CarriedStreams
        if order == "tree":
            self.streams = DerivedStreams(seed, device)
        else:
            virtual_workers = assignment.virtual_workers if elastic else None
            self.streams = CarriedStreams(seed, device, ranks, virtual_workers=virtual_workers)

    @property
    def group(self) -> Group:
        """The workers of the view that it is seated in."""
        return self._group

    @property
    def assignment(self) -> Assignment:
        """Which virtual workers each of them runs."""
        return self._assignment

    # -- setting up --------------------------------------------------------------------------------------------------

    def adopt(self, model: torch.nn.Module) -> torch.nn.Module:
        """Bring a model to the worker's device."""
        if any(param.device != self.device for param in model.parameters()):
            model.to(self.device)
        unfold_buffers(model)
        return model

    def source(
        self, dataset: Dataset[Any], plan: EpochPlan, seed: int, shuffle: bool, options: Mapping[str, Any]
    ) -> Source:
        """Where a loader's batches come from."""
        carried = isinstance(self.streams, CarriedStreams)
        make = dataset.feed if isinstance(dataset, Partitioned) else partial(Feed, dataset)
        try:
            return make(plan=plan, seed=seed, shuffle=shuffle, keep_generators=carried, **options)
        except TypeError as error:
            if "unexpected keyword argument" not in str(error):
                raise
            raise UsageError(
                f"job.loader does not take this option ({error}); see its documentation for those it takes"
            ) from error

    def prepare(self, parts: Parts) -> None:
        """All objects are wrapped: make what sums their gradients and keeps their buffers."""
        self._parts = parts
        self.buffers = Buffers(parts.models, self._group, self._assignment.worker_of(0))
        named = named_parameters(parts.models)
        self._params = [param for _, param in named]
        self._weights = Weights(named)
        self._trainable()
        if not self._elastic:
            self._build_reducer()

    def _trainable(self) -> tuple[list[str], list[torch.nn.Parameter]]:
        found = [(name, param) for name, param in named_parameters(self._parts.models) if param.requires_grad]
        if not found:
            raise UsageError("no parameter of the wrapped models requires a gradient: there is nothing to train")
        return [name for name, _ in found], [param for _, param in found]

    def _build_reducer(self, exchange: Exchange | None = None) -> None:
        self._required = [param.requires_grad for param in self._params]
        names, params = self._trainable()
        if self._order == "tree":
            self.reducer = TreeReducer(params, names, self._group, self._assignment, exchange=exchange)
        else:
            self.reducer = DdpReducer(
                params,
                names,
                self._group,
                self._assignment,
                models=_indices_by_model(self._parts.models, params),
                find_unused=self._find_unused,
                arrival=self._arrival,
                exchange=exchange,
            )
        self._guard = Guard(params, names)

    # -- views -------------------------------------------------------------------------------------------------------

    @property
    def working_bytes(self) -> int:
        """Host memory that a step takes besides the state: a set of gradients, and two of the largest on their way."""
        _, params = self._trainable()
        sizes = [param.numel() * param.element_size() for param in params if param.device.type == "cpu"]
        return sum(sizes) + 2 * max(sizes, default=0)

    def layout(self) -> str:
        """What an exchange depends on besides its view: it fits if this is the same when it is used."""
        layout = json.dumps([[param.requires_grad for param in self._params], self._arrival])
        return hashlib.blake2b(layout.encode(), digest_size=8).hexdigest()

    def exchange_opener(self, group: Group, assignment: Assignment) -> Callable[[], Exchange]:
        """What opens the exchange of another view, on that view's carrier, while this one trains: for the layout of
        now, whatever the script freezes until it is called.
        """
        _, params = self._trainable()
        if self._order == "tree":
            return partial(tree_exchange, params, group, assignment)
        models = _indices_by_model(self._parts.models, params)
        buckets = ddp_buckets(params, models, self._arrival, find_unused=self._find_unused)
        return partial(ddp_exchange, buckets, group, assignment)

    def reseat(self, group: Group, assignment: Assignment, exchange: Exchange | None) -> None:
        """Go on as a worker of another view."""
        if hasattr(self, "reducer"):
            self.reducer.close()
            for param in self.reducer.params:
                if not param.requires_grad:  # frozen just now: the next reducer would leave its gradient to the updates
                    param.grad = None
        self._group, self._assignment = group, assignment
        ranks = assignment.ranks_of(group.rank)
        self._first_rank = ranks[0]
        self.buffers.reassign(group, assignment.worker_of(0))
        if isinstance(self.streams, CarriedStreams):
            self.streams.reassign(ranks)
        self._build_reducer(exchange)

    def give_up(self) -> None:
        """Somebody is gone before the step's commit: leave everything as the step found it."""
        self.reducer.abandon()
        self.buffers.drop()
        if isinstance(self.streams, CarriedStreams):
            self.streams.give_up()

    # -- the beat ----------------------------------------------------------------------------------------------------

    def begin_pass(self, *, at_start: bool) -> None:
        """A loader's iteration begins, at the start of an epoch or in its middle."""
        if at_start and isinstance(self.streams, CarriedStreams):
            self.streams.draw_loader_seed()

    def begin_step(self) -> None:
        """The first local virtual worker is about to begin."""
        self.reducer.drop_gradients()
        self._weights.begin_step()
        if self._guard is not None:
            self._guard.begin_step()

    def enter(self, step: int, rank: int) -> None:
        """A virtual worker begins."""
        if rank == self._first_rank:
            self.buffers.begin_step()
        else:
            self.buffers.enter()
        self.streams.enter(step, rank)

    def begin_backward(self, step: int, rank: int, *, first: bool, final: bool) -> None:
        """A backward pass of `rank` begins: its `first` of the step, its `final` one."""
        if first and rank == self._first_rank and self._frozen_otherwise():
            self._refreeze()
        marks = ([], []) if self._guard is None else self._guard.check(step)
        self.reducer.before(rank, marks, first=first, final=final)

    def end_backward(self, rank: int, *, final: bool) -> None:
        """It is over."""
        left = self.reducer.after(rank) if final else grads_of(self.reducer.params)
        if self._guard is not None:
            self._guard.leave(left)

    def backward(self, loss: torch.Tensor, weight: float) -> None:
        """Its backward pass."""
        scale = weight * self.reducer.root_scale
        if scale == 1.0:
            loss.backward()  # type: ignore[no-untyped-call]
            return
        key = (scale, loss.dtype, loss.device)
        root = self._roots.get(key)
        if root is None:
            root = self._roots[key] = torch.tensor(scale, dtype=loss.dtype, device=loss.device)
        loss.backward(gradient=root.view_as(loss))  # type: ignore[no-untyped-call]

    def leave(self, rank: int) -> None:
        """It ends."""
        self.buffers.leave(rank)
        self.streams.leave(rank)

    def finish(self, step: int, *, finite: bool, skip: bool, signals: Signals = NO_SIGNALS) -> Header:
        """All virtual workers are done: gradients, buffers and streams become the job's.

        With `skip`, a step with a loss that is not finite leaves no trace in the buffers either.
        """
        failpoint("step.exchange")
        if self._frozen_otherwise():
            raise UsageError(
                f"requires_grad changed in step {step} between two virtual workers: freeze or unfreeze parameters "
                "after optimizer.step(), under `if job.committed:`, or between epochs"
            )
        if self._guard is not None:
            self._guard.check(step)
        self._weights.check(step)
        header = self.reducer.finish(
            finite=finite,
            fingerprint=self.streams.fingerprint(),
            buffer_bytes=self.buffers.kept_bytes(),
            signals=signals,
        )
        failpoint("step.agreed")
        if isinstance(self.streams, CarriedStreams) and self.streams.replicated and not header.agreed:
            everyone = gather_generators(self._group, self.streams.local())
            self.streams.learn({int(rank): Generators.from_plain(plain) for rank, plain in everyone.items()})
        if skip and not header.finite:
            self.buffers.drop()
        else:
            self.buffers.commit(header.buffer_bytes)
        self.streams.commit(step, agreed=header.agreed)
        # From here on nothing of this step waits for anybody: it is committed.
        self._arrival = list(self.reducer.arrival or []) or None if isinstance(self.reducer, DdpReducer) else None
        failpoint("step.commit")
        return header

    def outside(self, step: int) -> None:
        """Code outside the steps begins."""
        self.streams.outside(step)

    # -- state -------------------------------------------------------------------------------------------------------

    def capture(self) -> dict[str, Any]:
        """What the order itself carries from step to step: nothing in `tree`."""
        if not isinstance(self.streams, CarriedStreams):
            return {}
        states = self.streams.capture()
        if self.streams.replicated:
            random: dict[str, Any] = {str(rank): generators.to_plain() for rank, generators in states.items()}
        else:
            random = gather_generators(self._group, states)
        return {"random": random, "arrival": self._arrival}

    def restore(self, captured: Mapping[str, Any], step: int) -> None:
        """Go on from a captured state."""
        self.buffers.refresh()
        if isinstance(self.streams, CarriedStreams):
            states = {int(rank): Generators.from_plain(plain) for rank, plain in captured["random"].items()}
            self.streams.restore(states, step)
            self._arrival = [int(index) for index in captured.get("arrival") or ()] or None
            if not self._elastic and isinstance(self.reducer, DdpReducer) and self._arrival:
                self.reducer.set_arrival(self._arrival)
        else:
            self.streams.outside(step)

    def close(self) -> None:
        """Let go of threads and connections."""
        if hasattr(self, "reducer"):
            self.reducer.close()
        self._group.close()

    # -- inside ------------------------------------------------------------------------------------------------------

    def _frozen_otherwise(self) -> bool:
        return [param.requires_grad for param in self._params] != self._required

    def _refreeze(self) -> None:
        """Parameters were frozen or unfrozen: sum the new set from here on."""
        if self._order == "ddp":
            raise UsageError(
                "requires_grad changed during the run, which DistributedDataParallel does not follow: with "
                "order='ddp' freeze parameters before the loop, or use order='tree'"
            )
        exchange = self.exchange_opener(self._group, self._assignment)()  # first: it may fail with somebody who is lost
        self.reducer.close()
        self._build_reducer(exchange)


def _indices_by_model(models: Sequence[torch.nn.Module], params: Sequence[torch.nn.Parameter]) -> list[list[int]]:
    """Which of `params` belong to each model; one that two models share counts for the first."""
    place = {id(param): index for index, param in enumerate(params)}
    found = [[place.pop(id(p)) for p in bare(model).parameters() if id(p) in place] for model in models]
    return [indices for indices in found if indices]


def gather_generators(group: Group, mine: Mapping[int, Generators]) -> dict[str, Any]:
    """The random states of all virtual workers, as plain values."""
    plain = json.dumps({str(rank): generators.to_plain() for rank, generators in mine.items()})
    merged: dict[str, Any] = {}
    for body in group.gather_bytes(plain.encode()):
        merged |= json.loads(body)
    return merged
