"""Phases, processes and faults: a few of them here, all of them with `-m slow` or `python -m tests.live.matrix`."""

from pathlib import Path

import pytest

from tests.live.matrix import ACTIONS, AGENT, ENDS, MASTER, NURSERY, TABLE, WORKER, Matrix, cases, points, table
from tests.live.stage import Case


def play(folder: Path, *wanted: Case, order: str = "tree") -> None:
    results = Matrix(folder, order, to_the_end=False).play(wanted)
    assert not [result for result in results if result.failure], table(results)


def test_the_table_has_every_failpoint_of_the_source() -> None:
    assert set(TABLE) == points()


def test_every_phase_is_played_with_every_action() -> None:
    played = {(case.point, case.action) for case in cases()}
    assert played >= {(point, action) for point in WORKER | AGENT | MASTER | ENDS for action in ACTIONS}


@pytest.mark.timeout(240)
def test_workers_are_hurt_in_a_step_and_in_a_view_change(tmp_path: Path) -> None:
    play(
        tmp_path,
        Case("boundary.digest", "first", "kill"),
        Case("step.update", "last", "kill"),
        Case("view.copy", "holder", "kill"),
        Case("step.exchange", "last", "stop"),
        Case("boundary.stored", "asked", "stop"),
        Case("copy.taken", "newcomer", "kill"),
        Case("view.gathered", "survivor", "cut"),
        Case("view.leaving", "leaver", "kill"),
        Case("view.switch", "migrated", "cut"),
    )


@pytest.mark.timeout(240)
def test_an_agent_and_the_master_are_hurt_and_come_back(tmp_path: Path) -> None:
    play(
        tmp_path,
        Case("agent.start", "other", "kill"),
        Case("master.stored", "master", "kill"),
        Case("agent.lease", "other", "stop"),
        Case("master.ordered", "master", "cut"),
    )


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("kind", ["worker", "agent", "master", "nursery", "ends"])
def test_all_of_them(kind: str, action: str, tmp_path: Path) -> None:
    table = {"worker": WORKER, "agent": AGENT, "master": MASTER, "nursery": NURSERY, "ends": ENDS}[kind]
    play(tmp_path, *(case for case in cases(actions=(action,)) if case.point in table))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_workers_are_killed_in_the_order_of_ddp(tmp_path: Path) -> None:
    play(tmp_path, *(case for case in cases(actions=("kill",)) if case.point in WORKER), order="ddp")
