"""Every mistake gets one sentence (the value, the rule, the fix) and a non-zero exit."""

import atexit
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import lr_scheduler
from torch.utils.data import IterableDataset

import melodeon
from melodeon.core.errors import NonFiniteLoss, UsageError
from melodeon.core.launch import Launch
from tests.runtime.loop import parts

V = 4
Join = Callable[..., melodeon.Job]


@pytest.fixture
def join(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Join]:
    """Join in this process as a job of one worker, and leave nothing behind."""
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    torch.set_num_threads(1)
    for name, value in Launch(run_dir=str(tmp_path)).to_env().items():
        monkeypatch.setenv(name, value)
    jobs: list[melodeon.Job] = []

    def join_here(**options: Any) -> melodeon.Job:
        jobs.append(melodeon.join(**{"virtual_workers": V, "seed": 0, **options}))
        return jobs[-1]

    yield join_here
    for job in jobs:
        atexit.unregister(job.course.close)
        job.course.broken = True
        job.close()
    torch.use_deterministic_algorithms(False)


class Script:
    """A good script, to be run with one mistake in `body`, which gets each batch."""

    def __init__(self, job: melodeon.Job, model: nn.Module | None = None, samples: int = 16) -> None:
        self.job = job
        self.model = model if model is not None else nn.Linear(parts.FEATURES, parts.CLASSES)
        self.optimizer: torch.optim.Optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.model, self.optimizer = job.wrap(self.model, self.optimizer)
        self.loader = job.loader(parts.data(samples), batch_size=2)

    def loss(self, batch: Any) -> torch.Tensor:
        x, y = batch
        return cross_entropy(self.model(x), y)

    def train(self, body: "Callable[[Script, Any], None]", epochs: int = 1) -> None:
        for _ in self.job.epochs(epochs):
            for batch in self.loader:
                body(self, batch)

    def good(self, batch: Any) -> None:
        self.job.backward(self.loss(batch))
        self.optimizer.step()
        self.optimizer.zero_grad()


# -- join ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"virtual_workers": 0}, "virtual_workers=0 must be a whole number of at least 1"),
        ({"virtual_workers": 2.0}, "virtual_workers=2.0 must be"),
        ({"virtual_workers": True}, "virtual_workers=True must be"),
        ({"virtual_workers": 10**9}, "virtual_workers=1000000000 is more than 65536"),
        ({"seed": -1}, "seed=-1 must be"),
        ({"seed": "one"}, "seed='one' must be"),
        ({"order": "ring"}, "order='ring' is not known: use 'tree'"),
        ({"nan": "stop"}, "nan='stop' is not known"),
        ({"determinism": "D3"}, "D3"),
        ({"determinism": 0}, "determinism 0 is not one of"),
        ({"determinism": 1}, "determinism 1 is not one of D0, D1, D2: did you mean D1"),
        ({"log_every": 0}, "log_every=0 must be"),
        ({"receipt_every": -1}, "receipt_every=-1 must be"),
        ({"device": "cuda"}, "device='cuda' was asked for"),
        ({"device": "foo"}, "device='foo' cannot train: use 'cpu', 'cuda' or"),
        ({"device": 3}, "device=3 cannot train"),
        ({"device": "mps"}, "device='mps' cannot train"),
        ({"device": torch.device("meta")}, "device='meta' cannot train"),
    ],
)
def test_join(join: Join, options: dict[str, Any], sentence: str) -> None:
    if options.get("device") == "cuda" and torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    with pytest.raises(UsageError, match=sentence):
        join(**options)


def test_a_wrong_argument_of_join_ends_a_plain_script_with_one_sentence_and_no_run(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import melodeon\nmelodeon.join(virtual_workers=0)\n")
    env = {name: value for name, value in os.environ.items() if not name.startswith("MELODEON")}
    ended = subprocess.run([sys.executable, script], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert ended.returncode == 2
    assert ended.stderr == "error: virtual_workers=0 must be a whole number of at least 1, such as 8\n"
    assert not (tmp_path / ".melodeon").exists()


# -- setting up ----------------------------------------------------------------------------------------------------


def test_nothing_to_wrap(join: Join) -> None:
    with pytest.raises(UsageError, match="without objects"):
        join().wrap()


def test_wrap_of_something_else(join: Join) -> None:
    with pytest.raises(
        UsageError, match="was given a dict: it takes modules, optimizers, LR schedulers and GradScalers"
    ):
        join().wrap({})


def test_wrap_twice(join: Join) -> None:
    script = Script(join())
    for owner in (script.model, script.optimizer):
        with pytest.raises(UsageError, match=f"given this {type(owner).__name__} before"):
            script.job.wrap(owner)


@pytest.mark.parametrize(
    ("layer", "sentence"),
    [
        (nn.SyncBatchNorm(4), "'1' is a SyncBatchNorm"),
        (nn.Embedding(4, 4, sparse=True), "'1' makes sparse gradients"),
        (nn.Embedding(4, 4, max_norm=1.0), "'1' has max_norm=1.0"),
        (nn.LazyLinear(4), "'1.weight' has no shape yet: run one batch through the model before job.wrap"),
        (nn.LazyBatchNorm1d(), "'1.weight' has no shape yet"),
    ],
)
def test_models_that_cannot_be_wrapped(join: Join, layer: nn.Module, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        join().wrap(nn.Sequential(nn.Linear(4, 4), layer))


@pytest.mark.parametrize("scheduled", [False, True])
def test_an_optimizer_that_runs_the_model_by_itself(join: Join, scheduled: bool) -> None:
    optimizer = torch.optim.LBFGS(nn.Linear(2, 2).parameters())
    if scheduled:
        lr_scheduler.StepLR(optimizer, 1)
    with pytest.raises(UsageError, match=r"LBFGS\.step needs a closure, which would run the model again"):
        join().wrap(optimizer)


def test_a_script_that_forgets_to_wrap(join: Join) -> None:
    job = join()
    model = nn.Linear(parts.FEATURES, parts.CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = job.loader(parts.data(16), batch_size=2)

    def train() -> None:
        for _ in job.epochs(1):
            for x, y in loader:
                cross_entropy(model(x), y).backward()
                optimizer.step()

    with pytest.raises(UsageError, match=r"no model is wrapped: call model, optimizer = job\.wrap"):
        train()


def test_no_model(join: Join) -> None:
    job = join()
    job.wrap(torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1))
    with pytest.raises(UsageError, match="no model is wrapped"):
        next(iter(job.epochs(1)))


def test_no_optimizer(join: Join) -> None:
    job = join()
    job.wrap(nn.Linear(2, 2))
    with pytest.raises(UsageError, match="no optimizer is wrapped"):
        next(iter(job.epochs(1)))


def test_an_optimizer_of_foreign_parameters(join: Join) -> None:
    job = join()
    job.wrap(nn.Linear(2, 2), torch.optim.SGD(nn.Linear(3, 5).parameters(), lr=0.1))
    with pytest.raises(
        UsageError,
        match=r"optimizer 0 \(SGD\) updates 2 parameters, the first of shape \(5, 3\), that belong to no wrapped model",
    ):
        next(iter(job.epochs(1)))


def test_nothing_to_train(join: Join) -> None:
    job = join()
    model = nn.Linear(2, 2).requires_grad_(False)
    job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(UsageError, match="nothing to train"):
        next(iter(job.epochs(1)))


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_scheduler_that_is_not_wrapped(join: Join, when: str) -> None:
    job = join()
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if when == "before":
        scheduler = lr_scheduler.StepLR(optimizer, 1)
    job.wrap(model, optimizer)
    if when == "after":
        scheduler = lr_scheduler.StepLR(optimizer, 1)
    with pytest.raises(UsageError, match="an LR scheduler of SGD is not wrapped"):
        next(iter(job.epochs(1)))
    job.wrap(scheduler)
    next(iter(job.epochs(1)))


def test_register(join: Join) -> None:
    job = join()
    with pytest.raises(UsageError, match="was given a dict, which has no state_dict or load_state_dict"):
        job.register("extra", {})
    job.register("ema", nn.Linear(2, 2))
    with pytest.raises(UsageError, match=r"job.register\('ema', ...\) was called before"):
        job.register("ema", nn.Linear(2, 2))
    with pytest.raises(UsageError, match="needs a name"):
        job.register("", nn.Linear(2, 2))


class Ticks(nn.Module):
    def tick(self) -> None:
        pass


@pytest.mark.parametrize(
    ("once", "sentence"),
    [
        ("tick", r"once='tick' is one string: pass the names of methods in a tuple, once=\('tick',\)"),
        (("tick", "tik"), "names 'tik', and Ticks has no such method"),
        ((3,), "names 3, and Ticks has no such method"),
        (("training",), "names 'training', and Ticks has no such method"),
    ],
)
def test_names_of_methods_that_are_none(join: Join, once: Any, sentence: str) -> None:
    job = join()
    with pytest.raises(UsageError, match=sentence):
        job.register("ticks", Ticks(), once=once)
    job.register("ticks", Ticks(), once=iter(["tick"]))


def test_a_method_set_on_the_object(join: Join) -> None:
    job, ticks = join(), Ticks()
    ticks.update = ticks.tick
    with pytest.raises(UsageError, match="'update' of this Ticks was set on the object"):
        job.register("ticks", ticks)
    job.register("ticks", ticks, once=["tick"])


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"batch_size": 0}, "batch_size=0 must be"),
        ({"batch_size": 2.5}, "batch_size=2.5 must be"),
        ({"batch_size": 2, "uneven": "maybe"}, "uneven='maybe' is not known"),
        ({"batch_size": 99, "drop_last": True}, "needs 396 for one step"),
        ({"batch_size": 2, "num_workers": -1}, "num_workers=-1 must be"),
        ({"batch_size": 3, "drop_last": True, "uneven": "exact"}, "drop_last=True and uneven='exact' contradict"),
        ({"batch_size": 3, "drop_last": True, "uneven": "pad"}, "drop_last=True and uneven='pad' contradict"),
        ({"batch_size": 2, "sampler": None}, "job.loader does not take sampler=: .*uneven it takes num_workers, "),
        ({"batch_size": 2, "generator": torch.Generator()}, "does not take generator="),
        ({"batch_size": 2, "persistent_workers": True}, "does not take persistent_workers="),
    ],
)
def test_loader_options(join: Join, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        join().loader(parts.data(16), **options)


def test_loader_options_that_say_what_is_so_anyway(join: Join) -> None:
    job = join()
    assert len(job.loader(parts.data(17), batch_size=2, drop_last=True, uneven="drop", prefetch_factor=None)) == 2


class Endless(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(9))


@pytest.mark.parametrize(
    ("dataset", "sentence"),
    [(Endless(), "Endless is an IterableDataset"), ([], "0 samples"), (iter(()), "has no __getitem__")],
)
def test_datasets(join: Join, dataset: Any, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        join().loader(dataset, 2)


def test_checkpoint(join: Join, tmp_path: Path) -> None:
    job = join()
    for every in (0, -1, 2.0, True):
        with pytest.raises(UsageError, match=f"every={every}"):
            job.checkpoint(str(tmp_path), every=every)
    with pytest.raises(UsageError, match="keep=0"):
        job.checkpoint(str(tmp_path), every=1, keep=0)
    for folder in (None, 3, "", "a\0b"):
        with pytest.raises(UsageError, match="names no folder: give a path, such as 'checkpoints'"):
            job.checkpoint(folder, every=1)  # type: ignore[arg-type]
    job.checkpoint(str(tmp_path), every=1)
    with pytest.raises(UsageError, match="called twice"):
        job.checkpoint(str(tmp_path), every=1)


def test_saving_too_early_or_nowhere(join: Join) -> None:
    script = Script(join())
    with pytest.raises(UsageError, match=r"job.save was called before the training loop began"):
        script.job.save()
    script.train(Script.good)
    with pytest.raises(UsageError, match="no checkpoint folder"):
        script.job.save()


def test_epochs(join: Join) -> None:
    for count in (-1, 1.5, True):
        with pytest.raises(UsageError, match="needs a whole number of epochs"):
            next(iter(Script(join()).job.epochs(count)))


def test_setting_up_too_late(join: Join, tmp_path: Path) -> None:
    script = Script(join())
    job = script.job
    for _ in job.epochs(1):
        for call in (
            lambda: job.wrap(nn.Linear(2, 2)),
            lambda: job.register("late", nn.Linear(2, 2)),
            lambda: job.loader(parts.data(16), 2),
            lambda: job.checkpoint(str(tmp_path), every=1),
        ):
            with pytest.raises(UsageError, match="after the training loop began"):
                call()


# -- the loop ------------------------------------------------------------------------------------------------------


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

    def __init__(self, *, replace: bool) -> None:
        super().__init__()
        self.query, self.key = (nn.Linear(parts.FEATURES, parts.CLASSES) for _ in range(2))
        self.key.requires_grad_(False)
        self.replace = replace

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        query, key = self.query.weight, self.key.weight
        if self.replace:
            key.data = key.data * 0.9 + query.data * 0.1
        else:
            with torch.no_grad():
                key.mul_(0.9).add_(query, alpha=0.1)
        outputs: torch.Tensor = self.query(inputs) + self.key(inputs)
        return outputs


@pytest.mark.parametrize("order", ["tree", "ddp"])
@pytest.mark.parametrize("replace", [True, False])
def test_frozen_weights_that_a_forward_pass_changes(join: Join, order: str, replace: bool) -> None:
    script = Script(join(order=order), Momentum(replace=replace))
    with pytest.raises(UsageError, match=r"'key.weight' was changed in step 0 before the update, .* in a forward pass"):
        script.train(Script.good)


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
