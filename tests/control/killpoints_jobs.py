"""The jobs of `killpoints_real`, and what a controller's life and whoever keeps the books say to each other.

A job follows from its number and kind, so that a submission can be said again after a crash. Two long ones live through
the kills of a run; the others come and go around them.
"""

from pathlib import Path
from typing import Literal

import msgspec

SCRIPT = Path(__file__).with_name("killpoints_train.py")
PACE_S, SLOW_S = 0.002, 0.02
"""How long a step of a virtual worker waits, of jobs that soon end and of others."""
ENDLESS = 1_000_000
"""Steps of a job that is cancelled."""
LONG, SHORT, EDITED, MEASURED = 800, 20, 30, 60
"""Steps of those that train to their end."""
ELASTIC, PROMISED = 0, 1
"""The long ones: best effort, scaled and given other priorities; with a deadline, which is changed."""
FIRST = 2
"""The first of the others."""
Kind = Literal["short", "edited", "measured", "withdrawn", "cancelled", "unmeasured"]
KINDS: tuple[Kind, ...] = ("cancelled", "measured", "edited", "withdrawn", "short", "unmeasured")
"""In the order in which they come: `withdrawn` is cancelled at once, `cancelled` once it runs, `unmeasured` while its
speed is measured."""


class Op(msgspec.Struct, frozen=True):
    """Something asked of the controller."""

    what: Literal["submit", "cancel", "edit", "scale"]
    number: int
    value: dict[str, int | str | float] | int | str | None = None
    """Of a submission its kind, of an edit the changed fields, of a scaling the workers."""


class Said(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line from the controller's life."""

    what: Literal["asked", "told", "refused", "passed", "over"]
    op: Op | None = None
    text: str = ""
    """The job's id; of what was refused the reason; the name of a point that was passed."""
    count: int = 0
    """How often it was passed."""


class Life(msgspec.Struct, frozen=True, kw_only=True):
    """What a controller's life begins with."""

    folder: str
    names: dict[int, str] = {}
    """Jobs by number, of submissions that were acknowledged."""
    kinds: dict[int, Kind] = {}
    cancelled: list[int] = []
    """Acknowledged."""
    pending: list[Op] = []
    """Asked for in earlier lives and not answered: asked for again."""
    next: int = 0
    """The number of the next job."""
    turn: int = 0
    """Lives before this one: each begins with something else."""
    focus: str = ""
    """What the named point is about, where the load should bring that about soon."""
    seconds: float | None = None
    """How long there is load; None: until it is killed."""
    last: bool = False
    """No more load: everything comes to its end."""
    reference: bool = False
    """Nothing but the jobs whose digests the others must have."""


def job_file(number: int, kind: Kind | None = None) -> dict[str, object]:
    """The job of a number, as its user writes it."""
    made: dict[str, object] = {"name": f"job{number}", "workdir": str(SCRIPT.parent), "virtual_workers": 4}
    made |= {"restarts": 50, "workers": "1-2" if kind is None else "1"}
    if kind is None:
        made |= {"steps": LONG, "run": _run(number, SLOW_S)}
        return made if number == ELASTIC else made | {"deadline": "40m", "curve": {"1": 5.0, "2": 8.0}}
    # A number of epochs that is never reached makes its speed an unknown one.
    steps = {"short": SHORT, "edited": SHORT, "measured": MEASURED}.get(kind, ENDLESS)
    pace_s = SLOW_S if steps == ENDLESS else PACE_S
    made |= {"steps": steps, "run": [*_run(FIRST, pace_s), "--epochs", str(10_000 + number)]}
    if kind in ("measured", "unmeasured"):
        made["deadline"] = "30m" if kind == "measured" else "12h"
    elif kind in ("edited", "withdrawn"):
        made |= {"deadline": "30m" if kind == "edited" else "12h", "curve": {"1": 30.0}}
    return made


def references() -> list[dict[str, object]]:
    """Jobs with the digests of all that train to their end."""
    made = [(0, LONG), (1, LONG), *((FIRST, steps) for steps in (SHORT, EDITED, MEASURED))]
    shared = {"workdir": str(SCRIPT.parent), "virtual_workers": 4, "workers": "1"}
    return [{"name": f"seed{seed}-{steps}", "run": _run(seed, 0), "steps": steps, **shared} for seed, steps in made]


def _run(seed: int, pace_s: float) -> list[str]:
    return [SCRIPT.name, "--seed", str(seed), "--pace", str(pace_s)]
