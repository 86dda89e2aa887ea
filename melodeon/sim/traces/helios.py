"""Helios' `cluster_log.csv`, and the Philly trace as one csv.

    job_id, user, vc, gpu_num, cpu_num, node_num, state, submit_time, start_time, end_time, duration, queue    (Helios)
    timestamp, duration, num_gpus [, gpu_time, cluster]                                                  (Philly as csv)

Times are dates, durations seconds. Jobs of every end state are kept, for all of them held devices; jobs without a
device or without a duration are left out. The csv of Philly names no jobs: they are called by their line.
"""

from pathlib import Path

from melodeon.core.jobs import JobId
from melodeon.sim.traces.recorded import Recorded, recorded_trace
from melodeon.sim.traces.rows import Row, Trace, csv_rows
from melodeon.sim.traces.throughputs import Throughputs


def read_helios(path: Path, throughputs: Throughputs, *, seed: int = 0, skip_bad: bool = False) -> Trace:
    """A cluster's jobs; quotas and shares go by virtual cluster and user."""

    def parse(row: Row) -> Recorded | None:
        workers, submit_s = row.devices("gpu_num", least=0), row.moment("submit_time")
        if not workers or not row.has("start_time"):
            return None
        duration_s = row.number("duration", least=0)
        if not duration_s:
            return None
        return Recorded(
            id=JobId(row.text("job_id")),
            submit_s=submit_s,
            duration_s=duration_s,
            workers=workers,
            user=row.text("user"),
        )

    return recorded_trace(path.name, csv_rows(path), parse, throughputs, seed=seed, skip_bad=skip_bad)


def read_philly_csv(path: Path, throughputs: Throughputs, *, seed: int = 0, skip_bad: bool = False) -> Trace:
    """One line a job."""

    def parse(row: Row) -> Recorded | None:
        workers, duration_s = row.devices("num_gpus", least=0), row.number("duration", least=0)
        submit_s = row.moment("timestamp")
        if not workers or not duration_s:
            return None
        return Recorded(
            id=JobId(f"line{row.line}"),
            submit_s=submit_s,
            duration_s=duration_s,
            workers=workers,
            user=row.text("cluster") if row.has("cluster") else "",
        )

    return recorded_trace(path.name, csv_rows(path), parse, throughputs, seed=seed, skip_bad=skip_bad)
