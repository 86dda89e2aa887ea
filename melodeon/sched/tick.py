"""One round: admit -> decide -> place -> diff. The simulator and the live controller run exactly this.

    view ----> admit ----> decide ----> place ----> diff ----> actions
               verdicts    shares       devices     what must change

Pure: the same view and state give the same round. Submitted jobs are judged one by one in order of submission, so that
one that cannot be admitted never takes another with it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import cast

import msgspec
from msgspec.structs import replace

from melodeon.core.cluster import Cluster
from melodeon.core.clusterview import ClusterView, JobState
from melodeon.core.jobs import JobId
from melodeon.core.plan import Action, Migrate, Placement, Plan, Reject, Resize, Share, Start, Suspend, Verdict
from melodeon.placement.place import place
from melodeon.placement.topology import topology_of
from melodeon.sched.policy import Admission, Decision, Policy
from melodeon.sched.quota import Accepted, Quotas, note


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What holds whatever the policy."""

    quotas: Quotas | None = None
    slowest: float = 0.0
    """Nodes slower than this share of full speed are not used."""
    known: frozenset[JobId] = frozenset()
    """Jobs that were accepted before and are only judged again: quotas have counted them."""


class TickState(msgspec.Struct, frozen=True):
    """What one round leaves for the next."""

    policy: object = None
    accepted: Accepted = msgspec.field(default_factory=dict)


class Round(msgspec.Struct, frozen=True):
    """What one round decided."""

    plan: Plan
    actions: tuple[Action, ...]
    verdicts: tuple[Verdict, ...]
    """One for every job that was submitted since the last round."""
    state: TickState
    wake_at: float | None


NO_RULES = Rules()


def tick(view: ClusterView, policy: Policy, state: TickState, rules: Rules = NO_RULES) -> Round:
    """Run one round."""
    cluster = view.cluster.without_stragglers(rules.slowest)
    newcomers = [job for job in view.jobs.values() if job.admitted_s is None]
    verdicts: list[Verdict] = []
    if newcomers or cluster is not view.cluster:
        view = ClusterView(view.now_s, cluster, dict(view.jobs), view.slot_s, view.overheads)
        verdicts, state = _admit(view, newcomers, policy, state, rules)
    decision = policy.decide(view, state.policy)
    _check(view, decision)
    placements = _place(view, decision.shares)
    actions = (*_rejections(verdicts), *_diff(view, decision.shares, placements))
    plan = Plan(decision.shares, placements)
    return Round(plan, actions, tuple(verdicts), TickState(decision.state, state.accepted), decision.wake_at)


def _admit(
    view: ClusterView, newcomers: list[JobState], policy: Policy, state: TickState, rules: Rules
) -> tuple[list[Verdict], TickState]:
    """Judge every submitted job; admitted ones become part of the view, the others leave it."""
    jobs = view.jobs
    assert isinstance(jobs, dict), "the round works on its own copy of the jobs"
    memory, accepted = state.policy, state.accepted
    # By the name of the method: comparing with the whole protocol takes longer than a judgement.
    judge = cast(Admission, policy).admit if hasattr(policy, "admit") else None
    verdicts: list[Verdict] = []
    for job in newcomers:
        quotas = rules.quotas if job.spec.id not in rules.known else None
        why = quotas.refuse(job, view.now_s, jobs, accepted) if quotas else None
        if why is not None:
            verdict = Verdict(job.spec.id, admitted=False, why=why)
        elif judge is not None:
            verdict, memory = judge(view, job, memory)
        else:
            verdict = Verdict(job.spec.id, admitted=True, why="this policy admits every job")
        verdicts.append(verdict)
        if verdict.admitted:
            jobs[job.spec.id] = replace(job, admitted_s=view.now_s)
            accepted = note(accepted, job.spec.user, view.now_s) if quotas else accepted
        else:
            del jobs[job.spec.id]
    return verdicts, TickState(memory, accepted)


def _check(view: ClusterView, decision: Decision) -> None:
    """A policy that gives away more than there is, or to nobody, is wrong: stop before anything moves."""
    shares, jobs = decision.shares, view.jobs
    assert shares.keys() <= jobs.keys(), f"shares for {sorted(shares.keys() - jobs.keys())}, which are not admitted"
    left = dict(view.cluster.capacity)
    for share in shares.values():
        for kind, count in share.counts:
            assert count > 0, f"{share.job!r} gets {count} {kind} devices"
            assert kind in left, f"{share.job!r} gets {kind} devices, which are not there"
            left[kind] -= count
    assert min(left.values()) >= 0, f"more devices given away than are there: {left}"


def _place(view: ClusterView, shares: Mapping[JobId, Share]) -> Mapping[JobId, Placement]:
    """Where every share goes; nothing moves when no count has changed and no node has failed."""
    jobs = view.jobs
    held = {job_id: jobs[job_id].placement for job_id in shares}
    if view.cluster.all_well:
        for job_id, share in shares.items():
            if jobs[job_id].counts != share.counts:
                break
        else:
            return held
    return place(view.cluster, held, shares.values()).placements


def _rejections(verdicts: list[Verdict]) -> Iterator[Action]:
    for verdict in verdicts:
        if not verdict.admitted:
            yield Reject(verdict.job, verdict.why, verdict.earliest_deadline_s)


def _gone(cluster: Cluster, placement: Placement) -> str:
    """Why devices must be left whoever else wants them; empty where their nodes are well."""
    if cluster.all_well:
        return ""
    nodes = topology_of(cluster).nodes_of(placement)
    return next((f"node {node.id} is down, drained or too slow" for node in nodes if not node.up), "")


def _diff(view: ClusterView, shares: Mapping[JobId, Share], placements: Mapping[JobId, Placement]) -> Iterator[Action]:
    """What must change: first what frees devices, then what takes them."""
    jobs = view.jobs
    if len(shares) < len(jobs):
        for job_id, job in jobs.items():
            if job_id not in shares and job.placement:
                gone = _gone(view.cluster, job.placement)
                left = f"{gone}, and no other devices are left for it"
                why = left if gone else "its devices are needed for jobs that go first"
                yield Suspend(job_id, job.placement, why)
    later: list[Action] = []
    for job_id, share in shares.items():
        job, placement = jobs[job_id], placements[job_id]
        if placement is job.placement:
            continue
        if not job.placement:
            later.append(Start(job_id, placement, share.why))
        elif job.counts != share.counts and dict(job.counts) != dict(share.counts):
            action = Resize(job_id, job.placement, placement, share.why)
            if share.num_devices < job.num_devices:
                yield action
            else:
                later.append(action)
        elif placement != job.placement:
            why = _gone(view.cluster, job.placement) or "moved so that free devices lie together"
            later.append(Migrate(job_id, job.placement, placement, why))
    yield from later
