"""How fast the simulator is: jobs a CPU-second by policy and trace, all seven cluster traces, and growth with jobs.

The peer's CPU seconds are those of ElasticFlow's published simulator for its own policy at 60 s slots, measured earlier
on a machine of two shared cores; they are not measured again here.

    python benchmarks/sim_speed.py [--data DIR] [--policies a,b] [--slot S] [--no-clusters]
"""

from _common import progress, report
from _sched import CLUSTERS, TESTBED, Case, check, jobs_of, parser, simulate, tables

from melodeon.sched.registry import POLICIES
from melodeon.sim.traces.generate import TraceSpec, generate

PEER_CPU_S = {"195 jobs": 7.5, "cluster10": 6.0}
LARGEST = next(case for case in CLUSTERS if case.name == "cluster08")
FIRST = next(case for case in CLUSTERS if case.name == "cluster01")
GROWTH = (500, 1000, 2000, 4000)


def main() -> None:
    """Measure and print the report."""
    made = parser(__doc__ or "")
    made.add_argument("--policies", default=",".join(sorted(POLICIES)))
    made.add_argument("--slot", type=float, default=60.0)
    made.add_argument("--no-clusters", action="store_true", help="leave out the seven cluster traces")
    options = made.parse_args()
    check(options.data)
    rows: list[dict[str, object]] = []

    def run(case: Case, policy: str) -> float:
        jobs = jobs_of(options.data, case)
        summary, cpu_s = simulate(jobs, case.cluster, policy, slot_s=options.slot)
        rate = len(jobs) / cpu_s
        progress(f"{case.name} {policy}: {len(jobs)} jobs in {cpu_s:.2f} CPU s, {rate:.0f} jobs/s")
        rows.append(
            {
                "trace": case.name,
                "policy": policy,
                "jobs": len(jobs),
                "cpu_s": round(cpu_s, 3),
                "jobs_per_s": round(rate),
                "rounds": summary.num_rounds,
            }
        )
        return cpu_s

    for policy in options.policies.split(","):
        for case in (TESTBED,) if options.no_clusters else (TESTBED, FIRST, LARGEST):
            run(case, policy)
    # Median of five for the figure that is compared.
    ours = sorted(run(TESTBED, "elasticflow") for _ in range(5))[2]
    total = None if options.no_clusters else sum(run(case, "elasticflow") for case in CLUSTERS)
    report(
        benchmark="sim_speed",
        metric=f"CPU seconds for the 195-job trace under ElasticFlow, {options.slot:g} s slots",
        value=round(ours, 3),
        peer="ElasticFlow's simulator (measured earlier, two shared cores)",
        peer_value=PEER_CPU_S["195 jobs"],
        ratio=round(PEER_CPU_S["195 jobs"] / ours, 1),
        seven_clusters_cpu_s=None if total is None else round(total, 1),
        growth=growth(options.data, options.slot),
        rows=rows,
    )


def growth(data: object, slot_s: float) -> list[dict[str, object]]:
    """CPU time a job at a fixed load, on traces of growing length."""
    from pathlib import Path

    assert isinstance(data, Path)
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
