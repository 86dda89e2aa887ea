from dataclasses import asdict

from _sched import simulate, simulate_for

from melodeon.core.curve import ScalingCurve
from tests.sched.draws import job

JOBS = tuple(
    job(f"j{number}", 600.0, ScalingCurve.linear(1.0, 4), submit_s=100.0 * number, requested_workers=2)
    for number in range(40)
)


def test_a_simulation_that_may_be_stopped_finds_what_any_other_does() -> None:
    whole, _ = simulate(JOBS, "1x4:gpu", "tiresias", slot_s=60.0)
    parts, _ = simulate_for(1e9, JOBS, "1x4:gpu", "tiresias", slot_s=60.0)
    of_time = {"decision_mean_ms", "decision_p99_ms", "decision_total_s"}
    assert {k: v for k, v in asdict(parts).items() if k not in of_time} == {
        k: v for k, v in asdict(whole).items() if k not in of_time
    }


def test_one_that_is_stopped_counts_the_jobs_that_had_come() -> None:
    stopped, _ = simulate_for(0.0, JOBS, "1x4:gpu", "tiresias", slot_s=60.0)
    assert stopped.num_jobs == 2
    assert stopped.num_unfinished == 2
