"""How long one round takes (admit, decide, place, diff) with many jobs on many devices.

Jobs are drawn at random on eight-device nodes until the wanted number is admitted; each measured round then has one
newcomer, all jobs have moved on by a minute, and everything is planned again. Medians of CPU time, since machines may
be shared; wall time stands beside it. The target is 100 ms for 1,000 jobs on 10,000 devices under ElasticFlow.

    python benchmarks/decide.py [--policy NAME] [--rounds N]
"""

import argparse
import random
import statistics
import time
from dataclasses import replace

from _common import progress, report

from melodeon.core.cluster import DEFAULT_TYPE, Cluster
from melodeon.core.clusterview import ClusterView, JobState
from melodeon.core.curve import ScalingCurve
from melodeon.core.jobs import JobId, JobSpec
from melodeon.sched.registry import make_policy
from melodeon.sched.tick import Round, TickState, tick

TARGET_MS = 100.0
SIZES = ((250, 10_000), (500, 10_000), (1000, 10_000), (2000, 10_000), (1000, 2_000), (1000, 5_000), (1000, 20_000))


def drawn(draw: random.Random, index: int, now_s: float) -> JobSpec:
    """A job with a concave curve and a deadline that is usually feasible."""
    rates, gain = [draw.uniform(1, 8)], 1.0
    for _ in range(6):
        gain *= draw.uniform(0.6, 0.98)
        rates.append(rates[-1] * (1 + gain))
    alone_s = 3600 * draw.lognormvariate(0.5, 1.0)
    return JobSpec(
        id=JobId(f"job{index}"),
        submit_s=now_s,
        iterations=alone_s * rates[0],
        curves=((DEFAULT_TYPE, ScalingCurve(tuple((1 << k, rate) for k, rate in enumerate(rates)))),),
        deadline_s=now_s + alone_s * draw.uniform(0.3, 1.5),
        requested_workers=1 << draw.randrange(5),
    )


def advanced(view: ClusterView, round_: Round, now_s: float) -> ClusterView:
    """The cluster a while after a round was carried out; jobs are kept from ending, so that the number stays."""
    jobs: dict[JobId, JobState] = {}
    for name, state in view.jobs.items():
        if any(v.job == name and not v.admitted for v in round_.verdicts):
            continue
        share = round_.plan.shares.get(name)
        counts = share.counts if share else ()
        done = min(state.done + state.spec.rate(counts) * (now_s - view.now_s), 0.95 * state.spec.iterations)
        jobs[name] = replace(
            state,
            admitted_s=view.now_s if state.admitted_s is None else state.admitted_s,
            done=done,
            counts=counts,
            placement=round_.plan.placements.get(name, ()),
            started_s=view.now_s if state.started_s is None and counts else state.started_s,
        )
    return replace(view, now_s=now_s, jobs=jobs)


def measure(policy_name: str, num_jobs: int, num_devices: int, rounds: int) -> dict[str, object]:
    """The median round."""
    draw, policy = random.Random(0), make_policy(policy_name)
    view = ClusterView(0.0, Cluster.parse(f"{num_devices // 8}x8"), {}, 0.0)
    state, index = TickState(), 0
    while len(view.jobs) < num_jobs:
        wave = [drawn(draw, index + k, 0.0) for k in range(num_jobs - len(view.jobs))]
        index += len(wave)
        view = replace(view, jobs={**view.jobs, **{spec.id: JobState(spec) for spec in wave}})
        first = tick(view, policy, state)
        state, view = first.state, advanced(view, first, 0.0)
        if index > 20 * num_jobs:
            break
    times: list[float] = []
    walls: list[float] = []
    for turn in range(1, rounds + 1):
        spec = drawn(draw, index + turn, view.now_s)
        view = replace(view, jobs={**view.jobs, spec.id: JobState(spec)})
        start, cpu = time.perf_counter(), time.process_time()
        found = tick(view, policy, state)
        times.append(1e3 * (time.process_time() - cpu))
        walls.append(1e3 * (time.perf_counter() - start))
        state, view = found.state, advanced(view, found, 60.0 * turn)
    row: dict[str, object] = {
        "jobs": len(view.jobs),
        "devices": num_devices,
        "median_ms": round(statistics.median(times), 1),
        "worst_ms": round(max(times), 1),
        "median_wall_ms": round(statistics.median(walls), 1),
    }
    progress(f"{policy_name}: {row}")
    return row


def main() -> None:
    """Measure all sizes and print the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", default="elasticflow")
    parser.add_argument("--rounds", type=int, default=11)
    options = parser.parse_args()
    rows = [measure(options.policy, jobs, devices, options.rounds) for jobs, devices in SIZES]
    value = float(str(next(r for r, size in zip(rows, SIZES, strict=True) if size == (1000, 10_000))["median_ms"]))
    report(
        benchmark="decide",
        metric=f"CPU milliseconds for one round of {options.policy}, 1,000 jobs on 10,000 devices",
        value=value,
        peer="target",
        peer_value=TARGET_MS,
        ratio=round(value / TARGET_MS, 3),
        rows=rows,
    )


if __name__ == "__main__":
    main()
