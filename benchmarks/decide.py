"""How long one round takes (admit, decide, place, diff) with many jobs on many devices.

Jobs are drawn at random on eight-device nodes until the wanted number is admitted; each measured round then has one
newcomer, all jobs have moved on by a minute, and everything is planned again. Medians of CPU time, since machines may
be shared; wall time stands beside it. The target is 100 ms for 1,000 jobs on 10,000 devices under ElasticFlow.

    python benchmarks/decide.py [--policy NAME] [--rounds N] [--plot FILE.svg]
"""

import random
import statistics
import time
from pathlib import Path

from _common import arguments, at_most, progress, report
from msgspec import structs

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
        jobs[name] = structs.replace(
            state,
            admitted_s=view.now_s if state.admitted_s is None else state.admitted_s,
            done=done,
            counts=counts,
            placement=round_.plan.placements.get(name, ()),
            started_s=view.now_s if state.started_s is None and counts else state.started_s,
        )
    return structs.replace(view, now_s=now_s, jobs=jobs)


def measure(policy_name: str, num_jobs: int, num_devices: int, rounds: int) -> dict[str, object]:
    """The median round."""
    draw, policy = random.Random(0), make_policy(policy_name)
    view = ClusterView(0.0, Cluster.parse(f"{num_devices // 8}x8"), {}, 0.0)
    state, index = TickState(), 0
    while len(view.jobs) < num_jobs:
        wave = [drawn(draw, index + k, 0.0) for k in range(num_jobs - len(view.jobs))]
        index += len(wave)
        view = structs.replace(view, jobs={**view.jobs, **{spec.id: JobState(spec) for spec in wave}})
        first = tick(view, policy, state)
        state, view = first.state, advanced(view, first, 0.0)
        if index > 20 * num_jobs:
            break
    times: list[float] = []
    walls: list[float] = []
    for turn in range(1, rounds + 1):
        spec = drawn(draw, index + turn, view.now_s)
        view = structs.replace(view, jobs={**view.jobs, spec.id: JobState(spec)})
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


def drawing(rows: list[dict[str, object]]) -> str:
    """Two curves from zero: the median round against jobs (10,000 devices) and against devices (1,000 jobs)."""
    figures = [(float(str(row["jobs"])), float(str(row["devices"])), float(str(row["median_ms"]))) for row in rows]
    by_jobs = sorted((jobs, ms) for jobs, devices, ms in figures if devices == 10_000)
    by_devices = sorted((devices, ms) for jobs, devices, ms in figures if 900 < jobs < 1100)
    top = max(TARGET_MS, *(ms for _, _, ms in figures)) * 1.1
    panels = _panel(by_jobs, "jobs on 10,000 devices", top, 50) + _panel(by_devices, "devices, 1,000 jobs", top, 400)
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 740 300" font-family="sans-serif" font-size="12">'
        f'<rect width="740" height="300" fill="white"/>{panels}</svg>\n'
    )


def _panel(points: list[tuple[float, float]], label: str, top: float, left: int) -> str:
    width, height, base = 290, 220, 250
    right = max(x for x, _ in points)
    at = [(left + width * x / right, base - height * ms / top) for x, ms in points]
    target = base - height * TARGET_MS / top
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
    drawn = [
        f'<path d="M{left} {base - height}V{base}H{left + width}" fill="none" stroke="black"/>',
        f'<path d="M{left} {target:.1f}H{left + width}" stroke="#999" stroke-dasharray="4"/>',
        f'<text x="{left + 4}" y="{target - 4:.1f}" fill="#666">target {TARGET_MS:g} ms</text>',
        f'<polyline points="{line}" fill="none" stroke="#1f6feb" stroke-width="2"/>',
        f'<text x="{left + width / 2}" y="{base + 38}" text-anchor="middle">{label}</text>',
        f'<text x="{left}" y="{base - height - 8}">CPU ms a round</text>',
    ]
    for (x, y), (count, ms) in zip(at, points, strict=True):
        drawn.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="#1f6feb"/>')
        drawn.append(f'<text x="{x:.1f}" y="{y - 8:.1f}" text-anchor="middle">{ms:g}</text>')
        drawn.append(f'<text x="{x:.1f}" y="{base + 18}" text-anchor="middle">{count:,.0f}</text>')
    return "".join(drawn)


def main() -> None:
    """Measure all sizes and print the report."""
    parser = arguments(__doc__)
    parser.add_argument("--policy", default="elasticflow")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--plot", type=Path, help="draw the growth with jobs and with devices as SVG")
    options = parser.parse_args()
    rows = [measure(options.policy, jobs, devices, options.rounds) for jobs, devices in SIZES]
    if options.plot:
        options.plot.write_text(drawing(rows))
        progress(f"drawn to {options.plot}")
    value = float(str(next(r for r, size in zip(rows, SIZES, strict=True) if size == (1000, 10_000))["median_ms"]))
    report(
        benchmark="decide",
        metric=f"CPU milliseconds for one round of {options.policy}, 1,000 jobs on 10,000 devices",
        value=value,
        peer="target",
        peer_value=TARGET_MS,
        ratio=round(value / TARGET_MS, 3),
        rows=rows,
        bounds=[at_most("milliseconds a round", value, TARGET_MS)],
        check=options.check,
    )


if __name__ == "__main__":
    main()
