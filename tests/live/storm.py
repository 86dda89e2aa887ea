"""A seeded storm: faults and resizes at random steps; at the end every step has the state of an undisturbed run.

    python -m tests.live.storm --seed 0 --faults 40 --steps 600

The same seed draws the same faults at the same steps; when exactly within a step each one strikes is the machine's.
"""

import argparse
import random
import signal
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from melodeon.core.errors import MelodeonError
from tests.live.system import System, undisturbed

STEPS_PER_EPOCH = 25
MOST = 4
ACTIONS = ("kill", "kill", "kill", "two", "scale", "scale", "migrate", "preempt", "agent", "stop", "nursery")


def weather(seed: int, faults: int, steps: int) -> list[tuple[int, str, int]]:
    """(step, action, a random number for it), in order."""
    draw = random.Random(seed)
    at = sorted(draw.sample(range(5, steps - 10), faults))
    return [(step, draw.choice(ACTIONS), draw.getrandbits(16)) for step in at]


def strike(system: System, action: str, number: int) -> str:
    """Do one of them; what was done, for the record."""
    handle = system.handle
    members = sorted(system.pids().items())
    if not members:
        return f"{action}: nobody to hurt"
    worker, pid = members[number % len(members)]
    if len(members) == 1 and action in ("kill", "two", "stop"):
        action = "scale"  # with the last one gone a checkpoint would be read, which other tests are about
    if action == "kill" or (action == "two" and len(members) < 3):
        system.hurt(pid)
        return f"killed worker {worker}"
    if action == "two":
        other, other_pid = members[(number + 1) % len(members)]
        system.hurt(pid)
        system.hurt(other_pid)
        return f"killed workers {worker} and {other}"
    if action == "stop":
        system.hurt(pid, signal.SIGSTOP)
        return f"stopped worker {worker}"
    if action == "preempt":
        system.hurt(pid, signal.SIGTERM)
        return f"preempted worker {worker}"
    if action == "agent":
        agent = system.agent_pid()
        return f"killed the agent {agent}" if agent and system.hurt(agent) else "no agent"
    if action == "nursery":
        nursery = system.nursery_pid()
        return "killed the nursery" if nursery and system.hurt(nursery) else "no nursery"
    with suppress(MelodeonError):
        if action == "scale":
            size = 1 + number % MOST
            return f"scaled to {size}: {handle.scale(size).text}"
        return f"migrated worker {worker}: {handle.migrate(worker).text}"
    return f"{action} was refused"


def storm(folder: Path, seed: int, faults: int, steps: int, order: str = "tree", say: bool = False) -> int:
    """Run it; returns how many faults struck. Raises AssertionError where a state differs."""
    epochs = -(-steps // STEPS_PER_EPOCH)
    expected = undisturbed(folder, "--epochs", str(epochs), "--order", order)
    began = time.monotonic()
    arguments = ("--epochs", str(epochs), "--order", order, "--pace", "0.004")
    struck = 0
    with System(folder, "storm", *arguments, workers=2, restarts=10_000, straggler_factor=0.0) as system:
        for step, action, number in weather(seed, faults, steps):
            system.until(lambda step=step: system.last_step() >= step or system.process.poll() is not None)
            if system.process.poll() is not None:
                break
            what = strike(system, action, number)
            struck += 1
            if say:
                sys.stderr.write(f"{time.monotonic() - began:6.1f} s, step {system.last_step()}: {what}\n")
        receipt = system.well(limit_s=120).receipt()
    checked = [step for step in expected if step % 50 == 0 or step == len(expected)]
    assert len(receipt) == len(expected), f"{len(receipt)} steps of {len(expected)}"
    for step in checked:
        assert receipt[step] == expected[step], f"seed {seed}: step {step} has other bits"
    assert receipt == expected
    return struck


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--faults", type=int, default=40)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--order", default="tree")
    options = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        struck = storm(Path(folder), options.seed, options.faults, options.steps, options.order, say=True)
    print(f"seed {options.seed}: {struck} faults in {options.steps} steps, {time.monotonic() - began:.0f} s, same bits")


if __name__ == "__main__":
    main()
