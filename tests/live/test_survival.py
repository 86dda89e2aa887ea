"""What survivors, leavers and late messages must not do to the bits: each case exact, conducted by the test."""

import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from melodeon.coord.messages import Notice, Status
from melodeon.core.view import Seat, View
from melodeon.runtime.link import Link
from tests.live import survival_cases
from tests.runtime.live import cases
from tests.runtime.live.conductor import Conductor
from tests.runtime.loop import crew


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    folder = tmp_path_factory.mktemp("undisturbed")
    return crew.run(cases.everything, [4], folder / "run", pace_s=0.0, epochs=12).well().states


def leave_behind(conductor: Conductor) -> None:
    """Two workers; then worker 0 trains on alone, while worker 1 waits for its release."""
    conductor.start(0, 1)
    conductor.ready(0, 1)
    conductor.entered(conductor.view([(0, 2), (1, 2)], planned=False))
    conductor.step(0, 3)
    conductor.entered(conductor.view([(0, 4)], planned=True, leaving=[1]))
    conductor.step(0, conductor.statuses[0].step + 5)
    assert conductor.statuses[1].step < conductor.statuses[0].step


def test_a_leaver_that_is_asked_back_takes_the_newer_state(tmp_path: Path) -> None:
    one_epoch = crew.run(survival_cases.one_epoch, [4], tmp_path / "undisturbed", pace_s=0.0).well().states
    with Conductor(tmp_path / "run", survival_cases.one_epoch) as conductor:
        leave_behind(conductor)
        conductor.entered(conductor.view([(0, 2), (1, 2)], planned=False, reason="worker 1 is wanted again"))
        conductor.done(0, 1)
        assert conductor.states == list(one_epoch.items())


def test_a_leaver_that_is_asked_back_in_a_later_epoch_ends(tmp_path: Path, undisturbed: dict[int, str]) -> None:
    with Conductor(tmp_path / "run", cases.everything) as conductor:
        leave_behind(conductor)  # by more steps than an epoch has
        conductor.view([(0, 2), (1, 2)], planned=False, reason="worker 1 is wanted again")
        assert conductor.exit_code(1) == -signal.SIGKILL
        conductor.entered(conductor.view([(0, 4)], planned=False, reason="worker 1 is gone"))
        conductor.done(0)
        assert conductor.states == list(undisturbed.items())


def test_a_leaver_holds_its_state_until_it_is_released(tmp_path: Path, undisturbed: dict[int, str]) -> None:
    with Conductor(tmp_path / "run", cases.everything, failpoints="view.copy=kill@1/1") as conductor:
        conductor.start(0, 1, 2)
        conductor.ready(0, 1, 2)
        conductor.entered(conductor.view([(0, 2), (1, 2)], planned=False))
        conductor.step(0, 3)
        conductor.view([(1, 2), (2, 2)], planned=True, leaving=[0])
        assert conductor.exit_code(1) == -signal.SIGKILL  # the only seat that had the state
        conductor.entered(conductor.view([(0, 2), (2, 2)], planned=False, reason="worker 1 is gone"))
        conductor.done(0, 2)
        assert conductor.states == list(undisturbed.items())


def test_a_peer_that_only_falls_silent_holds_nobody_up(tmp_path: Path, undisturbed: dict[int, str]) -> None:
    with Conductor(tmp_path / "run", cases.everything, failpoints="step.exchange=stop@3/2") as conductor:
        conductor.start(0, 1, 2)
        conductor.ready(0, 1, 2)
        conductor.entered(conductor.view([(0, 2), (1, 1), (2, 1)], planned=False))
        conductor.step(0, 2)
        # Nothing closes: as long as worker 2 lives, what the others have begun with it is under way.
        conductor.entered(conductor.view([(0, 2), (1, 2)], planned=False, reason="worker 2 is silent"))
        conductor.done(0, 1)
        assert conductor.states == list(undisturbed.items())


def test_a_worker_is_lost_while_the_others_begin_to_train_a_thawed_layer(tmp_path: Path) -> None:
    thawed = crew.run(survival_cases.one_epoch, [4], tmp_path / "undisturbed", pace_s=0.0, thaw_at=5).well().states
    kill = "step.begin=kill@6/1"
    with Conductor(tmp_path / "run", survival_cases.one_epoch, failpoints=kill, thaw_at=5) as conductor:
        conductor.bereave()
        assert conductor.states == list(thawed.items())


class Agent:
    """The other end of a worker's link."""

    def __init__(self, path: Path) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._listener.settimeout(10)
        self.link = Link(str(path), 7)
        self.answer()

    def answer(self) -> None:
        """The worker calls."""
        self._connection, _ = self._listener.accept()
        self._connection.settimeout(10)

    def hang_up(self) -> None:
        self._connection.close()

    def close(self) -> None:
        self.link.close()  # without an agent it would end this process after a while
        self._connection.close()
        self._listener.close()

    def say(self, notice: Notice) -> None:
        body = msgspec.msgpack.encode(notice)
        self._connection.sendall(len(body).to_bytes(4, "big") + body)

    def hear(self) -> Status:
        length = int.from_bytes(self._take(4), "big")
        return msgspec.msgpack.decode(self._take(length), type=Status)

    def heard(self, number: int) -> None:
        """Until the worker has answered this notice."""
        while self.hear().notice < number:
            pass

    def caught_up(self) -> None:
        """Until the worker has read all that was said: it speaks twice, and in between it listens."""
        for step in (1, 2):
            self.link.post(step=step)
            while self.hear().step < step:
                pass

    def _take(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self._connection.recv(size - len(data))
            assert piece, "the worker has hung up"
            data += piece
        return data


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    agent = Agent(tmp_path / "agent.sock")
    yield agent
    agent.close()


def _view(generation: int) -> View:
    seats = (Seat(worker=7, agent="a0", host="here", count=4),)
    return View(generation=generation, seats=seats, planned=True, meeting="file", reason="a test")


def test_a_worker_refuses_a_notice_that_it_has_overtaken(agent: Agent) -> None:
    agent.say(Notice(number=5, view=_view(3)))
    agent.heard(5)
    agent.say(Notice(number=4, released=True))
    agent.say(Notice(number=5, released=True))
    agent.caught_up()
    assert agent.link.notice == Notice(number=5, view=_view(3))
    assert not agent.link.member.released


def test_a_worker_that_has_nothing_new_to_say_still_calls_an_agent_that_came_back(agent: Agent) -> None:
    agent.say(Notice(number=5, view=_view(3)))
    agent.heard(5)
    agent.hear()  # said, and said again: nothing is due
    for _ in range(2):
        agent.hang_up()
        agent.answer()
        assert agent.hear().notice == 5


def test_a_worker_refuses_an_older_view(agent: Agent) -> None:
    agent.say(Notice(number=5, view=_view(3)))
    agent.say(Notice(number=6, view=_view(2)))
    agent.heard(6)
    assert agent.link.view == _view(3)
