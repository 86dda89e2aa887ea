"""`submit` and `wait`, against a real service whose fleet plays jobs forward."""

import json
import re
import shlex
from pathlib import Path

import pytest

from melodeon.sched.quota import Quota
from tests.cli.clusters import JOB, SHORT, fail, found, narrow
from tests.cli.conftest import Melodeon
from tests.control.api.serving import ANN, Serving


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
