"""Bugs put into the protocol on purpose, each of which a test must catch.

    python -m tests.coord.seeded_bugs            every bug, each in a fresh process; exit 1 if one survives
    python -m tests.coord.seeded_bugs NAME ...   only these

A bug is one replacement in the source of one function; the function's code is exchanged in place, so that tables and
importers see it too. A replacement that no longer fits is an error: the list cannot rot in silence.
"""

import argparse
import contextlib
import importlib
import inspect
import io
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple

SEEDS = 2500
TESTS = Path(__file__).parent


class Bug(NamedTuple):
    """`where` is `module:function` or `module:Class.method`; in its source `old` becomes `new`."""

    where: str
    old: str
    new: str
    test: str = ""
    """The test that must catch it, as `file::name`; empty: the seeds must."""


AGENT, MEMBER = "melodeon.coord.agent_state:AgentState", "melodeon.coord.member:Member"
COORD, SIM = "melodeon.coord", "tests.coord.simnet"
FRESH = "fresh = (orders.fence, orders.number) > (self.fence, self.number)"

BUGS: dict[str, Bug] = {
    "orders_of_an_older_term_are_taken": Bug(
        f"{AGENT}.on_orders", FRESH, "fresh = orders.fence != self.fence or orders.number > self.number"
    ),
    "older_orders_of_the_same_term_are_taken": Bug(
        f"{AGENT}.on_orders", FRESH, "fresh = orders.fence >= self.fence",
        "test_agent_state.py::test_older_and_doubled_orders_of_the_same_term_are_refused",
    ),
    "orders_for_an_earlier_incarnation_are_taken": Bug(
        f"{AGENT}.on_orders", 'orders.incarnation not in ("", self.incarnation)', "False"
    ),
    "a_restarted_agent_starts_its_workers_again": Bug(
        f"{AGENT}.__init__", "for worker, runs in (adopted or {}).items():", "for worker, runs in {}.items():"
    ),
    "a_gone_worker_is_listened_to_again": Bug(
        f"{AGENT}.on_status", "if charge.status.phase is Phase.GONE:", "if False:",
        "test_agent_state.py::test_nobody_comes_back_from_gone",
    ),
    "silent_workers_are_not_killed": Bug(
        f"{AGENT}.on_tick", "now - charge.heard_at >= patience", "False",
        "test_agent_state.py::test_a_silent_worker_is_killed_and_told_as_gone",
    ),
    "an_end_that_no_agent_saw_is_a_loss": Bug(
        f"{AGENT}.__init__", "(last_words or {}).get(worker, self._charges[worker].status)",
        "self._charges[worker].status",
        "test_agent_state.py::test_last_words_keep_an_end_that_no_agent_saw",
    ),
    "doubled_notices_are_taken": Bug(
        f"{MEMBER}.on_notice", "if notice.number <= self.number:", "if False:",
        "test_member.py::test_older_and_doubled_notices_are_refused",
    ),
    "an_older_generation_is_accepted": Bug(
        f"{MEMBER}.on_notice", "notice.view.generation > self.view.generation", "True",
        "test_member.py::test_a_view_of_a_lower_generation_is_refused_even_in_a_newer_notice",
    ),
    "an_unplanned_view_waits_for_the_step": Bug(f"{MEMBER}.give_up", "not view.planned or", "False or"),
    "a_worker_switches_before_all_are_armed": Bug(
        f"{MEMBER}.agreed", "lowest <= self.current", "(lowest := view.generation) <= self.current",
        "test_member.py::test_nobody_switches_before_all_are_armed",
    ),
    "leavers_are_released_before_all_entered": Bug(
        f"{COORD}.switching:settle_view", "if not all(entered", "if not any(entered"
    ),
    "leavers_have_no_seat_when_one_dies": Bug(
        f"{COORD}.views:concerned", "workers.update(dict.fromkeys(state.view.leaving))",
        "return tuple(w for w in workers if w not in state.view.leaving and w in state.workers)",
    ),
    "the_view_before_is_forgotten_too_early": Bug(
        f"{COORD}.views:concerned", "if unsettled(state) and state.view is not None:", "if False:",
        "test_master.py::test_the_loss_of_a_leaver_in_a_switch_tears_it_too",
    ),
    "a_generation_is_used_twice": Bug(
        f"{COORD}.views:propose", "state.generation += 1",
        "state.generation = (state.settled.generation if state.settled else 0) + 1",
    ),
    "a_worker_number_is_used_twice": Bug(
        f"{COORD}.views:start_worker", "worker = state.next_worker",
        "worker = next(n for n in range(state.next_worker + 1) if n not in state.workers)",
    ),
    "a_slot_is_given_away_before_its_worker_has_ended": Bug(
        f"{COORD}.placing:pursue_place", "place not in in_use(state)", "True"
    ),
    "a_lost_worker_is_replaced_anywhere": Bug(
        f"{COORD}.views:find_room", "slot in own and", "",
        "test_master_place.py::test_a_lost_worker_is_replaced_on_the_slots_of_the_job",
    ),
    "a_wish_for_slots_is_fulfilled_when_some_came": Bug(
        f"{COORD}.changes:_advance", "ok=_is_fulfilled(state, change)", "ok=True"
    ),
    "an_older_wish_for_slots_is_carried_out_too": Bug(
        f"{COORD}.changes:supersede", "older = [change for change in state.queue", "older = [change for change in []",
        "test_master_place.py::test_only_the_newest_wish_of_several_is_carried_out",
    ),
    "everybody_is_replaced_in_one_view": Bug(f"{COORD}.changes:_target", "if not stay and now:", "if False:"),
    "a_change_waits_for_slots_that_never_come": Bug(
        f"{COORD}.changes:_awaits_slots", "if count <= len(", "if True or count <= len("
    ),
    "losses_make_planned_views": Bug(
        f"{COORD}.rules:_regroup", "planned=False, reason=state.torn", "planned=True, reason=state.torn"
    ),
    "a_broken_group_is_not_made_again": Bug(
        f"{COORD}.rules:notice_broken", 'elif turn.due("broken", state.config.broken_s):', "elif False:"
    ),
    "a_newcomer_that_cannot_be_reached_keeps_its_seat": Bug(
        f"{COORD}.rules:notice_broken", "newcomers=False", "newcomers=True",
        "test_master_breaks.py::test_a_newcomer_that_cannot_be_reached_holds_nobody_up_and_has_one_more_try",
    ),
    "a_view_that_cannot_be_entered_is_tried_for_ever": Bug(
        f"{COORD}.breaks:count_break", "if change.breaks < TRIES:", "if True:"
    ),
    "an_ask_is_applied_twice": Bug(f"{COORD}.asks:take_ask", "if pending(turn, ask.id):", "if False:"),
    "answers_are_not_remembered": Bug(f"{COORD}.asks:take_ask", "if known is not None:", "if False:"),
    "an_ask_is_forgotten_when_all_are_lost": Bug(
        f"{COORD}.starting:start_again", "tell_switch(turn, at_once=True)", "state.switch = None"
    ),
    "lost_orders_are_not_repeated": Bug(
        f"{COORD}.master:Master._finish", "if behind and behind not in changed", "if False and behind not in changed"
    ),
    "doubled_reports_are_taken": Bug(
        f"{COORD}.intake:take_report",
        "if (report.incarnation, report.number) <= (agent.incarnation, agent.number):", "if False:",
        "test_master.py::test_a_report_of_an_earlier_incarnation_changes_nothing",
    ),
    "a_lost_agent_keeps_its_workers": Bug(
        f"{COORD}.intake:lose_agent", "if worker.agent == agent:", "if False:",
        "test_master.py::test_a_lost_agent_takes_its_workers_with_it_and_they_stay_gone",
    ),
    "an_end_is_taken_for_a_loss": Bug(
        f"{COORD}.intake:lose", "if info.finished or info.released or", "if info.released or",
        "test_master.py::test_the_exit_of_a_worker_that_is_done_is_no_loss",
    ),
    "another_definition_may_join": Bug(
        f"{COORD}.intake:_same_definition",
        "if (status.definition, status.virtual_workers) == (state.definition, state.virtual_workers):", "if True:",
        "test_master_changes.py::test_a_newcomer_with_another_definition_is_refused",
    ),
    "orders_leave_before_the_state_is_stored": Bug(
        f"{SIM}.agent:Term.store", "self.storing = (stored, outcome)",
        "self.storing = (stored, outcome); self.release(outcome)",
    ),
    "the_store_does_not_fence": Bug(
        f"{SIM}.store:Store._put", "good = bool(self.leader) and self.fence == fence",
        "good = True; self.written = expect",
    ),
    "the_embedded_store_does_not_fence": Bug(
        f"{COORD}.embedded_data:Data._check_fence", "entry is None or entry.created != fence.created", "False",
        "test_store.py::test_a_fence_refuses_every_write_of_an_earlier_term[embedded]",
    ),
    "a_delayed_write_undoes_a_later_one": Bug(
        f"{SIM}.store:Store._put", "self.written == expect and", "True and"
    ),
}  # fmt: skip


def inject(bug: Bug) -> None:
    """Exchange the function's code for the one with the bug."""
    module_name, _, path = bug.where.partition(":")
    target: Any = importlib.import_module(module_name)
    for name in path.split("."):
        target = inspect.getattr_static(target, name)
    function = target.fget if isinstance(target, property) else target
    assert isinstance(function, FunctionType), bug.where
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(bug.old) == 1, f"{bug.where} has {source.count(bug.old)} times {bug.old!r}: mend the bug's text"
    source = source.replace(bug.old, bug.new).removeprefix("@property\n")
    made: dict[str, Any] = {}
    exec(compile(source, f"<bug in {bug.where}>", "exec", dont_inherit=True), function.__globals__, made)
    function.__code__ = made[function.__name__].__code__


def hunt(name: str) -> str:
    """Who catches the bug, in this process; empty if nobody does."""
    bug = BUGS[name]
    inject(bug)
    catch: Callable[[Bug], str] = _by_test if bug.test else _by_seeds
    return catch(bug)


def _by_test(bug: Bug) -> str:
    import pytest

    silence = io.StringIO()
    with contextlib.redirect_stdout(silence):
        code = pytest.main(["-q", "-x", "-p", "no:cacheprovider", "-p", "no:randomly", str(TESTS / bug.test)])
    assert code in (0, 1), silence.getvalue()
    return bug.test if code == 1 else ""


def _by_seeds(_: Bug) -> str:
    from tests.coord.simnet.world import run_seed

    for seed in range(SEEDS):
        try:
            run_seed(seed)
        except Exception as problem:  # noqa: BLE001 - a crash of the master catches a bug as well as a broken promise
            return f"test_protocol.py, seed {seed}: {str(problem).splitlines()[0][:90] or type(problem).__name__}"
    return ""


def main() -> int:
    """Hunt every bug in a process of its own and print who caught it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--here", action="store_true", help="one bug, in this process")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in BUGS]
    if unknown:
        parser.error(f"{unknown[0]} is not one of {', '.join(BUGS)}")
    if options.here:
        print(hunt(options.names[0]))
        return 0
    survived = 0
    for name in options.names or BUGS:
        command = [sys.executable, "-m", "tests.coord.seeded_bugs", "--here", name]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        caught = run.stdout.strip().splitlines()[-1] if run.returncode == 0 and run.stdout.strip() else ""
        if not caught:
            survived += 1
        print(f"{name:45} {caught or 'SURVIVED ' + run.stderr[-600:]}", flush=True)
    print(f"{len(options.names or BUGS)} bugs, {survived} survived")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
