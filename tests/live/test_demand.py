"""Partitions on demand in a whole job that is resized and hurt: every sample once an epoch."""

from collections import Counter
from pathlib import Path

from tests.live import demand
from tests.live.system import System

SCRIPT = Path(demand.__file__)
EPOCHS = 12


def test_every_sample_once_an_epoch_through_resizes_and_losses(tmp_path: Path) -> None:
    arguments = ("--epochs", str(EPOCHS), "--pace", "0.01")
    with System(tmp_path, "job", *arguments, script=SCRIPT, workers=2, restarts=9, straggler_factor=0.0) as system:
        system.reach(5)
        assert system.handle.scale(4).ok
        system.hurt(sorted(system.pids().items())[1][1])
        system.reach(system.last_step() + 8)
        assert system.handle.scale(2).ok
        agent = system.agent_pid()
        assert agent is not None
        system.hurt(agent)
        system.reach(system.last_step() + 8)
        assert system.handle.scale(3).ok
        first, second, *_ = sorted(system.pids().values())
        system.hurt(first)
        system.hurt(second)
        system.well()
        found = Counter(demand.used(system.run_dir))
    assert found == Counter((epoch, sample) for epoch in range(EPOCHS) for sample in range(demand.NUM_SAMPLES))
