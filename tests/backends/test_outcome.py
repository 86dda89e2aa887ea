import signal

import pytest

from melodeon.backends.outcome import Exit, judge


def ended(worker: int, code: int, *, told: bool = False) -> Exit:
    return Exit(worker=worker, code=code, told=told)


def error(worker: int, kind: str, text: str = "", exit_code: int = 1) -> dict[str, object]:
    return {"kind": "error", "worker": worker, "type": kind, "text": text, "exit_code": exit_code}


def test_all_well() -> None:
    assert judge([ended(1, 0), ended(0, 0)], [], cancelled=False).ok


def test_an_own_error_wins_over_lost_peers_that_ended_earlier() -> None:
    exits = [ended(0, 1), ended(2, 1, told=True), ended(1, 2, told=True)]
    errors = [error(0, "WorkerLost", "peer gone"), error(1, "UsageError", "batch_size=0 is wrong", 2)]
    outcome = judge(exits, errors, cancelled=False)
    assert (outcome.worker, outcome.exit_code, outcome.reason) == (1, 2, "batch_size=0 is wrong")


def test_a_killed_worker_wins_over_those_that_lost_it() -> None:
    outcome = judge([ended(0, 1), ended(1, -signal.SIGKILL)], [error(0, "WorkerLost", "peer gone")], cancelled=False)
    assert (outcome.worker, outcome.exit_code) == (1, 1)
    assert outcome.reason == "worker 1 was killed (SIGKILL), perhaps because the machine ran out of memory"


def test_workers_that_we_stopped_are_not_blamed() -> None:
    outcome = judge([ended(1, 3), ended(0, -signal.SIGTERM, told=True)], [], cancelled=False)
    assert (outcome.worker, outcome.reason) == (1, "worker 1 ended with exit code 3")


def test_only_lost_peers_are_named_when_nothing_else_is_known() -> None:
    outcome = judge([ended(0, 1)], [error(0, "WorkerLost", "worker 1 is gone")], cancelled=False)
    assert (outcome.worker, outcome.reason) == (0, "worker 1 is gone")


def test_a_scripts_exception_keeps_its_type() -> None:
    assert (
        judge([ended(0, 1)], [error(0, "ValueError", "no")], cancelled=False).reason
        == "worker 0 failed: ValueError: no"
    )


def test_an_exception_without_words_is_named_once() -> None:
    outcome = judge([ended(0, 1)], [error(0, "KeyError", "KeyError")], cancelled=False)
    assert outcome.reason == "worker 0 failed: KeyError"


@pytest.mark.parametrize(("code", "words"), [(-signal.SIGSEGV, "died of SIGSEGV"), (-200, "died of signal 200")])
def test_signals_are_named(code: int, words: str) -> None:
    assert judge([ended(0, code)], [], cancelled=False).reason == f"worker 0 {words}"


def test_an_error_event_cannot_turn_a_failure_into_success() -> None:
    assert judge([ended(0, 1)], [error(0, "ValueError", "no", exit_code=0)], cancelled=False).exit_code == 1


def test_cancelled_is_cancelled() -> None:
    assert judge([ended(0, -signal.SIGINT, told=True)], [], cancelled=True).exit_code == 7
