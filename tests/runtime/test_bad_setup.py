"""Every mistake before the loop gets one sentence (the value, the rule, the fix) and a non-zero exit."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import lr_scheduler
from torch.utils.data import IterableDataset

from melodeon.core.errors import UsageError
from tests.runtime.joined import Join, Script
from tests.runtime.loop import parts


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
