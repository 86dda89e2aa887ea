"""A job as a person writes it: a file or flags, read into one frozen value, every mistake named by its field.

    name: cnn                       # what to call it; the service adds a number
    run: train.py --lr 0.1          # a script and its arguments, or a list of words
    virtual_workers: 8              # defines the result; left out: what the script says
    workers: 1-8                    # how few and how many workers it may have; a single number fixes it
    deadline: 6h                    # or a date such as 2026-12-01T08:00; left out: best effort
    on_miss: reject                 # or soft: train it even if it will be late
    steps: 1000                     # or epochs: 3; and `until: loss < 0.1` ends it earlier
    priority: 1.0

Pure: reading a file is the caller's business, and so is the clock.
"""

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from difflib import get_close_matches
from math import isfinite
from typing import Any

from melodeon.core.determinism import DEFAULT, LEVELS, check_threads
from melodeon.core.errors import UsageError
from melodeon.core.jobs import Goal
from melodeon.core.text import counted

NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
TYPE = re.compile(r"[A-Za-z0-9_.-]{1,40}")
UNTIL = re.compile(r"(?P<metric>[A-Za-z_][A-Za-z0-9_.]{0,60})\s*(?P<relation><=|>=|<|>)\s*(?P<value>\S+)")
UNITS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(min|[smhdw])\s*")
FARTHEST_S = 1000 * 365.25 * UNITS["d"]
"""No deadline is farther away than this."""
BYTES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
RESERVED = ("MELODEON_",)
"""Beginnings of variables that a job may not set: the launcher speaks to its workers through them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """One job, as submitted."""

    name: str
    run: tuple[str, ...]
    """A script and its arguments, or `-m module ...`."""
    virtual_workers: int | None = None
    """None: what the script says."""
    min_workers: int = 1
    max_workers: int | None = None
    """None: as many as it has virtual workers, or as the cluster has devices."""
    deadline: str | None = None
    """As written, a time from submission or a date; None: best effort."""
    on_miss: str = "reject"
    """`reject`: not admitted where the deadline cannot be kept; `soft`: admitted all the same."""
    steps: int | None = None
    epochs: int | None = None
    until: str | None = None
    """`loss < 0.1`: it ends after the first step whose logged mean says so."""
    priority: float = 1.0
    order: str | None = None
    determinism: str = DEFAULT
    threads: int = 1
    devices: tuple[str, ...] = ()
    """Device types it may run on; empty: any."""
    checkpoint: int | None = None
    """Steps between checkpoints; None: one is written only when it must give its devices away."""
    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str = "."
    curve: Mapping[int, float] = field(default_factory=dict)
    """Steps a second by number of workers, where they are known; empty: they are measured."""
    memory: int | None = None
    """Bytes of address space that each of its processes may have."""
    restarts: int = 3
    """Lost workers that are replaced."""

    @property
    def goal(self) -> Goal:
        """What its deadline means."""
        if self.deadline is None:
            return Goal.BEST_EFFORT
        return Goal.SOFT if self.on_miss == "soft" else Goal.HARD

    def deadline_at(self, now: float) -> float | None:
        """The deadline in seconds since 1970, for a job submitted at `now`."""
        return None if self.deadline is None else moment(self.deadline, now)

    def to_json(self) -> dict[str, Any]:
        """As `read_spec` reads it."""
        made = asdict(self)
        low, high = made.pop("min_workers"), made.pop("max_workers")
        made["workers"] = str(low) if low == high else f"{low}-{'' if high is None else high}"
        made |= {"run": list(self.run), "devices": list(self.devices), "env": dict(self.env)}
        made["curve"] = {str(workers): rate for workers, rate in self.curve.items()}
        default = {f.name: f.default for f in fields(Spec)}
        return {
            name: value for name, value in made.items() if value not in (None, [], {}) and value != default.get(name)
        }


def read_spec(raw: object) -> Spec:
    """Read a job; the first mistake is raised with its field, the rule and the fix."""
    if not isinstance(raw, Mapping):
        raise UsageError(f"a job is a table of fields, and this is {_kind(raw)}: write lines such as `name: cnn`")
    for name in raw:
        if name not in READERS:
            near = get_close_matches(str(name), READERS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"the fields are {', '.join(READERS)}"
            raise UsageError(f"field {str(name)!r} is not known: {hint}")
    for name in ("name", "run"):
        if raw.get(name) in (None, "", []):
            raise UsageError(f"field {name!r} is missing: a job needs a name and what to run")
    values: dict[str, Any] = {}
    for name, value in raw.items():
        if value is None:
            continue
        read = READERS[name](name, value)
        values |= read if name == "workers" else {name: read}
    return _checked(Spec(**values))


def _checked(spec: Spec) -> Spec:
    """What no field alone can say, and what others than a job's file must keep as well."""
    check_threads(spec.threads)
    if spec.steps is not None and spec.epochs is not None:
        raise UsageError(f"steps {spec.steps} and epochs {spec.epochs} are both given: name one of them as the end")
    if spec.steps is None and spec.epochs is None:
        raise UsageError("neither steps nor epochs is given: say when the job ends, such as `steps: 1000`")
    most = spec.virtual_workers
    few = "" if most is None else counted(most, "virtual worker")
    if most is not None and spec.min_workers > most:
        raise UsageError(f"{spec.min_workers} workers cannot share {few}: each runs at least one")
    if most is not None and spec.max_workers is not None and spec.max_workers > most:
        raise UsageError(
            f"up to {spec.max_workers} workers cannot share {few}: allow at most {most}, or have more virtual workers"
        )
    return spec


def moment(text: str, now: float) -> float:
    """`6h`, `1h30m` from now, or a date (of this machine's zone where it names none), as seconds since 1970."""
    at = now + seconds if (seconds := _seconds(text)) is not None else _date(text)
    if at <= now:
        raise UsageError(f"deadline {text!r} is past: give a time to come, such as 6h")
    if at > now + FARTHEST_S:
        raise UsageError(f"deadline {text!r} is more than a thousand years away: give a nearer one, or none")
    return at


def _seconds(text: str) -> float | None:
    parts = DURATION.findall(text.strip())
    if not parts or DURATION.sub("", text.strip()):
        return None
    return sum(float(number) * UNITS[unit] for number, unit in parts)


def _date(text: str) -> float:
    try:
        found = datetime.fromisoformat(text.strip())
        return (found if found.tzinfo else found.astimezone()).astimezone(UTC).timestamp()
    except (ValueError, OverflowError):  # the first and the last day of the calendar are not there in every zone
        raise UsageError(
            f"deadline {text!r} is no time: write 90s, 30m, 6h, 2d, 1h30m, or a date such as 2026-12-01T08:00"
        ) from None


# -- one reader for each field: (field, raw value) -> value --


def _kind(value: object) -> str:
    names = {str: "text", int: "a number", float: "a number", bool: "yes or no", list: "a list", dict: "a table"}
    return names.get(type(value), type(value).__name__)


def _text(name: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise UsageError(f"{name}: {value!r} must be text")
    return value


def _whole(name: str, value: object) -> int:
    if isinstance(value, str) and value.strip().isdecimal():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UsageError(f"{name}: {value!r} must be a whole number from 1 on")
    if value >= 1 << 53:
        raise UsageError(f"{name}: {value} is too large: it must be below 2^53")
    return value


def _whole_or_none(name: str, value: object) -> int:
    return 0 if value == 0 and not isinstance(value, bool) else _whole(name, value)


def _positive(name: str, value: object) -> float:
    try:
        number = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else None
    except (ValueError, OverflowError):
        number = None
    if number is None or not isfinite(number) or number <= 0:
        raise UsageError(f"{name}: {value!r} must be a number above 0")
    return number


def _name(name: str, value: object) -> str:
    if not isinstance(value, str) or not NAME.fullmatch(value):
        raise UsageError(
            f"{name}: {value!r} must be 1 to 40 small letters, digits and dashes, with no dash at either end: it names "
            "folders"
        )
    return value


def _words(name: str, value: object) -> tuple[str, ...]:
    try:
        words = shlex.split(value) if isinstance(value, str) else value
    except ValueError as error:
        raise UsageError(f"{name}: {value!r} cannot be split into words ({error}): close the quotes") from None
    if not isinstance(words, list | tuple) or not words or not all(isinstance(w, str) and "\0" not in w for w in words):
        raise UsageError(f"{name}: {value!r} must be a script and its arguments, such as `train.py --lr 0.1`")
    if words[0].startswith("-") and (words[0] != "-m" or len(words) < 2):
        raise UsageError(f"{name}: {words[0]!r} is no script: begin with its path, or with `-m module`")
    return tuple(words)


def _workers(name: str, value: object) -> dict[str, int | None]:
    text = str(value).strip() if isinstance(value, str | int) and not isinstance(value, bool) else ""
    match = re.fullmatch(r"(\d{1,9})(?:\s*-\s*(\d{0,9}))?", text)
    if match is None or int(match[1]) < 1:
        raise UsageError(f"{name}: {value!r} must be a number or a range from 1 on, such as 4 or 1-8")
    low = int(match[1])
    high = low if match[2] is None else int(match[2]) if match[2] else None
    if high is not None and high < low:
        raise UsageError(f"{name}: {value!r} ends before it begins: write the smaller number first")
    return {"min_workers": low, "max_workers": high}


def _deadline(name: str, value: object) -> str:
    text = value.isoformat() if isinstance(value, datetime) else value
    if not isinstance(text, str) or not text.strip():
        raise UsageError(f"{name}: {value!r} must be a time such as 6h, or a date such as 2026-12-01T08:00")
    if _seconds(text) is None:
        _date(text)
    return text.strip()


def _choice(*choices: str) -> Callable[[str, object], str]:
    def read(name: str, value: object) -> str:
        if value not in choices:
            raise UsageError(f"{name}: {value!r} is not one of {', '.join(choices)}")
        return str(value)

    return read


def _types(name: str, value: object) -> tuple[str, ...]:
    kinds = [part.strip() for part in value.split(",")] if isinstance(value, str) else value
    if not isinstance(kinds, list | tuple) or not all(isinstance(k, str) and TYPE.fullmatch(k) for k in kinds):
        raise UsageError(f"{name}: {value!r} must list device types, such as [cpu] or [A100, V100]")
    return tuple(dict.fromkeys(kinds))


def _env(name: str, value: object) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise UsageError(f"{name}: {value!r} must be a table of variables, such as {{LR: '0.1'}}")
    found: dict[str, str] = {}
    for variable, text in value.items():
        if not isinstance(variable, str) or not VARIABLE.fullmatch(variable) or variable.startswith(RESERVED):
            raise UsageError(f"{name}: {variable!r} cannot be set: use letters, digits and _, not MELODEON_...")
        if isinstance(text, bool) or not isinstance(text, str | int | float) or "\0" in str(text):
            raise UsageError(f"{name}: {variable} is {text!r}, which is no text: put it in quotes")
        found[variable] = str(text)
    return found


def _until(name: str, value: object) -> str:
    match = UNTIL.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise UsageError(f"{name}: {value!r} must compare a logged metric with a number, such as `loss < 0.1`")
    try:
        limit = float(match["value"])
    except ValueError:
        limit = float("nan")
    if not isfinite(limit):
        raise UsageError(f"{name}: {match['value']!r} is no number: write one, such as `loss < 0.1`")
    return f"{match['metric']} {match['relation']} {limit!r}"


def _curve(name: str, value: object) -> dict[int, float]:
    if not isinstance(value, Mapping):
        raise UsageError(f"{name}: {value!r} must give steps a second by workers, such as {{1: 3.5, 2: 6.8}}")
    found = {_whole(f"{name} workers", workers): _positive(f"{name} rate", rate) for workers, rate in value.items()}
    return dict(sorted(found.items()))


def _bytes(name: str, value: object) -> int:
    match = re.fullmatch(r"(\d{1,15})\s*([KMGT]?)(i?B)?", str(value).strip()) if isinstance(value, str | int) else None
    if match is None or isinstance(value, bool) or not int(match[1]):
        raise UsageError(f"{name}: {value!r} must be a size such as 512M or 4G")
    return int(match[1]) * BYTES[match[2]]


READERS: Mapping[str, Callable[[str, object], Any]] = {
    "name": _name,
    "run": _words,
    "virtual_workers": _whole,
    "workers": _workers,
    "deadline": _deadline,
    "on_miss": _choice("reject", "soft"),
    "steps": _whole,
    "epochs": _whole,
    "until": _until,
    "priority": _positive,
    "order": _choice("tree", "ddp"),
    "determinism": _choice(*LEVELS),
    "threads": _whole,
    "devices": _types,
    "checkpoint": _whole,
    "env": _env,
    "workdir": _text,
    "curve": _curve,
    "memory": _bytes,
    "restarts": _whole_or_none,
}
"""Every field of a job's file, in the order in which docs and messages list them."""
