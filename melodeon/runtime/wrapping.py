"""What `job.wrap(...)` accepts, and what must hold of it before the first step."""

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.nn.parameter import is_lazy
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from melodeon.core.definition import Value
from melodeon.core.errors import DefinitionError, UsageError
from melodeon.runtime.digest import digest_state
from melodeon.runtime.group import Group
from melodeon.runtime.state import Parts, bare, named_parameters

Scheduler = torch.optim.lr_scheduler.LRScheduler
_Scaler = torch.amp.GradScaler


def add(parts: Parts, owner: object) -> str:
    """Put an object where its kind belongs and return the kind; refuse what cannot be wrapped."""
    if any(owner is known for known in (*parts.models, *parts.optimizers, *parts.schedulers, *parts.scalers)):
        raise UsageError(f"job.wrap was given this {type(owner).__name__} before: wrap every object once")
    if isinstance(owner, torch.nn.Module):
        check_model(owner)
        parts.models.append(owner)
        return "model"
    if isinstance(owner, torch.optim.Optimizer):
        check_optimizer(owner)
        parts.optimizers.append(owner)
        return "optimizer"
    if isinstance(owner, Scheduler):
        parts.schedulers.append(owner)
        return "scheduler"
    if isinstance(owner, _Scaler):
        parts.scalers.append(owner)
        return "scaler"
    raise UsageError(
        f"job.wrap was given a {type(owner).__name__}: it takes modules, optimizers, LR schedulers and GradScalers; "
        "keep other state with job.register(name, object)"
    )


def check_model(model: torch.nn.Module) -> None:
    """Refuse models whose result would depend on who runs what."""
    if isinstance(model, torch.nn.parallel.DistributedDataParallel):
        raise UsageError(
            "the model is wrapped in DistributedDataParallel: give job.wrap the bare model, it takes DDP's place"
        )
    for name, child in bare(model).named_modules():
        if isinstance(child, torch.nn.SyncBatchNorm):
            raise UsageError(
                f"{name or 'the model'!r} is a SyncBatchNorm, which mixes the batches of all processes inside a "
                "layer: use BatchNorm, whose statistics are virtual rank 0's, or a norm without batch statistics "
                "such as GroupNorm"
            )
        if isinstance(child, torch.nn.Embedding | torch.nn.EmbeddingBag) and child.sparse:
            raise UsageError(
                f"{name!r} makes sparse gradients, which have no fixed order of summation: use sparse=False"
            )
        if getattr(child, "max_norm", None) is not None and isinstance(
            child, torch.nn.Embedding | torch.nn.EmbeddingBag
        ):
            raise UsageError(
                f"{name!r} has max_norm={child.max_norm}, which changes weights in every forward pass: use "
                "max_norm=None and renormalise after optimizer.step(), under `if job.committed:`"
            )

    for name, tensor in (*bare(model).named_parameters(), *bare(model).named_buffers()):
        if is_lazy(tensor):
            raise UsageError(f"{name!r} has no shape yet: run one batch through the model before job.wrap(...)")


def check_optimizer(optimizer: torch.optim.Optimizer) -> None:
    """Refuse one that runs the model by itself."""
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is closure.empty:
        raise UsageError(
            f"{type(optimizer).__name__}.step needs a closure, which would run the model again inside the update: "
            "choose an optimizer that steps without one, such as SGD or AdamW"
        )


def check_parts(parts: Parts) -> None:
    """Before the first step: something to train, by optimizers that own its parameters."""
    if not parts.models or not parts.optimizers:
        missing = "model" if not parts.models else "optimizer"
        raise UsageError(
            f"no {missing} is wrapped: call model, optimizer = job.wrap(model, optimizer) before the training loop"
        )
    known = {id(param) for _, param in named_parameters(parts.models)}
    for number, optimizer in enumerate(parts.optimizers):
        strangers = [p for entry in optimizer.param_groups for p in entry["params"] if id(p) not in known]
        if strangers:
            raise UsageError(
                f"optimizer {number} ({type(optimizer).__name__}) updates {len(strangers)} parameters, the first of "
                f"shape {tuple(strangers[0].shape)}, that belong to no wrapped model: wrap the module that owns them "
                "too"
            )
    check_schedulers(parts)


def check_schedulers(parts: Parts) -> None:
    """A scheduler that is not the job's would step once per virtual worker, and be forgotten by checkpoints."""
    for optimizer in parts.optimizers:
        # PyTorch's schedulers leave this mark on the optimizer that they change.
        if not hasattr(optimizer.step, "_wrapped_by_lr_sched"):
            continue
        held = [*parts.schedulers, *parts.registered.values()]
        if not any(
            getattr(found, "optimizer", None) is optimizer for one in held for found in (one, *_attributes(one))
        ):
            raise UsageError(
                f"an LR scheduler of {type(optimizer).__name__} is not wrapped: pass it to job.wrap(...) too, so "
                "that it steps once per step and is kept in checkpoints"
            )


def _attributes(owner: object) -> list[object]:
    return list(getattr(owner, "__dict__", {}).values())


def refuse_strangers(parts: Parts, in_step: Callable[[], bool], committed: Callable[[], bool]) -> RemovableHandle:
    """From now on an optimizer that is not the job's must not step in the loop: it would follow one worker's
    gradients.
    """
    known = {id(param) for _, param in named_parameters(parts.models)}
    ours = {id(optimizer) for optimizer in parts.optimizers}

    def check(optimizer: torch.optim.Optimizer, _args: object, _kwargs: object) -> None:
        if not in_step() or id(optimizer) in ours:
            return
        inside = all(id(param) in known for entry in optimizer.param_groups for param in entry["params"])
        if inside and committed():  # an optimizer inside one of ours
            return
        raise UsageError(
            f"{type(optimizer).__name__} stepped inside the training loop and is not wrapped: pass it, and the model "
            "that it updates, to job.wrap(...)"
        )

    handle: RemovableHandle = register_optimizer_step_pre_hook(check)
    return handle


def digests_of(models: Sequence[torch.nn.Module]) -> Mapping[str, str]:
    """Digest of every tensor of the models, by name."""
    return digest_state({str(i): bare(model).state_dict() for i, model in enumerate(models)}).leaves


def check_same_model(models: Sequence[torch.nn.Module], group: Group, built: Mapping[str, str] | None = None) -> None:
    """All workers must start from the same weights; names the first tensor that differs. `built` are the digests of
    the weights as they were built, where these may have changed since.
    """
    if group.size == 1:
        return
    leaves = digests_of(models) if built is None else built
    everyone = [json.loads(body) for body in group.gather_bytes(json.dumps(leaves).encode())]
    first = everyone[0]
    for worker, other in enumerate(everyone[1:], start=1):
        for name in dict.fromkeys([*first, *other]):
            if first.get(name) != other.get(name):
                label = name.partition(".")[2] if len(models) == 1 else name
                raise DefinitionError(
                    f"the model differs between workers: {label!r} of worker {worker} is not worker 0's; build the "
                    "model after melodeon.join(seed=...), which seeds every worker alike, and from the same code and "
                    "files"
                )


def check_same_definition(facts: Mapping[str, Value], group: Group) -> None:
    """All workers must have the same data, settings and kernels; names the first fact that differs."""
    if group.size == 1:
        return
    everyone = [json.loads(body) for body in group.gather_bytes(json.dumps(facts).encode())]
    first = everyone[0]
    for worker, other in enumerate(everyone[1:], start=1):
        for name in dict.fromkeys([*first, *other]):
            if first.get(name) != other.get(name):
                raise DefinitionError(
                    f"the job differs between workers: {name} is {other.get(name)!r} on worker {worker} and "
                    f"{first.get(name)!r} on worker 0; build it on every worker from the same code, files and numbers"
                )


def describe(parts: Parts) -> dict[str, Any]:
    """The facts about the wrapped objects that define the bits."""
    facts: dict[str, Any] = {}
    for number, model in enumerate(parts.models):
        inner = bare(model)
        facts[f"model{number}"] = f"{type(inner).__name__} {sum(p.numel() for p in inner.parameters())}"
        facts[f"model{number}_compiled"] = inner is not model and not isinstance(
            model, torch.nn.parallel.DistributedDataParallel
        )
    for number, optimizer in enumerate(parts.optimizers):
        # Fused kernels round otherwise than the others, which agree among themselves.
        fused = bool(optimizer.defaults.get("fused"))
        facts[f"optimizer{number}"] = type(optimizer).__name__ + (" fused" if fused else "")
    return facts
