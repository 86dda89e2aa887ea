"""How the commands of the cluster find a service and name its jobs, and what they say where they cannot."""

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from melodeon.cli.cluster import there
from melodeon.control import address
from melodeon.coord import registry
from tests.cli.conftest import Melodeon
from tests.cli.fake_agent import job as running_job
from tests.control.api.serving import Serving


def test_a_whole_name_is_meant_before_the_beginning_of_another(cluster: Serving, melodeon: Melodeon) -> None:
    for name in ("cnn", "cnn2"):
        melodeon("submit", "work/job.yaml", "--name", name)
    assert melodeon("show", "cnn")[1].startswith("cnn-1  ")
    assert melodeon("show", "cn")[0] == 4
    melodeon("submit", "work/job.yaml", "--name", "cnn")
    code, _, err = melodeon("show", "cnn")
    assert (code, "could be any of 3" in err) == (4, True)


def test_a_service_that_was_only_looked_for_and_is_silent_is_a_note_in_ps(
    cluster: Serving, melodeon: Melodeon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("melodeon.cli.cluster.PATIENCE_S", 0.1)
    address.publish(address.here("http://127.0.0.1:9", cluster.state))
    code, out, err = melodeon("ps")
    assert (code, out.startswith("no job runs on this machine")) == (0, True)
    assert err.startswith("note: the service at")
    address.publish(address.here(cluster.url, cluster.state))


def test_a_service_that_was_named_and_is_gone_is_an_error(
    cluster: Serving, melodeon: Melodeon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MELODEON_URL", "http://127.0.0.1:9")
    monkeypatch.setattr("melodeon.cli.cluster.PATIENCE_S", 0.1)
    with running_job(cluster.work, "20261115-132710-1fc0"):
        for output in ("table", "json"):
            code, out, err = melodeon("ps", "-o", output)
            assert (code, "20261115-132710-1fc0" in out) == (5, True), "what is on this machine is told"
            assert err.startswith("error: the service at"), err
            assert err.endswith("; --local leaves the cluster out\n"), err
        assert melodeon("ps", "--local")[0] == 0
    code, _, err = melodeon("logs", "cnn-1")
    assert (code, err.endswith("; --local leaves the cluster out\n")) == (5, True)
    assert melodeon("nodes")[0] == 5


def test_a_wrong_address_is_said(place: Path, melodeon: Melodeon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MELODEON_URL", "http://exa_mple..com/")
    code, out, err = melodeon("show", "x")
    assert (code, out) == (2, "")
    assert err == (
        "error: 'http://exa_mple..com/' is no address of a service: write one such as http://127.0.0.1:8470\n"
    )


def test_a_wrong_token_is_said(cluster: Serving, melodeon: Melodeon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MELODEON_TOKEN", "wrong")
    code, out, err = melodeon("nodes")
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {cluster.url} does not know your token: set MELODEON_TOKEN to the one in")


def test_without_a_cluster_there_is_none(place: Path, melodeon: Melodeon) -> None:
    assert there() is None
    for args in (["submit", "--run", "x.py", "--steps", "1"], ["show"], ["nodes"], ["events"], ["policy"], ["whatif"]):
        code, out, err = melodeon(*args)
        assert (code, out) == (5, ""), args
        assert err.startswith("error: no cluster is served: start one by `melodeon serve`"), args


@pytest.mark.parametrize(
    "args", [["show"], ["wait"], ["cancel"], ["edit", "--priority", "2"], ["events"], ["logs"], ["logs", "--local"]]
)
def test_a_job_without_a_name_is_refused(cluster: Serving, melodeon: Melodeon, args: list[str]) -> None:
    melodeon("submit", "work/job.yaml")
    code, out, err = melodeon(args[0], "", *args[1:])
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("error: job '' is no name: give a job's id, the beginning of it, or `last`")


def test_a_running_job_without_a_name_is_refused(place: Path, melodeon: Melodeon) -> None:
    with running_job(place, "20261115-132710-1fc0"):
        for command in ("top", "stop", "logs"):
            code, _, err = melodeon(command, "")
            assert (code, "job '' is no name" in err) == (2, True), err


def test_a_start_of_a_clusters_job_is_not_changed_behind_its_back(cluster: Serving, melodeon: Melodeon) -> None:
    folder = cluster.state / "jobs" / "cnn-7"
    folder.mkdir(parents=True)
    (folder / "spec.json").write_text("{}")
    with running_job(cluster.work, "cnn-7.1"), running_job(cluster.work, "cnn-77.1"):
        entry = registry.find("cnn-7.1")
        registry.remove("cnn-7.1")
        registry.write(msgspec.structs.replace(entry, run_dir=str(folder / "cnn-7.1")))
        assert json.loads(melodeon("ps", "-o", "json", "--local")[1])["jobs"][0]["id"] == "cnn-77.1"
        for command in ("stop", "migrate", "profile"):
            code, _, err = melodeon(command, "cnn-7")
            assert (code, "job cnn-7 is the cluster's, which would undo this" in err) == (2, True), err
        assert melodeon("top", "--once", "cnn-7")[0] == 0


def test_of_two_clusters_with_jobs_of_one_id_the_one_that_is_asked_is_meant(
    cluster: Serving, melodeon: Melodeon, monkeypatch: pytest.MonkeyPatch
) -> None:
    for state in (cluster.state, cluster.work / "other"):
        folder = state / "jobs" / "cnn-7" / "cnn-7.1"
        folder.mkdir(parents=True)
        (folder.parent / "spec.json").write_text("{}")
    with running_job(cluster.work, "cnn-7.1") as agent:
        entry = registry.find("cnn-7.1")
        registry.remove("cnn-7.1")
        ours = msgspec.structs.replace(entry, run_dir=str(cluster.state / "jobs/cnn-7/cnn-7.1"))
        theirs = msgspec.structs.replace(
            entry, run_dir=str(cluster.work / "other/jobs/cnn-7/cnn-7.1"), agents=("nobody.sock",), created="9999"
        )
        registry.write(ours)
        registry.write(theirs)
        agent.status = {**agent.status, "step": 4321}
        assert "4,321" in melodeon("top", "--once", "cnn-7")[1]
        monkeypatch.setenv("MELODEON_STATE", "nowhere")
        code, _, err = melodeon("top", "--once", "cnn-7")
        assert (code, "name one by MELODEON_STATE, or the run's folder" in err) == (2, True), err
        assert melodeon("top", "--once", ours.run_dir)[0] == 0


def test_a_shell_completes_the_clusters_jobs(cluster: Serving, melodeon: Melodeon) -> None:
    program = Path("melodeon")  # the program's name decides which variable the shell asks by
    program.write_text("from melodeon.cli.main import main\nmain()\n")
    for name in ("one", "two", "twin"):
        melodeon("submit", "work/job.yaml", "--name", name)
    for words, expected in (
        ("show tw", ["twin-3", "two-2"]),
        ("logs o", ["one-1"]),
        ("scale o", ["one-1"]),
        ("policy elasticf", ["elasticflow"]),
    ):
        asked = {"_MELODEON_COMPLETE": "complete_bash", "COMP_WORDS": f"melodeon {words}", "COMP_CWORD": "2"}
        done = subprocess.run(
            [sys.executable, program], env={**os.environ, **asked}, capture_output=True, text=True, check=True
        )
        assert sorted(done.stdout.split()) == expected, words
