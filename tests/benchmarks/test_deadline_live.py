import pytest
from _livetrace import Played
from deadline_live import kept

from melodeon.core.service import JobInfo, Phase


def job(name: str, phase: Phase, due: float | None, end: float | None) -> JobInfo:
    return JobInfo(
        id=name, name=name, user="ada", phase=phase, submitted_at=0.0, deadline_at=due, finished_at=end, goal="hard"
    )


def test_deadlines_are_counted_over_all_and_over_the_admitted() -> None:
    jobs = (
        job("met", Phase.DONE, 100.0, 90.0),
        job("just", Phase.DONE, 100.0, 99.0),
        job("late", Phase.DONE, 100.0, 101.0),
        job("still", Phase.RUNNING, 100.0, None),
        job("refused", Phase.REJECTED, 100.0, 0.0),
        job("idle", Phase.RUNNING, None, None),
    )
    found = kept(Played(policy="edf", origin=0.0, jobs=jobs, log=(), logs={}))
    assert (found.deadlines, found.admitted, found.met, found.spare_s) == (5, 4, 2, 1.0)
    assert found.of_admitted == pytest.approx(0.5)
    assert found.of_all == pytest.approx(0.4)
