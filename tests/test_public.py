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
    env["XDG_RUNTIME_DIR"] = str(tmp_path)

    def call(*command: object) -> "subprocess.CompletedProcess[str]":
        return subprocess.run([*map(str, command)], env=env, cwd=tmp_path, capture_output=True, text=True)

    wheel = call(sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", tmp_path, ROOT)
    assert wheel.returncode == 0, wheel.stderr
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    installed = call(python, "-m", "pip", "install", next(tmp_path.glob("*.whl")))
    assert installed.returncode == 0, installed.stderr
    command = tmp_path / "venv" / "bin" / "melodeon"
    assert call(python, "-c", "import torch").returncode == 1, "an environment with torch shows nothing"
    (tmp_path / "train.py").write_text("import melodeon\nmelodeon.join(virtual_workers=2)\n")
    assert "run" in call(command, "--help").stdout
    doctor = call(command, "doctor")
    assert doctor.returncode == 0
    assert "not installed" in doctor.stdout
    simulated = call(command, "sim", "--generate", "philly:5", "--policy", "fifo", "--save", "kept")
    assert simulated.returncode == 0, simulated.stderr
    solved = call(command, "sim", "--generate", "philly:5", "--policy", "chronus,gavel")
    assert solved.returncode == 0, solved.stderr
    assert call(command, "plot", "kept", "-o", "kept.svg").returncode == 0
    assert call(command, "plot", "kept", "-o", "kept.png").returncode == 0
    assert "no cluster is served" in call(command, "nodes").stderr
    serve = [command, "serve", "--port", "0", "--devices", "1", "--json"]
    with subprocess.Popen(serve, env=env, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as serving:
        assert serving.stdout is not None
        assert "login_url" in serving.stdout.readline()
        assert "0/1" in call(command, "nodes").stdout
        job = call(command, "submit", "--run", "train.py", "--steps", "5", "--wait")
        assert (job.returncode, "training needs PyTorch" in " ".join(job.stdout.split())) == (1, True), job.stdout
        serving.terminate()
    run = call(command, "run", "train.py")
    assert (run.returncode, "needs PyTorch" in run.stderr) == (2, True)
    assert "needs PyTorch" in call(python, "train.py").stderr
