"""The controller's loop: an inbox of wishes and reports, one turn at a time, hands that follow what was stored.

    take everything from the inbox -> facts -> a round if anything happened -> store -> answer, publish, move

Storing runs in a thread of its own, so the loop goes on answering questions; what comes in meanwhile is stored together
in the next turn. When storing fails, wishes are refused, reports are kept, and the state is what it was.
"""

import asyncio
import traceback
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from time import perf_counter

from melodeon import __version__
from melodeon.backends.fleet_values import FleetLike, Seen
from melodeon.control import desk, forecast, orders
from melodeon.control.answers import Composer
from melodeon.control.events import Entry, Launched, Planned, PolicySet, Started
from melodeon.control.forecast import Played, Standing
from melodeon.control.hands import Hands, Report, Trouble
from melodeon.control.rounds import World, accepted_of, under
from melodeon.control.sight import Sight
from melodeon.control.specs import SpecBook
from melodeon.control.store import Sample, Store
from melodeon.control.story import told
from melodeon.control.trouble import said
from melodeon.control.turn import Turn, next_deadline
from melodeon.coord.failpoint import failpoint
from melodeon.core.cluster import Cluster
from melodeon.core.errors import MelodeonError, Unreachable
from melodeon.core.overhead import Overheads
from melodeon.core.service import EventInfo
from melodeon.sched.registry import make_policy
from melodeon.sched.tick import Rules, TickState

FLUSH_S = 2.0
"""Samples wait for so long for facts to be stored with."""
LONGEST_S = 60.0
"""The loop looks around at least so often: clocks may jump."""
RETRY_S = 1.0
RECENT = 5000
"""Lines of the log that are kept at hand for those who follow it."""
PLAN_EVERY_S = 2.0
FORGET_EVERY_S = 3600.0
"""How often jobs that have been over for long are looked for."""


class Clock:
    """A clock that never goes back: when the machine's does, time goes on from where it was."""

    def __init__(self, clock: Callable[[], float], last: float) -> None:
        self._clock, self._last, self._ahead = clock, last, 0.0

    def now(self) -> float:
        """The time, not before anything that was stored."""
        at = self._clock() + self._ahead
        if at < self._last - 1.0:
            self._ahead += self._last - at
        return max(at, self._last)

    def tick(self) -> float:
        """The time of a new turn: after that of the last one."""
        self._last = max(self.now(), self._last + 1e-6)
        return self._last


class Engine:
    """The loop and what it stands on. All of it belongs to one event loop."""

    def __init__(
        self,
        store: Store,
        fleet: FleetLike,
        cluster: Cluster,
        policy: str,
        state_dir: Path,
        rules: Callable[[], Rules],
        margin: float,
        overheads: Overheads,
        clock: Callable[[], float],
    ) -> None:
        self.store, self.fleet = store, fleet
        self.jobs_dir = state_dir.absolute() / "jobs"
        self.state, self.seq = store.load()
        self.clock = Clock(clock, self.state.now)
        name = self.state.policy or policy
        self.world = World(
            cluster=cluster,
            policy=make_policy(name),
            policy_name=name,
            rules=rules(),
            overheads=overheads,
            book=SpecBook(cluster, margin),
            margin=margin,
        )
        self._rules = rules
        """Asked in every turn: quotas may change while the service runs."""
        self.memory = TickState(accepted=accepted_of(self.state, self.clock.now()))
        self.sight = Sight({node.id: node.device_type for node in cluster.nodes})
        self.planned = Played()
        """When jobs will be done and what they hold until then, as last worked out."""
        self.rounds, self.round_s = 0, 0.0
        self.started_at = self.clock.now()
        self.trouble = ""
        """What the loop could not do last, in one sentence."""
        self._hands = Hands(fleet, self.report)
        self._reports: list[Report] = []
        self._wishes: list[desk.Wish] = []
        self._samples: list[Sample] = []
        self._flushed = self.clock.now()
        self._stirred = asyncio.Event()
        self.found = asyncio.Event()
        """The jobs that ran already are known again, as far as they have come."""
        self._news = asyncio.Event()
        self._recent: deque[EventInfo] = deque(maxlen=RECENT)
        self._wake_at: float | None = None
        self._deadline_at = next_deadline(self.state)
        self._forget_at = 0.0
        self._fresh = True
        """No round has been run yet."""
        self._writer = ThreadPoolExecutor(1, "store")
        self._planning: asyncio.Task[None] | None = None
        self._planned_at = 0.0

    # --- the inbox ---

    def report(self, report: Report) -> None:
        """Something was seen."""
        self._reports.append(report)
        self._stirred.set()

    async def ask(self, wish: desk.Wish) -> object:
        """Have a wish taken in; returns when it is stored."""
        self._wishes.append(wish)
        self._stirred.set()
        return await wish.answer

    # --- life ---

    async def run(self) -> None:
        """Find what runs, then turn until cancelled."""
        await self.begin()
        observer = asyncio.get_running_loop().create_task(self._observe(), name="observe")
        try:
            while True:
                if not self._stirred.is_set():
                    # Not `wait_for`, which forgets that it was cancelled where both happen at once.
                    with suppress(TimeoutError):
                        async with asyncio.timeout(self._patience_s()):
                            await self._stirred.wait()
                await self.turn()
                self.found.set()
        finally:
            observer.cancel()
            for wish in self._wishes:
                if not wish.answer.done():
                    wish.answer.set_exception(Unreachable("the controller is stopping: ask again in a moment"))
            self._wishes = []
            await asyncio.gather(observer, return_exceptions=True)

    async def begin(self) -> None:
        """Say that a controller is here, and find the jobs that run already."""
        turn = Turn(self.state, self.clock.tick(), self.world, self.memory)
        nodes = tuple((n.id, str(n.device_type), n.num_devices, n.rack) for n in self.world.cluster.nodes)
        if self.state.nodes and self.state.nodes != nodes:
            for job in [job for job in self.state.live.values() if job.slots]:
                why = "the cluster's devices are not those of before"
                turn.say(Planned(job=job.id, counts=(), placement=(), slots={}, why=why))
        turn.say(Started(version=__version__, policy=self.world.policy_name, nodes=nodes))
        await self._store(turn)
        for job in list(self.state.live.values()):
            if job.alive:
                failpoint("control.adopt")
                try:
                    self.report(await self.fleet.adopt(self.jobs_dir / job.id, job.id, job.incarnation))
                except MelodeonError as error:
                    # Hands launch what nobody has seen, and a fleet finds what was launched before.
                    self.report(Trouble(job.id, job.incarnation, str(error)))
        self._stirred.set()

    async def close(self) -> None:
        """Let go of everything; jobs go on."""
        await self._hands.close()
        if self._planning is not None:
            self._planning.cancel()
            await asyncio.gather(self._planning, return_exceptions=True)
        await self.fleet.close()
        self._writer.shutdown(wait=True)
        self.store.close()

    async def settle(self) -> None:
        """Wait until no hand moves; for tests that move the clock themselves."""
        await self._hands.settle()

    async def _observe(self) -> None:
        async for seen in self.fleet.observe():
            self.report(seen)

    def _patience_s(self) -> float:
        now = self.clock.now()
        moments = [m for m in (self._wake_at, self._deadline_at) if m is not None]
        if self._samples:
            moments.append(self._flushed + FLUSH_S)
        return max(0.0, min([LONGEST_S, *(moment - now for moment in moments)]))

    @property
    def wake_at(self) -> float | None:
        """When the policy wants to decide again."""
        return self._wake_at

    # --- one turn ---

    async def turn(self) -> None:
        """Take everything that came in, decide, store, and tell."""
        self._stirred.clear()
        reports, self._reports = self._reports, []
        wishes, self._wishes = _this_turn(self._wishes)
        if self._wishes:
            self._stirred.set()
        world, memory = under(self._rules(), self.world, self.state, self.memory, self.clock.now())
        turn = Turn(self.state, self.clock.tick(), world, memory)
        for report in reports:
            self._take(turn, report)
        self._samples += self.sight.samples(iter(reports), turn.before, turn.now)
        composer = Composer(turn, wishes, self.sight.seen, self.jobs_dir)
        try:
            await self._decide(turn, composer)
            await self._store(turn)
        except asyncio.CancelledError:
            self._wishes = [*wishes, *self._wishes]  # whoever stops the loop tells them
            raise
        except MelodeonError as error:
            self._refuse(wishes, reports, error)
            return
        except Exception as error:  # noqa: BLE001 - our own mistake: said, and the cluster goes on as it was
            traceback.print_exc()
            self._refuse(wishes, reports, MelodeonError(f"the controller failed ({type(error).__name__}: {error})"))
            return
        composer.tell()
        self._follow(turn)

    def _take(self, turn: Turn, report: Report) -> None:
        """The facts in a report. One that cannot be understood is dropped: kept, it would come again for ever."""
        if isinstance(report, Seen):
            self._hands.saw(report)
        try:
            turn.say(*self.sight.take(turn.state, report, turn.now))
        except Exception as error:  # noqa: BLE001 - our own mistake about one job must not stop the others
            traceback.print_exc()
            self.trouble = f"a report of {report.job} was not understood ({type(error).__name__}: {error})"

    async def _decide(self, turn: Turn, composer: Composer) -> None:
        turn.progress = self.sight.progress(turn.state)
        composer.take_in()
        if self._deadline_at is not None and turn.now >= self._deadline_at:
            turn.deadlines()
        if turn.now >= self._forget_at:
            self._forget_at = turn.now + FORGET_EVERY_S
            turn.forget(turn.now - self.store.keep_s)
        if any(isinstance(fact, PolicySet) for fact in turn.facts):
            name = turn.state.policy
            turn.world = replace(turn.world, policy=make_policy(name), policy_name=name)
            turn.memory = TickState(accepted=turn.memory.accepted)
        due = self._wake_at is not None and turn.now >= self._wake_at
        turn.wake_at = self._wake_at
        if turn.facts or due or self._fresh:
            self._round(turn)
        turn.launches()
        composer.try_out()
        await composer.look_ahead()
        composer.compose()

    def _round(self, turn: Turn) -> None:
        try:
            turn.take(turn.decide())
        except Exception as error:  # noqa: BLE001 - a policy's mistake must not stop the cluster
            failed = f"policy {turn.world.policy_name} failed ({type(error).__name__}: {error})"
            self.trouble = said(f"{failed}: decided again without its memory", self.trouble)
            turn.memory = TickState(accepted=turn.memory.accepted)
            try:
                turn.take(turn.decide())
            except Exception as again:
                raise MelodeonError(f"{failed}, and again without its memory: nothing was changed") from again

    async def _store(self, turn: Turn) -> None:
        """Make a turn durable, then everybody's."""
        flush = turn.now - self._flushed >= FLUSH_S
        if not turn.facts and not turn.answers and not (self._samples and flush):
            self._adopt(turn, self.seq)
            return
        # Said first: what has no words is not stored, or it would stand in everybody's way for good.
        news = [told(Entry(self.seq + number, turn.now, fact)) for number, fact in enumerate(turn.facts, 1)]
        turn.samples, self._samples, self._flushed = self._samples, [], turn.now
        failpoint("control.store.before")
        seq = await asyncio.get_running_loop().run_in_executor(self._writer, self._write, turn)
        failpoint("control.store.after")
        self._adopt(turn, seq)
        self._tell(news)

    def _write(self, turn: Turn) -> int:
        """In the store's thread."""
        seq = self.store.append(turn.batch())
        for fact in turn.facts:
            job = turn.state.live.get(fact.job or "")
            if isinstance(fact, Launched) and job is not None:
                with suppress(OSError):  # the fleet says what is wrong with the folder
                    orders.prepare(self.jobs_dir / job.id, job)
        if self.store.snapshot_due(turn.state):
            self.store.snapshot(turn.state, seq)
        return seq

    def _adopt(self, turn: Turn, seq: int) -> None:
        self.state, self.seq, self.world, self.memory = turn.state, seq, turn.world, turn.memory
        if turn.rounds:
            self._fresh, self._wake_at = False, turn.wake_at
            self.rounds, self.round_s = self.rounds + turn.rounds, turn.round_s
        if turn.facts:
            self._deadline_at = next_deadline(self.state)

    def _tell(self, news: Sequence[EventInfo]) -> None:
        """Whoever follows the log hears of what was stored."""
        if news:
            self._recent += news
            heard, self._news = self._news, asyncio.Event()
            heard.set()

    def _refuse(self, wishes: Sequence[desk.Wish], reports: list[Report], error: MelodeonError) -> None:
        """Nothing of this turn came to be."""
        self.trouble = said(str(error), self.trouble)
        for wish in wishes:
            if not wish.answer.done():
                wish.answer.set_exception(error)
        self._reports = [*reports, *self._reports]
        with suppress(MelodeonError):
            state, seq = self.store.load()
            if seq != self.seq:  # it was stored although it did not look so
                self.state, self.seq, self.store.seq = state, seq, seq
                self.memory = TickState(accepted=accepted_of(state, self.clock.now()))
        asyncio.get_running_loop().call_later(RETRY_S, self._stirred.set)

    def _follow(self, turn: Turn) -> None:
        """Have hands move, and everything else that follows from what was stored."""
        self._hands.want(orders.intents(self.state, self.world, self.jobs_dir))
        if turn.state.past is not turn.before.past:
            self.sight.forget(self.state)
            self.world.book.forget(self.state.live)
        if turn.facts:
            self._replan(turn.now)

    # --- followers ---

    def follow(self, after: int | None) -> AsyncIterator[EventInfo]:
        """The log as it grows, after a number; None: from this call on."""
        return self._lines(self.seq if after is None else after)

    async def _lines(self, at: int) -> AsyncIterator[EventInfo]:
        while True:
            news = self._news
            oldest = self._recent[0].seq if self._recent else self.seq + 1
            if at + 1 < oldest <= self.seq + 1 and at < self.seq:
                batch = [told(entry) for entry in self.store.events(at, None, 500)]
            else:
                batch = [event for event in self._recent if event.seq > at]
            for event in batch:
                at = event.seq
                yield event
            if not batch:
                await news.wait()

    # --- when jobs will be done ---

    def _replan(self, now: float) -> None:
        busy = self._planning is not None and not self._planning.done()
        if busy or now - self._planned_at < PLAN_EVERY_S:
            return
        standing = Standing.of(self.state, self.world, self.memory, self.sight.progress(self.state), self.clock.now())
        self._planned_at = now
        if len(standing.view.jobs) > forecast.PLAYED_LATER:
            self.planned = Played(standing.foretold())
        else:
            self._planning = asyncio.get_running_loop().create_task(self._plan(standing), name="plan")

    async def _plan(self, standing: Standing) -> None:
        started = perf_counter()
        self.planned = await asyncio.to_thread(standing.played)
        # What took long is done less often.
        self._planned_at = self.clock.now() + 10 * (perf_counter() - started)


def _this_turn(wishes: list[desk.Wish]) -> tuple[list[desk.Wish], list[desk.Wish]]:
    """The wishes of one turn, in order, and those that must wait: a policy can forget but one old promise at a time."""
    edits = [wish for wish in wishes if isinstance(wish, desk.Edit)]
    later = edits[1:]
    now = [wish for wish in wishes if not any(wish is other for other in later)]
    return sorted(now, key=lambda wish: desk.ORDER.index(type(wish))), list(later)
