"""What a launcher tells a worker process, as one frozen value carried in one environment variable.

`melodeon.join()` reads it; without it a script is a job of one worker. Pure: the caller passes the environment in.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Literal

from melodeon.core.errors import UsageError

VARIABLE = "MELODEON_LAUNCH"

Engine = Literal["melodeon", "stock-ddp"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One worker's place in its job, and what the run is to record."""

    worker: int = 0
    """This worker's index, `0 <= worker < num_workers`."""
    num_workers: int = 1
    counts: tuple[int, ...] | None = None
    """Virtual workers per worker, from `--assignment`; None lets `join()` balance them."""
    generation: int = 0
    """The view's number; part of every rendezvous key."""
    rendezvous: str | None = None
    """Path of the file that the workers of one machine meet through; None for a single worker."""
    run_dir: str | None = None
    """The run's folder; None makes a new one under `runs_root`."""
    runs_root: str = ".melodeon/runs"
    determinism: str | None = None
    """The level that was applied to this process's environment before torch loads; None: none was."""
    threads: int | None = None
    engine: Engine = "melodeon"
    """`stock-ddp` runs the same script on unmodified DistributedDataParallel, as the reference of a comparison."""
    order: str | None = None
    """Overrides the script's `order=`."""
    virtual_workers: int | None = None
    """V, where the script does not say; a script that says another number is refused."""
    max_steps: int | None = None
    """Stop after this many steps in all."""
    max_epochs: int | None = None
    """Stop after this many epochs, if the script has more."""
    until: str | None = None
    """`loss < 0.1`: stop after the first step whose logged mean says so."""
    receipt_every: int | None = None
    """Steps between two entries of the receipt, over the script's own choice; 0: only the end."""
    record_states: bool = False
    """Write the digest of every tensor of the state at every step."""
    record_ops: bool = False
    """Write digests of every operator's inputs and outputs."""
    scan: bool = False
    """List the operators of one step, then stop."""
    resume: bool = True
    """Go on from the newest good checkpoint where the script keeps some."""
    checkpoint_dir: str | None = None
    """Overrides the folder given to `job.checkpoint`; with `resume`, checkpoints are kept here even if the script asks
    for none."""
    checkpoint_every: int | None = None
    """Steps between checkpoints, over the script's own choice; None, and the script keeps none: only at the end or when
    it is stopped."""
    event_fd: int | None = None
    """A pipe to the launcher: one JSON line an event."""
    elastic: bool = False
    """The views of the job may change; `agent` says which, and `num_workers` and `counts` mean nothing."""
    agent: str | None = None
    """Path of the socket at which this worker's agent is."""
    worker_number: int = 0
    """This worker's number in an elastic job: unique, never given twice."""
    host: str = ""
    """This node's address, as other nodes reach it; empty where the whole job is on one host."""
    slot: int = 0
    """Its device slot on the node."""
    pin: bool = False
    """On a CPU, stay on the cores of its slot."""
    hybrid: bool = False
    """The master may change the total batch when it changes the number of workers, if the script agrees."""
    batch_history: tuple[tuple[int, int], ...] | None = None
    """(step, batch factor) of an earlier run, to be trained again; None: whoever decides."""
    lifeline_fd: int | None = None
    """A pipe from the launcher: when it closes, the launcher is gone and the worker ends."""

    def to_env(self) -> dict[str, str]:
        """The environment variable that carries this value."""
        return {VARIABLE: json.dumps(asdict(self))}

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> "Launch | None":
        """Read the value back, or None where no launcher set it."""
        text = env.get(VARIABLE)
        if text is None:
            return None
        try:
            raw = json.loads(text)
            if not isinstance(raw, dict):
                raise ValueError("it is no JSON object")
            known = {f.name for f in fields(cls)}
            if unknown := sorted(set(raw) - known):
                raise UsageError(
                    f"{VARIABLE} has unknown fields {unknown}: launcher and worker are of different versions"
                )
            if raw.get("counts") is not None:
                raw["counts"] = tuple(raw["counts"])
            if raw.get("batch_history") is not None:
                raw["batch_history"] = tuple(tuple(entry) for entry in raw["batch_history"])
            return cls(**raw)
        except (ValueError, TypeError) as error:
            raise UsageError(
                f"{VARIABLE}={text!r} cannot be read ({error}); start the script with `melodeon run`"
            ) from error
