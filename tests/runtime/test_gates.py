"""Gated calls take effect once per step, and the objects stay what they were."""

import copy

import pytest
import torch
from torch.optim import lr_scheduler
from torch.optim.swa_utils import AveragedModel

from melodeon.core.errors import UsageError
from melodeon.runtime import gates


class Turns:
    """A job as gates see it: `now` says whether this is the turn that counts."""

    def __init__(self, *, now: bool = True, finite: bool = True) -> None:
        self.now, self.finite, self.needed = now, finite, False
        self.asked: list[str] = []

    def acts_now(self) -> bool:
        return self.now

    def reach_update(self, caller: str) -> bool:
        self.asked.append(caller)
        return self.now

    def begin_update(self, optimizer: torch.optim.Optimizer) -> bool:
        return self.finite

    def gradients_needed(self) -> bool:
        return self.needed


def make(**options: bool) -> tuple[Turns, torch.nn.Linear, torch.optim.Optimizer]:
    turns, model = Turns(**options), torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    gates.gate_optimizer(optimizer, turns)
    model(torch.ones(1, 2)).sum().backward()
    return turns, model, optimizer


@pytest.mark.parametrize("now", [True, False])
def test_an_optimizer_steps_when_it_is_time(now: bool) -> None:
    turns, model, optimizer = make(now=now)
    before = model.weight.detach().clone()
    optimizer.step()
    assert torch.equal(before, model.weight) is not now
    assert turns.asked == ["optimizer.step()"]


def test_a_skipped_update_changes_nothing() -> None:
    _, model, optimizer = make(finite=False)
    before = model.weight.detach().clone()
    optimizer.step()
    assert torch.equal(before, model.weight)


def test_a_closure_is_refused() -> None:
    _, _, optimizer = make()
    with pytest.raises(UsageError, match=r"SGD.step was given a closure"):
        optimizer.step(lambda: 0.0)


@pytest.mark.parametrize("needed", [True, False])
def test_zero_grad_waits_for_the_update(needed: bool) -> None:
    turns, model, optimizer = make()
    gates.gate_zero_grad(model, turns)
    turns.needed = needed
    optimizer.zero_grad(set_to_none=False)
    model.zero_grad()
    assert (model.weight.grad is not None) is needed


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_scheduler_steps_when_it_is_time(when: str) -> None:
    turns, model = Turns(), torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = lr_scheduler.ExponentialLR(optimizer, 0.5) if when == "before" else None
    gates.gate_optimizer(optimizer, turns)
    scheduler = scheduler or lr_scheduler.ExponentialLR(optimizer, 0.5)
    gates.gate_methods(scheduler, ["step"], turns)
    for now in (False, False, True):
        turns.now = now
        optimizer.step()
        scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.5
    assert isinstance(scheduler, lr_scheduler.ExponentialLR)
    assert type(scheduler).__name__ == "ExponentialLR"
    again = lr_scheduler.ExponentialLR(torch.optim.SGD(model.parameters(), lr=1.0), 0.5)
    again.load_state_dict(scheduler.state_dict())
    assert again.last_epoch == 1


def test_a_gated_average_is_still_a_module_and_can_be_copied() -> None:
    turns, model = Turns(now=False), torch.nn.Linear(2, 1)
    average = AveragedModel(model)
    keys = list(average.state_dict())
    gates.gate_methods(average, ["update_parameters", "no such method"], turns)
    average.update_parameters(model)
    assert int(average.n_averaged) == 0
    turns.now = True
    average.update_parameters(model)
    assert int(average.n_averaged) == 1
    assert list(average.state_dict()) == keys
    assert int(copy.deepcopy(average).n_averaged) == 1


def test_objects_with_slots_can_be_gated() -> None:
    class Slotted:
        __slots__ = ("count",)

        def step(self) -> None:
            self.count = 1

    turns, owner = Turns(now=False), Slotted()
    gates.gate_methods(owner, ["step"], turns)
    owner.step()
    assert not hasattr(owner, "count")
    turns.now = True
    owner.step()
    assert owner.count == 1


def scaled(turns: Turns) -> tuple[torch.nn.Linear, torch.optim.Optimizer, torch.amp.GradScaler]:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    gates.gate_optimizer(optimizer, turns)
    gates.gate_scaler(scaler, turns)
    scaler.scale(model(torch.ones(1, 2)).sum()).backward()
    return model, optimizer, scaler


@pytest.mark.parametrize("unscale", [True, False])
def test_a_scaler_acts_once(unscale: bool) -> None:
    turns = Turns(now=False)
    model, optimizer, scaler = scaled(turns)
    before = model.bias.detach().clone()
    for now in (False, True):
        turns.now = now
        if unscale:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
    assert torch.equal(model.bias, before - 1.0)  # the gradient is 1, unscaled once
    assert scaler.get_scale() == 8.0


@pytest.mark.parametrize("unscale", [True, False])
def test_a_scaler_lives_through_skipped_updates(unscale: bool) -> None:
    turns = Turns(finite=False)
    model, optimizer, scaler = scaled(turns)
    model.weight.grad = torch.full((1, 2), float("inf"))
    before = model.bias.detach().clone()
    for _ in range(2):
        if unscale:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
    assert torch.equal(model.bias, before)
    assert scaler.get_scale() == 2.0


def test_a_scaler_that_is_not_gated_is_refused() -> None:
    turns, _, optimizer = make()
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(torch.ones(()))
    with pytest.raises(UsageError, match=r"SGD.step was called by a GradScaler that is not wrapped"):
        scaler.step(optimizer)
    assert turns.asked == []
