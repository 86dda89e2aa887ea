"""A whole job whose batch grows with its workers, and the same run again from its history."""

import json
import subprocess
import sys
from pathlib import Path

from tests.live.system import LIMIT_S, ROOT, System

ARGUMENTS = ("--epochs", "8", "--pace", "0.005", "--hybrid")
CURVES = {1: {1: 9.0, 2: 8.0}, 2: {1: 9.0, 2: 12.0, 3: 9.0, 4: 8.0}, 4: {1: 9.0, 2: 12.0, 4: 20.0}}


def test_a_job_that_grew_from_1_to_4_workers_is_run_again_on_3(tmp_path: Path) -> None:
    with System(tmp_path, "grown", *ARGUMENTS, workers=1, hybrid={"curves": CURVES}) as system:
        system.reach(5)
        assert system.handle.scale(2).ok
        system.reach(system.last_step() + 5)
        assert system.status()["batch_factor"] == 2
        assert system.handle.scale(4).ok
        system.reach(system.last_step() + 5)
        system.hurt(sorted(system.pids().items())[1][1])
        receipt = system.well().receipt()
        decided = [event for event in system.events("batch") if "generation" in event]
        assert [event["factor"] for event in decided] == [2, 4]
        assert "fastest with 1 workers" in decided[0]["why"]
        taken = [event for event in system.events("batch") if "step" in event]
        history = json.loads((system.run_dir / "batches.json").read_text())["history"]
        assert [[entry["step"], entry["factor"]] for entry in history] == [[e["step"], e["factor"]] for e in taken]
    pairs = [[entry["step"], entry["factor"]] for entry in history]
    assert len(receipt) < 200
    with System(tmp_path, "again", *ARGUMENTS, workers=3, elastic=False, batch_history=pairs) as system:
        assert system.well().receipt() == receipt


def test_the_launcher_alone_does_not_change_the_batch(tmp_path: Path) -> None:
    with System(tmp_path, "job", "--epochs", "2", workers=1, hybrid={}) as system:
        assert system.end() != 0
        assert "the script has not agreed to it" in system.log()


def test_the_workers_follow_a_batch_that_the_script_doubles(tmp_path: Path) -> None:
    """The two scripts of the AdaBatch example, side by side."""
    train, follow = (ROOT / "examples" / "adabatch" / name for name in ("train.py", "follow.py"))
    arguments = ("--epochs", "100000", "--double-at", "1,2")
    with System(tmp_path, "job", *arguments, script=train, workers=1, straggler_factor=0.0) as system:
        system.reach(1)
        command = [sys.executable, str(follow), "job"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as follower:
            try:
                system.until(lambda: len(system.members()) == 4)
                assert system.status()["batch_factor"] == 4
                system.reach(system.last_step() + 5)
                assert system.handle.stop().ok
                system.end()
                said, _ = follower.communicate(timeout=LIMIT_S)
            finally:
                follower.kill()
        assert follower.returncode == 0, said
        assert "scale to 4 was asked for: the job has 4 workers." in said
        receipt = system.receipt()
    launch = {"max_steps": max(receipt)}
    with System(tmp_path, "alone", *arguments, script=train, elastic=False, launch=launch) as system:
        assert system.well().receipt() == receipt
