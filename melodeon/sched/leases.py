"""Chronus' integer programme: which jobs hold which leases so that most (by weight) meet their deadline.

    maximise    sum_i weight_i y_i - a little for late leases
    so that     sum_t usable_it x_it >= needs_i y_i        whoever is chosen gets its seconds before its deadline
                sum_i workers_i x_it <= devices * length_t in every term
                0 <= x_it <= length_t whole, y_i in {0, 1}

A term is one lease near by; farther off terms double in length and hold several leases each, so that the programme
stays small whatever the deadlines are. Solved by HiGHS through SciPy; where everybody fits at once no solver is asked.
"""

from dataclasses import dataclass
from typing import NamedTuple

from melodeon.core.jobs import JobId
from melodeon.sched.silent import silent

SINGLE = 6
"""Terms of one lease, before they double."""
LATE = 1e-3
"""What a lease loses of its job's weight for each term that it is farther off: of equal answers the earliest."""
STAY = 1e-3
"""What going on without a stop is worth, in weights."""


class Claim(NamedTuple):
    """One job with a deadline."""

    job: JobId
    workers: int
    needs_s: float
    """Seconds on its workers before it is done."""
    deadline_s: float
    weight: float
    running: bool


class Bounds(NamedTuple):
    """How much the solver may do."""

    nodes: int
    time_s: float


@dataclass(frozen=True, slots=True)
class Answer:
    """The programme's answer."""

    in_time: frozenset[JobId]
    first: frozenset[JobId]
    """Those that hold the lease which begins now."""


class _Term(NamedTuple):
    start_s: float
    stop_s: float
    leases: int


def solve(claims: list[Claim], devices: int, now_s: float, boundary_s: float, lease_s: float, bounds: Bounds) -> Answer:
    """Choose leases for every claim; each claim alone could be in time."""
    everybody = frozenset(claim.job for claim in claims)
    if sum(claim.workers for claim in claims) <= devices:
        return Answer(everybody, everybody)
    terms = _terms(now_s, boundary_s, lease_s, max(claim.deadline_s for claim in claims))
    columns = [
        (i, t, _usable_s(claim, term))
        for i, claim in enumerate(claims)
        for t, term in enumerate(terms)
        if term.start_s < claim.deadline_s
    ]
    found = _programme(claims, terms, columns, devices, bounds)
    if found is None:
        # Nothing was found within the bounds: the earliest deadlines that fit.
        return _earliest(claims, devices)
    chosen = frozenset(claim.job for i, claim in enumerate(claims) if found[len(columns) + i] > 0.5)
    first = frozenset(
        claims[i].job
        for (i, t, _), x in zip(columns, found, strict=False)
        if t == 0 and x > 0.5 and claims[i].job in chosen
    )
    return Answer(chosen, first)


def _terms(now_s: float, boundary_s: float, lease_s: float, end_s: float) -> list[_Term]:
    terms = [_Term(now_s, boundary_s, 1)]
    while terms[-1].stop_s < end_s:
        leases = 1 if len(terms) < SINGLE else terms[-1].leases * 2
        start_s = terms[-1].stop_s
        terms.append(_Term(start_s, start_s + leases * lease_s, leases))
    return terms


def _usable_s(claim: Claim, term: _Term) -> float:
    """Seconds that one lease of a term is worth to a job: only what lies before its deadline counts."""
    return (min(term.stop_s, claim.deadline_s) - term.start_s) / term.leases


def _earliest(claims: list[Claim], devices: int) -> Answer:
    taken: list[JobId] = []
    for claim in sorted(claims, key=lambda claim: claim.deadline_s):
        if claim.workers <= devices:
            devices -= claim.workers
            taken.append(claim.job)
    return Answer(frozenset(taken), frozenset(taken))


def _programme(
    claims: list[Claim], terms: list[_Term], columns: list[tuple[int, int, float]], devices: int, bounds: Bounds
) -> list[float] | None:
    """The leases of every column, then the choice of every claim; None: no answer within the bounds."""
    from scipy.optimize import Bounds as Range  # type: ignore[import-untyped]
    from scipy.optimize import LinearConstraint, milp
    from scipy.sparse import csr_array  # type: ignore[import-untyped]

    count, last = len(columns), len(columns) + len(claims)
    # Minimised, so every sign is turned round.
    cost = [
        claims[i].weight * LATE * t / len(terms) - (STAY if t == 0 and claims[i].running else 0.0)
        for i, t, _ in columns
    ] + [-claim.weight for claim in claims]
    rows: list[int] = []
    at: list[int] = []
    values: list[float] = []
    for column, (i, t, usable_s) in enumerate(columns):
        rows += [i, len(claims) + t]
        at += [column, column]
        values += [usable_s / claims[i].needs_s, claims[i].workers]
    for i in range(len(claims)):
        rows.append(i)
        at.append(count + i)
        values.append(-1.0)
    matrix = csr_array((values, (rows, at)), shape=(len(claims) + len(terms), last))
    low = [0.0] * len(claims) + [-float("inf")] * len(terms)
    high = [float("inf")] * len(claims) + [float(devices * term.leases) for term in terms]
    with silent():
        answer = milp(
            cost,
            integrality=[1] * last,
            bounds=Range([0.0] * last, [float(terms[t].leases) for _, t, _ in columns] + [1.0] * len(claims)),
            constraints=LinearConstraint(matrix, low, high),
            options={"node_limit": bounds.nodes, "time_limit": bounds.time_s, "mip_rel_gap": 1e-4},
        )
    return None if answer.x is None else [float(x) for x in answer.x]
