"""Apply a determinism level to this process, check what can be checked, and return the facts that define the bits.

Switches and thread counts work at any time. The instruction set is fixed when kernels first run, and oneDNN does not
say which it took, so D2 must come from the launcher (or the shell). MKL reads its mode at its first call: it is set
here, then probed, because a script may have multiplied matrices before it joined.
"""

import os
import platform
from collections.abc import Callable
from functools import reduce

import torch

from melodeon.core.definition import Value
from melodeon.core.determinism import DEFAULT, Level, level_env, level_threads, parse_level
from melodeon.core.errors import DefinitionError


def apply(
    level: str | None, threads: int | None, *, launched_level: str | None, device: str = "cpu"
) -> dict[str, Value]:
    """Pin this process to `level` and say what it now stands on.

    `level` None takes the launcher's, else D1; `threads` None takes the level's default (1; D0 leaves them alone).
    """
    chosen = parse_level(level if level is not None else launched_level or DEFAULT)
    _check_launched(chosen, launched_level)
    _check_before_torch(chosen)
    for name, value in level_env(chosen.name, threads).items():
        os.environ.setdefault(name, value)  # for what is read late, and for the processes that this one starts
    pinned = level_threads(chosen.name, threads)
    if pinned is not None:
        torch.set_num_threads(pinned)
    _switch(chosen, device)
    if chosen.name != "D0":
        _check_mkl(chosen)
    return facts(chosen, device)


def facts(level: Level, device: str = "cpu") -> dict[str, Value]:
    """What the bits of this process stand on, for the run's Definition."""
    has_mkl: Callable[[], bool] = torch.backends.mkl.is_available
    return {
        "determinism": level.name,
        "torch": torch.__version__.split("+")[0],
        "device": device_kind(device, any_gpu=level.name == "D2"),
        "threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "onednn_isa": os.environ.get("ONEDNN_MAX_CPU_ISA", "default"),
        "mkl_cbwr": os.environ.get("MKL_CBWR", "default") if has_mkl() else "no MKL",
    }


def device_kind(device: str, *, any_gpu: bool = False) -> str:
    """The kind of a device: `cpu x86_64`, `cuda NVIDIA H200`; with `any_gpu`, `cuda`."""
    if torch.device(device).type == "cuda":
        return "cuda" if any_gpu else f"cuda {torch.cuda.get_device_name(device)}"
    return f"cpu {platform.machine()}"


def addresses_change_bits() -> bool:
    """Whether a dot product depends on where its input lies in memory: MKL outside its reproducible modes."""
    generator = torch.Generator().manual_seed(0)
    length, offsets = 515, 16
    left, right = torch.randn(length, generator=generator), torch.randn(length, generator=generator)
    seen = set()
    for offset in range(offsets):
        moved = torch.empty(length + offsets)[offset : offset + length]
        moved.copy_(right)
        seen.add(float(left.dot(moved)))
    return len(seen) > 1


def _check_launched(level: Level, launched_level: str | None) -> None:
    if launched_level is not None and parse_level(launched_level) is not level:
        raise DefinitionError(
            f"the script asks for determinism {level.name} but was started at {launched_level}, and a level is applied "
            f"before torch loads: start it with `melodeon run --determinism {level.name}`"
        )


def _check_before_torch(level: Level) -> None:
    missing = [name for name in level.before_torch if os.environ.get(name) != level.env[name]]
    capability = torch.backends.cpu.get_cpu_capability()
    if not missing and "ATEN_CPU_CAPABILITY" in level.before_torch:
        # torch says what its kernels took: a variable that was set after the first of them ran does not count
        missing = [] if capability.lower() == level.env["ATEN_CPU_CAPABILITY"] else ["ATEN_CPU_CAPABILITY"]
    if missing:
        raise DefinitionError(
            f"determinism {level.name} needs {', '.join(f'{name}={level.env[name]}' for name in missing)} before torch "
            f"loads (its kernels are {capability} now): start with `melodeon run --determinism {level.name} train.py`"
        )


def _check_mkl(level: Level) -> None:
    wanted, found = level.env["MKL_CBWR"], os.environ["MKL_CBWR"]
    if level.name == "D2" and found != wanted:
        raise DefinitionError(
            f"MKL_CBWR={found} is set, but determinism D2 needs {wanted}, the mode that is equal on every x86 CPU: "
            "unset it, or start with `melodeon run --determinism D2 train.py`"
        )
    if addresses_change_bits():
        raise DefinitionError(
            f"MKL was used before melodeon.join() and without MKL_CBWR={wanted}, so determinism {level.name} cannot "
            "hold: call melodeon.join() before any tensor work, or start with `melodeon run train.py`"
        )


def _switch(level: Level, device: str) -> None:
    kind = torch.device(device).type
    for switch in level.switches:
        if switch.device not in ("any", kind):
            continue
        *path, last = switch.name.split(".")
        owner = reduce(getattr, path, torch)
        if switch.is_call:
            getattr(owner, last)(switch.value)
        else:
            setattr(owner, last, switch.value)
