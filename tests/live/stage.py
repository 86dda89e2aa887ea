"""A running job on which failpoints are struck one after the other, each in a phase that the test brings about.

Every role is a place in which a process can be hurt: who it is, and what a person does to bring it into that phase.
After each strike the stage waits until the job has its size again and trains on; whoever was stopped is woken up then,
and must find itself refused.
"""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from melodeon.coord.client import connect
from melodeon.coord.marks import started
from melodeon.core.errors import MelodeonError
from tests.live.system import System

STRUCK_S = 30.0
SETTLED_S = 90.0
"""More than a worker may take to say its first word."""
HEAL_S = 4.0
"""A cut of an agent heals after this long: four times the lease."""
FOREVER = ("--epochs", "1000")
PACE = ("--pace", "0.02")


class Unstruck(AssertionError):
    """The phase did not come: the table is wrong."""


@dataclass(frozen=True, slots=True)
class Case:
    point: str
    role: str
    action: str

    def __str__(self) -> str:
        return f"{self.point} {self.role} {self.action}"


class Stage:
    """One job, to be hurt."""

    def __init__(self, folder: Path, name: str, *args: str, workers: int = 3, agents: int = 1, **options: Any) -> None:
        self._armed = folder / f"{name}-armed"
        self._armed.mkdir(parents=True)
        self._checkpoints = folder / f"{name}-checkpoints"
        self._size, self._agents = workers, agents
        self._helpers: list[threading.Thread] = []
        self._args = (*args, *PACE, "--checkpoints", str(self._checkpoints))
        self._folder, self._name, self._options = folder, name, options
        self.system: System

    def __enter__(self) -> Self:
        env = {"MELODEON_FAILPOINTS": f"dir:{self._armed}"}
        options = {"restarts": 10_000, "straggler_factor": 0.0, **self._options}
        self.system = System(
            self._folder, self._name, *self._args, env=env, workers=self._size, agents=self._agents, **options
        )
        return self

    def __exit__(self, *_: object) -> None:
        self.system.__exit__()
        for helper in self._helpers:
            helper.join(60)

    # -- cases ---------------------------------------------------------------------------------------------------------

    def play(self, case: Case) -> int:
        """Strike once and see the job recover; the step at which it struck."""
        self.settle()
        if case.role in WORKERS:
            who = self._worker(case.role)
            self.arm(case.point, who, case.action)
            pid = dict(self.pids()).get(int(who), 0)
            WORKERS[case.role](self, int(who))
            self.struck(case.point, who)
            step = self.system.last_step()
            self._see_worker_gone(pid, who)
        elif case.role == "nursery":
            self.arm(case.point, case.role, case.action)
            self.ask("scale_out", {"n": 1})
            self.struck(case.point, case.role)
            step = self.system.last_step()
        else:
            step = self._play_agent(case)
        self.settle()
        self.advance()
        # Of agents two are hurt at a time, and all workers may be given up with them.
        again = [] if case.role in AGENT_ROLES else self.system.events("restart")
        assert not again, f"somebody still had the state, and the job began again: {again[-1]}"
        return step

    def see(self, case: Case) -> None:
        """Strike once at the beginning or at the end of the job, and see it end well."""
        who = "0"
        if case.role != "founder":
            self.system.reach(5)
            if case.role != "finisher":
                master = self._master()
                who = master if case.role == "abdicating" else f"node{1 - int(master.removeprefix('node'))}"
            heals = case.action == "cut" and who != "0"
            self.arm(case.point, who, f"cut:{HEAL_S}" if heals else case.action)
        self.struck(case.point, who)
        if case.action == "stop":
            self._wake(who)
        if (case.point, case.action) == ("finish.told", "kill"):
            # Everything is trained; but what the script still had to do was not done, and the launcher says so.
            assert self.system.end() == 1
        else:
            self.system.well()

    def _wake(self, who: str) -> None:
        """Wake up whoever was stopped when the job is over without it; a worker is killed by its agent before."""
        if who != "0":
            self.advance_to_end()
            self.hurt_agent(who, signal.SIGCONT)
            return
        pid = int((self.system.run_dir / "agents/node0/worker-0.pid").read_text().split()[0])
        self.until(lambda: started(pid) is None or bool(self._ends()), "the job does not end without the worker")
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    def advance_to_end(self) -> None:
        self.until(lambda: bool(self._ends()), "the job does not end")

    def _ends(self) -> list[dict[str, Any]]:
        return [event for event in self.system.events("end") if "outcome" in event]

    def _play_agent(self, case: Case) -> int:
        victims = self._victims(case)
        if not self.pids(victims[0]):
            self.system.handle.migrate(self.pids()[-1][0], to=victims[0])  # lest it have nothing to lose
            self.settle()
        stale = {agent: self.pids(agent) for agent in victims}
        masters = len(self.system.events("master"))
        lost = len(self.system.events("agent_lost"))
        action = f"cut:{HEAL_S}" if case.action == "cut" else case.action
        for agent in victims:
            self.arm(case.point, agent, action)
        AGENTS[PROVOKED.get(case.point, "busy")](self, victims[0])
        victim = self.struck(case.point, *victims)
        step = self.system.last_step()
        self._continue_all(but=victim)
        if case.action != "kill":
            if case.role == "master":
                self.until(
                    lambda: len(self.system.events("master")) > masters and self._master() != victim,
                    f"nobody took over from {victim}",
                )
            else:
                self.until(lambda: len(self.system.events("agent_lost")) > lost, f"nobody missed {victim}")
            self.advance()
            self._continue_all()
        self.settle()
        members = dict(self.pids())
        for worker, pid in stale[victim]:
            if members.get(worker) != pid:
                self._see_gone(pid, f"worker {worker} of {victim} was given up and")
        return step

    def _victims(self, case: Case) -> list[str]:
        agents = [f"node{index}" for index in range(self._agents)]
        if case.point == "master.elected":
            return agents
        master = self._master()
        return [master] if case.role == "master" else [agent for agent in agents if agent != master]

    # -- arming --------------------------------------------------------------------------------------------------------

    def arm(self, point: str, who: str, action: str) -> None:
        """From now on, the next one to pass."""
        path = self._armed / f"{point}@{who}"
        path.with_suffix(f"{path.suffix}.struck").unlink(missing_ok=True)
        (temporary := self._armed / ".new").write_text(action)
        temporary.rename(path)

    def struck(self, point: str, *whos: str) -> str:
        """Until one of them has been struck; the others are safe then."""
        paths = {who: self._armed / f"{point}@{who}.struck" for who in whos}
        deadline = time.monotonic() + STRUCK_S
        while not any(path.exists() for path in paths.values()):
            if time.monotonic() > deadline or self.system.process.poll() is not None:
                raise Unstruck(f"{point} was not passed by {', '.join(whos)}\n{self.system.log()}")
            with suppress(subprocess.TimeoutExpired):
                self.system.process.wait(0.02)
        for who in whos:
            (self._armed / f"{point}@{who}").unlink(missing_ok=True)
        return next(who for who, path in paths.items() if path.exists())

    # -- waiting -------------------------------------------------------------------------------------------------------

    def until(self, true: Callable[[], bool], otherwise: str, limit_s: float = SETTLED_S) -> None:
        try:
            self.system.until(true, limit_s)
        except AssertionError as error:
            raise AssertionError(f"{otherwise}: {error}") from None

    def settle(self) -> None:
        """Until the job has its size, all are in the newest view, every agent is there and nothing is under way."""
        for helper in self._helpers:
            helper.join(SETTLED_S)
            assert not helper.is_alive(), f"an ask is not answered\n{self.system.log()}"
        self._helpers.clear()
        self.until(self._is_settled, "the job has not come back to its size")

    def _is_settled(self) -> bool:
        status = self._status()
        if status is None or status["queue"] or status["phase"] != "training":
            return False
        if len(status["agents"]) < self._agents or any(agent["lost"] for agent in status["agents"]):
            return False
        workers = [worker for worker in status["workers"] if not worker["released"]]
        if any(w["phase"] != "member" or w["generation"] != status["generation"] for w in workers):
            return False
        if len(workers) != self._size:
            with suppress(MelodeonError):
                self.system.handle.scale(self._size)
            return False
        return True

    def _status(self) -> dict[str, Any] | None:
        with suppress(MelodeonError):
            return self.system.handle.ask("status", timeout_s=3.0).values
        return None

    def advance(self, steps: int = 3) -> None:
        """The training goes on."""
        goal = self.system.last_step() + steps
        self.until(lambda: self.system.last_step() >= goal, "no step follows")

    def _see_worker_gone(self, pid: int, who: str) -> None:
        """However it was hurt, its agent ends it."""
        if not pid:
            marks = self.system.run_dir.glob(f"agents/*/worker-{who}.pid")
            pid = int(next(iter(marks)).read_text().split()[0])
        self._see_gone(pid, f"worker {who}")

    def _see_gone(self, pid: int, who: str) -> None:
        self.until(lambda: started(pid) is None, f"{who} lives on")

    # -- hands ---------------------------------------------------------------------------------------------------------

    def pids(self, agent: str | None = None) -> list[tuple[int, int]]:
        """(worker, process) by rank."""
        status = self._status()
        assert status is not None, "nobody answers"
        members = [w for w in status["workers"] if w["phase"] == "member" and w["ranks"]]
        members.sort(key=lambda worker: int(worker["ranks"].partition("-")[0]))
        return [(w["worker"], w["pid"]) for w in members if agent is None or w["agent"] == agent]

    def _worker(self, role: str) -> str:
        if role == "newcomer":
            return str(max(int(event["worker"]) for event in self.system.events("worker_started")) + 1)
        members = self.pids()
        return str(members[0 if role in ("first", "holder", "asked") else -1][0])

    def _master(self) -> str:
        return str(self.system.events("master")[-1]["agent"])

    def ask(self, what: str, values: Mapping[str, Any], agent: str | None = None) -> None:
        """Wish something, and let somebody else wait for the answer."""

        def act() -> None:
            with suppress(MelodeonError):
                handle = connect(self._name)
                handle._first = int(agent.removeprefix("node")) if agent else 0
                handle.ask(what, dict(values), timeout_s=40.0)

        helper = threading.Thread(target=act, daemon=True)
        helper.start()
        self._helpers.append(helper)

    def kill_one(self, but: int, agent: str | None = None) -> None:
        """Kill a member, not that one."""
        self.system.hurt(next(pid for worker, pid in reversed(self.pids(agent)) if worker != but))

    def hurt_agent(self, agent: str, number: int) -> None:
        pid = self.system.agent_pid(agent)
        if pid is not None:
            self.system.hurt(pid, number)

    def stop_other(self, agent: str) -> None:
        for index in range(self._agents):
            if f"node{index}" != agent:
                self.hurt_agent(f"node{index}", signal.SIGSTOP)

    def _continue_all(self, but: str = "") -> None:
        for index in range(self._agents):
            if f"node{index}" != but:
                self.hurt_agent(f"node{index}", signal.SIGCONT)

    # -- ends ----------------------------------------------------------------------------------------------------------

    def stop(self) -> dict[int, str]:
        """End the job; its receipt."""
        self.settle()
        with suppress(MelodeonError):
            self.system.handle.stop()
        self.system.end()
        return self.receipt()

    def receipt(self) -> dict[int, str]:
        return self.system.receipt()


WORKERS: dict[str, Callable[[Stage, int], None]] = {
    "first": lambda _stage, _worker: None,
    "last": lambda _stage, _worker: None,
    "asked": lambda stage, _worker: stage.ask("checkpoint", {}),
    "survivor": lambda stage, worker: stage.kill_one(but=worker),
    "holder": lambda stage, _worker: stage.ask("scale_out", {"n": 1}),
    "newcomer": lambda stage, _worker: stage.ask("scale_out", {"n": 1}),
    "leaver": lambda stage, worker: stage.ask("scale_in", {"workers": [worker]}),
    "migrated": lambda stage, worker: stage.ask("migrate", {"worker": worker}),
}
"""Role of a worker -> what brings it into its phase. First: of virtual rank 0, who writes the run's files."""

AGENTS: dict[str, Callable[[Stage, str], None]] = {
    "busy": lambda stage, agent: stage.ask("scale_out", {"n": 1, "on": agent}, agent),
    "bereaved": lambda stage, agent: stage.kill_one(but=-1, agent=agent),
    "restarted": lambda stage, agent: stage.hurt_agent(agent, signal.SIGKILL),
    "deposed": lambda stage, _agent: stage.hurt_agent(stage._master(), signal.SIGKILL),
    "alone": lambda stage, agent: stage.stop_other(agent),
}
AGENT_ROLES = ("master", "other")
PROVOKED = {
    "agent.exit": "bereaved",
    "agent.registered": "restarted",
    "master.elected": "deposed",
    "master.bereft": "alone",
}
"""Points of agents that need more than a scale out."""
