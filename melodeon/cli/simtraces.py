"""What `melodeon sim` is given, turned into values: clusters, throughput tables, traces read or drawn, policies.

Times may have a unit: `90`, `90s`, `5min`, `2h`, `3d`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from melodeon.core.cluster import DEFAULT_TYPE, Cluster, DeviceType
from melodeon.core.errors import NotFound, UsageError

if TYPE_CHECKING:
    from melodeon.core.jobs import Curves
    from melodeon.sched.policy import Policy
    from melodeon.sim.traces.generate import TraceSpec
    from melodeon.sim.traces.rows import Trace
    from melodeon.sim.traces.throughputs import Throughputs

UNITS = {"": 1.0, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_TIME = re.compile(r"(?P<number>\d+(\.\d+)?)(?P<unit>s|min|h|d)?")
_COUNT = re.compile(r"\d{1,9}")
LINEAR = "there are no throughput tables, so curves are linear: give some by --throughputs"
BESIDE = "throughputs_"
"""Tables in `throughputs_TYPE` beside a trace are used without being asked for."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A trace, and what a person should know about how it was read."""

    trace: "Trace"
    notes: tuple[str, ...]


def seconds(text: str, option: str) -> float:
    """A length of time."""
    from melodeon.sim.traces.rows import MOST

    match = _TIME.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{option} {text} is not a length of time: write 90, 90s, 5min, 2h or 3d")
    found = float(match["number"]) * UNITS[match["unit"] or ""]
    if found > MOST:
        raise UsageError(f"{option} {_shown(text)} is too long: no time may be above {MOST:g} seconds")
    return found


def parse_cluster(text: str) -> Cluster:
    """`16x8:A100`, or a cluster spec file, with `:TYPE` after it where devices have a type."""
    from melodeon.sim.traces.tiresias import read_cluster_spec

    path, _, kind = text.partition(".csv")
    if ".csv" not in text:
        return Cluster.parse(text)
    if kind and not re.fullmatch(r":\w[\w.-]*", kind):
        raise UsageError(f"cluster {text!r} cannot be read: write a spec file as FILE.csv or FILE.csv:TYPE")
    return read_cluster_spec(Path(f"{path}.csv"), *([DeviceType(kind[1:])] if kind else []))


def parse_policies(text: str) -> list[str]:
    """The policies of a list, each `NAME` or `NAME:option=value:option=value`; `all` names every one."""
    from melodeon.sched.registry import POLICIES

    named = [part.strip() for part in text.split(",") if part.strip()]
    if not named:
        raise UsageError(f"--policy {text!r} names none: choose from {', '.join(sorted(POLICIES))}")
    found = [name for part in named for name in (sorted(POLICIES) if part == "all" else [part])]
    twice = next((name for name in found if found.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"--policy names {twice!r} twice: once is enough")
    for name in found:
        policy_of(name)
    return found


def policy_of(text: str) -> "Policy":
    """A policy with its options."""
    from melodeon.sched.registry import make_policy

    name, *parts = text.split(":")
    options: dict[str, object] = {}
    for part in parts:
        key, equals, value = part.partition("=")
        if not key or not equals:
            raise UsageError(f"policy {text!r} has {part!r}: options are written NAME:option=value")
        options[key.replace("-", "_")] = _value(value)
    return make_policy(name, **options)


def _value(text: str) -> object:
    words: Mapping[str, object] = {"true": True, "yes": True, "false": False, "no": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    numbers = tuple(_number(part) for part in text.split("+"))
    if None in numbers:
        return text
    return numbers if len(numbers) > 1 else numbers[0]


def _number(text: str) -> float | None:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return None


def read_tables(given: Sequence[str], cluster: Cluster, near: Path | None = None) -> "tuple[Throughputs, str | None]":
    """The throughput tables that were named, or those beside a trace; and what to tell about them."""
    from melodeon.sim.traces.throughputs import Throughputs, read_throughputs

    folders: dict[DeviceType, Path] = {}
    tables: list[Throughputs] = []
    given_by: dict[DeviceType, str] = {}
    for text in given:
        if text.removesuffix(".gz").endswith(".json"):
            from melodeon.sim.traces.gavel import read_gavel_throughputs

            tables.append(read_gavel_throughputs(Path(text)))
            kinds = {kind for curves in tables[-1].curves.values() for kind, _ in curves}
        else:
            kind, folder = _folder(text, cluster)
            folders[kind] = folder
            kinds = {kind}
        twice = next((kind for kind in sorted(kinds) if kind in given_by), None)
        if twice is not None:
            raise UsageError(
                f"--throughputs {text} is of {twice}, and so is {given_by[twice]}: give the tables of a type once"
            )
        given_by |= dict.fromkeys(kinds, text)
    note = None
    if not given and near is not None:
        folders = {kind: near / f"{BESIDE}{kind}" for kind in cluster.types if (near / f"{BESIDE}{kind}").is_dir()}
        note = f"curves are of the tables in {', '.join(map(str, folders.values()))}" if folders else None
    tables += [read_throughputs(folders)] if folders else []
    curves: dict[tuple[str, int], Curves] = {}
    for table in tables:
        for setting, found in table.curves.items():
            curves[setting] = (*curves.get(setting, ()), *found)
    return Throughputs(curves, cluster.types), note


def _folder(text: str, cluster: Cluster) -> tuple[DeviceType, Path]:
    kind, equals, name = text.partition("=")
    folder = Path(name if equals else text)
    if not folder.is_dir():
        raise NotFound(f"{folder} is not a folder: --throughputs takes one with a csv a model, or Gavel's .json")
    if equals:
        return DeviceType(kind), folder
    told = folder.name.removeprefix(BESIDE)
    if told in cluster.types:
        return DeviceType(told), folder
    if told != folder.name and cluster.types != (DEFAULT_TYPE,):  # devices without a type may be of any
        raise UsageError(
            f"--throughputs {text} is of {told}, which the cluster has not: write {cluster.types[0]}={text} to take it "
            f"for {cluster.types[0]} all the same"
        )
    if len(cluster.types) == 1:
        return cluster.types[0], folder
    raise UsageError(
        f"--throughputs {text} does not say which type it is of: write TYPE={text}, with one of "
        f"{', '.join(cluster.types)}"
    )


def load(
    path: Path, given: Sequence[str], cluster: Cluster, *, format_name: str | None, seed: int, skip_bad: bool
) -> Loaded:
    """Read a trace, its first submission at time 0."""
    from melodeon.sim.traces.formats import read_trace

    tables, note = read_tables(given, cluster, path.parent)
    trace = read_trace(path, tables, format_name=format_name, seed=seed, skip_bad=skip_bad)
    notes = [note] if note else []
    if not trace.jobs:
        raise UsageError(
            f"{path} has no job to simulate: {_rows(len(trace.bad))} bad, "
            f"{_rows(trace.num_other)} no job that held a device"
        )
    if trace.bad:
        notes.append(f"{_rows(len(trace.bad))} bad and left out, the first at {trace.bad[0].said}")
    if trace.num_other:
        notes.append(f"{_rows(trace.num_other)} no job that held a device, and left out")
    if not tables.curves and not any(job.model and _bends(job.curves) for job in trace.jobs[:50]):
        notes.append(LINEAR)
    return Loaded(_usable(_from_zero(trace), cluster, notes), tuple(notes))


def draw(text: str, given: Sequence[str], cluster: Cluster, *, seed: int) -> Loaded:
    """Draw a trace, such as `poisson:200` or `philly:500:gap=10min:best-effort=0.2`."""
    from melodeon.sim.traces.generate import generate

    tables, _ = read_tables(given, cluster)
    trace = generate(_spec(text, seed), tables)
    notes = [] if tables.curves else [LINEAR]
    kind, count = text.split(":")[:2]
    return Loaded(_usable(replace(trace, name=f"{kind}-{count}"), cluster, notes), tuple(notes))


def _spec(text: str, seed: int) -> "TraceSpec":
    from melodeon.sim.traces.generate import KINDS, TraceSpec

    kind, *parts = text.split(":")
    rule = (
        f"write {'|'.join(KINDS)}:JOBS, a number of up to 9 digits, then :gap=TIME, :duration=TIME, "
        ":best-effort=SHARE or :tightness=LOW-HIGH"
    )
    if kind not in KINDS or not parts or not _COUNT.fullmatch(parts[0]):
        raise UsageError(f"--generate {_shown(text)} cannot be read: {rule}")
    values: dict[str, object] = {**KINDS[kind], "num_jobs": int(parts[0]), "seed": seed}
    for part in parts[1:]:
        key, _, value = part.partition("=")
        low, dash, high = value.partition("-")
        try:
            if key == "gap":
                values["mean_gap_s"] = seconds(value, "gap")
            elif key == "duration":
                values["median_duration_s"] = seconds(value, "duration")
            elif key == "best-effort":
                values["best_effort"] = float(value)
            elif key == "tightness" and dash:
                values["tightness"] = (float(low), float(high))
            else:
                raise UsageError(f"--generate {_shown(text)} cannot be read at {_shown(part)!r}: {rule}")
        except ValueError:
            raise UsageError(f"--generate {_shown(text)} cannot be read at {_shown(part)!r}: {rule}") from None
    return TraceSpec(**values)  # type: ignore[arg-type]


def _bends(curves: object) -> bool:
    """Whether a curve is more than a straight line."""
    assert isinstance(curves, tuple)
    points = curves[0][1].points
    first = points[0][1] / points[0][0]
    return any(abs(rate / count - first) > 1e-6 * first for count, rate in points)


def _from_zero(trace: "Trace") -> "Trace":
    first_s = trace.jobs[0].submit_s
    if not first_s:
        return trace
    jobs = (
        replace(
            job,
            submit_s=job.submit_s - first_s,
            deadline_s=None if job.deadline_s is None else job.deadline_s - first_s,
        )
        for job in trace.jobs
    )
    return replace(trace, jobs=tuple(jobs))


def _usable(trace: "Trace", cluster: Cluster, notes: list[str]) -> "Trace":
    """Only jobs that can run on some device of the cluster: others would wait for ever."""
    here = set(cluster.types)
    fits = tuple(job for job in trace.jobs if any(kind in here and curve for kind, curve in job.ladders))
    if not fits:
        kinds = sorted({kind for job in trace.jobs for kind, _ in job.curves})
        raise UsageError(
            f"no job of {trace.name} can run on {', '.join(cluster.types)}: its curves are for {', '.join(kinds)}"
        )
    if len(fits) < len(trace.jobs):
        notes.append(f"{len(trace.jobs) - len(fits):,} jobs cannot run on any type of this cluster, and are left out")
    return replace(trace, jobs=fits)


def _shown(text: str) -> str:
    """An argument, as far as a sentence can hold it."""
    return text if len(text) <= 60 else text[:59] + "…"


def _rows(count: int) -> str:
    return "1 row is" if count == 1 else f"{count:,} rows are"
