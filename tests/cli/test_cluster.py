"""Commands that look at the cluster, against a real service whose fleet plays jobs forward."""

import json
import re
import subprocess
import sys

import pytest
from msgspec.structs import replace

from tests.cli.clusters import SHORT, narrow
from tests.cli.conftest import Melodeon
from tests.cli.fake_agent import job as running_job
from tests.control.api.serving import Serving


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
    for tail in (2, 1000, 10**23):
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
    melodeon(
        "submit", "work/job.yaml", "--name", "n" * 40, "--steps", "90000000", "--deadline", "1474d", "--on-miss", "soft"
    )
    out = melodeon("whatif")[1]
    assert (narrow(out), out.splitlines()[0].split()[-1]) == (True, "why"), out
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
    again = "melodeon submit work/job.yaml --deadline 2s --dry-run"
    assert out.splitlines()[-1] == f"next       {again}", "submitting it would not help"
    assert "the earliest deadline that would be accepted" in " ".join(melodeon(*again.split()[1:])[1].split())


def test_before_the_first_job_there_is_none_to_show(cluster: Serving, melodeon: Melodeon) -> None:
    code, _, err = melodeon("show")
    assert (code, err) == (4, "error: no job was submitted here so far: submit one by `melodeon submit FILE`\n")


def test_a_job_that_never_began_leads_to_no_output(cluster: Serving, melodeon: Melodeon) -> None:
    for node in ("node000", "node001"):
        melodeon("nodes", node, "--drain")
    melodeon("submit", "work/job.yaml")
    assert melodeon("cancel", "cnn-1", "--wait")[0] == 0
    assert melodeon("show", "cnn-1")[1].splitlines()[-1] == "next       melodeon ps"


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
