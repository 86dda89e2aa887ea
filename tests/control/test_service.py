"""The whole service as a process: started, found, stopped, killed, started again."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from melodeon.backends.fleet_fake import FakeFleet
from melodeon.backends.fleet_values import Seen
from melodeon.client import Cluster
from melodeon.control import address, service
from melodeon.control.events import Submitted
from melodeon.control.job import submitted
from melodeon.control.orders import prepare
from melodeon.control.service import ServeConfig, serve_forever, url_of
from melodeon.core.errors import Unreachable, UsageError

SERVE = """
import sys
from pathlib import Path
from melodeon.control import service
from melodeon.control.service import ServeConfig, serve_forever
service.GRACE_S = 600.0  # whatever holds up its end would do so for longer than anybody here waits
state, port = Path(sys.argv[1]), int(sys.argv[2])
config = ServeConfig(state=state, port=port, cluster="1x4:cpu", roots=(state.parent,))
serve_forever(config, lambda ready: print(ready.login_url, flush=True))
"""
END_S = 30
WITH_SECRET = Submitted(
    job="a-1",
    number=1,
    user="ann",
    spec={"name": "a", "run": ["train.py"], "steps": 10, "env": {"KEY": "secret"}},
    deadline_at=None,
    signature="s",
    measure=False,
)


class Process:
    """One service."""

    def __init__(self, state: Path, port: int = 0) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVE, str(state), str(port)], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.login_url = self.process.stdout.readline().strip()
        assert self.login_url.startswith("http://127.0.0.1:")

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        code = self.process.wait(END_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


@pytest.fixture(autouse=True)
def _own_runtime_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run").mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    for name in ("MELODEON_URL", "MELODEON_TOKEN", "MELODEON_STATE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def running(state: Path) -> Iterator[Process]:
    made = Process(state)
    yield made
    if made.process.poll() is None:
        made.end(signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_is_found_answers_and_stops_when_asked(running: Process, state: Path, number: int) -> None:
    assert state.stat().st_mode & 0o777 == 0o700
    for name in ("token", "address.json", "cluster.db", "cluster.db-wal", "cluster.db-shm"):
        assert (state / name).stat().st_mode & 0o777 == 0o600, name
    assert "server" not in httpx.get(running.login_url).headers, "nobody is told what it is made of"
    with Cluster(state=state) as by_state, Cluster() as by_user:
        assert by_state.overview().num_devices == 4
        assert by_user.url == by_state.url
        events = by_user.follow_events(0)
        assert next(events).seq == 1
        assert running.end(number) == 0, "an open stream does not hold it up"
        events.close()  # type: ignore[attr-defined]
    assert not (state / "address.json").exists()
    assert not address.pointer().exists()
    with pytest.raises(Unreachable, match="melodeon serve"):
        Cluster(patience_s=0).overview()


def test_one_service_for_one_folder(running: Process, state: Path) -> None:
    other = subprocess.run([sys.executable, "-c", SERVE, str(state), "0"], capture_output=True, text=True, check=False)
    assert other.returncode != 0
    assert "another controller serves" in other.stderr
    with Cluster(state=state) as cluster:
        assert cluster.is_well()


def test_a_killed_one_is_not_found_and_the_next_goes_on(running: Process, state: Path) -> None:
    token = (state / "token").read_text()
    with Cluster(state=state) as cluster:
        policy = cluster.set_policy("fifo")
        running.end(signal.SIGKILL)
        assert (state / "address.json").exists()
        assert address.find(state) is None
        again = Process(state)
        try:
            # The same object finds it at its new address.
            assert cluster.policy() == policy
            assert (state / "token").read_text() == token
            kinds = [event.kind for event in cluster.events()]
            assert kinds.count("controller-started") == 2
        finally:
            again.end(signal.SIGTERM)


def test_it_answers_once_it_has_found_the_jobs_that_run(
    tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked before, it would say that they have come less far than it said before it was killed."""
    found: list[bool] = []

    async def act() -> None:
        told = asyncio.Event()

        class SlowFleet(FakeFleet):
            async def adopt(self, job_dir: Path, job: str, incarnation: int) -> Seen:
                with suppress(TimeoutError):
                    await asyncio.wait_for(told.wait(), 0.5)  # long enough to answer for whoever does not wait
                found.append(not told.is_set())
                return await super().adopt(job_dir, job, incarnation)

        monkeypatch.setattr(service, "Fleet", lambda *_, **__: SlowFleet())
        config = ServeConfig(state=state, port=0, cluster="1x4:cpu", roots=(tmp_path,))
        for submits in (True, False):
            told.clear()
            serving = asyncio.create_task(service.serve(config, lambda _: told.set()))
            await asyncio.wait_for(told.wait(), END_S)
            if submits:
                await asyncio.to_thread(submit)
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)

    def submit() -> None:
        (tmp_path / "train.py").touch()
        job = {"name": "cnn", "run": "train.py", "workdir": str(tmp_path), "steps": 100_000, "curve": {"1": 10.0}}
        with Cluster(state=state) as cluster:
            cluster.submit(job)

    asyncio.run(act())
    assert found == [True]


def test_a_port_that_is_taken_is_said(running: Process, state: Path, tmp_path: Path) -> None:
    with Cluster(state=state) as cluster:
        port = cluster.url.rpartition(":")[2]
    arguments = [sys.executable, "-c", SERVE, str(tmp_path / "other"), port]
    other = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert other.returncode != 0
    assert f"port {port} of '127.0.0.1' cannot be opened" in other.stderr


def test_a_host_that_is_not_known_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"'nobody\.invalid' cannot be opened \(no such host is known\)"):
        serve_forever(ServeConfig(state=tmp_path, host="nobody.invalid", port=0), lambda _: None)


def test_values_are_checked_before_anything_is_done() -> None:
    with pytest.raises(UsageError, match="--port"):
        ServeConfig(port=70000)
    with pytest.raises(UsageError, match="not known"):
        ServeConfig(policy="elasticflo")
    assert not ServeConfig().is_exposed
    assert ServeConfig(host="0.0.0.0").is_exposed
    assert url_of("::1", 80) == "http://[::1]:80"
    assert url_of("0.0.0.0", 80) == "http://127.0.0.1:80"


def test_an_address_left_behind_is_not_alive(state: Path) -> None:
    state.mkdir()
    mine = address.here("http://127.0.0.1:1", state)
    address.publish(mine)
    assert address.find(state) == mine
    gone = address.Address(url=mine.url, pid=os.getpid(), started=mine.started - 1, state=mine.state)
    address.publish(gone)
    assert address.find(state) is None
    address.withdraw(mine)
    assert (state / "address.json").exists(), "what another has said is not taken away"
    address.withdraw(gone)
    assert not (state / "address.json").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may run jobs as another user")
def test_jobs_of_another_user_reach_their_folders_and_nothing_else() -> None:
    def may(flag: str, path: Path) -> bool:
        return subprocess.run(["test", flag, path], user="nobody", group="nogroup", extra_groups=()).returncode == 0

    with tempfile.TemporaryDirectory() as name:
        state = Path(name) / "state"
        state.mkdir(mode=0o700)
        with pytest.raises(UsageError, match=rf"user 'nobody', .* cannot enter '{name}': choose a --state elsewhere"):
            service.let_pass(state, "nobody")
        Path(name).chmod(0o711)
        service.let_pass(state, "nobody")
        prepare(state / "jobs" / "a-1", submitted(0.0, WITH_SECRET))
        (state / "jobs" / "a-1").chmod(0o711)  # as its launcher does
        (state / "jobs" / "a-1" / "own").mkdir()
        assert may("-x", state / "jobs" / "a-1" / "own")
        for path in (state, state / "jobs", state / "jobs" / "a-1", state / "jobs" / "a-1" / "spec.json"):
            assert not may("-r", path), path
        with pytest.raises(UsageError, match="user 'no-such-user' is not known on this machine"):
            service.let_pass(state, "no-such-user")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may run jobs as another user")
def test_another_user_must_reach_what_jobs_import() -> None:
    with tempfile.TemporaryDirectory() as name:
        module = Path(name) / "lib" / "os.py"
        module.parent.mkdir()
        with pytest.raises(UsageError, match=f"cannot enter '{name}', where Python or Melodeon is"):
            service.require_reachable("nobody", [module])
        service.require_reachable("root", [module])
        service.require_reachable("", [module])
        Path(name).chmod(0o711)
        service.require_reachable("nobody", [module])


def test_without_another_user_nobody_passes(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir(mode=0o700)
    service.let_pass(tmp_path / "state", "")
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700


def test_answers_do_not_wait_for_receipts() -> None:
    with service._listen("127.0.0.1", 0) as door, socket.create_connection(door.getsockname()):
        guest, _ = door.accept()
        with guest:
            assert guest.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
