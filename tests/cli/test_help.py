"""What `melodeon` says when it is asked for help or called wrongly."""

import errno
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest

from melodeon.cli.commands import COMMANDS, GROUPS
from melodeon.cli.help import HEADINGS
from tests.cli.conftest import Melodeon


def test_commands_stand_in_groups_a_whole_line_each(place: Path, melodeon: Melodeon) -> None:
    code, out, _ = melodeon("--help")
    assert (code, "..." in out.partition("Options:")[2]) == (0, False), "no summary is cut short"
    shown = re.findall(r"^  ([a-z]+)  +[A-Z]", out, re.MULTILINE)
    assert tuple(shown) == COMMANDS
    assert re.findall(r"^([A-Z].*):$", out, re.MULTILINE) == ["Options", *GROUPS]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_eighty_columns_and_names_values_in_words(place: Path, melodeon: Melodeon, command: str) -> None:
    code, out, _ = melodeon(command, "--help")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    assert not re.search(r"[<>{}]|\[default:\n|\N{NO-BREAK SPACE}", out)
    assert "--help" in out


def test_a_command_is_told_in_the_same_words_in_its_own_help(place: Path, melodeon: Melodeon) -> None:
    for group in GROUPS.values():
        for command, line in group.items():
            own = " ".join(melodeon(command, "--help")[1].split())
            assert line.rstrip(".") in own, command


def test_only_the_called_command_is_imported() -> None:
    program = (
        "import sys; from melodeon.cli.main import app\n"
        "try: app([*sys.argv[1:], '--help'])\n"
        "except SystemExit: print('#', *sorted(set(sys.modules) & {'melodeon.cli.' + c for c in ('run', 'sim', 'ps')}))"
    )

    def imported(*command: str) -> str:
        done = subprocess.run([sys.executable, "-c", program, *command], capture_output=True, text=True, check=True)
        return done.stdout.splitlines()[-1]

    assert (imported(), imported("ps")) == ("#", "# melodeon.cli.ps")


def test_many_options_stand_in_groups(place: Path, melodeon: Melodeon) -> None:
    out = melodeon("run", "--help")[1]
    assert re.findall(r"^([A-Z].*):$", out, re.MULTILINE)[:3] == ["Arguments", "Options", "What defines the bits"]
    assert "--restarts" in out.partition("Workers that come and go:")[2].partition("\n\n")[0]
    assert "What defines the bits" not in melodeon("scan", "--help")[1]


def test_every_option_that_has_a_heading_exists(place: Path, melodeon: Melodeon) -> None:
    helps = "".join(melodeon(command, "--help")[1] for command in COMMANDS)
    for options in HEADINGS.values():
        for option in options:
            assert re.search(rf"{option}\b", helps), option


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["rnu"], "no such command 'rnu': did you mean 'run'? (see `melodeon --help`)"),
        (["run"], "missing argument 'SCRIPT' (see `melodeon run --help`)"),
        (["run", "--worker", "2", "x.py"], "no such option: --worker (possible options: --order, --store, --workers)"),
        (["run", "--workers", "two", "x.py"], "--workers two cannot be: it must be a valid integer"),
        (["run", "--threads=0", "x.py"], "--threads 0 cannot be: it must be greater than or equal to 1"),
        (["verify", "--steps", "0", "x.py"], "--steps 0 cannot be"),
        (["diff", "a"], "missing argument 'RUN_B'"),
        (["scan", "--devcie", "cpu", "x.py"], "no such option: --devcie (possible options: --device)"),
        (["export", "checkpoints"], "missing option '--output'"),
        (["doctor", "now"], "got unexpected extra argument(s) (now)"),
        (["ps", "mine"], "got unexpected extra argument(s) (mine)"),
        (["top", "--twice"], "no such option: --twice"),
        (["logs", "--tail", "few"], "--tail few cannot be"),
        (["scale", "--out", "some"], "--out some cannot be"),
        (["migrate", "--worker", "first"], "--worker first cannot be"),
        (["profile", "--min", "one"], "--min one cannot be"),
        (["checkpoint", "a", "b"], "got unexpected extra argument(s) (b)"),
        (["stop", "--soon"], "no such option: --soon"),
        (["trace", "--output"], "requires an argument"),
        (["sim", "--seed", "lucky"], "--seed lucky cannot be"),
        (["plot"], "missing argument 'SIM'"),
        (["explain", "kept"], "missing argument 'JOB'"),
    ],
)
def test_a_wrong_call_is_one_sentence(place: Path, melodeon: Melodeon, args: list[str], sentence: str) -> None:
    code, out, err = melodeon(*args)
    assert (code, out, err.count("\n"), err.startswith("error: ")) == (2, "", 1, True), err
    assert sentence in err


def test_without_a_command_there_is_help(place: Path, melodeon: Melodeon) -> None:
    code, out, err = melodeon()
    assert (code, out, err) == (2, "", melodeon("--help")[1])


def test_a_file_that_the_system_refuses_is_named(place: Path, melodeon: Melodeon) -> None:
    (place / "train.py").touch()
    name = "x" * 300  # longer than a name may be; unlike rights, that binds root too
    code, _, err = melodeon("verify", "--receipt", name, "train.py")
    assert (code, err) == (1, f"error: {name} cannot be used (File name too long): check the path, and your rights\n")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_where_there_is_no_room_for_what_is_printed_one_sentence_says_so(place: Path, unbuffered: str) -> None:
    command, env = [sys.executable, "-m", "melodeon", "ps"], {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, env=env, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    sentence = "error: nothing more can be written (No space left on device): make room, and try again\n"
    assert (done.returncode, done.stderr) == (1, sentence)


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_has_left_ends_a_command_quietly(place: Path, unbuffered: str) -> None:
    command, env = [sys.executable, "-m", "melodeon", "ps"], {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(command, env=env, stdout=write, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(write)
    assert (done.returncode, done.stderr) == (1, "")


def test_a_run_on_a_full_disk_is_one_sentence(place: Path, melodeon: Melodeon, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # as a write says it, without the file's name

    monkeypatch.setattr("melodeon.backends.runs.write_record", full)
    (place / "train.py").touch()
    code, _, err = melodeon("run", "train.py")
    assert (code, err.startswith("error: nothing more can be written (No space left on device)")) == (1, True)


def test_an_interrupted_command_ends_as_stopped_on_request(place: Path) -> None:
    command = [sys.executable, "-m", "melodeon", "sim", "--generate", "philly:50000:gap=1s", "-p", "fifo", "-j", "1"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("note: "), "it simulates from here on"
        os.kill(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (7, "")
    assert (err.startswith("error: stopped on request"), err.count("\n")) == (True, 1)
