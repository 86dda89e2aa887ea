"""`melodeon diff` on records that are damaged, empty or unlike; on real runs it is tried in test_verify."""

import json
import shlex
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.cli.conftest import Melodeon

LEAVES = {"models.0.weight": "aa", "models.0.bias": "bb"}


def a_run(place: Path, name: str, states: Sequence[str] = (), **facts: object) -> Path:
    run = place / ".melodeon/runs" / name
    run.mkdir(parents=True)
    (run / "run.json").write_text(json.dumps({"script": "my train.py", "args": ["--name", "two words"], **facts}))
    (run / "definition.json").write_text(json.dumps({"threads": 2, "order": "ddp"}))
    lines = [json.dumps({"step": n, "digest": d, "leaves": LEAVES | {"d": d}}) for n, d in enumerate(states, 1)]
    (run / "states.jsonl").write_text("".join(line + "\n" for line in lines))
    return run


def test_the_first_step_that_differs_and_commands_that_can_be_typed(place: Path, melodeon: Melodeon) -> None:
    a_run(place, "a", ["11", "22"], assignment="2,2", determinism="D1")
    a_run(place, "b", ["11", "33"])
    code, out, _ = melodeon("diff", "a", "b", "--json")
    found = json.loads(out)
    assert (code, found["equal"], found["by"], found["step"]) == (6, False, "states", 2)
    words = shlex.split(found["next"][0])
    options = ["--steps", "2", "--assignment", "2,2", "--determinism", "D1", "--threads", "2", "--order", "ddp"]
    assert words == [
        *("melodeon", "run", "--record-ops", "--no-resume"),
        *(*options, "my train.py", "--name", "two words"),
    ]
    assert melodeon("diff", "a", "a")[0] == 0


def test_runs_without_a_step_are_not_called_equal(place: Path, melodeon: Melodeon) -> None:
    a_run(place, "a")
    code, out, err = melodeon("diff", "a", "a")
    assert (code, out, "recorded no state" in err) == (2, "", True)


@pytest.mark.parametrize("file", ["states.jsonl", "receipt.jsonl", "ops/worker-0.jsonl"])
@pytest.mark.parametrize("damage", [b"\xff\xfe\n", b"garbage\n"])
def test_a_damaged_record_is_named(place: Path, melodeon: Melodeon, file: str, damage: bytes) -> None:
    run = a_run(place, "a")
    (run / "states.jsonl").unlink()
    (run / "ops").mkdir()
    (run / file).write_bytes(damage)
    code, out, err = melodeon("diff", "a", "a")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"error: .melodeon/runs/a/{file}")


def test_what_is_no_run(place: Path, melodeon: Melodeon) -> None:
    a_run(place, "a")
    assert "run 'b' is neither a folder nor a run under .melodeon/runs" in melodeon("diff", "a", "b")[2]
    (place / "empty").mkdir()
    code, _, err = melodeon("diff", "a", "empty")
    assert (code, "no other record in common" in err) == (2, True)
