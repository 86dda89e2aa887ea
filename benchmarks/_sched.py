"""What the scheduling benchmarks share: where the traces are, and one timed simulation."""

import argparse
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from _common import arguments

from melodeon.core.cluster import Cluster, DeviceType
from melodeon.core.jobs import JobSpec
from melodeon.core.overhead import Overheads
from melodeon.sched.registry import make_policy
from melodeon.sim.engine import SimConfig, Simulation
from melodeon.sim.metrics import Summary, summarize
from melodeon.sim.traces.formats import read_trace
from melodeon.sim.traces.throughputs import Throughputs, read_throughputs

DEFAULT_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
ARTIFACT, TRACES = "elasticflow-artifact", "elasticflow-traces"
PARTS = 1000
"""A simulation with a limit looks at the clock after each of so many parts of its jobs."""


@dataclass(frozen=True)
class Case:
    """A trace on a cluster."""

    name: str
    file: str
    cluster: str
    first: int | None = None
    """Only so many jobs."""


TESTBED = Case("195 jobs", f"{TRACES}/195job.csv", "16x8:A100")
POLLUX = Case("Pollux's 195", f"{ARTIFACT}/elasticVpollux_e.csv", "16x4:T4")
PHILLY_SMALL = Case("Philly 876, 32 GPUs", f"{ARTIFACT}/philly_103959.csv", "4x8:A100")
PHILLY_LARGE = Case("Philly 876, 256 GPUs", f"{ARTIFACT}/philly_103959.csv", "32x8:A100")
PHILLY = Case("Philly, all", "pollux/philly.csv.gz", "156x8:A100")
"""All 82,247 jobs that held a device. Run as they were recorded, they hold 1,243 devices at the busiest moment: 156
nodes of eight are the fewest that have so many. Models and deadlines are drawn, as for any trace without them."""
CLUSTERS = tuple(
    Case(f"cluster{n}", f"{TRACES}/cluster{n}.csv.gz", "32x8:A100" if n == "10" else "64x8:A100")
    for n in ("01", "03", "05", "06", "08", "09", "10")
)


def parser(text: str) -> argparse.ArgumentParser:
    """Options that every scheduling benchmark has."""
    made = arguments(text)
    made.add_argument("--data", type=Path, default=DEFAULT_DATA, help="folder with the published traces and tables")
    return made


def check(data: Path) -> None:
    """Stop with one sentence where there are no traces."""
    if not (data / TRACES).is_dir() or not (data / ARTIFACT).is_dir():
        sys.exit(f"{data} does not hold {TRACES}/ and {ARTIFACT}/: give the folder of the published traces with --data")


def tables(data: Path, kind: str) -> Throughputs:
    """The throughput tables of one device type."""
    return read_throughputs({DeviceType(kind): data / ARTIFACT / f"throughputs_{kind}"})


def jobs_of(data: Path, case: Case) -> tuple[JobSpec, ...]:
    """The jobs of a case."""
    trace = read_trace(data / case.file, tables(data, case.cluster.rpartition(":")[2]))
    return trace.jobs[: case.first] if case.first else trace.jobs


def simulate(
    jobs: tuple[JobSpec, ...],
    cluster: str,
    policy: str,
    *,
    slot_s: float,
    gather: bool = False,
    overheads: Overheads | None = None,
    **options: object,
) -> tuple[Summary, float]:
    """One simulation, and the CPU seconds that it took."""
    config = _config(cluster, slot_s, gather, overheads)
    start = time.process_time()
    result = Simulation(config, jobs, make_policy(policy, **options)).run().result()
    return summarize(result), time.process_time() - start


def simulate_for(
    limit_s: float, jobs: tuple[JobSpec, ...], cluster: str, policy: str, *, slot_s: float
) -> tuple[Summary, float]:
    """A simulation that is stopped after about so many CPU seconds; its figures are of the jobs that had come then."""
    simulation = Simulation(_config(cluster, slot_s), jobs, make_policy(policy))
    start = time.process_time()
    part = max(1, len(jobs) // PARTS)
    for job in jobs[part::part]:
        simulation.run(job.submit_s)
        if time.process_time() - start >= limit_s:
            break
    else:
        simulation.run()
    return summarize(simulation.result()), time.process_time() - start


def _config(cluster: str, slot_s: float, gather: bool = False, overheads: Overheads | None = None) -> SimConfig:
    return SimConfig(
        cluster=Cluster.parse(cluster),
        slot_s=slot_s,
        gather_submissions=gather,
        overheads=overheads or Overheads(),
        record=False,
    )
