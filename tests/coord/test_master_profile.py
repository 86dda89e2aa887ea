"""A profile walks the sizes of a job, and what interrupts it; hybrid scaling goes by the curves that are known."""

import pytest

from melodeon.coord.hybrid import HybridConfig
from melodeon.coord.messages import Phase
from tests.coord.master_bench import Bench, follow, job, walk

SPEED = {1: 10.0, 2: 20.0, 3: 30.0, 4: 40.0}


def test_profile_walks_the_sizes_until_more_do_not_help_and_goes_back() -> None:
    bench = job(1, {"a": 8}, virtual_workers=8)
    bench.ask("profile", id="x", min=1, max=8, steps=10)
    for _ in range(6):
        walk(bench, {1: 10.0, 2: 15.0, 4: 15.2, 8: 30.0}, 16)
        follow(bench)
    answer = bench.answers["x"]
    assert answer.ok
    assert answer.values["rates"] == pytest.approx({"1": 10.0, "2": 15.0, "4": 15.2})
    assert len(bench.view.workers) == 1
    assert bench.state.curves[1] == pytest.approx({1: 10.0, 2: 15.0, 4: 15.2})


def profiled(workers: int, size: int, **config: object) -> Bench:
    """A job of `workers` whose profile from 1 to 4 workers has measured 1 and is at `size`."""
    bench = job(workers, **config)
    bench.ask("profile", id="p", min=1, max=4, steps=10)
    for _ in range(4):
        follow(bench)
        if 1 in bench.state.curves.get(1, {}) and len(bench.view.workers) == size:
            walk(bench, SPEED, 3)
            assert bench.state.profile is not None
            assert bench.state.profile.size == size
            return bench
        walk(bench, SPEED, 16)
    raise AssertionError(bench.records)


def go_on(bench: Bench) -> None:
    """Long enough for any profile to end."""
    for _ in range(8):
        follow(bench)
        walk(bench, SPEED, 16)


@pytest.mark.parametrize(
    ("what", "values", "size"),
    [
        ("scale", {"n": 3}, 3),
        ("scale", {"n": 2}, 2),
        ("scale_out", {"n": 1}, 3),
        ("scale_in", {"workers": [0]}, 1),
        ("migrate", {}, 2),
    ],
)
def test_a_wish_ends_a_profile_and_what_it_brought_stays(what: str, values: dict[str, object], size: int) -> None:
    bench = profiled(2, 2)
    bench.ask(what, id="x", **values)
    follow(bench)
    assert bench.answers["x"].ok
    go_on(bench)
    assert (len(bench.view.workers), bench.state.wanted) == (size, size)
    answer = bench.answers["p"]
    assert not answer.ok
    assert "the profile was interrupted: " in answer.text
    assert "asked" in answer.text
    assert answer.text.endswith("steps a second by workers: 1: 10.00")
    assert answer.values["rates"] == pytest.approx({"1": 10.0})


def test_a_wish_counts_from_the_size_that_a_profile_has_come_to() -> None:
    bench = profiled(2, 4)
    bench.ask("scale_in", n=1)
    go_on(bench)
    assert (len(bench.view.workers), bench.state.wanted) == (3, 3)


@pytest.mark.parametrize(("then", "size"), [([], 4), (["scale_in"], 3)])
def test_a_profile_sets_out_when_what_was_asked_for_before_it_is_done(then: list[str], size: int) -> None:
    bench = job(2, {"a": 8}, virtual_workers=8)
    wishes = [("scale", {"n": 4}), *((what, {"n": 1}) for what in then)]
    for what, values in wishes:
        bench.ask(what, id=what, **values)
    bench.ask("profile", id="p", min=1, max=2, steps=10)
    go_on(bench)
    assert [bench.answers[what].ok for what, _ in wishes] == [True] * len(wishes)
    assert bench.answers["p"].values["rates"] == pytest.approx({"1": 10.0, "2": 20.0})
    assert (len(bench.view.workers), bench.state.wanted) == (size, size), "not the size from before these wishes"


def test_slots_that_are_wished_before_a_profile_sets_out_are_taken_first() -> None:
    bench = Bench({"a": 4}, slots={"a": [0, 1]}, restarts=1).training()
    bench.gone(1)
    bench.ask("profile", id="p", min=1, max=2, steps=10)
    assert bench.ask("place", id="x", slots={"a": [0, 1]}) is None, "one of them is empty"
    go_on(bench)
    assert bench.answers["x"].ok
    assert bench.answers["p"].ok
    assert len(bench.view.workers) == 2


def test_a_newcomer_that_is_lost_before_a_profile_sets_out_does_not_end_it() -> None:
    bench = job(1)
    bench.ask("scale", id="x", n=3)
    bench.ask("profile", id="p", min=1, max=2, steps=10)
    bench.gone(1)
    go_on(bench)
    assert not bench.answers["x"].ok
    assert bench.answers["p"].ok
    assert (len(bench.view.workers), bench.state.wanted) == (2, 2)


def test_a_wish_that_is_refused_does_not_end_a_profile() -> None:
    bench = profiled(2, 2)
    bench.ask("scale", id="x", n=9)
    assert not bench.answers["x"].ok
    go_on(bench)
    assert bench.answers["p"].ok
    assert (len(bench.view.workers), bench.state.wanted) == (2, 2)


def test_a_wish_that_comes_on_the_way_back_finds_a_profile_that_is_complete() -> None:
    bench = profiled(2, 4)
    while "back to 2 workers" not in bench.view.reason:
        walk(bench, SPEED, 1)
    bench.ask("scale", id="x", n=1)
    go_on(bench)
    assert bench.answers["p"].ok
    assert bench.answers["x"].ok
    assert (len(bench.view.workers), bench.state.wanted) == (1, 1)


def test_a_device_that_is_given_back_in_a_profile_stays_free() -> None:
    bench = profiled(2, 2)
    leaver = bench.view.workers[0]
    bench.say(leaver, preempted=True)
    go_on(bench)
    assert (len(bench.view.workers), bench.state.wanted) == (1, 1)
    assert "give its device back" in bench.answers["p"].text


def test_a_device_that_is_given_back_on_the_way_to_a_size_takes_the_newcomers_along() -> None:
    bench = job(2)
    bench.ask("profile", id="p", min=4, max=4, steps=10)
    assert bench.workers() == [0, 1, 2, 3]
    bench.say(0, preempted=True)
    assert bench.view.workers == (1,)
    assert bench.workers() == [0, 1]
    go_on(bench)
    assert (len(bench.view.workers), bench.state.wanted) == (1, 1)
    assert "give its device back" in bench.answers["p"].text


@pytest.mark.parametrize(("workers", "size"), [(2, 2), (4, 2), (2, 4), (1, 2)])
def test_a_worker_that_is_lost_in_a_profile_is_not_replaced_without_restarts(workers: int, size: int) -> None:
    bench = profiled(workers, size)
    started = bench.state.next_worker
    bench.gone(bench.view.workers[0])
    go_on(bench)
    assert bench.state.next_worker == started
    assert (len(bench.view.workers), bench.state.wanted) == (size - 1, size - 1)
    assert "a worker was lost and is not replaced" in bench.answers["p"].text
    assert "1: 10.00" in bench.answers["p"].text


def test_a_loss_on_the_way_to_a_size_ends_a_profile_too() -> None:
    bench = job(2)
    bench.ask("profile", id="p", min=4, max=4, steps=10)
    bench.gone(0)
    go_on(bench)
    assert bench.view.workers == (1, 2, 3)
    assert bench.state.wanted == 3
    assert "a worker was lost and is not replaced" in bench.answers["p"].text


@pytest.mark.parametrize("restarts", [0, 1])
def test_a_newcomer_that_is_lost_on_the_way_to_a_size_costs_the_job_nothing(restarts: int) -> None:
    bench = job(2, restarts=restarts)
    bench.ask("profile", id="p", min=4, max=4, steps=10)
    bench.ready(2, 3)
    bench.gone(3)
    go_on(bench)
    assert "no size could be measured" in bench.answers["p"].text
    assert (len(bench.view.workers), bench.state.wanted) == (2, 2)
    assert (bench.state.owed, bench.state.restarts_left) == (0, restarts)


@pytest.mark.parametrize("restarts", [0, 1])
def test_a_newcomer_that_is_lost_on_the_way_back_is_replaced_where_restarts_are_left(restarts: int) -> None:
    bench = job(3, restarts=restarts)
    bench.ask("profile", id="p", min=1, max=1, steps=10)
    follow(bench)
    walk(bench, SPEED, 16)
    assert bench.workers() == [0, 3, 4]
    bench.gone(3)
    go_on(bench)
    assert bench.answers["p"].ok
    assert (len(bench.view.workers), bench.state.wanted) == (2 + restarts, 2 + restarts)
    assert (bench.state.owed, bench.state.restarts_left) == (0, 0)


def test_a_replacement_that_found_a_slot_only_in_a_profile_stays() -> None:
    bench = job(3, {"a": 2, "b": 1}, restarts=1)
    (away,) = bench.statuses["b"]
    bench.slots["b"] = 0
    bench.gone(away)
    bench.enter()
    bench.ask("profile", id="p", min=1, max=2, steps=10)
    follow(bench)
    walk(bench, SPEED, 3)
    assert len(bench.view.workers) == 1
    bench.slots["b"] = 1
    bench.report("b")
    go_on(bench)
    assert bench.answers["p"].values["rates"] == pytest.approx({"1": 10.0, "2": 20.0})
    assert (len(bench.view.workers), bench.state.wanted) == (3, 3)
    assert (bench.state.owed, bench.state.restarts_left) == (0, 0)


@pytest.mark.parametrize("restarts", [1, 2])
def test_a_profile_does_not_bring_back_who_could_not_be_replaced(restarts: int) -> None:
    bench = job(3, restarts=restarts)
    bench.gone(2)
    bench.enter()
    for newcomer in range(3, 3 + restarts):
        bench.gone(newcomer)
        bench.tick(0.1)
    bench.ask("profile", id="p", min=1, max=1, steps=10)
    go_on(bench)
    assert bench.answers["p"].ok
    assert (len(bench.view.workers), bench.state.wanted) == (2, 2)


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_a_worker_that_is_lost_in_a_profile_is_replaced_as_far_as_restarts_are_left(workers: int) -> None:
    bench = profiled(workers, 4, restarts=1)
    bench.gone(bench.view.workers[0])
    go_on(bench)
    assert bench.answers["p"].ok
    assert bench.answers["p"].values["rates"] == pytest.approx({"1": 10.0, "2": 20.0, "4": 40.0})
    assert (len(bench.view.workers), bench.state.wanted) == (workers, workers)
    assert bench.state.restarts_left == 0


# -- hybrid --


def test_hybrid_scaling_doubles_the_batch_where_the_curve_says_so() -> None:
    curves = {1: {1: 5.0, 2: 6.0, 4: 4.0}, 2: {1: 5.0, 2: 9.0, 4: 12.0}}
    bench = job(2, hybrid=HybridConfig(curves=curves))
    bench.ask("scale_out", n=2)
    bench.ready(2, 3)
    assert bench.view.factor == 2
    assert bench.state.batch == (1, 0), "nobody trains with it yet"
    assert "batch" in bench.kinds()
    bench.enter()
    assert bench.state.batch == (2, bench.view.generation)
    bench.ask("scale_in", n=1)
    assert bench.view.factor == 2


CURVES = {factor: {1: 5.0, 2: 4.0} for factor in (1, 2, 4, 8)}
"""Of no batch are two workers faster than one."""


def test_the_batch_stays_where_the_newcomers_die_inside_the_switch() -> None:
    bench = job(1, hybrid=HybridConfig(curves=CURVES))
    bench.ask("scale_out", n=1)
    bench.ready(1)
    assert bench.view.factor == 2
    bench.set(0, factor=2)
    bench.gone(1)
    assert (bench.view.workers, bench.view.factor) == ((0,), 1)
    bench.enter()
    assert bench.state.batch[0] == 1
    bench.ask("scale_out", n=1)
    bench.ready(2)
    assert bench.view.factor == 2, "from one worker to two, as before"
    assert [record.values["factor"] for record in bench.records if record.kind == "batch"] == [2, 1, 2]


def test_the_batch_goes_by_those_who_are_left_of_the_newcomers() -> None:
    bench = job(1, hybrid=HybridConfig(curves=CURVES))
    bench.ask("scale_out", n=3)
    bench.ready(1, 2, 3)
    assert bench.view.factor == 4
    bench.gone(3)
    assert (bench.view.workers, bench.view.factor) == ((0, 1, 2), 2)
    bench.gone(0)
    assert (bench.view.workers, bench.view.factor) == ((1, 2), 2), "there was one before"
    bench.enter()
    assert bench.state.batch == (2, bench.view.generation)
    bench.gone(1)
    assert bench.view.factor == 2, "a loss changes nothing"


def test_a_batch_that_is_kept_since_too_few_newcomers_are_left_is_recorded_with_that() -> None:
    bench = job(2, hybrid=HybridConfig(curves=CURVES))
    bench.ask("scale_out", n=2)
    bench.ready(2, 3)
    assert bench.view.factor == 2
    bench.gone(3)
    assert (bench.view.workers, bench.view.factor) == ((0, 1, 2), 1)
    why = [record.values["why"] for record in bench.records if record.kind == "batch"][-1]
    assert why == "2 to 3 workers is less than twice as many: the batch is kept"


def test_the_batch_stays_where_a_newcomer_cannot_be_reached() -> None:
    bench = job(1, hybrid=HybridConfig(curves=CURVES))
    bench.ask("scale_out", n=1)
    bench.ready(1)
    for factor in (2, 2):
        assert bench.view.factor == factor
        bench.say(0, broken=bench.view.generation)
        bench.tick(0.6)
        assert (bench.view.workers, bench.view.factor) == ((0,), 1)
        bench.enter()
    assert bench.state.batch[0] == 1


def test_hybrid_scaling_leaves_the_batch_alone_where_nobody_asked_for_more_workers() -> None:
    curves = {1: {1: 5.0, 2: 4.0}, 2: {1: 5.0, 2: 4.0}}
    bench = job(1, hybrid=HybridConfig(curves=curves))
    bench.ask("profile", id="x", min=1, max=2, steps=10)
    for _ in range(6):
        walk(bench, {1: 10.0, 2: 9.0}, 16)
        follow(bench)
    assert bench.answers["x"].ok
    assert bench.state.batch == (1, 0)
    assert "batch" not in bench.kinds()


def test_a_factor_that_came_with_a_checkpoint_is_where_hybrid_scaling_goes_on() -> None:
    bench = job(1, hybrid=HybridConfig(curves={4: {1: 5.0, 2: 4.0}}))
    bench.say(0, factor=4)
    assert bench.state.batch == (4, 0)
    bench.ask("scale_out", n=1)
    bench.ready(1)
    assert bench.view.factor == 8
    bench.say(0, factor=8)
    bench.gone(1)
    assert bench.view.factor == 4


def test_a_job_that_begins_again_while_it_was_to_grow_has_the_batch_of_before() -> None:
    bench = job(1, hybrid=HybridConfig(curves=CURVES), restarts=1)
    bench.ask("scale_out", n=1)
    bench.ready(1)
    assert bench.view.factor == 2
    bench.set(0, phase=Phase.GONE)
    bench.gone(1)
    assert "restart" in bench.kinds()
    assert bench.state.batch[0] == 1
