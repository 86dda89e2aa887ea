import json

import deadline_live
import live_vs_sim
import pytest
from _calibrate import KINDS, Entry, Measured
from _joblog import grows_of, stretches
from _livetrace import DEVICES

from melodeon.backends.devices import find_devices
from melodeon.control.specs import check_fits
from melodeon.core.jobs import Goal
from melodeon.core.spec import read_spec

CURVE = {1: 2.5, 2: 5.0, 4: 9.5}


def line(at: float, kind: str, **values: object) -> str:
    return json.dumps({"at": f"2026-01-01T00:00:{at:06.3f}+00:00", "kind": kind, **values})


@pytest.mark.parametrize("trace", [live_vs_sim.TRACE, deadline_live.TRACE])
def test_every_job_of_a_trace_is_one_that_a_cluster_takes(trace: tuple[Entry, ...]) -> None:
    cluster = find_devices(devices=DEVICES).cluster
    for number, entry in enumerate(trace, 1):
        check_fits(read_spec(entry.file(number, CURVE)), cluster)
    assert len(trace) == 12
    assert list(trace) == sorted(trace, key=lambda entry: entry.at_s)
    assert {entry.kind for entry in trace} == KINDS.keys()


def test_the_trace_mixes_goals() -> None:
    goals = [read_spec(entry.file(1, CURVE)).goal for entry in live_vs_sim.TRACE]
    assert {goal: goals.count(goal) for goal in Goal} == {Goal.HARD: 6, Goal.SOFT: 3, Goal.BEST_EFFORT: 3}


def test_stretches_of_a_job_are_read_from_its_log() -> None:
    lines = [
        line(1.0, "worker_started", worker=0),
        line(4.0, "view", workers=[0], pauses={}),
        *(line(4.0 + 0.4 * step, "step", step=step) for step in range(1, 11)),
        line(8.1, "step", step=10),
        line(8.25, "view", workers=[0, 1], pauses={"0": 0.25, "1": 0.2}),
        line(8.3, "step", step=11),
        *(line(10.75 + 0.2 * step, "step", step=20 + step) for step in (0, 2, 4)),
    ]
    one, two = stretches(lines)
    assert (one.workers, one.pause_s, one.rate) == (1, 0.0, pytest.approx(2.5))
    assert (two.workers, two.pause_s, two.rate) == (2, 0.25, pytest.approx(5.0))
    assert two.view_at - one.view_at == pytest.approx(4.25)
    assert two.seconds == pytest.approx(0.8)


def test_growth_is_measured_from_the_question_to_the_last_step_without_the_new_workers() -> None:
    lines = [
        line(4.0, "view", workers=[0], pauses={}),
        line(5.0, "ask", what="place", values={}),
        line(6.0, "view", workers=[0, 1], pauses={"0": 0.25}),
        line(7.0, "ask", what="place", values={}),
        line(7.5, "view", workers=[0], pauses={"0": 0.25}),
    ]
    assert list(grows_of(lines)) == pytest.approx([0.75])


def test_the_simulator_is_given_the_middle_of_what_was_measured() -> None:
    measured = Measured(
        curves={},
        starts_s=(3.0, 9.0, 4.0),
        grows_s=(0.5,),
        shrinks_s=(0.4,),
        pauses_s=(0.0, 0.1),
        ends_s=(0.2, 0.3, 0.1),
    )
    overheads = measured.overheads
    assert overheads.pause_s("", 4, fresh=True, held=False) == 4.0
    assert overheads.pause_s("", 4) == pytest.approx(0.05)
    assert (overheads.grow_s, overheads.shrink_s, overheads.end_s) == (0.5, 0.4, 0.2)
