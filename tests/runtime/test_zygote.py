"""Real zygotes: whom they serve, and what is forked of them (all else is in `test_nursery`)."""

import os
import resource
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from melodeon.coord.lines import Brood
from melodeon.coord.marks import started
from melodeon.coord.sprout import EARLY, read_early
from melodeon.coord.wire import Frames
from tests.coord.running import gone
from tests.runtime.zygotes import ENV, Forked, Zygote, zygote


@pytest.fixture(scope="module")
def light() -> Iterator[Zygote]:
    """One that has imported next to nothing."""
    with zygote("--preload", "json") as found:
        yield found


@pytest.fixture
def nursery(light: Zygote, tmp_path: Path) -> Iterator[Forked]:
    made = light.ask(tmp_path, preload=())
    assert made.pid, made.refused
    forked = Forked(made.pid)
    yield forked
    forked.kill()
    forked.wait(20)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"python": "/opt/other/python"}, "not /opt/other/python"),
        ({"env": ENV | {"OMP_NUM_THREADS": "77"}}, "other values of OMP_NUM_THREADS"),
        ({"env": ENV | {"MELODEON_FAILPOINTS": "step.exchange=kill"}}, "other values of MELODEON_FAILPOINTS"),
        ({"env": {name: value for name, value in ENV.items() if name != "HOME"}}, "other values of HOME"),
        ({"fds": []}, "0 descriptors came along"),
    ],
)
def test_refuses_what_it_cannot_become(light: Zygote, tmp_path: Path, fields: dict[str, object], why: str) -> None:
    made = light.ask(tmp_path, **fields)  # type: ignore[arg-type]
    assert (made.pid, why in made.refused) == (0, True), made


def test_a_variable_that_is_read_late_may_be_any(light: Zygote, tmp_path: Path) -> None:
    made = light.ask(tmp_path, preload=(), env=ENV | {"COLOUR": "green", "CUDA_VISIBLE_DEVICES": "3"})
    assert made.pid, made.refused
    Forked(made.pid).kill()


def test_what_is_read_early_is_named_by_its_beginning() -> None:
    env = {"OMP_NUM_THREADS": "1", "PYTHONPATH": "x", "TORCH_LOGS": "y", "DATA": "z", "XPYTHON": "w"}
    assert sorted(read_early(env)) == ["OMP_NUM_THREADS", "PYTHONPATH", "TORCH_LOGS"]
    assert "HOME" in EARLY


def test_is_limited_as_whoever_asked(light: Zygote, tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_CORE)
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    cores = os.sched_getaffinity(0)
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (0, before[1]))
        resource.setrlimit(resource.RLIMIT_NOFILE, (files - 3, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        os.sched_setaffinity(0, {min(cores)})
        made = light.ask(tmp_path, preload=())
    finally:
        os.sched_setaffinity(0, cores)
        resource.setrlimit(resource.RLIMIT_CORE, before)
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    forked = Forked(made.pid)
    _wait_for(tmp_path, made.pid)
    assert resource.prlimit(made.pid, resource.RLIMIT_CORE)[0] == 0
    assert resource.prlimit(made.pid, resource.RLIMIT_NOFILE)[0] == files - 3
    assert os.sched_getaffinity(made.pid) == {min(cores)}
    assert os.getsid(made.pid) == made.pid
    assert Path(f"/proc/{made.pid}/cwd").resolve() == tmp_path
    forked.kill()


def test_says_why_it_cannot_serve_in_its_log(light: Zygote, tmp_path: Path) -> None:
    made = light.ask(tmp_path, preload=("no_such_module",))
    assert gone(made.pid), "at once, perhaps before anybody can look for it"
    assert "no_such_module" in (tmp_path / "nursery.err").read_text()


def test_nonsense_is_hung_up_on_and_others_are_served(light: Zygote, tmp_path: Path, nursery: Forked) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as call:
        call.settimeout(20)
        call.connect(f"\0melodeon-{light.name}")
        call.sendall(b"\xff" * 64)
        assert call.recv(1) == b""
    made = light.ask(tmp_path, preload=())
    assert made.pid, made.refused
    Forked(made.pid).kill()


def test_nurseries_outlive_it(tmp_path: Path) -> None:
    with zygote("--preload", "json") as found:
        made = found.ask(tmp_path, preload=())
    assert found.process.returncode == -signal.SIGIO
    assert started(made.pid) is not None
    os.kill(made.pid, signal.SIGKILL)


def test_it_goes_with_its_controller_even_while_it_imports(tmp_path: Path) -> None:
    (tmp_path / "endless.py").write_text("import os, signal\nos.write(1, b'here')\nsignal.pause()")
    said, saying = os.pipe()
    with zygote("--preload", "endless", stdout=saying, PYTHONPATH=os.pathsep.join([str(tmp_path), *sys.path])) as found:
        os.close(saying)
        assert os.read(said, 4) == b"here"
    os.close(said)
    assert found.process.returncode == -signal.SIGIO


def test_one_that_is_gone_is_said_to_be(tmp_path: Path) -> None:
    with zygote("--preload", "json") as found:
        pass
    assert "cannot be asked" in found.ask(tmp_path).refused


def _wait_for(folder: Path, pid: int) -> None:
    """Until the nursery calls: then it is what it will be."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.settimeout(30)
        server.bind(str(folder / "agent.sock"))
        server.listen()
        call, _ = server.accept()
        with call:
            frames = Frames(Brood)
            assert [brood.pid for brood in frames.feed(call.recv(1 << 16))] == [pid]
