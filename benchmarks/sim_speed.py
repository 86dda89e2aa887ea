"""How fast the simulator is: jobs a CPU-second by policy and trace, all seven cluster traces, and growth with jobs.

The largest trace is Philly's, 82,247 jobs in 109 days, on the fewest nodes of eight devices that hold what it holds at
its busiest moment (156). Policies that would take long there are stopped after `--limit` CPU seconds: their rows say
how many jobs had come and how many of them had ended or been turned away, and their jobs a second are of the latter.

The peer's CPU seconds are those of ElasticFlow's published simulator for its own policy at the same slot length,
measured earlier on a machine of two shared cores; they are not measured again here. Two things ours does and it does
not: it tells a job that is turned away which deadline would have been accepted (`without_quotes` leaves that out), and
it answers submissions at once, whatever the slot (`as_the_peer` leaves out both: submissions wait for a slot's end).
What else runs on the machine only ever adds to CPU time, so the best of several runs is told, and the median beside it.

    python benchmarks/sim_speed.py [--data DIR] [--policies a,b] [--slot S] [--limit S] [--no-clusters]
"""

import sys
from argparse import Namespace
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from _common import at_least, at_most, progress, report
from _sched import CLUSTERS, PHILLY, TESTBED, Case, check, jobs_of, parser, simulate, simulate_for, tables

from melodeon.core.jobs import JobSpec
from melodeon.sched.registry import POLICIES
from melodeon.sim.traces.generate import TraceSpec, generate

PEER_CPU_S = {("195 jobs", 60.0): 11.6, ("195 jobs", 240.0): 7.5, ("cluster10", 60.0): 6.0}
"""By trace and slot length; the 7.5 s were noted without one, and a run at 240 s slots took 7.8 s."""
VARIANTS = (("as_shipped", True, False), ("without_quotes", False, False), ("as_the_peer", False, True))
"""(name, whether to quote deadlines, whether submissions wait for a slot's end)"""
RUNS = 15
LEAST, MOST_S = 100.0, 300.0
"""Times as fast as the peer at the same slots, and seconds for all seven clusters."""
FIRST = next(case for case in CLUSTERS if case.name == "cluster01")
SMALLEST = next(case for case in CLUSTERS if case.name == "cluster10")
GROWTH = (500, 1000, 2000, 4000)


def main() -> None:
    """Measure and print the report."""
    options = asked()
    bench = Bench(options.data, options.slot, options.limit)
    for policy in options.policies.split(","):
        for case in (TESTBED,) if options.no_clusters else (TESTBED, FIRST, PHILLY):
            bench.run(case, policy)
    peers = [compared(options.data, case, slot_s) for case in (TESTBED, SMALLEST) for slot_s in (60.0, 240.0)]
    found = [row for row in peers if row is not None]
    total = None if options.no_clusters else round(sum(bench.run(case, "elasticflow") for case in CLUSTERS), 1)
    mine = found[0]
    report(
        benchmark="sim_speed",
        metric="CPU seconds for the 195-job trace under ElasticFlow, 60 s slots",
        value=mine["cpu_s"],
        peer="ElasticFlow's simulator (measured earlier, two shared cores)",
        peer_value=mine["peer_cpu_s"],
        ratio=mine["ratio"],
        compared=found,
        seven_clusters_cpu_s=total,
        growth=growth(options.data, options.slot),
        rows=bench.rows,
        bounds=[
            *(at_least(f"{row['trace']}, slots {row['slot_s']} s", float(str(row["ratio"])), LEAST) for row in found),
            *([] if total is None else [at_most("CPU seconds, seven clusters", total, MOST_S)]),
        ],
        check=options.check,
    )


def asked() -> Namespace:
    """What the command line says; stops with a sentence where a trace is missing."""
    made = parser(__doc__ or "")
    made.add_argument("--policies", default=",".join(sorted(POLICIES)))
    made.add_argument("--slot", type=float, default=60.0)
    made.add_argument("--limit", type=float, default=60.0, help="CPU seconds a policy may take for the largest trace")
    made.add_argument("--no-clusters", action="store_true", help="195 jobs only, not the cluster traces and Philly's")
    options = made.parse_args()
    check(options.data)
    if not options.no_clusters and not (options.data / PHILLY.file).is_file():
        sys.exit(
            f"{options.data} does not hold {PHILLY.file}: put it there, or leave the large traces out (--no-clusters)"
        )
    return options


@dataclass
class Bench:
    """Policies on traces, a row for each; a trace is read once."""

    data: Path
    slot_s: float
    limit_s: float
    """For the largest trace."""
    rows: list[dict[str, object]] = field(default_factory=list)
    _traces: dict[str, tuple[JobSpec, ...]] = field(default_factory=dict)

    def run(self, case: Case, policy: str) -> float:
        """One simulation; the CPU seconds that it took."""
        jobs = self._traces.get(case.name) or jobs_of(self.data, case)
        self._traces[case.name] = jobs
        if case is PHILLY:
            summary, cpu_s = simulate_for(self.limit_s, jobs, case.cluster, policy, slot_s=self.slot_s)
        else:
            summary, cpu_s = simulate(jobs, case.cluster, policy, slot_s=self.slot_s)
        done = summary.num_jobs - summary.num_unfinished
        progress(f"{case.name} {policy}: {done} of {len(jobs)} jobs in {cpu_s:.2f} CPU s, {done / cpu_s:.0f} jobs/s")
        self.rows.append(
            {
                "trace": case.name,
                "policy": policy,
                "jobs": len(jobs),
                "come": summary.num_jobs,
                "done": done,
                "cpu_s": round(cpu_s, 3),
                "jobs_per_s": round(done / cpu_s),
                "rounds": summary.num_rounds,
            }
        )
        return cpu_s


def compared(data: Path, case: Case, slot_s: float) -> dict[str, object] | None:
    """Ours beside the peer's at one slot length; all variants in turn."""
    peer_s = PEER_CPU_S.get((case.name, slot_s))
    if peer_s is None:
        return None
    jobs = jobs_of(data, case)
    times: dict[str, list[float]] = {name: [] for name, _, _ in VARIANTS}
    for _ in range(RUNS):
        for name, quote, gather in VARIANTS:
            _, cpu_s = simulate(jobs, case.cluster, "elasticflow", slot_s=slot_s, gather=gather, quote=quote)
            times[name].append(cpu_s)
    found = {
        name: {
            "cpu_s": round(min(runs), 4),
            "median_cpu_s": round(median(runs), 4),
            "ratio": round(peer_s / min(runs), 1),
        }
        for name, runs in times.items()
    }
    row = {"trace": case.name, "slot_s": slot_s, "peer_cpu_s": peer_s, **found.pop("as_shipped"), **found}
    progress(f"compared: {row}")
    return row


def growth(data: Path, slot_s: float) -> list[dict[str, object]]:
    """CPU time a job at a fixed load, on traces of growing length."""
    measured = tables(data, "A100")
    found: list[dict[str, object]] = []
    for count in GROWTH:
        jobs = generate(TraceSpec(num_jobs=count, mean_gap_s=600.0, seed=0), measured).jobs
        _, cpu_s = simulate(jobs, "16x8:A100", "elasticflow", slot_s=slot_s)
        found.append({"jobs": count, "ms_per_job": round(1e3 * cpu_s / count, 3)})
        progress(f"growth: {count} jobs, {1e3 * cpu_s / count:.2f} CPU ms a job")
    return found


if __name__ == "__main__":
    main()
