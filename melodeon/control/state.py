"""The cluster as the sum of its log: `fold(state, at, fact)` is the only way anything changes.

A job is a frozen value, replaced whole (`control.job`); the state's tables are its own, so a draft (`state.draft()`)
can be folded into while everybody else reads the state as it was last stored.
"""

from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from melodeon.control.curves import NOTHING, Known
from melodeon.control.events import (
    AnyFact,
    CurveMeasured,
    Entry,
    Forgotten,
    NodeSet,
    PolicySet,
    Sized,
    Started,
    Submitted,
    Training,
)
from melodeon.control.job import Job, step, submitted

STARTS = 32
"""Starts that are remembered."""


class State(msgspec.Struct, kw_only=True):
    """The whole of it. Changed by `fold` alone."""

    origin: float | None = None
    """When the log began: rounds count seconds from here."""
    now: float = 0.0
    """Of the newest fact."""
    policy: str = ""
    number: int = 0
    """Of the newest job."""
    live: dict[str, Job] = {}
    """Jobs that are not over, or whose workers are not gone yet, in order of submission."""
    past: dict[str, Job] = {}
    nodes: tuple[tuple[str, str, int, str], ...] = ()
    """The cluster as the last controller described it."""
    down: dict[str, tuple[bool, bool]] = {}
    """Nodes that are not as they should be: (up, drained)."""
    known: dict[str, Known] = {}
    """Scaling curves by signature."""
    starts: tuple[float, ...] = ()
    """How many seconds the newest starts took until workers trained, the last one last."""

    def draft(self) -> "State":
        """A state that can be folded into without anybody seeing; `past` is shared until something is added."""
        return replace(self, live=dict(self.live), down=dict(self.down), known=dict(self.known))

    def job(self, name: str) -> Job | None:
        """A job, running or over."""
        return self.live.get(name) or self.past.get(name)


def fold(state: State, at: float, fact: AnyFact) -> State:
    """The state after one more fact."""
    state.now = max(state.now, at)
    if state.origin is None:
        state.origin = at
    match fact:
        case Started(policy=policy, nodes=nodes):
            state.policy, state.nodes = state.policy or policy, nodes
        case PolicySet(policy=policy):
            state.policy = policy
        case NodeSet(node=node, up=up, drained=drained):
            state.down.pop(node, None)
            if not up or drained:
                state.down[node] = (up, drained)
        case Submitted():
            state.number = max(state.number, fact.number)
            state.live[fact.job] = submitted(at, fact)
        case CurveMeasured():
            _learn(state, fact)
        case Forgotten(before=before):
            state.past = {name: job for name, job in state.past.items() if not is_old(job, before)}
        case _:
            _fold_job(state, at, fact)
    return state


def is_old(job: Job, before: float) -> bool:
    """Whether a job was over before a moment."""
    return job.finished_at is not None and job.finished_at < before


def fold_all(state: State, entries: Iterable[Entry]) -> State:
    """The state after a piece of the log."""
    for entry in entries:
        fold(state, entry.at, entry.fact)
    return state


def _fold_job(state: State, at: float, fact: AnyFact) -> None:
    job = state.live.get(fact.job or "")
    if job is None:
        return  # it is over, and what comes after the end changes nothing
    started = isinstance(fact, Training) and not job.training
    job = step(job, at, fact)
    if started and job.training and job.launched_at:
        state.starts = (*state.starts, at - job.launched_at)[-STARTS:]
    if isinstance(fact, Sized):
        known = state.known.get(job.signature, Known())
        state.known[job.signature] = replace(
            known,
            steps_per_epoch=job.steps_per_epoch or known.steps_per_epoch,
            virtual_workers=job.virtual_workers or known.virtual_workers,
        )
    if job.over and not job.alive:
        del state.live[job.id]
        state.past = {**state.past, job.id: job}
    else:
        state.live[job.id] = job


def _learn(state: State, fact: CurveMeasured) -> None:
    known = state.known.get(fact.signature, Known())
    curve = known.by_type.get(fact.device_type, NOTHING).learn(fact.points, fact.source, fact.struck)
    state.known[fact.signature] = replace(known, by_type={**known.by_type, fact.device_type: curve})
