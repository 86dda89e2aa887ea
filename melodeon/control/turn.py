"""One turn of the controller: facts are folded into a draft of the state; all of them are stored, or none.

    reports and wishes -> facts -> a round -> more facts -> launches -> stored together -> everybody sees it

Nobody sees the draft before it is stored. What a turn leaves is told by comparing the draft with the state before.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from time import perf_counter

from melodeon.control.events import AnyFact, Forgotten, Late, Launched
from melodeon.control.job import Job
from melodeon.control.rounds import Found, Progress, World, run_round
from melodeon.control.state import State, fold, is_old
from melodeon.control.store import Answer, Batch, Holding, Sample
from melodeon.core.service import Phase
from melodeon.sched.tick import TickState


@dataclass(slots=True)
class Turn:
    """A draft of the next state. Mutable, and private to one turn."""

    before: State
    now: float
    world: World
    memory: TickState
    progress: dict[str, Progress] = field(default_factory=dict)
    state: State = field(init=False)
    facts: list[AnyFact] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    wake_at: float | None = None
    round_s: float = 0.0
    rounds: int = 0

    def __post_init__(self) -> None:
        self.state = self.before.draft()

    def say(self, *facts: AnyFact) -> None:
        """Add facts."""
        for fact in facts:
            fold(self.state, self.now, fact)
            self.facts.append(fact)

    def decide(self, rejudge: Iterable[str] = ()) -> Found:
        """Run a round on the draft, without taking over what it finds."""
        started = perf_counter()
        found = run_round(self.state, self.world, self.progress, self.memory, self.now, frozenset(rejudge))
        self.round_s, self.rounds = perf_counter() - started, self.rounds + 1
        return found

    def take(self, found: Found) -> None:
        """Take over what a round found."""
        self.say(*found.facts)
        self.memory, self.wake_at = found.memory, found.wake_at

    def trial(self) -> "Turn":
        """A turn on top of this one that can be thrown away."""
        world = replace(self.world, book=self.world.book.branch())
        return Turn(self.state, self.now, world, self.memory, self.progress)

    def launches(self) -> None:
        """Start every job that has devices and does not run."""
        for job in list(self.state.live.values()):
            if job.slots and not job.alive and job.phase in (Phase.WAITING, Phase.PROFILING):
                self.say(Launched(job=job.id, incarnation=job.incarnation + 1, slots=job.slots))

    def deadlines(self) -> None:
        """Note the deadlines that have passed."""
        for job in list(self.state.live.values()):
            if is_due(job) and job.deadline_at is not None and job.deadline_at <= self.now:
                self.say(Late(job=job.id))

    def forget(self, before: float) -> None:
        """Forget the jobs that were over before a moment."""
        if any(is_old(job, before) for job in self.state.past.values()):
            self.say(Forgotten(before=before))

    def batch(self) -> Batch:
        """What is to be stored."""
        return Batch(
            at=self.now,
            facts=self.facts,
            answers=self.answers,
            holdings=tuple(self._holdings()),
            samples=self.samples,
        )

    def _holdings(self) -> Iterator[Holding]:
        touched = dict.fromkeys(fact.job for fact in self.facts if fact.job is not None)
        for name in touched:
            old, new = self.before.job(name), self.state.job(name)
            assert new is not None, "facts are about jobs that are there"
            if new.slots != (old.slots if old is not None else {}):
                yield Holding(name, new.slots, new.why)


def is_due(job: Job) -> bool:
    """Whether the passing of its deadline is still to be noted."""
    return job.deadline_at is not None and not job.late and job.judged_at is not None and not job.over


def next_deadline(state: State) -> float | None:
    """When the next deadline passes, for anybody who waits for one."""
    moments = [
        job.deadline_at
        for job in state.live.values()
        if job.deadline_at is not None and (is_due(job) or (job.judged_at is None and not job.over))
    ]
    return min(moments, default=None)
