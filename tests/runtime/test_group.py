"""What a group holds is given back, whenever it is closed."""

import threading

import pytest
import torch

from melodeon.runtime.carrier import Alarm
from melodeon.runtime.group import Group
from melodeon.runtime.transfer import side_by_side


def test_what_is_made_while_the_group_is_closed_is_given_back() -> None:
    group = Group(0, 1, alarm=Alarm())
    begun, closed, released = threading.Event(), threading.Event(), threading.Event()

    def connect() -> None:
        begun.set()
        assert closed.wait(10)
        group.hold("door", released.set)

    group.carrier.submit(connect)
    assert begun.wait(10)
    group.close()
    closed.set()
    assert released.wait(10)


def test_everything_is_given_back_though_the_group_is_closed_twice() -> None:
    group = Group(0, 1, alarm=Alarm())
    order: list[str] = []
    done, go_on = threading.Event(), threading.Event()
    group.hold("door", lambda: order.append("door"))
    group.hold("segment", done.set)
    group.carrier.submit(go_on.wait, 10)  # so that both ends come while it works
    group.close()
    group.close()
    go_on.set()
    assert done.wait(10)
    group.carrier._thread.join(10)
    assert order == ["door"]


def test_threads_that_make_room_for_a_state_or_send_one_take_the_gpu_of_their_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thread begins with the first GPU, whatever the worker has; what newcomers receive into would be there."""
    gpus = threading.local()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: getattr(gpus, "index", 0))
    monkeypatch.setattr(torch.cuda, "set_device", lambda index: setattr(gpus, "index", index))
    torch.cuda.set_device(3)
    group = Group(0, 1, alarm=Alarm())
    assert group.carrier.submit(torch.cuda.current_device).result() == 3
    group.close()
    found: list[int] = []
    side_by_side([lambda _: found.append(torch.cuda.current_device()) or []] * 2, lambda: None)
    assert found == [3, 3]
