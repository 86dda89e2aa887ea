import os
import subprocess
import sys
from pathlib import Path

import pytest

from melodeon.coord.niceness import SESSION, stand_back

CODE = """
import os, sys
from melodeon.coord.niceness import SESSION, stand_back
os.setsid()
stand_back(int(sys.argv[1]))
print(os.getpriority(os.PRIO_PROCESS, 0), SESSION.read_text().split()[-1] if SESSION.exists() else "-")
"""


@pytest.mark.parametrize(("nice", "least"), [(0, 0), (0, 6), (9, 6), (4, 0)])
def test_a_session_is_as_nice_as_its_processes(nice: int, least: int) -> None:
    command = ["nice", "-n", str(nice), sys.executable, "-c", CODE, str(least)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    becomes = min(19, max(least, os.getpriority(os.PRIO_PROCESS, 0) + nice))
    assert said == [str(becomes), str(becomes) if SESSION.exists() else "-"]


def test_somebody_elses_session_stays_as_it_is() -> None:
    before = SESSION.read_text() if SESSION.exists() else ""
    code = "from melodeon.coord.niceness import stand_back; stand_back(6)"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert (SESSION.read_text() if SESSION.exists() else "") == before


def test_a_kernel_without_sessions_niceness_is_no_trouble(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("melodeon.coord.niceness.SESSION", tmp_path / "no" / "autogroup")
    before = os.getpriority(os.PRIO_PROCESS, 0)
    stand_back()
    assert os.getpriority(os.PRIO_PROCESS, 0) == before
