"""Workers that are slower than the others: what the master makes of the times that they report."""

from tests.coord.master_bench import Bench, job


def steps(bench: Bench, busy: dict[int, float], count: int) -> None:
    """Everyone trains on, with these busy times."""
    first = bench.state.workers[next(iter(busy))].step
    for _ in range(count):
        first += 1
        for worker, busy_s in busy.items():
            bench.set(worker, step=first, busy_s=(busy_s,))
        bench.report_all()


def test_a_slow_worker_gets_less_and_is_removed_if_that_does_not_help() -> None:
    bench = job(3, virtual_workers=12)
    steps(bench, {0: 0.1, 1: 0.1, 2: 0.3}, 9)
    assert bench.view.generation == 1
    steps(bench, {0: 0.1, 1: 0.1, 2: 0.3}, 1)
    assert bench.view.planned
    assert bench.view.assignment.counts == (5, 5, 2)
    bench.enter(step=10)
    steps(bench, {0: 0.1, 1: 0.1, 2: 0.3}, 10)
    assert (bench.view.workers, bench.view.leaving) == ((0, 1), (2,))
    figures = [record.values["why"] for record in bench.records if record.kind == "straggler"]
    assert "300 ms" in figures[0]
    assert "did not help" in figures[1]


def test_who_becomes_slow_after_many_good_steps_gets_less_at_first_too() -> None:
    bench = job(3, virtual_workers=12)
    for step in range(1, 43):
        for worker in range(3):
            times = [0.3 if worker == 2 and number > 32 else 0.1 for number in range(1, step + 1)]
            bench.set(worker, step=step, busy_s=tuple(times[-32:]))
        bench.report_all()
    assert bench.view.planned
    assert bench.view.assignment.counts == (5, 5, 2)
    why = next(record.values["why"] for record in bench.records if record.kind == "straggler")
    assert why.startswith("worker 2 took 300 ms a step over 10 steps, the others 100 ms: it gets 2 virtual workers")


def test_whom_it_has_helped_gets_less_again_when_it_is_slow_again() -> None:
    bench = job(3, virtual_workers=12)
    steps(bench, {0: 0.1, 1: 0.1, 2: 0.3}, 10)
    assert bench.view.assignment.counts == (5, 5, 2)
    bench.enter(step=10)
    steps(bench, {0: 0.1, 1: 0.1, 2: 0.1}, 10)
    steps(bench, {0: 0.1, 1: 0.1, 2: 0.3}, 10)
    assert bench.view.assignment.counts == (6, 5, 1)
    bench.enter(step=30)
    steps(bench, {0: 0.1, 1: 0.1, 2: 0.3}, 10)
    assert bench.view.workers == (0, 1)
    figures = [record.values["why"] for record in bench.records if record.kind == "straggler"]
    assert "it gets 1 virtual worker instead of 2" in figures[1]
    assert "did not help" in figures[2]


def test_who_would_keep_all_by_its_speed_gets_one_less_at_first() -> None:
    bench = job(4, virtual_workers=8)
    steps(bench, {0: 0.1, 1: 0.1, 2: 0.1, 3: 0.16}, 10)
    assert bench.view.planned
    assert bench.view.assignment.counts == (2, 2, 3, 1)
    why = next(record.values["why"] for record in bench.records if record.kind == "straggler")
    assert why.endswith("it gets 1 virtual worker instead of 2")


def test_others_that_take_no_time_get_most() -> None:
    bench = job(2, virtual_workers=8)
    steps(bench, {0: 0.0, 1: 0.3}, 10)
    assert bench.view.assignment.counts == (7, 1)


def test_who_has_but_one_virtual_worker_is_removed() -> None:
    bench = job(3, virtual_workers=4)
    assert bench.view.assignment.counts == (2, 1, 1)
    steps(bench, {0: 0.1, 1: 0.1, 2: 0.3}, 10)
    assert (bench.view.workers, bench.view.leaving) == ((0, 1), (2,))
    why = next(record.values["why"] for record in bench.records if record.kind == "straggler")
    assert why.endswith("and it has only 1: it is removed")


def test_somebody_with_more_virtual_workers_is_not_slow_for_that() -> None:
    bench = job(2, virtual_workers=3)
    assert bench.view.assignment.counts == (2, 1)
    steps(bench, {0: 0.2, 1: 0.1}, 15)
    assert bench.view.generation == 1


def test_slow_steps_must_come_in_a_row() -> None:
    bench = job(2)
    for _ in range(3):
        steps(bench, {0: 0.1, 1: 0.3}, 9)
        steps(bench, {0: 0.1, 1: 0.1}, 1)
    assert bench.view.generation == 1


def test_factor_0_watches_nobody() -> None:
    bench = job(2, straggler_factor=0.0)
    steps(bench, {0: 0.1, 1: 9.0}, 30)
    assert bench.view.generation == 1
