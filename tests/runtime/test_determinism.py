"""Levels are applied to processes of their own, because some of what they set is read once."""

import json
import os
import subprocess
import sys

import pytest

from melodeon.core.determinism import level_env

PINNED = set(level_env("D2", 1))
WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"


SET_TOO_LATE = """
import os
torch.ones(9) + 1
os.environ.update(ATEN_CPU_CAPABILITY="avx2", ONEDNN_MAX_CPU_ISA="AVX2")
apply("D2", 1, launched_level=None)
"""

MKL_USED = "MKL was used before melodeon.join()"
USE_MKL = "torch.ones(9).dot(torch.ones(9))\n"
ADDRESSES_MATTER = "import melodeon.runtime.determinism as own; own.addresses_change_bits = lambda: True\n"


def ask(code: str, **env: str) -> "subprocess.CompletedProcess[str]":
    clean = {name: value for name, value in os.environ.items() if name not in PINNED}
    program = f"import json, torch\nfrom melodeon.runtime.determinism import apply, addresses_change_bits\n{code}"
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        env={**clean, **env},
        capture_output=True,
        text=True,
        timeout=100,
    )


def facts(code: str, **env: str) -> dict[str, object]:
    done = ask(f"print(json.dumps({code}))", **env)
    assert done.returncode == 0, done.stderr
    result: dict[str, object] = json.loads(done.stdout)
    return result


def test_d1_can_be_applied_after_torch_is_loaded() -> None:
    code = (
        "{**apply(None, None, launched_level=None), 'moves': addresses_change_bits(),"
        " 'deterministic': torch.are_deterministic_algorithms_enabled(),"
        " 'fill': torch.utils.deterministic.fill_uninitialized_memory}"
    )
    found = facts(code)
    expected = {"determinism": "D1", "threads": 1, "mkl_cbwr": "AUTO", "onednn_isa": "default"}
    assert found.items() >= expected.items()
    assert (found["moves"], found["deterministic"], found["fill"]) == (False, True, False)
    assert "+" not in str(found["torch"])


def test_d0_leaves_threads_alone_unless_asked() -> None:
    found = facts(
        "[torch.get_num_threads(), apply('D0', None, launched_level=None), apply('D0', 3, launched_level=None)]"
    )
    before, alone, asked = found  # type: ignore[misc]
    assert (alone["threads"], asked["threads"]) == (before, 3)  # type: ignore[index]


def test_d2_from_the_launcher_pins_the_kernels() -> None:
    found = facts("apply('D2', 1, launched_level='D2')", **level_env("D2", 1))
    expected = {"cpu_capability": "AVX2", "onednn_isa": "AVX2", "mkl_cbwr": "COMPATIBLE", "threads": 1}
    assert found.items() >= expected.items()


CUDNN = "torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark"
ATTENTION = "torch.backends.cuda.flash_sdp_enabled(), torch.backends.cuda.math_sdp_enabled()"
TF32 = "torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32"


@pytest.mark.parametrize("level", ["D0", "D1"])
def test_cuda_libraries_repeat_themselves_from_d0_on(level: str) -> None:
    """Whatever the script chose before; the workspace is in the environment, where cuBLAS looks for it."""
    chosen = "setattr(torch.backends.cudnn, 'benchmark', True)"
    code = f"[{chosen}, apply({level!r}, 1, launched_level=None), {CUDNN}, __import__('os').environ.get({WORKSPACE!r})]"
    assert facts(code)[2:] == [True, False, ":4096:8"]  # type: ignore[index]


def test_d2_on_cuda_leaves_out_what_is_written_for_some_gpus() -> None:
    code = f"[apply('D2', 1, launched_level='D2', device='cuda')['device'], {ATTENTION}, {TF32}]"
    assert facts(code, **level_env("D2", 1)) == ["cuda", False, True, False, False]


@pytest.mark.parametrize(
    ("code", "env", "sentence"),
    [
        ("apply('D2', 1, launched_level=None)", {}, "melodeon run --determinism D2 train.py"),
        (
            SET_TOO_LATE,
            {"ATEN_CPU_CAPABILITY": "default"},
            "needs ATEN_CPU_CAPABILITY=avx2 before torch loads (its kernels are DEFAULT now)",
        ),
        ("apply('D1', 1, launched_level='D2')", {}, "asks for determinism D1 but was started at D2"),
        (ADDRESSES_MATTER + "apply('D1', 1, launched_level=None)", {}, MKL_USED),
        (
            "apply('D2', 1, launched_level='D2')",
            {**level_env("D2", 1), "MKL_CBWR": "AVX2"},
            "MKL_CBWR=AVX2 is set, but determinism D2 needs COMPATIBLE",
        ),
    ],
    ids=["d2 without a launcher", "d2 set too late", "another level", "addresses matter", "another mkl mode"],
)
def test_what_cannot_hold_is_refused(code: str, env: dict[str, str], sentence: str) -> None:
    done = ask(code, **env)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("melodeon.core.errors.DefinitionError: ")
    assert sentence in last


def test_mkl_may_have_been_used_before_where_addresses_do_not_matter() -> None:
    """On some processors it takes the same code for every address, and there is nothing to refuse."""
    probe = ask(f"{USE_MKL}print(addresses_change_bits())")
    assert probe.stdout.strip() in ("True", "False"), probe.stderr
    done = ask(f"{USE_MKL}apply('D1', 1, launched_level=None)")
    assert (MKL_USED in done.stderr, done.returncode) == ((True, 1) if "True" in probe.stdout else (False, 0))
