"""Feature by feature: the state after every step is the same, to the bit, on every split of the virtual workers."""

from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

from tests.runtime.loop import cases, parts, state_cases
from tests.runtime.loop.crew import Case, Ended, run

SPLITS = ((5,), (3, 2), (1, 3, 1))
STEPS = 5
"""44 samples in batches of 2 for 5 virtual workers: four full steps and a short one."""

orders = pytest.mark.parametrize("order", ["tree", "ddp"])


def on_every_split(
    case: Case, tmp_path: Path, splits: tuple[tuple[int, ...], ...] = SPLITS, **options: object
) -> list[Ended]:
    """The case on every split, one after the other."""
    runs = [run(case, split, tmp_path / str(number), **options).well() for number, split in enumerate(splits)]
    assert runs[0].states, "nothing was trained"
    return runs


def apart(runs: list[Ended]) -> list[str]:
    """Where a run has other states than the first, logs other means or tells other things; nowhere, if all is well."""
    first, *others = runs
    found: list[str] = []
    for number, other in enumerate(others, start=1):
        for step, leaves in first.leaves.items():
            seen = other.leaves.get(step, {})
            found += [f"run {number}, step {step}: {name}" for name in leaves if leaves[name] != seen.get(name)]
        if other.states != first.states:
            found.append(f"run {number}: other states")
        if other.said != first.said:
            found.append(f"run {number}: says {other.said}, not {first.said}")
        if other.lines("metrics.jsonl") != first.lines("metrics.jsonl"):
            found.append(f"run {number}: other means")
    return found


@orders
def test_groups_optimizers_schedules_and_clipping(order: str, tmp_path: Path) -> None:
    runs = on_every_split(cases.groups_and_schedules, tmp_path, order=order)
    assert not apart(runs)
    (said,) = runs[0].said
    assert said["steps"] == len(said["norms"]) == 6  # each step once, though five virtual workers call it
    assert said["lr"][0] == 0.01 * 0.5**2
    assert max(said["norms"]) > 0.5


@orders
def test_autocast_and_a_scaler_that_skips_a_step(order: str, tmp_path: Path) -> None:
    runs = on_every_split(cases.amp, tmp_path, order=order)
    assert not apart(runs)
    (said,) = runs[0].said
    assert said == {"scales": [1024.0, 1024.0, 512.0, 512.0, 512.0], "updates": STEPS - 1.0}


@orders
def test_batchnorm_dropout_channels_last_bf16_parameters_and_frozen_ones(order: str, tmp_path: Path) -> None:
    runs = on_every_split(cases.layouts, tmp_path, order=order)
    assert not apart(runs)
    leaves = runs[0].leaves
    moved = {name for name in leaves[1] if name.startswith("models.") and leaves[1][name] != leaves[STEPS][name]}
    assert {"models.0.1.running_mean", "models.0.0.weight", "models.0.7.weight"} <= moved
    assert not {"models.0.6.weight", "models.0.6.bias"} & moved


@orders
def test_tied_weights_and_drawing_datasets_with_and_without_loader_processes(order: str, tmp_path: Path) -> None:
    runs = on_every_split(cases.tied, tmp_path, order=order, num_workers=0)
    assert not apart(runs)
    having = run(cases.tied, (2, 3), tmp_path / "processes", order=order, num_workers=2).well()
    assert having.states == runs[0].states


@orders
def test_parameters_unused_by_some_or_all(order: str, tmp_path: Path) -> None:
    runs = on_every_split(cases.branches, tmp_path, order=order)
    assert not apart(runs)
    (said,) = runs[0].said
    assert not said["idle_moved"]  # not even by weight decay
    assert said["extra"] == [[step == 2, step == 2] for step in range(STEPS)]


@orders
def test_registered_state_and_evaluation_that_draws(order: str, tmp_path: Path) -> None:
    runs = on_every_split(state_cases.keepsakes, tmp_path, order=order)
    assert not apart(runs)
    (said,) = runs[0].said
    assert said["updates"] == 3 * STEPS
    assert said["count"] == 3 * STEPS * 0.5
    assert said["lr"] < 0.05


@orders
@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing(order: str, reentrant: bool, tmp_path: Path) -> None:
    assert not apart(on_every_split(cases.recomputed, tmp_path, order=order, reentrant=reentrant))


@pytest.mark.parametrize(("order", "split"), [("tree", (5,)), ("tree", (3, 2)), ("ddp", (5,)), ("ddp", (3, 2))])
def test_a_shared_module_under_reentrant_checkpointing_is_refused(
    order: str, split: tuple[int, ...], tmp_path: Path
) -> None:
    ended = run(cases.shared_recomputed, split, tmp_path / "run", order=order)
    assert set(ended.codes) == {2}
    assert "use_reentrant=False" in ended.errors[0]


@pytest.mark.parametrize("where", ["before", "after"])
def test_unfreezing_in_tree(where: str, tmp_path: Path) -> None:
    runs = on_every_split(cases.thaw, tmp_path, order="tree", where=where)
    assert not apart(runs)
    leaves = runs[0].leaves
    assert leaves[1]["models.0.0.weight"] == leaves[2]["models.0.0.weight"] != leaves[3]["models.0.0.weight"]


@pytest.mark.parametrize("where", ["before", "after"])
def test_unfreezing_in_ddp_is_refused(where: str, tmp_path: Path) -> None:
    ended = run(cases.thaw, (3, 2), tmp_path / "run", order="ddp", where=where)
    assert ended.codes == (2, 2)
    assert "use order='tree'" in ended.errors[0]


@orders
def test_break_out_of_both_loops(order: str, tmp_path: Path) -> None:
    runs = on_every_split(cases.breaks, tmp_path, order=order)
    assert not apart(runs)
    ended = runs[0]
    assert sorted(ended.states) == list(range(1, 9))
    assert ended.events("end")[0]["step"] == 8
    assert ended.events("step")[-1]["epoch"] == 2


@pytest.mark.parametrize("order", ["tree", "ddp"])
def test_two_backward_passes(order: str, tmp_path: Path) -> None:
    assert not apart(on_every_split(cases.two_passes, tmp_path, order=order))


@orders
def test_hooks_that_change_gradients_see_one_virtual_workers(order: str, tmp_path: Path) -> None:
    assert not apart(on_every_split(cases.hooked, tmp_path, order=order))


@orders
@pytest.mark.parametrize(("nan", "finite"), [("skip", True), ("ignore", False)])
def test_a_loss_that_is_not_finite(order: str, nan: str, finite: bool, tmp_path: Path) -> None:
    runs = on_every_split(cases.not_finite, tmp_path, order=order, nan=nan)
    assert not apart(runs)
    ended = runs[0]
    assert ended.said == [finite]
    if finite:  # the step left no trace in weights or buffers
        before, after = ended.leaves[1], ended.leaves[2]
        assert {name for name in before if before[name] != after[name]} <= {
            "step", "cursors.0", "scalers.0.scale", "scalers.0._growth_tracker", *(n for n in before if "random" in n)
        }  # fmt: skip


@pytest.mark.parametrize("split", SPLITS)
def test_a_loss_that_is_not_finite_stops_the_job(split: tuple[int, ...], tmp_path: Path) -> None:
    ended = run(cases.not_finite, split, tmp_path / "run", order="tree", nan="raise")
    assert set(ended.codes) == {1}
    assert "a loss of step 1 is NaN or infinite" in ended.errors[0]


@orders
def test_buffers_replaced_or_written_outside_a_forward_pass(order: str, tmp_path: Path) -> None:
    runs = on_every_split(state_cases.buffers, tmp_path, order=order)
    assert not apart(runs)
    (said,) = runs[0].said
    # As in a plain loop: one call a step is counted, heat halves after each of five steps and grows by 8 an epoch.
    assert said == {"calls": 2 * STEPS, "heat": (8.0 / 32 + 8.0) / 32 + 8.0}


@orders
@pytest.mark.parametrize("case", [state_cases.draws_after, state_cases.draws_unequally], ids=lambda case: case.__name__)
def test_random_numbers_drawn_after_the_update_or_unequally_often(order: str, case: Case, tmp_path: Path) -> None:
    assert not apart(on_every_split(case, tmp_path, order=order))


@orders
def test_two_loaders_and_a_second_loop(order: str, tmp_path: Path) -> None:
    runs = on_every_split(cases.two_loaders, tmp_path, order=order)
    assert not apart(runs)
    ended = runs[0]
    assert ended.said == [[0, 1]]
    assert len(ended.states) == 2 * (3 + 3)


@orders
@pytest.mark.parametrize("uneven", ["exact", "pad", "drop"])
def test_a_dataset_that_does_not_divide_gives_the_mean_over_its_samples(
    order: str, uneven: str, tmp_path: Path
) -> None:
    runs = on_every_split(cases.logs, tmp_path, order=order, uneven=uneven)
    assert not apart(runs)
    ended = runs[0]
    expected = by_hand(uneven)
    assert len(ended.said) == len(expected)
    rows = ended.lines("metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(1, len(expected) + 1))
    for gradient, row, (wanted, loss, ranks) in zip(ended.said, rows, expected, strict=True):
        torch.testing.assert_close(torch.tensor(gradient), wanted.flatten(), rtol=1e-5, atol=1e-6)
        assert row["loss"] == pytest.approx(loss, rel=1e-5)
        assert row["rank"] == pytest.approx(ranks)
        assert row["first"] == 1.0


def by_hand(uneven: str) -> list[tuple[torch.Tensor, float, float]]:
    """Plain training on the same steps: (gradient, loss, mean of the ranks) of each."""
    inputs, targets = parts.data(23).tensors
    blocks = {"exact": [10, 10, 3], "pad": [10, 10, 5], "drop": [10, 10]}[uneven]
    torch.manual_seed(8)
    model = torch.nn.Linear(parts.FEATURES, parts.CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    steps = []
    for _ in range(2):
        start = 0
        for size in blocks:
            samples = torch.arange(start, start + size) % 23
            optimizer.zero_grad()
            loss = cross_entropy(model(inputs[samples]), targets[samples])
            loss.backward()
            optimizer.step()
            ranks = [position % 5 for position in range(start, start + size)]
            steps.append((model.weight.grad.clone(), float(loss.detach()), sum(ranks) / size))
            start += size
    return steps


@pytest.mark.parametrize("split", [(8,), (4, 4), (3, 3, 2), (1, 7)])
def test_eight_virtual_workers(split: tuple[int, ...], tmp_path: Path) -> None:
    assert not apart(on_every_split(cases.eight, tmp_path, ((2, 2, 2, 2), split), order="tree"))


@orders
def test_one_virtual_worker_is_plain_training(order: str, tmp_path: Path) -> None:
    (said,) = run(cases.alone, (1,), tmp_path / "run", order=order).well().said
    torch.manual_seed(18)
    model = torch.nn.Linear(parts.FEATURES, parts.CLASSES)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for x, y in torch.utils.data.DataLoader(parts.data(), batch_size=11):
        cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert said == [float(value) for value in model.weight.detach().flatten()]


@pytest.mark.slow
@pytest.mark.timeout(600)
@orders
def test_compiled_models(order: str, tmp_path: Path) -> None:
    runs = on_every_split(cases.compiled, tmp_path, SPLITS[:2], order=order, limit_s=240.0)
    assert not apart(runs)
    (said,) = runs[0].said
    assert said == {"tracked": 8}
