"""Every mistake in the loop gets one sentence (the value, the rule, the fix); what is no mistake is let through."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from melodeon.core.errors import NonFiniteLoss, UsageError
from melodeon.runtime.guard import sums_of
from tests.runtime.joined import Join, Script
from tests.runtime.loop import parts


def steps_twice(script: Script, batch: Any) -> None:
    script.good(batch)
    script.optimizer.step()


def never_steps(script: Script, batch: Any) -> None:
    script.job.backward(script.loss(batch))


def own_backward(script: Script, batch: Any) -> None:
    script.loss(batch).backward()
    script.optimizer.step()


def own_backward_and_ours(script: Script, batch: Any) -> None:
    script.loss(batch).backward()
    script.good(batch)


def no_backward(script: Script, batch: Any) -> None:
    pass


def backward_twice(script: Script, batch: Any) -> None:
    script.job.backward(script.loss(batch))
    script.job.backward(script.loss(batch))


def more_and_no_more(script: Script, batch: Any) -> None:
    script.job.backward(script.loss(batch), more=True)
    script.optimizer.step()


def closure(script: Script, batch: Any) -> None:
    script.job.backward(script.loss(batch))
    script.optimizer.step(lambda: 0.0)


def not_scalar(script: Script, batch: Any) -> None:
    script.job.backward(script.model(batch[0]))


def not_tensor(script: Script, batch: Any) -> None:
    script.job.backward(1.0)  # type: ignore[arg-type]


def detached(script: Script, batch: Any) -> None:
    script.job.backward(script.loss(batch).detach())


def steps_first(script: Script, batch: Any) -> None:
    script.optimizer.step()
    script.job.backward(script.loss(batch))


def own_clipping(script: Script, batch: Any) -> None:
    script.job.backward(script.loss(batch))
    nn.utils.clip_grad_norm_(script.model.parameters(), 0.01)
    script.optimizer.step()


def own_zeroing(script: Script, batch: Any) -> None:
    for param in script.model.parameters():
        param.grad = None
    script.good(batch)


def own_scaler(script: Script, batch: Any) -> None:
    scaler = torch.amp.GradScaler("cpu")
    script.job.backward(scaler.scale(script.loss(batch)))
    scaler.step(script.optimizer)
    scaler.update()


def changes_weights(script: Script, batch: Any) -> None:
    script.good(batch)
    with torch.no_grad():
        script.model.bias.clamp_(-0.1, 0.1)


def replaces_weights(script: Script, batch: Any) -> None:
    script.good(batch)
    script.model.bias.data = script.model.bias.data * 0.5


def clips_without_norm(script: Script, batch: Any) -> None:
    script.job.backward(script.loss(batch))
    script.job.clip_grad_norm_(script.model.parameters())


def own_optimizer(script: Script, batch: Any) -> None:
    other = nn.Linear(parts.FEATURES, parts.CLASSES)
    script.good(batch)
    other(batch[0]).sum().backward()
    torch.optim.Adam(other.parameters()).step()


def logs_a_vector(script: Script, batch: Any) -> None:
    script.job.log(output=script.model(batch[0]))


def logs_a_word(script: Script, batch: Any) -> None:
    script.job.log(output="high")  # type: ignore[arg-type]


def logs_the_step(script: Script, batch: Any) -> None:
    script.job.log(step=3)


def saves_inside(script: Script, batch: Any) -> None:
    script.job.save()


def freezes_midway(script: Script, batch: Any) -> None:
    script.model.bias.requires_grad_(script.job.virtual_rank < 2)
    script.good(batch)


def two_at_once(script: Script, batch: Any) -> None:
    next(iter(script.loader))


MISTAKES: dict[Callable[[Script, Any], None], str] = {
    steps_twice: "SGD stepped twice in step 0: call optimizer.step\\(\\) once",
    never_steps: "step 0 ended without optimizer.step\\(\\)",
    own_backward: "optimizer.step\\(\\) was called before job.backward\\(loss\\) for virtual worker 0 of step 0",
    own_backward_and_ours: "the gradient of 'weight' was changed outside job.backward in step 0",
    no_backward: "no job.backward\\(loss\\) came for virtual worker 0 of step 0",
    backward_twice: "job.backward was called twice for virtual worker 0 of step 0: add the losses",
    more_and_no_more: "optimizer.step\\(\\) was called before job.backward\\(loss\\) for virtual worker 0",
    closure: "SGD.step was given a closure",
    not_scalar: "a scalar loss, and was given \\(2, 4\\): reduce it",
    not_tensor: "a scalar loss, and was given float",
    detached: "job.backward was given a loss that needs no gradient: compute it from what the wrapped model returns",
    steps_first: "optimizer.step\\(\\) was called before job.backward",
    own_clipping: "the gradient of '(weight|bias)' was changed .* clip with job.clip_grad_norm_",
    own_zeroing: "the gradient of '(weight|bias)' was changed outside job.backward",
    own_scaler: "SGD.step was called by a GradScaler that is not wrapped",
    changes_weights: "'bias' was changed in step 0 before the update",
    replaces_weights: "'bias' was changed in step 0 before the update",
    clips_without_norm: "job.clip_grad_norm_ needs max_norm",
    own_optimizer: "Adam stepped inside the training loop and is not wrapped",
    logs_a_vector: "was given \\(2, 4\\): log one number",
    logs_a_word: "was given 'high': log one number",
    logs_the_step: "is the name of a column",
    saves_inside: "job.save was called inside a step",
    freezes_midway: "requires_grad changed in step 0 between two virtual workers",
    two_at_once: "two loaders of one job were iterated at once",
}


@pytest.mark.parametrize("order", ["tree", "ddp"])
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__)
def test_loop(join: Join, order: str, mistake: Callable[[Script, Any], None]) -> None:
    script = Script(join(order=order))
    with pytest.raises(UsageError, match=MISTAKES[mistake]):
        script.train(mistake)


def test_outside_the_loop(join: Join) -> None:
    script = Script(join())
    for call in (lambda: script.job.backward(torch.tensor(1.0)), lambda: script.job.log(loss=1.0)):
        with pytest.raises(UsageError, match="outside a step"):
            call()
    with pytest.raises(UsageError, match=r"the loader was iterated outside job.epochs\(...\)"):
        next(iter(script.loader))


class Momentum(nn.Module):
    """Its frozen half follows the other one, in every forward pass."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.query, self.key = (nn.Linear(parts.FEATURES, parts.CLASSES) for _ in range(2))
        self.key.requires_grad_(False)
        self.how = how

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        query, key = self.query.weight, self.key.weight
        if self.how == "replace":
            key.data = key.data * 0.9 + query.data * 0.1
        elif self.how == "unseen":
            key.data.mul_(0.9).add_(query.data, alpha=0.1)
        else:
            with torch.no_grad():
                key.mul_(0.9).add_(query, alpha=0.1)
        outputs: torch.Tensor = self.query(inputs) + self.key(inputs)
        return outputs


@pytest.mark.parametrize("order", ["tree", "ddp"])
@pytest.mark.parametrize("how", ["write", "replace", "unseen"])
def test_frozen_weights_that_a_forward_pass_changes(join: Join, order: str, how: str) -> None:
    script = Script(join(order=order), Momentum(how))
    with pytest.raises(UsageError, match=r"'key.weight' was changed in step 0 before the update, .* in a forward pass"):
        script.train(Script.good)


def test_weights_clamped_after_every_batch(join: Join) -> None:
    """As WGAN's scripts do: the first virtual workers of a step would clamp what the others have yet to read."""
    script = Script(join())

    def body(script: Script, batch: Any) -> None:
        script.good(batch)
        script.model.weight.data.clamp_(-0.01, 0.01)

    with pytest.raises(UsageError, match=r"'weight' was changed in step 0 before the update, by the script"):
        script.train(body)


def test_weights_clamped_once_per_step(join: Join) -> None:
    script = Script(join())

    def body(script: Script, batch: Any) -> None:
        script.good(batch)
        if script.job.committed:
            script.model.weight.data.clamp_(-0.01, 0.01)

    script.train(body, epochs=2)
    assert script.model.weight.abs().max() <= 0.01


def test_weights_of_many_types_and_layouts_are_summed_up() -> None:
    shared = torch.randn(4, 6)
    kinds = (torch.float64, torch.bfloat16, torch.complex64, torch.complex128, torch.float8_e4m3fn)
    tensors = [shared.t(), torch.zeros(0, 3), torch.tensor(1.5), *(torch.ones(3).to(kind) for kind in kinds)]
    before = sums_of(tensors)
    assert sums_of(tensors) == before
    shared[1, 1] += 1.0
    for tensor in tensors[2:]:
        tensor.data.copy_(tensor * 2 if tensor.dtype != torch.float8_e4m3fn else torch.tensor(2.0))
    assert [now == then for now, then in zip(sums_of(tensors), before, strict=True)] == [False, True, *([False] * 6)]


def test_frozen_weights_may_change_once_per_step(join: Join) -> None:
    script = Script(join(), nn.Sequential(nn.Linear(parts.FEATURES, 4), nn.Linear(4, parts.CLASSES)))
    script.model[0].requires_grad_(False)

    def body(script: Script, batch: Any) -> None:
        script.good(batch)
        if script.job.committed:
            script.model[0].weight.data = script.model[0].weight.data * 0.5
            with torch.no_grad():
                script.model[0].bias.mul_(0.5)

    script.train(body, epochs=2)
    assert script.job.step == 4


def test_weights_may_move_if_they_keep_their_values(join: Join) -> None:
    script = Script(join())

    def body(script: Script, batch: Any) -> None:
        script.model.weight.data = script.model.weight.data.clone()
        script.good(batch)

    script.train(body)
    assert script.job.step == 2


def test_weights_of_inference_mode_may_be_frozen(join: Join) -> None:
    with torch.inference_mode():
        body = nn.Linear(parts.FEATURES, 4).requires_grad_(False)
    script = Script(join(), nn.Sequential(body, nn.Linear(4, parts.CLASSES)))
    script.train(Script.good)
    assert script.job.step == 2


@pytest.mark.parametrize("place", ["before the update", "at the second virtual worker"])
def test_leaving_the_loop_inside_a_step(join: Join, place: str) -> None:
    script = Script(join())

    def train() -> None:
        for _ in script.job.epochs(2):
            for batch in script.loader:
                script.job.backward(script.loss(batch))
                if place == "before the update" or script.job.virtual_rank == 1:
                    break
                script.optimizer.step()

    with pytest.raises(UsageError, match="the loop was left inside step 0, at virtual worker"):
        train()


def test_a_loss_that_is_not_finite(join: Join) -> None:
    script = Script(join())
    with pytest.raises(NonFiniteLoss, match="a loss of step 0 is NaN or infinite"):
        script.train(lambda s, batch: s.good((batch[0] * float("inf"), batch[1])))


def test_a_buffer_that_changes_its_shape(join: Join) -> None:
    class Grows(nn.Linear):
        def __init__(self) -> None:
            super().__init__(parts.FEATURES, parts.CLASSES)
            self.register_buffer("seen", torch.zeros(1))

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            self.seen = torch.cat([self.seen, self.seen])
            return super().forward(inputs)

    script = Script(join(), Grows())
    with pytest.raises(UsageError, match=r"buffer 'seen' went from torch.float32 \(1,\) to torch.float32 \(2,\)"):
        script.train(Script.good)
