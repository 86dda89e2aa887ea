"""Jobs, clusters and views for tests, written out or drawn."""

from collections.abc import Mapping

from hypothesis import strategies as st

from melodeon.core.cluster import DEFAULT_TYPE, Cluster, DeviceType
from melodeon.core.clusterview import ClusterView, JobState
from melodeon.core.curve import ScalingCurve
from melodeon.core.jobs import Goal, JobId, JobSpec
from melodeon.core.overhead import Overheads, Pause
from melodeon.sched.policy import Policy
from melodeon.sched.tick import TickState, tick

GPU = DEFAULT_TYPE


def concave(first: float, shares: list[float]) -> ScalingCurve:
    """Each doubling adds at most what the doubling before would have added for as many devices."""
    rates, gain = [first], 1.0
    for share in shares:
        gain *= share
        rates.append(rates[-1] * (1 + gain))
    return ScalingCurve(tuple((1 << k, rate) for k, rate in enumerate(rates)))


def job(name: str, iterations: float, curve: ScalingCurve, **values: object) -> JobSpec:
    deadline = values.pop("deadline_s", None)
    goal = values.pop("goal", Goal.BEST_EFFORT if deadline is None else Goal.HARD)
    return JobSpec(
        id=JobId(name),
        iterations=iterations,
        curves=((GPU, curve),),
        deadline_s=deadline,  # type: ignore[arg-type]
        goal=goal,  # type: ignore[arg-type]
        **values,  # type: ignore[arg-type]
    )


curves = st.builds(concave, st.floats(0.5, 4.0), st.lists(st.floats(0.3, 1.0), max_size=6))

overheads = st.one_of(
    st.just(Overheads.none()),
    st.builds(
        lambda base, connect, first: Overheads(default=Pause(base_s=base, connect_s=connect), first_start=first),
        st.floats(0.0, 40.0),
        st.floats(0.0, 10.0),
        st.booleans(),
    ),
)


@st.composite
def job_lists(draw: st.DrawFn, most: int = 14, hard_only: bool = False) -> list[JobSpec]:
    """Jobs that arrive within two hours, some of them too tight to be met."""
    specs = []
    for index in range(draw(st.integers(1, most))):
        curve = draw(curves)
        submit = float(draw(st.integers(0, 7200)))
        alone = float(draw(st.integers(60, 20_000)))
        goal = Goal.HARD if hard_only else draw(st.sampled_from([Goal.HARD, Goal.HARD, Goal.SOFT, Goal.BEST_EFFORT]))
        tightness = draw(st.floats(0.1, 2.0))
        specs.append(
            job(
                f"j{index}",
                alone * curve.rate(1),
                curve,
                submit_s=submit,
                deadline_s=None if goal is Goal.BEST_EFFORT else submit + alone * tightness,
                goal=goal,
                requested_workers=1 << draw(st.integers(0, 4)),
                model=draw(st.sampled_from(["bert", "gpt2"])),
                user=draw(st.sampled_from(["ann", "bob"])),
                weight=draw(st.sampled_from([1.0, 2.0])),
            )
        )
    return specs


@st.composite
def bounded_jobs(draw: st.DrawFn, most: int = 8) -> list[JobSpec]:
    """Jobs with a least and a most, for one or both of the types A and B; some ask for less than their least."""
    specs = []
    for index in range(draw(st.integers(1, most))):
        kinds = draw(st.sampled_from([("A",), ("B",), ("A", "B"), ("B", "A")]))
        own = tuple((typed(kind), draw(curves)) for kind in kinds)
        least, submit = draw(st.sampled_from([1, 1, 2, 3, 4])), float(draw(st.integers(0, 4000)))
        alone, goal = float(draw(st.integers(60, 8000))), draw(st.sampled_from(list(Goal)))
        specs.append(
            JobSpec(
                id=JobId(f"j{index}"),
                iterations=alone * own[0][1].rate(1),
                curves=own,
                submit_s=submit,
                deadline_s=None if goal is Goal.BEST_EFFORT else submit + alone * draw(st.floats(0.3, 2.0)),
                goal=goal,
                requested_workers=draw(st.sampled_from([1, 2, 3, 4, 8])),
                min_workers=least,
                max_workers=draw(st.sampled_from([None, least, 8])),
                weight=draw(st.sampled_from([1.0, 2.0])),
            )
        )
    return specs


clusters = st.builds(lambda nodes, width: Cluster.parse(f"{nodes}x{1 << width}"), st.integers(1, 5), st.integers(0, 3))


def view_of(
    cluster: Cluster, jobs: Mapping[JobId, JobState] | list[JobState], now_s: float = 0.0, **values: object
) -> ClusterView:
    found = jobs if isinstance(jobs, Mapping) else {state.spec.id: state for state in jobs}
    return ClusterView(now_s, cluster, found, **values)  # type: ignore[arg-type]


def first_shares(policy: Policy, jobs: list[JobSpec], cluster: str = "1x8") -> dict[str, int]:
    """Devices by job when all are submitted at once."""
    round_ = tick(view_of(Cluster.parse(cluster), [JobState(spec) for spec in jobs]), policy, TickState())
    return {name: share.num_devices for name, share in round_.plan.shares.items()}


def typed(kind: str) -> DeviceType:
    return DeviceType(kind)
