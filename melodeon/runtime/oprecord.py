"""Records digests of what every operator of a run read and wrote, so that two runs can be compared call by call.

A dispatch mode sees every operator below autograd: forward, backward, optimizer; in-place, tuple and list operators;
what autocast inserts. One JSON line a call goes to the worker's file, in the order (step, virtual rank, index), the
commit last.

Not recorded, because they compute nothing: views, metadata, allocations. Not recorded, because they depend on who runs
where: the adding of gradients over virtual workers, and collectives. No digest is cached: a tensor can be written
behind autograd's version counter (`.data`, numpy, a collective), so every input is read again; that is the cost.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from melodeon.core.opdiff import COMMIT_RANK
from melodeon.runtime.oprecord_mode import Watch
from melodeon.runtime.oprecord_values import Values
from melodeon.runtime.oprecord_where import Whereabouts, named_tensors

# The profiler's marks are no operators of the model; collectives depend on the assignment.
_OTHER_NAMESPACES = frozenset({"profiler", "prim", "c10d", "_c10d_functional", "c10d_functional"})
_ALLOCATES = frozenset(
    {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted", "resize_"}
)
# Give a tensor another shape or none of its contents another value, though their schema calls them no views.
_COMPUTES_NOTHING = frozenset({"_unsafe_view", "_reshape_alias", "lift", "lift_fresh", "set_", "record_stream"})


class OpRecorder:
    """Writes operator records to `path` between `enter` and `leave`.

    Changes no bit of the training, unless the model is compiled: under a dispatch mode torch runs it eagerly. Costs a
    digest of every tensor read or written: a step of a small CNN (107k parameters) took 3.0 times as long, of a small
    GPT (859k parameters) 3.2 times, medians of interleaved steps on one thread; a record takes about 400 bytes.
    """

    def __init__(self, path: str | Path, modules: Mapping[str, nn.Module] | None = None) -> None:
        self._modules = dict(modules or {})
        self._where = Whereabouts(self._modules)
        self._values = Values()
        self._names: dict[int, tuple[str, torch.Tensor]] = {}
        self._watch = Watch(self._call)
        self._step = self._rank = self._index = 0
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        self._file = Path(path).open("w", encoding="utf-8")  # noqa: SIM115  open for the run, ended by close()

    def enter(self, step: int, rank: int) -> None:
        """Record what follows as virtual worker `rank`'s part of `step`, or as the commit if `rank` is `COMMIT_RANK`.

        Every worker runs the same commit, so each worker's file carries one.
        """
        self._step, self._rank, self._index = step, rank, 0
        commit = rank == COMMIT_RANK
        # Gradients have their final place only in the commit; before it they come and go.
        self._names = named_tensors(self._modules, gradients=commit)
        self._where.start(commit=commit)
        self._watch.start()

    def leave(self) -> None:
        """Stop recording and push what was recorded to the file; harmless where nothing was entered."""
        if not self._watch.running:
            return
        self._watch.stop()
        self._where.stop()
        self._values.forget_dead()
        self._names = {}
        self._file.flush()

    def close(self) -> None:
        """End the file."""
        self.leave()
        self._file.close()

    def _call(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        where = self._where.now()
        if where is None or computes_nothing(func):
            result = func(*args, **kwargs)
            if func._schema.name.partition("::")[2] in _ALLOCATES:
                self._values.allocated(result)
            return result
        inputs = self._values.inputs(func, args, kwargs, self._names)
        streams = _random_streams(func, args, kwargs)
        result = func(*args, **kwargs)
        outputs = self._values.outputs(func, result, inputs.written)
        record: dict[str, Any] = {
            "step": self._step,
            "rank": self._rank,
            "index": self._index,
            "op": str(func),
            "phase": where.phase,
            "module": where.module,
            "site": where.site,
            "inputs": inputs.values,
            "outputs": outputs.values,
            "sample": outputs.sample,
        }
        if inputs.names:
            record["names"] = inputs.names
        if any(not torch.equal(before, stream.get_state()) for stream, before in streams):
            record["random"] = True
        self._file.write(json.dumps(record, separators=(",", ":")) + "\n")
        self._index += 1
        return result


def _random_streams(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[tuple[Any, torch.Tensor]]:
    """The generators that the operator may draw from, with their present states.

    The tag alone does not tell: attention carries it even where its dropout is off and nothing is drawn.
    """
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return []
    streams: list[Any] = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Generator)]
    if not streams:
        streams = [torch.default_generator]
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch's stub lacks it
            streams.extend(torch.cuda.default_generators)
    return [(stream, stream.get_state()) for stream in streams]


def computes_nothing(func: Any) -> bool:
    """Whether the operator gives a view, metadata, fresh memory, or is not the model's at all."""
    namespace, _, base = func._schema.name.partition("::")
    return (
        func.is_view
        or namespace in _OTHER_NAMESPACES
        or base in _ALLOCATES
        or base in _COMPUTES_NOTHING
        or torch.Tag.inplace_view in func.tags
    )
