"""The whole protocol under a seeded network: 10,000 seeds of faults, each held to every promise and to its end.

A seed that fails prints the one command that replays it. Seeds come in chunks, so that several cores can share them.
"""

import pytest

from tests.coord.simnet.__main__ import main
from tests.coord.simnet.checks import Violation
from tests.coord.simnet.world import FAULTS, World, draw_plan, run_seed

CHUNK = 250
CHUNKS = 40


def trouble(seed: int) -> str:
    """What went wrong, with the command that shows it again; empty: every promise was kept."""
    try:
        # The state goes through JSON after every decision, and on every tenth seed after every event.
        run_seed(seed, thorough=seed % 10 == 0)
    except Exception as problem:  # noqa: BLE001 - whatever went wrong, the seed is what to print
        return f"{problem!r}\nreplay: python -m tests.coord.simnet --seed {seed} --trace"
    return ""


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_every_promise_holds_on_every_seed(chunk: int) -> None:
    for seed in range(chunk * CHUNK, (chunk + 1) * CHUNK):
        assert trouble(seed) == ""


def test_a_seed_is_one_history_of_events() -> None:
    one, two = World(4, tracing=True), World(4, tracing=True)
    one.run()
    two.run()
    assert one.lines == two.lines
    assert one.store.state == two.store.state


def test_seeds_draw_every_kind_of_trouble() -> None:
    plans = [draw_plan(seed) for seed in range(300)]
    assert {kind for plan in plans for _, kind, _ in plan.faults} == set(FAULTS)
    assert any(plan.loss for plan in plans)
    assert any(plan.double for plan in plans)
    assert any(plan.late for plan in plans)
    assert any(plan.patient for plan in plans)
    assert any(plan.config.straggler_factor for plan in plans)


def test_a_broken_promise_is_told_by_its_name() -> None:
    world = World(0)
    with pytest.raises(Violation, match="one history"):
        world.checks.expect(False, "one history", "step 3 twice")


def test_no_seeds_at_all_is_a_mistake(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["simnet", "--count", "0"])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert "--count 0 tries no seed: give at least 1" in capsys.readouterr().err
