"""The agent's half: newest orders, numbers started once, and nobody comes back from GONE."""

from melodeon.coord.agent_state import AgentState
from melodeon.coord.messages import Notice, Orders, Phase, Status, WorkerOrder


def make(**values: object) -> AgentState:
    fields = {"agent": "a", "host": "h", "slots": 2, "incarnation": 3, **values}
    return AgentState(**fields)  # type: ignore[arg-type]


def orders(
    *workers: int, fence: int = 1, number: int = 1, incarnation: int = 3, notice: int = 1, end: str = ""
) -> Orders:
    listed = tuple(WorkerOrder(worker=w, slot=w, notice=Notice(number=notice)) for w in workers)
    return Orders(
        fence=fence, number=number, agent="a", incarnation=f"{incarnation:012d}", workers=listed, end=end
    )  # fmt: skip


def status(worker: int, number: int = 1, phase: Phase = Phase.READY, notice: int = 0, digest: str = "") -> Status:
    return Status(worker=worker, pid=9, number=number, phase=phase, notice=notice, digest=digest)


def phases(state: AgentState) -> dict[int, Phase]:
    return {known.worker: known.phase for known in state.report().workers}


def test_orders_start_what_is_new_and_kill_what_is_not_listed() -> None:
    state = make()
    assert [order.worker for order in state.on_orders(orders(0, 1), 0.0).start] == [0, 1]
    todo = state.on_orders(orders(1, 2, number=2), 0.0)
    assert [order.worker for order in todo.start] == [2]
    assert todo.kill == (0,)


def test_orders_of_an_older_term_are_refused() -> None:
    state = make()
    state.on_orders(orders(0, fence=5), 0.0)
    todo = state.on_orders(orders(fence=4, number=9), 0.0)
    assert todo.kill == ()
    assert (state.fence, state.number) == (5, 1)


def test_older_and_doubled_orders_of_the_same_term_are_refused() -> None:
    state = make()
    state.on_orders(orders(0, number=2), 0.0)
    assert state.on_orders(orders(number=1), 0.0).kill == ()
    assert state.on_orders(orders(0, number=2), 0.0).start == ()


def test_a_fresh_agent_refuses_masters_older_than_the_one_at_its_start() -> None:
    state = make(fence=5)
    assert state.on_orders(orders(0, fence=4), 0.0).start == ()
    assert state.on_orders(orders(0, fence=5), 0.0).start


def test_orders_for_an_earlier_incarnation_are_refused() -> None:
    assert make().on_orders(orders(0, incarnation=2), 0.0).start == ()


def test_a_number_is_started_once_across_incarnations() -> None:
    state = make(adopted={0: True, 1: False})
    todo = state.on_orders(orders(0, 1, 2), 0.0)
    assert [order.worker for order in todo.start] == [2]
    assert phases(state) == {0: Phase.STARTING, 1: Phase.GONE, 2: Phase.STARTING}


def test_last_words_keep_an_end_that_no_agent_saw() -> None:
    words = status(0, phase=Phase.DONE, digest="x")
    (told,) = make(adopted={0: False}, last_words={0: words}).report().workers
    assert (told.phase, told.digest) == (Phase.GONE, "x")


def test_a_running_worker_is_adopted_before_orders_come() -> None:
    state = make()
    assert state.on_status(status(4), 0.0).kill == ()
    assert state.on_orders(orders(4), 0.0).start == ()
    assert state.on_orders(orders(number=2), 0.0).kill == (4,)


def test_a_silent_worker_is_killed_and_told_as_gone() -> None:
    state = make()
    state.on_orders(orders(0), 0.0)
    state.on_status(status(0), 1.0)
    assert state.next_at() == 6.0
    assert state.on_tick(5.9).kill == ()
    assert state.on_tick(6.0).kill == (0,)
    assert phases(state) == {0: Phase.GONE}


def test_heartbeats_keep_a_worker_alive_without_news() -> None:
    state = make()
    state.on_orders(orders(0), 0.0)
    state.on_status(status(0), 1.0)
    assert not state.on_status(status(0), 5.0).report
    assert state.on_tick(9.0).kill == ()


def test_a_worker_that_has_not_spoken_yet_gets_longer() -> None:
    state = make()
    state.on_orders(orders(0), 0.0)
    assert state.on_tick(59.0).kill == ()
    assert state.on_tick(60.0).kill == (0,)


def test_nobody_comes_back_from_gone() -> None:
    state = make()
    state.on_orders(orders(0), 0.0)
    state.on_worker_exit(0, -9)
    assert state.on_status(status(0, number=50), 1.0).kill == (0,)
    assert phases(state) == {0: Phase.GONE}


def test_the_gone_are_told_until_orders_do_not_list_them() -> None:
    state = make()
    state.on_orders(orders(0), 0.0)
    state.on_worker_exit(0, -9)
    assert phases(state) == {0: Phase.GONE}
    state.on_orders(orders(number=2), 0.0)
    assert phases(state) == {}


def test_an_older_status_is_not_news() -> None:
    state = make()
    state.on_orders(orders(0), 0.0)
    state.on_status(status(0, number=5, phase=Phase.MEMBER), 0.0)
    state.on_status(status(0, number=4, phase=Phase.READY), 0.0)
    assert phases(state) == {0: Phase.MEMBER}


def test_notices_are_repeated_until_the_worker_says_it_has_them() -> None:
    state = make()
    assert list(state.on_orders(orders(0, notice=3), 0.0).notices) == [0]
    assert state.on_status(status(0, number=1), 0.1).notices == {}
    assert list(state.on_status(status(0, number=2), 1.0).notices) == [0]
    assert state.on_status(status(0, number=3, notice=3), 2.0).notices == {}


def test_at_the_end_the_done_may_finish_and_the_others_are_killed() -> None:
    state = make()
    state.on_orders(orders(0, 1), 0.0)
    state.on_status(status(0, phase=Phase.DONE), 0.0)
    todo = state.on_orders(orders(number=2, end="done"), 0.0)
    assert (todo.kill, todo.end) == ((1,), "done")
    assert state.running == (0, 1)


def test_reports_say_which_orders_were_taken() -> None:
    state = make()
    state.on_orders(orders(0, fence=4, number=7), 0.0)
    first, second = state.report(), state.report()
    assert (first.fence, first.orders) == (4, 7)
    assert second.number > first.number
