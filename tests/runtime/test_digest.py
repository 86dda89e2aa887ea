import hashlib
import json
import math
import random
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from melodeon.core.errors import UsageError
from melodeon.runtime.digest import digest_leaves, digest_state, digest_tensor

torch.set_num_threads(1)


def changed(left: object, right: object) -> set[str]:
    one, two = digest_state(left), digest_state(right)
    assert (one.root == two.root) == (one.leaves == two.leaves)
    return {path for path in {*one.leaves, *two.leaves} if one.leaves.get(path) != two.leaves.get(path)}


def test_a_tensor_digest_is_plain_sha256_anyone_can_compute() -> None:
    tensor = torch.arange(6, dtype=torch.int32).reshape(2, 3)
    raw = b"".join(number.to_bytes(4, "little") for number in range(6))
    assert digest_tensor(tensor) == hashlib.sha256(b"torch.int32 (2, 3)\n" + raw).hexdigest()


@pytest.mark.parametrize("size", [0, 1, 3, 511, 512, 5000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.complex64], ids=str)
def test_layout_does_not_count_and_every_element_does(size: int, dtype: torch.dtype) -> None:
    tensor = torch.randint(0, 2, (size, 2)).to(dtype)
    assert digest_tensor(tensor) == digest_tensor(tensor.t().contiguous().t())
    assert digest_tensor(tensor) == digest_tensor(torch.nn.Parameter(tensor, requires_grad=False))
    for row in {0, size // 2, size - 1} if size else set():
        other = tensor.clone()
        other[row, 1] = 1 - other[row, 1] if dtype != torch.bool else ~other[row, 1]
        assert digest_tensor(other) != digest_tensor(tensor)


def test_dtype_shape_and_signs_of_zero_count() -> None:
    zeros = torch.zeros(4)
    for other in (-zeros, zeros.reshape(2, 2), zeros.to(torch.int32), torch.zeros(5), zeros.unsqueeze(0)):
        assert digest_tensor(other) != digest_tensor(zeros)


def test_a_difference_is_named_by_its_path() -> None:
    def tree(weight: float = 1.0, beta: float = 0.9, lr: float = 0.1, seed: int = 0) -> dict[str, Any]:
        group = {"betas": (beta, 0.999), "lr": lr, "params": [0, 1]}
        return {
            "models": {"0": {"fc.weight": torch.tensor([weight, 2.0])}},
            "optimizers": {"0": {"state": {0: {"step": torch.tensor(3.0)}}, "param_groups": [group]}},
            "registered": {"rng": random.Random(seed).getstate(), "numbers": np.random.RandomState(seed).get_state()},
        }

    assert changed(tree(), tree()) == set()
    assert changed(tree(), tree(weight=1.5)) == {"models.0.fc.weight"}
    assert changed(tree(), tree(beta=0.8)) == {"optimizers.0.param_groups.0.betas"}
    assert changed(tree(), tree(lr=math.nextafter(0.1, 1))) == {"optimizers.0.param_groups.0.lr"}
    assert changed(tree(), tree(seed=1)) == {"registered.rng.1", "registered.numbers.1"}


def test_types_of_values_count_and_kinds_of_containers_do_not() -> None:
    assert changed({"a": 1}, {"a": 1.0}) == {"a"}
    assert changed({"a": 1}, {"a": True}) == {"a"}
    assert changed({"a": 0.0}, {"a": -0.0}) == {"a"}
    assert changed({"a": float("nan")}, {"a": float("nan")}) == set()
    assert changed({"a": {}, "b": 1}, {"b": 1}) == {"a"}
    assert changed({"a": 1, "b": (1, [2])}, OrderedDict(b=[1, (2,)], a=1)) == set()
    assert changed({"a": np.zeros(4, "<f4")}, {"a": np.zeros(4, "<i4")}) == {"a"}


def test_colliding_paths_all_count() -> None:
    assert len(digest_state({"a.b": 1, "a": {"b": 2}, 1: 3, "1": 4}).leaves) == 4


def test_cycles_and_unsupported_objects_are_refused() -> None:
    cycle: dict[str, object] = {}
    cycle["again"] = cycle
    with pytest.raises(UsageError, match="must not contain itself"):
        digest_state(cycle)
    with pytest.raises(UsageError, match=r"'a\.b' is of type object"):
        digest_state({"a": {"b": object()}})
    with pytest.raises(UsageError, match=r"'a\.0' .*sparse"):
        digest_state({"a": [torch.eye(2).to_sparse()]})


@given(st.dictionaries(st.text(max_size=5), st.integers(), min_size=1, max_size=5), st.randoms())
def test_the_root_covers_the_leaves_in_any_order(tree: dict[str, int], shuffler: random.Random) -> None:
    items = list(tree.items())
    shuffler.shuffle(items)
    digest = digest_state(tree)
    assert digest_state(dict(items)).root == digest.root
    assert digest.root == digest_leaves(digest.leaves)
    assert digest.root == hashlib.sha256(json.dumps(sorted(digest.leaves.items())).encode()).hexdigest()
