import pytest

from melodeon.core.cluster import DeviceType
from melodeon.core.curve import ScalingCurve
from melodeon.core.errors import UsageError
from melodeon.core.jobs import Goal, JobId, JobSpec
from melodeon.core.overhead import Overheads, Pause

GPU, T4 = DeviceType("gpu"), DeviceType("T4")
LINEAR = ScalingCurve.linear(1.0, 8)


def spec(**changes: object) -> JobSpec:
    values: dict[str, object] = {"id": JobId("a"), "iterations": 10, "curves": ((GPU, LINEAR),), "deadline_s": 5.0}
    return JobSpec(**(values | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changes",
    [
        {"iterations": 0},
        {"iterations": float("nan")},
        {"curves": ()},
        {"deadline_s": None},
        {"goal": Goal.BEST_EFFORT},
        {"min_workers": 0},
        {"min_workers": 4, "max_workers": 2},
        {"requested_workers": 0},
    ],
)
def test_a_job_that_makes_no_sense_is_refused_by_name(changes: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="job 'a'"):
        spec(**changes)


def test_mixed_devices_add_up() -> None:
    job = spec(curves=((GPU, LINEAR), (T4, ScalingCurve.linear(0.5, 8))))
    assert job.rate(((GPU, 2), (T4, 4))) == 4.0
    assert job.rate(((DeviceType("K80"), 2),)) == 0.0


def test_pauses_grow_with_the_group_and_differ_by_model() -> None:
    overheads = Overheads(by_model=(("gpt2", Pause(base_s=10.0)),))
    assert [overheads.pause_s("bert", n) for n in (0, 1, 8, 256)] == [0.0, 4.0, 10.0, 25.0]
    assert overheads.pause_s("gpt2", 1) == 12.0
    assert Overheads.none().pause_s("bert", 64) == 0.0
