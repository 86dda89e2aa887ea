"""What a group holds is given back, whenever it is closed."""

import threading

from melodeon.runtime.carrier import Alarm
from melodeon.runtime.group import Group


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
