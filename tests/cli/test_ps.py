import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from melodeon.control import address
from melodeon.coord import registry
from tests.cli.conftest import Melodeon
from tests.cli.fake_agent import job


def test_no_job_is_said_in_a_sentence(place: Path, melodeon: Melodeon) -> None:
    code, out, _ = melodeon("ps")
    assert (code, max(map(len, out.splitlines())) <= 80) == (0, True)
    assert out.startswith("no job runs on this machine: start one by `melodeon run SCRIPT`")


def test_a_state_folder_without_a_service_is_said(
    place: Path, melodeon: Melodeon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MELODEON_STATE", str(place / "elsewhere"))
    code, out, err = melodeon("ps")
    assert (code, out.startswith("no job runs on this machine")) == (5, True)
    assert err.startswith(f"error: no cluster is served in '{place}/elsewhere': start one by `melodeon serve`")


def test_running_jobs_with_what_they_say_of_themselves(place: Path, melodeon: Melodeon) -> None:
    with job(place, "20261115-132710-1fc0", script="deep/train.py"):
        code, out, _ = melodeon("ps")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    assert out.split()[:8] == ["id", "script", "step", "workers", "status", "age", "restarts", "left"]
    row = next(line for line in out.splitlines() if line.startswith("2026"))
    *told, age, unit, left = row.split()
    assert told == ["20261115-132710-1fc0", "train.py", "1,234", "2", "training"]
    assert (int(age) < 60, unit, left) == (True, "s", "2")


def test_the_view_that_a_job_is_in_stands_under_it(place: Path, melodeon: Melodeon) -> None:
    view = {
        "generation": 4,
        "assignment": "4,4",
        "reason": "worker 1 is gone: " + "so it was " * 9,
        "pauses": {"0": 0.04},
    }
    with job(place, "one") as agent, job(place, "two") as other:
        agent.status |= {"history": [{"generation": 3}, view], "rates": {"1": 9.0, "2": 17.25}}
        other.status |= {"history": []}
        code, out, _ = melodeon("ps")
        one, two = json.loads(melodeon("ps", "-o", "json")[1])["jobs"]
    assert (code, max(map(len, out.splitlines()))) == (0, 80)
    _, first, under, second = out.splitlines()
    assert (first.split()[0], second.split()[0]) == ("one", "two")
    assert under.startswith("  view 4 as 4,4, 17.2 steps/s, pause 40 ms: worker 1 is gone: so it was so")
    told = ("view", "assignment", "steps_per_s", "pause_s", "why")
    assert [one[name] for name in told] == [4, "4,4", 17.25, 0.04, view["reason"]]
    assert [two[name] for name in told] == [None] * 5


def test_a_job_that_starts_has_no_step(place: Path, melodeon: Melodeon) -> None:
    with job(place, "new") as agent:
        agent.status |= {"phase": "starting", "step": -1, "workers": []}
        row = json.loads(melodeon("ps", "-o", "json")[1])["jobs"][0]
    assert (row["status"], row["step"], row["workers"]) == ("starting", None, 0)


@pytest.mark.parametrize(
    ("length", "titles"),
    [
        (20, "id script step workers status age restarts left"),
        (33, "id script step workers status age"),
        (60, "id script status"),
    ],
)
def test_a_long_id_stays_whole_and_the_table_fits(place: Path, melodeon: Melodeon, length: int, titles: str) -> None:
    with job(place, "i" * length, script=f"{'s' * 50}.py"):
        code, out, _ = melodeon("ps")
    assert (code, max(map(len, out.splitlines())) <= 80) == (0, True), out
    first, row, _ = (line.split() for line in out.splitlines())
    assert (" ".join(first), row[0]) == (titles, "i" * length)


def test_jobs_of_a_cluster_that_nobody_serves_are_named(place: Path, melodeon: Melodeon) -> None:
    folder = place / "state" / "jobs" / "cnn-7"
    folder.mkdir(parents=True)
    (folder / "spec.json").write_text("{}")
    with job(place, "cnn-7.1"):
        entry = registry.find("cnn-7.1")
        registry.remove("cnn-7.1")
        registry.write(msgspec.structs.replace(entry, run_dir=str(folder / "cnn-7.1")))
        code, out, _ = melodeon("ps")
        assert (code, max(map(len, out.splitlines())) <= 80) == (0, True)
        assert " ".join(out.split()) == (
            "1 job of a cluster goes on here, and nobody serves it (cnn-7): "
            "`melodeon serve --state state` finds it again"
        )
        assert melodeon("ps", "--local")[1].startswith("no job runs on this machine")
        where = address.here("http://127.0.0.1:9", place / "state")
        address.publish(where)  # it is served again, and somewhere else is asked
        assert "nobody serves" not in melodeon("ps")[1]
        address.withdraw(where)


def test_all_lists_ended_runs_once_and_first(place: Path, melodeon: Melodeon) -> None:
    ended = place / ".melodeon/runs/old"
    ended.mkdir(parents=True)
    ended_facts = {"id": "old", "created": "2020-01-01T00:00:00+00:00", "status": "done", "steps": 20, "num_workers": 3}
    (ended / "run.json").write_text(json.dumps({**ended_facts, "last_workers": 5}))
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    lost = place / ".melodeon/runs/older"
    lost.mkdir()
    begun = {"created": "2019", "status": "running", "pid": gone.pid, "elastic": True, "num_workers": 4}
    (lost / "run.json").write_text(json.dumps(begun))
    reused = place / ".melodeon/runs/oldest"
    reused.mkdir()
    again = {"created": "2018", "status": "running", "pid": os.getpid(), "pid_started": 1}  # now it is another process
    (reused / "run.json").write_text(json.dumps(again))
    elsewhere = place / ".melodeon/runs/0-elsewhere"
    elsewhere.mkdir()
    (elsewhere / "run.json").write_text(json.dumps({**begun, "created": "2017", "host": "another-machine"}))
    with job(place, "new"):
        rows = json.loads(melodeon("ps", "-a", "-o", "json")[1])["jobs"]
    found = [(row["id"], row["status"], row["step"], row["workers"]) for row in rows]
    assert found == [
        ("0-elsewhere", "running", None, 4),  # its launcher's number says nothing here
        ("oldest", "lost", None, None),
        ("older", "lost", None, None),
        ("old", "done", 20, 5),
        ("new", "training", 1234, 2),
    ]


def test_a_job_that_does_not_answer_is_listed_as_such(place: Path, melodeon: Melodeon) -> None:
    with job(place, "mute") as agent:
        agent.close()
        rows = json.loads(melodeon("ps", "-o", "json")[1])["jobs"]
    assert [(row["id"], row["status"]) for row in rows] == [("mute", "unreachable")]


def test_a_job_that_has_ended_before_it_answers_is_told_from_one_that_does_not_answer(
    place: Path, melodeon: Melodeon, monkeypatch: pytest.MonkeyPatch
) -> None:
    with job(place, "brief") as agent:
        agent.close()
        monkeypatch.setattr(registry, "is_listed", lambda entry: False)
        (agent.run_dir / "run.json").write_text('{"status": "done", "steps": 7}')
        assert json.loads(melodeon("ps", "-o", "json")[1]) == {"jobs": []}
        rows = json.loads(melodeon("ps", "-a", "-o", "json")[1])["jobs"]
    assert [(row["id"], row["status"], row["step"]) for row in rows] == [("brief", "done", 7)]


def test_a_wrong_format_is_refused(place: Path, melodeon: Melodeon) -> None:
    assert melodeon("ps", "-o", "yaml")[::2] == (
        2,
        "error: -o yaml is not one of table, json: leave it out for a table\n",
    )


def test_commands_for_running_jobs_import_no_torch(place: Path) -> None:
    with job(place, "one"):
        program = (
            "import sys; from melodeon.cli.main import app; app(['top', '--once'], standalone_mode=False);"
            "app(['ps'], standalone_mode=False); print(sorted({'torch', 'numpy'} & set(sys.modules)))"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_shell_completes_job_names(place: Path) -> None:
    program = place / "melodeon"  # the program's name decides which variable the shell asks by
    program.write_text("from melodeon.cli.main import main\nmain()\n")
    asked = {"_MELODEON_COMPLETE": "complete_bash", "COMP_WORDS": "melodeon stop 2026", "COMP_CWORD": "2"}
    with job(place, "20261115-a"), job(place, "20261115-b"), job(place, "other"):
        done = subprocess.run(
            [sys.executable, program], env={**os.environ, **asked}, capture_output=True, text=True, check=True
        )
    assert sorted(done.stdout.split()) == ["20261115-a", "20261115-b"]
