"""Real processes that die, stop or turn away in the middle of a transfer: nobody hangs, and it is known at once."""

import pytest

from tests.runtime import transfer_cases as cases
from tests.runtime.transfer_cases import Workers, copy

SOON_S = 5.0
"""On a busy machine, too: whoever does not hear of a death waits for ever, since no wait of a transfer runs out."""
BOTH = pytest.mark.parametrize("local", [True, False], ids=["shared", "socket"])


@BOTH
def test_processes_get_the_same_bits(local: bool) -> None:
    copies = [copy(0, 1, local=local), copy(0, 2, local=local)]
    with Workers(copies, {2: {"into": True}}) as workers:
        holder, fresh, filled = workers.results([0, 1, 2])
    assert holder["error"] is None
    assert (fresh["alike"], fresh["in_place"]) == (True, [])
    assert filled["alike"]
    assert {"large", "models.embed", "models.head"} <= set(filled["in_place"])


@BOTH
def test_receivers_of_a_killed_holder_know_it_at_once(local: bool) -> None:
    copies = [copy(0, 1, local=local), copy(0, 2, local=local)]
    with Workers(copies, {0: {"before": cases.die_in_the_middle}}) as workers:
        killed_at = workers.told(0)
        for found in workers.results([1, 2]):
            assert (found["error"], found["at"] - killed_at < SOON_S) == ("WorkerLost", True), found
            assert "worker 0 is gone" in found["text"]


def test_a_holder_killed_before_anybody_came_is_known_at_once() -> None:
    with Workers([copy(0, 1), copy(0, 2, local=False)], {0: {"before": cases.die_before_calling}}) as workers:
        killed_at = workers.told(0)
        for found in workers.results([1, 2]):
            assert (found["error"], found["at"] - killed_at < SOON_S) == ("WorkerLost", True), found


def test_a_worker_that_others_wait_for_is_missed_at_once() -> None:
    copies = [copy(0, 2, local=False), copy(1, 3, turn=1, local=False, after=[2])]
    with Workers(copies, {2: {"before": cases.die_in_the_middle}}) as workers:
        killed_at = workers.told(2)
        (waiting,) = workers.results([3])
        assert (waiting["error"], waiting["at"] - killed_at < SOON_S) == ("WorkerLost", True), waiting


@BOTH
def test_children_of_a_killed_holder_keep_nobody_waiting(local: bool) -> None:
    with Workers([copy(0, 1, local=local)], {0: {"before": cases.leave_a_child_and_die}}) as workers:
        killed_at = workers.told(0)
        for found in workers.results([1]):
            assert (found["error"], found["at"] - killed_at < SOON_S) == ("WorkerLost", True), found


@BOTH
def test_a_killed_receiver_does_not_hold_up_the_other(local: bool) -> None:
    copies = [copy(0, 1, local=local), copy(0, 2, local=local)]
    with Workers(copies, {1: {"before": cases.die_in_the_middle}}) as workers:
        workers.told(1)
        holder, other = workers.results([0, 2])
        assert other["alike"]
        assert (holder["error"], "worker 1 is gone" in holder["text"]) == ("WorkerLost", True)


@BOTH
@pytest.mark.parametrize("silent", [0, 1])
def test_whoever_waits_for_a_silent_peer_leaves_when_the_view_is_over(local: bool, silent: int) -> None:
    with Workers([copy(0, 1, local=local)], {silent: {"before": cases.hang_in_the_middle}}) as workers:
        workers.told(silent)
        workers.tell(1 - silent)
        (found,) = workers.results([1 - silent])
        assert found["error"] == "Outdated"
        workers.tell(silent)
        (found,) = workers.results([silent])
        assert found["error"] == "WorkerLost"


def test_a_holder_whose_receiver_never_comes_leaves_when_the_view_is_over() -> None:
    with Workers([copy(0, 1), copy(0, 2)], {1: {"before": cases.die_before_calling}}) as workers:
        workers.told(1)
        for worker in (0, 2):
            workers.tell(worker)
        assert {found["error"] for found in workers.results([0, 2])} <= {"Outdated", "WorkerLost"}


def test_processes_that_share_no_local_socket_use_tcp() -> None:
    with Workers([copy(0, 1)], {1: {"before": cases.without_local_sockets}}) as workers:
        holder, receiver = workers.results([0, 1])
        assert (holder["error"], receiver["alike"]) == (None, True)
