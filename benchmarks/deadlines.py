"""Deadline satisfactory ratio of every policy on the published traces, beside ElasticFlow's own simulator.

Ours decides at every event and charges pauses to jobs that change; rejected and missed jobs are counted apart, and no
admitted job may miss. The peer's figures are at 60 s slots (240 s for the 1,000 generated jobs), measured earlier: as
published, and repaired (its admission tested jobs of one slot together and let late jobs block newcomers); it counts
admitted jobs that end late as declined, and gives EDF the largest measured size even where that is slower, which
`edf(widest)` does here as well.

    python benchmarks/deadlines.py [--data DIR] [--policies a,b] [--slot S] [--no-clusters]
"""

from dataclasses import replace

from _common import progress, report
from _sched import (
    ARTIFACT,
    CLUSTERS,
    PHILLY_LARGE,
    PHILLY_SMALL,
    POLLUX,
    TESTBED,
    Case,
    check,
    jobs_of,
    parser,
    simulate,
)

from melodeon.core.overhead import Overheads
from melodeon.sched.registry import POLICIES

GENERATED = Case("1,000 generated", f"{ARTIFACT}/generated/1000job_1500lam.csv", "16x8:A100")
FIRST_400 = tuple(
    replace(case, name=f"{case.name}, first 400", first=400) for case in CLUSTERS if case.name[-2:] in "01 03 05 06"
)
PEER: dict[str, dict[str, float]] = {
    "195 jobs": {
        "edf(widest)": 0.097,
        "tiresias": 0.492,
        "edf-admission(widest)": 0.323,
        "edf-elastic": 0.205,
        "elasticflow": 0.877,
        "elasticflow repaired": 0.913,
    },
    "Pollux's 195": {
        "edf(widest)": 0.118,
        "tiresias": 0.287,
        "edf-admission(widest)": 0.410,
        "edf-elastic": 0.667,
        "elasticflow": 0.728,
        "elasticflow repaired": 0.841,
    },
    "Philly 876, 32 GPUs": {
        "edf(widest)": 0.010,
        "tiresias": 0.324,
        "elasticflow": 0.876,
        "elasticflow repaired": 0.884,
    },
    "Philly 876, 256 GPUs": {"edf(widest)": 0.436, "tiresias": 0.466, "elasticflow": 0.910},
    "1,000 generated": {
        "edf(widest)": 0.115,
        "edf-admission(widest)": 0.364,
        "edf-elastic": 0.697,
        "elasticflow": 0.951,
    },
    "cluster10": {
        "edf(widest)": 0.777,
        "tiresias": 0.477,
        "edf-admission(widest)": 0.827,
        "edf-elastic": 0.981,
        "elasticflow": 0.962,
        "elasticflow repaired": 0.988,
    },
    "cluster01": {"edf(widest)": 0.187, "tiresias": 0.493},
    "cluster06": {"elasticflow": 0.638, "elasticflow repaired": 0.818},
    "cluster01, first 400": {"elasticflow": 0.683, "elasticflow repaired": 0.960},
    "cluster03, first 400": {"elasticflow": 0.598, "elasticflow repaired": 0.890},
    "cluster05, first 400": {"elasticflow": 0.935, "elasticflow repaired": 0.993},
    "cluster06, first 400": {"elasticflow": 0.595, "elasticflow repaired": 0.753},
}
"""The 195 jobs' EDF+admission and EDF+elastic are at 240 s slots."""
WIDEST = ("edf", "edf-admission")


def main() -> None:
    """Simulate everything and print the report."""
    made = parser(__doc__ or "")
    made.add_argument("--policies", default=",".join(sorted(POLICIES)))
    made.add_argument("--slot", type=float, default=0.0)
    made.add_argument("--no-clusters", action="store_true", help="leave out the whole cluster traces")
    options = made.parse_args()
    check(options.data)
    cases = [TESTBED, POLLUX, PHILLY_SMALL, PHILLY_LARGE, GENERATED, *FIRST_400]
    cases += [] if options.no_clusters else CLUSTERS
    rows: list[dict[str, object]] = []
    for case in cases:
        jobs = jobs_of(options.data, case)
        ceiling = sum(
            j.deadline_s is not None and j.submit_s + j.iterations / j.ladders[0][1].rates[-1] <= j.deadline_s
            for j in jobs
        ) / sum(j.deadline_s is not None for j in jobs)
        for policy in options.policies.split(","):
            runs: list[tuple[str, dict[str, object]]] = [(policy, {})]
            if policy in WIDEST:
                # As the peer does: the largest size, and no pauses.
                runs.append((f"{policy}(widest)", {"widest": True, "overheads": Overheads.none()}))
            for name, extra in runs:
                summary, cpu_s = simulate(jobs, case.cluster, policy, slot_s=options.slot, **extra)  # type: ignore[arg-type]
                peer = PEER.get(case.name, {})
                rows.append(
                    {
                        "trace": case.name,
                        "policy": name,
                        "ratio": round(summary.deadline_ratio or 0.0, 3),
                        "peer": peer.get(name),
                        "peer_repaired": peer.get(f"{name} repaired"),
                        "ceiling": round(ceiling, 3),
                        "rejected": summary.num_rejected,
                        "missed": summary.num_missed,
                        "cpu_s": round(cpu_s, 2),
                    }
                )
                progress(" ".join(f"{key}={value}" for key, value in rows[-1].items()))
    mine = next((row for row in rows if row["policy"] == "elasticflow"), rows[0])
    report(
        benchmark="deadlines",
        metric=f"deadline satisfactory ratio, {mine['policy']}, {mine['trace']}, slots of {options.slot:g} s",
        value=mine["ratio"],
        peer="ElasticFlow's simulator, admission repaired (measured earlier, 60 s slots)",
        peer_value=mine["peer_repaired"],
        ratio=None
        if not mine["peer_repaired"]
        else round(float(str(mine["ratio"])) / float(str(mine["peer_repaired"])), 3),
        missed=sum(int(str(row["missed"])) for row in rows if row["policy"] == "elasticflow"),
        rows=rows,
    )


if __name__ == "__main__":
    main()
