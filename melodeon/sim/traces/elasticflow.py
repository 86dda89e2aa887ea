"""ElasticFlow's traces: its csv in both headers, and the raw one that it was made from.

    job_id, submission_time, num_iteration, model_name, deadline, batch_size, num_gpu, duration
    job_id, submit_time, iteration, model_name, ddl, batch_size, num_gpu, duration [, best_effort]
    job_id, submission_time, duration, num_gpu                                       (raw: model and deadline are drawn)

Times are seconds; a deadline is a moment, not a length. Without throughput tables a job's rate on what it requested is
its iterations over its duration, and its curve is linear.
"""

from pathlib import Path

from melodeon.core.jobs import Curves, Goal, JobId, JobSpec
from melodeon.sim.traces.linear import linear_curves
from melodeon.sim.traces.recorded import Recorded, recorded_trace
from melodeon.sim.traces.rows import Row, Trace, csv_rows, jobs_of
from melodeon.sim.traces.throughputs import Throughputs


def read_elasticflow(path: Path, throughputs: Throughputs, *, seed: int = 0, skip_bad: bool = False) -> Trace:
    """A trace with models and deadlines; it says everything itself, so the seed is not used."""
    del seed

    def parse(row: Row) -> JobSpec:
        best_effort = row.has("best_effort") and row.whole("best_effort") != 0
        return JobSpec(
            id=JobId(row.text("job_id")),
            submit_s=row.number("submission_time", "submit_time", least=0),
            iterations=row.number("num_iteration", "iteration", above=0),
            curves=throughputs.of(row) if throughputs.curves else _linear(row, throughputs),
            deadline_s=None if best_effort else row.number("deadline", "ddl"),
            goal=Goal.BEST_EFFORT if best_effort else Goal.HARD,
            requested_workers=row.devices("num_gpu"),
            model=row.text("model_name"),
            batch_size=row.whole("batch_size", least=1),
            duration_s=row.number("duration", least=0),
        )

    return jobs_of(path.name, csv_rows(path), parse, skip_bad=skip_bad)


def read_raw(path: Path, throughputs: Throughputs, *, seed: int = 0, skip_bad: bool = False) -> Trace:
    """A trace of durations only: model, batch size and tightness are drawn, as the paper does."""

    def parse(row: Row) -> Recorded | None:
        duration_s = row.number("duration", least=0)
        workers = row.devices("num_gpu", least=0)
        submit_s = row.number("submission_time", least=0)
        if not duration_s or not workers:
            return None
        return Recorded(id=JobId(row.text("job_id")), submit_s=submit_s, duration_s=duration_s, workers=workers)

    return recorded_trace(path.name, csv_rows(path), parse, throughputs, seed=seed, skip_bad=skip_bad)


def _linear(row: Row, throughputs: Throughputs) -> Curves:
    iterations, duration_s = row.number("num_iteration", "iteration", above=0), row.number("duration", above=0)
    workers = row.devices("num_gpu")
    return linear_curves(throughputs.kinds, workers, iterations / duration_s / workers)
