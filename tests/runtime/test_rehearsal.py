"""Going through the motions changes nothing that a script could see."""

import random

import numpy as np
import pytest
import torch

from melodeon.runtime.rehearsal import rehearse

CPU = torch.device("cpu")


def test_no_random_number_is_drawn() -> None:
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[union-attr]
    rehearse(CPU)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before[1:]  # type: ignore[union-attr]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_script_that_has_turned_gradients_off_keeps_them_off(mode: type[torch.no_grad]) -> None:
    with mode():
        rehearse(CPU)
        assert not torch.is_grad_enabled()


def test_it_may_be_asked_for_determinism() -> None:
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        rehearse(CPU)
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(before)


def test_a_default_type_of_the_script_is_not_in_the_way() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        rehearse(CPU)
        assert torch.get_default_dtype() is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
