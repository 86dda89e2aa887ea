"""Every phase of a step and of a view change, and in each of them a worker, an agent or the master that is killed,
stopped or cut off: the states are those of an undisturbed run, step by step.

    python -m tests.live.matrix                                 all of them, some minutes
    python -m tests.live.matrix --only view.copy --action stop

Many cases are played in one job, one after the other; a state that differs is laid to the last strike before it.
"""

import argparse
import itertools
import re
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.live.stage import FOREVER, Case, Stage
from tests.live.system import ROOT, System

ACTIONS = ("kill", "stop", "cut")
STEPS_PER_EPOCH = 25
MOST_IN_A_JOB = 16

_WRITING = ("first", "last")
_VIEWS = ("holder", "newcomer", "survivor")
_LEAVING = ("leaver", "migrated")
WORKER: dict[str, tuple[str, ...]] = {
    "worker.made": ("newcomer",),
    "worker.joined": ("newcomer",),
    "step.begin": _WRITING,
    "step.header": _WRITING,
    "step.exchange": _WRITING,
    "step.folded": _WRITING,
    "step.agreed": _WRITING,
    "step.commit": _WRITING,
    "step.update": _WRITING,
    "step.committed": _WRITING,
    "boundary.metrics": _WRITING,
    "boundary.digest": _WRITING,
    "boundary.checkpoint": ("first",),
    "boundary.left": _WRITING,
    "boundary.done": _WRITING,
    "boundary.stored": ("asked",),
    "view.ready": ("newcomer",),
    "view.notice": (*_VIEWS, *_LEAVING),
    "view.connect": _VIEWS,
    "view.met": _VIEWS,
    "view.opened": _VIEWS,
    "view.furnished": ("newcomer",),
    "view.flush": ("holder", *_LEAVING),
    "view.switch": ("holder", *_LEAVING),
    "view.connected": _VIEWS,
    "view.gathered": _VIEWS,
    "view.copy": ("holder", "newcomer"),
    "copy.go": ("newcomer",),
    "copy.admitted": ("holder",),
    "copy.given": ("holder",),
    "copy.taken": ("newcomer",),
    "view.received": ("newcomer",),
    "view.copied": _VIEWS,
    "view.seat": _VIEWS,
    "view.entered": _VIEWS,
    "view.leaving": _LEAVING,
    "view.leave": _LEAVING,
}
"""Failpoint -> the roles in which a worker passes it."""
BOTH = ("master", "other")
AGENT: dict[str, tuple[str, ...]] = {
    "agent.registered": BOTH,
    "agent.lease": BOTH,
    "agent.ask": BOTH,
    "agent.orders": BOTH,
    "agent.start": BOTH,
    "agent.notice": BOTH,
    "agent.status": BOTH,
    "agent.exit": BOTH,
    "agent.report": BOTH,
}
"""The same for agents: the one that the master runs in, and another."""
MASTER: dict[str, tuple[str, ...]] = {
    "master.elected": ("master",),
    "master.event": ("master",),
    "master.stored": ("master",),
    "master.recorded": ("master",),
    "master.ordered": ("master",),
    "master.answered": ("master",),
    "master.bereft": ("master",),
}
NURSERY: dict[str, tuple[str, ...]] = {
    "nursery.start": ("nursery",),
    "nursery.begun": ("nursery",),
    "nursery.forked": ("nursery",),
}
"""A nursery has no connection but its agent's, and is only killed."""
ENDS: dict[str, tuple[str, ...]] = {
    "view.begin": ("founder",),
    "finish.begin": ("finisher",),
    "finish.agreed": ("finisher",),
    "finish.done": ("finisher",),
    "finish.told": ("finisher",),
    "agent.over": ("ending", "abdicating"),
}
"""What a job passes once, at its beginning or at its end: one job for each."""
TABLE = WORKER | AGENT | MASTER | NURSERY | ENDS


@dataclass(frozen=True, slots=True)
class Result:
    case: Case
    failure: str = ""
    """Empty: the bits are those of an undisturbed run."""


def points() -> set[str]:
    """Every failpoint of what runs in a job's own processes."""
    found: set[str] = set()
    for path in (path for folder in ("coord", "runtime") for path in (ROOT / "melodeon" / folder).rglob("*.py")):
        found |= set(re.findall(r'failpoint\("([a-z.]+)"\)', path.read_text()))
    return found


def cases(only: str = "", actions: Sequence[str] = ACTIONS) -> list[Case]:
    """All cases whose failpoint begins with `only`."""
    return [
        Case(point, role, action)
        for action in actions
        for point, roles in TABLE.items()
        for role in roles
        if point.startswith(only) and not (role == "nursery" and action != "kill")
    ]


class Matrix:
    """Plays cases and compares."""

    def __init__(self, folder: Path, order: str = "tree", *, say: bool = False, to_the_end: bool = True) -> None:
        """`to_the_end`: a failure does not keep the rest from being played."""
        self._folder, self._order, self._say, self._to_the_end = folder, order, say, to_the_end
        self._numbers = itertools.count()
        self._expected: dict[int, str] = {}

    def play(self, wanted: Iterable[Case]) -> list[Result]:
        """All of them; those that go together in one job."""
        wanted = list(wanted)
        results: list[Result] = []
        for kind, agents in ((WORKER | NURSERY, 1), (AGENT | MASTER, 2)):
            together = [case for case in wanted if case.point in kind]
            while together:
                played, together = self._play_some(together[:MOST_IN_A_JOB], agents), together[MOST_IN_A_JOB:]
                results += played
        return results + [self._play_alone(case) for case in wanted if case.point in ENDS]

    def _play_some(self, group: Sequence[Case], agents: int) -> list[Result]:
        struck: list[tuple[int, Case]] = []
        results: list[Result] = []
        left = list(group)
        while left:
            struck.clear()
            try:
                with self._stage(*FOREVER, workers=4 if agents == 2 else 3, agents=agents) as stage:
                    while left:
                        case, began = left.pop(0), time.monotonic()
                        struck.append((stage.play(case), case))
                        self._tell(case, began, "")
                    receipt = stage.stop()
            except (AssertionError, OSError) as error:
                results.append(Result(case, str(error)))
                self._tell(case, began, str(error))
                receipt = stage.receipt()
                struck = [(step, done) for step, done in struck if done != case]
                if not self._to_the_end:
                    return results
            differs = self._differs(receipt)
            guilty = [done for step, done in struck if differs and step <= differs][-1:]
            results += [
                Result(done, f"other bits from step {differs} on" if done in guilty else "") for _, done in struck
            ]
        return results

    def _play_alone(self, case: Case) -> Result:
        began = time.monotonic()
        failure = ""
        try:
            stage = self._stage("--epochs", "2", agents=2 if case.point.startswith("agent.") else 1)
            if case.role == "founder":
                stage.arm(case.point, "0", case.action)
            with stage:
                stage.see(case)
                receipt = stage.receipt()
            differs = self._differs(receipt)
            if differs or len(receipt) != 2 * STEPS_PER_EPOCH:
                failure = f"{len(receipt)} steps, other bits from step {differs} on"
        except (AssertionError, OSError) as error:
            failure = str(error)
        self._tell(case, began, failure)
        return Result(case, failure)

    def _stage(self, *arguments: str, workers: int = 3, agents: int = 1) -> Stage:
        name = f"job{next(self._numbers)}"
        return Stage(self._folder, name, *arguments, "--order", self._order, workers=workers, agents=agents)

    def _differs(self, receipt: dict[int, str]) -> int:
        """The first step with another state than it should have; 0: none."""
        if len(receipt) > len(self._expected):
            epochs = str(-(-len(receipt) // STEPS_PER_EPOCH) + 4)
            folder = self._folder / f"undisturbed{next(self._numbers)}"
            with System(folder, "undisturbed", "--epochs", epochs, "--order", self._order, elastic=False) as system:
                self._expected = system.well(600).receipt()
        return next((step for step, digest in receipt.items() if self._expected[step] != digest), 0)

    def _tell(self, case: Case, began: float, failure: str) -> None:
        if self._say:
            verdict = failure.splitlines()[0] if failure else "passed"
            sys.stderr.write(f"{time.monotonic() - began:6.1f} s  {case!s:45} {verdict[:150]}\n")


def table(results: Sequence[Result]) -> str:
    """A row a failpoint and role, a column an action."""
    by = {(r.case.point, r.case.role, r.case.action): r for r in results}
    rows = dict.fromkeys((r.case.point, r.case.role) for r in results)
    lines = [f"{'failpoint':20} {'role':10} " + " ".join(f"{action:6}" for action in ACTIONS)]
    for point, role in rows:
        cells = [by.get((point, role, action)) for action in ACTIONS]
        marks = ["-" if cell is None else "FAILED" if cell.failure else "passed" for cell in cells]
        lines.append(f"{point:20} {role:10} " + " ".join(f"{mark:6}" for mark in marks))
    failed = [result for result in results if result.failure]
    lines += [f"\n{result.case}: {result.failure}" for result in failed]
    lines.append(f"\n{len(results)} cases, {len(results) - len(failed)} passed, {len(failed)} failed")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="NAME", help="failpoints that begin so")
    parser.add_argument("--role", default="")
    parser.add_argument("--action", choices=ACTIONS)
    parser.add_argument("--order", default="tree")
    options = parser.parse_args()
    wanted = cases(options.only, (options.action,) if options.action else ACTIONS)
    wanted = [case for case in wanted if not options.role or case.role == options.role]
    if not wanted:
        parser.error(f"no failpoint begins with {options.only!r}: see the tables in this file")
    with tempfile.TemporaryDirectory() as folder:
        results = Matrix(Path(folder), options.order, say=True).play(wanted)
    print(table(results))
    return 1 if any(result.failure for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
