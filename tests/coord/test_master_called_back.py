"""Leavers who are called back, since all the others were lost; and how they go again."""

import pytest

from melodeon.coord.master_state import JobPhase
from melodeon.coord.messages import Phase
from tests.coord.master_bench import Bench, follow, job, placed, where


def test_leavers_who_wait_for_the_others_first_step_are_called_back_when_all_of_these_are_lost() -> None:
    bench = job(3)
    bench.ask("scale_in", id="x", workers=[1, 2])
    bench.enter(pause_s=0.0)
    assert not bench.notice(1).released
    bench.gone(0)
    assert bench.state.phase is JobPhase.TRAINING, "two hold the state still: no checkpoint is read"
    assert (bench.view.workers, bench.view.planned) == ((1, 2), False)
    assert not bench.notice(1).released
    assert bench.answers["x"].ok
    bench.enter()
    bench.tick(40.0)
    assert bench.workers() == [1, 2], "they have not been let go"


def test_leavers_are_called_back_too_when_only_newcomers_without_the_state_are_left() -> None:
    bench = job(2)
    bench.ask("scale_in", workers=[1])
    bench.enter(pause_s=0.0)
    bench.ask("scale_out", n=1)
    bench.ready(2)
    assert (bench.view.workers, bench.view.planned) == ((0, 2), True)
    assert not bench.notice(1).released, "it holds the state still"
    bench.gone(0)
    assert (bench.view.workers, bench.view.planned) == ((1, 2), False), "one of them has the state to go on from"
    assert not bench.notice(1).released
    bench.enter()
    assert bench.view.workers == (1, 2)


def test_leavers_who_were_let_go_are_not_called_back() -> None:
    bench = job(2, restarts=1)
    bench.ask("scale_in", workers=[1])
    bench.enter()
    assert bench.notice(1).released
    bench.gone(0)
    assert bench.state.phase is JobPhase.STARTING


@pytest.mark.parametrize("restarts", [0, 1])
def test_who_was_called_back_gives_its_slot_back_again(restarts: int) -> None:
    """The wish was answered by then, and somebody else may have been promised the slots."""
    bench = placed({"a": [0, 1, 2]}, restarts=restarts)
    bench.ask("place", id="x", slots={"a": [1]})
    bench.enter(pause_s=0.0)
    bench.gone(1)
    assert where(bench) == {"a": [0, 2]}
    for _ in range(6):
        follow(bench)
    assert where(bench) == {"a": [1]}
    assert (bench.state.wanted, bench.state.current, bench.state.queue) == (1, None, [])
    assert len(bench.workers()) == 1


def test_those_who_were_called_back_are_no_more_than_were_wanted() -> None:
    bench = job(3, {"a": 4})
    bench.ask("scale", n=1)
    bench.enter(pause_s=0.0)
    bench.gone(bench.view.workers[0])
    assert len(bench.view.workers) == 2
    for _ in range(4):
        follow(bench)
    assert (len(bench.view.workers), bench.state.queue) == (1, [])
    assert bench.state.history[-1]["reason"] == "workers that were called back leave again"


@pytest.mark.parametrize(("restarts", "most"), [(0, 2), (2, 4)])
def test_slots_on_which_nobody_lives_are_given_up_when_restarts_are_spent(restarts: int, most: int) -> None:
    bench = job(1, {"a": 2}, restarts=restarts)
    bench.ask("place", id="x", slots={"a": [1]})
    lost = 0
    for _ in range(60):
        bench.ready(*[w for w in bench.workers() if all(w not in known for known in bench.statuses.values())])
        if bench.state.settled != bench.state.view:
            bench.enter(pause_s=0.0)
        if 0 not in bench.view.workers and bench.state.settled == bench.state.view:
            bench.gone(bench.view.workers[0], exit_code=-11)
            lost += 1
        bench.tick(0.1)
    assert lost == most, "the wish, and one more for nothing: somebody else may have been promised the other slot"
    assert (where(bench), bench.state.slots) == ({"a": [0]}, {"a": [0]})
    failed = [record for record in bench.records if record.kind == "change_failed"]
    assert failed[-1].values["text"] == "No restarts are left to start there again: the job goes on where it is."


def test_those_whose_node_was_lost_go_there_when_it_is_back() -> None:
    bench = Bench({"a": 2, "b": 2}, slots={"a": [0, 1]}, restarts=2).training()
    bench.ask("place", id="x", slots={"b": [0, 1]})
    bench.ready(2, 3)
    while bench.state.current:
        bench.enter(pause_s=0.0)
    bench.take(bench.master.on_agent_lost("b", bench.now))
    bench.statuses["b"] = {}
    bench.orders.pop("b")
    for worker in bench.view.workers:
        bench.set(worker, Phase.MEMBER, generation=bench.view.generation, step=1, pause_s=0.1)
    bench.report("a")
    assert bench.answers["x"].ok
    assert where(bench) == {"a": [0, 1]}
    bench.incarnations["b"] += 1
    bench.numbers["b"] = 0
    bench.report("b")
    for _ in range(10):
        follow(bench)
        bench.tick(1.0)
    assert where(bench) == {"b": [0, 1]}
