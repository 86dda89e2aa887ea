"""One training script a feature; each must give the same states on every split, in both orders."""

import random
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import lr_scheduler
from torch.utils.checkpoint import checkpoint

import melodeon
from tests.runtime.loop import parts
from tests.runtime.loop.crew import tell

V = 5
"""Not a power of two: the tree has nodes without a right child."""


def groups_and_schedules(order: str) -> None:
    """Two optimizers, parameter groups, clipping; a schedule by step (made after wrap), one by epoch (made before)."""
    job = melodeon.join(virtual_workers=V, seed=3, order=order)
    body, head = nn.Sequential(nn.Linear(parts.FEATURES, 16), nn.Dropout(0.3), nn.Tanh()), nn.Linear(16, parts.CLASSES)
    decay = [{"params": [body[0].weight], "weight_decay": 0.1}, {"params": [body[0].bias], "lr": 0.05}]
    first = torch.optim.AdamW(decay, lr=0.01)
    second = torch.optim.SGD(head.parameters(), lr=0.1, momentum=0.9)
    by_epoch = lr_scheduler.StepLR(first, 1, gamma=0.5)
    body, head, first, second, by_epoch = job.wrap(body, head, first, second, by_epoch)
    by_step = job.wrap(lr_scheduler.OneCycleLR(second, max_lr=0.2, total_steps=20))
    loader = job.loader(parts.data(), batch_size=3, shuffle=True)
    norms: list[float] = []
    for _ in job.epochs(2):
        for x, y in loader:
            loss = cross_entropy(head(body(x)), y)
            job.backward(loss)
            norm = job.clip_grad_norm_([*body.parameters(), *head.parameters()], 0.5)
            first.step()
            second.step()
            by_step.step()
            first.zero_grad()
            second.zero_grad()
            if norm is not None:
                norms.append(float(norm))
        by_epoch.step()
    tell(
        {"norms": norms, "lr": [first.param_groups[0]["lr"], second.param_groups[0]["lr"]], "steps": by_step.last_epoch}
    )


def amp(order: str) -> None:
    """Autocast to bf16 and a GradScaler; one step's gradients overflow and the scaler leaves it out."""
    job = melodeon.join(virtual_workers=V, seed=1, order=order)
    model = parts.cnn()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
    model, optimizer, scaler = job.wrap(model, optimizer, scaler)
    loader = job.loader(parts.images(), batch_size=2, shuffle=True)
    scales: list[float] = []
    for _ in job.epochs(1):
        for x, y in loader:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = cross_entropy(model(x), y)
            if job.step == 2 and job.virtual_rank == 3:
                loss = loss + _overflow(model[0].weight)
            job.backward(scaler.scale(loss))
            scaler.unscale_(optimizer)
            job.clip_grad_norm_(1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            if job.committed:
                scales.append(scaler.get_scale())
    tell({"scales": scales, "updates": float(optimizer.state[model[0].weight]["step"])})


def _overflow(weight: torch.Tensor) -> torch.Tensor:
    """Adds nothing to the loss and an infinite gradient to the weight."""
    return _Steep.apply(weight)


class _Steep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor) -> torch.Tensor:
        ctx.shape = weight.shape
        return weight.new_zeros(())

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return torch.full(ctx.shape, float("inf"))


def layouts(order: str) -> None:
    """BatchNorm and Dropout, channels_last, bf16 parameters beside fp32 ones, a frozen layer, NAdam."""
    job = melodeon.join(virtual_workers=V, seed=2, order=order)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 4, 3, padding=1, bias=False),
        nn.Dropout2d(0.3),
        nn.Flatten(),
        nn.Linear(4 * 36, 16),
        nn.Linear(16, parts.CLASSES),
    ).to(memory_format=torch.channels_last)
    model[6].requires_grad_(False)
    model[7].to(torch.bfloat16)
    optimizer = torch.optim.NAdam(model.parameters(), lr=0.01, weight_decay=0.1)
    model, optimizer = job.wrap(model, optimizer)
    loader = job.loader(parts.images(), batch_size=2, shuffle=True)
    for _ in job.epochs(1):
        for x, y in loader:
            hidden = model[:7](x.to(memory_format=torch.channels_last))
            job.backward(cross_entropy(model[7](hidden.bfloat16()).float(), y))
            job.clip_grad_norm_(model.parameters(), 0.3)
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)


def tied(order: str, num_workers: int) -> None:
    """Tied weights, loader processes, augmentation that draws."""
    job = melodeon.join(virtual_workers=V, seed=5, order=order)
    model = parts.Tied()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model, optimizer = job.wrap(model, optimizer)
    # Named, because in a fork of a fork server the default is another fork server, which imports torch anew.
    context = "fork" if num_workers else None
    options = {"num_workers": num_workers, "multiprocessing_context": context}
    loader = job.loader(Tokens(), batch_size=2, shuffle=True, **options)
    for _ in job.epochs(1):
        for tokens in loader:
            logits = model(tokens[:, :-1]).flatten(0, 1)
            job.backward(cross_entropy(logits, tokens[:, 1:].flatten()))
            optimizer.step()
            optimizer.zero_grad()


def two_passes(order: str) -> None:
    """Two backward passes a batch, of which the second leaves a layer out."""
    job = melodeon.join(virtual_workers=V, seed=5, order=order)
    model = parts.mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model, optimizer = job.wrap(model, optimizer)
    loader = job.loader(parts.data(), batch_size=3)
    for _ in job.epochs(1):
        for x, y in loader:
            job.backward(cross_entropy(model(x), y), more=True)
            job.backward(0.1 * model[0](x).square().mean())
            optimizer.step()
            optimizer.zero_grad()


def hooked(order: str) -> None:
    """Hooks that change gradients as they come: one from the start, others from the second epoch on."""
    job = melodeon.join(virtual_workers=V, seed=5, order=order)
    model = parts.mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def clip(param: torch.Tensor) -> None:
        assert param.grad is not None
        param.grad.clamp_(-0.001, 0.001)

    model[3].weight.register_post_accumulate_grad_hook(clip)
    model, optimizer = job.wrap(model, optimizer)
    loader = job.loader(parts.data(), batch_size=2)
    for epoch in job.epochs(2):
        if epoch == 1:
            for param in model[0].parameters():
                param.register_post_accumulate_grad_hook(clip)
        for x, y in loader:
            job.backward(cross_entropy(model(x), y))
            optimizer.step()
            optimizer.zero_grad()


class Tokens(torch.utils.data.Dataset[torch.Tensor]):
    """Sequences with noise from all three generators."""

    def __len__(self) -> int:
        return 37

    def __getitem__(self, index: int) -> torch.Tensor:
        noise = random.randrange(3) + int(np.random.randint(3)) + torch.randint(0, 3, (6,))
        return (torch.arange(6) * index + noise) % 12


def branches(order: str) -> None:
    """A layer unused by some virtual workers in odd steps, by all in step 2; one never used. All have weight decay."""
    job = melodeon.join(virtual_workers=V, seed=4, order=order, find_unused_parameters=order == "ddp")
    model = parts.Branches()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, weight_decay=0.5)
    model, optimizer = job.wrap(model, optimizer)
    loader = job.loader(parts.data(), batch_size=2, shuffle=True)
    idle, kept = model.idle.weight.detach().clone(), []
    for _ in job.epochs(1):
        for x, y in loader:
            step, before = job.course.beat.step, model.extra.weight.detach().clone()
            some = job.virtual_rank in (1, 4) if step % 2 else True
            job.backward(cross_entropy(model(x, extra=some and step != 2), y))
            optimizer.step()
            if job.committed:
                kept.append([model.extra.weight.grad is None, torch.equal(before, model.extra.weight)])
            optimizer.zero_grad()
    tell({"idle_moved": not torch.equal(idle, model.idle.weight), "extra": kept})


def logs(order: str, uneven: str = "exact", num_samples: int = 23) -> None:
    """Logged means, and a dataset that does not divide."""
    job = melodeon.join(virtual_workers=V, seed=8, order=order, log_every=2)
    model = nn.Linear(parts.FEATURES, parts.CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = job.wrap(model, optimizer)
    loader = job.loader(parts.data(num_samples), batch_size=2, uneven=uneven)
    for _ in job.epochs(2):
        for x, y in loader:
            loss = cross_entropy(model(x), y)
            job.backward(loss)
            optimizer.step()
            job.log(loss=loss, rank=job.virtual_rank, first=1.0 if job.virtual_rank == 0 else None)
            if job.committed:
                tell([float(value) for value in model.weight.grad.flatten()])
            optimizer.zero_grad()


def recomputed(order: str, reentrant: bool) -> None:
    """Activation checkpointing of layers with Dropout and BatchNorm."""
    job = melodeon.join(virtual_workers=V, seed=9, order=order)
    lift, body, head = (
        nn.Linear(parts.FEATURES, 12),
        nn.Sequential(nn.Linear(12, 12), nn.Dropout(0.4)),
        nn.Linear(12, 4),
    )
    optimizer = torch.optim.Adam([*lift.parameters(), *body.parameters(), *head.parameters()], lr=0.01)
    lift, body, head, optimizer = job.wrap(lift, body, head, optimizer)
    loader = job.loader(parts.data(), batch_size=3, shuffle=True)
    for _ in job.epochs(1):
        for x, y in loader:
            job.backward(cross_entropy(head(checkpoint(body, lift(x), use_reentrant=reentrant)), y))
            optimizer.step()
            optimizer.zero_grad()


def shared_recomputed(order: str) -> None:
    """One module twice under reentrant checkpointing: its gradient arrives in two parts."""
    job = melodeon.join(virtual_workers=V, seed=9, order=order)
    model = nn.Linear(parts.FEATURES, parts.FEATURES)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    model, optimizer = job.wrap(model, optimizer)
    loader = job.loader(parts.data(), batch_size=3)
    for _ in job.epochs(1):
        for x, y in loader:
            hidden = checkpoint(model, x.requires_grad_(), use_reentrant=True)
            job.backward(cross_entropy(checkpoint(model, hidden, use_reentrant=True), y))
            optimizer.step()
            optimizer.zero_grad()


def thaw(order: str, where: str) -> None:
    """A layer is frozen until step 2; `where` in the loop the script thaws it."""
    job = melodeon.join(virtual_workers=V, seed=10, order=order)
    model = parts.mlp()
    model[0].requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    model, optimizer = job.wrap(model, optimizer)
    loader = job.loader(parts.data(), batch_size=2)
    for _ in job.epochs(1):
        for x, y in loader:
            if where == "before" and job.step == 2:
                model[0].requires_grad_(True)
            job.backward(cross_entropy(model(x), y))
            optimizer.step()
            optimizer.zero_grad()
            if where == "after" and job.committed and job.step == 2:
                model[0].requires_grad_(True)
                model[3].requires_grad_(False)


def breaks(order: str) -> None:
    """The inner loop is left early in every epoch, the outer one too."""
    job = melodeon.join(virtual_workers=V, seed=11, order=order)
    model = parts.mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    scheduler = lr_scheduler.ExponentialLR(optimizer, 0.9)
    model, optimizer, scheduler = job.wrap(model, optimizer, scheduler)
    loader = job.loader(parts.data(), batch_size=2, shuffle=True)
    for epoch in job.epochs(9):
        for x, y in loader:
            if epoch == 1 and job.step == 5:
                break
            job.backward(cross_entropy(model(x), y))
            optimizer.step()
            optimizer.zero_grad()
            if job.committed and job.step in (2, 8):
                break
        scheduler.step()
        if epoch == 2:
            break


def not_finite(order: str, nan: str) -> None:
    """A loss of one virtual worker is NaN in step 1."""
    job = melodeon.join(virtual_workers=V, seed=12, order=order, nan=nan)
    model = parts.cnn()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    model, optimizer, scaler = job.wrap(model, optimizer, scaler)
    loader = job.loader(parts.images(), batch_size=2)
    for _ in job.epochs(1):
        for x, y in loader:
            if job.course.beat.step == 1 and job.virtual_rank == 0:
                x = x * float("nan")
            job.backward(scaler.scale(cross_entropy(model(x), y)))
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    tell(bool(all(torch.isfinite(value).all() for value in model.state_dict().values())))


def compiled(order: str) -> None:
    """torch.compile of a model with BatchNorm and Dropout."""
    job = melodeon.join(virtual_workers=V, seed=16, order=order)
    model = torch.compile(nn.Sequential(*parts.cnn(), nn.Dropout(0.2)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model, optimizer = job.wrap(model, optimizer)
    loader = job.loader(parts.images(40), batch_size=2, shuffle=True)
    for _ in job.epochs(2):
        for x, y in loader:
            job.backward(cross_entropy(model(x), y))
            optimizer.step()
            optimizer.zero_grad()
    tell({"tracked": int(model.get_buffer("_orig_mod.1.num_batches_tracked"))})


def two_loaders(order: str) -> None:
    """Two datasets in turn in every epoch, and a second loop of epochs."""
    job = melodeon.join(virtual_workers=V, seed=17, order=order)
    model = parts.mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    model, optimizer = job.wrap(model, optimizer)
    loaders = [job.loader(parts.data(24), batch_size=2, shuffle=True), job.loader(parts.data(11), batch_size=1)]
    seen: list[int] = []
    for count in (1, 2):
        for epoch in job.epochs(count):
            for loader in loaders:
                for x, y in loader:
                    job.backward(cross_entropy(model(x), y))
                    optimizer.step()
                    optimizer.zero_grad()
            seen.append(epoch)
    tell(seen)


def eight(order: str) -> None:
    """A power of two: the tree is full, and some splits exchange whole halves of it."""
    job = melodeon.join(virtual_workers=8, seed=19, order=order)
    model = parts.mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model, optimizer = job.wrap(model, optimizer)
    loader = job.loader(parts.data(), batch_size=2, shuffle=True)
    for _ in job.epochs(1):
        for x, y in loader:
            job.backward(cross_entropy(model(x), y))
            job.clip_grad_norm_(0.1)
            optimizer.step()
            optimizer.zero_grad()


def alone(order: str) -> None:
    """One virtual worker."""
    job = melodeon.join(virtual_workers=1, seed=18, order=order)
    model = nn.Linear(parts.FEATURES, parts.CLASSES)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model, optimizer = job.wrap(model, optimizer)
    loader = job.loader(parts.data(), batch_size=11)
    for _ in job.epochs(1):
        for x, y in loader:
            job.backward(cross_entropy(model(x), y))
            optimizer.step()
            optimizer.zero_grad()
    tell([float(value) for value in model.weight.detach().flatten()])
