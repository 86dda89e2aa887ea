"""Views that come when the script is in no pass, or freezes layers: newcomers may take part in any that is not planned,
wherever the others are.
"""

import signal
from pathlib import Path

import pytest

from melodeon.core.launch import Launch
from tests.runtime.live import cases
from tests.runtime.live.conductor import Conductor
from tests.runtime.loop import crew


@pytest.mark.parametrize(
    ("order", "max_steps", "leave_at", "record"),
    [
        pytest.param("tree", None, 0, True, id="between-epochs"),
        pytest.param("ddp", None, 0, True, id="between-epochs-with-streams-of-each"),
        pytest.param("tree", None, 3, True, id="after-a-break"),
        pytest.param("tree", None, 3, False, id="after-a-break-with-nothing-to-digest"),
        pytest.param("tree", 4, 0, True, id="after-the-last-step"),
        pytest.param("tree", 3, 0, False, id="after-the-last-step-inside-an-epoch"),
    ],
)
def test_a_worker_is_lost_outside_a_pass_while_a_newcomer_connects(
    order: str, max_steps: int | None, leave_at: int, record: bool, tmp_path: Path
) -> None:
    launch = Launch(record_states=record, max_steps=max_steps)
    options = {"order": order, "leave_at": leave_at, "launch": launch}
    (gate := tmp_path / "open").touch()
    expected = crew.run(cases.between, [4], tmp_path / "undisturbed", gate=str(gate), **options).well()
    reached = tmp_path / "gate.reached"
    reached.touch()
    with Conductor(tmp_path / "run", cases.between, gate=str(tmp_path / "gate"), **options) as conductor:
        conductor.start(0, 1)
        conductor.ready(0, 1)
        conductor.entered(conductor.view([(0, 2), (1, 2)], planned=False))
        conductor.until(lambda: reached.stat().st_size == 2)
        conductor.start(2)
        conductor.ready(2)
        conductor.view([(0, 2), (1, 1), (2, 1)], planned=True)
        conductor.kill(1)
        assert conductor.exit_code(1) == -signal.SIGKILL
        view = conductor.view([(0, 2), (2, 2)], planned=False, reason="worker 1 is gone")
        (tmp_path / "gate").touch()
        conductor.entered(view)
        conductor.done(0, 2)
        assert conductor.states == list(expected.states.items())
        assert conductor.ended.lines("receipt.jsonl") == expected.lines("receipt.jsonl")


def test_a_layer_is_frozen_for_a_while_in_which_the_next_view_is_connected(tmp_path: Path) -> None:
    options = {"at": (3, 6), "frozen": (4, 6)}
    (done := tmp_path / "done").mkdir()
    for step in options["at"]:
        (done / str(step)).touch()
    expected = crew.run(cases.held, [4], tmp_path / "undisturbed", files=str(done), **options).well()
    (arms := tmp_path / "arms").mkdir()
    for name in ("view.connect", "view.connected"):
        (arms / f"{name}@1").write_text("stop")
    failpoints = f"dir:{arms}"
    with Conductor(tmp_path / "run", cases.held, failpoints=failpoints, files=str(tmp_path), **options) as conductor:
        conductor.start(0)
        conductor.ready(0)
        conductor.entered(conductor.view([(0, 4)], planned=False))
        conductor.start(1)
        conductor.ready(1)
        conductor.step(0, 2)
        view = conductor.view([(0, 2), (1, 2)], planned=True)
        conductor.until((arms / "view.connect@1.struck").exists)
        conductor.stopped(1)
        conductor.until(lambda: conductor.statuses[0].notice == 2)
        (tmp_path / "3").touch()  # it has heard of the view, and prepares it before the layer is frozen
        conductor.step(0, 5)
        conductor.kill(1, signal.SIGCONT)
        conductor.until((arms / "view.connected@1.struck").exists)  # and so both have opened their exchange
        conductor.stopped(1)
        (tmp_path / "6").touch()
        conductor.kill(1, signal.SIGCONT)
        conductor.entered(view)
        conductor.done(0, 1)
        assert conductor.states == list(expected.states.items())
