"""What hands are to do about a state: a wish for every job that runs, and all that a launcher must know."""

import hashlib
import json
import os
from pathlib import Path

from melodeon.backends.fleet_values import LaunchOrder, Wish
from melodeon.control.hands import Intent
from melodeon.control.job import Job
from melodeon.control.rounds import World
from melodeon.control.specs import UNKNOWN, must_measure
from melodeon.control.state import State
from melodeon.core.cluster import Cluster
from melodeon.core.service import Phase
from melodeon.core.spec import Spec

LARGEST_SCRIPT = 4 << 20
"""Bytes of a script that are read to tell whether it is the same."""


def order_of(job: Job, spec: Spec, job_dir: Path, cluster: Cluster) -> LaunchOrder:
    """All that a launcher needs to start the job's incarnation."""
    return LaunchOrder(
        job=job.id,
        incarnation=job.incarnation,
        job_dir=str(job_dir),
        argv=spec.run,
        env=dict(spec.env),
        workdir=spec.workdir,
        user=job.user,
        slots=job.slots,
        kinds={node.id: node.device_type for node in cluster.nodes},
        capacity={node.id: node.num_devices for node in cluster.nodes},
        min_workers=spec.min_workers,
        max_workers=spec.max_workers,
        virtual_workers=spec.virtual_workers,
        steps=spec.steps,
        epochs=spec.epochs,
        until=spec.until,
        order=spec.order,
        determinism=spec.determinism,
        threads=spec.threads,
        checkpoint_every=spec.checkpoint,
        memory=spec.memory,
        restarts=spec.restarts,
    )


def intents(state: State, world: World, jobs_dir: Path) -> dict[str, Intent]:
    """What shall be, of every job that was started and has not ended."""
    found: dict[str, Intent] = {}
    for name, job in state.live.items():
        if not job.alive:
            continue
        spec = world.book.spec(job)
        end = job.over or job.phase is Phase.CANCELLING
        runs = bool(job.slots) and not end and not job.again and job.phase is not Phase.SUSPENDING
        measure = None
        if runs and job.phase is Phase.PROFILING and not job.unmeasurable:
            known = state.known.get(job.signature, UNKNOWN)
            if must_measure(job, spec, known, world.cluster):
                measure = (spec.min_workers, job.num_devices)
        wish = Wish(
            job=name,
            incarnation=job.incarnation,
            order=order_of(job, spec, jobs_dir / name, world.cluster),
            slots=job.slots if runs else None,
            end=end,
        )
        found[name] = Intent(wish, measure)
    return found


def prepare(job_dir: Path, job: Job) -> None:
    """The job's folder, with its file in it."""
    (job_dir / "checkpoints").mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = job_dir / f".spec.{os.getpid()}"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)  # its variables may be secrets
    with open(fd, "w", encoding="utf-8") as file:  # noqa: PTH123 - a descriptor, so that the mode is right from the start
        file.write(json.dumps(job.spec, indent=2) + "\n")
    temporary.replace(job_dir / "spec.json")


def script_digest(spec: Spec) -> str:
    """Of the script that it runs; empty for a module, or where there is none."""
    if spec.run[0] == "-m":
        return ""
    try:
        with (Path(spec.workdir) / spec.run[0]).open("rb") as file:
            return hashlib.sha256(file.read(LARGEST_SCRIPT)).hexdigest()
    except OSError:
        return ""
