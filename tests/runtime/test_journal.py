"""What a run leaves behind, and who writes it."""

import json
import os
from pathlib import Path

import pytest

from melodeon.core import receipt as receipts
from melodeon.core.definition import Definition
from melodeon.core.launch import Launch
from melodeon.runtime import journal as journals
from melodeon.runtime.digest import digest_state
from melodeon.runtime.journal import Journal

DEFINITION = Definition({"seed": 1})


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_worker_0_writes_the_files(tmp_path: Path) -> None:
    journal = Journal(Launch(run_dir=str(tmp_path), record_states=True))
    journal.define(DEFINITION)
    journal.define(DEFINITION)  # a second loop of epochs
    for step in (1, 2, 2):
        journal.digest(step, digest_state({"w": step}))
        journal.metrics({"step": step, "loss": 0.5})
    journal.close()
    assert json.loads((tmp_path / "definition.json").read_text()) == {"seed": 1}
    receipt = receipts.parse((tmp_path / "receipt.jsonl").read_text().splitlines())
    assert [entry.step for entry in receipt.entries] == [1, 2]
    assert [row["step"] for row in lines(tmp_path / "metrics.jsonl")] == [1, 2]
    assert lines(tmp_path / "states.jsonl")[0]["digest"] == receipt.entries[0].digest


@pytest.mark.parametrize("run_dir", [None, "run"])
def test_a_script_may_change_its_directory(
    run_dir: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    journal = Journal(Launch(run_dir=run_dir))
    monkeypatch.chdir(tmp_path / "elsewhere")
    journal.define(DEFINITION)
    monkeypatch.chdir("/")
    journal.metrics({"step": 1})
    journal.close()
    folder = tmp_path / "run" if run_dir else next((tmp_path / ".melodeon" / "runs").iterdir())
    assert journal.folder == folder
    assert {"definition.json", "metrics.jsonl", "receipt.jsonl"} <= {path.name for path in folder.iterdir()}


def test_other_workers_write_none(tmp_path: Path) -> None:
    journal = Journal(Launch(run_dir=str(tmp_path), record_states=True, worker=1, num_workers=2))
    journal.define(DEFINITION)
    journal.digest(1, digest_state({"w": 1}))
    journal.metrics({"step": 1})
    journal.close()
    assert list(tmp_path.iterdir()) == []


def test_who_takes_over_goes_on_with_the_means_behind_the_last_whole_line(tmp_path: Path) -> None:
    journal = Journal(Launch(run_dir=str(tmp_path), worker=1, num_workers=2))
    journal.define(DEFINITION)
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}\n{"step": 3, "lo')
    for step in (1, 2, 3, 4):
        journal.metrics({"step": step})
    journal.seat(main=True)
    for step in (4, 5):  # what was exchanged again, and something new
        journal.metrics({"step": step})
    journal.close()
    assert [row["step"] for row in lines(tmp_path / "metrics.jsonl")] == [1, 2, 3, 4, 5]


def test_a_newcomer_goes_on_with_the_receipt_from_its_end_alone(tmp_path: Path) -> None:
    first = Journal(Launch(run_dir=str(tmp_path), record_states=True))
    first.define(DEFINITION)
    sizes = []
    for step in range(1, 101):
        first.digest(step, digest_state({"w": step}))
        sizes.append(len(json.dumps(first.carried())))
    assert sizes[-1] < sizes[10] + 100  # as much as of a short run
    newcomer = Journal(Launch(run_dir=str(tmp_path), record_states=True, worker=1, elastic=True))
    newcomer.define(DEFINITION)
    newcomer.adopt(json.loads(json.dumps(first.carried())))
    first.close()
    for name in ("receipt.jsonl", "states.jsonl"):
        body = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(body[: len(body) - 20])  # killed inside its last line
    newcomer.digest(100, digest_state({"w": 100}))  # a boundary that is done again
    newcomer.digest(101, digest_state({"w": 101}))
    newcomer.seat(main=True)
    newcomer.digest(102, digest_state({"w": 102}))
    newcomer.close()
    receipt = receipts.parse((tmp_path / "receipt.jsonl").read_text().splitlines(keepends=True))
    assert [entry.step for entry in receipt.entries] == list(range(1, 103))
    assert [row["step"] for row in lines(tmp_path / "states.jsonl")] == list(range(1, 103))


def test_events_go_to_the_launcher_one_line_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([100.0, 100.1])
    monkeypatch.setattr(journals.time, "monotonic", lambda: next(clock))
    heard, events = os.pipe()
    journal = Journal(Launch(run_dir=str(tmp_path), event_fd=events))
    journal.event("joined", worker=0, where=tmp_path)
    journal.note("one sentence")
    journal.step(1, 0, {"loss": 1.0})
    journal.step(2, 0, {"loss": 1.0})  # too soon to be read by a person
    os.close(events)
    with os.fdopen(heard) as file:
        rows = [json.loads(line) for line in file]
    assert [row["kind"] for row in rows] == ["joined", "note", "step"]
    assert rows[0]["where"] == str(tmp_path)


def test_notes_are_said_once(tmp_path: Path) -> None:
    heard, events = os.pipe()
    for worker in range(3):
        Journal(Launch(run_dir=str(tmp_path), event_fd=events, worker=worker, num_workers=3)).note("resumed")
    os.close(events)
    with os.fdopen(heard) as file:
        assert len(file.readlines()) == 1


def test_a_launcher_that_is_gone_does_not_stop_the_training(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    heard, events = os.pipe()
    os.close(heard)
    journal = Journal(Launch(run_dir=str(tmp_path), event_fd=events))
    journal.event("joined", worker=0)
    journal.event("step", step=1)
    os.close(events)
    journal.note("it trains on")
    assert capfd.readouterr().err == "melodeon: it trains on\n"


def test_without_a_launcher_a_folder_is_made_when_it_is_needed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    journal = Journal(Launch(runs_root=str(tmp_path / "runs")))
    journal.note("nothing to write yet")
    assert not (tmp_path / "runs").exists()
    assert capfd.readouterr().err == "melodeon: nothing to write yet\n"
    facts = json.loads((journal.folder / "run.json").read_text())
    assert facts["id"] == journal.folder.name
    assert journal.folder.parent == tmp_path / "runs"


@pytest.mark.parametrize(("failed", "status"), [(False, "done"), (True, "failed")])
def test_without_a_launcher_the_record_says_how_the_run_ended(tmp_path: Path, failed: bool, status: str) -> None:
    journal = Journal(Launch(runs_root=str(tmp_path)))
    journal.define(DEFINITION)
    assert json.loads((journal.folder / "run.json").read_text())["status"] == "running"
    journal.close(failed=failed)
    assert json.loads((journal.folder / "run.json").read_text())["status"] == status
