"""What a controller wishes of a job: on which slots it is, when it ends, and that it can go on later."""

import json
import os
from pathlib import Path

import pytest

from melodeon.core.errors import UsageError
from tests.live.bugs import HOOK
from tests.live.system import ROOT, System, undisturbed

EPOCHS = ("--epochs", "6")  # 150 steps
PACE = ("--pace", "0.01")


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    return undisturbed(tmp_path_factory.mktemp("expected"), *EPOCHS)


def slots(system: System) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for worker in system.members():
        found.setdefault(worker["agent"], []).append(worker["slot"])
    return {agent: sorted(some) for agent, some in sorted(found.items())}


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """The loss by step of the undisturbed run."""
    with System(tmp_path_factory.mktemp("known"), "whole", *EPOCHS, elastic=False) as system:
        return losses(system.well())


def losses(system: System) -> dict[int, float]:
    rows = map(json.loads, (system.run_dir / "metrics.jsonl").read_text().splitlines())
    return {row["step"]: row["loss"] for row in rows}


def test_workers_are_where_they_are_wished_to_be(tmp_path: Path, expected: dict[int, str]) -> None:
    with System(tmp_path, "job", *EPOCHS, *PACE, agents=2, slots={"node0": [3]}, restarts=1) as system:
        system.reach(12)
        handle = system.handle
        assert slots(system) == {"node0": [3]}
        wish = {"node0": [1, 3], "node1": [0]}
        assert handle.place(wish).ok
        assert slots(system) == wish
        views = len(system.events("view"))
        assert handle.place(wish).ok
        assert len(system.events("view")) == views
        lost = next(worker for worker in system.members() if worker["agent"] == "node1")
        system.hurt(lost["pid"])
        system.until(lambda: lost["pid"] not in system.pids().values() and slots(system) == wish)
        with pytest.raises(UsageError, match="no slot 64"):
            handle.place({"node0": [64]})
        assert handle.place({"node1": [5]}).ok
        assert slots(system) == {"node1": [5]}
        assert system.finished().receipt() == expected


def test_status_tells_how_fast_and_how_far(tmp_path: Path) -> None:
    with System(tmp_path, "job", *EPOCHS, *PACE, workers=1, straggler_factor=0) as system:
        system.reach(20)
        system.handle.scale(2)
        step = system.last_step()
        system.reach(step + 25)
        # The master hears of steps later than the receipt has them, on a busy machine by some.
        system.until(lambda: sorted(system.status()["rates"]) == ["1", "2"])
        status = system.status()
        assert (status["total_steps"], status["steps_per_epoch"], status["virtual_workers"]) == (150, 25, 6)
        # Six parts of at least 10 ms on one worker, three on each of two.
        assert 0 < status["rates"]["1"] < 1 / 0.06
        assert status["rates"]["1"] < status["rates"]["2"] < 1 / 0.03
        known = losses(system)
        assert status["metrics"]["loss"] in known.values()
        system.handle.stop()
        system.end()


def test_an_aim_ends_the_job_after_one_step_whoever_trains(
    tmp_path: Path, expected: dict[int, str], known: dict[int, float]
) -> None:
    until, best = "", float("inf")
    for step, loss in sorted(known.items()):
        if loss < best and step > 60 and step % 25:
            until, last = f"loss <= {loss!r}", step
            break
        best = min(best, loss)
    with System(tmp_path, "job", *EPOCHS, *PACE, workers=2, restarts=2, launch={"until": until}) as system:
        system.reach(10)
        system.hurt(system.pids()[0])
        system.handle.scale(3)
        receipt = system.finished().receipt()
        assert max(receipt) == last
        assert receipt == {step: digest for step, digest in expected.items() if step <= last}
        end = system.events("end")[-1]
        assert (end["outcome"], end["digest"]) == ("done", expected[last])
    assert json.loads((tmp_path / "job" / "run.json").read_text())["status"] == "done"


@pytest.mark.parametrize("limit", ["until", "max_steps"])
@pytest.mark.parametrize("where", ["step.header=kill@{}/1", "step.update=kill@{}/0", "step.committed=kill@{}/1"])
def test_a_worker_that_dies_in_the_last_step_changes_nothing(
    where: str, limit: str, tmp_path: Path, expected: dict[int, str], known: dict[int, float]
) -> None:
    last = min(step for step in known if step > 3 and known[step] == min(known[s] for s in range(1, step + 1)))
    env = {"MELODEON_FAILPOINTS": where.format(last)}
    wish = {"until": f"loss <= {known[last]!r}", "max_steps": last}
    with System(tmp_path, "job", *EPOCHS, workers=3, env=env, launch={limit: wish[limit]}) as system:
        receipt = system.well().receipt()
        assert receipt == {step: digest for step, digest in expected.items() if step <= last}
        assert [event["exit_code"] for event in system.events("worker_gone")].count(-9) == 1


HEADER = "            header = self._engine.finish(self.step, finite=finite, skip=self._skip, signals=signals)\n"
MISSED = """\
            launch = __import__("melodeon.core.launch", fromlist=["Launch"]).Launch
            if self.step == {} and launch.from_env(__import__("os").environ).worker_number == 1:
                raise WorkerLost("worker 1 has not heard that the step is agreed")
"""


@pytest.mark.parametrize("limit", ["until", "max_steps"])
def test_a_worker_that_copies_the_last_step_ends_as_the_others_do(
    limit: str, tmp_path: Path, expected: dict[int, str], known: dict[int, float]
) -> None:
    last = min(step for step in known if step > 3 and known[step] == min(known[s] for s in range(1, step + 1)))
    wish = {"until": f"loss <= {known[last]!r}", "max_steps": last}
    missed = {"module": "melodeon.runtime.beat", "old": HEADER, "new": HEADER + MISSED.format(last - 1)}
    path = os.pathsep.join(map(str, [HOOK, ROOT]))
    env = {"PYTHONPATH": path, "MELODEON_SEEDED_BUG": json.dumps(missed)}
    with System(tmp_path, "job", *EPOCHS, workers=3, env=env, launch={limit: wish[limit]}) as system:
        receipt = system.well().receipt()
        assert receipt == {step: digest for step, digest in expected.items() if step <= last}
        assert system.events("end")[-1]["digest"] == expected[last]
        assert len(system.events("view")) == 2


def test_a_script_without_checkpoints_is_stopped_and_goes_on_elsewhere(
    tmp_path: Path, expected: dict[int, str]
) -> None:
    kept = {"launch": {"checkpoint_dir": str(tmp_path / "kept")}}
    with System(tmp_path, "first", *EPOCHS, *PACE, workers=3, **kept) as system:
        system.reach(30)
        system.handle.stop()
        system.end()
        first = system.receipt()
        assert json.loads((system.run_dir / "run.json").read_text())["status"] == "stopped"
    at = max(first)
    assert 30 <= at < 150
    with System(tmp_path, "second", *EPOCHS, workers=2, **kept) as system:
        system.well()
        lines = (system.run_dir / "receipt.jsonl").read_text().splitlines()[1:]
        second = {row["step"]: row["digest"] for row in map(json.loads, lines)}
    assert min(second) == at + 1
    assert {**first, **second} == expected
