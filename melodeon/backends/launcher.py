"""One incarnation of a job, from its start to its end, in a process of its own: it outlives whoever started it.

    python -m melodeon.backends.launcher JOB_DIR/launch-3.json

Whoever makes the run's folder owns the incarnation; a launcher that finds it made says so and ends. From then on
everything is told in the folder: `launcher.json` (who), `events.jsonl` (what happens), `run.json` (how it ended).
"""

import os
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from pwd import struct_passwd

from melodeon.backends.devices import SlotMap
from melodeon.backends.elastic import Elastic, run_elastic
from melodeon.backends.fleet_folder import Owner, read_order, take
from melodeon.backends.fleet_values import LaunchOrder
from melodeon.backends.local import Event
from melodeon.backends.machine import require_torch
from melodeon.backends.outcome import Outcome
from melodeon.backends.runs import Heard, write_record
from melodeon.backends.stderr_end import explained, said_last
from melodeon.coord import limits, registry
from melodeon.coord.marks import started
from melodeon.coord.master_state import JobConfig
from melodeon.core.errors import MelodeonError, UsageError
from melodeon.core.launch import Launch

AGENT = "node0"
"""The one agent of a job on this machine."""
SHORT = ("memoryerror", "allocate memory", "bad_alloc", "failed to map segment", "can't start new thread")
"""In the words of what fails because a process may have no more memory: libraries and threads need some too."""


def main(argv: list[str]) -> int:
    """Run one incarnation."""
    if len(argv) != 2:
        sys.stderr.write("usage: python -m melodeon.backends.launcher ORDER.json\n")
        return UsageError.exit_code
    try:
        order = read_order(Path(argv[1]))
        user = limits.find_user(order.run_as) if order.run_as else None
        _own(order, user)
    except MelodeonError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    return run(order, user)


def run(order: LaunchOrder, user: struct_passwd | None = None) -> int:
    """Run an incarnation whose folder is ours, and write down how it went."""
    run_dir = Path(order.run_dir)
    record = _record(order)
    heard = Heard()
    begun = time.monotonic()
    outcome = Outcome(exit_code=1, reason="the launcher failed")
    try:
        if user is not None:
            limits.become(user)
        write_record(run_dir, record)
        outcome = explained(_perform(order, run_dir, heard), run_dir)
    except MelodeonError as error:
        outcome = Outcome(exit_code=error.exit_code, reason=str(error))
    except (MemoryError, OSError) as error:
        outcome = _fallen(error)
    except (ImportError, RuntimeError) as error:
        outcome = _fallen(error)
        raise  # launcher.log shows where, should it not be for lack of memory
    finally:
        told = replace(outcome, reason=_reason(order, outcome, heard.last))
        record |= heard.ending(told, time.monotonic() - begun)
        write_record(run_dir, record)
    return outcome.exit_code


def _own(order: LaunchOrder, user: struct_passwd | None) -> None:
    """Make the folders; as root also give them to the user that the job runs as."""
    uid, gid = (-1, -1) if user is None else (user.pw_uid, user.pw_gid)
    owner = Owner(pid=os.getpid(), started=started(os.getpid()) or 0, entry=str(_entry(order, user)))
    run_dir = Path(order.run_dir)
    if not take(run_dir, owner, uid=uid, gid=gid):
        raise UsageError(
            f"incarnation {order.incarnation} of job {order.job} was started or claimed before: its folder is {run_dir}"
        )
    checkpoints = Path(order.checkpoint_dir)
    checkpoints.mkdir(mode=0o700, exist_ok=True)
    os.chown(checkpoints, uid, gid)
    if user is not None:
        run_dir.parent.chmod(0o711)  # to be passed through, not to be looked into
    # What was said so far, and all that will be, is in the run's folder.
    log = run_dir.with_name(f"launch-{order.incarnation}.log")
    if log.exists() and os.path.samestat(log.stat(), os.fstat(sys.stderr.fileno())):
        log.rename(run_dir / "launcher.log")


def _entry(order: LaunchOrder, user: struct_passwd | None) -> Path:
    """Where the job will be found while it runs."""
    name = registry.file_name(order.name, Path(order.run_dir).resolve())
    if user is None:
        return registry.folder() / name
    return Path(tempfile.gettempdir()) / f"melodeon-{user.pw_uid}" / "jobs" / name


def _perform(order: LaunchOrder, run_dir: Path, heard: Heard) -> Outcome:
    devices = SlotMap(capacity_of(order), order.cuda)
    cuda = devices.uses_cuda(order.slots)
    slots = devices.to_agent(order.slots)
    limits.apply(memory=order.memory, cuda=cuda)
    _enter(order)
    if order.preload is None:
        require_torch()
    return run_elastic(
        order.argv,
        launch_of(order, pin=not cuda and devices.size[False] <= _cores()),
        run_dir,
        Elastic(
            job=job_config(order, slots),
            slots=devices.size[cuda],
            alone=False,
            preload=order.preload,
            zygote=order.zygote,
        ),
        env={**order.env, **devices.environment(cuda=cuda)},
        on_event=heard.hear,
    )


def capacity_of(order: LaunchOrder) -> Mapping[str, int]:
    """Devices of every node; where the order does not say, as many as it uses."""
    return order.capacity or {node: max(slots) + 1 for node, slots in order.slots.items()}


def launch_of(order: LaunchOrder, *, pin: bool) -> Launch:
    """What every worker is told."""
    return Launch(
        run_dir=order.run_dir,
        runs_root=order.job_dir,
        determinism=order.determinism,
        threads=order.threads,
        order=order.order,
        virtual_workers=order.virtual_workers,
        max_steps=order.steps,
        max_epochs=order.epochs,
        until=order.until,
        checkpoint_dir=order.checkpoint_dir,
        checkpoint_every=order.checkpoint_every,
        pin=pin,
        elastic=True,
    )


def job_config(order: LaunchOrder, slots: list[int]) -> JobConfig:
    """What its master is told. Nobody but the controller takes a slow worker's device away."""
    return JobConfig(
        job=order.name,
        workers=len(slots),
        slots={AGENT: slots},
        min_workers=min(order.min_workers, len(slots)),
        max_workers=order.max_workers or 0,
        restarts=order.restarts,
        straggler_factor=0.0,
    )


def _enter(order: LaunchOrder) -> None:
    """Go to the job's folder."""
    try:
        os.chdir(order.workdir)
    except OSError as error:
        raise UsageError(
            f"workdir {order.workdir!r} cannot be entered ({error.strerror}): name a folder that the job may use"
        ) from error
    if order.argv[0] != "-m" and not Path(order.argv[0]).is_file():
        raise UsageError(f"script {order.argv[0]!r} is not in {order.workdir!r}: name it from there")


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _reason(order: LaunchOrder, outcome: Outcome, last: Event) -> str | None:
    """Why it ended where it did. A failure for lack of memory is easier to mend when one knows the limit."""
    reason = outcome.reason
    if outcome.ok and last.get("reached"):
        return f"{last['reached']} was reached"
    if not reason or order.memory is None or outcome.ok:
        return reason
    if not _is_short(reason) and _is_short(said := said_last(Path(order.run_dir), outcome.worker)):
        reason = f"{reason}: {said}"
    if not _is_short(reason) and "memory" not in reason.lower():
        return reason
    fix = "raise" if _is_short(reason) else "see"
    return f"{reason} (each of its processes may have {limits.in_words(order.memory)}: {fix} the job's field memory)"


def _is_short(text: str) -> bool:
    return any(words in text.lower() for words in SHORT)


def _fallen(error: Exception) -> Outcome:
    return Outcome(exit_code=1, reason=f"the launcher failed: {str(error) or type(error).__name__}")


def _record(order: LaunchOrder) -> dict[str, object]:
    """The run's `run.json`, as `melodeon run` writes it."""
    return {
        "id": order.name,
        "created": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "command": [sys.executable, *order.argv],
        "script": order.argv[0],
        "args": list(order.argv[1:]),
        "num_workers": sum(map(len, order.slots.values())),
        "assignment": None,
        "determinism": order.determinism,
        "engine": "melodeon",
        "elastic": True,
        "job": order.job,
        "incarnation": order.incarnation,
        "pid": os.getpid(),
        "pid_started": started(os.getpid()),
        "status": "running",
        "exit_code": None,
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv))
