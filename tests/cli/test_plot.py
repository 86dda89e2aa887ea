from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.cli.conftest import Melodeon


@pytest.fixture
def kept(place: Path, melodeon: Melodeon) -> Path:
    drawn = ("--generate", "poisson:30:gap=5min", "-c", "2x4", "-p", "elasticflow,fifo", "-j", 1, "--save", "kept")
    assert melodeon("sim", *drawn)[0] == 0
    return place / "kept"


@pytest.mark.parametrize("kind", ["gantt", "jct", "utilisation", "deadlines"])
def test_each_kind_is_written_as_svg(kept: Path, melodeon: Melodeon, kind: str) -> None:
    given = kept / "poisson-30-fifo.sim.jsonl" if kind == "gantt" else kept
    code, out, err = melodeon("plot", given, "-o", "x.svg", "--kind", kind)
    assert (code, out, err) == (0, "", "wrote x.svg\n")
    assert ET.fromstring(Path("x.svg").read_text()).tag.endswith("svg")


def test_a_png_is_a_png(kept: Path, melodeon: Melodeon) -> None:
    assert melodeon("plot", kept, "-o", "x.png", "-k", "jct")[0] == 0
    assert Path("x.png").read_bytes().startswith(b"\x89PNG")


def test_a_part_of_the_time(kept: Path, melodeon: Melodeon) -> None:
    one = kept / "poisson-30-fifo.sim.jsonl"
    assert melodeon("plot", one, "-o", "x.svg", "--from", "10min", "--to", "1h")[0] == 0
    code, _, err = melodeon("plot", one, "-o", "x.svg", "--from", "2h", "--to", "1h")
    assert (code, "the first must be the earlier" in err) == (2, True)


@pytest.mark.parametrize("kind", ["jct", "deadlines"])
def test_a_picture_that_is_not_over_time_has_no_part_of_it(kept: Path, melodeon: Melodeon, kind: str) -> None:
    for option in ("--from", "--to"):
        code, _, err = melodeon("plot", kept, "-o", "x.svg", "-k", kind, option, "1h")
        assert (code, f"--from and --to choose a time, and --kind {kind} is drawn over none" in err) == (2, True)


def test_mistakes(kept: Path, place: Path, melodeon: Melodeon) -> None:
    assert "must end in .svg or .png" in melodeon("plot", kept, "-o", "x.pdf")[2]
    assert "shows 1 simulation and 2 were given" in melodeon("plot", kept, "-o", "x.svg")[2]
    assert "--kind pie is not one of" in melodeon("plot", kept, "-o", "x.svg", "-k", "pie")[2]
    assert melodeon("plot", "missing", "-o", "x.svg")[0] == 4
    (place / "empty").mkdir()
    assert "holds no result file" in melodeon("plot", "empty", "-o", "x.svg")[2]
    code, _, err = melodeon("plot", kept, "-o", "no/such/x.svg", "-k", "jct")
    assert (code, "cannot be written" in err) == (1, True)
