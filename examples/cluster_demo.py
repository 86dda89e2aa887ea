"""`python -m examples.cluster_demo`: a cluster, six jobs, a killed worker, a killed controller, and the same bits.

    serve --> submit six jobs --> kill -9 a worker --> kill -9 the controller --> serve again --> wait for all
          --> train every admitted job once more, alone and undisturbed --> compare the digests

One of the six asks for too much and is rejected. Everything is in a temporary folder, which is removed at the end. Ends
with exit code 6 if a digest differs, and with 1 if a job did not end as it should.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

import melodeon
from melodeon.cli.jobfile import read_job
from melodeon.client import Cluster
from melodeon.core.errors import Cancelled, MelodeonError, NotBitwise
from melodeon.core.service import OVER, JobInfo, Phase, Submission
from melodeon.core.spec import Spec

JOBS = Path(__file__).resolve().parent / "cluster"
DEVICES = 4
LONGEST_S = 600.0
"""Far more than anything here takes: a busy machine is no failure."""
LOOK_S = 0.2
WIDTH = 80


@dataclass(frozen=True, slots=True)
class Planned:
    """One of the six."""

    file: str
    flags: Mapping[str, object] = field(default_factory=dict)
    known: bool = False
    """Submitted once the speed of `train.py` is known, so that it is judged at once."""
    ends: Phase = Phase.DONE


def six(steps: int) -> list[Planned]:
    """The jobs, in the order in which they are submitted."""
    return [
        Planned("deadline.yaml", {"steps": steps}),
        Planned("soft.yaml", {"steps": steps}),
        Planned("best-effort.yaml", {"steps": 2 * steps}),
        Planned("until.yaml"),
        Planned("deadline.yaml", {"name": "known", "steps": steps, "deadline": "20m"}, known=True),
        Planned("tight.yaml", known=True, ends=Phase.REJECTED),
    ]


class Demo:
    """What is running, and what was seen."""

    def __init__(self, folder: Path, console: Console) -> None:
        self.folder, self.console = folder, console
        self.state = folder / "state"
        self.cluster = Cluster(state=self.state, patience_s=30.0)
        self.server: subprocess.Popen[bytes] | None = None
        self.log = (folder / "serve.log").open("wb")
        self.submitted: list[tuple[Planned, Spec, str]] = []
        """With the id that each got."""
        self._began = time.monotonic()

    def say(self, text: str) -> None:
        """A line with the time since the beginning."""
        seconds = time.monotonic() - self._began
        width = min(WIDTH, self.console.width)
        print(textwrap.fill(f"{seconds:5.1f} s  {text}", width, subsequent_indent=" " * 9), flush=True)

    # -- the controller --

    def serve(self, port: int = 0) -> str:
        """Start the controller; returns the address that opens its pages."""
        command = [sys.executable, "-m", "melodeon", "serve", "--json", "--state", str(self.state)]
        command += ["--devices", str(DEVICES), "--root", str(JOBS), "--port", str(port)]
        # A session of its own: Ctrl-C is for the demo, which then ends the jobs through it.
        self.server = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=self.log, cwd=self.folder, start_new_session=True
        )
        assert self.server.stdout is not None
        with self.server.stdout as said:  # it says one line, once it answers
            line = said.readline()
        if not line:
            tail = (self.folder / "serve.log").read_text(errors="replace").strip().splitlines()[-3:]
            raise MelodeonError(f"`melodeon serve` ended with exit code {self.server.wait()}: {' '.join(tail)}")
        return str(json.loads(line)["login_url"])

    def kill_controller(self) -> int:
        """SIGKILL; returns the port that it had."""
        assert self.server is not None
        port = int(self.cluster.url.rpartition(":")[2])
        self.server.kill()
        self.server.wait()
        return port

    # -- jobs --

    def submit(self, planned: Planned) -> Submission:
        """Submit one of the six."""
        spec = read_job(str(JOBS / planned.file), planned.flags)
        answer = self.cluster.submit(spec)
        self.submitted.append((planned, spec, answer.job.id))
        self.say(answer.text)
        return answer

    def until(self, what: str, is_so: Callable[[], object]) -> None:
        """Look until something is so."""
        end = time.monotonic() + LONGEST_S
        while not is_so():
            if time.monotonic() > end:
                raise MelodeonError(f"{what} did not happen within {LONGEST_S:.0f} s: see `melodeon doctor`")
            time.sleep(LOOK_S)

    def trains(self, job: str, step: int) -> bool:
        """Whether it is that far, and has something left."""
        found = self.cluster.job(job)
        return found.phase in OVER or (found.step >= step and found.workers > 0)

    def kill_worker(self, job: str) -> None:
        """SIGKILL to one of its workers."""
        found = self.cluster.job(job)
        if found.phase in OVER:
            raise MelodeonError(f"job {job} was over before a worker of it could be killed: give more --steps")
        workers = melodeon.attach(f"{job}.{found.incarnation}").status()["workers"]
        victim = next(worker for worker in workers if worker["pid"])
        os.kill(int(victim["pid"]), signal.SIGKILL)
        self.say(f"killed worker {victim['worker']} of {job} (SIGKILL) at step {found.step}")

    def close(self) -> None:
        """End whatever still runs."""
        with suppress(MelodeonError):
            if self.server is not None and self.server.poll() is not None and self.submitted:
                self.serve()  # without it nobody would end the jobs
            left = [job for _, _, job in self.submitted if self.cluster.job(job).phase not in OVER]
            for job in left:
                self.cluster.cancel(job)
            for job in left:
                self.cluster.wait(job, 20.0)
        self.cluster.close()
        if self.server is not None:
            self.server.terminate()
            self.server.wait()
        self.log.close()


def disturb(demo: Demo, jobs: Sequence[Planned]) -> None:
    """Submit the jobs; kill a worker and the controller on the way."""
    for planned in jobs:
        if not planned.known:
            demo.submit(planned)
    first, third = demo.submitted[0][2], demo.submitted[2][2]
    demo.until(f"{third} to train", lambda: demo.trains(third, 10))
    demo.kill_worker(third)
    demo.until(f"{first} to be judged", lambda: demo.cluster.job(first).phase is not Phase.PROFILING)
    demo.say(f"the speed of {first} is measured; it is {demo.cluster.job(first).phase.value}")
    for planned in jobs:
        if planned.known:
            demo.submit(planned)
    before = {job: demo.cluster.job(job).incarnation for _, _, job in demo.submitted}
    port = demo.kill_controller()
    demo.say("killed the controller (SIGKILL); its jobs go on")
    demo.serve(port)
    found = {job: demo.cluster.job(job) for job in before}
    alive = [job for job, info in found.items() if info.phase not in OVER]
    again = [job for job in alive if before[job] and found[job].incarnation != before[job]]
    demo.say(f"the controller is back: {len(alive)} jobs to finish, {len(again)} of those that ran started again")


def finish(demo: Demo) -> list[JobInfo]:
    """Wait for all."""
    ended = []
    for _, _, job in demo.submitted:
        info = demo.cluster.wait(job, LONGEST_S)
        ended.append(info)
        if info.phase is not Phase.REJECTED:
            demo.say(f"{job} is {info.phase.value} after {info.step} steps")
    return ended


# -- the same, undisturbed -------------------------------------------------------------------------------------------


def undisturbed(spec: Spec, folder: Path) -> str:
    """The digest of `melodeon run` of the same job, on one worker."""
    command = [sys.executable, "-m", "melodeon", "run", "--quiet", "--json", "--runs-root", str(folder / "runs")]
    command += ["--workers", "1", "--determinism", spec.determinism, "--threads", str(spec.threads)]
    for name, value in (("--steps", spec.steps), ("--epochs", spec.epochs), ("--until", spec.until)):
        command += [name, str(value)] if value is not None else []
    done = subprocess.run([*command, *spec.run], cwd=spec.workdir, capture_output=True, text=True)
    if done.returncode:
        raise MelodeonError(f"`melodeon run` of {spec.name} failed: {done.stderr.strip()[-500:]}")
    return str(json.loads(done.stdout.splitlines()[-1])["digest"])


def compare(demo: Demo, ended: Sequence[JobInfo]) -> dict[str, str]:
    """The digests of the same jobs, undisturbed; two at a time."""
    todo = {job: spec for (_, spec, job), info in zip(demo.submitted, ended, strict=True) if info.digest}
    demo.say(f"training the {len(todo)} jobs once more, alone and undisturbed ...")
    with ThreadPoolExecutor(max_workers=2) as pool:
        made = pool.map(lambda spec: undisturbed(spec, demo.folder), todo.values())
        return dict(zip(todo, made, strict=True))


# -- showing it ------------------------------------------------------------------------------------------------------


def table(ended: Sequence[JobInfo], alone: Mapping[str, str]) -> Table:
    """What became of each job."""
    titles = ("job", "end", "time", "deadline", "steps", "resizes", "digest", "")
    grid = Table(*titles, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for info in ended:
        took = f"{info.finished_at - info.submitted_at:.0f} s" if info.finished_at and info.digest else "-"
        good = alone.get(info.id) == info.digest
        mark = "-" if info.digest is None else "[green]equal[/]" if good else "[red]differs[/]"
        steps, resizes = (str(info.step), str(info.num_resizes)) if info.digest else ("-", "-")
        grid.add_row(info.id, info.phase.value, took, _deadline(info), steps, resizes, (info.digest or "-")[:8], mark)
    return grid


def _deadline(info: JobInfo) -> str:
    if info.deadline_at is None or info.finished_at is None:
        return "best effort"
    if info.phase is Phase.REJECTED:
        return "impossible"
    late = info.finished_at - info.deadline_at
    return ("met" if late <= 0 else f"{late:.0f} s late") + (" (soft)" if info.goal == "soft" else "")


def check(demo: Demo, ended: Sequence[JobInfo], alone: Mapping[str, str]) -> None:
    """Raise what is not as it must be."""
    for (planned, _, job), info in zip(demo.submitted, ended, strict=True):
        if info.phase is not planned.ends:
            raise MelodeonError(f"job {job} is {info.phase.value} and should be {planned.ends.value}: {info.why}")
    wrong = [job for job, digest in alone.items() if digest != next(i.digest for i in ended if i.id == job)]
    if wrong:
        raise NotBitwise(f"digests differ for {' and '.join(wrong)}: `melodeon doctor` checks this machine")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m examples.cluster_demo", description="Six jobs on a cluster.")
    parser.add_argument("--steps", type=int, default=120, help="of most jobs; more last longer")
    parser.add_argument("--keep", action="store_true", help="do not remove the folder")
    args = parser.parse_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    folder = Path(tempfile.mkdtemp(prefix="melodeon-"))
    (folder / "run").mkdir(mode=0o700)
    os.environ["XDG_RUNTIME_DIR"] = str(folder / "run")  # this cluster is found by nobody else, and finds no other
    demo = Demo(folder, console)
    try:
        demo.say(f"a cluster of {DEVICES} CPU slots; watch it at")
        console.print(demo.serve(), style="cyan", soft_wrap=True, highlight=False)
        disturb(demo, six(args.steps))
        ended = finish(demo)
        alone = compare(demo, ended)
        console.print(table(ended, alone), width=min(WIDTH, console.width))
        check(demo, ended, alone)
    except MelodeonError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("error: the demo was stopped on request", file=sys.stderr)
        return Cancelled.exit_code
    finally:
        demo.close()
        if args.keep:
            console.print(f"kept: {folder}", highlight=False)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    demo.say(f"{len(alone)} jobs ended with the bits of an undisturbed run; {len(ended) - len(alone)} was rejected.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
