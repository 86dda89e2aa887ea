"""Phases, processes and faults: a few of them here, all of them with `-m slow` or `python -m tests.live.matrix`."""

import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.live.bugs import HOOK
from tests.live.matrix import ACTIONS, AGENT, ENDS, MASTER, NURSERY, TABLE, WORKER, Matrix, Result, cases, points, table
from tests.live.stage import Case

KINDS = {"worker": WORKER, "agent": AGENT, "master": MASTER, "nursery": NURSERY, "ends": ENDS}

IN_A_STEP_AND_IN_A_VIEW_CHANGE = """
    boundary.digest first kill
    step.update last kill
    view.copy holder kill
    step.exchange last stop
    boundary.stored asked stop
    copy.taken newcomer kill
    view.gathered survivor cut
    view.leaving leaver kill
    view.switch migrated cut
"""
OVER_SOCKETS = """
    step.exchange last kill
    step.folded first kill
    step.folded last stop
    view.seat survivor kill
"""
NO_SHARED_MEMORY = {
    "module": "melodeon.runtime.exchange",
    "old": "segments = map_segments(group, sizes)",
    "new": "segments = None",
}
AGENT_AND_MASTER = """
    agent.start other kill
    master.stored master kill
    agent.lease other stop
    master.ordered master cut
"""


def parse(text: str) -> list[Case]:
    return [Case(*line.split()) for line in text.strip().splitlines()]


def play(folder: Path, wanted: Iterable[Case], order: str = "tree") -> list[Result]:
    return Matrix(folder, order, to_the_end=False).play(wanted)


def failed(results: list[Result]) -> list[Result]:
    return [result for result in results if result.failure]


def test_the_table_has_every_failpoint_of_a_job() -> None:
    assert set(TABLE) == points()


def test_every_phase_is_played_with_every_action() -> None:
    played = {(case.point, case.action) for case in cases()}
    assert played >= {(point, action) for point in WORKER | AGENT | MASTER | ENDS for action in ACTIONS}


@pytest.mark.timeout(240)
def test_workers_are_hurt_in_a_step_and_in_a_view_change(tmp_path: Path) -> None:
    results = play(tmp_path, parse(IN_A_STEP_AND_IN_A_VIEW_CHANGE))
    assert not failed(results), table(results)


@pytest.mark.timeout(240)
def test_workers_that_share_no_memory_are_hurt_in_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(HOOK))
    monkeypatch.setenv("MELODEON_SEEDED_BUG", json.dumps(NO_SHARED_MEMORY))
    results = play(tmp_path, parse(OVER_SOCKETS))
    assert not failed(results), table(results)


@pytest.mark.timeout(240)
def test_an_agent_and_the_master_are_hurt_and_come_back(tmp_path: Path) -> None:
    results = play(tmp_path, parse(AGENT_AND_MASTER))
    assert not failed(results), table(results)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_all_of_them(kind: str, action: str, tmp_path: Path) -> None:
    results = play(tmp_path, (case for case in cases(actions=(action,)) if case.point in KINDS[kind]))
    assert not failed(results), table(results)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_workers_are_killed_in_the_order_of_ddp(tmp_path: Path) -> None:
    results = play(tmp_path, (case for case in cases(actions=("kill",)) if case.point in WORKER), order="ddp")
    assert not failed(results), table(results)
