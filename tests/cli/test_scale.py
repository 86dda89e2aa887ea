"""scale, migrate, profile, checkpoint, stop: the real command line and client, and an agent that answers at will."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from melodeon.coord import registry
from melodeon.coord.messages import Ask
from tests.cli.conftest import Melodeon
from tests.cli.fake_agent import FakeAgent, job

VIEW = {"generation": 4, "step": 1300, "workers": [0, 2, 3, 4], "assignment": "2,2,2,2", "pauses": {0: 0.035, 2: 0.012}}


@pytest.fixture
def agent(place: Path) -> Iterator[FakeAgent]:
    with job(place, "20261115-132710-1fc0") as made:
        yield made


def test_scale_says_what_happened_and_what_to_do_next(agent: FakeAgent, melodeon: Melodeon) -> None:
    agent.reply = lambda ask: (True, "the job has 4 workers", VIEW)
    code, out, _ = melodeon("scale", "2026", "4")
    assert code == 0
    assert out.splitlines() == [
        "done    the job has 4 workers",
        "view    4: 4 workers as 2,2,2,2, from step 1,300",
        "pause   35 ms, the longest of 2 workers (worker 0)",
        "next    melodeon top 20261115-132710-1fc0",
    ]


def test_what_the_answer_leaves_out_is_taken_from_the_status(agent: FakeAgent, melodeon: Melodeon) -> None:
    agent.earlier = [{**agent.status, "generation": 2}]
    said = json.loads(melodeon("scale", "4", "-o", "json")[1])
    assert said["job"] == agent.job
    assert (said["generation"], said["step"], said["pauses"]) == (3, 900, {"0": 0.042, "2": 0.04})


@pytest.mark.parametrize("command", [["scale", "2"], ["migrate"]])
def test_a_wish_that_changed_nothing_has_made_nobody_wait(
    agent: FakeAgent, melodeon: Melodeon, command: list[str]
) -> None:
    agent.reply = lambda ask: (True, "the job has 2 workers", {"workers": 2, "generation": 3})
    code, out, _ = melodeon(*command)
    assert (code, [line.split()[0] for line in out.splitlines()]) == (0, ["done", "view", "next"])


def test_how_many_more_are_needed_on_an_agent_is_known_when_the_job_has_settled(
    agent: FakeAgent, melodeon: Melodeon
) -> None:
    starting = {**agent.status, "phase": "starting", "workers": []}
    agent.earlier = [starting, {**agent.status, "queue": [{"what": "scale_out"}]}]
    assert melodeon("scale", "--on", "a0", "4")[0] == 0
    assert [(ask.what, ask.values) for ask in agent.asked] == [("scale_out", {"n": 2, "on": "a0"})]
    assert agent.earlier == []


@pytest.mark.parametrize(
    ("args", "what", "values"),
    [
        (["4"], "scale", {"n": 4}),
        (["2026", "4"], "scale", {"n": 4}),
        (["--out", "2"], "scale_out", {"n": 2}),
        (["2026", "--out", "2", "--on", "a1"], "scale_out", {"n": 2, "on": "a1"}),
        (["5", "--on", "a1"], "scale_out", {"n": 3, "on": "a1"}),
        (["--in", "1"], "scale_in", {"n": 1}),
        (["2026", "--remove", "3, 5"], "scale_in", {"workers": [3, 5]}),
    ],
)
def test_ways_to_say_it(
    agent: FakeAgent, melodeon: Melodeon, args: list[str], what: str, values: dict[str, object]
) -> None:
    assert melodeon("scale", *args)[0] == 0
    assert [(ask.what, ask.values) for ask in agent.asked] == [(what, values)]


@pytest.mark.parametrize(
    ("args", "code", "sentence"),
    [
        ([], 2, "scale was given nothing: say one of N, --out K"),
        (["2026x"], 2, "N '2026x' is no number of workers"),  # one word is N, so that `melodeon scale 4` works
        (["2026", "4", "--out", "1"], 2, "scale was given N and --out"),
        (["2026", "0"], 2, "N '0' is no number of workers"),
        (["2026", "four"], 2, "N 'four' is no number of workers: give a whole number"),
        (["--out", "-1"], 2, "--out -1 is no number of workers"),
        (["9" * 20], 2, f"N '{'9' * 20}' is no number of workers: give a whole number from 1 to 1,000,000"),
        (["9" * 5000], 2, "is no number of workers"),
        (["--out", "9" * 20], 2, f"--out {'9' * 20} is no number of workers"),
        (["--remove", "9" * 20], 2, f"--remove '{'9' * 20}' is no list of workers"),
        (["--remove", "3,x"], 2, "--remove '3,x' is no list of workers"),
        ([""], 2, "N '' is no number of workers"),
        (["2026", ""], 2, "N '' is no number of workers"),
        (["--remove", ""], 2, "--remove '' is no list of workers"),
        (["--remove", "3,3"], 2, "each number once"),
        (["--in", "1", "--on", "a1"], 2, "--in starts none: leave --on out"),
        (["2", "--on", "a1"], 2, "2 is not more than the 2 that run"),
        (["nothing-like-it", "4"], 4, "job 'nothing-like-it' does not run on this machine: did you mean"),
        (["4", "-o", "yaml"], 2, "-o yaml is not one of"),
    ],
)
def test_mistakes_get_one_sentence_and_reach_nobody(
    agent: FakeAgent, melodeon: Melodeon, args: list[str], code: int, sentence: str
) -> None:
    done, _, err = melodeon("scale", *args)
    assert (done, err.count("\n"), agent.asked) == (code, 1, [])
    assert sentence in err


def test_what_the_job_refuses_is_said_in_its_words(agent: FakeAgent, melodeon: Melodeon) -> None:
    agent.reply = lambda ask: (False, "9 workers cannot share 8 virtual workers: choose 1 to 8", {})
    assert melodeon("scale", "9") == (2, "", "error: 9 workers cannot share 8 virtual workers: choose 1 to 8\n")


def test_an_ended_job_is_told_from_one_that_never_was(place: Path, melodeon: Melodeon) -> None:
    ended = place / ".melodeon/runs/mine"
    ended.mkdir(parents=True)
    (ended / "run.json").write_text('{"status": "done"}')
    code, _, err = melodeon("scale", "mine", "4")
    assert (code, "job 'mine' does not run any more (status: done)" in err) == (4, True)
    code, _, err = melodeon("scale", "other", "4")
    assert (code, "no job runs on this machine" in err) == (4, True)


@pytest.mark.parametrize("command", [["stop"], ["stop", "--now"], ["checkpoint"], ["scale", "--in", "1"], ["top"]])
def test_the_whole_name_of_an_ended_job_is_not_the_beginning_of_another(
    place: Path, melodeon: Melodeon, command: list[str]
) -> None:
    ended = place / ".melodeon/runs/exp1"
    ended.mkdir(parents=True)
    (ended / "run.json").write_text('{"status": "done"}')
    name, *options = command
    with subprocess.Popen(["sleep", "60"]) as launcher, job(place, "exp10", pid=launcher.pid) as agent:
        code, _, err = melodeon(name, "exp1", *options)
        gone = launcher.poll()
        launcher.kill()
    assert (code, "job 'exp1' does not run any more (status: done)" in err) == (4, True), err
    assert (agent.asked, gone) == ([], None)


def test_a_run_that_goes_on_is_not_called_ended(place: Path, melodeon: Melodeon) -> None:
    """It has no agents, or they are not there yet or any more."""
    run = place / ".melodeon/runs/mine"
    run.mkdir(parents=True)
    for elastic, pid, code, sentence in (
        (False, os.getpid(), 2, "runs without agents and cannot be asked for anything: start it by `melodeon run`"),
        (True, os.getpid(), 4, "is just starting or ending: ask again"),
        (True, 2**22 + 1, 4, "does not run any more (status: lost)"),
    ):
        (run / "run.json").write_text(json.dumps({"status": "running", "elastic": elastic, "pid": pid}))
        done, _, err = melodeon("scale", "mine", "4")
        assert (done, err.startswith(f"error: job 'mine' {sentence}")) == (code, True), err
    elsewhere = {"status": "running", "elastic": True, "pid": 2**22 + 1, "host": "another-machine"}
    (run / "run.json").write_text(json.dumps(elsewhere))
    done, _, err = melodeon("scale", "mine", "4")
    assert (done, err.startswith("error: job 'mine' runs on another-machine: ask it there")) == (4, True), err


def test_an_ambiguous_name_lists_the_candidates(place: Path, melodeon: Melodeon) -> None:
    with job(place, "ab1"), job(place, "ab2"):
        code, _, err = melodeon("checkpoint", "ab")
    assert code == 4
    assert "ab1, ab2" in err


def test_a_job_that_cannot_be_reached(agent: FakeAgent, melodeon: Melodeon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("melodeon.coord.client.UNREACHABLE_S", 0.3)
    agent.close()
    code, _, err = melodeon("scale", "4")
    assert (code, "has not answered" in err) == (5, True)


def test_no_wait_returns_when_the_job_has_written_the_wish_down(agent: FakeAgent, melodeon: Melodeon) -> None:
    def reply(ask: Ask) -> None:
        agent.write_event(kind="ask", what=ask.what, n=4)

    agent.reply = reply
    code, out, _ = melodeon("scale", "4", "--no-wait")
    assert code == 0
    assert out.startswith("asked   scale 4; the job carries it out in the background\n")


def test_no_wait_still_tells_a_refusal(agent: FakeAgent, melodeon: Melodeon) -> None:
    def reply(ask: Ask) -> tuple[bool, str, dict[str, object]]:
        agent.write_event(kind="ask", what=ask.what, n=4)  # written before it is judged
        return False, "no", {}

    agent.reply = reply
    assert melodeon("scale", "4", "--no-wait") == (2, "", "error: no\n")


def test_migrate_passes_what_was_named(agent: FakeAgent, melodeon: Melodeon) -> None:
    assert melodeon("migrate", "--worker", "2", "--to", "a0")[0] == 0
    assert melodeon("migrate")[0] == 0
    assert [(ask.what, ask.values) for ask in agent.asked] == [("migrate", {"worker": 2, "to": "a0"}), ("migrate", {})]


def test_profile_as_a_table(agent: FakeAgent, melodeon: Melodeon) -> None:
    agent.reply = lambda ask: (True, "measured 3 sizes", {"rates": {"1": 10.0, "2": 18.0, "4": 20.0, "8": 20.5}})
    code, out, err = melodeon("profile", "--max", "4")
    assert code == 0
    assert [line.split() for line in out.splitlines() if line[:1].isdigit() or line.strip()[:1].isdigit()] == [
        ["1", "10", "1.00", "100%"],
        ["2", "18", "1.80", "90%"],
        ["4", "20", "2.00", "50%"],
        ["8", "20.5", "2.05", "26%"],
    ]
    assert out.splitlines()[-1] == "next    melodeon scale 20261115-132710-1fc0 4", "8 would hardly help"
    assert "it trains on" in err
    said = json.loads(melodeon("profile", "-o", "json")[1])
    assert said["steps_per_s"] == {"1": 10.0, "2": 18.0, "4": 20.0, "8": 20.5}
    assert agent.asked[1].values == {"min": 1, "max": 4}, "twice today's two workers"


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["--min", "0"], "--min 0 is no"),
        (["--max", "9" * 20], f"--max {'9' * 20} is no number of workers"),
        (["--min", "4", "--max", "2"], "from small to large"),
    ],
)
def test_profile_refuses_sizes_that_are_none(
    agent: FakeAgent, melodeon: Melodeon, args: list[str], sentence: str
) -> None:
    code, _, err = melodeon("profile", *args)
    assert (code, sentence in err, agent.asked) == (2, True, [])


def test_checkpoint(agent: FakeAgent, melodeon: Melodeon) -> None:
    agent.reply = lambda ask: (True, "step 1240 is in checkpoints/1240.melodeon", {"step": 1240})
    assert melodeon("checkpoint")[1] == "done    step 1240 is in checkpoints/1240.melodeon\n"
    assert json.loads(melodeon("checkpoint", "-o", "json")[1])["step"] == 1240


LAUNCHER = """
import os, select, signal, sys
told, wake = os.pipe()  # a signal that comes right before a blocking read would not be seen in it
os.set_blocking(wake, False)
signal.set_wakeup_fd(wake)
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda *_: None)
print("up", flush=True)
signals = set()
while signals != {signal.SIGTERM, signal.SIGINT}:
    if sys.stdin in select.select([sys.stdin, told], [], [])[0]:
        sys.exit(0)
    signals |= {*os.read(told, 8)}
sys.exit(7)
"""


@pytest.fixture
def launcher() -> "Iterator[subprocess.Popen[str]]":
    with subprocess.Popen(
        [sys.executable, "-c", LAUNCHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def test_stop_waits_for_the_end(place: Path, melodeon: Melodeon, launcher: "subprocess.Popen[str]") -> None:
    with job(place, "one", pid=launcher.pid, steps=77) as agent:

        def reply(ask: Ask) -> tuple[bool, str, dict[str, object]]:
            assert launcher.stdin is not None
            launcher.stdin.close()
            return True, "stopped after 77 steps", {"outcome": "stopped"}

        agent.reply = reply
        code, out, _ = melodeon("stop")
        assert (code, out.splitlines()[0]) == (0, "done    job one has ended: stopped after 77 steps")
        assert launcher.wait(5) == 0


@pytest.mark.parametrize("answer", [None, (True, "the job is stopping already", {})])
def test_who_stops_a_job_that_another_has_stopped_hears_how_it_ended(
    place: Path, melodeon: Melodeon, launcher: "subprocess.Popen[str]", answer: tuple[bool, str, dict[str, Any]] | None
) -> None:
    with job(place, "one", pid=launcher.pid) as agent:

        def reply(_: Ask) -> tuple[bool, str, dict[str, Any]] | None:
            registry.remove("one")  # first, and then it writes down how that ended
            (agent.run_dir / "run.json").write_text(json.dumps({"status": "stopped", "pid": launcher.pid}))
            assert launcher.stdin is not None
            launcher.stdin.close()
            return answer

        agent.reply = reply
        code, out, _ = melodeon("stop")
    assert (code, out.splitlines()[0]) == (0, "done    job one has ended: stopped")


def test_stop_does_not_wait_without_end_for_a_job_that_makes_no_step(
    place: Path, melodeon: Melodeon, launcher: "subprocess.Popen[str]", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("melodeon.cli.jobs.ENDS_S", 0.5)
    with job(place, "one", pid=launcher.pid) as agent:
        agent.reply = lambda ask: None
        code, _, err = melodeon("stop")
    assert code == 5
    assert "job one has not answered 'stop' for" in err
    assert "; end it at once by `melodeon stop --now one`" in err


def test_stop_now_ends_the_launcher(place: Path, melodeon: Melodeon, launcher: "subprocess.Popen[str]") -> None:
    with job(place, "one", pid=launcher.pid) as agent:
        assert json.loads(melodeon("stop", "--now", "-o", "json")[1])["text"] == "job one has ended: killed"
        assert (launcher.wait(5), agent.asked) == (7, [])


def test_stop_never_guesses_among_several(place: Path, melodeon: Melodeon) -> None:
    with job(place, "one") as one, job(place, "two") as two:
        code, _, err = melodeon("stop")
        assert (code, "name the one to stop, of one, two" in err) == (2, True)
        assert one.asked == two.asked == []
