"""Snapshots for what-if: a fork goes its own way from a moment, and the trunk never notices."""

import pytest

from melodeon.core.cluster import Cluster
from melodeon.core.curve import ScalingCurve
from melodeon.core.jobs import JobSpec
from melodeon.core.overhead import Overheads
from melodeon.sched.edf import Edf
from melodeon.sched.elasticflow import ElasticFlow
from melodeon.sched.fifo import Fifo
from melodeon.sched.quota import Quota, Quotas
from melodeon.sched.tick import Rules
from melodeon.sim.engine import SimConfig, SimResult, Simulation
from melodeon.sim.incidents import Incident
from tests.sched.draws import job

LINEAR = ScalingCurve.linear(1.0, 8)


def config(cluster: str = "1x2") -> SimConfig:
    return SimConfig(cluster=Cluster.parse(cluster), overheads=Overheads.none())


def ends(result: SimResult) -> dict[str, float | None]:
    return {o.id: o.finished_s for o in result.outcomes}


def two_jobs() -> list[JobSpec]:
    return [
        job("a", 100.0, LINEAR, deadline_s=300.0, requested_workers=1),
        job("b", 100.0, LINEAR, submit_s=60.0, deadline_s=290.0, requested_workers=1),
    ]


def test_a_fork_that_changes_nothing_ends_as_the_trunk_does() -> None:
    straight = Simulation(config(), two_jobs(), ElasticFlow()).run().result()
    trunk = Simulation(config(), two_jobs(), ElasticFlow()).run(until_s=50.0)
    branch = trunk.fork()
    assert ends(branch.run().result()) == pytest.approx(ends(straight))
    assert trunk.now_s == 50.0, "running the branch does not move the trunk"
    assert ends(trunk.run().result()) == pytest.approx(ends(straight))


def test_forks_under_several_policies_share_one_past() -> None:
    trunk = Simulation(config(), two_jobs(), Fifo()).run(until_s=50.0)
    past = trunk.result().log
    found = {type(policy).__name__: trunk.fork(policy=policy).run().result() for policy in (Fifo(), Edf())}
    for result in found.values():
        assert result.log[: len(past)] == past
    assert ends(found["Fifo"]) != ends(found["Edf"])
    assert trunk.result().log == past


def test_a_fork_under_other_rules_refuses_what_the_trunk_admits() -> None:
    trunk = Simulation(config(), two_jobs(), Fifo()).run(until_s=50.0)
    strict = trunk.fork(rules=Rules(quotas=Quotas(default=Quota(active_jobs=1)))).run().result()
    assert [o.admitted for o in strict.outcomes] == [True, False]
    assert [o.admitted for o in trunk.run().result().outcomes] == [True, True]


def test_a_fork_can_be_forked() -> None:
    first = Simulation(config(), two_jobs(), Fifo()).run(until_s=20.0).fork().run(until_s=70.0)
    second = first.fork(policy=Edf())
    straight = Simulation(config(), two_jobs(), Fifo()).run().result()
    second.run()
    assert ends(first.run().result()) == pytest.approx(ends(straight))


def test_what_if_one_more_job_were_submitted() -> None:
    trunk = Simulation(config(), two_jobs(), Fifo()).run(until_s=50.0)
    extra = job("c", 10.0, LINEAR, submit_s=55.0, deadline_s=400.0, requested_workers=1)
    branch = trunk.fork(jobs=[extra])
    assert set(ends(branch.run().result())) == {"a", "b", "c"}
    assert set(ends(trunk.run().result())) == {"a", "b"}


def test_what_if_a_node_failed() -> None:
    trunk = Simulation(config("2x1"), two_jobs(), Fifo()).run(until_s=50.0)
    nodes = trunk.cluster.nodes
    down = [Incident(70.0, node.id, up=False) for node in nodes] + [Incident(90.0, node.id) for node in nodes]
    branch = trunk.fork(incidents=down).run().result()
    assert branch.config.incidents == tuple(sorted(down)), "the record works losses out from them"
    assert ends(branch)["a"] == pytest.approx(120.0)
    assert ends(trunk.run().result())["a"] == pytest.approx(100.0)
