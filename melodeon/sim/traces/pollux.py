"""Pollux's workloads: `name, time, application, num_replicas, batch_size`, a row a job.

A workload says neither how long a job is nor how fast: both come from the applications' measurements, which lie in
`traces/APPLICATION` beside the workload's folder, as Pollux publishes them. Jobs have no deadline. `batch_size` is the
one that the user chose; schedulers that do not change it train with it throughout.
"""

from functools import lru_cache
from pathlib import Path

from melodeon.core.errors import NotFound
from melodeon.core.jobs import Goal, JobId, JobSpec
from melodeon.sim.traces.pollux_tables import Application, read_application
from melodeon.sim.traces.rows import Row, Trace, csv_rows, jobs_of
from melodeon.sim.traces.throughputs import Throughputs

FOLDER = "traces"


def read_pollux(path: Path, throughputs: Throughputs, *, seed: int = 0, skip_bad: bool = False) -> Trace:
    """A workload, with its applications' tables from beside it; it says everything itself, so the seed is not used."""
    del seed
    tables = path.absolute().parent.parent / FOLDER
    if not tables.is_dir():
        raise NotFound(f"{tables} is not there: a Pollux workload needs a folder of measurements for each application")
    known = sorted(folder.name for folder in tables.iterdir() if folder.is_dir())

    def parse(row: Row) -> JobSpec:
        name = row.text("application")
        if name not in known:
            raise row.bad("application", f"{name!r} was not measured: there are tables for {', '.join(known)}")
        application, batch_size = _application(tables / name), row.whole("batch_size", least=1)
        curve = application.curve(batch_size)
        if curve is None:
            least = application.compact[1][0][0]
            raise row.bad("batch_size", f"{name} was not measured below {least} examples on a device")
        return JobSpec(
            id=JobId(row.text("name")),
            submit_s=row.number("time", least=0),
            iterations=application.iterations(batch_size),
            curves=tuple((kind, curve) for kind in throughputs.kinds),
            goal=Goal.BEST_EFFORT,
            requested_workers=row.devices("num_replicas"),
            model=name,
            batch_size=batch_size,
            goodput=application.goodput(batch_size),
        )

    return jobs_of(path.name, csv_rows(path), parse, skip_bad=skip_bad)


@lru_cache(maxsize=32)
def _application(folder: Path) -> Application:
    return read_application(folder)
