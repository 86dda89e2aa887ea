"""Deadline satisfactory ratio of every policy on the published traces, beside ElasticFlow's own simulator.

Rejected and missed jobs are counted apart, and no admitted job may miss. The peer's figures are at 60 s slots (240 s
for the 1,000 generated jobs and where said), measured earlier: as published, and repaired (its admission tested jobs of
one slot together and let late jobs block newcomers); it counts admitted jobs that end late as declined.

Slots differ: the peer gathers all events of a slot, and the baselines are run that way here; ours answers submissions,
and begins promises, at once, and gathers only completions and incidents. On Pollux's jobs, 18 of which can be met but
have less than 60 s, the result hangs on that: .856 at 60 s slots, but .754 if submissions are gathered too (.862, .769,
.826, .754 at 15, 30, 45, 60 s), which is below the peer's repaired .841. Elsewhere it hardly matters (at 60 s Philly on
32 devices .886, 195 jobs .923, cluster10 .992). The rules for when to plan again were chosen among a dozen with
Pollux's and Philly's traces in view; such choices moved them by several jobs. Pauses are charged to jobs that change;
the peer charges 2 s and more to every running job at every event, but nothing to EDF.

Where baselines follow other rules than the peer's, the peer's rule is an option, run as well:

- EDF and EDF + admission give a job the largest size it was measured on even where that is slower: `(widest)`, without
  pauses.
- EDF + elastic gives late jobs that size: `edf-elastic(widest)`. Tried apart and together with 2 s for every running
  job in every round (240 s slots for the 195 and the 1,000 jobs, else 60 s):

      trace            peer   ours   widest   charged   both
      195 jobs         .205   .369    .221      .333    .174
      Pollux's 195     .667   .872    .615      .800    .595
      1,000 generated  .697   .956    .390      .634    .244
      cluster10        .981   .992    .992      .992    .992

  So widest brings the 195 jobs within 2 points and no variant does so for the next two: both rules pull the right way,
  but the peer's exact mixture is not reproduced, and cluster10's 1 point is not explained.

- With these options and the peer's slots, EDF, EDF + admission and Tiresias are within 2 points of the peer on the 195
  jobs (admission 3.6 below), Philly on 32 devices and cluster10, Tiresias everywhere. EDF is 7 points below on Pollux's
  jobs (.046, peer .118), EDF + admission as many (.338, peer .410), EDF 4 points on Philly with 256 (.398, peer .436):
  not explained.
- Gandiva and Themis here meet more deadlines than the peer's. Its code slices the time of a few nodes while others
  stay empty (Gandiva) and charges a pause to every running job whenever anything changes (Themis); ours do neither.
  That these are the whole difference was not tried out.

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
        "edf-elastic(widest)": 0.205,
        "elasticflow": 0.877,
        "elasticflow repaired": 0.913,
    },
    "Pollux's 195": {
        "edf(widest)": 0.118,
        "tiresias": 0.287,
        "edf-admission(widest)": 0.410,
        "edf-elastic(widest)": 0.667,
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
        "edf-elastic(widest)": 0.697,
        "elasticflow": 0.951,
    },
    "cluster10": {
        "edf(widest)": 0.777,
        "tiresias": 0.477,
        "edf-admission(widest)": 0.827,
        "edf-elastic(widest)": 0.981,
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
WIDEST: dict[str, dict[str, object]] = {
    "edf": {"widest": True, "overheads": Overheads.none()},
    "edf-admission": {"widest": True, "overheads": Overheads.none()},
    "edf-elastic": {"widest": True},
}
"""The peer's rules for its baselines."""


def main() -> None:
    """Simulate everything and print the report."""
    made = parser(__doc__ or "")
    made.add_argument("--policies", default=",".join(sorted(POLICIES)))
    made.add_argument("--slot", type=float, default=60.0)
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
            # Baselines by the peer's slots; ElasticFlow by ours, and by the peer's as well.
            runs: list[tuple[str, dict[str, object]]] = [(policy, {"gather": policy != "elasticflow"})]
            if policy in WIDEST:
                runs.append((f"{policy}(widest)", {**WIDEST[policy], "gather": True}))
            if policy == "elasticflow":
                runs.append((f"{policy}(gathered)", {"gather": True}))
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
