"""The cluster's daemon as everybody else sees it: what can be asked of it and what it answers.

    submit, cancel, ... --> inbox --+                        +--> answers
    fleet.observe() ------> inbox --+--> turn --> store ---> +--> subscribers
    wake_at, deadlines -------------+                        +--> hands --> fleet

A wish is answered when what it says is on disk. Everything that is done follows from the state, so a controller that is
killed and started again finds the jobs that run by their incarnation, and goes on. The loop is in `control.engine`.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from itertools import chain
from pathlib import Path

import msgspec

from melodeon import __version__
from melodeon.backends.fleet_values import FleetLike
from melodeon.control import desk, infos, orders, story, whatif
from melodeon.control.curves import signature_of
from melodeon.control.engine import Engine
from melodeon.control.events import Submitted
from melodeon.control.job import Job, submitted
from melodeon.control.rounds import policy_of, view_of
from melodeon.control.specs import UNKNOWN, SpecBook, check_fits, known_curves, length_of
from melodeon.control.store import Store
from melodeon.core.cluster import Cluster
from melodeon.core.errors import NotFound, UsageError
from melodeon.core.overhead import Overheads, Pause
from melodeon.core.service import (
    EventInfo,
    JobInfo,
    LogChunk,
    NodeInfo,
    Overview,
    Phase,
    Sentence,
    Series,
    Submission,
    Timeline,
    WhatIf,
)
from melodeon.core.spec import Spec
from melodeon.sched.registry import make_policy
from melodeon.sched.tick import NO_RULES, Rules, TickState

LIVE = Overheads(
    default=Pause(base_s=0.5, large_s=2.0, connect_s=0.2),
    start=Pause(base_s=4.0, large_s=10.0, connect_s=0.0),
    first_start=True,
)
"""What changes of workers cost on one machine; for starts, until enough are seen (`rounds.FEW_STARTS`)."""
LOG_LOOK_S = 0.25
"""How often a growing log is looked at for somebody who waits."""
STORY = 5000
"""Facts of one job that its story is made from."""


class Controller:
    """The cluster's daemon. All of it belongs to one event loop; what is not async answers from memory or a quick read.

    Wishes (the async methods) are answered while `run()` runs.
    """

    def __init__(
        self,
        store: Store,
        fleet: FleetLike,
        cluster: Cluster,
        *,
        policy: str,
        state_dir: Path,
        rules: Callable[[], Rules] = lambda: NO_RULES,
        margin: float = 0.1,
        overheads: Overheads = LIVE,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if not 0 <= margin < 1:
            raise UsageError(f"margin {margin} must be from 0 to below 1: it is a part of the time to a deadline")
        make_policy(policy)
        self.cluster = cluster
        self.engine = Engine(store, fleet, cluster, policy, state_dir, rules, margin, overheads, clock)
        self._asked: dict[str, tuple[str, asyncio.Future[object]]] = {}
        """Requests that are not answered yet."""

    # --- wishes ---

    async def submit(
        self, spec: Spec, *, user: str, request_id: str | None = None, dry_run: bool = False
    ) -> Submission:
        """Judge a job and take it in; answered once it is stored. The same request id gives the same answer."""
        spec = _at_home(spec)
        check_fits(spec, self.cluster)
        spec.deadline_at(self.engine.clock.now())
        file = spec.to_json()
        asked = desk.asked_digest(file)
        key = f"{user}/{request_id}" if request_id is not None and not dry_run else None
        if key is not None:
            kept = self.engine.store.answer(key)
            if kept is not None:
                _check_same(kept.asked, asked, request_id)
                return msgspec.json.decode(kept.body, type=Submission)
            if key in self._asked:
                before, answer = self._asked[key]
                _check_same(before, asked, request_id)
                made = await asyncio.shield(answer)
                assert isinstance(made, Submission)
                return made
        wish = desk.Submit(
            user=user,
            answer=self._future(),
            spec=spec,
            file=file,
            signature="",
            request=key,
            asked=asked,
            dry=dry_run,
        )
        if key is not None:
            self._asked[key] = (asked, wish.answer)
        try:
            wish.signature = signature_of(spec, await asyncio.to_thread(orders.script_digest, spec))
            made = await self.engine.ask(wish)
        finally:
            if key is not None:
                del self._asked[key]
        assert isinstance(made, Submission)
        return made

    async def edit(self, job: str, changes: Mapping[str, object], *, user: str) -> Submission:
        """Change fields of a job's file (see `desk.EDITABLE`); it is judged again, and stays as it was if refused."""
        desk.edited(self._find(job), changes)
        made = await self.engine.ask(desk.Edit(user=user, answer=self._future(), name=job, changes=changes))
        assert isinstance(made, Submission)
        return made

    async def cancel(self, job: str, *, user: str, request_id: str | None = None) -> JobInfo:  # noqa: ARG002
        """End a job for good, whatever it is doing; asking again changes nothing, with the same request id or not."""
        self._find(job)
        made = await self.engine.ask(desk.Cancel(user=user, answer=self._future(), name=job))
        assert isinstance(made, JobInfo)
        return made

    async def scale(self, job: str, workers: int | None, *, user: str) -> JobInfo:
        """Fix a job's number of workers; None: back to the policy."""
        self._find(job)
        made = await self.engine.ask(desk.Scale(user=user, answer=self._future(), name=job, workers=workers))
        assert isinstance(made, JobInfo)
        return made

    async def set_policy(self, name: str, *, user: str) -> str:
        """Decide by another policy from now on; what the old one remembered is dropped."""
        make_policy(name)
        return str(await self.engine.ask(desk.SetPolicy(user=user, answer=self._future(), name=name)))

    async def set_node(self, node: str, *, up: bool | None = None, drained: bool | None = None, user: str) -> NodeInfo:
        """Say that a node is up or down, or to be left empty."""
        wish = desk.SetNode(user=user, answer=self._future(), name=node, up=up, drained=drained)
        made = await self.engine.ask(wish)
        assert isinstance(made, NodeInfo)
        return made

    # --- answers ---

    def job(self, job: str) -> JobInfo:
        """A job by its id; NotFound names the nearest."""
        return self._info(self._find(job))

    def find(self, prefix: str) -> JobInfo:
        """A job by its id, its name where one job alone has it, the beginning of an id, or `last`."""
        state = self.engine.state
        exact = state.job(prefix)
        if exact is not None:
            return self._info(exact)
        known = sorted(chain(state.past.values(), state.live.values()), key=lambda job: job.number)
        if prefix == "last":
            if not known:
                raise NotFound("no job was submitted here so far: submit one by `melodeon submit FILE`")
            return self._info(known[-1])
        named = [job for job in known if job.id == f"{prefix}-{job.number}"]
        fitting = named if len(named) == 1 else [job for job in known if prefix and job.id.startswith(prefix)]
        if len(fitting) == 1:
            return self._info(fitting[0])
        if fitting:
            names = ", ".join(job.id for job in fitting[-5:])
            raise NotFound(f"job {prefix!r} could be any of {len(fitting)}, such as {names}: give more of its id")
        return self._info(self._find(prefix))

    def jobs(
        self, phase: Phase | None = None, user: str | None = None, after: str | None = None, limit: int = 100
    ) -> tuple[JobInfo, ...]:
        """Jobs in order of submission, after the one named."""
        state = self.engine.state
        first = self._find(after).number if after else 0
        fitting = [
            job
            for job in chain(state.past.values(), state.live.values())
            if job.number > first and (phase is None or job.phase is phase) and (user is None or job.user == user)
        ]
        fitting.sort(key=lambda job: job.number)
        return tuple(self._info(job) for job in fitting[:limit])

    def overview(self) -> Overview:
        """The cluster now."""
        engine, state = self.engine, self.engine.state
        nodes = self.nodes()
        return Overview(
            now=engine.clock.now(),
            policy=engine.world.policy_name,
            num_devices=sum(node.num_devices for node in nodes),
            devices_up=sum(node.num_devices for node in nodes if node.up and not node.drained),
            devices_used=sum(job is not None for node in nodes for job in node.jobs),
            jobs=infos.phases(state),
            rounds=engine.rounds,
            round_ms=engine.round_s * 1000,
            started_at=engine.started_at,
            version=__version__,
        )

    def nodes(self) -> tuple[NodeInfo, ...]:
        """The nodes, and who holds their devices."""
        return infos.node_infos(self.engine.state, self.cluster)

    def events(self, after: int = 0, job: str | None = None, limit: int = 200) -> tuple[EventInfo, ...]:
        """The log from after a number on, oldest first."""
        return tuple(story.told(entry) for entry in self.engine.store.events(after, job, limit))

    def subscribe(self, after: int | None = None) -> AsyncIterator[EventInfo]:
        """The log as it grows; None: from now on."""
        return self.engine.follow(after)

    def timeline(self, since: float, until: float) -> Timeline:
        """Who held which devices, and what is planned."""
        engine, now = self.engine, self.engine.clock.now()
        held = infos.timeline(engine.store.spans(since, until), self.cluster, since, until)
        return replace(held, planned=infos.to_come(engine.planned.shares, now, until))

    def series(self, job: str) -> Series:
        """What a job did over time."""
        store, name = self.engine.store, self._find(job).id
        return infos.series(store.samples(name), store.held(name), store.events(0, name, STORY))

    def story(self, job: str) -> tuple[Sentence, ...]:
        """What happened to a job, in sentences."""
        found = self._find(job)
        entries = self.engine.store.events(0, found.id, STORY)
        return story.story_of(entries, self.engine.clock.now(), self._info(found).step)

    async def logs(self, job: str, start: str = "", worker: int | None = None, wait_s: float = 0.0) -> LogChunk:
        """A piece of a job's output; waits up to `wait_s` for some."""
        name = self._find(job).id
        until = time.monotonic() + wait_s
        while True:
            fleet, folder = self.engine.fleet, self.engine.jobs_dir / name
            chunk = await asyncio.to_thread(fleet.logs, folder, start, worker)
            over = self._find(name).over and not self._find(name).alive
            if chunk.text or over or time.monotonic() >= until:
                return replace(chunk, over=over and not chunk.text)
            await asyncio.sleep(min(LOG_LOOK_S, max(0.0, until - time.monotonic())))

    async def whatif(self, policy: str | None = None, spec: Spec | None = None, *, user: str = "") -> WhatIf:
        """The cluster played forward from now, under another policy, or with one more job."""
        engine, state, now = self.engine, self.engine.state, self.engine.clock.now()
        if len(state.live) > whatif.ASKED:
            raise UsageError(
                f"{len(state.live)} jobs are too many to play forward while they run: ask again below {whatif.ASKED}"
            )
        world, memory = engine.world, engine.memory
        if policy is not None and policy != world.policy_name:
            world = replace(world, policy=make_policy(policy), policy_name=policy)
            memory = TickState(accepted=memory.accepted)
        origin = state.origin if state.origin is not None else now
        deadlines: dict[str, float | None] = {name: job.deadline_at for name, job in state.live.items()}
        newcomer = None
        if spec is not None:
            job = await self._imagined(spec, user, now)
            known = state.known.get(job.signature, UNKNOWN)
            newcomer = SpecBook(self.cluster, world.margin).told(job, known, origin)
            deadlines[job.id] = job.deadline_at
        view = view_of(state, world, engine.sight.progress(state), now)
        if not view.jobs and newcomer is None:
            return WhatIf(
                policy=world.policy_name,
                jobs=(),
                makespan_s=0.0,
                mean_jct_s=None,
                deadlines_met=0,
                deadlines=0,
                rejected=0,
            )
        fixed = policy_of(state, world).fixed
        found = await asyncio.to_thread(whatif.what_if, view, world, fixed, memory, newcomer)
        return whatif.answer(found, world.policy_name, origin, deadlines)

    # --- life ---

    async def run(self) -> None:
        """Find the jobs that run already, then decide and act until cancelled; jobs go on after that."""
        await self.engine.run()

    async def close(self) -> None:
        """Let go of the fleet and the store."""
        await self.engine.close()

    # --- inside ---

    def _future(self) -> "asyncio.Future[object]":
        return asyncio.get_running_loop().create_future()

    def _find(self, name: str) -> Job:
        state = self.engine.state
        job = state.job(name)
        if job is not None:
            return job
        near = get_close_matches(name, [*state.live, *list(state.past)[-1000:]], n=1, cutoff=0.6)
        hint = f"did you mean {near[0]!r}?" if near else "see `melodeon ps`"
        raise NotFound(f"job {name!r} is not known here: {hint}")

    def _info(self, job: Job) -> JobInfo:
        engine = self.engine
        return infos.job_info(
            job,
            engine.state,
            engine.world,
            engine.sight.seen.get(job.id),
            engine.planned.ends.get(job.id),
            job_dir=str(engine.jobs_dir / job.id),
            now=engine.clock.now(),
        )

    async def _imagined(self, spec: Spec, user: str, now: float) -> Job:
        """A job that nobody has submitted; its speed must be known."""
        check_fits(spec, self.cluster)
        spec = _at_home(spec)
        signature = signature_of(spec, await asyncio.to_thread(orders.script_digest, spec))
        fact = Submitted(
            job=f"{spec.name}-new",
            number=0,
            user=user,
            spec=spec.to_json(),
            deadline_at=spec.deadline_at(now),
            signature=signature,
            measure=False,
        )
        job = submitted(now, fact)
        known = self.engine.state.known.get(signature, UNKNOWN)
        if not known_curves(spec, known, self.cluster) or length_of(job, spec, known) is None:
            raise UsageError(
                f"nothing is known of the speed of {spec.name!r} yet: give its curve, such as {{1: 3.5, 2: 6.8}}, or "
                "submit it once"
            )
        return job


def _check_same(before: str, now: str, request_id: str | None) -> None:
    if before != now:
        raise UsageError(f"request id {request_id!r} was used for another job: use a new one for each submission")


def _at_home(spec: Spec) -> Spec:
    """The job with its folder named from the root on."""
    return spec if spec.workdir.startswith("/") else replace(spec, workdir=str(Path(spec.workdir).absolute()))
