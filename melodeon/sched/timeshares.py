"""From time shares to rounds (Gavel's mechanism): run first who has got least of the time that it is owed.

A share of time cannot be given at once: in a round a job either runs as one of its offers or waits. The ledger keeps,
for every offer, the time owed (its share of all time so far) and the time spent; the priority of an offer is

    (owed + share * round) / (spent + round / 2)

Gavel's `X / f`, with half a round spent to begin with as its code does. When shares change, what is still owed is
carried over and what was overspent is forgiven, so that jobs that came and went cannot starve a large one.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from melodeon.core.cluster import Counts, DeviceType
from melodeon.core.clusterview import ClusterView, JobState
from melodeon.core.jobs import JobId
from melodeon.sched.maxmin import Valued, max_min

Entry = tuple[JobId, Counts]
Basis = tuple[tuple[JobId, ...], Counts]
EPSILON = 1e-6


@dataclass(frozen=True, slots=True)
class Ledger:
    """What one decision leaves for the next."""

    at_s: float = 0.0
    until_s: float = float("-inf")
    """The end of the round."""
    basis: Basis | None = None
    """Jobs and devices that the shares were computed for."""
    shares: Mapping[Entry, float] = field(default_factory=dict)
    owed: Mapping[Entry, float] = field(default_factory=dict)
    spent: Mapping[Entry, float] = field(default_factory=dict)
    running: Mapping[JobId, Counts] = field(default_factory=dict)
    """The offer that each job runs as."""


class Turn(NamedTuple):
    """Who runs now."""

    given: dict[JobId, Counts]
    free: dict[DeviceType, int]
    """Devices that are left."""
    ledger: Ledger
    wake_at: float | None


def passed(ledger: Ledger, now_s: float) -> Ledger:
    """The books as of now."""
    time_s = now_s - ledger.at_s
    if ledger.basis is None or time_s <= 0:
        return ledger
    owed = {entry: ledger.owed.get(entry, 0.0) + share * time_s for entry, share in ledger.shares.items()}
    spent = dict(ledger.spent)
    for entry in ledger.running.items():
        spent[entry] = spent.get(entry, 0.0) + time_s
    return Ledger(now_s, ledger.until_s, ledger.basis, ledger.shares, owed, spent, ledger.running)


def shared_anew(ledger: Ledger, view: ClusterView, offers: Mapping[JobId, list[Valued]]) -> Ledger:
    """The books with the time shares of the jobs and devices of now; what is still owed is carried over."""
    basis = (tuple(offers), view.cluster.capacity)
    if basis == ledger.basis:
        return ledger
    found = max_min(list(offers.values()), dict(view.cluster.capacity))
    shares: dict[Entry, float] = {}
    owed: dict[Entry, float] = {}
    for (job, own), row in zip(offers.items(), found, strict=True):
        for offer, share in zip(own, row, strict=True):
            entry = (job, offer.counts)
            shares[entry] = share
            owed[entry] = max(0.0, ledger.owed.get(entry, 0.0) - ledger.spent.get(entry, 0.0))
    return Ledger(view.now_s, ledger.until_s, basis, shares, owed, {}, ledger.running)


def fill(
    ledger: Ledger,
    round_s: float,
    jobs: Iterable[JobState],
    offers: Mapping[JobId, list[Valued]],
    free: dict[DeviceType, int],
) -> dict[JobId, Counts]:
    """Give free devices to jobs by priority; whoever fits runs, even one whose share is 0. `free` is what is left."""

    def priority(entry: Entry) -> float:
        owed = ledger.owed.get(entry, 0.0) + ledger.shares.get(entry, 0.0) * round_s
        return owed / (ledger.spent.get(entry, 0.0) + round_s / 2)

    queue = [
        (-priority((job.spec.id, offer.counts)), job.counts != offer.counts, -offer.value, place, job.spec.id, offer)
        for place, job in enumerate(jobs)
        for offer in offers[job.spec.id]
    ]
    queue.sort(key=lambda entry: entry[:4])
    given: dict[JobId, Counts] = {}
    for *_, job_id, offer in queue:
        if job_id not in given and all(count <= free.get(kind, 0) for kind, count in offer.counts):
            given[job_id] = offer.counts
            for kind, count in offer.counts:
                free[kind] -= count
    return given


def next_turn(view: ClusterView, state: object, round_s: float, offers: Mapping[JobId, list[Valued]]) -> Turn:
    """A new round, or within one the devices that have become free; `offers` has every admitted job."""
    ledger = passed(state if isinstance(state, Ledger) else Ledger(at_s=view.now_s), view.now_s)
    free = dict(view.cluster.capacity)
    given: dict[JobId, Counts] = {}
    if view.now_s < ledger.until_s:
        given = _kept(view, ledger, offers, free)
    else:
        ledger = replace(shared_anew(ledger, view, offers), until_s=view.now_s + round_s)
    waiting = [job for job in view.admitted if job.spec.id not in given]
    given |= fill(ledger, round_s, waiting, offers, free)
    # Where everyone runs all the time as its shares say, only an event can change anything.
    content = len(given) == len(offers) and all(ledger.shares.get(entry, 0.0) >= 1 - EPSILON for entry in given.items())
    if content or not given:
        ledger = replace(ledger, until_s=view.now_s)
    ledger = replace(ledger, at_s=view.now_s, running=given)
    return Turn(given, free, ledger, ledger.until_s if ledger.until_s > view.now_s else None)


def _kept(
    view: ClusterView, ledger: Ledger, offers: Mapping[JobId, list[Valued]], free: dict[DeviceType, int]
) -> dict[JobId, Counts]:
    """Jobs that run until the round ends; their devices leave `free`."""
    given: dict[JobId, Counts] = {}
    for job in view.admitted:
        counts = ledger.running.get(job.spec.id)
        known = counts is not None and any(offer.counts == counts for offer in offers[job.spec.id])
        if known and counts and job.counts and all(count <= free.get(kind, 0) for kind, count in counts):
            given[job.spec.id] = counts
            for kind, count in counts:
                free[kind] -= count
    return given


def reason(ledger: Ledger, job: JobState, counts: Counts) -> str:
    """Why a job runs in this round, for people."""
    entry = (job.spec.id, counts)
    share = ledger.shares.get(entry, 0.0)
    if share < EPSILON:
        return "no time was set apart for it on this type, but these devices were free"
    owed, spent = ledger.owed.get(entry, 0.0), ledger.spent.get(entry, 0.0)
    return f"its fair part of the time on these devices is {share:.0%}: {owed:.0f} s owed, {spent:.0f} s spent"
