"""What a master knows and has decided: one plain value, stored before anything that follows from it leaves.

Facts that agents repeat anyway (steps, busy times) are kept here too, but a change of them alone is not worth a write.
Everything is a struct of numbers, strings, lists and dicts, so that JSON gives back an equal state.
"""

from enum import StrEnum
from typing import Any

import msgspec

from melodeon.coord.hybrid import HybridConfig
from melodeon.coord.messages import Answer, Orders, Phase, Record
from melodeon.core.view import View


class JobConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What the person asked for, and how patient the master is."""

    job: str
    workers: int = 1
    """Workers at the start."""
    slots: dict[str, list[int]] = {}
    """The device slots, by agent, that the job has at the start: one worker on each, and nobody elsewhere. Empty: any,
    for `workers` workers."""
    min_workers: int = 1
    max_workers: int = 0
    """0: as many as there are virtual workers."""
    agents: int = 1
    """Agents expected at the start; workers are spread when they are there."""
    restarts: int = 0
    """How many lost workers may be replaced."""
    straggler_factor: float = 1.5
    """Slow: this many times the others' median. 0: nobody is watched."""
    straggler_patience: int = 10
    """Steps in a row before somebody is called slow."""
    hybrid: HybridConfig | None = None
    agents_s: float = 10.0
    """After this long the job starts with the agents that are there, if they have the slots; a new master changes it
    with those that it has heard."""
    broken_s: float = 0.5
    """A group that failed with nobody gone: wait this long for the news of a death, then regroup."""
    done_s: float = 2.0
    """Somebody has trained to the end and another has not for this long: the rest regroups."""
    leave_s: float = 30.0
    """A released worker that has not ended by then is killed."""
    release_s: float = 5.0
    """How long leavers wait at most for the first step that the others train without them: longer than most steps, and
    not so long that whoever gets their devices would notice."""
    pauses_s: float = 60.0
    """How long the record of a view waits for the workers' pauses."""


class JobPhase(StrEnum):
    """Where the job is."""

    STARTING = "starting"
    """Nobody has state; workers start, and the first view is made when all are ready."""
    TRAINING = "training"
    STOPPING = "stopping"
    """Told to end at the next boundary."""
    ENDED = "ended"


# Every move of a job. STARTING again: all who had state are gone, and restarts are left.
JOB_MOVES: dict[JobPhase, frozenset[JobPhase]] = {
    JobPhase.STARTING: frozenset({JobPhase.TRAINING, JobPhase.ENDED}),
    JobPhase.TRAINING: frozenset({JobPhase.STARTING, JobPhase.STOPPING, JobPhase.ENDED}),
    JobPhase.STOPPING: frozenset({JobPhase.ENDED}),
    JobPhase.ENDED: frozenset(),
}

# Every move of a worker, as the master sees it: reports may skip phases, and nobody comes back from GONE.
WORKER_MOVES: dict[Phase, frozenset[Phase]] = {
    Phase.STARTING: frozenset({Phase.READY, Phase.MEMBER, Phase.DONE, Phase.GONE}),
    Phase.READY: frozenset({Phase.MEMBER, Phase.DONE, Phase.GONE}),
    Phase.MEMBER: frozenset({Phase.DONE, Phase.GONE}),
    Phase.DONE: frozenset({Phase.GONE}),
    Phase.GONE: frozenset(),
}


class Stage(StrEnum):
    """Where a change of membership is."""

    QUEUED = "queued"
    STARTING = "starting"
    """Its new workers are being started."""
    SWITCHING = "switching"
    """A view is proposed that not all have entered."""
    OVER = "over"


STAGE_MOVES: dict[Stage, frozenset[Stage]] = {
    Stage.QUEUED: frozenset({Stage.STARTING, Stage.OVER}),
    Stage.STARTING: frozenset({Stage.SWITCHING, Stage.OVER}),
    # Back to STARTING: a loss interrupted the switch, and what is left of the change is looked at again.
    Stage.SWITCHING: frozenset({Stage.STARTING, Stage.OVER}),
    Stage.OVER: frozenset(),
}


class Change(msgspec.Struct, kw_only=True):
    """A wished change of membership. `adding` and `removing` are filled when its turn comes."""

    what: str
    """`scale_out`, `scale_in`, `scale`, `migrate`, `place`, `replace`, `preempt`, `rebalance`, `remove`, `resize`."""
    reason: str
    ask: str = ""
    """The ask to answer when it is over; empty: the master's own."""
    count: int = 0
    workers: list[int] = []
    """Workers named for removal."""
    on: str = ""
    """The agent that new workers must be on; empty: any."""
    slots: dict[str, list[int]] = {}
    """`place`: where its workers shall be, by agent."""
    waiting: list[tuple[str, int]] = []
    """`place`: (agent, slot) on which a worker is to be started once it is free."""
    adding: list[int] = []
    removing: list[int] = []
    stage: Stage = Stage.QUEUED
    views: int = 0
    """Views that it has proposed."""
    breaks: int = 0
    """Views of it that could not be entered, with nobody lost."""
    notes: list[str] = []
    """Sentences on what of it could not be done."""


class Told(msgspec.Struct, frozen=True):
    """What a worker's newest notice says; the view is named by its generation and kept once."""

    number: int = 0
    generation: int = 0
    released: bool = False
    stop: bool = False
    checkpoint: int = 0


class WorkerInfo(msgspec.Struct, kw_only=True):
    """One worker: where it is, how far, and what it was told."""

    worker: int
    agent: str
    slot: int
    phase: Phase = Phase.STARTING
    number: int = 0
    pid: int = 0
    generation: int = 0
    step: int = -1
    at: float = 0.0
    busy_s: tuple[float, ...] = ()
    pause_s: float = 0.0
    address: str = ""
    checkpoint: int = 0
    keeps: bool = True
    preempted: bool = False
    broken: int = 0
    digest: str = ""
    finished: bool = False
    """It was DONE; its end is then no loss."""
    error: str = ""
    exit_code: int | None = None
    released: bool = False
    weight: float = 0.0
    """Virtual workers a second, where it was measured; 0: unknown."""
    slow: int = 0
    """Slow steps in a row; below 0: so many that were not."""
    eased: bool = False
    """It was slow once and has been given fewer virtual workers."""
    helped: bool = False
    """Since then it was not slow for as long as it takes to be called so."""
    told: Told = Told()


class AgentInfo(msgspec.Struct, kw_only=True):
    """One agent, and the newest orders for it."""

    agent: str
    host: str
    slots: int
    incarnation: str = ""
    number: int = 0
    lost: bool = False
    heard: bool = False
    """It has reported in this master's term; before that it gets no orders."""
    orders: int = 0
    listed: tuple[tuple[int, int], ...] = ()
    """(worker, notice number) in the newest orders: they change when this does."""
    ended: str = ""


class Switch(msgspec.Struct, kw_only=True):
    """A view that all have entered and whose pauses are still awaited."""

    generation: int
    stayed: list[int]
    """The workers that trained in the view before: they will say how long they paused."""
    entry: dict[str, Any]
    """The line of history and of events.jsonl, but for the pauses."""
    ask: str = ""
    text: str = ""
    let_go: bool = False
    """Leavers need not wait for the others' first step any more."""


class Profile(msgspec.Struct, kw_only=True):
    """A walk over sizes, measuring each."""

    ask: str
    sizes: list[int]
    """Still to be measured, smallest first."""
    back_to: int = 0
    """How many workers there were when it set out; 0: changes from before it are still under way."""
    wanted: int = 0
    """How many workers were wanted at the start: fewer later, and somebody was lost for good."""
    steps: int = 20
    warmup: int = 3
    size: int = 0
    """The size being measured; 0: on the way to one."""
    marks: list[tuple[float, int]] = []
    """(time, step) seen at this size."""
    rates: dict[int, float] = {}


class Mark(msgspec.Struct, kw_only=True):
    """Where the measuring of the pace stands."""

    worker: int
    generation: int
    step: int
    at: float = 0.0
    """When that worker committed the step, by its own clock; 0: it is not there yet."""


class MasterState(msgspec.Struct, kw_only=True):
    """All of it."""

    config: JobConfig
    fence: int = 0
    phase: JobPhase = JobPhase.STARTING
    next_worker: int = 0
    generation: int = 0
    wanted: int = 0
    restarts_left: int = 0
    owed: int = 0
    """Workers to be started: all at the start, later replacements that wait for a free slot."""
    slots: dict[str, list[int]] = {}
    """The device slots that are the job's, by agent; empty: any."""
    virtual_workers: int = 0
    definition: str = ""
    total_steps: int | None = None
    """As the workers say; None: not known yet."""
    steps_per_epoch: int | None = None
    metrics: dict[str, float | None] = {}
    """The newest logged means; None: one that is not finite."""
    agents: dict[str, AgentInfo] = {}
    workers: dict[int, WorkerInfo] = {}
    view: View | None = None
    settled: View | None = None
    called_back: bool = False
    """Workers that were to leave were called back: they go when the job has somebody else, or has come to rest."""
    sent_off: bool = False
    """Since the job's slots were named some were sent off to them: whom that starts again costs restarts."""
    torn: str = ""
    """Not empty: the newest view cannot go on, and why; a new one is due."""
    queue: list[Change] = []
    current: Change | None = None
    switch: Switch | None = None
    profile: Profile | None = None
    judged: int = -1
    """The last step whose busy times were compared."""
    batch: tuple[int, int] = (1, 0)
    """Hybrid scaling: (factor, from generation), of the newest view that all have entered."""
    curves: dict[int, dict[int, float]] = {}
    """Batch factor -> workers -> steps a second, from profiles."""
    mark: Mark | None = None
    paces: dict[int, list[tuple[int, float]]] = {}
    """Workers -> (steps, seconds) of the newest stretches, while nothing changed."""
    checkpoint: int = 0
    """The highest checkpoint asked for."""
    checkpoint_asks: dict[str, int] = {}
    stop_ask: str = ""
    timers: dict[str, float] = {}
    """Name of a patience -> when it ends."""
    answers: dict[str, Answer] = {}
    """Newest answers, so that an ask that is repeated has one effect."""
    history: list[dict[str, Any]] = []
    outcome: str = ""
    text: str = ""
    digest: str = ""
    failed: tuple[int, int] | None = None
    """The worker whose script's error ended the job, and the exit code that its error stands for."""


class Outcome(msgspec.Struct, kw_only=True):
    """What the runner of the master has to do: store the state if `dirty`, and only then send the rest."""

    orders: dict[str, Orders] = {}
    answers: list[Answer] = []
    records: list[Record] = []
    wake_at: float | None = None
    """Call `on_tick` then, if nothing happens before."""
    dirty: bool = False


class Turn(msgspec.Struct):
    """One event being handled: the state, the time, and what it has brought about so far."""

    state: MasterState
    now: float
    answers: list[Answer] = []
    records: list[Record] = []
    dirty: bool = False

    def record(self, kind: str, **values: Any) -> None:
        """Write a line of events.jsonl."""
        self.records.append(Record(kind=kind, values=values))
        self.dirty = True

    def answer(self, ask: str, ok: bool, text: str, *, failed: bool = False, **values: Any) -> None:
        """Answer an ask, and remember the answer in case it is asked again."""
        if not ask or ask in self.state.answers:
            return
        answer = Answer(id=ask, ok=ok, text=text, values=values, failed=failed and not ok)
        self.answers.append(answer)
        self.state.answers[ask] = answer
        while len(self.state.answers) > ANSWERS_KEPT:
            del self.state.answers[next(iter(self.state.answers))]
        self.dirty = True

    def move_job(self, phase: JobPhase) -> None:
        """Move the job; a move that is not in the table is our own mistake."""
        assert phase in JOB_MOVES[self.state.phase], f"{self.state.phase} -> {phase}"
        self.state.phase = phase
        self.dirty = True

    def move_change(self, change: Change, stage: Stage) -> None:
        """Move a change along its table."""
        assert stage in STAGE_MOVES[change.stage], f"{change.stage} -> {stage}"
        change.stage = stage
        self.dirty = True

    def due(self, name: str, patience_s: float) -> bool:
        """Start the patience `name` if it does not run yet; True once it is over."""
        at = self.state.timers.setdefault(name, self.now + patience_s)
        return self.now >= at

    def calm(self, name: str) -> None:
        """The reason for the patience `name` has gone away."""
        self.state.timers.pop(name, None)


ANSWERS_KEPT = 256
