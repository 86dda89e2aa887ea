from msgspec import structs

from melodeon.core.cluster import Cluster, NodeId
from melodeon.core.clusterview import ClusterView, JobState
from melodeon.core.curve import ScalingCurve
from melodeon.core.jobs import JobId
from melodeon.core.plan import Migrate, Reject, Resize, Share, Start, Suspend
from melodeon.sched.fifo import Fifo
from melodeon.sched.policy import Decision
from melodeon.sched.quota import DAY_S, Quota, Quotas
from melodeon.sched.tick import Rules, TickState, tick
from tests.sched.draws import GPU, job, view_of

LINEAR = ScalingCurve.linear(1.0, 8)


class Fixed:
    """Gives what it is told."""

    def __init__(self, **counts: int) -> None:
        self.counts = counts

    def decide(self, view: ClusterView, state: object) -> Decision:
        shares = {JobId(n): Share(JobId(n), ((GPU, c),), "told so") for n, c in self.counts.items()}
        return Decision(shares, ("seen", state))


def after(view: ClusterView, **counts: int) -> ClusterView:
    """The view once a round has been carried out."""
    plan = tick(view, Fixed(**counts), TickState()).plan
    jobs = {
        name: structs.replace(
            state,
            admitted_s=0.0,
            counts=plan.shares[name].counts if name in plan.shares else (),
            placement=plan.placements.get(name, ()),
        )
        for name, state in view.jobs.items()
    }
    return structs.replace(view, jobs=jobs)


def start(*names: str) -> ClusterView:
    return view_of(Cluster.parse("2x4"), [JobState(job(name, 10.0, LINEAR)) for name in names])


def test_the_difference_between_two_rounds_is_the_actions() -> None:
    view = after(start("a", "b", "c", "d"), a=4, b=2, c=1)
    round_ = tick(view, Fixed(a=2, b=4, d=1), TickState("memory"))
    kinds = {action.job: type(action) for action in round_.actions}
    assert kinds == {"a": Resize, "b": Resize, "c": Suspend, "d": Start}
    assert [a.job for a in round_.actions][:2] == ["c", "a"], "what frees devices comes first"
    assert round_.state.policy == ("seen", "memory")


def test_nothing_changes_when_nothing_must() -> None:
    view = after(start("a", "b"), a=4, b=2)
    assert tick(view, Fixed(a=4, b=2), TickState()).actions == ()


def test_a_job_that_makes_room_migrates() -> None:
    view = after(after(start("a", "b", "c"), a=2, b=2, c=4), a=2, c=4)
    # a holds two devices of a node, two more are free there and none elsewhere; b wants its place back.
    moved = tick(view, Fixed(a=2, b=2, c=4), TickState())
    assert not [a for a in moved.actions if isinstance(a, Migrate)]
    spread = after(after(start("a", "b", "c", "d"), a=2, b=2, c=2, d=2), a=2, c=2)
    round_ = tick(spread, Fixed(a=2, c=2, b=4), TickState())
    assert sum(isinstance(a, Migrate) for a in round_.actions) == 1


def test_who_leaves_a_node_that_is_gone_is_told_so() -> None:
    view = after(start("a", "b"), a=4, b=2)
    assert view.jobs[JobId("a")].placement[0].start == 0
    hurt = structs.replace(view, cluster=view.cluster.with_node(NodeId("node000"), up=False))
    (moved, away) = tick(hurt, Fixed(a=4), TickState()).actions[::-1]
    assert isinstance(moved, Migrate)
    assert moved.why == "node node000 is down, drained or too slow"
    assert isinstance(away, Suspend)
    assert away.why == "its devices are needed for jobs that go first", "b's own node is well"
    (away,) = (action for action in tick(hurt, Fixed(b=2), TickState()).actions)
    assert isinstance(away, Suspend)
    assert away.why == "node node000 is down, drained or too slow, and no other devices are left for it"


def test_stragglers_are_left_when_the_rules_say_so() -> None:
    view = start("a")
    slow = structs.replace(view, cluster=view.cluster.with_node(NodeId("node000"), speed=0.3))
    for slowest, nodes in ((0.0, 0), (0.5, 4)):
        placement = tick(slow, Fixed(a=4), TickState(), Rules(slowest=slowest)).plan.placements[JobId("a")]
        assert placement[0].start == nodes


def test_quotas_are_asked_before_the_policy() -> None:
    jobs = [JobState(job(f"j{i}", 10.0, LINEAR, user="ann" if i < 3 else "bob")) for i in range(4)]
    rules = Rules(quotas=Quotas(default=Quota(jobs_per_day=2)))
    view = view_of(Cluster.parse("1x8"), jobs)
    round_ = tick(view, Fifo(), TickState(), rules)
    assert [v.admitted for v in round_.verdicts] == [True, True, False, True]
    assert [type(a) for a in round_.actions][:1] == [Reject]
    late = structs.replace(
        view_of(Cluster.parse("1x8"), [JobState(job("j9", 10.0, LINEAR, user="ann"))]), now_s=DAY_S - 1
    )
    assert not tick(late, Fifo(), round_.state, rules).verdicts[0].admitted
    one = Quotas(default=Quota(jobs_per_day=1)).refuse(
        JobState(job("j5", 10.0, LINEAR, user="bob")), 0.0, {}, {"bob": (0.0,)}
    )
    assert (
        one == "user 'bob' had 1 job accepted in the last day and may have 1: wait until the first of them is a day ago"
    )
    next_day = structs.replace(late, now_s=DAY_S + 1)
    assert tick(next_day, Fifo(), round_.state, rules).verdicts[0].admitted


def test_a_user_may_have_so_many_active_jobs() -> None:
    rules = Rules(quotas=Quotas(by_user=(("ann", Quota(active_jobs=1)),)))
    jobs = [JobState(job(f"j{i}", 10.0, LINEAR, user="ann")) for i in range(2)]
    round_ = tick(view_of(Cluster.parse("1x8"), jobs), Fifo(), TickState(), rules)
    assert [v.admitted for v in round_.verdicts] == [True, False]
    assert "user 'ann' has 1 active job and may have 1" in round_.verdicts[1].why
