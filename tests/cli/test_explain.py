import json
from pathlib import Path

import pytest

from tests.cli.conftest import Melodeon


@pytest.fixture
def kept(place: Path, melodeon: Melodeon) -> Path:
    drawn = ("--generate", "philly:60:gap=4min", "-c", "2x4", "-p", "elasticflow", "-j", 1, "--save", "kept")
    assert melodeon("sim", *drawn)[0] == 0
    return place / "kept"


def test_every_job_s_story_fits_eighty_columns_and_has_an_end(kept: Path, melodeon: Melodeon) -> None:
    fates = set()
    for number in range(60):
        code, out, _ = melodeon("explain", kept, f"job{number:05d}")
        assert code == 0
        assert max(map(len, out.splitlines())) <= 80
        story = " ".join(out.split())
        assert "submitted" in story
        rejected = "turned it away" in story
        assert rejected != ("finished" in story)
        fates.add(rejected)
    assert fates == {True, False}, "the trace has both, so that both are seen"


def test_json_has_the_same_sentences(kept: Path, melodeon: Melodeon) -> None:
    said = json.loads(melodeon("explain", kept, "job00000", "-o", "json")[1])
    assert (said["job"], said["policy"]) == ("job00000", "elasticflow")
    shown = " ".join(melodeon("explain", kept, "job00000", "--all")[1].split())
    for sentence in said["sentences"]:
        assert " ".join(sentence["text"].split()) in shown


def test_a_long_story_is_shortened_and_told_whole_on_request() -> None:
    from melodeon.cli.explain import lines
    from melodeon.sim.explain import Sentence

    story = [Sentence(float(n), f"change {n}", is_change=True) for n in range(50)]
    short = lines(story, 0.0)
    assert any("more changes: --all tells them" in line for line in short)
    assert len(short) < 25
    assert len(lines(story, 0.0, everything=True)) == 50
    hidden = int(next(line for line in short if "more changes" in line).split()[1])
    assert hidden + len(short) - 1 == 50


def test_mistakes(kept: Path, melodeon: Melodeon) -> None:
    code, _, err = melodeon("explain", kept, "nobody")
    assert (code, "job 'nobody' is not in philly-60" in err) == (4, True)
    code, _, err = melodeon("explain", kept, "job0000")
    assert (code, "could be any of" in err) == (4, True)
    assert melodeon("explain", "missing", "job00000")[0] == 4
    assert melodeon("explain", kept, "job00000", "-o", "yaml")[0] == 2
