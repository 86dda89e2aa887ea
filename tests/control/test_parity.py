"""The same script of events through the simulator and through the controller: the same plans, round for round."""

import asyncio
from pathlib import Path

import pytest

from melodeon.control.events import Judged, Planned
from melodeon.core.cluster import Cluster, DeviceType
from melodeon.core.curve import ScalingCurve
from melodeon.core.jobs import Goal, JobId, JobSpec
from melodeon.core.overhead import Overheads, Pause
from melodeon.core.plan import Migrate, Reject, Resize, Start, Suspend
from melodeon.sched.registry import make_policy
from melodeon.sim.engine import SimConfig, SimResult, Simulation
from tests.control.stage import CURVE, Stage

SCRIPT = [
    # (moment, steps, seconds to the deadline or None, soft)
    (0.0, 4000, 300.0, False),
    (5.0, 2000, None, False),
    (12.0, 3000, 90.0, False),
    (20.5, 6000, 200.0, True),
    (21.0, 60000, 60.0, False),
    (40.0, 1000, 45.0, False),
    (70.0, 2500, None, False),
    (80.0, 5000, 250.0, False),
]
SLACK_S = 1.5
"""Steps are whole in a live job, so that what follows from them is a little earlier or later."""
Move = tuple[float, str, int]
"""(moment, job, devices from then on)"""


def jobs() -> list[JobSpec]:
    curve = ((DeviceType("cpu"), ScalingCurve(tuple(CURVE.items()))),)
    return [
        JobSpec(
            id=JobId(f"j{index}-{index}"),
            submit_s=at,
            iterations=float(steps),
            curves=curve,
            deadline_s=None if due is None else at + due,
            goal=Goal.BEST_EFFORT if due is None else Goal.SOFT if soft else Goal.HARD,
            requested_workers=8,
            max_workers=8,
            virtual_workers=8,
            user="ada",
        )
        for index, (at, steps, due, soft) in enumerate(SCRIPT, start=1)
    ]


def simulated(policy: str, overheads: Overheads) -> SimResult:
    config = SimConfig(cluster=Cluster.parse("1x8:cpu"), overheads=overheads)
    return Simulation(config, jobs(), make_policy(policy)).run().result()


def moves_of(result: SimResult) -> list[Move]:
    found: list[Move] = []
    for logged in result.log:
        match logged.action:
            case Start(job=job, placement=placement) | Resize(job=job, placement=placement):
                found.append((logged.at_s, job, sum(block.size for block in placement)))
            case Suspend(job=job):
                found.append((logged.at_s, job, 0))
            case Reject() | Migrate():
                pass
    return found


async def live(folder: Path, policy: str, overheads: Overheads) -> tuple[list[Move], dict[str, float | None], set[str]]:
    async with Stage(folder, policy=policy, margin=0.0, overheads=overheads) as stage:
        began = stage.clock.now
        for index, (at, steps, due, soft) in enumerate(SCRIPT, start=1):
            await stage.until(began + at)
            fields = {} if due is None else {"deadline": f"{due}s", "on_miss": "soft" if soft else "reject"}
            await stage.submit(f"j{index}", steps, **fields)
        await stage.after(5000)
        moves: list[Move] = []
        rejected: set[str] = set()
        held: dict[str, int] = {}
        for entry in stage.controller.engine.store.events(0, None, 10_000):
            fact = entry.fact
            if isinstance(fact, Judged) and not fact.admitted:
                rejected.add(fact.job)
            if isinstance(fact, Planned):
                count = sum(number for _, number in fact.counts)
                if held.get(fact.job) != count:
                    moves.append((entry.at - began, fact.job, count))
                held[fact.job] = count
        ends = {job.id: job.finished_at and job.finished_at - began for job in stage.controller.jobs()}
        return moves, ends, rejected


@pytest.mark.parametrize("policy", ["elasticflow", "edf", "fifo", "elastic-fifo", "edf-elastic", "edf-admission"])
@pytest.mark.parametrize("pause", [0.0, 2.0])
def test_the_controller_decides_as_the_simulator_does(tmp_path: Path, policy: str, pause: float) -> None:
    overheads = Overheads(default=Pause(base_s=pause, large_s=pause, connect_s=0.0))
    expected = simulated(policy, overheads)
    moves, ends, rejected = asyncio.run(live(tmp_path, policy, overheads))
    assert rejected == {o.id for o in expected.outcomes if not o.admitted}
    planned = moves_of(expected)
    assert [(job, count) for _, job, count in moves] == [(job, count) for _, job, count in planned]
    assert [at for at, _, _ in moves] == pytest.approx([at for at, _, _ in planned], abs=SLACK_S)
    for outcome in expected.outcomes:
        if outcome.finished_s is not None:
            assert ends[outcome.id] == pytest.approx(outcome.finished_s, abs=SLACK_S)
