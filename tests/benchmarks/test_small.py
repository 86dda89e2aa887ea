"""Benchmarks of the scheduler and of the cluster in small, on jobs that are drawn: what they print is what they say."""

from pathlib import Path
from xml.etree import ElementTree as ET

import decide
import easyscale_trace
import elastic_gain
import pytest
import sim_speed
import submit

from melodeon.core.spec import read_spec
from melodeon.sim.traces.generate_easyscale import EasyScaleWorkload, generate_easyscale


def test_a_round_is_measured_with_as_many_jobs_as_were_asked_for() -> None:
    row = decide.measure("elasticflow", num_jobs=10, num_devices=64, rounds=3)
    assert row["devices"] == 64
    assert 10 <= int(str(row["jobs"])) <= 13, "a newcomer a round, where it is admitted"
    assert float(str(row["median_ms"])) <= float(str(row["worst_ms"]))


def test_growth_with_jobs_and_devices_is_drawn() -> None:
    sizes = ((100, 10_000), (1000, 10_000), (1000, 1000))
    svg = ET.fromstring(
        decide.drawing([{"jobs": jobs, "devices": devices, "median_ms": 12.5} for jobs, devices in sizes])
    )
    assert len([part for part in svg.iter() if part.tag.endswith("circle")]) == 4, "two points in each of two panels"


def test_growth_is_measured_at_one_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sim_speed, "GROWTH", (20, 40))
    monkeypatch.setattr(sim_speed, "tables", lambda *_: elastic_gain.made_up())
    found = sim_speed.growth(Path(), 60.0)
    assert [row["jobs"] for row in found] == [20, 40]
    assert all(float(str(row["ms_per_job"])) > 0 for row in found)


def test_every_contender_of_easyscales_trace_is_measured_against_the_same_baselines() -> None:
    jobs = generate_easyscale(EasyScaleWorkload(num_jobs=16, seed=1)).jobs
    rows = easyscale_trace._rows("drawn", [jobs], easyscale_trace.WORLDS[0])
    assert [row["policy"] for row in rows] == [contender.name for contender in easyscale_trace.CONTENDERS]
    by_name = {str(row["policy"]): row for row in rows}
    assert by_name[easyscale_trace.ALONE.name]["jct_gain_over_one_at_a_time"] == 1.0
    assert float(str(by_name["easyscale-heter"]["jct_gain_over_one_at_a_time"])) > 1.0


def test_elasticity_gains_on_drawn_jobs() -> None:
    measured = elastic_gain.made_up()
    rows = [*elastic_gain.elan(measured, seeds=1), *elastic_gain.virtualflow(measured, seeds=1)]
    assert {row["pair"] for row in rows} == {
        "fifo -> elastic-fifo",
        "backfill -> elastic-backfill",
        "priority -> wfs",
    }
    assert all(float(str(row["reduction_pct"])) > 0 for row in rows)


def test_submitted_jobs_are_of_all_goals_and_can_be_read() -> None:
    goals = {read_spec(submit.job(number)).goal.value for number in range(6)}
    assert goals == {"hard", "soft", "best_effort"}
    assert submit.SCRIPT.is_file()


def test_percentiles_are_values_that_occur() -> None:
    values = [float(number) for number in range(1, 101)]
    assert [submit.percentile(values, share) for share in (0.5, 0.99, 1.0)] == [50.0, 99.0, 100.0]
    assert submit.percentile([3.0], 0.99) == 3.0
