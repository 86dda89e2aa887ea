"""Hands that make what is into what shall be, again and again, one job at a time and all jobs side by side.

Given the wishes of the last round and what was last seen, a job's next move follows: launch, place, measure, stop, or
kill. Moves may fail or be forgotten in a crash; the next look makes the same one again, and a fleet does nothing twice.
A job is put on a device only when nobody else is there any more; where jobs wait for each other in a circle, one goes
ahead.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

from msgspec.structs import replace

from melodeon.backends.fleet_values import Ended, FleetLike, Seen, Wish
from melodeon.coord.failpoint import failpoint
from melodeon.core.errors import MelodeonError, NotFound, Unreachable

GRACE_S = 60.0
"""From asking an incarnation to stop to killing it: writing its state may take a while."""
RETRY_S, RETRY_MOST_S = 0.5, 15.0

Move = Literal["launch", "place", "profile", "stop", "kill", "skip"]


class Profiled(NamedTuple):
    """A profile was taken, or could not be."""

    job: str
    incarnation: int
    rates: dict[int, float]
    why: str = ""


class Trouble(NamedTuple):
    """A move failed; it will be tried again."""

    job: str
    incarnation: int
    text: str


Report = Seen | Profiled | Trouble


class Intent(NamedTuple):
    """A wish, and whether the job is to be measured when it is fulfilled."""

    wish: Wish
    measure: tuple[int, int] | None = None
    """Fewest and most workers."""


class Hands:
    """Moves of all jobs. Belongs to one event loop."""

    def __init__(self, fleet: FleetLike, report: Callable[[Report], None]) -> None:
        self._fleet, self._report = fleet, report
        self._intents: dict[str, Intent] = {}
        self._seen: dict[str, Seen] = {}
        self._launched: set[tuple[str, int]] = set()
        self._began: dict[tuple[str, int], set[tuple[str, int]]] = {}
        """The devices that an incarnation was launched on: its workers are there until they are seen elsewhere."""
        self._measured: set[tuple[str, int]] = set()
        self._stopping: dict[tuple[str, int], float] = {}
        """When an incarnation was first asked to stop."""
        self._busy: dict[str, tuple[Move, asyncio.Task[None]]] = {}
        self._failures: dict[str, int] = {}
        self._later: dict[str, asyncio.TimerHandle] = {}

    def saw(self, seen: Seen) -> None:
        """Take note of what is."""
        self._seen[seen.job] = seen
        if seen.alive or seen.ended is not None:
            self._launched.add((seen.job, seen.incarnation))

    def want(self, intents: Mapping[str, Intent]) -> None:
        """Take note of what shall be, and move."""
        for name in self._intents.keys() - intents.keys():
            self._drop(name)
        before, self._intents = self._intents, dict(intents)
        for name, intent in intents.items():
            if name in self._later and name in before and _kind(before[name].wish) != _kind(intent.wish):
                self._later.pop(name).cancel()  # what failed is not wanted any more
            self._look(name)

    async def settle(self) -> None:
        """Wait until no move is under way."""
        while self._busy:
            await asyncio.wait([task for _, task in self._busy.values()])

    async def close(self) -> None:
        """Let go; what is under way in the fleet goes on."""
        for timer in self._later.values():
            timer.cancel()
        tasks = [task for _, task in self._busy.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- one job ---

    def _drop(self, name: str) -> None:
        self._seen.pop(name, None)
        self._failures.pop(name, None)
        for table in (self._launched, self._measured):
            table -= {key for key in table if key[0] == name}
        for key in [key for key in (*self._stopping, *self._began) if key[0] == name]:
            self._stopping.pop(key, None)
            self._began.pop(key, None)
        if name in self._later:
            self._later.pop(name).cancel()
        if name in self._busy:
            self._busy[name][1].cancel()

    def _look(self, name: str) -> None:
        """Make the job's next move, if there is one and none is under way."""
        intent = self._intents.get(name)
        if intent is None:
            return
        move = self._next(intent)
        busy = self._busy.get(name)
        if busy is not None:
            urgent = move in ("stop", "kill") and busy[0] in ("launch", "place", "profile")
            if urgent and busy[0] != "launch":
                busy[1].cancel()  # its end leads back here
            return
        if move is None or (name in self._later and move not in ("kill", "skip")):
            return
        task = asyncio.get_running_loop().create_task(self._make(move, intent), name=f"{move} {name}")
        self._busy[name] = (move, task)
        task.add_done_callback(lambda _: self._done(name))

    def _done(self, name: str) -> None:
        self._busy.pop(name, None)
        self._look(name)

    def _next(self, intent: Intent) -> Move | None:
        wish = intent.wish
        key = (wish.job, wish.incarnation)
        seen = self._seen.get(wish.job)
        if seen is not None and seen.incarnation != wish.incarnation:
            seen = None
        if seen is not None and seen.ended is not None:
            return None
        slots = wish.slots
        if wish.end or slots is None:
            return self._next_to_stop(key)
        if key not in self._launched:
            return "launch" if self._may_take(wish) else None
        if seen is None or not seen.alive or not seen.training:
            return None
        measure = intent.measure is not None and key not in self._measured
        if measure and self._busy.get(wish.job, ("", None))[0] == "profile":
            return None
        if _differ(seen.slots, slots) and not (intent.measure and key in self._measured):
            return "place" if self._may_take(wish) else None
        return "profile" if measure else None

    def _next_to_stop(self, key: tuple[str, int]) -> Move | None:
        if key not in self._launched:
            return "skip"  # nobody but us would launch it, and we will not
        now = asyncio.get_running_loop().time()
        asked = self._stopping.get(key)
        if asked is None:
            return "stop"
        if now - asked >= GRACE_S:
            return "kill"
        self._again(key[0], GRACE_S - (now - asked) + 0.01)
        return None

    async def _make(self, move: Move, intent: Intent) -> None:
        wish = intent.wish
        name, number = wish.job, wish.incarnation
        try:
            failpoint(f"control.{move}.before")
            await self._call(move, intent)
            failpoint(f"control.{move}.after")
            self._failures.pop(name, None)
        except asyncio.CancelledError:
            return
        except MelodeonError as error:
            self._failed(move, name, number, error)

    async def _call(self, move: Move, intent: Intent) -> None:
        wish, fleet = intent.wish, self._fleet
        name, number = wish.job, wish.incarnation
        match move:
            case "launch":
                self._began[name, number] = _devices(wish.order.slots)
                await fleet.launch(wish.order)
                self._launched.add((name, number))
            case "place":
                assert wish.slots is not None
                await fleet.place(name, number, wish.slots)
                self._placed(name, number, wish.slots)
            case "profile":
                assert intent.measure is not None
                rates = await fleet.profile(name, number, *intent.measure)
                self._measured.add((name, number))
                self._report(Profiled(name, number, rates, "" if rates else "no size could be measured"))
            case "stop":
                await fleet.stop(name, number)
                self._stopping.setdefault((name, number), asyncio.get_running_loop().time())
            case "kill":
                await fleet.kill(name, number)
                self._stopping[(name, number)] = asyncio.get_running_loop().time()
            case "skip":
                ended = Ended(status="unstarted", reason="its devices were taken away before it was started")
                self._report(Seen(job=name, incarnation=number, alive=False, ended=ended))
                self._launched.add((name, number))

    def _placed(self, name: str, number: int, slots: Mapping[str, tuple[int, ...]]) -> None:
        """A fleet says so itself a little later; others may use what was left at once."""
        seen = self._seen.get(name)
        if seen is not None and seen.incarnation == number and seen.ended is None:
            self._seen[name] = replace(seen, slots=dict(slots))
        for other in self._intents:
            if other != name:
                self._look(other)

    def _failed(self, move: Move, name: str, number: int, error: MelodeonError) -> None:
        if move == "launch":
            self._began.pop((name, number), None)
        if move == "launch" and not isinstance(error, Unreachable):
            ended = Ended(status="failed", exit_code=error.exit_code, reason=str(error))
            self._report(Seen(job=name, incarnation=number, alive=False, ended=ended))
            return
        count = self._failures[name] = self._failures.get(name, 0) + 1
        if move == "profile" and count >= 3:
            self._measured.add((name, number))
            self._report(Profiled(name, number, {}, str(error)))
        elif move in ("stop", "kill"):
            # Whoever cannot be asked to stop is killed when the time has come, and ended when it is gone.
            self._stopping.setdefault((name, number), asyncio.get_running_loop().time())
        elif not isinstance(error, NotFound):
            self._report(Trouble(name, number, f"{move}: {error}"))
        self._again(name, min(RETRY_MOST_S, RETRY_S * 2 ** min(count, 10)))

    def _again(self, name: str, seconds: float) -> None:
        def look() -> None:
            self._later.pop(name, None)
            self._look(name)

        if name not in self._later:
            self._later[name] = asyncio.get_running_loop().call_later(seconds, look)

    # --- whose device it is ---

    def _held(self, name: str) -> set[tuple[str, int]]:
        """Devices on which a job's workers are, or may be."""
        seen, intent = self._seen.get(name), self._intents.get(name)
        held: set[tuple[str, int]] = set()
        if seen is not None and seen.ended is None:
            held |= _devices(seen.slots)
        if intent is None:
            return held
        wish, slots = intent.wish, intent.wish.slots
        key = (name, wish.incarnation)
        is_placed = seen is not None and seen.incarnation == wish.incarnation and (seen.slots or seen.ended is not None)
        if not is_placed:
            held |= self._began.get(key, set())
        if slots is None:
            return held
        moving = self._busy.get(name, ("", None))[0] in ("launch", "place")
        if moving or (key in self._launched and not is_placed):
            held |= _devices(slots)
        return held

    def _in_the_way(self, wish: Wish) -> set[str]:
        wanted = _devices(wish.slots) if wish.slots else set()
        return {name for name in self._intents if name != wish.job and self._held(name) & wanted}

    def _may_take(self, wish: Wish) -> bool:
        blockers = self._in_the_way(wish)
        if not blockers:
            return True
        # In a circle nobody would ever move: whoever is waited for by everybody in its way goes ahead.
        waiting, reached = set(blockers), set(blockers)
        while waiting:
            name = waiting.pop()
            intent = self._intents[name]
            if intent.wish.slots is None or intent.wish.end or name in self._busy:
                return False  # it is on its way out, or moving
            seen = self._seen.get(name)
            if seen is None or not _differ(seen.slots, intent.wish.slots):
                return False
            # Its own way is blocked, too: follow it.
            for other in self._in_the_way(intent.wish):
                if other != wish.job and other not in reached:
                    reached.add(other)
                    waiting.add(other)
        return any(wish.job in self._in_the_way(self._intents[name].wish) for name in reached)


def _kind(wish: Wish) -> tuple[int, bool]:
    return wish.incarnation, wish.slots is None or wish.end


def _devices(slots: Mapping[str, tuple[int, ...]]) -> set[tuple[str, int]]:
    return {(node, index) for node, indices in slots.items() for index in indices}


def _differ(one: Mapping[str, tuple[int, ...]], other: Mapping[str, tuple[int, ...]]) -> bool:
    return _devices(one) != _devices(other)
