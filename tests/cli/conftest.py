import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from melodeon.cli.main import app
from melodeon.core.errors import MelodeonError
from tests.cli.clusters import found
from tests.control.api.serving import Serving

Melodeon = Callable[..., tuple[int, str, str]]


def called(folder: Path, *args: str) -> "subprocess.CompletedProcess[str]":
    """The command line in a process of its own, in a folder."""
    command = [sys.executable, "-m", "melodeon", *args]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=110, env=dict(os.environ))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a registry of its own, seen by this process and by those that it starts."""
    (tmp_path / "run").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("MELODEON_URL", "MELODEON_TOKEN", "MELODEON_STATE"):  # a cluster of whoever runs the tests
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """Have a terminal on stderr, 100 columns wide; what it is sent. No fixture: pytest sets stderr after those."""
    made = io.StringIO()
    made.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr("sys.stderr", made)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    return made


@pytest.fixture
def melodeon() -> Melodeon:
    """The command line in this process: (exit code, stdout, stderr)."""

    def call(*args: object) -> tuple[int, str, str]:
        done = CliRunner().invoke(app, [*map(str, args)], prog_name="melodeon")
        if isinstance(done.exception, MelodeonError):  # what `main` makes of it
            return done.exception.exit_code, done.stdout, f"error: {done.exception}\n"
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return done.exit_code, done.stdout, done.stderr

    assert os.environ.get("XDG_RUNTIME_DIR")
    return call


@pytest.fixture
def cluster(place: Path) -> Iterator[Serving]:
    """A service that this user has started."""
    with found(place) as made:
        yield made
