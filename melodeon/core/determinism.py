"""Determinism levels as tables: what each one sets, and the sentence it can be held to.

    D0  the same bits on the same workers          seeds and deterministic kernels
    D1  + on any number of workers of one kind     + thread count, and bits that do not depend on addresses
    D2  + on workers of different kinds            + one instruction set for every kernel

A level is environment variables, some of them read once when torch loads, and torch switches. This module only says
which; `runtime.determinism` applies them and checks what can be checked.
"""

import difflib
from dataclasses import dataclass
from typing import Literal

from melodeon.core.errors import UsageError

Device = Literal["any", "cuda"]

DEFAULT = "D1"
DEFAULT_THREADS = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """One torch setting: `name` is a path under `torch`, called with `value` or assigned it."""

    name: str
    value: bool | str
    is_call: bool = False
    device: Device = "any"
    """`cuda`: set for jobs on CUDA only, so that a CPU job's bits do not depend on a GPU being there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One level: what it promises, what it pins, and how."""

    name: str
    promise: str
    pins: str
    pins_threads: bool
    env: dict[str, str]
    """Variables of the level, without the thread counts."""
    before_torch: tuple[str, ...] = ()
    """Those of `env` that come too late once torch is loaded."""
    switches: tuple[Switch, ...] = ()


# A fixed workspace is what makes cuBLAS repeat itself; it must be there before CUDA starts.
_CUBLAS = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}

_KERNELS = (
    Switch(name="use_deterministic_algorithms", value=True, is_call=True),
    # Filling fresh memory costs time and hides nothing we promise: reading it is the script's error at any level.
    Switch(name="utils.deterministic.fill_uninitialized_memory", value=False),
    Switch(name="backends.cudnn.deterministic", value=True),
    Switch(name="backends.cudnn.benchmark", value=False),
)

_ONE_KIND = (
    # TF32 exists on some GPUs only.
    Switch(name="backends.cuda.matmul.allow_tf32", value=False),
    Switch(name="backends.cudnn.allow_tf32", value=False),
    # The fused attention kernels are chosen, and written, by GPU generation; the math one is plain matmuls.
    Switch(name="backends.cuda.enable_flash_sdp", value=False, is_call=True, device="cuda"),
    Switch(name="backends.cuda.enable_mem_efficient_sdp", value=False, is_call=True, device="cuda"),
    Switch(name="backends.cuda.enable_cudnn_sdp", value=False, is_call=True, device="cuda"),
    Switch(name="backends.cuda.enable_math_sdp", value=True, is_call=True, device="cuda"),
)

LEVELS: dict[str, Level] = {
    "D0": Level(
        name="D0",
        promise="the same bits when the same workers run again on this machine",
        pins="seeds and deterministic kernels; threads stay as they are",
        pins_threads=False,
        env=_CUBLAS,
        switches=_KERNELS,
    ),
    "D1": Level(
        name="D1",
        promise="the same bits on any number of workers of one kind",
        pins="D0's, the thread count, and results that do not depend on addresses",
        pins_threads=True,
        # AUTO keeps MKL's fastest kernels and only stops them from choosing by alignment: measured free.
        env={**_CUBLAS, "MKL_CBWR": "AUTO"},
        switches=_KERNELS,
    ),
    "D2": Level(
        name="D2",
        promise="the same bits on workers of different kinds",
        pins="D1's, and one instruction set for every CPU kernel; no TF32, plain attention on CUDA",
        pins_threads=True,
        env={
            **_CUBLAS,
            # The only mode besides AUTO that MKL supports on every x86 processor; the named ones (AVX2, ...) are for
            # Intel's and fall back to AUTO elsewhere (seen on an AMD EPYC: AVX2 gave AUTO's bits). The price, sgemm of
            # 1024x1024x1024 on one thread in GFLOP/s: EPYC 40 against 97 (AVX2), Xeon 21 against 68 (AVX2) and 119
            # (AUTO). D2 is about bits, so it is paid.
            "MKL_CBWR": "COMPATIBLE",
            "ATEN_CPU_CAPABILITY": "avx2",
            "ONEDNN_MAX_CPU_ISA": "AVX2",
        },
        before_torch=("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA"),
        switches=(*_KERNELS, *_ONE_KIND),
    ),
}

D2_FLAGS = ("avx2", "fma")
"""What a CPU must have for D2's kernels: torch does not check before it runs them."""

MOST_THREADS = 1024
"""Far more than help. With some ten thousand the OpenMP library runs out of stack and takes the process with it."""


def parse_level(text: str) -> Level:
    """The level of that name; an unknown one is answered with the nearest."""
    name = str(text).upper()  # a script may pass a number
    level = LEVELS.get(name)
    if level is None:
        near = difflib.get_close_matches(name, LEVELS, n=1, cutoff=0.0)[0]
        raise UsageError(f"determinism {text!r} is not one of {', '.join(LEVELS)}: did you mean {near}?")
    return level


def check_threads(threads: int) -> int:
    """Refuse anything but a positive whole number that a process can have."""
    if isinstance(threads, bool) or not isinstance(threads, int) or not 1 <= threads <= MOST_THREADS:
        raise UsageError(f"threads={threads!r} must be a whole number from 1 to {MOST_THREADS:,}, such as 1")
    return threads


def level_threads(level: str, threads: int | None) -> int | None:
    """The thread count that a level pins: as asked, else its default; None leaves it alone (D0)."""
    if threads is not None:
        return check_threads(threads)
    return DEFAULT_THREADS if parse_level(level).pins_threads else None


def level_env(level: str, threads: int | None = None) -> dict[str, str]:
    """The environment variables that apply a level to a process that has not loaded torch yet."""
    env = dict(parse_level(level).env)
    pinned = level_threads(level, threads)
    if pinned is not None:
        env |= {"OMP_NUM_THREADS": str(pinned), "MKL_NUM_THREADS": str(pinned)}
    return env
