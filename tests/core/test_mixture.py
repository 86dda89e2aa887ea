from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from melodeon.core.cluster import DeviceType
from melodeon.core.curve import ScalingCurve
from melodeon.core.errors import UsageError
from melodeon.core.jobs import Goal, JobId, JobSpec
from melodeon.core.mixture import Groups, loads, step_s

groups = st.lists(st.tuples(st.integers(0, 4), st.floats(0.2, 5.0)), min_size=1, max_size=3).map(tuple)


@given(st.integers(1, 12), groups)
def test_no_other_split_has_a_shorter_step(virtual_workers: int, drawn: Groups) -> None:
    found = loads(virtual_workers, drawn)
    room = sum(load * count for load, (count, _) in zip(found, drawn, strict=True))
    if not any(count for count, _ in drawn):
        assert room == 0
        return
    assert room >= virtual_workers
    splits = product(*(range(virtual_workers + 1) if count else (0,) for count, _ in drawn))
    enough = (s for s in splits if sum(a * n for a, (n, _) in zip(s, drawn, strict=True)) >= virtual_workers)
    assert step_s(drawn, found) == pytest.approx(min(step_s(drawn, split) for split in enough))


def test_a_job_of_whole_virtual_workers_is_as_fast_as_its_slowest_device() -> None:
    fast, slow = DeviceType("V100"), DeviceType("T4")

    def curve(rate: float) -> ScalingCurve:
        return ScalingCurve(tuple((n, rate / -(-16 // n)) for n in range(1, 17)))

    values = {
        "id": JobId("a"),
        "iterations": 1.0,
        "goal": Goal.BEST_EFFORT,
        "curves": ((fast, curve(2.0)), (slow, curve(1.0))),
    }
    free = JobSpec(**values)  # type: ignore[arg-type]
    whole = JobSpec(**values, virtual_workers=16)  # type: ignore[arg-type]
    # 8 + 8 devices: two each on the fast ones take as long as one on each of all, so the slow ones add nothing.
    assert free.rate(((fast, 8), (slow, 8))) == 1.5
    assert whole.rate(((fast, 8), (slow, 8))) == 1.0
    # 4 + 4 devices at 3 and 1 (1.5 s) leave none over.
    assert whole.rate(((fast, 4), (slow, 4))) == pytest.approx(1 / 1.5)
    assert whole.rate(((fast, 8),)) == free.rate(((fast, 8),)) == 1.0
    with pytest.raises(UsageError, match="0 virtual workers"):
        JobSpec(**values, virtual_workers=0)  # type: ignore[arg-type]
