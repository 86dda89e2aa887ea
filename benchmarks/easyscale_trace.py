"""EasyScale's trace experiment: completion time and makespan of YARN-CS, EasyScale homogeneous and heterogeneous.

The paper's figure 14 says 8.3x and 13.2x for the mean completion time, 2.5x and 2.8x for the makespan, on 32 V100, 16
P100 and 16 T4. Three things lie behind these figures, and every row here says which of them hold:

    one at a time     its published simulator's YARN-CS runs one job at a time on the whole cluster
    free rescaling    a change of devices costs nothing
    D2 for nothing    jobs that may mix types run as fast as if they used the fastest kernels of each

The workload is the published file where it is at hand (--workload, or easyscale/*.csv below --data), else drawn: then
medians over several seeds. The published one comes without the step times that its simulator replayed. Those of its
figure 11 make its jobs shorter than they were there, so `calibrated` rows multiply every step time by one factor, found
so that the one-at-a-time baseline ends when theirs does; nothing else is fitted. Names that the file uses twice are one
job there (the later row), and so they are here.

    python benchmarks/easyscale_trace.py [--workload FILE] [--data DIR] [--seeds N]
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from _common import progress, report
from _sched import parser, simulate

from melodeon.core.curve import ScalingCurve
from melodeon.core.jobs import JobSpec
from melodeon.core.overhead import Overheads
from melodeon.sim.traces.easyscale_speeds import CLUSTER, paying_d2
from melodeon.sim.traces.formats import read_trace
from melodeon.sim.traces.generate_easyscale import EasyScaleWorkload, generate_easyscale
from melodeon.sim.traces.throughputs import Throughputs

PAPER = {"easyscale-homo": (8.3, 2.5), "easyscale-heter": (13.2, 2.8)}
ARTIFACT = {
    "yarn-cs, one at a time": (8905.0, 16560.0),
    "easyscale-homo": (1071.0, 6720.0),
    "easyscale-heter": (677.0, 6000.0),
}
"""(mean completion time, makespan) in seconds, as published with its simulator; makespan counted from time 0."""
Jobs = tuple[JobSpec, ...]


@dataclass(frozen=True)
class Contender:
    """A policy as it is run."""

    name: str
    policy: str
    options: tuple[tuple[str, object], ...] = ()


ALONE = Contender("yarn-cs, one at a time", "yarn-cs", (("one_at_a_time", True),))
YARN = Contender("yarn-cs", "yarn-cs")
CONTENDERS = (
    ALONE,
    YARN,
    Contender("easyscale-homo", "easyscale-homo"),
    Contender("easyscale-heter", "easyscale-heter"),
    Contender("easyscale-homo, growing once a minute", "easyscale-homo", (("trial_s", 60.0),)),
    Contender("easyscale-heter, growing once a minute", "easyscale-heter", (("trial_s", 60.0),)),
    Contender("easyscale-homo, minimum guaranteed", "easyscale-homo", (("guarantee", True),)),
    Contender("easyscale-heter, minimum guaranteed", "easyscale-heter", (("guarantee", True),)),
)


@dataclass(frozen=True)
class World:
    """What a change costs."""

    name: str
    overheads: Overheads
    pay_d2: bool


WORLDS = (
    World("free rescaling, D2 for nothing", Overheads.none(), pay_d2=False),
    World("pauses and D2 paid", Overheads(), pay_d2=True),
)


def main() -> None:
    """Simulate everything and print the report."""
    made = parser(__doc__ or "")
    made.add_argument("--workload", type=Path, help="a workload file in EasyScale's format")
    made.add_argument("--seeds", type=int, default=9, help="drawn workloads, where there is no file")
    options = made.parse_args()
    file = options.workload or next(iter(sorted((options.data / "easyscale").glob("*.csv"))), None)
    if file is None:
        progress("no published workload at hand: drawn ones instead")
        drawn = [generate_easyscale(EasyScaleWorkload(seed=seed)).jobs for seed in range(options.seeds)]
        sets = {f"drawn, median of {options.seeds} seeds": drawn}
    else:
        jobs = _last_of_each_name(read_trace(file, Throughputs({})).jobs)
        factor = _factor(jobs, ARTIFACT[ALONE.name][1])
        sets = {"published, speeds of figure 11": [jobs]}
        sets[f"published, calibrated: step times x {factor:.2f}"] = [_slower(jobs, factor)]
    rows = [row for name, many in sets.items() for world in WORLDS for row in _rows(name, many, world)]
    chosen = [row for row in rows if row["workload"] == list(sets)[-1] and row["world"] == WORLDS[0].name]
    mine = next(row for row in chosen if row["policy"] == "easyscale-heter")
    report(
        benchmark="easyscale_trace",
        metric=f"mean completion time, one job at a time over EasyScale heterogeneous; {mine['workload']}",
        value=mine["jct_gain_over_one_at_a_time"],
        peer="EasyScale's paper, figure 14 (its own workload and speeds)",
        peer_value=PAPER["easyscale-heter"][0],
        ratio=round(float(str(mine["jct_gain_over_one_at_a_time"])) / PAPER["easyscale-heter"][0], 2),
        paper={name: {"jct_gain": jct, "makespan_gain": makespan} for name, (jct, makespan) in PAPER.items()},
        rows=rows,
    )


def _rows(workload: str, sets: Sequence[Jobs], world: World) -> list[dict[str, object]]:
    """One row for each policy: medians over the job sets, and gains measured in each set."""
    found: dict[str, list[tuple[float, float]]] = {}
    for jobs in sets:
        for contender in CONTENDERS:
            pays = world.pay_d2 and contender.policy == "easyscale-heter"
            summary, _ = simulate(
                tuple(map(paying_d2, jobs)) if pays else jobs,
                CLUSTER,
                contender.policy,
                slot_s=0.0,
                overheads=world.overheads,
                **dict(contender.options),
            )
            assert summary.jct_mean_s is not None
            assert not summary.num_unfinished
            found.setdefault(contender.name, []).append((summary.jct_mean_s, summary.makespan_s))
    rows: list[dict[str, object]] = []
    for contender in CONTENDERS:
        row: dict[str, object] = {"workload": workload, "world": world.name, "policy": contender.name}
        row["jct_s"] = round(median(jct for jct, _ in found[contender.name]), 1)
        row["makespan_s"] = round(median(makespan for _, makespan in found[contender.name]), 1)
        for against, label in ((ALONE, "one_at_a_time"), (YARN, "yarn_cs")):
            for index, what in enumerate(("jct", "makespan")):
                pairs = zip(found[against.name], found[contender.name], strict=True)
                row[f"{what}_gain_over_{label}"] = round(median(base[index] / own[index] for base, own in pairs), 2)
        row["paper_gain"] = PAPER.get(contender.name)
        row["artifact_s"] = ARTIFACT.get(contender.name) if workload.startswith("published") else None
        rows.append(row)
        progress(" ".join(f"{key}={value}" for key, value in row.items()))
    return rows


def _last_of_each_name(jobs: Jobs) -> Jobs:
    """As the published simulator reads it: of several rows with one name the last one in the file counts."""
    last: dict[str, tuple[int, JobSpec]] = {}
    for job in jobs:
        name, _, line = job.id.partition("@")
        if name not in last or int(line or 0) > last[name][0]:
            last[name] = (int(line or 0), job)
    return tuple(job for _, job in last.values())


def _factor(jobs: Jobs, ends_s: float) -> float:
    """How much longer a step must take for the one-at-a-time baseline to end at a moment."""
    low, high = 0.5, 8.0
    first_s = min(job.submit_s for job in jobs)
    for _ in range(20):
        middle = (low + high) / 2
        summary, _ = simulate(_slower(jobs, middle), CLUSTER, ALONE.policy, slot_s=0.0, one_at_a_time=True)
        low, high = (middle, high) if first_s + summary.makespan_s < ends_s else (low, middle)
    return (low + high) / 2


def _slower(jobs: Jobs, factor: float) -> Jobs:
    def curve(old: ScalingCurve) -> ScalingCurve:
        return ScalingCurve(tuple((count, rate / factor) for count, rate in old.points))

    return tuple(replace(job, curves=tuple((kind, curve(old)) for kind, old in job.curves)) for job in jobs)


if __name__ == "__main__":
    main()
