"""What solvers print by themselves is seen by nobody."""

import ctypes
import os

import pytest

from melodeon.core.jobs import JobId
from melodeon.sched.leases import Bounds, Claim, solve
from melodeon.sched.silent import silent

C = ctypes.CDLL(None)
TALKATIVE = (
    (1, 473.2763066609114, 4256.1912507651, 20.0, True),
    (1, 1173.9614063148304, 5296.090626311877, 20.0, True),
    (1, 1579.1210867368989, 5607.695015334977, 20.0, True),
    (1, 3237.066350469446, 7632.879769160005, 20.0, True),
    (2, 3422.5837805179726, 7679.84385569533, 20.0, True),
    (1, 3771.0301334170217, 8165.131315608914, 20.0, True),
    (1, 4915.807295122211, 8662.565800831539, 1.0, False),
    (4, 4532.072431115778, 9652.811184921764, 1.0, False),
    (1, 4528.6684854595305, 9779.04556408594, 1.0, False),
    (2, 5644.737904004694, 9886.380286245307, 20.0, False),
    (4, 5193.513286618275, 10215.391623672194, 1.0, False),
    (1, 4037.9903820743007, 10911.175883447831, 20.0, True),
    (1, 12552.594740920029, 17189.54773428146, 1.0, False),
    (1, 16925.273457038, 21359.645268599455, 1.0, False),
    (1, 58108.31274558254, 67473.78548964037, 1.0, False),
)
"""(workers, needs_s, deadline_s, weight, running) of claims at which SciPy 1.17's solver prints a line; rounded to
milliseconds it does not."""


def test_a_programme_that_makes_the_solver_speak_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    claims = [Claim(JobId(f"j{number}"), *values) for number, values in enumerate(TALKATIVE)]
    assert solve(claims, 8, 3600.0, 4200.0, 600.0, Bounds(200, 30.0)).in_time
    C.fflush(None)
    assert capfd.readouterr().out == ""


def test_only_c_is_silenced_and_only_in_there(capfd: pytest.CaptureFixture[str]) -> None:
    with silent():
        C.puts(b"a solver")
        os.write(1, b"somebody else\n")
        with silent():
            C.puts(b"another solver")
        print("Python", flush=True)
    C.puts(b"C again")
    C.fflush(None)
    assert capfd.readouterr().out == "somebody else\nPython\nC again\n"
