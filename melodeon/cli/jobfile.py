"""A job for the cluster, from a file and flags; flags come first. And the command line that would say the same."""

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from melodeon.core.errors import NotFound, UsageError
from melodeon.core.spec import Spec, read_spec

STDIN = "-"
NONE = "none"
"""Takes a field back."""
LARGEST = 1 << 20
"""Bytes of a job's file; the service takes no more."""


def read_job(file: str | None, flags: Mapping[str, object]) -> Spec:
    """The job; its folder is the file's, or this one, and absolute."""
    if file is None and flags.get("run") is None:
        raise UsageError("there is nothing to run: name a job's file, or give --run 'train.py --lr 0.1'")
    raw = read_file(file) if file is not None else {}
    table: dict[Any, object] = {**raw, **{name: value for name, value in flags.items() if value is not None}}
    if isinstance(raw.get("env"), Mapping) and flags.get("env"):
        table["env"] = {**raw["env"], **parse_env(flags["env"])}
    elif flags.get("env"):
        table["env"] = parse_env(flags["env"])
    if flags.get("curve") is not None:
        table["curve"] = parse_curve(str(flags["curve"]))
    if flags.get("deadline") == NONE:
        del table["deadline"]
    for end, other in (("steps", "epochs"), ("epochs", "steps")):
        if flags.get(end) is not None and flags.get(other) is None:
            table.pop(other, None)  # a flag says another end than the file
    if file is None:
        table.setdefault("name", name_of(str(flags["run"])))
    near = Path.cwd() if file in (None, STDIN) or flags.get("workdir") is not None else Path(str(file)).parent
    folder = table.get("workdir", ".")
    if isinstance(folder, str) and "\0" not in folder:
        table["workdir"] = str((near / folder).absolute())
    return read_spec(table)


def read_file(file: str) -> dict[Any, Any]:
    """The fields of a job's file, in YAML or JSON; `-` is stdin."""
    from melodeon.core.jobtext import read_fields

    try:
        text = sys.stdin.read(LARGEST + 1) if file == STDIN else Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise NotFound(f"job file {file!r} cannot be read ({error.strerror}): check the path") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"job file {file!r} is not text in UTF-8: write it as YAML") from error
    if len(text) > LARGEST:
        raise UsageError(f"job file {file!r} is larger than 1 MiB: a job is a few lines of YAML")
    return read_fields(text, f"job file {file!r}")


def parse_env(words: object) -> dict[str, str]:
    """`KEY=VALUE`, several times."""
    found = {}
    for word in words if isinstance(words, list | tuple) else [str(words)]:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise UsageError(f"--env {word} sets nothing: write KEY=VALUE, such as LR=0.1")
        found[name] = value
    return found


def parse_curve(text: str) -> dict[str, str]:
    """`1:3.5,2:6.8`: steps a second by workers."""
    found = {}
    for part in text.split(","):
        workers, colon, rate = part.partition(":")
        if not colon:
            raise UsageError(f"--curve {text} is no curve: write steps a second by workers, such as 1:3.5,2:6.8")
        found[workers.strip()] = rate.strip()
    return found


def name_of(run: str) -> str:
    """What to call a job that nobody named: after its script."""
    try:
        words = shlex.split(run)
    except ValueError:
        return "job"  # the reader says what is wrong with it
    script = words[1] if len(words) > 1 and words[0] == "-m" else words[0] if words else ""
    stem = script.rpartition(".")[2] if words[:1] == ["-m"] else Path(script).stem
    kept = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in stem.lower())
    return kept.strip("-")[:40].strip("-") or "job"


def flags_of(fields: Mapping[str, Any]) -> dict[str, object]:
    """A job's file, as the service keeps it, as flags."""
    made: dict[str, object] = dict(fields)
    if "run" in made:
        made["run"] = shlex.join(fields["run"])
    if "env" in made:
        made["env"] = [f"{name}={value}" for name, value in fields["env"].items()]
    if "curve" in made:
        made["curve"] = ",".join(f"{workers}:{rate:g}" for workers, rate in fields["curve"].items())
    if "devices" in made:
        made["devices"] = ",".join(fields["devices"])
    return made


def command_line(command: str, first: str | None, flags: Mapping[str, object], **changed: object) -> str:
    """The command with these flags, some of them changed, ready to be pasted."""
    words = ["melodeon", command, *([first] if first is not None else [])]
    for name, value in {**flags, **changed}.items():
        for one in value if isinstance(value, list | tuple) else [value]:
            if one is not None:
                words += [f"--{name.replace('_', '-')}", str(one)]
    return shlex.join(words)
