import json
import math
import os
import random
import struct
import subprocess
import sys
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import melodeon
from melodeon.core.errors import CheckpointError, UsageError
from melodeon.runtime.codec import DTYPES, clone_state, flatten, unflatten, view_bytes
from melodeon.runtime.digest import digest_state

torch.set_num_threads(1)


def round_trip(tree: object) -> Any:
    structure, tensors = flatten(tree)
    return unflatten(json.loads(json.dumps(structure, allow_nan=False)), tensors)


def same(left: object, right: object) -> bool:
    """Equal in type, value and bits, NaNs and the order of dicts included."""
    if type(left) is not type(right):
        return False
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        return (left.dtype, left.shape) == (right.dtype, right.shape) and bytes(view_bytes(left.contiguous())) == bytes(
            view_bytes(right.contiguous())
        )
    if isinstance(left, dict) and isinstance(right, dict):
        return same(list(left.items()), list(right.items()))
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, np.ndarray | np.generic) and isinstance(right, np.ndarray | np.generic):
        return (left.dtype, left.shape) == (right.dtype, right.shape) and left.tobytes() == right.tobytes()
    if isinstance(left, float) and isinstance(right, float):
        return struct.pack("<d", left) == struct.pack("<d", right)
    return left == right


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
keys = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=3,
)
tensors = st.lists(st.integers(-5, 5), max_size=4).map(torch.tensor)
trees = st.recursive(
    scalars | tensors,
    lambda inner: (
        st.lists(inner, max_size=4) | st.lists(inner, max_size=4).map(tuple) | st.dictionaries(keys, inner, max_size=4)
    ),
    max_leaves=12,
)


@given(trees)
def test_any_tree_goes_round(tree: object) -> None:
    assert same(round_trip(tree), tree)


@pytest.mark.parametrize(
    "tree",
    [
        OrderedDict([("b", 1), ("a", 2)]),
        Counter({30: 1, 60: 2}),
        defaultdict(None, {"x": 1}),
        defaultdict(dict, {0: {"y": 2}}),
        torch.Size([2, 3]),
        {"dtype": torch.bfloat16, "device": torch.device("cuda", 1)},
        [math.inf, -math.inf, math.nan, -0.0, struct.unpack("<d", bytes.fromhex("010203040506f87f"))[0]],
        [2**63, -(2**63), -(2**5000), True, 1, 1.0],
        {(1, ("a", None)): 1, 1: 2, "1": 3, 1.5: 4, None: 5},
        "\ud800 lone surrogate",
        random.Random(0).getstate(),
        np.random.RandomState(0).get_state(),
        np.random.default_rng(0).bit_generator.state,
        [np.float64(0.1), np.float32("nan"), np.int8(-3), np.bool_(True), np.array(3.5), np.zeros((0, 2))],
        [np.arange(6, dtype=">i4").reshape(2, 3).T, np.array([1 + 2j]), np.array([True, False])],
    ],
    ids=lambda tree: type(tree).__name__,
)
def test_types_keep(tree: object) -> None:
    assert same(round_trip(tree), tree)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3, 4)], ids=str)
def test_every_dtype_keeps_its_bits(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    raw = torch.randint(0, 2 if dtype == torch.bool else 256, (math.prod(shape) * dtype.itemsize,), dtype=torch.uint8)
    tensor = raw.view(dtype).reshape(shape)
    assert same(round_trip({"x": tensor})["x"], tensor)


def test_memory_layouts_keep_or_become_contiguous() -> None:
    image = torch.randn(2, 3, 4, 5)
    dense = [
        image.to(memory_format=torch.channels_last),
        torch.randn(8, 4, 1, 1).to(memory_format=torch.channels_last),
        image.transpose(0, 3),
        torch.empty_strided((2, 1, 3), (3, 7, 1)).fill_(1),
    ]
    for tensor in dense:
        back = round_trip([tensor])[0]
        assert torch.equal(back, tensor)
        assert back.stride() == tensor.stride()
    for tensor in (image[:, ::2], torch.ones(3).expand(2, 3), image[..., 1:], torch.zeros(0, 3).t()):
        back = round_trip([tensor])[0]
        assert torch.equal(back, tensor)
        assert back.is_contiguous()


def test_gradient_conjugate_and_negative_bits_are_resolved() -> None:
    parameter = nn.Parameter(torch.randn(3))
    complex_view = torch.randn(3, dtype=torch.complex64).conj()
    back = round_trip([parameter, complex_view, complex_view.imag])
    assert not back[0].requires_grad
    assert torch.equal(back[0], parameter.detach())
    assert torch.equal(back[1], complex_view.resolve_conj())
    assert torch.equal(back[2], complex_view.imag)


def test_paths_are_readable_and_never_collide() -> None:
    one, two, three = torch.tensor(1), torch.tensor(2), torch.tensor(3)
    tree = {"optimizers": {"0": {"state": {3: {"exp_avg": one}}}}, "a.b": two, "a": {"b": three}, 1: one, "1": two}
    structure, found = flatten(tree)
    assert {"optimizers.0.state.3.exp_avg", "a.b", "a.b#2", "1", "1#2"} == set(found)
    assert same(unflatten(structure, found), tree)


def test_snapshot_is_not_touched_by_training() -> None:
    weight = torch.zeros(2, 3).t()
    snapshot = clone_state({"weight": weight, "n": [1]})
    weight += 1
    assert torch.equal(snapshot["weight"], torch.zeros(3, 2))
    assert snapshot["weight"].stride() == weight.stride()


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning")
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_a_large_snapshot_has_its_bits_and_layout(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    raw = torch.randint(0, 2, ((4 << 20) + 128,), dtype=torch.uint8, generator=generator)
    tensor = raw.view(dtype).view(4, 2, -1)
    tree = {
        "plain": tensor,
        "transposed": tensor.transpose(0, 2),
        "whole": tensor[None],
        "one by one": tensor.view(2, -1).as_strided((2, tensor.numel() // 2, 1, 1), (tensor.numel() // 2, 1, 99, 99)),
    }
    snapshot = clone_state(tree)
    assert digest_state(snapshot) == digest_state(tree)
    assert [part.stride() for part in snapshot.values()] == [part.stride() for part in tree.values()]
    raw.zero_()
    assert snapshot["plain"].view(torch.uint8).any()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_tensors_come_to_the_cpu_with_their_bits_and_layout() -> None:
    tensor = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    for tree in ([tensor.cuda()], clone_state([tensor.cuda()])):
        back = round_trip(tree)[0]
        assert back.device.type == "cpu"
        assert torch.equal(back, tensor)
        assert back.stride() == tensor.stride()
        assert digest_state(tree) == digest_state([tensor])


WITHOUT_NUMPY = """
import sys
sys.modules["numpy"] = None
import warnings
warnings.simplefilter("ignore")
import torch
from melodeon.core.errors import UsageError
from melodeon.runtime.codec import flatten, unflatten
from melodeon.runtime.digest import digest_state
tree = {"w": torch.arange(3000.0, dtype=torch.bfloat16), "n": 1.5}
assert digest_state(unflatten(*flatten(tree))) == digest_state(tree)
try:
    unflatten({"ndarray": "a", "dtype": "<f4", "shape": [1]}, {"a": torch.zeros(4, dtype=torch.uint8)})
except UsageError as error:
    print(error)
"""


def test_numpy_is_needed_for_arrays_only() -> None:
    root = Path(melodeon.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_NUMPY],
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.stdout == "the state holds numpy arrays and numpy is not installed here: pip install numpy\n", (
        done.stderr
    )


class Odd:
    pass


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (Odd(), "Odd"),
        (lambda: 0, "function"),
        ({1, 2}, "set"),
        (torch.eye(2).to_sparse(), "sparse"),
        (torch.empty(2, device="meta"), "meta"),
        (defaultdict(lambda: 1), "defaultdict"),
        (np.array(["text"]), "<U4"),
        (np.array([object()]), "object"),
        (torch.finfo(torch.float32), "finfo"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_unsupported_objects_are_refused_by_path_and_type(value: object, kind: str) -> None:
    with pytest.raises(UsageError, match=r"registered\.ema\.1") as caught:
        flatten({"registered": {"ema": [0, value]}})
    assert kind in str(caught.value)


def test_wrong_keys_and_cycles_are_refused() -> None:
    with pytest.raises(UsageError, match="frozenset"):
        flatten({"a": {frozenset([1]): 2}})
    cycle: list[object] = []
    cycle.append(cycle)
    with pytest.raises(UsageError, match="nested more than"):
        flatten(cycle)


@pytest.mark.parametrize(
    "structure",
    [
        {},
        {"nonsense": "x"},
        {"tuple": 3},
        {"tuple": {"tuple": []}},
        {"size": [1.5]},
        {"size": [-1]},
        {"tensor": "absent"},
        {"tensor": 3},
        {"tensor": "t", "order": [0, 0], "strides": [3, 1]},
        {"tensor": "t", "order": [1, 0], "strides": [0, 0]},
        {"tensor": "t", "order": [1, 0], "strides": [1, 10**30]},
        {"tensor": "t", "order": [1, 0], "strides": [1, -2]},
        {"tensor": "t", "order": [1, 0]},
        {"ndarray": "t", "dtype": "|O8", "shape": [1]},
        {"ndarray": "t", "dtype": "<f4", "shape": [10**30]},
        {"ndarray": "t", "dtype": "<f4", "shape": [-6]},
        {"ndarray": "t", "dtype": "<f3", "shape": [8]},
        {"numpy": "<f8", "bytes": "00"},
        {"dict": [[1]]},
        {"dict": [[[1], 2]]},
        {"dict": [[{"dict": []}, 2]]},
        {"defaultdict": [], "factory": "eval"},
        {"defaultdict": []},
        {"int": "seven"},
        {"float": "00"},
        {"bytes": "*"},
        {"dtype": "Tensor"},
        {"device": "moon"},
    ],
    ids=str,
)
def test_malformed_structures_are_refused(structure: Any) -> None:
    with pytest.raises(CheckpointError, match="malformed"):
        unflatten([structure], {"t": torch.zeros(2, 3)})


def test_deep_structures_are_refused() -> None:
    deep: Any = 1
    for _ in range(900):
        deep = {"tuple": [deep]}
    with pytest.raises(CheckpointError, match="deep"):
        unflatten(deep, {})
    key: Any = 1
    for _ in range(900):
        key = {"tuple": [key]}
    with pytest.raises(CheckpointError, match="deep"):
        unflatten({"dict": [[key, 1]]}, {})


def small_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2, bias=False))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    torch.manual_seed(steps)
    data = torch.randn(8, 4)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = model(data).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    for _ in range(steps):
        optimizer.step(closure)  # type: ignore[arg-type]


OPTIMIZERS = sorted(
    name
    for name, kind in vars(torch.optim).items()
    if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and name not in ("Optimizer", "SparseAdam")
)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_goes_on_with_the_same_bits(name: str) -> None:
    kind = getattr(torch.optim, name)

    def make(model: nn.Module) -> torch.optim.Optimizer:
        parameters = [p for p in model.parameters() if name != "Muon" or p.dim() == 2]
        optimizer: torch.optim.Optimizer = kind(parameters, lr=0.05)
        return optimizer

    model = small_model()
    optimizer = make(model)
    train(model, optimizer, 3)
    state = {"models": {"0": model.state_dict()}, "optimizers": {"0": optimizer.state_dict()}}
    restored = round_trip(clone_state(state))
    assert digest_state(restored) == digest_state(state)

    again = small_model()
    other = make(again)
    again.load_state_dict(restored["models"]["0"])
    other.load_state_dict(restored["optimizers"]["0"])
    train(model, optimizer, 2)
    train(again, other, 2)
    assert digest_state([model.state_dict(), optimizer.state_dict()]) == digest_state(
        [again.state_dict(), other.state_dict()]
    )


def test_sparse_adam_and_tensor_learning_rates_go_round() -> None:
    table = nn.Embedding(5, 3, sparse=True)
    sparse = torch.optim.SparseAdam(table.parameters())
    table(torch.tensor([1, 3])).sum().backward()
    sparse.step()  # type: ignore[no-untyped-call]
    capturable = torch.optim.AdamW(small_model().parameters(), lr=torch.tensor(0.1), amsgrad=True)
    for state in (sparse.state_dict(), capturable.state_dict()):
        assert same(round_trip(state), state)


lr = torch.optim.lr_scheduler
SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "LambdaLR": lambda o: lr.LambdaLR(o, lambda step: 0.9**step),
    "MultiplicativeLR": lambda o: lr.MultiplicativeLR(o, lambda step: 0.9),
    "StepLR": lambda o: lr.StepLR(o, 2),
    "MultiStepLR": lambda o: lr.MultiStepLR(o, [2, 4, 4]),
    "ConstantLR": lambda o: lr.ConstantLR(o),
    "LinearLR": lambda o: lr.LinearLR(o),
    "ExponentialLR": lambda o: lr.ExponentialLR(o, 0.9),
    "PolynomialLR": lambda o: lr.PolynomialLR(o),
    "CosineAnnealingLR": lambda o: lr.CosineAnnealingLR(o, 10),
    "CosineAnnealingWarmRestarts": lambda o: lr.CosineAnnealingWarmRestarts(o, 3),
    "CyclicLR": lambda o: lr.CyclicLR(o, 0.01, 0.1),
    "OneCycleLR": lambda o: lr.OneCycleLR(o, 0.1, total_steps=20),
    "ReduceLROnPlateau": lambda o: lr.ReduceLROnPlateau(o, patience=1),
    "SequentialLR": lambda o: lr.SequentialLR(o, [lr.LinearLR(o), lr.CosineAnnealingLR(o, 9)], [3]),
    "ChainedScheduler": lambda o: lr.ChainedScheduler([lr.LinearLR(o), lr.MultiStepLR(o, [2])]),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_every_scheduler_goes_on_with_the_same_rates(name: str) -> None:
    def make() -> tuple[nn.Module, torch.optim.Optimizer, Any]:
        model = small_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        return model, optimizer, SCHEDULERS[name](optimizer)

    def advance(model: nn.Module, optimizer: torch.optim.Optimizer, scheduler: Any) -> None:
        for _ in range(3):
            train(model, optimizer, 1)
            scheduler.step(1.0) if name == "ReduceLROnPlateau" else scheduler.step()

    first, second = make(), make()
    advance(*first)
    captured = round_trip(clone_state([part.state_dict() for part in first]))
    for part, state in zip(second, captured, strict=True):
        part.load_state_dict(state)
    advance(*first)
    advance(*second)
    assert digest_state([part.state_dict() for part in first]) == digest_state([part.state_dict() for part in second])


def test_grad_scaler_goes_round_after_a_real_overflow() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for factor in (1.0, math.inf):
        scaler.scale(model(torch.ones(1, 4)).sum() * factor).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    state = scaler.state_dict()
    assert state["scale"] == 2.0
    assert same(round_trip(state), state)
