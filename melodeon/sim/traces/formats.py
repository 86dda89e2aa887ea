"""Trace formats by name, each known by its columns, so that a file alone is enough.

A reader is `read(path, throughputs, *, seed, skip_bad) -> Trace`. To add one: write its module, add a line here.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

from melodeon.core.errors import UsageError
from melodeon.core.text import plain
from melodeon.sim.traces.gavel import is_gavel
from melodeon.sim.traces.pai import knows_pai
from melodeon.sim.traces.philly import knows_philly
from melodeon.sim.traces.rows import Trace, header_of, nothing_in
from melodeon.sim.traces.throughputs import Throughputs


class Reader(Protocol):
    """Turns a file into jobs."""

    def __call__(self, path: Path, throughputs: Throughputs, *, seed: int = 0, skip_bad: bool = False) -> Trace:
        """Read the file; what it does not say is drawn from the seed."""
        ...


@dataclass(frozen=True, slots=True)
class Format:
    """How a format is read and recognised."""

    reader: str
    """"module:function", imported when needed."""
    knows: Callable[[Path, tuple[str, ...]], bool]
    """Whether a file is of this format, by its path and the columns of its first line."""


def _columns(*needed: Iterable[str]) -> Callable[[Path, tuple[str, ...]], bool]:
    def knows(_: Path, header: tuple[str, ...]) -> bool:
        return any(set(columns) <= set(header) for columns in needed)

    return knows


FORMATS: dict[str, Format] = {
    "easyscale": Format(
        "melodeon.sim.traces.easyscale:read_easyscale", _columns(("application", "max_parallelism", "preferred_gpu"))
    ),
    "elasticflow": Format(
        "melodeon.sim.traces.elasticflow:read_elasticflow",
        _columns(("submission_time", "num_iteration", "deadline"), ("submit_time", "iteration", "ddl")),
    ),
    "elasticflow-raw": Format(
        "melodeon.sim.traces.elasticflow:read_raw", _columns(("job_id", "submission_time", "duration", "num_gpu"))
    ),
    "helios": Format("melodeon.sim.traces.helios:read_helios", _columns(("job_id", "gpu_num", "vc", "submit_time"))),
    "pai": Format("melodeon.sim.traces.pai:read_pai", knows_pai),
    "philly": Format("melodeon.sim.traces.philly:read_philly", knows_philly),
    "philly-csv": Format("melodeon.sim.traces.helios:read_philly_csv", _columns(("timestamp", "duration", "num_gpus"))),
    "pollux": Format(
        "melodeon.sim.traces.pollux:read_pollux", _columns(("name", "time", "application", "num_replicas"))
    ),
    "tiresias": Format(
        "melodeon.sim.traces.tiresias:read_tiresias",
        _columns(
            ("job_id", "num_gpu", "submit_time", "duration", "interval"),
            ("job_id", "num_gpu", "submit_time", "duration", "model_scale"),
        ),
    ),
    "gavel": Format("melodeon.sim.traces.gavel:read_gavel", is_gavel),
}
"""The first format that knows a file reads it, so narrower ones come first."""


def read_trace(
    path: Path, throughputs: Throughputs, *, format_name: str | None = None, seed: int = 0, skip_bad: bool = False
) -> Trace:
    """Read a trace file, of a named format or of the one that its columns tell."""
    if format_name is None:
        header = header_of(path)
        format_name = next((name for name, known in FORMATS.items() if known.knows(path, header)), None)
        if not header:
            raise nothing_in(path)
        if format_name is None and len(header) == 1 and ";" in header[0]:
            raise UsageError(f"{path} has 1 column, {plain(header[0])!r}: separate them by commas")
        if format_name is None:
            raise UsageError(
                f"{path} has columns {_some(header)}, which no known format has: the formats are {', '.join(FORMATS)}"
            )
    elif format_name not in FORMATS:
        near = get_close_matches(format_name, FORMATS, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise UsageError(f"trace format {format_name!r} is not known: {hint}the formats are {', '.join(FORMATS)}")
    module, _, attribute = FORMATS[format_name].reader.partition(":")
    reader = cast(Reader, getattr(import_module(module), attribute))
    return reader(path, throughputs, seed=seed, skip_bad=skip_bad)


def _some(header: tuple[str, ...]) -> str:
    """The columns, as far as a sentence can hold them."""
    shown = plain(", ".join(header))
    return shown if len(shown) <= 120 else shown[:119] + "…"
