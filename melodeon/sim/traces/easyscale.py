"""EasyScale's workload files.

    name, time, application, max_parallelism, batch_size, epochs, enable_heterogeneous_deterministic, preferred_gpu

Times are seconds; `batch_size` is one virtual worker's, of which there are `max_parallelism`. A job that is not
deterministic on several types keeps to its preferred one. Speeds come from the throughput tables (the column of one
device, at the row of `batch_size`) where these have the application, else from `easyscale_speeds`. The published file
uses some names twice; its simulator then forgets the earlier row, here the later one is named after its line.
"""

from pathlib import Path

from melodeon.core.cluster import DeviceType
from melodeon.core.jobs import JobId, JobSpec
from melodeon.sim.traces.easyscale_speeds import APPLICATIONS, EPOCH_SHARE, KINDS, easyscale_job, preferring
from melodeon.sim.traces.rows import Row, Trace, csv_rows, jobs_of
from melodeon.sim.traces.throughputs import Throughputs

COLUMNS = ("name", "time", "application", "max_parallelism", "batch_size", "epochs", "preferred_gpu")


def read_easyscale(path: Path, throughputs: Throughputs, *, seed: int = 0, skip_bad: bool = False) -> Trace:
    """A workload; it says everything itself, so the seed is not used."""
    del seed
    seen: set[str] = set()

    def parse(row: Row) -> JobSpec:
        name, application = row.text("name"), row.text("application")
        if application not in APPLICATIONS:
            raise row.bad("application", f"{application!r} is not known: there are {', '.join(APPLICATIONS)}")
        virtual_workers = row.devices("max_parallelism")
        batch_size = row.whole("batch_size", least=1)
        mixes = row.whole("enable_heterogeneous_deterministic") != 0
        samples = row.number("epochs", above=0) * EPOCH_SHARE * APPLICATIONS[application].samples
        job = easyscale_job(
            JobId(f"{name}@{row.line}" if name in seen else name),
            application,
            _rates(throughputs, application, batch_size, preferring(_kind(row), mixes=mixes)),
            submit_s=row.number("time", least=0),
            virtual_workers=virtual_workers,
            batch_size=batch_size,
            iterations=samples / (batch_size * virtual_workers),
        )
        seen.add(name)
        return job

    return jobs_of(path.name, csv_rows(path), parse, skip_bad=skip_bad)


def _kind(row: Row) -> DeviceType:
    text = row.text("preferred_gpu")
    for kind in KINDS:
        if text.upper() == kind:
            return kind
    raise row.bad("preferred_gpu", f"{text!r} is not one of {', '.join(kind.lower() for kind in KINDS)}")


def _rates(
    throughputs: Throughputs, application: str, batch_size: int, kinds: tuple[DeviceType, ...]
) -> dict[DeviceType, float]:
    measured = dict(throughputs.curves.get((application, batch_size), ()))
    known = APPLICATIONS[application]
    return {kind: measured[kind].rate(1) if kind in measured else known.rate(kind, batch_size) for kind in kinds}
