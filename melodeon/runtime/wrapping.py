"""What `job.wrap(...)` accepts, and what must hold of it before the first step."""

import json
from collections.abc import Sequence
from typing import Any

import torch

from melodeon.core.errors import DefinitionError, UsageError
from melodeon.runtime.digest import digest_state
from melodeon.runtime.group import Group
from melodeon.runtime.state import Parts, bare, named_parameters

Scheduler = torch.optim.lr_scheduler.LRScheduler
_Scaler = torch.amp.GradScaler


def add(parts: Parts, owner: object) -> str:
    """Put an object where its kind belongs and return the kind; refuse what cannot be wrapped."""
    if isinstance(owner, torch.nn.Module):
        check_model(owner)
        parts.models.append(owner)
        return "model"
    if isinstance(owner, torch.optim.Optimizer):
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
        raise UsageError("the model is wrapped in DistributedDataParallel: give job.wrap the bare model, it takes DDP's place")
    for name, child in bare(model).named_modules():
        if isinstance(child, torch.nn.SyncBatchNorm):
            raise UsageError(
                f"{name or 'the model'!r} is a SyncBatchNorm, which mixes the batches of all processes inside a layer: use "
                "BatchNorm, whose statistics are virtual rank 0's, or a norm without batch statistics such as GroupNorm"
            )
        if isinstance(child, torch.nn.Embedding | torch.nn.EmbeddingBag) and child.sparse:
            raise UsageError(f"{name!r} makes sparse gradients, which have no fixed order of summation: use sparse=False")


def check_parts(parts: Parts, group: Group) -> None:
    """Before the first step: something to train, by optimizers that own its parameters, equal on all workers."""
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
                f"optimizer {number} ({type(optimizer).__name__}) updates {len(strangers)} parameters, the first of shape "
                f"{tuple(strangers[0].shape)}, that belong to no wrapped model: wrap the module that owns them too"
            )
    check_same_model(parts.models, group)


def check_same_model(models: Sequence[torch.nn.Module], group: Group) -> None:
    """All workers must start from the same weights; names the first tensor that differs."""
    if group.size == 1:
        return
    leaves = digest_state({str(i): bare(model).state_dict() for i, model in enumerate(models)}).leaves
    everyone = [json.loads(body) for body in group.gather_bytes(json.dumps(leaves).encode())]
    first = everyone[0]
    for worker, other in enumerate(everyone[1:], start=1):
        for name in dict.fromkeys([*first, *other]):
            if first.get(name) != other.get(name):
                label = name.partition(".")[2] if len(models) == 1 else name
                raise DefinitionError(
                    f"the model differs between workers: {label!r} of worker {worker} is not worker 0's; build the model "
                    "after melodeon.join(seed=...), which seeds every worker alike, and from the same code and files"
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
