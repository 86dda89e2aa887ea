import json
import socket
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NoReturn

import pytest

from melodeon.backends.elastic import Elastic
from melodeon.backends.runs import Request, _begun, launches_for, new_run_dir, perform
from melodeon.coord.master_state import JobConfig
from melodeon.coord.store import StoreUnreachable, open_store
from melodeon.core.errors import UsageError
from melodeon.core.launch import Launch

SCRIPT = """
import json, os, sys
from melodeon.core.launch import Launch
launch = Launch.from_env(os.environ)
def send(**event):
    os.write(launch.event_fd, (json.dumps(event) + chr(10)).encode())
send(kind="joined", worker=launch.worker, virtual_workers=4, assignment="3,1", order="tree")
if launch.worker == 0:
    record = json.load(open(os.path.join(launch.run_dir, "run.json")))
    send(kind="step", step=5, epoch=0, metrics={"status": record["status"]})
    send(kind="end", step=6, digest="ab")
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return str(path)


def test_a_run_is_recorded_from_start_to_end(script: str, tmp_path: Path) -> None:
    heard: list[dict[str, object]] = []
    launch = Launch(counts=(3, 1), runs_root=str(tmp_path / "runs"), determinism="D1")
    report = perform(Request(script=script, args=["0"], launch=launch, name="first"), on_event=heard.append)
    assert report.outcome.ok
    assert (report.steps, report.digest) == (6, "ab")
    assert report.run_dir == tmp_path / "runs" / "first"
    assert {"status": "running"} in [event.get("metrics") for event in heard]
    record = json.loads((report.run_dir / "run.json").read_text())
    expected = {"id": "first", "num_workers": 2, "assignment": "3,1", "status": "done", "exit_code": 0, "steps": 6}
    assert record.items() >= expected.items()
    assert (record["args"], record["virtual_workers"], record["determinism"]) == (["0"], 4, "D1")
    assert record["last_workers"] == 2


def test_a_failed_run_is_recorded_as_failed(script: str, tmp_path: Path) -> None:
    report = perform(Request(script=script, args=["3"], launch=Launch(runs_root=str(tmp_path))))
    record = json.loads((report.run_dir / "run.json").read_text())
    assert (record["status"], record["exit_code"], record["reason"]) == ("failed", 1, "worker 0 ended with exit code 3")


def test_why_a_run_could_not_be_started_is_in_its_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the exit code that the command ends with."""
    store = f"unix:{tmp_path}/nobody"
    monkeypatch.setattr("melodeon.backends.elastic_store.open_store", partial(open_store, patience_s=0.1))
    request = Request(script="train.py", launch=Launch(runs_root=str(tmp_path)), name="a")
    with pytest.raises(StoreUnreachable, match="has not answered") as raised:
        perform(replace(request, elastic=Elastic(job=JobConfig(job="a"), store=store)))
    record = json.loads((tmp_path / "a/run.json").read_text())
    assert (record["status"], record["exit_code"], record["reason"]) == ("failed", 5, str(raised.value))


def test_a_run_that_is_interrupted_before_it_listens_to_signals_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr("melodeon.backends.runs._run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        perform(Request(script="train.py", launch=Launch(runs_root=str(tmp_path)), name="a"))
    record = json.loads((tmp_path / "a/run.json").read_text())
    assert (record["status"], record["exit_code"]) == ("stopped", 7)


def test_each_worker_gets_its_place_and_absolute_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    launches = launches_for(Launch(num_workers=3), Path("runs/a"))
    assert [launch.worker for launch in launches] == [0, 1, 2]
    assert {launch.rendezvous for launch in launches} == {str(tmp_path / "runs/a/rendezvous-0")}
    assert {launch.run_dir for launch in launches} == {str(tmp_path / "runs/a")}
    assert launches_for(Launch(), Path("runs/a"))[0].rendezvous is None


def test_run_names_are_plain_and_new(tmp_path: Path) -> None:
    assert new_run_dir(tmp_path, "a").is_dir()
    with pytest.raises(UsageError, match="exists already"):
        new_run_dir(tmp_path, "a")
    for name in ("../b", "a/b", "..", "", "a b", "a\n", "-x", "--static"):
        with pytest.raises(UsageError, match="plain folder name"):
            new_run_dir(tmp_path, name)
    with pytest.raises(UsageError, match="run name 'last' means the newest"):  # as in `melodeon stop last`
        new_run_dir(tmp_path, "last")
    assert new_run_dir(tmp_path, "lr-0.1_b").is_dir()


def test_a_root_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="choose another --runs-root"):
        new_run_dir(tmp_path / "file", "a")


def test_a_run_that_other_machines_see_says_whose_processes_it_counts(tmp_path: Path) -> None:
    request = Request(script="train.py", launch=Launch(), elastic=Elastic(job=JobConfig(job="a"), listen="127.0.0.1"))
    assert _begun(request, Launch(), tmp_path)["host"] == socket.gethostname()
    assert "host" not in _begun(Request(script="train.py", launch=Launch()), Launch(), tmp_path)
