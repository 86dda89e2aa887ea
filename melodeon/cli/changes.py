"""Wishes to a running job and what is said of their outcome: shared by `scale`, `migrate` and the others."""

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from melodeon.cli.follow import Tail, ticks
from melodeon.cli.job import parse_line
from melodeon.cli.output import print_json, print_titled
from melodeon.core.errors import Cancelled, MelodeonError, NotFound, Unreachable
from melodeon.viz.timeline import pauses_of, whole
from melodeon.viz.words import counted, milliseconds, number, plain

if TYPE_CHECKING:
    from melodeon.coord.client import JobHandle
    from melodeon.coord.messages import Answer

INDENT = 8
ACCEPTED_S = 5.0
"""With --no-wait: how long the job may take to write the wish down."""
REFUSED_S = 0.25
"""How long a refusal that has been sent may take to be read."""


def waited(handle: "JobHandle", wish: "Callable[[], Answer]") -> "Answer":
    """The answer; Ctrl-C stops the waiting, not the change."""
    try:
        return wish()
    except KeyboardInterrupt:
        raise Cancelled(
            f"stopped waiting; job {handle.id} carries the wish out all the same: see `melodeon top {handle.id}`"
        ) from None


def accepted(handle: "JobHandle", what: str, wish: "Callable[[], Answer]") -> "Answer | None":
    """Make a wish and return when the job has it, which its events say; an answer that is there by then is returned."""
    events = Tail(handle.run_dir / "events.jsonl", keep=0)
    events.read()
    outcome: list[Answer | MelodeonError] = []

    def make() -> None:
        try:
            outcome.append(wish())
        except MelodeonError as error:
            outcome.append(error)

    asking = threading.Thread(target=make, name="melodeon-ask", daemon=True)
    asking.start()
    until = time.monotonic() + ACCEPTED_S
    for _ in ticks(lambda: not asking.is_alive() or time.monotonic() > until, None, interval_s=ACCEPTED_S / 50):
        rows = [parse_line(line) for line in events.read()]
        if any(row.get("kind") == "ask" and row.get("what") == what for row in rows):
            # What a job refuses at once, it has refused before it answers anything that is asked later.
            with contextlib.suppress(MelodeonError):
                handle.ask("status", timeout_s=ACCEPTED_S)
            asking.join(REFUSED_S)
            if not outcome:
                return None
            break
    if not outcome:
        raise Unreachable(
            f"job {handle.id} has not confirmed {what!r} within {ACCEPTED_S:.0f} s, and may still carry it out: "
            f"see `melodeon top {handle.id}`"
        )
    if isinstance(outcome[0], MelodeonError):
        raise outcome[0]
    return outcome[0]


def tell_view(handle: "JobHandle", answer: "Answer", *, before: Mapping[str, Any], as_json: bool) -> None:
    """What came of a change of view since the status `before`: the view, the step, the pause, and what to do next."""
    facts = _view_facts(handle, answer, before.get("generation"))
    if as_json:
        print_json({"job": handle.id, "text": answer.text, **facts})
        return
    say("done", answer.text)
    workers, assignment = facts.get("workers"), facts.get("assignment")
    if "generation" in facts:
        size = len(workers) if isinstance(workers, list | tuple) else whole(workers)
        who = "" if size is None else ": " + counted(size, "worker") + (f" as {assignment}" if assignment else "")
        say("view", f"{number(facts['generation'])}{who}, from step {number(facts.get('step'))}")
    pauses = pauses_of(facts)
    if pauses:
        slowest = max(pauses, key=lambda worker: pauses[worker])
        say(
            "pause",
            f"{milliseconds(pauses[slowest])}, the longest of {counted(len(pauses), 'worker')} (worker {slowest})",
        )
    say("next", f"melodeon top {handle.id}")


def tell_accepted(handle: "JobHandle", what: str, *, as_json: bool) -> None:
    """The wish is with the job; nobody waits for it."""
    if as_json:
        print_json({"job": handle.id, "text": f"asked: {what}", "waited": False})
        return
    say("asked", f"{what}; the job carries it out in the background")
    say("next", f"melodeon top {handle.id}")


def say(title: str, *lines: str) -> None:
    """A title and what a job said, which may hold anything."""
    print_titled(title, *map(plain, lines), indent=INDENT)


def seated(status: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The workers that have a seat, as a status lists them."""
    return [worker for worker in status.get("workers", ()) if worker.get("ranks")]


def settled(handle: "JobHandle") -> Mapping[str, Any]:
    """The status once the job trains and nothing that was asked before is on the way: only then its seats count."""
    for status in handle.watch():
        if status.get("phase") != "starting" and not status.get("queue"):
            return status
    raise NotFound(f"job {handle.id} has ended: its folder is {handle.run_dir}")


def virtual_workers(status: Mapping[str, Any]) -> int:
    """How many virtual workers the seats cover."""
    lasts = (whole(str(worker["ranks"]).rpartition("-")[2]) for worker in seated(status))
    return max((last + 1 for last in lasts if last is not None), default=0)


def _view_facts(handle: "JobHandle", answer: "Answer", before: object) -> dict[str, Any]:
    """The answer's own values, completed by the newest view of the job's history where they leave something out.

    A view that was there before has made nobody wait now.
    """
    facts = dict(answer.values)
    if {"generation", "step", "pauses", "workers"} <= facts.keys():
        return facts
    try:
        history = handle.status().get("history") or [{}]
    except MelodeonError:  # the job has ended meanwhile
        return facts
    newest = dict(history[-1])
    if newest.get("generation") == before:
        newest.pop("pauses", None)
    if facts.get("generation") not in (None, newest.get("generation")):
        return facts
    # The names of the workers say more than their number.
    return {**newest, **facts, "workers": newest.get("workers", facts.get("workers"))}
