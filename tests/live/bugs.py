"""Bugs put into workers, nurseries and agents on purpose, each of which a test must catch.

    python -m tests.live.bugs            every bug, its test in a fresh process; exit 1 if one survives
    python -m tests.live.bugs NAME ...   only these

A bug is one replacement in the source of one module, made as every process of the test imports it. A replacement that
no longer fits is an error: the list cannot rot in silence.
"""

import argparse
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

TESTS = Path(__file__).parents[1]
HOOK = Path(__file__).with_name("hook")

VIEWS = "runtime/live/test_views.py"
BETWEEN = "runtime/live/test_between.py::test_a_worker_is_lost_outside_a_pass_while_a_newcomer_connects"
IN_A_STEP = f"{VIEWS}::test_a_worker_is_killed_inside_a_step"
SURVIVAL = "live/test_survival.py"
WORKERS = "live/test_matrix.py::test_workers_are_hurt_in_a_step_and_in_a_view_change"
AGENTS = "live/test_matrix.py::test_an_agent_and_the_master_are_hurt_and_come_back"


class Bug(NamedTuple):
    """In the source of `module`, `old` becomes `new`; `test` must fail then."""

    module: str
    old: str
    new: str
    test: str


BUGS: dict[str, Bug] = {
    "a_step_is_committed_before_it_is_reduced": Bug(
        "melodeon.runtime.reduce",
        "header = self.group.wait(self.group.carrier.submit(self._exchange_header, mine))",
        "header = Header(tuple(used), finite, fingerprint >= 0, buffer_bytes, signals)",
        f"{VIEWS}::test_grows_shrinks_and_migrates[tree]",
    ),
    "a_step_is_not_dropped_when_a_peer_is_lost": Bug(
        "melodeon.runtime.beat", "            turn.dropped = True\n", "", f"{IN_A_STEP}[step.exchange-tree]"
    ),
    "the_samples_of_a_dropped_step_are_skipped": Bug(
        "melodeon.runtime.loader",
        "                    course.drop()",
        "                    self.cursor += 1\n                    course.drop()",
        f"{IN_A_STEP}[step.exchange-tree]",
    ),
    "buffers_are_not_rewound": Bug(
        "melodeon.runtime.engine",
        "        self.reducer.abandon()\n        self.buffers.drop()\n",
        "        self.reducer.abandon()\n",
        f"{IN_A_STEP}[step.exchange-tree]",
    ),
    "random_streams_are_not_rewound": Bug(
        "melodeon.runtime.engine", "            self.streams.give_up()", "            pass",
        f"{IN_A_STEP}[step.exchange-ddp]",
    ),
    "who_is_behind_keeps_its_state": Bug(
        "melodeon.runtime.views", "if standing.step != top]", "if standing.step == NOTHING]",
        f"{SURVIVAL}::test_a_leaver_that_is_asked_back_takes_the_newer_state",
    ),
    "a_leaver_does_not_wait_for_its_release": Bug(
        "melodeon.runtime.views", '        failpoint("view.leaving")\n',
        '        failpoint("view.leaving")\n        self._leave()\n',
        f"{SURVIVAL}::test_a_leaver_holds_its_state_until_it_is_released",
    ),
    "doubled_notices_are_taken": Bug(
        "melodeon.runtime.link",
        "if not self.member.on_notice(notice):", "if not self.member.on_notice(notice) and False:",
        f"{SURVIVAL}::test_a_worker_refuses_a_notice_that_it_has_overtaken",
    ),
    "an_older_view_is_taken": Bug(
        "melodeon.coord.member", "notice.view.generation > self.view.generation", "True",
        f"{SURVIVAL}::test_a_worker_refuses_an_older_view",
    ),
    "the_alarm_does_not_sound": Bug(
        "melodeon.runtime.link", "            if generation < view.generation:\n", "            if False:\n",
        f"{SURVIVAL}::test_a_peer_that_only_falls_silent_holds_nobody_up",
    ),
    "the_receipt_is_appended_to": Bug(
        "melodeon.runtime.records", "os.O_WRONLY | os.O_CREAT", "os.O_WRONLY | os.O_APPEND | os.O_CREAT", WORKERS
    ),
    "a_new_writer_does_not_write_what_the_last_one_left": Bug(
        "melodeon.runtime.journal", "            self._receipts.rewrite()\n", "", WORKERS
    ),
    "a_view_that_cannot_be_connected_is_kept_to_oneself": Bug(
        "melodeon.runtime.views", "self._tell_failure(view, self._next.connection.failure)", "pass",
        f"{VIEWS}::test_a_planned_view_that_cannot_be_connected_is_told_of_while_training_goes_on",
    ),
    "a_newcomer_waits_in_a_planned_view_that_was_replaced": Bug(
        "melodeon.runtime.link", "        view = self.member.give_up\n        if view is None:",
        "        view = self.member.give_up\n        if view is None or view.planned:",
        f"{VIEWS}::test_a_planned_view_that_cannot_be_connected_is_told_of_while_training_goes_on[view.connect]",
    ),
    "an_interrupted_boundary_is_forgotten": Bug(
        "melodeon.runtime.elastic",
        "            self._lost = True\n        else:\n            self._due = None",
        "            self._lost = True\n            self._due = None\n        else:\n            self._due = None",
        WORKERS,
    ),
    "who_has_left_the_pass_does_its_boundary_again": Bug(
        "melodeon.runtime.views", "None if any(standing.beyond for standing in tops) else undone.due", "undone.due",
        f"{VIEWS}::test_some_are_beyond_the_pass_when_another_is_held_back_at_its_end",
    ),
    "a_newcomer_draws_again_what_a_pass_draws_at_its_start": Bug(
        "melodeon.runtime.course", "        if place != elsewhere:\n", "        if True:\n",
        f"{BETWEEN}[between-epochs-with-streams-of-each]",
    ),
    "a_newcomer_does_a_boundary_after_a_break_in_its_next_pass": Bug(
        "melodeon.runtime.elastic",
        "        if self._due is not None:\n            self.keep_up()",
        "        if False:\n            self.keep_up()",
        f"{BETWEEN}[after-a-break]",
    ),
    "a_script_goes_on_with_what_a_break_left_undone": Bug(
        "melodeon.runtime.course",
        "                self.elastic.keep_up()\n                self.elastic.run_on()\n",
        "                self.elastic.run_on()\n",
        f"{VIEWS}::test_what_a_break_left_open_is_done_before_the_script_goes_on",
    ),
    "silence_is_not_heard": Bug(
        "melodeon.coord.agent_workers", "if due is not None and now >= max(due, self._judge_after):", "if False:",
        WORKERS,
    ),
    "workers_that_were_given_up_live_on": Bug(
        "melodeon.coord.agent_state",
        "        if not self.number:\n            return ()", "        if True:\n            return ()",
        AGENTS,
    ),
    "decisions_are_not_stored": Bug(
        "melodeon.coord.agent_master", "        if outcome.dirty:\n", "        if False:\n", AGENTS
    ),
}  # fmt: skip


def check(bug: Bug) -> None:
    """The bug's text is in the source, once."""
    spec = importlib.util.find_spec(bug.module)
    assert spec is not None, f"there is no module {bug.module}"
    assert spec.origin is not None
    count = Path(spec.origin).read_text().count(bug.old)
    assert count == 1, f"{bug.module} has {count} times {bug.old!r}: mend the bug's text"


def hunt(name: str) -> tuple[bool, str]:
    """Whether the bug's test catches it, and what that test said."""
    bug = BUGS[name]
    check(bug)
    env = {
        **os.environ,
        "MELODEON_SEEDED_BUG": json.dumps(bug._asdict()),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(HOOK), os.environ.get("PYTHONPATH")])),
    }
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", ""]
        run = subprocess.run(
            [*command, "--basetemp", f"{folder}/t", str(TESTS / bug.test)],
            env=env,
            cwd=TESTS.parent,
            capture_output=True,
            text=True,
            check=False,
        )
    assert run.returncode in (0, 1), run.stdout + run.stderr
    said = [line[1:].strip() for line in run.stdout.splitlines() if line.startswith("E  ")]
    # Of a played matrix, not the table but the sentence of the case that failed.
    why = next((line for line in said if re.search(" (kill|stop|cut): ", line)), said[0] if said else "")
    return run.returncode == 1, f"{bug.test.rpartition('/')[2]}: {why[:90]}"


def main() -> int:
    """Hunt every bug and print who caught it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in BUGS]
    if unknown:
        parser.error(f"{unknown[0]} is not one of {', '.join(BUGS)}")
    survived = 0
    for name in options.names or BUGS:
        caught, said = hunt(name)
        survived += not caught
        print(f"{name:50} {said if caught else 'SURVIVED'}", flush=True)
    print(f"{len(options.names or BUGS)} bugs, {survived} survived")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
