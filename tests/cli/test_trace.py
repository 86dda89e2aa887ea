import json
import os
import subprocess
import sys
from pathlib import Path

from tests.cli.conftest import Melodeon

EVENTS = [
    {"at": "2026-11-15T13:00:00+00:00", "kind": "view", "generation": 1, "step": 0, "workers": [0, 1],
     "assignment": "4,4", "reason": "start", "pauses": {}},
    {"at": "2026-11-15T13:00:01+00:00", "kind": "step", "step": 10},
    {"at": "2026-11-15T13:00:02+00:00", "kind": "worker_gone", "worker": 1, "how": "killed by SIGKILL"},
    {"at": "2026-11-15T13:00:02.1+00:00", "kind": "view", "generation": 2, "step": 15, "workers": [0],
     "assignment": "8", "reason": "worker 1 is gone", "pauses": {"0": 0.1}},
]  # fmt: skip


def a_run(place: Path) -> Path:
    run = place / ".melodeon/runs/a"
    run.mkdir(parents=True)
    (run / "run.json").write_text('{"status": "done"}')
    return run


def test_a_trace_is_written_into_the_run_or_where_one_says(place: Path, melodeon: Melodeon) -> None:
    run = a_run(place)
    torn = '{"at": "2026-'
    (run / "events.jsonl").write_text("\n".join([*map(json.dumps, EVENTS), torn]))
    (run / "metrics.jsonl").write_text('{"step": 5, "epoch": 0, "loss": 0.5}\n{"step": 6, "loss": NaN}\n')
    code, out, err = melodeon("trace")
    assert (code, out) == (0, "")
    assert "trace.json: 2 views, 1 pause, 1 fault\n" in err
    written = json.loads((run / "trace.json").read_text())
    assert written["otherData"] == {"run": "a"}
    assert melodeon("trace", "a", "-o", "here.json")[0] == 0
    assert json.loads(Path("here.json").read_text()) == written
    assert json.loads(melodeon("trace", "a", "-o", "-")[1]) == written


def test_what_is_no_plain_file_is_written_to_and_stays_what_it_is(place: Path) -> None:
    run = a_run(place)
    (run / "events.jsonl").write_text("\n".join(map(json.dumps, EVENTS)))
    os.mkfifo("pipe")
    Path("kept.json").write_text("{}")
    Path("link.json").symlink_to("kept.json")
    command = [sys.executable, "-m", "melodeon", "trace", "a", "-o"]
    reader = os.open("pipe", os.O_RDWR | os.O_NONBLOCK)  # what is written stays in it
    subprocess.run([*command, "pipe"], check=True, capture_output=True, timeout=60)
    assert Path("pipe").is_fifo()
    assert json.loads(os.read(reader, 1 << 16))["otherData"] == {"run": "a"}
    os.close(reader)
    subprocess.run([*command, "link.json"], check=True, capture_output=True, timeout=60)
    assert Path("link.json").is_symlink()
    assert json.loads(Path("kept.json").read_text())["otherData"] == {"run": "a"}


def test_mistakes(place: Path, melodeon: Melodeon) -> None:
    run = a_run(place)
    assert melodeon("trace", "b")[0] == 4
    code, _, err = melodeon("trace", "a")
    assert (code, "has no events.jsonl" in err) == (4, True)
    (run / "events.jsonl").write_text('{"kind": "step", "step": 1}\n')
    code, _, err = melodeon("trace", "a")
    assert (code, "no event of run a says when it was" in err) == (2, True)
    for garbage in ("", "\n\n", "no JSON\n[1]\n", "\0" * 100):
        (run / "events.jsonl").write_text(garbage)
        code, _, err = melodeon("trace", "a")
        assert (code, "/events.jsonl holds no event: " in err) == (2, True), err
    (run / "events.jsonl").write_text(json.dumps(EVENTS[0]))
    assert melodeon("trace", "a", "-o", "")[::2] == (
        2, "error: -o '' names no file: give one, or - for stdout, or leave it out for trace.json in the run\n",
    )  # fmt: skip
    assert not (run / "trace.json").exists()
    code, _, err = melodeon("trace", "a", "-o", "no/such/folder.json")
    assert (code, "cannot be written (No such file or directory)" in err) == (1, True)
