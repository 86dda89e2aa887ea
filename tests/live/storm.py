"""A seeded storm: faults and resizes at random steps; at the end every step has the state of an undisturbed run.

    python -m tests.live.storm --seed 0 --faults 40 --steps 600
    python -m tests.live.storm --order ddp --rest 0.3 --leave-every 6       # strikes between epochs, too

The same seed draws the same faults at the same steps; when exactly within a step each one strikes is the machine's.
"""

import argparse
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from melodeon.core.errors import MelodeonError, NotFound
from tests.live.system import System, undisturbed

STEPS_PER_EPOCH = 25
VIRTUAL_WORKERS = 6
MOST = 4
PACE_S = 0.02
"""What a virtual worker's part of a step lasts at least: so slow that the faults strike before the job is over."""
ACTIONS = ("kill", "kill", "kill", "two", "scale", "scale", "migrate", "preempt", "agent", "stop", "nursery")


Weather = Sequence[tuple[int, str, int]]
"""(step, action, a random number for it), in order."""


def weather(seed: int, faults: int, steps: int, actions: Sequence[str] = ACTIONS) -> Weather:
    """Drawn for a job of so many steps, in the first four fifths of them."""
    draw = random.Random(seed)
    at = sorted(draw.sample(range(5, steps * 4 // 5), faults))
    return [(step, draw.choice(actions), draw.getrandbits(16)) for step in at]


class Storm:
    """Strikes a job; the last worker that holds the state is spared: what follows its loss, other tests are about."""

    def __init__(self, system: System) -> None:
        self._system = system
        self._hurt: set[int] = set()
        """Processes that were killed, stopped or told to go."""

    def healthy(self) -> list[tuple[int, int]]:
        """(worker, process) of those that train and were left alone."""
        return [(worker, pid) for worker, pid in sorted(self._system.pids().items()) if pid not in self._hurt]

    def strike(self, action: str, number: int) -> str:
        """Do one of them; what was done, for the record."""
        self._system.until(lambda: bool(self.healthy()))
        members = self.healthy()
        if len(members) == 1 and action in ("kill", "two", "stop"):
            action = "scale"
        worker, pid = members[number % len(members)]
        if action in ("kill", "stop", "preempt") or (action == "two" and len(members) < 3):
            signals = {"stop": signal.SIGSTOP, "preempt": signal.SIGTERM}
            self._hurt.add(pid)
            self._system.hurt(pid, signals.get(action, signal.SIGKILL))
            return f"{action}: worker {worker}"
        if action == "two":
            other, other_pid = members[(number + 1) % len(members)]
            self._hurt |= {pid, other_pid}
            self._system.hurt(pid)
            self._system.hurt(other_pid)
            return f"kill: workers {worker} and {other}"
        if action in ("agent", "nursery"):
            find = self._system.agent_pid if action == "agent" else self._system.nursery_pid
            return f"kill: the {action}: {self._system.hurt_when_there(find)}"
        try:
            if action == "scale":
                return f"scale: {self._system.handle.scale(1 + number % MOST).text}"
            return f"migrate: {self._system.handle.migrate(worker).text}"
        except MelodeonError as refused:  # a change that a loss has overtaken
            return f"{action}: {refused}"


def storm(
    folder: Path,
    seed: int,
    faults: int,
    steps: int,
    order: str = "tree",
    *,
    pace_s: float = PACE_S,
    rest_s: float = 0.0,
    leave_every: int = 0,
    say: bool = False,
) -> tuple[dict[int, str], dict[int, str]]:
    """Run it: the receipt of the job, and that of an undisturbed one. Fails where the job was over before the storm.

    `rest_s` lie between two epochs; with `leave_every` each is left by `break` after so many steps.
    """
    epochs = -(-steps // (leave_every or STEPS_PER_EPOCH))
    loop = ("--epochs", str(epochs), "--order", order, "--leave-every", str(leave_every))
    expected = undisturbed(folder, *loop, limit_s=60 + steps / 20)
    arguments = (*loop, "--pace", str(pace_s), "--rest", str(rest_s))
    with System(folder, "storm", *arguments, workers=2, restarts=10_000, straggler_factor=0.0) as system:
        struck = weather(seed, faults, steps)
        slowest_s = pace_s + rest_s / (leave_every or STEPS_PER_EPOCH) / VIRTUAL_WORKERS
        return weathered(system, Storm(system).strike, struck, steps=steps, pace_s=slowest_s, say=say), expected


def weathered(
    system: System, strike: Callable[[str, int], str], weather: Weather, *, steps: int, pace_s: float, say: bool
) -> dict[int, str]:
    """Strike a job of so many steps; its receipt, once it has ended well."""
    began = time.monotonic()
    for struck, (step, action, number) in enumerate(weather):
        try:
            system.reach(step)
            what = strike(action, number)
        except NotFound as over:
            raise AssertionError(
                f"the job was over after {struck} of {len(weather)} faults: a larger pace gives them the time"
            ) from over
        if say:
            sys.stderr.write(f"{time.monotonic() - began:6.1f} s, step {system.last_step()}: {what}\n")
    # After the last fault one worker may be left to do all that remains.
    alone_s = (steps - system.last_step()) * VIRTUAL_WORKERS * pace_s
    receipt = system.well(limit_s=180 + 2 * alone_s).receipt()
    again = system.events("restart")
    assert not again, f"somebody always had the state, and the job began again: {again}"
    return receipt


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--faults", type=int, default=40)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--order", default="tree")
    parser.add_argument("--pace", type=float, default=PACE_S, help="more on a busy machine, so that all faults strike")
    parser.add_argument("--rest", type=float, default=0.0, help="seconds between two epochs")
    parser.add_argument("--leave-every", type=int, default=0, help="steps after which an epoch is left by `break`")
    options = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        receipt, expected = storm(
            Path(folder),
            options.seed,
            options.faults,
            options.steps,
            options.order,
            pace_s=options.pace,
            rest_s=options.rest,
            leave_every=options.leave_every,
            say=True,
        )
    seconds = time.monotonic() - began
    differs = next((step for step in expected if receipt.get(step) != expected[step]), None)
    found = "same bits" if receipt == expected else f"{len(receipt)} steps, other bits from step {differs} on"
    print(f"seed {options.seed}: {options.faults} faults in {options.steps} steps, {seconds:.0f} s, {found}")
    return 0 if receipt == expected else 1


if __name__ == "__main__":
    sys.exit(main())
