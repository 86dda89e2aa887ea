"""`profile(min, max)`: walk the sizes min, 2 min, ... max, measure each, stop where more workers do not help, go back.

Rates are medians over stretches of steps as they were reported, after a warm-up. The job trains on all the while. What
says how large the job is (a wish, a device given back, a loss that is not made good) ends the walk where it is.
"""

from itertools import pairwise
from statistics import median

from melodeon.coord.hybrid import GAIN
from melodeon.coord.master_state import Change, MasterState, Profile, Turn
from melodeon.coord.placing import lose_newcomer
from melodeon.coord.status import committed
from melodeon.coord.views import room, seated
from melodeon.core.text import counted

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
        state.profile = Profile(ask=ask, sizes=sizes, steps=steps)
        turn.dirty = True


def run_profile(turn: Turn) -> None:
    """One look: on the way to a size, measuring it, or through."""
    state = turn.state
    profile = state.profile
    if profile is None:
        return
    size = len(seated(state))
    if profile.size and size != profile.size:
        profile.marks = []  # whoever comes in place of the lost one, this size is measured afresh
    if state.current is not None or state.queue or state.torn:
        return
    if not profile.back_to:
        # What was asked for before it is done by now, and it sets out.
        profile.back_to, profile.wanted = size, state.wanted
        turn.dirty = True
    if _lost(state, profile):
        state.wanted = max(1, size)
        drop_profile(turn, f"a worker was lost and is not replaced, so the job goes on with {counted(size, 'worker')}")
    elif profile.size == 0:
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
    """End a walk where it is; what it has measured is told."""
    profile = turn.state.profile
    if profile is None:
        return
    if profile.size == 0 and not profile.sizes and profile.rates:
        _tell(turn, profile)  # it was only on its way back
        return
    turn.state.profile = None
    so_far = f"; {_figures(profile)}" if profile.rates else ""
    turn.answer(profile.ask, False, f"the profile was interrupted: {why}{so_far}", failed=True, rates=_rates(profile))


def _lost(state: MasterState, profile: Profile) -> bool:
    """Somebody is gone for good: less is wanted, or, where one is wanted anyway, fewer are there than were measured."""
    return state.wanted < profile.wanted or (len(seated(state)) < profile.size and not state.owed)


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
    warm = profile.marks[1:]
    if warm[-1][1] - warm[0][1] < profile.steps:
        return
    rates = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in pairwise(warm) if b[0] > a[0]]
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
    size, wanted = len(seated(state)), min(state.wanted, room(state))
    # A replacement that had no slot yet when it set out may have come meanwhile.
    back_to = max(profile.back_to, wanted - state.owed)
    if size != back_to and profile.marks != [(-2.0, profile.back_to)]:
        profile.marks = [(-2.0, profile.back_to)]
        reason = f"the profile is complete: back to {counted(back_to, 'worker')}"
        state.queue.append(Change(what="resize", reason=reason, count=back_to))
        return
    for _ in range(max(profile.back_to, wanted) - size - state.owed):
        lose_newcomer(turn)  # the walk has let others go for it
    _tell(turn, profile)


def _tell(turn: Turn, profile: Profile) -> None:
    turn.state.profile = None
    text = _figures(profile) if profile.rates else "no size could be measured: ask for sizes that fit"
    turn.answer(profile.ask, bool(profile.rates), text, failed=True, rates=_rates(profile))


def _figures(profile: Profile) -> str:
    figures = ", ".join(f"{size}: {rate:.2f}" for size, rate in profile.rates.items())
    return f"steps a second by workers: {figures}"


def _rates(profile: Profile) -> dict[str, float]:
    return {str(size): rate for size, rate in profile.rates.items()}
