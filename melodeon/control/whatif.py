"""The cluster played forward from now: when jobs will be done, and what another policy or one more job would change.

The simulator starts from the live state with the policy's own memory, and goes on by the scaling curves as they are
known. It costs about as much as the rounds that it plays, so it is only asked where there are not too many jobs.
"""

from collections.abc import Mapping
from dataclasses import replace

from msgspec.structs import replace as changed

from melodeon.control.rounds import World
from melodeon.core.clusterview import ClusterView
from melodeon.core.jobs import Goal, JobId, JobSpec
from melodeon.core.service import WhatIf, WhatIfJob
from melodeon.sched.policy import Policy
from melodeon.sched.profiled import Profiled
from melodeon.sched.tick import TickState
from melodeon.sim.engine import SimConfig, SimResult
from melodeon.sim.resumed import resumed

ASKED = 400
"""Jobs up to which somebody who asks what if is answered."""


def play(
    view: ClusterView,
    world: World,
    policy: Policy,
    memory: TickState,
    newcomers: tuple[JobSpec, ...] = (),
    *,
    record: bool = False,
) -> SimResult:
    """Go on from a view until every job is done; `record`: and keep every change on the way."""
    config = SimConfig(cluster=view.cluster, overheads=view.overheads, rules=world.rules, record=record)
    return resumed(config, view, policy, memory, newcomers).run().result()


def as_it_is(view: ClusterView, world: World, fixed: Mapping[JobId, int], memory: TickState) -> SimResult:
    """What will become of the jobs of a view if nothing else is submitted, with every change on the way."""
    return play(_measured(view), world, Profiled(inner=world.policy, fixed=fixed), memory, record=True)


def what_if(
    view: ClusterView, world: World, fixed: Mapping[JobId, int], memory: TickState, newcomer: JobSpec | None
) -> SimResult:
    """The same with one more job."""
    newcomers = (newcomer,) if newcomer is not None else ()
    return play(_measured(view), world, Profiled(inner=world.policy, fixed=fixed), memory, newcomers)


def _measured(view: ClusterView) -> ClusterView:
    """The view with every job admitted: those that are being measured go on without a promise."""
    jobs = {}
    for name, job in view.jobs.items():
        if job.admitted_s is None:
            spec = replace(job.spec, goal=Goal.SOFT) if job.spec.goal is Goal.HARD else job.spec
            job = changed(job, spec=spec, admitted_s=view.now_s)
        jobs[name] = job
    return ClusterView(view.now_s, view.cluster, jobs, view.slot_s, view.overheads)


def answer(found: SimResult, policy: str, origin: float, deadlines: Mapping[str, float | None]) -> WhatIf:
    """What came of it; deadlines are those that people wrote."""
    jobs, lengths, met, promised, last = [], [], 0, 0, found.start_s
    for outcome in found.outcomes:
        deadline_at = deadlines.get(outcome.id)
        finish_at = None if outcome.finished_s is None else outcome.finished_s + origin
        in_time = None if deadline_at is None else finish_at is not None and finish_at <= deadline_at
        promised += deadline_at is not None
        met += bool(in_time)
        if outcome.finished_s is not None:
            last = max(last, outcome.finished_s)
            lengths.append(outcome.finished_s - outcome.spec.submit_s)
        jobs.append(
            WhatIfJob(
                id=outcome.id,
                admitted=outcome.admitted,
                why=outcome.why,
                finish_at=finish_at,
                deadline_at=deadline_at,
                in_time=in_time,
            )
        )
    is_endless = any(outcome.admitted and outcome.finished_s is None for outcome in found.outcomes)
    return WhatIf(
        policy=policy,
        jobs=tuple(jobs),
        makespan_s=None if is_endless else max(0.0, last - found.start_s),
        mean_jct_s=sum(lengths) / len(lengths) if lengths else None,
        deadlines_met=met,
        deadlines=promised,
        rejected=sum(not outcome.admitted for outcome in found.outcomes),
    )
