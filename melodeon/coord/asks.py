"""What people and controllers ask for: checked, and turned into a change, a flag, or an answer at once."""

from collections.abc import Callable
from typing import Any

import msgspec

from melodeon.coord.changes import cancel, supersede
from melodeon.coord.ending import end_job, tell_end
from melodeon.coord.master_state import Change, JobPhase, Turn
from melodeon.coord.messages import Answer, Ask
from melodeon.coord.placing import in_words, read_slots, refusal
from melodeon.coord.profiling import begin_profile, drop_profile
from melodeon.coord.status import status_values
from melodeon.coord.views import changes, places, seated


def take_ask(turn: Turn, ask: Ask) -> None:
    """One effect and one answer for each id, however often it comes."""
    state = turn.state
    known = state.answers.get(ask.id)
    if known is not None:
        turn.answers.append(known)
        return
    if ask.what == "status":
        text = f"job {state.config.job} is {state.outcome or state.phase}"
        turn.answers.append(Answer(id=ask.id, ok=True, text=text, values=status_values(state)))
        return
    if pending(turn, ask.id):
        return
    handler = ASKS.get(ask.what)
    if handler is None:
        turn.answer(ask.id, False, f"{ask.what!r} cannot be asked: choose of {', '.join(sorted(ASKS))}, status")
    elif state.phase is JobPhase.ENDED and ask.what == "stop":
        tell_end(turn, ask.id)
    elif state.phase is JobPhase.ENDED:
        turn.answer(ask.id, False, f"the job has ended ({state.outcome}): start it again with `melodeon run`")
    elif state.phase is JobPhase.STOPPING and ask.what != "stop":
        turn.answer(ask.id, False, "the job is stopping: start it again with `melodeon run`")
    else:
        turn.record("ask", id=ask.id, what=ask.what, values=ask.values)
        try:
            handler(turn, ask)
        except (TypeError, ValueError, msgspec.ValidationError) as problem:
            turn.answer(ask.id, False, f"{ask.what} with {ask.values} is not understood: {problem}")


def pending(turn: Turn, ask: str) -> bool:
    """Taken, and not answered yet."""
    state = turn.state
    return (
        any(change.ask == ask for change in changes(state))
        or ask in state.checkpoint_asks
        or ask == state.stop_ask
        or (state.profile is not None and state.profile.ask == ask)
        or (state.switch is not None and state.switch.ask == ask)
    )


def _number(values: dict[str, Any], name: str, default: int) -> int:
    value = values.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name}={value!r} must be a whole number")
    return value


def _agent(values: dict[str, Any], name: str) -> str:
    """Where the wish says; empty only where it says nothing: a script's empty variable is no wish for anywhere."""
    value = values.get(name)
    if value is None:
        return ""
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name}={value!r} must be an agent's name, such as node0")
    return value


def _out(turn: Turn, ask: Ask) -> None:
    count = _number(ask.values, "n", 1)
    on = _agent(ask.values, "on")
    turn.state.queue.append(
        Change(what="scale_out", reason=f"scale out by {count} was asked for", ask=ask.id, count=count, on=on)
    )


def _named(values: dict[str, Any]) -> list[int]:
    raw = values.get("workers")
    if raw is None:
        return []
    if not isinstance(raw, list | tuple) or not all(type(worker) is int for worker in raw):
        raise ValueError(f"workers={raw!r} must be a list of whole numbers, such as [0, 2]")
    if not raw:
        raise ValueError("workers=[] names nobody: name at least one, or leave it out")
    if len(set(raw)) < len(raw):
        raise ValueError(f"workers={raw!r} must name each worker once")
    return list(raw)


def _in(turn: Turn, ask: Ask) -> None:
    workers = _named(ask.values)
    count = _number(ask.values, "n", len(workers) or 1)
    reason = f"scale in by {len(workers) or count} was asked for"
    turn.state.queue.append(Change(what="scale_in", reason=reason, ask=ask.id, count=count, workers=workers))


def _scale(turn: Turn, ask: Ask) -> None:
    count = _number(ask.values, "n", 0)
    turn.state.queue.append(Change(what="scale", reason=f"scale to {count} was asked for", ask=ask.id, count=count))


def _migrate(turn: Turn, ask: Ask) -> None:
    now = seated(turn.state)
    worker = _number(ask.values, "worker", now[0] if now else 0)
    to = _agent(ask.values, "to")
    reason = f"worker {worker} was asked to move" + (f" to {to}" if to else "")
    turn.state.queue.append(Change(what="migrate", reason=reason, ask=ask.id, workers=[worker], on=to))


def _place(turn: Turn, ask: Ask) -> None:
    state = turn.state
    slots = read_slots(ask.values.get("slots"))
    if state.view is not None and (why := refusal(state, slots)):
        turn.answer(ask.id, False, why)
        return
    if state.profile is not None and state.profile.back_to:
        if sorted(places(slots)) == sorted(places(state.slots)):
            turn.answer(ask.id, True, f"workers are on {in_words(slots)}, as far as the profile takes them")
            return
        drop_profile(turn, "the job was given other slots")
    change = Change(what="place", reason=f"workers on {in_words(slots)} were asked for", ask=ask.id, slots=slots)
    supersede(turn, change)
    state.sent_off = False
    state.queue.append(change)


def _profile(turn: Turn, ask: Ask) -> None:
    begin_profile(
        turn,
        ask.id,
        _number(ask.values, "min", 1),
        _number(ask.values, "max", 0),
        _number(ask.values, "steps", 20),
    )


def _checkpoint(turn: Turn, ask: Ask) -> None:
    state = turn.state
    if state.view is None:
        turn.answer(ask.id, False, "the job has not begun to train: ask again when it has")
        return
    if not any(state.workers[worker].keeps for worker in state.view.workers if worker in state.workers):
        text = "the script keeps no checkpoints: let it call job.checkpoint(folder, every=...) before its loop"
        turn.answer(ask.id, False, text)
        return
    state.checkpoint += 1
    state.checkpoint_asks[ask.id] = state.checkpoint
    turn.dirty = True


def _stop(turn: Turn, ask: Ask) -> None:
    state = turn.state
    if state.stop_ask:
        turn.answer(ask.id, True, "the job is stopping already")
        return
    state.stop_ask = ask.id
    cancel(turn, "the job was stopped")
    state.owed = 0
    if state.phase is JobPhase.STARTING:
        end_job(turn, "stopped", f"stopped before it began to train{' again' if state.generation else ''}")
    elif state.phase is JobPhase.TRAINING:
        turn.move_job(JobPhase.STOPPING)


ASKS: dict[str, Callable[[Turn, Ask], None]] = {
    "scale_out": _out,
    "scale_in": _in,
    "scale": _scale,
    "migrate": _migrate,
    "place": _place,
    "profile": _profile,
    "checkpoint": _checkpoint,
    "stop": _stop,
}
