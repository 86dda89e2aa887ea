"""The answers of one turn: read off the draft, kept with the facts that they stand for, told when both are stored."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from melodeon.backends.fleet_values import Seen
from melodeon.control import desk, forecast
from melodeon.control.events import Edited, EditRefused
from melodeon.control.forecast import Standing
from melodeon.control.infos import job_info, node_infos
from melodeon.control.job import Job
from melodeon.control.store import Answer
from melodeon.control.turn import Turn
from melodeon.core.errors import MelodeonError
from melodeon.core.moments import day_and_clock
from melodeon.core.service import JobInfo, Phase, Submission


@dataclass(slots=True)
class Composer:
    """The wishes of one turn and what they are told."""

    turn: Turn
    wishes: Sequence[desk.Wish]
    seen: Mapping[str, Seen]
    jobs_dir: Path
    _planned: dict[tuple[int, str], float] = field(default_factory=dict)
    """By draft and job: when it will be done, where that was worked out."""
    _taken: list[desk.Wish] = field(default_factory=list)
    _trials: dict[int, Turn] = field(default_factory=dict)
    """By wish: the draft on which it was tried."""
    _told: list[tuple[desk.Wish, object]] = field(default_factory=list)

    def take_in(self) -> None:
        """The facts of every wish; what is wrong with one is told at once."""
        for wish in self.wishes:
            if isinstance(wish, desk.Submit) and wish.dry:
                continue
            try:
                desk.take_in(self.turn, wish)
            except MelodeonError as error:
                _fail(wish, error)
            else:
                self._taken.append(wish)

    def try_out(self) -> None:
        """What would become of jobs that are not really submitted, each by itself."""
        for wish in self.wishes:
            if isinstance(wish, desk.Submit) and wish.dry:
                trial = self.turn.trial()
                try:
                    desk.take_in(trial, wish)
                    trial.take(trial.decide())
                except MelodeonError as error:
                    _fail(wish, error)
                else:
                    self._trials[id(wish)] = trial
                    self._taken.append(wish)

    async def look_ahead(self) -> None:
        """When the jobs that were submitted or changed will be done."""
        asked: dict[int, tuple[Turn, list[str]]] = {}
        for wish in self._taken:
            if isinstance(wish, desk.Submit | desk.Edit):
                turn = self._trials.get(id(wish), self.turn)
                asked.setdefault(id(turn), (turn, []))[1].append(wish.name)
        for turn, names in asked.values():
            standing = Standing.of(turn.state, turn.world, turn.memory, turn.progress, turn.now)
            found: Mapping[str, float]
            if len(standing.view.jobs) > forecast.PLAYED:
                found = standing.latest(names)
            else:
                found = (await asyncio.to_thread(standing.played)).ends
            self._planned |= {(id(turn), name): found[name] for name in names if name in found}

    def compose(self) -> None:
        """Make the answers; those to requests with an id are stored."""
        for wish in self._taken:
            made = self._answer(wish)
            if isinstance(wish, desk.Submit) and wish.request is not None and not wish.dry:
                self.turn.answers.append(Answer(wish.request, wish.asked, msgspec.json.encode(made)))
            self._told.append((wish, made))

    def tell(self) -> None:
        """Give the answers."""
        for wish, made in self._told:
            if not wish.answer.done():
                wish.answer.set_result(made)

    def _answer(self, wish: desk.Wish) -> object:
        turn = self._trials.get(id(wish), self.turn)
        match wish:
            case desk.Submit():
                return self._submission(turn, wish.name, dry_run=wish.dry)
            case desk.Edit():
                return self._edited(turn, wish)
            case desk.Cancel() | desk.Scale():
                return self._info(turn, wish.name)
            case desk.SetNode():
                return next(node for node in node_infos(turn.state, turn.world.cluster) if node.id == wish.name)
            case _:
                return turn.state.policy

    def _job(self, turn: Turn, name: str) -> Job:
        job = turn.state.job(name)
        assert job is not None, "answers are about jobs that are there"
        return job

    def _info(self, turn: Turn, name: str) -> JobInfo:
        return job_info(
            self._job(turn, name),
            turn.state,
            turn.world,
            self.seen.get(name),
            self._planned.get((id(turn), name)),
            job_dir=str(self.jobs_dir / name),
            now=turn.now,
        )

    def _submission(self, turn: Turn, name: str, *, dry_run: bool = False) -> Submission:
        job, info = self._job(turn, name), self._info(turn, name)
        admitted = None if job.judged_at is None else job.phase is not Phase.REJECTED
        text = desk.submission_text(job, info.planned_finish_at, turn.now)
        if dry_run:
            text = text.replace(f"{name} is", "it would be", 1).replace("starts", "start").replace("waits", "wait")
            info = replace(info, id="")
        return Submission(
            job=info,
            admitted=admitted,
            text=text,
            next="" if dry_run and admitted is not False else desk.next_step(job, turn.now),
            dry_run=dry_run,
        )

    def _edited(self, turn: Turn, wish: desk.Edit) -> Submission:
        facts = [fact for fact in turn.facts if isinstance(fact, Edited | EditRefused) and fact.job == wish.name]
        info, job = self._info(turn, wish.name), self._job(turn, wish.name)
        if not facts:
            return Submission(job=info, admitted=True, text=f"{job.id} is so already", next=f"melodeon show {job.id}")
        fact = facts[-1]
        if isinstance(fact, EditRefused):
            text = f"{job.id} stays as it was: {fact.why}"
            command = f"melodeon show {job.id}"
            if fact.earliest_at is not None:
                text += f"; the earliest deadline that would be accepted is {day_and_clock(fact.earliest_at, turn.now)}"
                command = f"melodeon edit {job.id} --deadline {desk.seconds(fact.earliest_at - turn.now)}"
            info = replace(info, earliest_deadline_at=fact.earliest_at)
            return Submission(job=info, admitted=False, text=text, next=command)
        admitted = None if job.judged_at is None else True
        text = f"{job.id} is changed ({', '.join(fact.changed)})"
        return Submission(
            job=info,
            admitted=admitted,
            text=f"{text}: {fact.why}" if fact.why else text,
            next=f"melodeon show {job.id}",
        )


def _fail(wish: desk.Wish, error: MelodeonError) -> None:
    if not wish.answer.done():
        wish.answer.set_exception(error)
