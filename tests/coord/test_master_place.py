"""`place`: workers on exactly the named slots; and the pace that the master measures."""

import pytest

from melodeon.coord.hybrid import HybridConfig
from melodeon.coord.master import Master
from melodeon.coord.messages import Phase
from tests.coord.master_bench import Bench, follow, job, placed, where


def test_a_job_starts_on_its_slots_and_nowhere_else() -> None:
    bench = placed({"a": [1, 3], "b": [2]})
    assert where(bench) == {"a": [1, 3], "b": [2]}


def test_slots_that_are_not_there_fail_with_their_names() -> None:
    bench = Bench({"a": 2}, slots={"a": [1, 7]})
    bench.report("a")
    bench.tick(11.0)
    assert bench.state.outcome == "failed"
    assert "a:1, a:7" in bench.state.text


def test_one_view_adds_who_is_missing_and_lets_go_who_is_elsewhere() -> None:
    bench = placed({"a": [0, 1]})
    bench.ask("place", id="x", slots={"a": [1, 2], "b": [3]})
    assert bench.workers() == [0, 1, 2, 3]
    bench.ready(2)
    assert bench.view.generation == 1
    bench.ready(3)
    assert (bench.view.generation, bench.view.workers, bench.view.leaving) == (2, (1, 2, 3), (0,))
    assert where(bench) == {"a": [1, 2], "b": [3]}
    bench.enter()
    assert bench.answers["x"].ok
    assert "a: 1, 2; b: 3" in bench.answers["x"].text
    assert bench.notice(0).released


def test_all_may_move_by_way_of_a_view_with_one_of_the_old_ones() -> None:
    bench = placed({"a": [0, 1]})
    bench.ask("place", id="x", slots={"b": [0, 1, 2, 3]})
    bench.ready(2, 3, 4, 5)
    assert len(bench.view.workers) == 4
    bench.enter()
    assert where(bench) == {"b": [0, 1, 2, 3]}
    bench.enter()
    assert bench.answers["x"].ok


def test_what_is_so_already_is_answered_at_once() -> None:
    bench = placed({"a": [1, 3]})
    answer = bench.ask("place", slots={"a": [3, 1], "b": []})
    assert answer is not None
    assert answer.ok
    assert bench.view.generation == 1
    assert bench.workers() == [0, 1]


@pytest.mark.parametrize(
    ("slots", "words"),
    [
        ({}, "0 slots cannot be: choose 1 to 4"),
        ({"a": []}, "0 slots cannot be"),
        ({"a": [0, 1, 2], "b": [0, 1]}, "5 slots cannot be: choose 1 to 4 for 4 virtual workers"),
        ({"c": [0]}, "no agent 'c': choose one of a, b"),
        ({"a": [4]}, "agent a has no slot 4: choose 0 to 3"),
        ({"a": [-1]}, "no slot -1"),
        ({"a": [0, 0]}, "name each once"),
        ({"a": 1}, "must be a list of numbers"),
        ({"a": ["0"]}, "each must be a whole number"),
        ([0], "must name slots by agent"),
    ],
)
def test_slots_that_cannot_be_are_refused_with_the_rule(slots: object, words: str) -> None:
    bench = placed({"a": [0]})
    answer = bench.ask("place", slots=slots)
    assert answer is not None
    assert not answer.ok
    assert words in answer.text
    assert bench.state.slots == {"a": [0]}
    assert bench.workers() == [0]


def test_fewer_slots_than_the_job_needs_are_refused() -> None:
    answer = placed({"a": [0, 1]}, min_workers=2).ask("place", slots={"a": [0]})
    assert answer is not None
    assert "choose 2 to 4" in answer.text


def test_a_job_of_one_virtual_worker_stays_where_it_is() -> None:
    bench = placed({"a": [0]}, virtual_workers=1)
    answer = bench.ask("place", slots={"a": [1]})
    assert answer is not None
    assert "virtual_workers=1" in answer.text
    answer = bench.ask("place", slots={"a": [0]})
    assert answer is not None
    assert answer.ok


def test_a_slot_is_waited_for_until_its_last_worker_has_ended() -> None:
    bench = placed({"a": [0, 1]})
    bench.ask("place", slots={"a": [0]})
    bench.enter()
    bench.ask("place", id="x", slots={"a": [0, 1]})
    assert bench.workers() == [0, 1]
    bench.gone(1, exit_code=0)
    assert bench.workers() == [0, 2]
    follow(bench)
    assert bench.answers["x"].ok
    assert where(bench) == {"a": [0, 1]}


@pytest.mark.parametrize(("wished", "kept"), [([0, 1, 2], [1, 2]), ([0, 2], [2])])
def test_a_slot_that_somebody_moves_to_meanwhile_is_not_waited_for(wished: list[int], kept: list[int]) -> None:
    bench = Bench({"a": 3}).training()
    bench.master = Master.load(bench.master.dump(), fence=2)
    bench.ask("place", id="x", slots={"a": wished})  # its slots wait for the agent's first word, and that is:
    bench.say(0, preempted=True)
    for _ in range(5):
        follow(bench)
    assert not bench.answers["x"].ok, "slot 0 is given back"
    assert where(bench) == {"a": kept}
    bench.ask("scale", id="y", n=1)
    follow(bench)
    assert bench.answers["y"].ok, "nothing is in the way of what is asked for next"


def test_a_lost_worker_is_replaced_on_the_slots_of_the_job() -> None:
    bench = placed({"a": [2], "b": [1]}, restarts=1)
    bench.gone(0)
    assert bench.view.workers == (1,)
    bench.enter()
    follow(bench)
    assert where(bench) == {"a": [2], "b": [1]}
    bench.gone(2)
    bench.enter()
    assert where(bench) == {"b": [1]}
    assert bench.state.wanted == 1


def test_a_worker_that_is_lost_while_others_come_is_replaced_in_the_same_change() -> None:
    bench = placed({"a": [0, 1]}, restarts=3)
    bench.ask("place", id="x", slots={"a": [0, 1, 2]})
    bench.gone(0)  # one that stays
    bench.enter()
    bench.gone(2)  # and one that was to come
    assert "x" not in bench.answers
    follow(bench)
    assert bench.answers["x"].ok
    assert where(bench) == {"a": [0, 1, 2]}
    assert bench.state.restarts_left == 1


@pytest.mark.parametrize(("restarts", "left", "size"), [(3, 2, 3), (0, 0, 2)])
def test_a_newcomer_that_is_lost_on_its_way_into_the_view_costs_one_restart(
    restarts: int, left: int, size: int
) -> None:
    bench = placed({"a": [0]}, restarts=restarts)
    bench.ask("place", id="x", slots={"a": [0, 1, 2]})
    bench.ready(1, 2)
    assert bench.view.workers == (0, 1, 2)
    bench.gone(1)
    bench.enter()
    follow(bench)
    assert len(bench.view.workers) == size
    assert bench.answers["x"].ok == (size == 3)
    assert (bench.state.wanted, bench.state.owed, bench.state.restarts_left) == (size, 0, left)


@pytest.mark.parametrize("restarts", [0, 1])
def test_a_newcomer_that_is_preempted_while_the_change_goes_on_is_not_lost(restarts: int) -> None:
    bench = placed({"a": [0, 1, 2]}, restarts=restarts)
    bench.ask("place", id="x", slots={"b": [0, 1, 2]})
    bench.ready(3, 4, 5)
    assert (bench.view.workers, bench.view.leaving) == ((0, 3, 4, 5), (1, 2))
    bench.set(3, preempted=True)
    bench.enter()
    for _ in range(4):
        follow(bench)
    assert bench.workers() == [4, 5], "its device stays free"
    assert (bench.state.wanted, bench.state.restarts_left) == (2, restarts)
    assert not bench.answers["x"].ok
    assert bench.answers["x"].text == "New worker 3 had to give its device back. The job has 2 workers."


def test_what_cannot_be_started_is_said_and_the_other_devices_are_given_back() -> None:
    bench = placed({"a": [0, 1]})
    bench.ask("place", id="x", slots={"a": [1], "b": [0]})
    bench.gone(2, error="no such device")
    assert bench.view.workers == (1,)
    bench.enter()
    assert not bench.answers["x"].ok
    assert "no such device" in bench.answers["x"].text
    assert where(bench) == {"a": [1]}


def test_a_job_that_cannot_move_stays() -> None:
    bench = placed({"a": [0, 1]})
    bench.ask("place", id="x", slots={"b": [0]})
    bench.gone(2)
    assert not bench.answers["x"].ok
    assert bench.view.generation == 1
    assert bench.state.slots == {"a": [0, 1]}


def test_a_lost_agent_is_not_waited_for() -> None:
    bench = placed({"a": [0, 1]})
    bench.ask("place", slots={"a": [0]})
    bench.enter()
    bench.ask("place", id="x", slots={"a": [0, 1], "b": [0]})
    bench.take(bench.master.on_agent_lost("b", bench.now))
    bench.gone(1, exit_code=0)
    follow(bench)
    assert not bench.answers["x"].ok
    assert where(bench) == {"a": [0, 1]}


def test_of_two_wishes_the_newer_counts_and_keeps_what_fits() -> None:
    bench = placed({"a": [0]})
    bench.ask("place", id="x", slots={"a": [0, 1, 2]})
    bench.ask("place", id="y", slots={"a": [0, 2, 3]})
    assert not bench.answers["x"].ok
    assert "newer wish" in bench.answers["x"].text
    # The one for slot 2 is kept, the one for slot 1 is not.
    assert bench.workers() == [0, 2, 3]
    assert [r.values["worker"] for r in bench.records if r.kind == "worker_gone"] == [1]
    bench.ready(2, 3)
    bench.enter()
    assert bench.answers["y"].ok
    assert where(bench) == {"a": [0, 2, 3]}


def test_only_the_newest_wish_of_several_is_carried_out() -> None:
    bench = placed({"a": [0, 1]})
    bench.ask("scale", n=1)  # under way: what is asked for now waits
    bench.ask("place", id="x", slots={"a": [2]})
    bench.ask("place", id="y", slots={"a": [0, 3]})
    assert "newer wish" in bench.answers["x"].text
    follow(bench)
    follow(bench)
    assert bench.answers["y"].ok
    assert where(bench) == {"a": [0, 3]}
    assert bench.state.next_worker == 3


def test_a_wish_that_is_repeated_has_one_effect() -> None:
    bench = placed({"a": [0]})
    for _ in range(3):
        bench.ask("place", id="x", slots={"a": [0, 1]})
    assert bench.workers() == [0, 1]
    bench.ready(1)
    bench.enter()
    first = bench.answers["x"]
    assert bench.ask("place", id="x", slots={"a": [0, 1]}) == first
    assert bench.view.generation == 2


def test_it_survives_a_change_of_the_master() -> None:
    bench = placed({"a": [0]})
    bench.ask("place", slots={"a": [0]})
    bench.ask("place", id="x", slots={"a": [0], "b": [1]})
    bench.master = Master.load(bench.master.dump(), fence=2)
    bench.report_all()
    bench.ready(1)
    bench.enter()
    assert bench.answers["x"].ok
    assert where(bench) == {"a": [0], "b": [1]}


def test_a_slot_that_waits_is_started_by_the_next_master() -> None:
    bench = placed({"a": [0, 1]})
    bench.ask("place", slots={"a": [0]})
    bench.enter()
    bench.ask("place", id="x", slots={"a": [0, 1]})
    bench.master = Master.load(bench.master.dump(), fence=2)
    bench.gone(1, exit_code=0)
    follow(bench)
    assert bench.answers["x"].ok
    assert where(bench) == {"a": [0, 1]}


def test_a_wish_during_the_start_is_done_when_the_job_trains() -> None:
    bench = Bench({"a": 4}, slots={"a": [0]})
    bench.report_all()
    bench.ask("place", id="x", slots={"a": [2, 3]})
    bench.ready(0)
    bench.enter()
    follow(bench)
    follow(bench)
    assert bench.answers["x"].ok
    assert where(bench) == {"a": [2, 3]}


def test_sizes_change_within_the_slots_of_the_job() -> None:
    bench = placed({"a": [1], "b": [0]})
    answer = bench.ask("scale_out", n=1)
    assert answer is not None
    assert "place the job on more slots first" in answer.text
    answer = bench.ask("migrate", worker=0)
    assert answer is not None
    assert "other slots" in answer.text
    bench.ask("scale", n=1)
    follow(bench)
    bench.ask("scale", n=2)
    follow(bench)
    assert where(bench) == {"a": [1], "b": [0]}


def test_a_profile_ends_where_the_job_gets_other_slots_and_only_there() -> None:
    bench = placed({"a": [0, 1]})
    bench.ask("profile", id="p", min=1, max=2, steps=10)
    same = bench.ask("place", slots={"a": [0, 1]})
    assert same is not None
    assert same.ok
    assert bench.state.profile is not None
    bench.ask("place", id="x", slots={"a": [0, 1, 2]})
    assert "other slots" in bench.answers["p"].text
    follow(bench)
    follow(bench)
    assert bench.answers["x"].ok


@pytest.mark.parametrize(("slots", "factor"), [({"a": [1]}, 1), ({"b": [0, 1]}, 2), ({"b": [0, 1, 2]}, 2)])
def test_hybrid_scaling_goes_by_the_workers_that_there_are_in_the_end(slots: dict[str, list[int]], factor: int) -> None:
    curves = {k: {1: 5.0, 2: 4.0} for k in (1, 2, 4)}
    bench = placed({"a": [0]}, hybrid=HybridConfig(curves=curves))
    bench.ask("place", id="x", slots=slots)
    follow(bench)
    follow(bench)
    assert bench.answers["x"].ok
    assert where(bench) == slots
    assert bench.state.batch[0] == factor


def test_status_tells_of_slots_lengths_and_means() -> None:
    bench = placed({"a": [1]})
    bench.say(0, total_steps=40, steps_per_epoch=10, metrics={"loss": 0.5, "bad": float("nan")})
    answer = bench.ask("status")
    assert answer is not None
    values = answer.values
    assert (values["total_steps"], values["steps_per_epoch"], values["virtual_workers"]) == (40, 10, 4)
    assert values["metrics"] == {"loss": 0.5, "bad": None}
    assert values["slots"] == {"a": [1]}
    assert values["workers"][0]["slot"] == 1


# -- pace --


def steps(bench: Bench, each_s: float, count: int, *, stride: int = 1) -> None:
    """All train on; their reports come every `stride` steps."""
    for _ in range(count // stride):
        for worker in bench.view.workers:
            info = bench.state.workers[worker]
            bench.set(worker, step=info.step + stride, at=(info.at or 100.0) + stride * each_s)
        bench.report_all()


def measured(bench: Bench) -> dict[str, float]:
    answer = bench.ask("status")
    assert answer is not None
    return answer.values["rates"]


def test_rates_are_medians_by_size_and_leave_out_the_first_steps() -> None:
    bench = job(1)
    steps(bench, 9.0, 4)
    assert measured(bench) == {}
    steps(bench, 0.1, 20)
    steps(bench, 5.0, 3)  # somebody looked at it in a debugger
    assert measured(bench) == pytest.approx({"1": 10.0})
    bench.ask("scale", n=2)
    bench.ready(1)
    bench.enter(step=27)
    steps(bench, 9.0, 4)
    steps(bench, 0.05, 12, stride=4)
    assert measured(bench) == pytest.approx({"1": 10.0, "2": 20.0})


def test_old_rates_are_forgotten() -> None:
    bench = job(1)
    steps(bench, 0.1, 40)
    steps(bench, 0.2, 40)
    assert measured(bench) == pytest.approx({"1": 5.0})
    assert len(bench.state.paces[1]) == 32


def test_a_stretch_with_a_change_is_not_counted() -> None:
    bench = job(2)
    steps(bench, 0.1, 20)
    bench.gone(1)
    steps(bench, 50.0, 2)
    assert measured(bench) == pytest.approx({"2": 10.0})
    assert bench.state.workers[0].phase is Phase.MEMBER


@pytest.mark.parametrize("restarts", [0, 1])
def test_a_newcomer_that_a_newer_wish_has_taken_over_and_that_is_lost_before_its_turn_costs_nothing(
    restarts: int,
) -> None:
    bench = job(1, {"a": 4}, restarts=restarts)
    bench.ask("place", id="x", slots={"a": [0, 1, 2]})
    bench.ask("scale_out", id="y", n=1)
    bench.ask("place", id="z", slots={"a": [1, 3]})  # it has the one on slot 1, and waits behind the other
    bench.gone(1)
    for _ in range(8):
        follow(bench)
    assert where(bench) == {"a": [1, 3]}
    assert (bench.state.owed, bench.state.wanted, bench.state.restarts_left) == (0, 2, restarts)
    assert "could not join" not in bench.answers["z"].text
