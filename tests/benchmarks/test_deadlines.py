from dataclasses import replace

from _sched import CLUSTERS, PHILLY_LARGE, PHILLY_SMALL, POLLUX, TESTBED
from deadlines import FIRST_400, GENERATED, PEER, runs_of

from melodeon.sched.registry import POLICIES

CASES = (TESTBED, POLLUX, PHILLY_SMALL, PHILLY_LARGE, GENERATED, *FIRST_400, *CLUSTERS)


def test_every_figure_of_the_peer_stands_beside_a_run() -> None:
    for case in CASES:
        names = {run.name for policy in POLICIES for run in runs_of(case, policy, 60.0)}
        assert {name.removesuffix(" repaired") for name in PEER.get(case.name, {})} <= names
    assert set(PEER) <= {case.name for case in CASES}


def test_long_slots_are_run_only_where_the_peer_has_a_figure_of_them() -> None:
    assert [(run.name, run.slot_s) for run in runs_of(POLLUX, "edf-elastic", 60.0)] == [
        ("edf-elastic", 60.0),
        ("edf-elastic(no pauses)", 60.0),
    ]
    assert [(run.name, run.slot_s) for run in runs_of(TESTBED, "edf-elastic", 60.0)][2:] == [
        ("edf-elastic, 240 s", 240.0),
        ("edf-elastic(no pauses), 240 s", 240.0),
    ]
    assert len(runs_of(replace(TESTBED, name="nobody ran this"), "edf-elastic", 60.0)) == 2
