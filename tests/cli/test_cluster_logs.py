"""`logs` of the cluster's jobs."""

import json
from pathlib import Path

import pytest

from melodeon.backends.fleet_folder import Owner, take
from melodeon.backends.fleet_logs import read_logs
from melodeon.core.service import LogChunk
from tests.cli.clusters import SHORT, fail
from tests.cli.conftest import Melodeon
from tests.control.api.serving import Serving


def test_logs_of_a_cluster_job(cluster: Serving, melodeon: Melodeon) -> None:
    melodeon("submit", "work/job.yaml", *SHORT, "--wait")
    code, out, _ = melodeon("logs", "short")
    assert (code, len(out.splitlines()), out.startswith("step 1 loss")) == (0, 20, True)
    assert [line.split()[1] for line in melodeon("logs", "--tail", 2)[1].splitlines()] == ["19", "20"]
    assert melodeon("logs", "short-1", "-f")[1] == out
    rows = [json.loads(line) for line in melodeon("logs", "short", "-o", "json", "--worker", "0")[1].splitlines()]
    assert (len(rows), rows[0]["worker"], rows[0]["line"].split()[:2]) == (20, 0, ["step", "1"])
    melodeon("submit", "work/job.yaml", "--deadline", "1s")
    code, _, err = melodeon("logs", "cnn-2")
    assert (code, "job cnn-2 is rejected and has no output of any worker" in err) == (4, True)


def test_logs_of_the_run_whose_folder_one_stands_in(
    cluster: Serving, melodeon: Melodeon, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run := cluster.work / "mine").mkdir()
    (run / "run.json").write_text('{"status": "done"}')
    (run / "worker-0.log").write_text("hello\n")
    monkeypatch.chdir(run)
    for name in (".", "../mine"):
        assert melodeon("logs", name) == (0, "hello\n", "")


def test_logs_of_a_job_that_failed_before_it_printed_say_why(cluster: Serving, melodeon: Melodeon) -> None:
    melodeon("submit", "work/job.yaml", "--restarts", "0")
    cluster.fleet.logs = lambda *_: LogChunk(text="", next="1~~", over=True)  # type: ignore[method-assign]
    code, _, err = melodeon("logs", "cnn-1")
    assert (code, err.endswith("has no output of any worker: see `melodeon show cnn-1`\n")) == (4, True), err
    fail(cluster, "cnn-1", "its launcher has no memory")
    melodeon("wait", "cnn-1")
    code, out, err = melodeon("logs", "cnn-1")
    assert (code, out, "melodeon show" in err) == (4, "", False)
    assert "job cnn-1 is failed and has no output of any worker: " in err
    assert "its launcher has no memory" in err


def test_logs_of_a_worker_that_is_not_there_name_those_that_are(
    cluster: Serving, melodeon: Melodeon, monkeypatch: pytest.MonkeyPatch
) -> None:
    melodeon("submit", "work/job.yaml", *SHORT, "--wait")
    monkeypatch.setattr(cluster.fleet, "logs", read_logs)
    folders = [cluster.state / "jobs" / "short-1" / f"short-1.{number}" for number in (1, 2)]
    for folder in folders:
        folder.parent.mkdir(parents=True, exist_ok=True)
        take(folder, Owner(pid=0, started=0))
    for more in ((), ("-o", "json"), ("--tail", "3")):
        code, out, err = melodeon("logs", "short-1", *more)
        assert (code, out, "has no output of any worker" in err) == (4, "", True), "a new start is no output"
    (folders[0] / "worker-0.log").write_text("one\ntwo\n")
    (folders[0] / "worker-3.log").write_text("three\n")
    for more in ((), ("-o", "json"), ("--tail", "3")):
        code, out, err = melodeon("logs", "short-1", "--worker", "9", *more)
        assert (code, out) == (4, "")
        assert err == "error: job short-1 is done and has no output of worker 9: it has some of workers 0, 3\n"
    assert melodeon("logs", "short-1", "--worker", "0")[:2] == (0, "one\ntwo\n--- start 2 ---\n")
    assert melodeon("logs", "short-1", "--worker", "0", "--tail", "1")[:2] == (0, "two\n--- start 2 ---\n")
    assert melodeon("logs", "short-1", "--worker", "9", "--tail", "0") == (0, "", "")
    assert melodeon("logs", "short-1", "--worker", "9", "-f")[:2] == (0, "--- start 2 ---\n")


def test_a_name_is_the_clusters_first_and_a_local_run_else(cluster: Serving, melodeon: Melodeon) -> None:
    run = Path(".melodeon/runs/short-1")
    run.mkdir(parents=True)
    (run / "run.json").write_text(json.dumps({"id": "short-1", "status": "done", "created": "2026"}))
    (run / "worker-0.log").write_text("local\n")
    assert melodeon("logs", "short-1")[1] == "local\n", "the cluster does not know it"
    melodeon("submit", "work/job.yaml", *SHORT, "--wait")
    assert melodeon("logs", "short-1")[1].startswith("step 1 loss")
    assert melodeon("logs", "short-1", "--local")[1] == "local\n"
    code, _, err = melodeon("logs", "nobody")
    assert (code, err.startswith("error: job 'nobody' is not known here")) == (4, True)
