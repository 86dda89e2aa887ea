"""The public surface: what can be imported, what importing costs, and what works without torch."""

import os
import resource
import subprocess
import sys
import venv
from pathlib import Path

import pytest

import melodeon

ROOT = Path(__file__).parents[1]


def test_all_is_what_it_is() -> None:
    assert melodeon.__all__ == [
        "Cancelled",
        "CheckpointError",
        "DefinitionError",
        "Job",
        "JobHandle",
        "MelodeonError",
        "MissingTorch",
        "NonFiniteLoss",
        "NotBitwise",
        "NotFound",
        "Unreachable",
        "UsageError",
        "WorkerLost",
        "__version__",
        "attach",
        "join",
    ]


def test_every_public_name_is_there() -> None:
    for name in melodeon.__all__:
        assert getattr(melodeon, name) is not None
        assert name in dir(melodeon)
    with pytest.raises(AttributeError, match="no attribute 'jion'"):
        melodeon.jion  # type: ignore[attr-defined] # noqa: B018


@pytest.mark.parametrize(
    "module", ["melodeon", "melodeon.cli.main", "melodeon.cli.run", "melodeon.backends.runs", "melodeon.runtime"]
)
def test_importing_imports_neither_torch_nor_numpy(module: str) -> None:
    program = f"import sys, {module}; print(sorted({{'torch', 'numpy'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_without_torch_join_says_what_to_install() -> None:
    program = "import sys; sys.modules['torch'] = None; import melodeon; melodeon.join(virtual_workers=2)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stderr == (
        "error: melodeon.join needs PyTorch, which is not installed here: pip install 'melodeon[train]'\n"
    )
    assert done.returncode == 2


def test_help_is_fast() -> None:
    def once() -> float:
        """CPU seconds: what it takes on an idle machine, whatever else runs on this one."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "melodeon", "--help"], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert min(once() for _ in range(5)) < 0.3


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_wheel_works_in_an_empty_environment_without_torch(tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def call(*command: object) -> "subprocess.CompletedProcess[str]":
        return subprocess.run([*map(str, command)], env=env, cwd=tmp_path, capture_output=True, text=True)

    wheel = call(sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", tmp_path, ROOT)
    assert wheel.returncode == 0, wheel.stderr
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    installed = call(python, "-m", "pip", "install", next(tmp_path.glob("*.whl")))
    assert installed.returncode == 0, installed.stderr
    command = tmp_path / "venv" / "bin" / "melodeon"
    (tmp_path / "train.py").write_text("import melodeon\nmelodeon.join(virtual_workers=2)\n")
    assert "run" in call(command, "--help").stdout
    doctor = call(command, "doctor")
    assert doctor.returncode == 0
    assert "not installed" in doctor.stdout
    run = call(command, "run", "train.py")
    assert (run.returncode, "needs PyTorch" in run.stderr) == (2, True)
    assert "needs PyTorch" in call(python, "train.py").stderr
