"""`profile(min, max)`: walk the sizes min, 2 min, ... max, measure each, stop where more workers do not help, go back.

Rates are medians over stretches of steps as they were reported, after a warm-up. The job trains on all the while.
"""

from itertools import pairwise
from statistics import median

from melodeon.coord.master_state import Change, Profile, Turn
from melodeon.coord.status import committed
from melodeon.coord.views import room, seated
from melodeon.core.text import counted

GAIN = 1.05
"""The next size must be at least this much faster to be worth going on."""
STRETCHES = 5


def begin_profile(turn: Turn, ask: str, smallest: int, largest: int, steps: int) -> None:
    """Check the range and set out."""
    state = turn.state
    limit = room(state)
    largest = largest or limit
    if state.view is None:
        turn.answer(ask, False, "the job has not begun to train: ask again when it has")
    elif state.profile is not None:
        turn.answer(ask, False, "a profile is being taken: ask again when it is over")
    elif not 1 <= smallest <= largest <= limit or steps < STRETCHES:
        turn.answer(
            ask,
            False,
            f"a profile of {smallest} to {largest} workers over {steps} steps cannot be: "
            f"choose 1 <= min <= max <= {limit} and at least {STRETCHES} steps",
        )
    else:
        sizes = [smallest]
        while sizes[-1] * 2 <= largest:
            sizes.append(sizes[-1] * 2)
        state.profile = Profile(ask=ask, sizes=sizes, back_to=len(seated(state)), steps=steps)
        turn.dirty = True


def run_profile(turn: Turn) -> None:
    """One look: on the way to a size, measuring it, or through."""
    state = turn.state
    profile = state.profile
    if profile is None or state.current is not None or state.queue or state.torn:
        return
    size = len(seated(state))
    if profile.size == 0:
        if not profile.sizes:
            _end(turn, profile)
        elif size == profile.sizes[0]:
            profile.size, profile.marks = profile.sizes.pop(0), []
            turn.dirty = True
        else:
            _go_to(turn, profile, profile.sizes[0])
    elif size != profile.size:
        # Somebody was lost or added meanwhile: measure this size again.
        profile.sizes.insert(0, profile.size)
        profile.size = 0
    else:
        _measure(turn, profile)


def drop_profile(turn: Turn, why: str) -> None:
    """End a walk that cannot be completed."""
    if turn.state.profile is not None:
        turn.answer(turn.state.profile.ask, False, f"the profile was not completed: {why}")
        turn.state.profile = None


def _go_to(turn: Turn, profile: Profile, size: int) -> None:
    tried = f"profile at {counted(size, 'worker')}"
    if profile.marks == [(-1.0, size)]:
        # It was tried and the size was not reached: the walk ends with what is known.
        profile.sizes = []
        return
    profile.marks = [(-1.0, size)]
    turn.state.queue.append(Change(what="resize", reason=tried, count=size))
    turn.dirty = True


def _measure(turn: Turn, profile: Profile) -> None:
    state = turn.state
    step = committed(state)
    if not profile.marks:
        profile.marks.append((turn.now, step))
        return
    (_, first) = profile.marks[0]
    stretch = max(1, profile.steps // STRETCHES)
    due = first + profile.warmup if len(profile.marks) == 1 else profile.marks[-1][1] + stretch
    if step < due:
        return
    profile.marks.append((turn.now, step))
    counted = profile.marks[1:]
    if counted[-1][1] - counted[0][1] < profile.steps:
        return
    rates = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in pairwise(counted) if b[0] > a[0]]
    rate = median(rates) if rates else 0.0
    turn.record("profile", workers=profile.size, steps_per_s=rate)
    before = max(profile.rates.values(), default=0.0)
    profile.rates[profile.size] = rate
    state.curves.setdefault(state.batch[0], {})[profile.size] = rate
    if rate < before * GAIN:
        profile.sizes = []
    profile.size, profile.marks = 0, []


def _end(turn: Turn, profile: Profile) -> None:
    state = turn.state
    if len(seated(state)) != profile.back_to and profile.marks != [(-2.0, profile.back_to)]:
        profile.marks = [(-2.0, profile.back_to)]
        reason = f"the profile is complete: back to {counted(profile.back_to, 'worker')}"
        state.queue.append(Change(what="resize", reason=reason, count=profile.back_to))
        return
    state.profile = None
    figures = ", ".join(f"{size}: {rate:.2f}" for size, rate in profile.rates.items())
    rates = {str(size): rate for size, rate in profile.rates.items()}
    text = f"steps a second by workers: {figures}" if figures else "no size could be measured: ask for sizes that fit"
    turn.answer(profile.ask, bool(rates), text, rates=rates)
