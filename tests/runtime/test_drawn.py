"""Drawn jobs give one history on drawn splits, and when they are stopped and go on with other workers."""

from pathlib import Path

import pytest

from melodeon.core.launch import Launch
from tests.runtime.loop import drawn
from tests.runtime.loop.crew import run

RECORD = Launch(record_states=True)


@pytest.mark.parametrize("seed", [*range(8), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(8, 208))])
def test_drawn_jobs(seed: int, tmp_path: Path) -> None:
    what, plan = drawn.describe(seed), drawn.Drawn(seed)
    alone = tmp_path / "alone"
    first = run(
        drawn.job, (plan.virtual_workers,), alone, launch=RECORD, seed=seed, kept=drawn.checkpoints(alone)
    ).well()
    assert first.states, what
    apart = tmp_path / "apart"
    split = plan.split()
    second = run(drawn.job, split, apart, launch=RECORD, seed=seed, kept=drawn.checkpoints(apart)).well()
    assert second.states == first.states, f"{split} differs: {what}"
    assert second.lines("metrics.jsonl") == first.lines("metrics.jsonl"), f"{split} logs otherwise: {what}"
    stopped = tmp_path / "stopped"
    kept = drawn.checkpoints(stopped)
    limit = Launch(record_states=True, max_steps=plan.stop_at)
    run(drawn.job, plan.split(), stopped, launch=limit, seed=seed, kept=kept).well()
    rest = run(drawn.job, plan.split(), tmp_path / "rest", launch=RECORD, seed=seed, kept=kept).well()
    seen = {step: digest for step, digest in first.states.items() if step > plan.stop_at}
    assert {step: rest.states.get(step) for step in seen} == seen, f"it went on otherwise: {what}"
