"""A seeded storm over several machines: workers, agents, power and cables; every step has the undisturbed state.

    python -m tests.live.storm_hosts --seed 0 --faults 40 --steps 600

The launcher's machine is spared: its loss ends a job that has no etcd, and one that has is a test's. Gradients cross
between machines over sockets. Needs root: the machines are made of the kernel's namespaces.
"""

import argparse
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from melodeon.core.errors import MelodeonError
from tests.live.hosted import Hosted
from tests.live.hosts import Host, Hosts, inside
from tests.live.storm import MOST, PACE_S, STEPS_PER_EPOCH, weather, weathered
from tests.live.system import undisturbed

GUESTS = 2
ACTIONS = ("kill", "kill", "stop", "preempt", "scale", "scale", "migrate", "agent", "power", "cable", "leave")


class Rack:
    """The machines of a job, and hands to hurt them with. Somebody always keeps the state."""

    def __init__(self, hosts: Hosts, system: Hosted) -> None:
        self._hosts, self._system = hosts, system
        self._guests: dict[str, tuple[Host, subprocess.Popen[bytes]]] = {}
        self._hurt: set[int] = set()
        """Workers that were killed, stopped or told to go; numbers are never given twice."""
        for _ in range(GUESTS):
            self._invite()

    def strike(self, action: str, number: int) -> str:
        """Do one of them; what was done, for the record."""
        self._system.until(lambda: bool(self._healthy()))
        members = self._healthy()
        worker = members[number % len(members)]
        guest = sorted(self._guests)[number % len(self._guests)]
        is_needed = not any(member["agent"] != guest for member in members)
        if (action in ("kill", "stop") and len(members) == 1) or (action in ("power", "cable") and is_needed):
            action = "scale"
        if action in ("kill", "stop", "preempt"):
            signals = {"stop": "STOP", "preempt": "TERM"}
            self._hurt.add(worker["worker"])
            self._signal(worker["agent"], worker["pid"], signals.get(action, "KILL"))
            return f"{action}: worker {worker['worker']} on {worker['agent']}"
        if action in ("agent", "power", "cable", "leave"):
            return f"{action}: {guest}{getattr(self, f'_{action}')(guest)}"
        try:
            if action == "scale":
                return f"scale: {self._system.handle.scale(1 + number % MOST).text}"
            return f"migrate: {self._system.handle.migrate(worker['worker']).text}"
        except MelodeonError as refused:  # a change that a loss has overtaken
            return f"{action}: {refused}"

    def _agent(self, guest: str) -> str:
        pid = self._system.agent_pid(guest)
        if pid is not None:
            self._system.hurt(pid)  # seen from outside: its number here
        return f" is {pid}"

    def _power(self, guest: str) -> str:
        host, process = self._guests.pop(guest)
        self._lose(guest)
        host.power_off()
        process.wait()
        return f", and {self._invite()} comes"

    def _cable(self, guest: str) -> str:
        host, _ = self._guests[guest]
        self._lose(guest)
        self._hosts.cut(host)
        self._system.until(lambda: guest not in self._system.present())
        self._hosts.mend(host)
        self._system.until(lambda: guest in self._system.present())
        return ", until it was lost"

    def _leave(self, guest: str) -> str:
        _, process = self._guests.pop(guest)
        self._system.hurt(inside(process), signal.SIGTERM)
        assert process.wait(60) == 0
        return f", and {self._invite()} comes"

    def _invite(self) -> str:
        host = self._hosts.add()
        name = f"guest{len(self._hosts.all)}"
        self._guests[name] = (host, self._system.visit(host, name=name))
        self._system.until(lambda: name in self._system.present())
        return name

    def _healthy(self) -> list[dict[str, Any]]:
        return [worker for worker in self._system.members() if worker["worker"] not in self._hurt]

    def _lose(self, guest: str) -> None:
        self._hurt |= {worker["worker"] for worker in self._system.members() if worker["agent"] == guest}

    def _signal(self, agent: str, pid: int, name: str) -> None:
        """To a process that the job knows by its machine's number."""
        host = self._guests[agent][0] if agent in self._guests else self._hosts.all[0]
        subprocess.run(host.command("kill", f"-{name}", str(pid)), check=False)  # it may have ended by itself


def storm(
    folder: Path, seed: int, faults: int, steps: int, *, say: bool = False
) -> tuple[dict[int, str], dict[int, str]]:
    """Run it: the receipt of the job, and that of an undisturbed one on one machine."""
    epochs = -(-steps // STEPS_PER_EPOCH)
    expected = undisturbed(folder, "--epochs", str(epochs), limit_s=60 + steps / 20)
    arguments = ("--epochs", str(epochs), "--pace", str(PACE_S))
    options = {"workers": 2, "restarts": 10_000, "straggler_factor": 0.0}
    with Hosts(folder / "hosts", 1) as hosts, Hosted(folder, hosts.all[0], *arguments, **options) as system:
        system.reach(1)
        struck = weather(seed, faults, steps, ACTIONS)
        strike = Rack(hosts, system).strike
        return weathered(system, strike, struck, steps=steps, pace_s=PACE_S, say=say), expected


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--faults", type=int, default=40)
    parser.add_argument("--steps", type=int, default=600)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        receipt, expected = storm(Path(folder), options.seed, options.faults, options.steps, say=True)
    print(f"seed {options.seed}: {options.faults} faults, {'same' if receipt == expected else 'OTHER'} bits")
    return 0 if receipt == expected else 1


if __name__ == "__main__":
    sys.exit(main())
