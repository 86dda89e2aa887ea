"""Commands of the cluster, against a real service whose fleet plays jobs forward."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from melodeon.backends.fleet_folder import Owner, take
from melodeon.backends.fleet_logs import read_logs
from melodeon.backends.fleet_values import Ended
from melodeon.cli.cluster import there
from melodeon.control import address
from melodeon.coord import registry
from melodeon.core.service import LogChunk
from melodeon.sched.quota import Quota
from tests.cli.conftest import Melodeon
from tests.cli.fake_agent import job as running_job
from tests.control.api.serving import ANN, TOKEN, Serving, serving

JOB = """
name: cnn
run: train.py --lr 0.1
virtual_workers: 4
workers: 1-4
steps: 100000
curve: {1: 2.0, 2: 3.8, 4: 7.0}
"""
SHORT = ("--name", "short", "--steps", "20", "--curve", "1:10,4:40")


@pytest.fixture
def cluster(place: Path) -> Iterator[Serving]:
    """A service that this user has started, found by its address."""
    with found(place) as made:
        yield made


@contextmanager
def found(place: Path, **options: object) -> Iterator[Serving]:
    with serving(place, **options) as made:
        token = made.state / "token"
        token.write_text(TOKEN)
        token.chmod(0o600)
        where = address.here(made.url, made.state)
        address.publish(where)
        (made.work / "job.yaml").write_text(JOB)
        yield made
        address.withdraw(where)


def fail(cluster: Serving, job: str, reason: str) -> None:
    """Have the first start of a job fail."""

    async def end() -> None:
        cluster.fleet.end(job, 1, Ended(status="failed", exit_code=1, reason=reason))

    cluster.running(job)
    cluster.do(end())


def narrow(text: str) -> bool:
    return max(map(len, text.splitlines()), default=0) <= 80


# --- submit ---


def test_a_job_is_admitted_by_its_file(cluster: Serving, melodeon: Melodeon) -> None:
    code, out, err = melodeon("submit", "work/job.yaml", "--deadline", "2d")
    assert (code, err, narrow(out)) == (0, "", True)
    assert out.startswith("admitted   cnn-1 is admitted and starts on 4 cpu")
    assert re.search(
        r"^deadline   .*in 2\.0 d; planned to finish .* before it$", out.replace("\n             ", " "), re.M
    )
    assert out.splitlines()[-1] == "next       melodeon show cnn-1"
    spec = json.loads(melodeon("show", "cnn-1", "-o", "json")[1])["spec"]
    assert (spec["workdir"], spec["run"], spec["deadline"]) == (str(cluster.work), ["train.py", "--lr", "0.1"], "2d")
    code, out, _ = melodeon("submit", "work/job.yaml")
    best_effort = (
        r"admitted cnn-2 is admitted and starts on 4 cpu; it should be done by [\d: -]+ share 4 workers, 7 steps/s "
    )
    assert (code, bool(re.match(best_effort, " ".join(out.split())))) == (0, True), out


def test_a_rejected_job_says_the_command_that_is_accepted(cluster: Serving, melodeon: Melodeon) -> None:
    code, out, _ = melodeon("submit", "work/job.yaml", "--deadline", "90s", "--env", "A=x y", "--env", "B=2")
    assert code == 3
    assert out.startswith("rejected   cnn-1 is rejected: ")
    command = out.splitlines()[-1].removeprefix("next       ")
    assert command.startswith("melodeon submit work/job.yaml --deadline 4h")
    assert command.endswith("--env 'A=x y' --env B=2")
    again = melodeon(*shlex.split(command)[1:])
    assert (again[0], again[1].split()[0]) == (0, "admitted")
    assert cluster.controller.job("cnn-2").spec["env"] == {"A": "x y", "B": "2"}


@pytest.mark.parametrize("command", ["show", "wait"])
def test_a_rejected_job_can_be_submitted_again_from_what_is_known_of_it(
    cluster: Serving, melodeon: Melodeon, command: str
) -> None:
    flags = ("--deadline", "90s", "--env", "A=x y", "--devices", "cpu", "--run", "train.py 'a b'", "--priority", "2")
    melodeon("submit", "work/job.yaml", *flags)
    said = melodeon(command, "cnn-1")[1].splitlines()[-1].removeprefix("next       ")
    assert said.startswith("melodeon submit --name cnn --run ")
    assert melodeon(*shlex.split(said)[1:])[0] == 0
    first, second = (dict(cluster.controller.job(f"cnn-{number}").spec) for number in (1, 2))
    assert (first.pop("deadline"), second.pop("deadline") > "4h") == ("90s", True)
    assert first == second


@pytest.mark.parametrize("quota", [Quota(active_jobs=1), Quota(jobs_per_day=1)])
@pytest.mark.parametrize("job", [("work/job.yaml",), ("--run", "train.py", "--workdir", "work", "--steps", "9")])
def test_a_job_too_many_leads_to_those_that_there_are(
    place: Path, melodeon: Melodeon, monkeypatch: pytest.MonkeyPatch, quota: Quota, job: tuple[str, ...]
) -> None:
    monkeypatch.setenv("MELODEON_TOKEN", ANN)  # operators have no quota
    with found(place, quota=quota):
        melodeon("submit", "work/job.yaml")
        code, out, _ = melodeon("submit", *job, "--deadline", "2d")
        assert (code, out.splitlines()[-1]) == (3, "next       melodeon ps"), out
        assert melodeon("show", "last")[1].splitlines()[-1] == "next       melodeon ps"


def test_a_dry_run_is_a_value_and_submits_nothing(cluster: Serving, melodeon: Melodeon) -> None:
    code, out, _ = melodeon("submit", "work/job.yaml", "--deadline", "2d", "--dry-run", "-o", "json")
    plan = json.loads(out)
    assert (code, plan["admitted"], plan["dry_run"], plan["job"]["workers"]) == (0, True, True, 4)
    assert plan["job"]["planned_finish_at"] < plan["job"]["deadline_at"]
    code, out, _ = melodeon("submit", "work/job.yaml", "--deadline", "5s", "--dry-run", "-o", "json")
    assert (code, json.loads(out)["admitted"]) == (3, False)
    assert json.loads(out)["next"].startswith("melodeon submit work/job.yaml --deadline ")
    assert cluster.controller.jobs() == ()


def test_a_job_by_flags_alone_is_named_after_its_script(cluster: Serving, melodeon: Melodeon) -> None:
    code, out, _ = melodeon("submit", "--run", "train.py -x", "--workdir", "work", "--epochs", "3", "--priority", "2")
    assert (code, out.split()[:2]) == (0, ["admitted", "train-1"])
    found = cluster.controller.job("train-1")
    assert (found.spec["epochs"], found.priority, found.goal) == (3, 2.0, "best_effort")


def test_a_flag_comes_before_the_file(cluster: Serving, melodeon: Melodeon) -> None:
    assert melodeon("submit", "work/job.yaml", "--epochs", "3", "--curve", "1:4")[0] == 0
    spec = cluster.controller.job("cnn-1").spec
    assert (spec.get("steps"), spec["epochs"], spec["curve"]) == (None, 3, {"1": 4.0})


def test_none_takes_the_files_deadline_back(cluster: Serving, melodeon: Melodeon) -> None:
    Path("work/tight.yaml").write_text(f"{JOB}deadline: 1s\non_miss: soft\n")
    assert melodeon("submit", "work/tight.yaml", "--deadline", "none")[0] == 0
    found = cluster.controller.job("cnn-1")
    assert (found.goal, found.deadline_at, "deadline" in found.spec) == ("best_effort", None, False)
    said = melodeon("whatif", "work/tight.yaml", "--deadline", "none")[1].splitlines()[-1]
    assert said == "next       melodeon submit work/tight.yaml --deadline none"
    assert melodeon("submit", "work/job.yaml", "--deadline", "none")[0] == 0, "there was none"


def test_a_job_whose_speed_is_not_known_is_answered_later(cluster: Serving, melodeon: Melodeon) -> None:
    code, out, _ = melodeon(
        *("submit", "--run", "train.py", "--workdir", "work", "--virtual-workers", 4, "--steps", 50, "--deadline", "1h")
    )
    assert (code, out.split()[:2]) == (0, ["measuring", "train-1"])
    assert "planned" not in out
    code, out, _ = melodeon("wait", "train")
    assert (code, out.split()[:2]) == (0, ["done", "train-1"])


@pytest.mark.parametrize(
    ("args", "code", "sentence"),
    [
        ([], 2, "there is nothing to run: name a job's file, or give --run 'train.py --lr 0.1'"),
        (["none.yaml"], 4, "job file 'none.yaml' cannot be read (No such file or directory): check the path"),
        (["list.yaml"], 2, "job file 'list.yaml' is no table of fields: write lines such as `name: cnn`"),
        (["torn.yaml"], 2, "job file 'torn.yaml' is no YAML in line 3"),
        (["twice.yaml"], 2, "job file 'twice.yaml' is no YAML in line 3 ('steps' is there twice)"),
        (["typo.yaml"], 2, "field 'step' is not known: did you mean 'steps'?"),
        (["latin.yaml"], 2, "job file 'latin.yaml' is not text in UTF-8: write it as YAML"),
        (["work/job.yaml", "--deadline", "soon"], 2, "deadline 'soon' is no time"),
        (["work/job.yaml", "--workers", "8-1"], 2, "workers: '8-1' ends before it begins"),
        (["work/job.yaml", "--env", "LR"], 2, "--env LR sets nothing: write KEY=VALUE, such as LR=0.1"),
        (["work/job.yaml", "--curve", "fast"], 2, "--curve fast is no curve"),
        (["work/job.yaml", "--curve", "1:quick"], 2, "curve rate: 'quick' must be a number above 0"),
        (["work/job.yaml", "--steps", "3", "--epochs", "4"], 2, "steps 3 and epochs 4 are both given"),
        (["work/job.yaml", "--wait", "--dry-run"], 2, "--dry-run submits nothing that --wait could follow"),
        (["work/job.yaml", "--workdir", "/"], 2, "workdir: '/' is outside of the folders where jobs may run"),
        (["--run", "gone.py", "--steps", "1", "--workdir", "work"], 2, "run: 'gone.py' is no file in"),
        (["--run", "x 'y", "--steps", "1"], 2, "cannot be split into words"),
    ],
)
def test_a_mistake_is_one_sentence(
    cluster: Serving, melodeon: Melodeon, args: list[str], code: int, sentence: str
) -> None:
    Path("list.yaml").write_text("- a\n- b\n")
    Path("torn.yaml").write_text("name: cnn\nrun: [a\n")
    Path("twice.yaml").write_text("name: cnn\nsteps: 1\nsteps: 2\n")
    Path("typo.yaml").write_text("name: cnn\nrun: train.py\nstep: 4\n")
    Path("latin.yaml").write_bytes(b"name: \xe9\n")
    found, out, err = melodeon("submit", *args)
    assert (found, out, err.count("\n")) == (code, "", 1), err
    assert err.startswith("error: ")
    assert sentence in err
    assert cluster.controller.jobs() == ()


def test_days_and_moments_of_yaml_are_dates(cluster: Serving, melodeon: Melodeon) -> None:
    for number, text in enumerate(("2126-12-01", "2126-12-01T08:00", "2126-12-01 08:00:00"), start=1):
        Path("work/dated.yaml").write_text(f"{JOB}deadline: {text}\n")
        assert melodeon("submit", "work/dated.yaml")[0] == 0
        assert cluster.controller.job(f"cnn-{number}").deadline_at


# --- wait ---


def test_wait_ends_as_the_job_does(cluster: Serving, melodeon: Melodeon) -> None:
    code, out, err = melodeon("submit", "work/job.yaml", *SHORT, "--wait")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()[-4:]] == ["done", "digest", "run", "next"]
    assert re.search(r"^\d\d:\d\d:\d\d  trained to its end at step 20$", err, re.MULTILINE)
    assert melodeon("submit", "work/job.yaml", "--deadline", "1s", "--wait")[0] == 3
    assert melodeon("wait", "cnn-2")[0] == 3, "the same as when it was submitted"
    melodeon("submit", "work/job.yaml")
    assert melodeon("cancel", "cnn-3")[0] == 0
    code, out, _ = melodeon("wait", "cnn-3", "-o", "json")
    assert (code, json.loads(out)["phase"]) == (7, "cancelled")


def test_wait_ends_with_one_where_the_job_failed(cluster: Serving, melodeon: Melodeon) -> None:
    melodeon("submit", "work/job.yaml", "--restarts", "0")
    fail(cluster, "cnn-1", "a loss is NaN")
    code, out, _ = melodeon("wait", "cnn-1", "--quiet")
    assert (code, "a loss is NaN" in out, out.splitlines()[-1]) == (1, True, "next       melodeon logs cnn-1")


def test_waiting_can_have_an_end_of_its_own(cluster: Serving, melodeon: Melodeon) -> None:
    melodeon("submit", "work/job.yaml")
    for quiet in ((), ("--quiet",)):
        code, out, err = melodeon("wait", "cnn-1", "--timeout", "0.2s", *quiet)
        assert (code, out) == (5, "")
        assert "after 0.2s, not over: wait longer, or see `melodeon show cnn-1`" in err
    assert "--timeout ages is no length of time" in melodeon("wait", "cnn-1", "--timeout", "ages")[2]


# --- looking ---


def test_show_tells_the_story(cluster: Serving, melodeon: Melodeon) -> None:
    melodeon("submit", "work/job.yaml", "--deadline", "2d")
    cluster.running("cnn-1")
    code, out, _ = melodeon("show")
    assert (code, narrow(out), out.splitlines()[0]) == (0, True, "cnn-1  running")
    assert re.search(r"^\d\d:\d\d:\d\d  submitted by root: 100,000 steps; deadline ", out, re.MULTILINE)
    assert "elasticflow admitted it" in out
    assert "workers    4 (it may have 1 to 4) on node000 (0, 1, 2, 3)" in out
    story = json.loads(melodeon("show", "cnn", "-o", "json")[1])["story"]
    assert [sorted(part) for part in story] == [["at", "text"]] * len(story)


def test_a_loss_that_diverged_is_shown_as_such(
    cluster: Serving, melodeon: Melodeon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("melodeon.backends.fleet_fake.loss", lambda _: None)
    melodeon("submit", "work/job.yaml")
    cluster.running("cnn-1")
    cluster.until(lambda: cluster.controller.job("cnn-1").step > 0)
    assert ", loss nan" in melodeon("show", "cnn-1")[1]
    assert json.loads(melodeon("show", "cnn-1", "-o", "json")[1])["metrics"] == {"loss": None}
    cluster.until(lambda: len(cluster.controller.series("cnn-1").columns["step"]) > 0)
    assert set(cluster.controller.series("cnn-1").columns["loss"]) == {None}


def test_what_its_workers_warn_of_is_shown(cluster: Serving, melodeon: Melodeon) -> None:
    melodeon("submit", "work/job.yaml")
    cluster.running("cnn-1")
    text = "until='accuracy > 0.9' was not looked at"
    cluster.controller.engine.report(replace(cluster.fleet.seen("cnn-1", 1), warnings=(text,)))
    cluster.until(lambda: cluster.controller.job("cnn-1").warnings == (text,))
    out = melodeon("show", "cnn-1")[1]
    assert f"warning    {text}\n" in out
    assert f"  warns: {text}\n" in out
    melodeon("cancel", "cnn-1")
    assert f"warning    {text}\n" in melodeon("wait", "cnn-1")[1]


def test_a_whole_name_is_meant_before_the_beginning_of_another(cluster: Serving, melodeon: Melodeon) -> None:
    for name in ("cnn", "cnn2"):
        melodeon("submit", "work/job.yaml", "--name", name)
    assert melodeon("show", "cnn")[1].startswith("cnn-1  ")
    assert melodeon("show", "cn")[0] == 4
    melodeon("submit", "work/job.yaml", "--name", "cnn")
    code, _, err = melodeon("show", "cnn")
    assert (code, "could be any of 3" in err) == (4, True)


def test_ps_lists_the_cluster_and_then_this_machine(cluster: Serving, melodeon: Melodeon) -> None:
    code, out, _ = melodeon("ps")
    assert (code, out.startswith("no job on the cluster (0 of 8 devices in use, policy elasticflow)")) == (0, True)
    melodeon("submit", "work/job.yaml", "--deadline", "2d", "--name", "a" * 40)
    cluster.running("a" * 40 + "-1")
    melodeon("submit", "work/job.yaml", "--deadline", "1s")
    with running_job(cluster.work, "20261115-132710-1fc0"):
        out = melodeon("ps")[1]
        rows = json.loads(melodeon("ps", "-o", "json")[1])
        local = json.loads(melodeon("ps", "--local", "-o", "json")[1])
    assert narrow(out)
    lines = out.splitlines()
    assert lines[0].split() == ["job", "phase", "workers", "steps", "deadline"], "what is left beside a long name"
    assert lines[1].split()[:3] == ["a" * 40 + "-1", "running", "4/4"]
    assert lines[3:5] == ["4 of 8 devices in use, policy elasticflow", f"next: melodeon show {'a' * 40}-1"]
    assert lines[6] == "started by `melodeon run`:"
    assert [job["phase"] for job in rows["cluster"]["jobs"]] == ["running"]
    assert ([row["id"] for row in rows["jobs"]], sorted(local)) == (["20261115-132710-1fc0"], ["jobs"])
    assert melodeon("ps", "-a")[1].splitlines()[2].split()[:2] == ["cnn-2", "rejected"]
    everything = json.loads(melodeon("ps", "-a", "-o", "json")[1])["cluster"]
    assert [job["phase"] for job in everything["jobs"]] == ["running", "rejected"]
    assert everything["overview"]["devices_used"] == 4


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


def test_nodes_and_who_holds_their_devices(cluster: Serving, melodeon: Melodeon) -> None:
    melodeon("submit", "work/job.yaml")
    code, out, _ = melodeon("nodes")
    assert (code, narrow(out)) == (0, True)
    assert out.splitlines()[1].split() == ["node000", "cpu", "-", "up", "4/4", "cnn-1", "(0,1,2,3)"]
    assert out.splitlines()[-2:] == ["4 of 8 devices in use", "next: melodeon show cnn-1"]
    assert melodeon("nodes", "node000", "--drain")[1].startswith("done       node node000 is drained")
    assert json.loads(melodeon("nodes", "node000", "-o", "json")[1])["nodes"][0]["drained"] is True
    assert json.loads(melodeon("nodes", "node000", "--down", "-o", "json")[1])["up"] is False
    assert melodeon("nodes", "node000", "--use")[1].startswith("done       node node000 is up")
    assert melodeon("nodes", "--drain")[0] == 2
    assert melodeon("nodes", "node000", "--drain", "--use")[0] == 2
    assert [melodeon("nodes", "nowhere", *more)[0] for more in ((), ("--drain",))] == [4, 4]


def test_events_are_told_and_followed(cluster: Serving, melodeon: Melodeon) -> None:
    melodeon("submit", "work/job.yaml", *SHORT, "--wait")
    melodeon("submit", "work/job.yaml", *SHORT, "--wait")
    code, out, _ = melodeon("events", "--tail", "3")
    assert (code, narrow(out), "short-2  trained to its end" in out) == (0, True, True)
    rows = [json.loads(line) for line in melodeon("events", "short-1", "-o", "json", "--tail", "100")[1].splitlines()]
    assert {row["job"] for row in rows} == {"short-1"}
    later = melodeon("events", "--after", rows[-1]["seq"], "-o", "json")[1].splitlines()
    assert json.loads(later[0])["seq"] == rows[-1]["seq"] + 1
    newest = json.loads(later[-1])["seq"]
    for tail in (2, 1000):
        assert (
            melodeon("events", "--after", rows[-1]["seq"], "--tail", tail, "-o", "json")[1].splitlines()
            == later[-tail:]
        )
    command = [sys.executable, "-m", "melodeon", "events", "-f", "--after", str(newest - 1), "-o", "json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as follower:
        assert follower.stdout is not None
        assert json.loads(follower.stdout.readline())["seq"] == newest, "what is there comes first"
        melodeon("submit", "work/job.yaml", *SHORT)
        seen = json.loads(follower.stdout.readline())
        assert (seen["job"], seen["kind"]) == ("short-3", "submitted")
        follower.send_signal(2)
        assert follower.wait(20) == 0


def test_policy_and_what_if(cluster: Serving, melodeon: Melodeon) -> None:
    assert melodeon("whatif")[1].startswith("whatif     there is no job to play forward")
    melodeon("submit", "work/job.yaml", "--deadline", "2d")
    code, out, _ = melodeon("whatif", "work/job.yaml", "--policy", "fifo", "--deadline", "3d")
    assert (code, narrow(out)) == (0, True)
    assert [line.split()[0] for line in out.splitlines()[:3]] == ["job", "cnn-1", "cnn-new"]
    assert "deadlines  2 of 2 met, 0 rejected" in out
    assert out.splitlines()[-1] == "next       melodeon submit work/job.yaml --deadline 3d"
    assert melodeon("whatif", "-p", "edf")[1].splitlines()[-1] == "next       melodeon policy edf"
    assert json.loads(melodeon("whatif", "-o", "json")[1])["policy"] == "elasticflow"
    code, _, err = melodeon("whatif", "--deadline", "1h")
    assert (code, err) == (2, "error: --deadline 1h is for one more job, and none is named: give its FILE too\n")
    assert melodeon("policy")[1].startswith("policy     elasticflow\n")
    assert melodeon("policy", "fifo")[1].startswith("policy     fifo, after elasticflow")
    assert json.loads(melodeon("policy", "-o", "json")[1])["policy"] == "fifo"
    code, _, err = melodeon("policy", "fofi")
    assert (code, "fifo" in err) == (2, True)


def test_jobs_that_no_device_is_left_for_are_never_done(cluster: Serving, melodeon: Melodeon) -> None:
    melodeon("submit", "work/job.yaml")
    for node in ("node000", "node001"):
        assert melodeon("nodes", node, "--drain")[0] == 0
    code, out, _ = melodeon("whatif")
    assert (code, narrow(out), out.splitlines()[1].split()[:2]) == (0, True, ["cnn-1", "never"])
    assert "all done   never: 1 job would get no devices; see `melodeon nodes`\n" in out
    assert json.loads(melodeon("whatif", "-o", "json")[1])["makespan_s"] is None
    cluster.until(lambda: cluster.controller.job("cnn-1").phase == "waiting")
    assert melodeon("ps")[1].splitlines()[-2] == "0 of 8 devices in use, 8 drained or down, policy elasticflow"
    assert melodeon("nodes")[1].splitlines()[-1] == "next: melodeon nodes node000 --use"


def test_a_job_that_would_be_rejected_is_told_in_full(cluster: Serving, melodeon: Melodeon) -> None:
    code, out, _ = melodeon("whatif", "work/job.yaml", "--deadline", "2s")
    assert (code, narrow(out), "all done" in out) == (0, True, False)
    assert re.search(r"^rejected   cnn-new: even alone at its best speed it needs [^…]*$", out, re.MULTILINE)


def test_before_the_first_job_there_is_none_to_show(cluster: Serving, melodeon: Melodeon) -> None:
    code, _, err = melodeon("show")
    assert (code, err) == (4, "error: no job was submitted here so far: submit one by `melodeon submit FILE`\n")


def test_a_job_that_never_began_leads_to_no_output(cluster: Serving, melodeon: Melodeon) -> None:
    for node in ("node000", "node001"):
        melodeon("nodes", node, "--drain")
    melodeon("submit", "work/job.yaml")
    assert melodeon("cancel", "cnn-1", "--wait")[0] == 0
    assert melodeon("show", "cnn-1")[1].splitlines()[-1] == "next       melodeon ps"


# --- changing ---


def test_edit_judges_again(cluster: Serving, melodeon: Melodeon) -> None:
    melodeon("submit", "work/job.yaml", "--deadline", "2d")
    code, out, _ = melodeon("edit", "cnn-1", "--deadline", "5m", "--priority", "2")
    assert (code, out.startswith("rejected   cnn-1 stays as it was: ")) == (3, True)
    command = out.splitlines()[-1].removeprefix("next       ")
    assert re.fullmatch(r"melodeon edit cnn-1 --deadline \d+h\d*m? --priority 2\.0", command)
    code, out, _ = melodeon(*shlex.split(command)[1:])
    assert (code, out.startswith("changed    cnn-1 is changed (deadline, priority)")) == (0, True)
    assert melodeon("edit", "cnn-1", "--deadline", "none", "-o", "json")[0] == 0
    assert cluster.controller.job("cnn-1").deadline_at is None
    assert "nothing is changed: give one of --deadline, --on-miss" in melodeon("edit", "cnn-1")[2]


def test_scale_is_the_operators_word(cluster: Serving, melodeon: Melodeon) -> None:
    melodeon("submit", "work/job.yaml")
    code, out, _ = melodeon("scale", "cnn-1", "2")
    assert (code, out.startswith("done    cnn-1 shall have 2 workers; it has ")) == (0, True)
    assert out.splitlines()[1] == "next    melodeon scale cnn-1 auto"
    assert cluster.controller.job("cnn-1").override == 2
    assert json.loads(melodeon("scale", "cnn", "auto", "-o", "json")[1])["override"] is None
    for args, sentence in (
        (["cnn-1", "9"], "9 workers are not possible for cnn-1: it may have 1 to 4 here"),
        (["cnn-1", "many"], "N many is no number of workers"),
        (["cnn-1", "--out", "1"], "job cnn-1 is the cluster's, which places its workers itself"),
        (["cnn-1"], "N cnn-1 is no number of workers"),
        (["auto"], "N auto is for jobs of the cluster, and none was named"),
    ):
        code, _, err = melodeon("scale", *args)
        assert (code, sentence in err) == (2, True), err


def test_cancel_is_for_good(cluster: Serving, melodeon: Melodeon) -> None:
    melodeon("submit", "work/job.yaml")
    code, out, _ = melodeon("cancel", "cnn-1", "--wait")
    assert (code, out.splitlines()[0]) == (0, "cancelled  cnn-1, cancelled by root")
    assert melodeon("cancel", "cnn-1")[0] == 0, "asked again, nothing changes"
    melodeon("submit", "work/job.yaml", *SHORT, "--wait")
    code, _, err = melodeon("cancel", "short-2")
    assert (code, "is done already: there is nothing to cancel" in err) == (2, True)
    assert melodeon("cancel", "nobody")[0] == 4


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


# --- shells, speed ---


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


def test_help_and_asking_load_neither_torch_nor_the_server(cluster: Serving) -> None:
    program = (
        "import sys; from melodeon.cli.main import app;"
        "app(['--help'], standalone_mode=False);"
        "heavy = {'torch', 'numpy', 'fastapi', 'uvicorn', 'httpx', 'yaml'};"
        "print(sorted(heavy & set(sys.modules)));"
        "app(['ps'], standalone_mode=False); app(['nodes'], standalone_mode=False);"
        "print(sorted({'torch', 'numpy', 'fastapi', 'uvicorn'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert [line for line in done.stdout.splitlines() if line.startswith("[")] == ["[]", "[]"]
